//! A queue pair's connection, from address resolution to its end.
//!
//! ```text
//! active:   Idle ─ Resolving ─ Routing ─ Requesting ─┬─ Established ─ Closing ─ Ended
//! passive:  Idle ─ Accepting ────────────────────────┘
//! ```
//!
//! The transport ends both directions of a connection at once, and its event does not distinguish an orderly
//! end from any other: every end is [`ConnectionEvent::Disconnected`]. An orderly end therefore waits until
//! the peer's host has acknowledged everything.

mod ending;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_sys as sys;

pub(super) use ending::{destroy, destroy_waiting};

use super::cm::{Channel, Event, Id, Parameters, ReadDepths, kind};
use super::listener::Request;
use super::liveness::Verdict;
use super::queue_pair::QueuePair;
use crate::timer::later;
use crate::{
    BreakReason, ConnectError, ConnectOptions, ConnectionEvent, Error, EventTarget, HandshakeFault, Interest,
    Result,
};

/// Longest time between flushed requests and the connection event that gives the reason.
const EVENT_DELAY: Duration = Duration::from_secs(1);

/// Time-out of the first attempt to resolve the peer's address, and of all attempts together. Some kernels
/// notice an address that was resolved only when an attempt times out, so the first attempts are short.
const ADDRESS_ATTEMPT: Duration = Duration::from_millis(50);
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);

/// Reject reasons of InfiniBand's connection manager: rejected by the consumer, no listener, time-out of the
/// peer.
const REJECTED_BY_USER: i32 = 28;
const REJECTED_NO_LISTENER: i32 = 8;
const REJECTED_TIMEOUT: i32 = 4;

/// The state of a connection.
pub(super) enum State {
    Idle,
    Attempting(Stage, Attempt),
    Established,
    /// The consumer began the orderly end, which waits for the posted requests.
    Closing,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Resolving,
    Routing,
    Requesting,
    Accepting,
}

pub(super) struct Attempt {
    deadline: Instant,
    options: ConnectOptions,
    private_data: Vec<u8>,
}

impl Attempt {
    fn new(options: &ConnectOptions, private_data: &[u8]) -> Self {
        let deadline = later(Instant::now(), options.timeout);
        Self { deadline, options: options.clone(), private_data: private_data.to_vec() }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn passed(&self) -> Duration {
        self.options.timeout.saturating_sub(self.left())
    }
}

/// The targets that a connection's events wake: the one for connection events, and the one for completions,
/// because a caller that waits for completions must learn of the connection's end.
pub(super) struct Targets<'a> {
    pub(super) events: EventTarget,
    pub(super) completions: Option<&'a EventTarget>,
}

impl Targets<'_> {
    fn add(&self, channel: &Channel) -> Result<()> {
        add_channel(&self.events, channel)?;
        self.completions.map_or(Ok(()), |target| add_channel(target, channel))
    }
}

/// Makes a channel a source of the target's wait set.
pub(super) fn add_channel(target: &EventTarget, channel: &Channel) -> Result<()> {
    target.wait.add(channel.as_fd(), target.token, Interest::Read)
}

impl QueuePair {
    /// Starts the active side.
    pub(super) fn connect(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        private_data: &[u8],
        options: &ConnectOptions,
        targets: &Targets<'_>,
    ) -> Result<()> {
        let limits = self.context().attributes.private_data;
        self.check_start("connect", private_data, limits.request)?;
        let channel = Channel::open()?;
        let id = Id::create(&channel)?;
        targets.add(&channel)?;
        self.event_set = Some(Arc::clone(&targets.events.wait));
        let attempt = Attempt::new(options, private_data);
        let started = local
            .map_or(Ok(()), |local| id.bind(local))
            .and_then(|()| id.resolve_address(remote, ADDRESS_ATTEMPT));
        self.peer = Some(remote);
        self.id = Some(id);
        self.state = State::Attempting(Stage::Resolving, attempt);
        if let Err(error) = started {
            self.fail(connect_error(&error));
        }
        Ok(())
    }

    /// Starts the passive side.
    pub(super) fn accept(
        &mut self,
        request: Request,
        private_data: &[u8],
        options: &ConnectOptions,
        targets: &Targets<'_>,
    ) -> Result<()> {
        let limits = self.context().attributes.private_data;
        self.check_start("accept", private_data, limits.reply)?;
        let (mut id, offered) = request.into_parts();
        let channel = Channel::open()?;
        id.migrate(&channel)?;
        targets.add(&channel)?;
        self.event_set = Some(Arc::clone(&targets.events.wait));
        self.remember_addresses(&id);
        self.id = Some(id);
        self.state = State::Attempting(Stage::Accepting, Attempt::new(options, private_data));
        let own = self.parameters().reads;
        let most = self.context().max_reads.responder;
        // InfiniBand serves as many reads as the peer asks for; a request of iWARP may not say how many.
        let served = if self.is_iwarp() { own.responder.max(offered.responder) } else { offered.responder };
        let reads =
            ReadDepths { initiator: own.initiator.min(offered.initiator), responder: served.min(most) };
        let accepted = self.move_to_ready(reads).and_then(|()| match &self.id {
            Some(id) => id.accept(&Parameters { reads, ..self.parameters() }, private_data),
            None => Ok(()),
        });
        if let Err(error) = accepted {
            log::info!("a connection request cannot be accepted any more: {error}");
            self.fail(ConnectError::Closed);
        }
        Ok(())
    }

    fn check_start(&self, what: &'static str, private_data: &[u8], most: usize) -> Result<()> {
        if !matches!(self.state, State::Idle) {
            return Err(Error::BadState { state: self.state.name(), what });
        }
        if private_data.len() > most {
            return Err(Error::OutOfRange {
                what: "private data length",
                value: private_data.len() as u64,
                least: 0,
                most: most as u64,
            });
        }
        Ok(())
    }

    /// Moves an InfiniBand queue pair to the state Ready to Send. For iWARP the kernel does that.
    fn move_to_ready(&self, reads: ReadDepths) -> Result<()> {
        use sys::ibv_qp_state as state;
        if self.is_iwarp() {
            return Ok(());
        }
        [state::IBV_QPS_INIT, state::IBV_QPS_RTR, state::IBV_QPS_RTS]
            .into_iter()
            .try_for_each(|to| self.move_to(to, reads))
    }

    /// Handles the events of the connection manager, and the end of the device. Returns whether there were any.
    pub(super) fn drive(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.id.as_ref().and_then(|id| id.channel().next_event()) {
            any = true;
            self.on_event(event);
        }
        if self.is_open() && self.context().is_gone() {
            any = true;
            self.end(ConnectionEvent::Broken(BreakReason::DeviceGone));
        }
        any
    }

    /// Whether the connection is established, and has not ended.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Established | State::Closing)
    }

    /// Handles the deadlines that have passed.
    pub(super) fn on_time(&mut self) {
        let now = Instant::now();
        match &self.state {
            State::Attempting(_, attempt) if attempt.deadline <= now => {
                let limit = attempt.options.timeout.as_millis();
                self.fail(ConnectError::TimedOut(u64::try_from(limit).unwrap_or(u64::MAX)));
            }
            State::Established | State::Closing => self.check_peer(now),
            _ => {}
        }
    }

    /// When to call [`QueuePair::on_time`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        if !self.events.is_empty() {
            return Some(Instant::now());
        }
        match &self.state {
            State::Attempting(_, attempt) => Some(attempt.deadline),
            State::Established | State::Closing => self.liveness.next(),
            State::Idle | State::Ended => None,
        }
    }

    /// Breaks the connection if the peer or the device is gone.
    fn check_peer(&mut self, now: Instant) {
        let Some(verdict) = self.liveness.check(now) else { return };
        let port = self.id.as_ref().map_or(0, Id::port);
        if let Some(fault) = self.context().fault(port) {
            return self.break_with(fault);
        }
        if self.flushed_at.is_some_and(|at| now.saturating_duration_since(at) >= EVENT_DELAY) {
            return self.break_with(BreakReason::Reset);
        }
        match verdict {
            Verdict::Fine => {}
            Verdict::Probe => self.post_probe(),
            // The peer may be waiting for its consumer to post a receive. If its host is gone, the device
            // gives up sending the older requests.
            Verdict::Lost if self.most_places > 0 && !self.sends.is_probe_oldest() => {}
            Verdict::Lost => self.break_with(BreakReason::Vanished),
        }
    }

    fn on_event(&mut self, event: Event) {
        // After any event the kernel has released the queue pair.
        self.is_requesting = false;
        if event.kind == kind::RDMA_CM_EVENT_DEVICE_REMOVAL {
            // Its end breaks a connection, see `drive`.
            self.context().set_gone();
        }
        let State::Attempting(stage, attempt) = &self.state else {
            if self.is_open() && event.kind == kind::RDMA_CM_EVENT_DISCONNECTED {
                self.end(ConnectionEvent::Disconnected);
            }
            return;
        };
        let Some(id) = &self.id else { return };
        let next_stage = match (stage, event.kind) {
            (Stage::Resolving, kind::RDMA_CM_EVENT_ADDR_RESOLVED) => {
                if id.device_name().as_ref() != Some(&self.context().name) {
                    log::info!("the route to the peer does not use {}", self.context().name);
                    return self.fail(ConnectError::System(libc::EHOSTUNREACH));
                }
                id.resolve_route(attempt.left()).map(|()| Stage::Routing)
            }
            (Stage::Resolving, kind::RDMA_CM_EVENT_ADDR_ERROR)
                if event.status == -libc::ETIMEDOUT && attempt.passed() < ADDRESS_TIMEOUT =>
            {
                let Some(peer) = self.peer else { return };
                // Each attempt takes about as long as all before it.
                id.resolve_address(peer, attempt.passed().max(ADDRESS_ATTEMPT)).map(|()| Stage::Resolving)
            }
            (Stage::Routing, kind::RDMA_CM_EVENT_ROUTE_RESOLVED) => {
                let connected = id.connect(&self.parameters(), &attempt.private_data);
                self.is_requesting = self.is_iwarp() && connected.is_ok();
                connected.map(|()| Stage::Requesting)
            }
            (Stage::Requesting, kind::RDMA_CM_EVENT_CONNECT_RESPONSE) => {
                match self.move_to_ready(self.parameters().reads).and_then(|()| id.establish()) {
                    Ok(()) => return self.established(event.private_data),
                    Err(error) => Err(error),
                }
            }
            (Stage::Requesting, kind::RDMA_CM_EVENT_ESTABLISHED) => {
                return self.established(event.private_data);
            }
            (Stage::Accepting, kind::RDMA_CM_EVENT_ESTABLISHED) => return self.established(Vec::new()),
            // InfiniBand's connection manager ends only what is established. The peer's last message of the handshake
            // is lost, or was overtaken.
            (Stage::Accepting, kind::RDMA_CM_EVENT_DISCONNECTED) if !self.is_iwarp() => {
                self.established(Vec::new());
                return self.end(ConnectionEvent::Disconnected);
            }
            (_, kind::RDMA_CM_EVENT_REJECTED) => return self.refused(event.status, event.private_data),
            (_, kind::RDMA_CM_EVENT_ADDR_CHANGE | kind::RDMA_CM_EVENT_TIMEWAIT_EXIT) => return,
            (_, other) => return self.fail(failure(other, event.status, attempt)),
        };
        match (next_stage, &mut self.state) {
            (Ok(next), State::Attempting(stage, _)) => *stage = next,
            (Err(error), _) => self.fail(connect_error(&error)),
            _ => {}
        }
    }

    fn established(&mut self, private_data: Vec<u8>) {
        let before = std::mem::replace(&mut self.state, State::Established);
        if let State::Attempting(_, attempt) = before {
            self.liveness.start(attempt.options.keepalive);
        }
        if let Some(id) = self.id.take() {
            self.remember_addresses(&id);
            self.id = Some(id);
        }
        self.events.push_back(ConnectionEvent::Established { private_data });
    }

    fn remember_addresses(&mut self, id: &Id) {
        self.local = id.local_address();
        self.peer = id.peer_address();
    }

    fn refused(&mut self, status: i32, private_data: Vec<u8>) {
        let no_listener = if self.is_iwarp() {
            status == -libc::ECONNREFUSED && private_data.is_empty()
        } else {
            status == REJECTED_NO_LISTENER
        };
        if no_listener {
            return self.fail(ConnectError::Refused);
        }
        match status {
            REJECTED_TIMEOUT => self.fail(ConnectError::Closed),
            status if status < 0 || status == REJECTED_BY_USER => {
                self.end_attempt();
                self.events.push_back(ConnectionEvent::Rejected { private_data });
            }
            other => self.fail(ConnectError::Protocol(HandshakeFault::Refused(other))),
        }
    }

    fn fail(&mut self, error: ConnectError) {
        self.end_attempt();
        self.events.push_back(ConnectionEvent::Failed(error));
    }
}

/// Why an attempt failed, by the event that ended it.
fn failure(event: kind::Type, status: i32, attempt: &Attempt) -> ConnectError {
    let errno = status.wrapping_neg();
    match event {
        // Address resolution got no answer.
        kind::RDMA_CM_EVENT_ADDR_ERROR | kind::RDMA_CM_EVENT_ROUTE_ERROR if errno == libc::ETIMEDOUT => {
            ConnectError::System(libc::EHOSTUNREACH)
        }
        kind::RDMA_CM_EVENT_ADDR_ERROR | kind::RDMA_CM_EVENT_ROUTE_ERROR if errno > 0 => {
            ConnectError::System(errno)
        }
        kind::RDMA_CM_EVENT_UNREACHABLE => {
            ConnectError::TimedOut(u64::try_from(attempt.passed().as_millis()).unwrap_or(u64::MAX))
        }
        kind::RDMA_CM_EVENT_DEVICE_REMOVAL => ConnectError::System(libc::ENODEV),
        kind::RDMA_CM_EVENT_DISCONNECTED => ConnectError::Closed,
        kind::RDMA_CM_EVENT_CONNECT_ERROR if errno == libc::ECONNRESET => ConnectError::Closed,
        other => ConnectError::Protocol(HandshakeFault::Event { event: other, status }),
    }
}

/// Why an attempt failed, by the error of the call that ended it.
fn connect_error(error: &Error) -> ConnectError {
    match error {
        Error::Io { source, .. } => match source.raw_os_error() {
            Some(libc::ECONNREFUSED) => ConnectError::Refused,
            // No device has this local address, or no device reaches this remote one.
            Some(libc::ENODEV) | None => ConnectError::System(libc::EADDRNOTAVAIL),
            Some(errno) => ConnectError::System(errno),
        },
        _ => ConnectError::System(libc::EINVAL),
    }
}

impl State {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Idle => "not connected",
            Self::Attempting(..) => "connecting",
            Self::Established => "connected",
            Self::Closing => "disconnecting",
            Self::Ended => "disconnected",
        }
    }
}
