//! The completion queue with faults.

mod connections;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::plan::Plan;
use super::random::Random;
use rdma_verbs::{
    self as verbs, Completion, CompletionKind, ConnectError, Error, QpCapabilities, QpId, RecvRequest,
    Result, SendRequest, Signal, WaitSet,
};

/// A completion queue with faults.
#[derive(Debug)]
pub struct CompletionQueue<C> {
    inner: C,
    plan: Plan,
    random: Random,
    queue_pairs: BTreeMap<QpId, QueuePair>,
    /// Completions of the wrapped queue that are held back.
    held: VecDeque<Completion>,
    /// The last poll returned 0 without polling the wrapped queue.
    false_zero: bool,
    signal: Option<Signal>,
}

/// The fault layer's state of a queue pair.
#[derive(Debug)]
struct QueuePair {
    granted: QpCapabilities,
    signal: Option<Signal>,
    /// A failure of the connection attempt that this layer injected.
    failure: Option<ConnectError>,
    established: bool,
    /// This layer aborted the connection. The wrapped device's event says that this side aborted it, and the
    /// consumer gets a reset instead.
    broken: bool,
    /// Outstanding signaled sends.
    sends: u32,
    /// Outstanding receives.
    receives: u32,
    /// The last post was refused.
    refused: bool,
}

impl<C: verbs::CompletionQueue> CompletionQueue<C> {
    pub(super) fn new(inner: C, plan: Plan, random: Random) -> Self {
        Self {
            inner,
            plan,
            random,
            queue_pairs: BTreeMap::new(),
            held: VecDeque::new(),
            false_zero: false,
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
            queue_pair.broken = true;
            queue_pair.established = false;
            self.inner.abort(qp);
        } else if self.random.happens(self.plan.end_connection) {
            queue_pair.established = false;
            self.inner.disconnect(qp);
        }
    }

    fn maybe_end_all(&mut self) {
        if self.plan.break_connection == 0 && self.plan.end_connection == 0 {
            return;
        }
        let established = self.queue_pairs.iter().filter(|(_, queue_pair)| queue_pair.established);
        let numbers: Vec<QpId> = established.map(|(&number, _)| number).collect();
        numbers.into_iter().for_each(|qp| self.maybe_end(qp));
    }

    /// Decides whether to refuse a post of `asked` requests on a queue. It does not refuse two posts in a
    /// row. It refuses only while requests are outstanding, whose completions make the consumer try again.
    fn refuse(&mut self, qp: QpId, queue: Queue, asked: usize) -> Result<()> {
        let Some(queue_pair) = self.queue_pairs.get_mut(&qp) else { return Ok(()) };
        let (depth, outstanding) = match queue {
            Queue::Send => (queue_pair.granted.send_depth, queue_pair.sends),
            Queue::Receive => (queue_pair.granted.recv_depth, queue_pair.receives),
        };
        let possible = queue_pair.established && outstanding > 0 && asked > 0 && !queue_pair.refused;
        queue_pair.refused = possible && self.random.delays(self.plan.queue_full);
        if !queue_pair.refused {
            return Ok(());
        }
        let room = u32::try_from(asked - 1).unwrap_or(u32::MAX).min(depth.saturating_sub(outstanding));
        self.set_signal(true);
        Err(Error::QueueFull { depth, room, asked })
    }

    /// Polls completions of the wrapped queue into `out`, and may hold some of them back.
    fn fetch(&mut self, out: &mut [Completion]) -> usize {
        let mut room = out.len();
        if room > 1 && self.random.happens(self.plan.small_batch) {
            room = 1 + self.random.up_to(room - 1);
        }
        let found = self.inner.poll(&mut out[..room]);
        if found == 0 || !self.random.delays(self.plan.hold_completions) {
            return found;
        }
        let given = self.random.up_to(found - 1);
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

    /// Subtracts the completed requests from the outstanding ones.
    fn count_completed(&mut self, completions: &[Completion]) {
        for completion in completions {
            let Some(queue_pair) = self.queue_pairs.get_mut(&completion.qp) else { continue };
            match completion.kind {
                CompletionKind::Recv | CompletionKind::RecvWrite => {
                    queue_pair.receives = queue_pair.receives.saturating_sub(1);
                }
                CompletionKind::Send | CompletionKind::Write | CompletionKind::Read => {
                    queue_pair.sends = queue_pair.sends.saturating_sub(1);
                }
            }
        }
    }
}

/// Which queue of a queue pair.
#[derive(Debug, Clone, Copy)]
enum Queue {
    Send,
    Receive,
}

impl<C: verbs::CompletionQueue> verbs::QueuePairs for CompletionQueue<C> {
    type Pd = C::Pd;

    fn create_qp(&mut self, pd: &C::Pd, mut wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)> {
        if self.random.happens(self.plan.small_inline) {
            wanted.inline = self.random.up_to(wanted.inline);
        }
        let (qp, granted) = self.inner.create_qp(pd, wanted)?;
        let state = QueuePair {
            granted,
            signal: None,
            failure: None,
            established: false,
            broken: false,
            sends: 0,
            receives: 0,
            refused: false,
        };
        self.queue_pairs.insert(qp, state);
        Ok((qp, granted))
    }

    fn destroy_qp(&mut self, qp: QpId) {
        self.inner.destroy_qp(qp);
        self.queue_pairs.remove(&qp);
        self.held.retain(|completion| completion.qp != qp);
    }

    fn post_recv(&mut self, qp: QpId, requests: &[RecvRequest<'_>]) -> Result<()> {
        self.refuse(qp, Queue::Receive, requests.len())?;
        self.inner.post_recv(qp, requests)?;
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.receives += u32::try_from(requests.len()).unwrap_or(u32::MAX);
        }
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        self.maybe_end(qp);
        self.refuse(qp, Queue::Send, requests.len())?;
        self.inner.post_send(qp, requests, more)?;
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            let signaled = requests.iter().filter(|request| request.signaled).count();
            queue_pair.sends += u32::try_from(signaled).unwrap_or(u32::MAX);
        }
        Ok(())
    }
}

impl<C: verbs::CompletionQueue> verbs::MessageQueues for CompletionQueue<C> {}

impl<C: verbs::CompletionQueue> verbs::CompletionQueue for CompletionQueue<C> {
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.maybe_end_all();
        self.false_zero = !self.false_zero && self.random.delays(self.plan.false_zero);
        if self.false_zero {
            self.set_signal(true);
            return 0;
        }
        let count = if self.held.is_empty() { self.fetch(out) } else { self.take_held(out) };
        self.count_completed(&out[..count]);
        let spurious = self.random.happens(self.plan.spurious_wake);
        // This layer signals held completions only. The wrapped queue signals those that it still has, also
        // after a shortened batch.
        self.set_signal(!self.held.is_empty() || spurious);
        count
    }

    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()> {
        let signal = wait.signal(wait.token());
        signal.set(!self.held.is_empty() || self.false_zero);
        self.inner.attach(wait)?;
        self.signal = Some(signal);
        Ok(())
    }

    fn arm(&mut self) -> Result<bool> {
        self.inner.arm()
    }
}
