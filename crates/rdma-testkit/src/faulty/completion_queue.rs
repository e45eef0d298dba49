//! The completion queue with faults.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::alarm::Alarm;
use super::dice::Dice;
use super::plan::Plan;
use rdma_verbs::shm::Invitation;
use rdma_verbs::{
    self as verbs, BreakReason, Completion, CompletionKind, ConnectError, ConnectOptions, ConnectionEvent,
    Error, EventTarget, QpCapabilities, QpNumber, RecvRequest, Result, SendRequest, Token, WaitSet,
};

/// The token by which our own wake-ups show in the attached wait set.
const ALARM: Token = Token(u64::MAX - 1);

/// A completion queue with faults.
#[derive(Debug)]
pub struct CompletionQueue<C> {
    inner: C,
    plan: Plan,
    dice: Dice,
    queue_pairs: BTreeMap<QpNumber, QueuePair>,
    /// Completions of the wrapped queue that the consumer does not know of yet.
    held: VecDeque<Completion>,
    /// The last poll lied that there is nothing.
    lied: bool,
    alarm: Option<Alarm>,
}

/// What we know of a queue pair.
#[derive(Debug)]
struct QueuePair {
    granted: QpCapabilities,
    alarm: Option<Alarm>,
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
    fn tempt(&mut self, qp: QpNumber) {
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
        let numbers: Vec<QpNumber> = established.map(|(&number, _)| number).collect();
        numbers.into_iter().for_each(|qp| self.tempt(qp));
    }

    /// Decides whether to refuse a post of `asked` requests on a queue. Never twice in a row, and
    /// only if `outstanding` requests are to come back.
    fn refuse(&mut self, qp: QpNumber, queue: Queue, asked: usize) -> Result<()> {
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

    /// Our own wake-up for a queue pair's events.
    fn watch(&mut self, qp: QpNumber, events: &EventTarget) -> Result<()> {
        let alarm = Alarm::new(&events.wait, events.token)?;
        alarm.set(self.dice.happens(self.plan.spurious_wake));
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.alarm = Some(alarm);
        }
        Ok(())
    }

    fn draw_connect_error(&mut self, options: &ConnectOptions) -> ConnectError {
        match self.dice.up_to(4) {
            0 => ConnectError::Refused,
            1 => ConnectError::System(rustix::io::Errno::HOSTUNREACH.raw_os_error()),
            2 => ConnectError::TimedOut(u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX)),
            3 => ConnectError::Protocol("the answer makes no sense".into()),
            _ => ConnectError::Closed,
        }
    }
}

/// Which queue of a queue pair.
#[derive(Debug, Clone, Copy)]
enum Queue {
    Send,
    Receive,
}

impl<C: verbs::CompletionQueue> verbs::CompletionQueue for CompletionQueue<C> {
    type Pd = C::Pd;
    type Request = C::Request;

    fn create_qp(&mut self, pd: &C::Pd, mut wanted: QpCapabilities) -> Result<(QpNumber, QpCapabilities)> {
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

    fn destroy_qp(&mut self, qp: QpNumber) {
        self.inner.destroy_qp(qp);
        self.queue_pairs.remove(&qp);
        self.held.retain(|completion| completion.qp != qp);
    }

    fn connect(
        &mut self,
        qp: QpNumber,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        let fresh = self.queue_pairs.get(&qp).is_some_and(|queue_pair| queue_pair.alarm.is_none());
        self.watch(qp, &events)?;
        if !(fresh && self.dice.happens(self.plan.fail_connect)) {
            return self.inner.connect(qp, remote, local, private_data, options, events);
        }
        let error = self.draw_connect_error(options);
        let Some(queue_pair) = self.queue_pairs.get_mut(&qp) else {
            return Err(Error::BadState { state: "absent", what: "connecting" });
        };
        queue_pair.failure = Some(error);
        if let Some(alarm) = &queue_pair.alarm {
            alarm.set(true);
        }
        Ok(())
    }

    fn accept(
        &mut self,
        qp: QpNumber,
        request: C::Request,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        self.watch(qp, &events)?;
        self.inner.accept(qp, request, private_data, options, events)
    }

    fn invite(
        &mut self,
        qp: QpNumber,
        remote: SocketAddr,
        target: &dyn verbs::MemoryRegion,
    ) -> Option<Invitation> {
        self.inner.invite(qp, remote, target)
    }

    fn visit(
        &mut self,
        qp: QpNumber,
        request: &C::Request,
        invitation: &Invitation,
        target: &dyn verbs::MemoryRegion,
    ) -> bool {
        self.inner.visit(qp, request, invitation, target)
    }

    fn meet(&mut self, qp: QpNumber, visited: bool) {
        self.inner.meet(qp, visited);
    }

    fn shares_memory(&self, qp: QpNumber) -> bool {
        self.inner.shares_memory(qp)
    }

    fn disconnect(&mut self, qp: QpNumber) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.established = false;
        }
        self.inner.disconnect(qp);
    }

    fn abort(&mut self, qp: QpNumber) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.established = false;
        }
        self.inner.abort(qp);
    }

    fn flushed(&mut self, qp: QpNumber) -> bool {
        self.inner.flushed(qp)
    }

    fn poll_event(&mut self, qp: QpNumber) -> Option<ConnectionEvent> {
        self.tempt(qp);
        let spurious = self.dice.happens(self.plan.spurious_wake);
        let queue_pair = self.queue_pairs.get_mut(&qp)?;
        if let Some(alarm) = &queue_pair.alarm {
            alarm.set(spurious);
        }
        if let Some(error) = queue_pair.failure.take() {
            return Some(ConnectionEvent::Failed(error));
        }
        let event = self.inner.poll_event(qp)?;
        match event {
            ConnectionEvent::Established { .. } => queue_pair.established = true,
            ConnectionEvent::Broken(BreakReason::Aborted) if queue_pair.broken => {
                return Some(ConnectionEvent::Broken(BreakReason::Reset));
            }
            _ => queue_pair.established = false,
        }
        Some(event)
    }

    fn deadline(&self, qp: QpNumber) -> Option<Instant> {
        self.inner.deadline(qp)
    }

    fn local_address(&self, qp: QpNumber) -> Option<SocketAddr> {
        self.inner.local_address(qp)
    }

    fn peer_address(&self, qp: QpNumber) -> Option<SocketAddr> {
        self.inner.peer_address(qp)
    }

    fn post_recv(&mut self, qp: QpNumber, requests: &[RecvRequest]) -> Result<()> {
        self.refuse(qp, Queue::Receive, requests.len())?;
        self.inner.post_recv(qp, requests)?;
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.receives += u32::try_from(requests.len()).unwrap_or(u32::MAX);
        }
        Ok(())
    }

    fn post_send(&mut self, qp: QpNumber, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        self.tempt(qp);
        self.refuse(qp, Queue::Send, requests.len())?;
        self.inner.post_send(qp, requests, more)?;
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            let signaled = requests.iter().filter(|request| request.signaled).count();
            queue_pair.sends += u32::try_from(signaled).unwrap_or(u32::MAX);
        }
        Ok(())
    }

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
        let alarm = Alarm::new(&wait, ALARM)?;
        alarm.set(!self.held.is_empty() || self.lied);
        self.inner.attach(wait)?;
        self.alarm = Some(alarm);
        Ok(())
    }

    fn arm(&mut self) -> Result<bool> {
        self.inner.arm()
    }
}
