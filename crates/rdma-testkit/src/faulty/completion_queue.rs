//! The completion queue with faults.

mod connections;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::dice::Dice;
use super::plan::Plan;
use rdma_verbs::{
    self as verbs, Completion, CompletionKind, ConnectError, Error, QpCapabilities, QpId, RecvRequest,
    Result, SendRequest, Signal, WaitSet,
};

/// A completion queue with faults.
#[derive(Debug)]
pub struct CompletionQueue<C> {
    inner: C,
    plan: Plan,
    dice: Dice,
    queue_pairs: BTreeMap<QpId, QueuePair>,
    /// Completions of the wrapped queue that the consumer does not know of yet.
    held: VecDeque<Completion>,
    /// The last poll lied that there is nothing.
    lied: bool,
    alarm: Option<Signal>,
}

/// What we know of a queue pair.
#[derive(Debug)]
struct QueuePair {
    granted: QpCapabilities,
    alarm: Option<Signal>,
    /// An event that the wrapped device knows nothing of.
    failure: Option<ConnectError>,
    established: bool,
    /// We broke it: what the wrapped device calls its own abort came from outside.
    broken: bool,
    /// Signalled sends, and receives, that were posted and did not come back: something still
    /// brings the consumer to its next try.
    sends: u32,
    receives: u32,
    /// The last post was refused.
    refused: bool,
}

impl<C: verbs::CompletionQueue> CompletionQueue<C> {
    pub(super) fn new(inner: C, plan: Plan, dice: Dice) -> Self {
        Self {
            inner,
            plan,
            dice,
            queue_pairs: BTreeMap::new(),
            held: VecDeque::new(),
            lied: false,
            alarm: None,
        }
    }

    fn ring(&self, on: bool) {
        if let Some(alarm) = &self.alarm {
            alarm.set(on);
        }
    }

    /// A moment at which the connection may break or end under the consumer's hands.
    fn tempt(&mut self, qp: QpId) {
        let Some(queue_pair) = self.queue_pairs.get_mut(&qp) else { return };
        if !queue_pair.established {
            return;
        }
        if self.dice.happens(self.plan.break_connection) {
            queue_pair.broken = true;
            queue_pair.established = false;
            self.inner.abort(qp);
        } else if self.dice.happens(self.plan.end_connection) {
            queue_pair.established = false;
            self.inner.disconnect(qp);
        }
    }

    fn tempt_all(&mut self) {
        if self.plan.break_connection == 0 && self.plan.end_connection == 0 {
            return;
        }
        let established = self.queue_pairs.iter().filter(|(_, queue_pair)| queue_pair.established);
        let numbers: Vec<QpId> = established.map(|(&number, _)| number).collect();
        numbers.into_iter().for_each(|qp| self.tempt(qp));
    }

    /// Decides whether to refuse a post of `asked` requests on a queue. Never twice in a row, and
    /// only if `outstanding` requests are to come back.
    fn refuse(&mut self, qp: QpId, queue: Queue, asked: usize) -> Result<()> {
        let Some(queue_pair) = self.queue_pairs.get_mut(&qp) else { return Ok(()) };
        let (depth, outstanding) = match queue {
            Queue::Send => (queue_pair.granted.send_depth, queue_pair.sends),
            Queue::Receive => (queue_pair.granted.recv_depth, queue_pair.receives),
        };
        let possible = queue_pair.established && outstanding > 0 && asked > 0 && !queue_pair.refused;
        queue_pair.refused = possible && self.dice.delays(self.plan.queue_full);
        if !queue_pair.refused {
            return Ok(());
        }
        let room = u32::try_from(asked - 1).unwrap_or(u32::MAX).min(depth.saturating_sub(outstanding));
        self.ring(true);
        Err(Error::QueueFull { depth, room, asked })
    }

    /// Gets completions from the wrapped queue into `out`, perhaps not all of them.
    fn fetch(&mut self, out: &mut [Completion]) -> usize {
        let mut room = out.len();
        if room > 1 && self.dice.happens(self.plan.small_batch) {
            room = 1 + self.dice.up_to(room - 1);
        }
        let found = self.inner.poll(&mut out[..room]);
        if found == 0 || !self.dice.delays(self.plan.hold_completions) {
            return found;
        }
        let given = self.dice.up_to(found - 1);
        self.held.extend(&out[given..found]);
        given
    }

    fn give_held(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.held.len());
        for (slot, completion) in out.iter_mut().zip(self.held.drain(..count)) {
            *slot = completion;
        }
        count
    }

    /// Notes what came back.
    fn account(&mut self, completions: &[Completion]) {
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
        if self.dice.happens(self.plan.small_inline) {
            wanted.inline = self.dice.up_to(wanted.inline);
        }
        let (qp, granted) = self.inner.create_qp(pd, wanted)?;
        let known = QueuePair {
            granted,
            alarm: None,
            failure: None,
            established: false,
            broken: false,
            sends: 0,
            receives: 0,
            refused: false,
        };
        self.queue_pairs.insert(qp, known);
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
        self.tempt(qp);
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
        self.tempt_all();
        self.lied = !self.lied && self.dice.delays(self.plan.false_zero);
        if self.lied {
            self.ring(true);
            return 0;
        }
        let count = if self.held.is_empty() { self.fetch(out) } else { self.give_held(out) };
        self.account(&out[..count]);
        let spurious = self.dice.happens(self.plan.spurious_wake);
        // What is held is there to be polled; and after a batch that was cut short, as after any
        // other, the wrapped queue itself says whether it has more.
        self.ring(!self.held.is_empty() || spurious);
        count
    }

    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()> {
        let alarm = wait.signal(wait.token());
        alarm.set(!self.held.is_empty() || self.lied);
        self.inner.attach(wait)?;
        self.alarm = Some(alarm);
        Ok(())
    }

    fn arm(&mut self) -> Result<bool> {
        self.inner.arm()
    }
}
