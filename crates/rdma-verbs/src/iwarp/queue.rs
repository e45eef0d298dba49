//! The completion queue. It owns its queue pairs and drives them.
//!
//! With one queue pair, a poll tries its socket at once. With more, an epoll set of the queue tells which
//! sockets are ready, so the cost depends on the traffic and not on the number of connections.

mod connections;
mod corked;
mod single;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::cork::Cork;
use super::machine::{Machine, Rules, SharedReceives, Sink};
use super::membership::PollSets;
use super::notification::Notification;
use super::queue_pair::QueuePair;
use super::region::ProtectionDomain;
use super::{Config, MAX_DEPTH, MAX_INLINE};
use crate::wait::REPORTED;
use crate::{
    self as verbs, Completion, Error, EventTarget, PeerAccesses, QpCapabilities, QpId, RecvQueue,
    RecvRequest, Result, SendRequest, SrqId, Token, WaitSet,
};

const EXHAUSTED: Error = Error::BadState { state: "out of numbers", what: "a new queue" };

/// A completion queue of the embedded device.
pub struct CompletionQueue {
    config: Config,
    /// At least the sum of the depths of its queue pairs' queues.
    depth: u32,
    /// Sorted by number.
    #[expect(clippy::vec_box, reason = "a queue of one queue pair has no room for four of them")]
    pairs: Vec<Box<QueuePair>>,
    next: u32,
    shared: BTreeMap<SrqId, Arc<Mutex<SharedReceives>>>,
    next_srq: u32,
    /// Completions that wait to be polled. Until then, each holds an entry of a queue of its queue pair or of
    /// a shared receive queue, except completions of the peer's writes on queue pairs for messages.
    ready: VecDeque<Completion>,
    attached: Option<EventTarget>,
    notification: Notification,
    /// Whether the last poll left input in a socket, or output that a socket may take.
    unfinished: bool,
    /// Whether queue pairs are or were in wait sets of their own.
    watched: bool,
    cork: Cork,
    own_set: Option<WaitSet>,
    found: Vec<Token>,
}

/// Puts completions into the caller's array while it has room, and then into the queue.
struct Delivery<'d> {
    out: &'d mut [Completion],
    filled: usize,
    rest: &'d mut VecDeque<Completion>,
}

impl Sink for Delivery<'_> {
    #[inline]
    fn push(&mut self, completion: Completion) {
        match self.out.get_mut(self.filled) {
            Some(place) => {
                *place = completion;
                self.filled += 1;
            }
            None => self.rest.push_back(completion),
        }
    }
}

impl Sink for VecDeque<Completion> {
    fn push(&mut self, completion: Completion) {
        self.push_back(completion);
    }
}

impl CompletionQueue {
    pub(super) fn new(config: Config, depth: u32) -> Self {
        Self {
            config,
            depth,
            pairs: Vec::new(),
            next: 0,
            shared: BTreeMap::new(),
            next_srq: 0,
            ready: VecDeque::new(),
            attached: None,
            notification: Notification::default(),
            unfinished: false,
            watched: false,
            cork: Cork::default(),
            own_set: None,
            found: Vec::new(),
        }
    }

    fn position(&self, qp: QpId) -> Result<usize> {
        let unknown = |_| Error::BadState { state: "unknown", what: "any call" };
        self.pairs.binary_search_by_key(&qp, |pair| pair.number).map_err(unknown)
    }

    fn pair(&self, qp: QpId) -> Option<&QueuePair> {
        self.position(qp).ok().map(|at| &*self.pairs[at])
    }

    /// Calls `body` with a queue pair, the queue for its completions, and the poll sets.
    fn with<R>(
        &mut self,
        qp: QpId,
        body: impl FnOnce(&mut QueuePair, &mut VecDeque<Completion>, PollSets<'_>) -> R,
    ) -> Result<R> {
        let at = self.position(qp)?;
        let sets = PollSets { attached: self.attached.as_ref(), own: self.own_set.as_ref() };
        let returned = body(&mut self.pairs[at], &mut self.ready, sets);
        self.finish_call();
        Ok(returned)
    }

    /// Called at the end of every call. Resumes messages that wait for a shared receive, because a queue pair
    /// that ended may have returned one. Updates the signal for completions and input that wait.
    #[inline]
    fn finish_call(&mut self) {
        if !self.shared.is_empty() {
            self.serve_waiting();
        }
        self.notify();
    }

    /// Updates the signal. Where queue pairs have wait sets of their own the consumer takes completions after each
    /// call, so these need none.
    #[inline]
    fn notify(&mut self) {
        self.notification.update(self.unfinished || !self.ready.is_empty() && !self.watched);
    }

    /// Moves waiting completions to `out`.
    fn take_ready(&mut self, out: &mut [Completion]) -> usize {
        let mut count = 0;
        for place in out {
            let Some(completion) = self.ready.pop_front() else { break };
            *place = completion;
            count += 1;
        }
        count
    }

    /// Drives the queue pairs that may have something to do.
    fn drive(&mut self, out: &mut [Completion]) -> usize {
        let sets = PollSets { attached: self.attached.as_ref(), own: self.own_set.as_ref() };
        let mut delivery = Delivery { out, filled: 0, rest: &mut self.ready };
        match (self.pairs.as_mut_slice(), &self.own_set) {
            ([only], _) => {
                only.drive(&mut delivery, sets);
                self.unfinished = only.is_unfinished();
            }
            (_, None) => self.unfinished = false,
            (pairs, Some(own_set)) => {
                self.found.clear();
                if let Err(error) = own_set.wait(Some(Duration::ZERO), &mut self.found) {
                    log::warn!("iwarp: cannot look for ready queue pairs: {error}");
                }
                // The set may have more than it reports at once.
                self.unfinished = self.found.len() == REPORTED;
                for token in &self.found {
                    let at = pairs.binary_search_by_key(&token.0, |pair| u64::from(pair.number.0));
                    if let Ok(at) = at {
                        pairs[at].drive(&mut delivery, sets);
                        self.unfinished |= pairs[at].is_unfinished();
                    }
                }
            }
        }
        delivery.filled
    }

    /// Creates the queue's own set when there are several queue pairs.
    fn ensure_own_set(&mut self) -> Result<()> {
        if self.own_set.is_none() && self.pairs.len() > 1 {
            let own_set = WaitSet::new()?;
            for pair in &self.pairs {
                pair.add_to(&own_set, Token(u64::from(pair.number.0)))?;
            }
            self.own_set = Some(own_set);
        }
        Ok(())
    }
}

impl verbs::QueuePairs for CompletionQueue {
    type Pd = ProtectionDomain;

    fn create_qp(&mut self, pd: &ProtectionDomain, wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)> {
        let segment = self.config.segment;
        self.add(wanted, |number, granted| Machine::new(number, pd, granted, segment))
    }

    fn destroy_qp(&mut self, qp: QpId) {
        let Ok(at) = self.position(qp) else { return };
        let sets = PollSets { attached: self.attached.as_ref(), own: self.own_set.as_ref() };
        self.pairs.remove(at).destroy(sets);
        self.ready.retain(|completion| completion.qp != qp);
        self.shared.values().for_each(|shared| shared.lock().forget(qp));
        self.finish_call();
    }

    fn post_recv(&mut self, qp: QpId, requests: &[RecvRequest<'_>]) -> Result<()> {
        self.with(qp, |pair, ready, sets| pair.post_recv(requests, ready, sets))?
    }

    fn post_send(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        self.with(qp, |pair, ready, sets| pair.post_send(requests, more, ready, sets))?
    }
}

impl verbs::MessageQueues for CompletionQueue {
    fn create_message_qp(
        &mut self,
        pd: &ProtectionDomain,
        wanted: QpCapabilities,
        shared: Option<SrqId>,
    ) -> Result<(QpId, QpCapabilities)> {
        let segment = self.config.segment;
        let shared = shared.map(|srq| self.admit(srq, Rules::Messages, pd)).transpose()?;
        self.add(wanted, |number, granted| Machine::for_messages(number, pd, granted, segment, shared))
    }

    fn create_shared_qp(
        &mut self,
        pd: &ProtectionDomain,
        wanted: QpCapabilities,
        srq: SrqId,
    ) -> Result<(QpId, QpCapabilities)> {
        let (segment, shared) = (self.config.segment, self.admit(srq, Rules::Verbs, pd)?);
        self.add(wanted, |number, granted| Machine::of_shared(number, pd, granted, segment, shared))
    }

    fn post_corked(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        self.post_in_series(qp, requests, more)
    }

    fn uncork(&mut self) {
        self.end_series();
    }

    fn create_srq(&mut self, pd: &ProtectionDomain, depth: u32) -> Result<SrqId> {
        check_depth("shared receive queue depth", depth)?;
        let srq = SrqId(self.next_srq);
        self.next_srq = self.next_srq.checked_add(1).ok_or(EXHAUSTED)?;
        self.shared.insert(srq, Arc::new(Mutex::new(SharedReceives::new(depth, pd))));
        Ok(srq)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        // Each queue pair that uses it has a reference.
        if Arc::strong_count(self.srq(srq)?) > 1 {
            return Err(Error::BadState { state: "using it", what: "destroying a shared receive queue" });
        }
        self.shared.remove(&srq);
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: SrqId, requests: &[RecvRequest<'_>]) -> Result<()> {
        self.srq(srq)?.lock().post(requests)?;
        self.finish_call();
        Ok(())
    }

    fn cancel_recv(&mut self, queue: RecvQueue, id: u64) -> bool {
        match queue {
            RecvQueue::Own(qp) => self.with(qp, |pair, _, _| pair.cancel_recv(id)).unwrap_or(false),
            RecvQueue::Shared(srq) => {
                self.srq(srq).is_ok_and(|shared| shared.lock().receives.cancel(id, false))
            }
        }
    }

    fn send_room(&self, qp: QpId) -> Option<usize> {
        self.pair(qp).map(|pair| pair.send_room(&self.ready))
    }

    fn give_up(&mut self, qp: QpId) -> bool {
        self.with(qp, |pair, ready, sets| pair.give_up(ready, sets)).unwrap_or(false)
    }

    fn end_events(&mut self, qp: QpId) {
        // Without the queue pair there are none.
        let _ = self.with(qp, |pair, _, _| pair.set_event_interest(None));
    }

    fn has_ended(&self, qp: QpId) -> bool {
        self.pair(qp).is_some_and(QueuePair::has_ended)
    }

    fn peer_ended(&self, qp: QpId) -> bool {
        self.pair(qp).is_some_and(QueuePair::peer_ended)
    }

    fn awaits_peer(&self, qp: QpId) -> bool {
        self.pair(qp).is_some_and(QueuePair::awaits_peer)
    }

    fn hold_writes(&mut self, qp: QpId, hold: bool) {
        let _ = self.with(qp, |pair, ready, sets| pair.hold_writes(hold, ready, sets));
    }

    fn count_accesses(&mut self, qp: QpId) -> Option<Arc<PeerAccesses>> {
        self.with(qp, |pair, _, _| pair.count_accesses()).ok()
    }

    fn stalls(&mut self, qp: QpId) -> u64 {
        self.with(qp, |pair, _, _| pair.stalls()).unwrap_or(0)
    }
}

impl CompletionQueue {
    fn srq(&self, srq: SrqId) -> Result<&Arc<Mutex<SharedReceives>>> {
        self.shared.get(&srq).ok_or(Error::BadState { state: "unknown", what: "any call" })
    }

    /// The queue, which a queue pair of these rules and this domain is going to use.
    fn admit(&self, srq: SrqId, rules: Rules, pd: &ProtectionDomain) -> Result<Arc<Mutex<SharedReceives>>> {
        let shared = self.srq(srq)?;
        shared.lock().admit(rules, pd)?;
        Ok(Arc::clone(shared))
    }

    /// Resumes queue pairs whose messages wait for shared receives, as long as there are receives.
    #[inline(never)]
    fn serve_waiting(&mut self) {
        let sets = PollSets { attached: self.attached.as_ref(), own: self.own_set.as_ref() };
        for shared in self.shared.values() {
            loop {
                let Some(qp) = shared.lock().next_waiting() else { break };
                if let Ok(at) = self.pairs.binary_search_by_key(&qp, |pair| pair.number) {
                    self.pairs[at].resume(&mut self.ready, sets);
                }
            }
        }
    }

    /// Adds a queue pair. `make` creates its machine from its number and the granted capabilities.
    fn add(
        &mut self,
        wanted: QpCapabilities,
        make: impl FnOnce(QpId, QpCapabilities) -> Machine,
    ) -> Result<(QpId, QpCapabilities)> {
        check_depth("send depth", wanted.send_depth)?;
        check_depth("receive depth", wanted.recv_depth)?;
        // A completion queue that has room for all entries cannot overflow [RFC 5040 8.1.1-11].
        let depths = |of: &QpCapabilities| u64::from(of.send_depth) + u64::from(of.recv_depth);
        let taken: u64 = self.pairs.iter().map(|pair| depths(&pair.capabilities())).sum();
        let (needed, most) = (taken + depths(&wanted), u64::from(self.depth));
        if needed > most {
            return Err(Error::CompletionQueueFull { needed, most });
        }
        let granted = QpCapabilities { inline: wanted.inline.min(MAX_INLINE), ..wanted };
        let number = QpId(self.next);
        let next = self.next.checked_add(1);
        self.pairs.push(Box::new(QueuePair::new(number, granted, make(number, granted))));
        let outcome = next.ok_or(EXHAUSTED).and_then(|next| self.ensure_own_set().map(|()| next));
        match outcome {
            Ok(next) => self.next = next,
            Err(error) => {
                self.pairs.pop();
                return Err(error);
            }
        }
        Ok((number, granted))
    }
}

/// Checks the depth of a queue.
fn check_depth(what: &'static str, depth: u32) -> Result<()> {
    if depth > MAX_DEPTH {
        let (value, most) = (u64::from(depth), u64::from(MAX_DEPTH));
        return Err(Error::OutOfRange { what, value, least: 0, most });
    }
    Ok(())
}

impl verbs::CompletionQueue for CompletionQueue {
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if out.is_empty() {
            return 0;
        }
        self.end_series();
        let count = if self.ready.is_empty() { self.drive(out) } else { self.take_ready(out) };
        if count == 0 && self.ready.capacity() > super::KEPT_COMPLETIONS {
            self.ready = VecDeque::new();
        }
        self.finish_call();
        count
    }

    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()> {
        let target = EventTarget::new(&wait);
        for at in 0..self.pairs.len() {
            if let Err(error) = self.pairs[at].add_to(&wait, target.token) {
                self.pairs[..at].iter().for_each(|pair| pair.remove_from(&wait));
                return Err(error);
            }
        }
        self.notification.attach(&target);
        for pair in &self.pairs {
            if let Some(before) = &self.attached {
                pair.remove_from(&before.wait);
            }
        }
        self.attached = Some(target);
        self.finish_call();
        Ok(())
    }

    fn watch(&mut self, qp: QpId, wait: &Arc<WaitSet>) -> Result<bool> {
        self.watched = true;
        self.with(qp, |pair, _, _| pair.watch(wait))?.map(|()| true)
    }

    fn unwatch(&mut self, qp: QpId, wait: &Arc<WaitSet>) -> bool {
        self.with(qp, |pair, _, _| pair.unwatch(wait)).unwrap_or(false)
    }

    fn take_waiting(&mut self, out: &mut [Completion]) -> usize {
        let count = self.take_ready(out);
        self.notify();
        count
    }

    fn arm(&mut self) -> Result<bool> {
        // If completions wait, the poll that follows signals those that it leaves.
        self.notification.arm();
        if self.unfinished {
            self.notification.notify_again();
        }
        // A set of one queue pair has no signal for what is unfinished.
        Ok(!self.ready.is_empty() || self.watched && self.unfinished)
    }

    fn arm_for_others(&mut self) {
        self.notification.arm();
        self.finish_call();
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        let sets = PollSets { attached: self.attached.as_ref(), own: self.own_set.as_ref() };
        for pair in &mut self.pairs {
            pair.destroy(sets);
        }
    }
}
