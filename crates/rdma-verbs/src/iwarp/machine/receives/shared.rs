//! Receives that several queue pairs share, and where a queue pair takes its receives from.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Receive, Receives};
use crate::iwarp::machine::Rules;
use crate::iwarp::region::{ProtectionDomain, RegionCache};
use crate::{Buffer, Error, QpId, RecvRequest, Result};

/// A shared receive queue, and the queue pairs that wait for a receive from it.
#[derive(Debug)]
pub struct SharedReceives {
    pub(in crate::iwarp) receives: Receives,
    /// In the order in which their messages arrived.
    waiting: VecDeque<QpId>,
    /// How many receives went to queue pairs that waited.
    served: u64,
    regions: RegionCache,
    /// The rules of its queue pairs, and so of its receives; `None`: it has had neither.
    rules: Option<Rules>,
}

impl SharedReceives {
    pub(in crate::iwarp) fn new(depth: u32, domain: &ProtectionDomain) -> Self {
        let (receives, regions) = (Receives::new(depth), RegionCache::of_receives(domain.clone()));
        Self { receives, waiting: VecDeque::new(), served: 0, regions, rules: None }
    }

    /// Lets queue pairs of these rules and of this domain use it.
    pub(in crate::iwarp) fn admit(&mut self, rules: Rules, domain: &ProtectionDomain) -> Result<()> {
        let is_known = rules == Rules::Messages || self.regions.is_of(domain);
        if is_known && *self.rules.get_or_insert(rules) == rules { Ok(()) } else { Err(OTHERS) }
    }

    /// Posts receives: all of them or none.
    pub(in crate::iwarp) fn post(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        let mut rules = self.rules;
        for request in requests {
            let needed = match request.buffer {
                Buffer::Empty => continue,
                Buffer::Segment(_) => Rules::Verbs,
                Buffer::Places(_) => Rules::Messages,
            };
            if *rules.get_or_insert(needed) != needed {
                return Err(OTHERS);
            }
        }
        self.receives.post(requests, Some(&mut self.regions))?;
        self.rules = rules;
        Ok(())
    }

    /// Removes and returns the first waiting queue pair, if there is a receive for it.
    pub(in crate::iwarp) fn next_waiting(&mut self) -> Option<QpId> {
        if self.receives.runs.is_empty() {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.served += 1;
        Some(next)
    }

    /// Removes a queue pair from those that wait.
    pub(in crate::iwarp) fn forget(&mut self, qp: QpId) {
        self.waiting.retain(|&waiting| waiting != qp);
    }
}

const OTHERS: Error =
    Error::BadState { state: "not of the kind or the domain of that shared receive queue", what: "its use" };

/// The receives of a queue pair: its own queue, or a shared one.
#[derive(Debug)]
pub(in crate::iwarp::machine) struct ReceiveSource {
    /// Its own receives. If it uses a shared queue, the one receive that a message has consumed.
    pub(in crate::iwarp::machine) own: Receives,
    shared: Option<Arc<Mutex<SharedReceives>>>,
}

impl ReceiveSource {
    pub(in crate::iwarp::machine) fn new(depth: u32, shared: Option<Arc<Mutex<SharedReceives>>>) -> Self {
        Self { own: Receives::new(depth), shared }
    }

    /// How many receives of the shared queue, if there is one, went to queue pairs that waited.
    pub(in crate::iwarp::machine) fn served(&self) -> u64 {
        self.shared.as_ref().map_or(0, |shared| shared.lock().served)
    }

    /// Its own queue, to post to.
    pub(in crate::iwarp::machine) fn unshared(&mut self) -> Result<&mut Receives> {
        match self.shared {
            None => Ok(&mut self.own),
            Some(_) => Err(Error::Unsupported("receives beside those of a shared queue")),
        }
    }

    /// Consumes a receive of the shared queue for a message. Returns whether there was one. If there was none
    /// but there is a shared queue, that queue records that the queue pair `waits`.
    pub(in crate::iwarp::machine) fn take_shared(&mut self, waits: Option<QpId>) -> bool {
        let Some(shared) = &self.shared else { return false };
        let mut shared = shared.lock();
        let found = self.own.take_oldest_of(&mut shared.receives);
        if let Some(qp) = waits.filter(|qp| !found && !shared.waiting.contains(qp)) {
            shared.waiting.push_back(qp);
        }
        found
    }

    /// The shared receive that a message has consumed.
    #[cfg(test)]
    pub(in crate::iwarp::machine) fn shared_receive(&self) -> Option<u64> {
        self.shared.as_ref().and(self.own.oldest()).map(|receive| receive.id)
    }

    /// Returns a consumed receive to the shared queue.
    pub(in crate::iwarp::machine) fn release(&mut self) {
        if let Some(shared) = &self.shared {
            self.own.return_to(&mut shared.lock().receives);
        }
    }

    /// Removes all own receives, the oldest first. If the queue is shared, stops using it, and returns the consumed
    /// receive unless that `is_unusable`.
    pub(in crate::iwarp::machine) fn drain(&mut self, is_unusable: bool, mut each: impl FnMut(Receive)) {
        if !is_unusable {
            self.release();
        }
        self.shared = None;
        while let Some(receive) = self.own.oldest() {
            each(receive);
            self.own.remove_oldest();
        }
        (self.own.runs, self.own.places) = Default::default();
    }
}
