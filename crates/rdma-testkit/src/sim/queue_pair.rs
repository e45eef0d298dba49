//! A reliable connected queue pair: its states, and how a connection begins and ends.
//!
//! The work is split as the data flows: [`post`] checks what the consumer asks for, [`outgoing`] is
//! the send queue up to its completions, [`incoming`] answers the peer's frames. Everything here
//! runs in calls on the completion queue that owns the queue pair.

mod incoming;
mod outgoing;
mod post;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Config;
use super::fabric::Bound;
use super::link::{Frame, Port, Terms};
use super::region::Regions;
use outgoing::SendQueue;
use rdma_verbs::Signal;
use rdma_verbs::{
    BreakReason, Completion, CompletionKind, CompletionStatus, ConnectError, ConnectionEvent, Error,
    QpCapabilities, QpId, Result, Segment, Transport,
};

/// A posted receive.
#[derive(Debug, Clone, Copy)]
struct Receive {
    id: u64,
    buffer: Option<Segment>,
}

/// A completion on its way to the consumer, with the queue entries that it frees when it is polled.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) completion: Completion,
    pub(super) frees: Entries,
}

/// Entries of a queue.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entries {
    /// Of the send queue: the completed request and the unsignalled ones before it.
    Send(u32),
    /// One of the receive queue.
    Recv,
}

/// Where completions go: the completion queue's list of what is ready.
pub(super) type Sink = VecDeque<Finished>;

#[derive(Debug)]
pub(super) struct QueuePair {
    number: QpId,
    config: Config,
    capabilities: QpCapabilities,
    regions: Arc<Regions>,
    phase: Phase,
    /// The consumer asked for an orderly end.
    closing: bool,
    /// [`Frame::Close`] went out, after everything posted.
    close_sent: bool,
    /// [`Frame::Close`] came in.
    peer_closed: bool,
    /// There from connecting or accepting until the end.
    port: Option<Port>,
    announcer: Option<Arc<Signal>>,
    events: VecDeque<ConnectionEvent>,
    /// The active side's own address, taken while it is in use.
    bound: Option<Bound>,
    local_address: Option<SocketAddr>,
    peer_address: Option<SocketAddr>,
    sends: SendQueue,
    receives: VecDeque<Receive>,
    /// Receives whose completion was not polled, those in `receives` included.
    receives_occupied: u32,
    /// A message that waits for a receive.
    stalled: Option<Frame>,
    /// Requests of the peer that were carried out and not acknowledged yet.
    unacknowledged: usize,
    /// Whether the peer wants to be told.
    acknowledge: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Connecting(Patience),
    Accepting(Patience),
    Established,
    Ended,
}

/// How long to wait for the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Patience {
    timeout: Duration,
    /// `None`: beyond what the clock can express.
    deadline: Option<Instant>,
}

impl Patience {
    pub(super) fn from_now(timeout: Duration) -> Self {
        Self { timeout, deadline: Instant::now().checked_add(timeout) }
    }
}

/// How a connection begins: what the active and the passive side have in common.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) port: Port,
    pub(super) announcer: Arc<Signal>,
    pub(super) local_address: SocketAddr,
    pub(super) peer_address: SocketAddr,
    pub(super) patience: Patience,
}

impl QueuePair {
    pub(super) fn new(
        number: QpId,
        config: Config,
        capabilities: QpCapabilities,
        regions: Arc<Regions>,
    ) -> Self {
        Self {
            number,
            config,
            capabilities,
            regions,
            phase: Phase::Idle,
            closing: false,
            close_sent: false,
            peer_closed: false,
            port: None,
            announcer: None,
            events: VecDeque::new(),
            bound: None,
            local_address: None,
            peer_address: None,
            sends: SendQueue::new(capabilities.send_depth),
            receives: VecDeque::new(),
            receives_occupied: 0,
            stalled: None,
            unacknowledged: 0,
            acknowledge: false,
        }
    }

    /// What the other side needs to know of this one.
    pub(super) fn terms(&self) -> Terms {
        Terms {
            responder_resources: self.capabilities.responder_resources,
            acknowledge: self.config.transport == Transport::InfiniBand,
        }
    }

    /// Entries that may complete on the completion queue at a time.
    pub(super) fn depths(&self) -> u64 {
        u64::from(self.capabilities.send_depth) + u64::from(self.capabilities.recv_depth)
    }

    /// Refuses `what` unless the queue pair was never connected.
    pub(super) fn require_idle(&self, what: &'static str) -> Result<()> {
        if self.phase == Phase::Idle { Ok(()) } else { Err(Error::BadState { state: self.state(), what }) }
    }

    /// The request is on its way to a listener.
    pub(super) fn connecting(&mut self, beginning: Beginning, bound: Bound) {
        self.phase = Phase::Connecting(beginning.patience);
        self.bound = Some(bound);
        self.begin(beginning);
    }

    /// The request could not be brought to anybody.
    pub(super) fn connect_failed(&mut self, announcer: Arc<Signal>, error: ConnectError, sink: &mut Sink) {
        self.announcer = Some(announcer);
        self.end(ConnectionEvent::Failed(error), sink);
    }

    /// The consumer accepts a request whose active side announced `terms`.
    pub(super) fn accepting(&mut self, beginning: Beginning, terms: Terms, private_data: Vec<u8>) {
        beginning.port.push(Frame::Accept { private_data, terms: self.terms() });
        self.phase = Phase::Accepting(beginning.patience);
        self.agree(terms);
        self.begin(beginning);
    }

    fn begin(&mut self, beginning: Beginning) {
        self.port = Some(beginning.port);
        self.announcer = Some(beginning.announcer);
        self.local_address = Some(beginning.local_address);
        self.peer_address = Some(beginning.peer_address);
    }

    fn agree(&mut self, peer: Terms) {
        self.sends.allow_reads(self.capabilities.initiator_depth.min(peer.responder_resources));
        self.acknowledge = peer.acknowledge;
    }

    /// See [`Connections::disconnect`](rdma_verbs::Connections::disconnect). Before
    /// the peer answered there is nothing to end in order.
    pub(super) fn disconnect(&mut self, sink: &mut Sink) {
        match self.phase {
            Phase::Idle | Phase::Ended => {}
            Phase::Connecting(_) => self.abort(sink),
            Phase::Accepting(_) | Phase::Established => {
                self.closing = true;
                self.drive(sink);
            }
        }
    }

    /// See [`Connections::abort`](rdma_verbs::Connections::abort).
    pub(super) fn abort(&mut self, sink: &mut Sink) {
        if matches!(self.phase, Phase::Idle | Phase::Ended) {
            return;
        }
        if let Some(port) = &self.port {
            port.push_instead(Frame::Break(BreakReason::Reset));
        }
        self.break_off(BreakReason::Aborted, sink);
    }

    /// Whether nothing that was posted can be lost by an end of this side.
    pub(super) fn flushed(&self) -> bool {
        self.sends.is_idle() && (!self.closing || self.close_sent || self.phase == Phase::Ended)
    }

    /// Answers the peer's frames and sends what can go out.
    pub(super) fn drive(&mut self, sink: &mut Sink) {
        while let Some(frame) = self.next_frame() {
            self.stalled = self.receive(frame, sink);
            if self.stalled.is_some() {
                break;
            }
        }
        self.send_acknowledgement();
        self.transmit(sink);
        self.conclude(sink);
    }

    /// Drives the connection and answers its next event.
    pub(super) fn poll_event(&mut self, sink: &mut Sink) -> Option<ConnectionEvent> {
        if let Some(announcer) = &self.announcer {
            announcer.set(false);
        }
        self.drive(sink);
        self.lose_patience(sink);
        let event = self.events.pop_front();
        if let Some(announcer) = &self.announcer
            && !self.events.is_empty()
        {
            announcer.set(true);
        }
        event
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        if !self.events.is_empty() {
            return Some(Instant::now());
        }
        match self.phase {
            Phase::Connecting(patience) | Phase::Accepting(patience) => patience.deadline,
            Phase::Idle | Phase::Established | Phase::Ended => None,
        }
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// The active side has a peer only once that one answered.
    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address.filter(|_| !matches!(self.phase, Phase::Connecting(_)))
    }

    /// A completion was polled: its entries can be posted again.
    pub(super) fn free(&mut self, entries: Entries) {
        match entries {
            Entries::Send(count) => self.sends.free(count),
            Entries::Recv => self.receives_occupied -= 1,
        }
    }

    fn next_frame(&mut self) -> Option<Frame> {
        self.stalled.take().or_else(|| self.port.as_ref()?.pop())
    }

    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Idle => "not connected",
            Phase::Connecting(_) => "connecting",
            Phase::Accepting(_) => "accepting",
            Phase::Established if self.closing => "closing",
            Phase::Established => "established",
            Phase::Ended => "at its end",
        }
    }

    /// Announces an event.
    fn announce(&mut self, event: ConnectionEvent) {
        self.events.push_back(event);
        if let Some(announcer) = &self.announcer {
            announcer.set(true);
        }
    }

    /// Gives up on a peer that did not answer in time.
    fn lose_patience(&mut self, sink: &mut Sink) {
        let (Phase::Connecting(patience) | Phase::Accepting(patience)) = self.phase else { return };
        if patience.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            let milliseconds = u64::try_from(patience.timeout.as_millis()).unwrap_or(u64::MAX);
            self.end(ConnectionEvent::Failed(ConnectError::TimedOut(milliseconds)), sink);
        }
    }

    /// Completes an orderly end that both sides have said. A side that did not ask for it answers at
    /// once; one that did lets its own requests finish first.
    fn conclude(&mut self, sink: &mut Sink) {
        if !self.peer_closed || self.phase == Phase::Ended {
            return;
        }
        let Some(port) = &self.port else { return };
        if self.closing && !port.peer_gone() && !(self.close_sent && self.sends.is_idle()) {
            return;
        }
        if !self.close_sent {
            port.push(Frame::Close);
        }
        self.end(ConnectionEvent::Disconnected, sink);
    }

    /// Ends a connection that broke, or that never came about.
    fn break_off(&mut self, reason: BreakReason, sink: &mut Sink) {
        let event = match self.phase {
            Phase::Established => ConnectionEvent::Broken(reason),
            _ => ConnectionEvent::Failed(ConnectError::Closed),
        };
        self.end(event, sink);
    }

    /// The last event: flushes both queues and lets go of the link, which tells the peer unless it
    /// was told.
    fn end(&mut self, event: ConnectionEvent, sink: &mut Sink) {
        self.phase = Phase::Ended;
        self.announce(event);
        self.sends.flush(self.number, sink);
        while let Some(request) = self.receives.pop_front() {
            sink.push_back(self.received(request.id, CompletionKind::Recv, CompletionStatus::Flushed));
        }
        self.port = None;
        self.bound = None;
        self.stalled = None;
    }

    /// The completion of a receive, without the details that only success has.
    fn received(&self, id: u64, kind: CompletionKind, status: CompletionStatus) -> Finished {
        let completion =
            Completion { qp: self.number, id, kind, status, length: 0, immediate: None, invalidated: None };
        Finished { completion, frees: Entries::Recv }
    }
}
