//! A reliable connected queue pair: its states, and the start and end of its connection.
//!
//! [`post`] checks the consumer's requests, [`outgoing`] is the send queue up to its completions, and
//! [`incoming`] handles the peer's frames. Everything here runs in calls on the completion queue that owns
//! the queue pair.

mod incoming;
mod local;
mod outgoing;
mod post;
mod receives;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Config;
use super::fabric::BoundAddress;
use super::link::{Frame, Parameters, Port};
use super::region::Regions;
use outgoing::SendQueue;
use rdma_verbs::Signal;
use rdma_verbs::{
    BreakReason, Completion, CompletionKind, CompletionStatus, ConnectError, ConnectionEvent, Error,
    PeerAccesses, QpCapabilities, QpId, Result, Transport,
};
use receives::Receive;
use receives::Receives;
pub(super) use receives::{Shared, SharedReceives};

/// The rules that a queue pair follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    /// Those of every queue pair.
    Verbs,
    /// Those of [`rdma_verbs::MessageQueues`].
    Messages,
}

/// A completion that was not polled yet, with the queue entries that polling it frees.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) completion: Completion,
    pub(super) frees: Entries,
}

/// Entries of a queue.
#[derive(Debug)]
pub(super) enum Entries {
    /// Entries of the send queue: the completed request and the unsignaled ones before it.
    Send(u32),
    /// One entry of the receive queue.
    Recv,
    /// One entry of the shared receive queue, and its receive.
    Shared(Receive),
    /// None: a write of the peer took no receive.
    Nothing,
}

/// The completions of a completion queue that can be polled.
pub(super) type ReadyList = VecDeque<Finished>;

#[derive(Debug)]
pub(super) struct QueuePair {
    number: QpId,
    config: Config,
    rules: Rules,
    capabilities: QpCapabilities,
    regions: Arc<Regions>,
    phase: Phase,
    /// The consumer began an orderly end.
    closing: bool,
    /// [`Frame::Close`] was sent, after all posted requests.
    close_sent: bool,
    /// [`Frame::Close`] arrived.
    peer_closed: bool,
    /// See [`rdma_verbs::MessageQueues::peer_ended`].
    peer_ended: bool,
    /// Present from connecting or accepting until the end.
    port: Option<Port>,
    event_signal: Option<Arc<Signal>>,
    events: VecDeque<ConnectionEvent>,
    /// The active side's own address, which stays bound until the end.
    bound: Option<BoundAddress>,
    local_address: Option<SocketAddr>,
    peer_address: Option<SocketAddr>,
    sends: SendQueue,
    /// Its own receive queue.
    receives: Receives,
    /// The queue that it uses instead.
    shared: Option<SharedReceives>,
    /// A message that waits for a receive.
    stalled: Option<Frame>,
    /// Messages that had to wait.
    stalls: u64,
    /// Whether writes with immediate data that take no receive are stalled.
    holds_writes: bool,
    /// Counts the accesses of the peer.
    accesses: Option<Arc<PeerAccesses>>,
    /// Requests of the peer that were executed and not acknowledged yet.
    unacknowledged: usize,
    /// Whether the peer's requests complete only when they are acknowledged.
    acknowledge: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Connecting(Deadline),
    Accepting(Deadline),
    Established,
    Ended,
}

/// How long an attempt waits for the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deadline {
    timeout: Duration,
    /// `None` if the clock cannot express it.
    at: Option<Instant>,
}

impl Deadline {
    pub(super) fn from_now(timeout: Duration) -> Self {
        Self { timeout, at: Instant::now().checked_add(timeout) }
    }
}

/// The parts of a connection attempt that the active and the passive side have in common.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) port: Port,
    pub(super) event_signal: Arc<Signal>,
    pub(super) local_address: SocketAddr,
    pub(super) peer_address: SocketAddr,
    pub(super) deadline: Deadline,
}

impl QueuePair {
    pub(super) fn new(
        number: QpId,
        config: Config,
        rules: Rules,
        capabilities: QpCapabilities,
        regions: Arc<Regions>,
        shared: Option<SharedReceives>,
    ) -> Self {
        Self {
            number,
            config,
            rules,
            capabilities,
            regions,
            phase: Phase::Idle,
            closing: false,
            close_sent: false,
            peer_closed: false,
            peer_ended: false,
            port: None,
            event_signal: None,
            events: VecDeque::new(),
            bound: None,
            local_address: None,
            peer_address: None,
            sends: SendQueue::new(capabilities.send_depth),
            receives: Receives::new(capabilities.recv_depth),
            shared,
            stalled: None,
            stalls: 0,
            holds_writes: false,
            accesses: None,
            unacknowledged: 0,
            acknowledge: false,
        }
    }

    pub(super) fn peer_ended(&self) -> bool {
        self.peer_ended
    }

    /// Whether it follows the embedded device where queue pairs for messages differ.
    fn is_as_embedded(&self) -> bool {
        self.rules == Rules::Messages && self.config.transport == Transport::Iwarp
    }

    /// Runs `body` on the queue that messages consume.
    fn with_receives<R>(&mut self, body: impl FnOnce(&mut Receives) -> R) -> R {
        match &self.shared {
            Some(shared) => body(&mut shared.lock().receives),
            None => body(&mut self.receives),
        }
    }

    /// What this side announces to the other one.
    pub(super) fn parameters(&self) -> Parameters {
        Parameters {
            responder_resources: self.capabilities.responder_resources,
            acknowledge: self.config.transport == Transport::InfiniBand,
        }
    }

    /// Most completions that it can have on the completion queue.
    pub(super) fn depths(&self) -> u64 {
        u64::from(self.capabilities.send_depth) + u64::from(self.capabilities.recv_depth)
    }

    /// Refuses `what` unless the queue pair was never connected.
    pub(super) fn require_idle(&self, what: &'static str) -> Result<()> {
        if self.phase == Phase::Idle { Ok(()) } else { Err(Error::BadState { state: self.state(), what }) }
    }

    /// Starts the active side, whose request is in a listener's backlog.
    pub(super) fn connecting(&mut self, attempt: Attempt, bound: BoundAddress) {
        self.phase = Phase::Connecting(attempt.deadline);
        self.bound = Some(bound);
        self.start(attempt);
    }

    /// Fails the active side, whose request no listener took.
    pub(super) fn connect_failed(
        &mut self,
        event_signal: Arc<Signal>,
        error: ConnectError,
        ready: &mut ReadyList,
    ) {
        self.event_signal = Some(event_signal);
        self.end(ConnectionEvent::Failed(error), ready);
    }

    /// Starts the passive side, which accepts a request whose active side announced `parameters`.
    pub(super) fn accepting(&mut self, attempt: Attempt, parameters: Parameters, private_data: Vec<u8>) {
        attempt.port.push(Frame::Accept { private_data, parameters: self.parameters() });
        self.phase = Phase::Accepting(attempt.deadline);
        self.apply_peer_parameters(parameters);
        self.start(attempt);
    }

    fn start(&mut self, attempt: Attempt) {
        self.port = Some(attempt.port);
        self.event_signal = Some(attempt.event_signal);
        self.local_address = Some(attempt.local_address);
        self.peer_address = Some(attempt.peer_address);
    }

    fn apply_peer_parameters(&mut self, peer: Parameters) {
        self.sends.allow_reads(self.capabilities.initiator_depth.min(peer.responder_resources));
        self.acknowledge = peer.acknowledge;
    }

    /// See [`Connections::disconnect`](rdma_verbs::Connections::disconnect). Aborts an attempt that the peer
    /// has not answered.
    pub(super) fn disconnect(&mut self, ready: &mut ReadyList) {
        match self.phase {
            Phase::Idle | Phase::Ended => {}
            Phase::Connecting(_) => self.abort(ready),
            Phase::Accepting(_) | Phase::Established => {
                self.closing = true;
                if self.rules == Rules::Messages {
                    self.stalled = None;
                    self.sends.give_up_reads();
                    self.flush_receives(ready);
                }
                self.drive(ready);
            }
        }
    }

    /// See [`Connections::abort`](rdma_verbs::Connections::abort).
    pub(super) fn abort(&mut self, ready: &mut ReadyList) {
        if matches!(self.phase, Phase::Idle | Phase::Ended) {
            return;
        }
        if let Some(port) = &self.port {
            port.push_instead(Frame::Break(BreakReason::Reset));
        }
        self.break_connection(BreakReason::Aborted, ready);
    }

    /// Whether the end of this side loses no posted request.
    pub(super) fn flushed(&self) -> bool {
        self.sends.is_idle() && (!self.closing || self.close_sent || self.phase == Phase::Ended)
    }

    /// Handles the peer's frames and sends the requests that can be sent.
    pub(super) fn drive(&mut self, ready: &mut ReadyList) {
        while let Some(frame) = self.next_frame() {
            self.stalled = self.receive(frame, ready);
        }
        self.send_acknowledgement();
        self.transmit(ready);
        self.finish_orderly_end(ready);
    }

    /// Drives the connection and returns its next event.
    pub(super) fn poll_event(&mut self, ready: &mut ReadyList) -> Option<ConnectionEvent> {
        if let Some(event_signal) = &self.event_signal {
            event_signal.set(false);
        }
        self.drive(ready);
        self.check_deadline(ready);
        let event = self.events.pop_front();
        if let Some(event_signal) = &self.event_signal
            && !self.events.is_empty()
        {
            event_signal.set(true);
        }
        event
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        if !self.events.is_empty() {
            return Some(Instant::now());
        }
        match self.phase {
            Phase::Connecting(deadline) | Phase::Accepting(deadline) => deadline.at,
            Phase::Idle | Phase::Established | Phase::Ended => None,
        }
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// The peer's address. The active side has none before the peer has answered.
    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address.filter(|_| !matches!(self.phase, Phase::Connecting(_)))
    }

    /// Frees the entries of a polled completion.
    pub(super) fn free(&mut self, entries: Entries) {
        match entries {
            Entries::Send(count) => self.sends.free(count),
            Entries::Recv | Entries::Shared(_) => self.with_receives(Receives::free),
            Entries::Nothing => {}
        }
    }

    /// Drops a completion that is not polled, because the queue pair is destroyed. A shared receive is posted
    /// again.
    pub(super) fn drop_completion(&mut self, entries: Entries) {
        if let Entries::Shared(receive) = entries {
            self.with_receives(|receives| receives.put_back(receive));
        }
    }

    /// Whether a message waited that need not wait any longer.
    pub(super) fn can_resume(&mut self) -> bool {
        match &self.stalled {
            None => false,
            Some(frame) if self.may_be_held(frame) => !self.holds_writes,
            Some(_) => self.with_receives(|receives| !receives.is_empty()),
        }
    }

    /// See [`rdma_verbs::MessageQueues::hold_writes`].
    pub(super) fn hold_writes(&mut self, hold: bool) {
        self.holds_writes = hold;
    }

    /// Whether it is a write with immediate data that takes no receive.
    fn may_be_held(&self, frame: &Frame) -> bool {
        self.is_as_embedded() && matches!(frame, Frame::Write { immediate: Some(_), .. })
    }

    /// See [`rdma_verbs::MessageQueues::count_accesses`].
    pub(super) fn count_accesses(&mut self) -> Option<Arc<PeerAccesses>> {
        self.is_as_embedded().then(|| Arc::clone(self.accesses.get_or_insert_default()))
    }

    /// See [`rdma_verbs::MessageQueues::stalls`].
    pub(super) fn stalls(&self) -> u64 {
        self.stalls
    }

    /// The frame to handle next. There is none while a message waits for a receive, which it does no longer
    /// when this side ends the connection.
    fn next_frame(&mut self) -> Option<Frame> {
        if self.stalled.is_some() && !self.closing && !self.can_resume() {
            return None;
        }
        self.stalled.take().or_else(|| self.port.as_ref()?.pop())
    }

    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Idle => "not connected",
            Phase::Connecting(_) => "connecting",
            Phase::Accepting(_) => "accepting",
            Phase::Established if self.closing => "closing",
            Phase::Established => "established",
            Phase::Ended => "disconnected",
        }
    }

    /// Queues an event and signals it.
    fn report_event(&mut self, event: ConnectionEvent) {
        self.events.push_back(event);
        if let Some(event_signal) = &self.event_signal {
            event_signal.set(true);
        }
    }

    /// Fails an attempt that the peer did not answer in time.
    fn check_deadline(&mut self, ready: &mut ReadyList) {
        let (Phase::Connecting(deadline) | Phase::Accepting(deadline)) = self.phase else { return };
        if deadline.at.is_some_and(|deadline| deadline <= Instant::now()) {
            let milliseconds = u64::try_from(deadline.timeout.as_millis()).unwrap_or(u64::MAX);
            self.end(ConnectionEvent::Failed(ConnectError::TimedOut(milliseconds)), ready);
        }
    }

    /// Finishes the orderly end after the peer's [`Frame::Close`]. If this side did not begin it, it answers
    /// at once. Otherwise it waits for its own requests first, unless they are messages: a peer that has
    /// ended the connection drops those.
    fn finish_orderly_end(&mut self, ready: &mut ReadyList) {
        if !self.peer_closed || self.phase == Phase::Ended {
            return;
        }
        let Some(port) = &self.port else { return };
        let waits = self.closing && self.rules == Rules::Verbs;
        if waits && !port.peer_gone() && !(self.close_sent && self.sends.is_idle()) {
            return;
        }
        if !self.close_sent {
            port.push(Frame::Close);
        }
        self.end(ConnectionEvent::Disconnected, ready);
    }

    /// Ends a connection that broke, or an attempt that failed.
    fn break_connection(&mut self, reason: BreakReason, ready: &mut ReadyList) {
        let event = match self.phase {
            Phase::Established => ConnectionEvent::Broken(reason),
            _ => ConnectionEvent::Failed(ConnectError::Closed),
        };
        self.end(event, ready);
    }

    /// Reports the last event, flushes both queues and drops the port, which resets the connection unless a
    /// last frame was sent.
    fn end(&mut self, event: ConnectionEvent, ready: &mut ReadyList) {
        let by_peer =
            matches!(event, ConnectionEvent::Disconnected | ConnectionEvent::Broken(BreakReason::Reset));
        self.peer_ended = by_peer && !self.closing;
        self.phase = Phase::Ended;
        self.report_event(event);
        self.sends.flush(self.number, ready);
        self.flush_receives(ready);
        self.port = None;
        self.bound = None;
        self.stalled = None;
    }

    fn flush_receives(&mut self, ready: &mut ReadyList) {
        while let Some(request) = self.receives.take() {
            ready.push_back(self.received(request.id, CompletionKind::Recv, CompletionStatus::Flushed));
        }
    }

    /// The completion of a receive, without the fields that only a success has.
    fn received(&self, id: u64, kind: CompletionKind, status: CompletionStatus) -> Finished {
        let completion =
            Completion { qp: self.number, id, kind, status, length: 0, immediate: None, invalidated: None };
        Finished { completion, frees: Entries::Recv }
    }
}
