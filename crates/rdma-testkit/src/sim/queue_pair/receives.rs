//! Posted receives, of one queue pair or shared by several.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Rules;
use super::local::LocalMemory;
use super::post::{check_room, valid_receive};
use crate::sim::Config;
use crate::sim::region::Regions;
use rdma_verbs::{Buffer, Error, RecvRequest, Result};

/// A posted receive.
#[derive(Debug)]
pub(in crate::sim) struct Receive {
    pub(super) id: u64,
    pub(super) buffer: LocalMemory,
}

/// A receive queue.
#[derive(Debug)]
pub(in crate::sim) struct Receives {
    depth: u32,
    /// Receives whose completion was not polled, including those that are posted.
    occupied: u32,
    /// Oldest first.
    posted: VecDeque<Receive>,
}

/// A receive queue that queue pairs share.
#[derive(Debug)]
pub(in crate::sim) struct Shared {
    pub(in crate::sim) receives: Receives,
    regions: Arc<Regions>,
    /// The rules of its queue pairs, and so of its receives; `None`: it has had neither.
    rules: Option<Rules>,
}

pub(in crate::sim) type SharedReceives = Arc<Mutex<Shared>>;

impl Shared {
    pub(in crate::sim) fn new(depth: u32, regions: Arc<Regions>) -> Self {
        Self { receives: Receives::new(depth), regions, rules: None }
    }

    /// Lets queue pairs of these rules and of this domain use it.
    pub(in crate::sim) fn admit(&mut self, rules: Rules, regions: &Arc<Regions>) -> Result<()> {
        let is_known = rules == Rules::Messages || Arc::ptr_eq(&self.regions, regions);
        let is_of_kind = is_known && *self.rules.get_or_insert(rules) == rules;
        if is_of_kind { Ok(()) } else { Err(Error::BadState { state: "of another kind", what: "sharing" }) }
    }

    /// Posts receives, all or none.
    pub(in crate::sim) fn post(&mut self, config: &Config, requests: &[RecvRequest<'_>]) -> Result<()> {
        let Self { receives, regions, rules } = self;
        let has_places = requests.iter().any(|request| matches!(request.buffer, Buffer::Places(_)));
        let first = if has_places { Rules::Messages } else { Rules::Verbs };
        let has_payload = requests.iter().any(|request| !matches!(request.buffer, Buffer::Empty));
        let needed = rules.unwrap_or(first);
        receives.post(requests, |request| valid_receive(needed, config, regions, request))?;
        if has_payload {
            *rules = Some(needed);
        }
        Ok(())
    }
}

impl Receives {
    pub(in crate::sim) fn new(depth: u32) -> Self {
        Self { depth, occupied: 0, posted: VecDeque::new() }
    }

    pub(in crate::sim) fn depth(&self) -> u32 {
        self.depth
    }

    /// Posts receives, all or none. `check` makes a receive of a valid request.
    pub(super) fn post(
        &mut self,
        requests: &[RecvRequest<'_>],
        check: impl Fn(&RecvRequest<'_>) -> Result<Receive>,
    ) -> Result<()> {
        let count = check_room(requests.len(), self.depth, self.depth - self.occupied)?;
        let receives: Vec<_> = requests.iter().map(check).collect::<Result<_>>()?;
        self.posted.extend(receives);
        self.occupied += count;
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Removes the oldest receive. It holds its entry until [`Receives::free`].
    pub(super) fn take(&mut self) -> Option<Receive> {
        self.posted.pop_front()
    }

    /// Makes a receive the oldest one again.
    pub(super) fn put_back(&mut self, receive: Receive) {
        self.posted.push_front(receive);
    }

    /// Frees the entry of a receive whose completion was polled.
    pub(super) fn free(&mut self) {
        self.occupied -= 1;
    }

    /// See [`rdma_verbs::MessageQueues::cancel_recv`].
    pub(in crate::sim) fn cancel(&mut self, id: u64) -> bool {
        let newest = self.posted.iter().rposition(|receive| receive.id == id);
        let cancelled = newest.and_then(|at| self.posted.remove(at));
        self.occupied -= u32::from(cancelled.is_some());
        cancelled.is_some()
    }
}
