//! The completion queue with faults.

mod connections;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::plan::Plan;
use crate::random::Random;
use rdma_verbs::{
    self as verbs, Completion, CompletionKind, ConnectError, Error, PeerAccesses, QpCapabilities, QpId,
    RecvQueue, RecvRequest, Result, SendRequest, Signal, SrqId, WaitSet,
};

/// A completion queue with faults.
#[derive(Debug)]
pub struct CompletionQueue<C> {
    inner: C,
    plan: Plan,
    random: Random,
    queue_pairs: BTreeMap<QpId, QueuePair>,
    shared: BTreeMap<SrqId, Queue>,
    /// Completions of the wrapped queue that are held back.
    held: VecDeque<Completion>,
    /// The last poll returned 0 without polling the wrapped queue.
    false_zero: bool,
    /// A poll returned 0 although the wrapped queue may have completions, which it may have signaled already.
    /// So this layer signals until the wrapped queue has none, or until the consumer arms it and is told to
    /// poll once more.
    hidden: bool,
    signal: Option<Signal>,
}

/// The fault layer's state of a queue pair.
#[derive(Debug)]
struct QueuePair {
    signal: Option<Signal>,
    /// A failure of the connection attempt that this layer injected.
    failure: Option<ConnectError>,
    established: bool,
    /// This layer aborted the connection. The wrapped device's event says that this side aborted it, and the
    /// consumer gets a reset instead.
    broken: bool,
    /// Of its outstanding requests, it counts the signaled ones.
    sends: Queue,
    receives: Queue,
    /// The queue that it uses instead of `receives`.
    shared: Option<SrqId>,
}

/// The requests of a queue.
#[derive(Debug)]
struct Queue {
    depth: u32,
    outstanding: u32,
    /// The last post was refused.
    refused: bool,
}

impl Queue {
    fn new(depth: u32) -> Self {
        Self { depth, outstanding: 0, refused: false }
    }

    /// Decides whether to refuse a post of `asked` requests. It does not refuse two posts in a row. It
    /// refuses only while requests are outstanding, whose completions make the consumer try again.
    fn refuse(&mut self, asked: usize, plan: &Plan, random: &mut Random) -> Result<()> {
        let possible = self.outstanding > 0 && asked > 0 && !self.refused;
        self.refused = possible && random.delays(plan.queue_full);
        if !self.refused {
            return Ok(());
        }
        let room = self.depth.saturating_sub(self.outstanding);
        let room = u32::try_from(asked - 1).unwrap_or(u32::MAX).min(room);
        Err(Error::QueueFull { depth: self.depth, room, asked })
    }

    fn posted(&mut self, count: usize) {
        self.outstanding += u32::try_from(count).unwrap_or(u32::MAX);
    }

    fn completed(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
    }
}

impl<C: verbs::CompletionQueue> CompletionQueue<C> {
    pub(super) fn new(inner: C, plan: Plan, random: Random) -> Self {
        Self {
            inner,
            plan,
            random,
            queue_pairs: BTreeMap::new(),
            shared: BTreeMap::new(),
            held: VecDeque::new(),
            false_zero: false,
            hidden: false,
            signal: None,
        }
    }

    fn set_signal(&self, on: bool) {
        if let Some(signal) = &self.signal {
            signal.set(on);
        }
    }

    /// Breaks or ends the connection, if the plan has it happen now.
    fn maybe_end(&mut self, qp: QpId) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&qp) else { return };
        if !queue_pair.established {
            return;
        }
        if self.random.happens(self.plan.break_connection) {
            self.break_connection(qp);
        } else if self.random.happens(self.plan.end_connection) {
            queue_pair.established = false;
            self.inner.disconnect(qp);
        }
    }

    fn break_connection(&mut self, qp: QpId) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            (queue_pair.broken, queue_pair.established) = (true, false);
            self.inner.abort(qp);
        }
    }

    /// Posts sends, as [`verbs::QueuePairs::post_send`] does. Returns how many are posted.
    pub(crate) fn post_some(
        &mut self,
        qp: QpId,
        requests: &[SendRequest<'_>],
        more: bool,
    ) -> (usize, Result<()>) {
        self.maybe_end(qp);
        let established = self.queue_pairs.get_mut(&qp).filter(|queue_pair| queue_pair.established);
        let mut taken = requests.len();
        if let Some(queue_pair) = established {
            let refused = queue_pair.sends.refuse(taken, &self.plan, &mut self.random);
            if let Err(error) = self.signal_refusal(refused) {
                return (0, Err(error));
            }
            if taken > 1 && self.random.happens(self.plan.partial_post) {
                taken = 1 + self.random.up_to(taken - 2);
            }
        }
        if let Err(error) = self.inner.post_send(qp, &requests[..taken], more) {
            return (0, Err(error));
        }
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.sends.posted(requests[..taken].iter().filter(|request| request.signaled).count());
        }
        if taken == requests.len() {
            return (taken, Ok(()));
        }
        self.break_connection(qp);
        let source = std::io::Error::from(std::io::ErrorKind::InvalidInput);
        (taken, Err(Error::Io { what: "post the rest", source }))
    }

    fn maybe_end_all(&mut self) {
        if self.plan.break_connection == 0 && self.plan.end_connection == 0 {
            return;
        }
        let established = self.queue_pairs.iter().filter(|(_, queue_pair)| queue_pair.established);
        let numbers: Vec<QpId> = established.map(|(&number, _)| number).collect();
        numbers.into_iter().for_each(|qp| self.maybe_end(qp));
    }

    /// Signals a refused post.
    fn signal_refusal(&self, outcome: Result<()>) -> Result<()> {
        if outcome.is_err() {
            self.set_signal(true);
        }
        outcome
    }

    /// The receive queue that a queue pair uses.
    fn receives_of(&mut self, qp: QpId) -> Option<&mut Queue> {
        let queue_pair = self.queue_pairs.get_mut(&qp)?;
        match queue_pair.shared {
            Some(srq) => self.shared.get_mut(&srq),
            None => Some(&mut queue_pair.receives),
        }
    }

    /// Takes on a queue pair of the wrapped queue.
    fn add(&mut self, qp: QpId, granted: QpCapabilities, shared: Option<SrqId>) {
        let state = QueuePair {
            signal: None,
            failure: None,
            established: false,
            broken: false,
            sends: Queue::new(granted.send_depth),
            receives: Queue::new(granted.recv_depth),
            shared,
        };
        self.queue_pairs.insert(qp, state);
    }

    /// The capabilities to request of the wrapped queue.
    fn wanted(&mut self, mut wanted: QpCapabilities) -> QpCapabilities {
        if self.random.happens(self.plan.small_inline) {
            wanted.inline = self.random.up_to(wanted.inline);
        }
        wanted
    }

    /// Polls completions of the wrapped queue into `out`, and may hold some of them back.
    fn fetch(&mut self, out: &mut [Completion]) -> usize {
        let mut room = out.len();
        if room > 1 && self.random.happens(self.plan.small_batch) {
            room = 1 + self.random.up_to(room - 1);
        }
        let found = self.inner.poll(&mut out[..room]);
        self.hidden &= found > 0;
        if found == 0 || !self.random.delays(self.plan.hold_completions) {
            return found;
        }
        // A shared receive must not be lost if its queue pair is destroyed before its completion is given.
        let is_shared = |completion: &Completion| {
            let is_receive = matches!(completion.kind, CompletionKind::Recv | CompletionKind::RecvWrite);
            is_receive && self.queue_pairs.get(&completion.qp).is_some_and(|one| one.shared.is_some())
        };
        let least = out[..found].iter().rposition(is_shared).map_or(0, |last| last + 1);
        let given = self.random.up_to(found - 1).max(least);
        self.held.extend(&out[given..found]);
        given
    }

    fn take_held(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.held.len());
        for (slot, completion) in out.iter_mut().zip(self.held.drain(..count)) {
            *slot = completion;
        }
        count
    }

    /// Subtracts a completed request from the outstanding ones.
    fn count_completed(&mut self, completion: &Completion) {
        let queue = match completion.kind {
            CompletionKind::RecvWrite if completion.id == Completion::NO_RECEIVE => None,
            CompletionKind::Recv | CompletionKind::RecvWrite => self.receives_of(completion.qp),
            CompletionKind::Send | CompletionKind::Write | CompletionKind::Read => {
                self.queue_pairs.get_mut(&completion.qp).map(|queue_pair| &mut queue_pair.sends)
            }
        };
        if let Some(queue) = queue {
            queue.completed();
        }
    }
}

impl<C: verbs::CompletionQueue> verbs::QueuePairs for CompletionQueue<C> {
    type Pd = C::Pd;

    fn create_qp(&mut self, pd: &C::Pd, wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)> {
        let wanted = self.wanted(wanted);
        let (qp, granted) = self.inner.create_qp(pd, wanted)?;
        self.add(qp, granted, None);
        Ok((qp, granted))
    }

    fn destroy_qp(&mut self, qp: QpId) {
        self.inner.destroy_qp(qp);
        self.held.retain(|completion| completion.qp != qp);
        self.queue_pairs.remove(&qp);
    }

    fn post_recv(&mut self, qp: QpId, requests: &[RecvRequest<'_>]) -> Result<()> {
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp).filter(|queue_pair| queue_pair.established) {
            let refused = queue_pair.receives.refuse(requests.len(), &self.plan, &mut self.random);
            self.signal_refusal(refused)?;
        }
        self.inner.post_recv(qp, requests)?;
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.receives.posted(requests.len());
        }
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        self.post_some(qp, requests, more).1
    }
}

impl<C: verbs::CompletionQueue> verbs::MessageQueues for CompletionQueue<C> {
    fn create_message_qp(
        &mut self,
        pd: &C::Pd,
        wanted: QpCapabilities,
        shared: Option<SrqId>,
    ) -> Result<(QpId, QpCapabilities)> {
        let wanted = self.wanted(wanted);
        let (qp, granted) = self.inner.create_message_qp(pd, wanted, shared)?;
        self.add(qp, granted, shared);
        Ok((qp, granted))
    }

    fn create_shared_qp(
        &mut self,
        pd: &C::Pd,
        wanted: QpCapabilities,
        srq: SrqId,
    ) -> Result<(QpId, QpCapabilities)> {
        let wanted = self.wanted(wanted);
        let (qp, granted) = self.inner.create_shared_qp(pd, wanted, srq)?;
        self.add(qp, granted, Some(srq));
        Ok((qp, granted))
    }

    fn create_srq(&mut self, pd: &C::Pd, depth: u32) -> Result<SrqId> {
        let srq = self.inner.create_srq(pd, depth)?;
        self.shared.insert(srq, Queue::new(depth));
        Ok(srq)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        self.inner.destroy_srq(srq)?;
        self.shared.remove(&srq);
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: SrqId, requests: &[RecvRequest<'_>]) -> Result<()> {
        if let Some(queue) = self.shared.get_mut(&srq) {
            let refused = queue.refuse(requests.len(), &self.plan, &mut self.random);
            self.signal_refusal(refused)?;
        }
        self.inner.post_srq_recv(srq, requests)?;
        if let Some(queue) = self.shared.get_mut(&srq) {
            queue.posted(requests.len());
        }
        Ok(())
    }

    fn cancel_recv(&mut self, queue: RecvQueue, id: u64) -> bool {
        let cancelled = self.inner.cancel_recv(queue, id);
        let queue = match queue {
            RecvQueue::Own(qp) => self.queue_pairs.get_mut(&qp).map(|queue_pair| &mut queue_pair.receives),
            RecvQueue::Shared(srq) => self.shared.get_mut(&srq),
        };
        if let Some(queue) = queue.filter(|_| cancelled) {
            queue.completed();
        }
        cancelled
    }

    fn send_room(&self, qp: QpId) -> Option<usize> {
        self.inner.send_room(qp)
    }

    fn has_sends(&self, qp: QpId) -> bool {
        self.inner.has_sends(qp)
    }

    fn give_up(&mut self, qp: QpId) -> bool {
        self.inner.give_up(qp)
    }

    fn end_events(&mut self, qp: QpId) {
        self.inner.end_events(qp);
    }

    fn has_ended(&self, qp: QpId) -> bool {
        self.inner.has_ended(qp)
    }

    fn peer_ended(&self, qp: QpId) -> bool {
        self.inner.peer_ended(qp)
    }

    fn awaits_peer(&self, qp: QpId) -> bool {
        self.inner.awaits_peer(qp)
    }

    fn hold_writes(&mut self, qp: QpId, hold: bool) {
        self.inner.hold_writes(qp, hold);
    }

    fn count_accesses(&mut self, qp: QpId) -> Option<Arc<PeerAccesses>> {
        self.inner.count_accesses(qp)
    }

    fn stalls(&mut self, qp: QpId) -> u64 {
        self.inner.stalls(qp)
    }
}

impl<C: verbs::CompletionQueue> verbs::CompletionQueue for CompletionQueue<C> {
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.maybe_end_all();
        self.false_zero = !self.false_zero && self.random.delays(self.plan.false_zero);
        if self.false_zero {
            self.hidden = true;
            self.set_signal(true);
            return 0;
        }
        let count = if self.held.is_empty() { self.fetch(out) } else { self.take_held(out) };
        self.hidden |= count == 0 && !self.held.is_empty();
        out[..count].iter().for_each(|completion| self.count_completed(completion));
        let spurious = self.random.happens(self.plan.spurious_wake);
        // The wrapped queue signals those that it still has, also after a shortened batch.
        self.set_signal(!self.held.is_empty() || self.hidden || spurious);
        count
    }

    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()> {
        let signal = wait.signal(wait.token());
        signal.set(!self.held.is_empty() || self.hidden);
        self.inner.attach(wait)?;
        self.signal = Some(signal);
        Ok(())
    }

    fn arm(&mut self) -> Result<bool> {
        let again = self.inner.arm()?;
        if again {
            self.hidden = false;
            self.set_signal(false);
        }
        Ok(again)
    }

    fn arm_for_others(&mut self) {
        self.inner.arm_for_others();
    }
}
