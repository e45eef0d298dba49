//! A queue pair's connection: from the first look for a route to the end.
//!
//! ```text
//! active:   Idle ─ Resolving ─ Routing ─ Requesting ─┬─ Established ─ Closing ─ Ended
//! passive:  Idle ─ Accepting ────────────────────────┘
//! ```
//!
//! The transport ends both directions of a connection at once, and its way of saying so does not
//! tell an orderly end from another: [`ConnectionEvent::Disconnected`] is all that there is. So an
//! orderly end waits until the peer's host has everything.

mod ending;
mod failure;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rdma_sys as sys;

use failure::{connect_error, failure};

use super::cm::{Channel, Event, Id, Reads, kind};
use super::listener::Request;
use super::liveness::Verdict;
use super::queue_pair::QueuePair;
use crate::{
    BreakReason, ConnectError, ConnectOptions, ConnectionEvent, Error, EventTarget, HandshakeFault, Interest,
    Result,
};

/// How long after flushed requests a connection event may come that explains them.
const EXPLANATION: Duration = Duration::from_secs(1);

/// How long one look for the peer's address may take, and all of them together. Some kernels find an
/// answer that came only when the time of a look is over.
const ADDRESS_LOOK: Duration = Duration::from_millis(50);
const ADDRESS_PATIENCE: Duration = Duration::from_secs(4);

/// Reasons of a reject that InfiniBand's connection manager gives: the peer's user did, nobody
/// listens, the peer gave up waiting.
const REJECTED_BY_USER: i32 = 28;
const REJECTED_NO_LISTENER: i32 = 8;
const REJECTED_TIMEOUT: i32 = 4;

/// How far a connection is.
pub(super) enum State {
    Idle,
    /// An attempt, and its stage.
    Attempting(Stage, Attempt),
    Established,
    /// The orderly end is asked for, and waits for what was posted.
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
        let deadline = Instant::now() + options.timeout;
        Self { deadline, options: options.clone(), private_data: private_data.to_vec() }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn passed(&self) -> Duration {
        self.options.timeout.saturating_sub(self.left())
    }
}

/// Where a connection is announced: in the set of connection events, and in that of completions.
pub(super) struct Announce<'a> {
    pub(super) events: EventTarget,
    pub(super) data: Option<&'a EventTarget>,
}

impl Announce<'_> {
    fn add(&self, channel: &Channel) -> Result<()> {
        self.events.wait.add(channel.as_fd(), self.events.token, Interest::Read)?;
        match self.data {
            Some(target) => watch_in(target, channel),
            None => Ok(()),
        }
    }
}

/// Lets the end of a connection wake whoever waits for completions.
pub(super) fn watch_in(target: &EventTarget, channel: &Channel) -> Result<()> {
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
        announce: &Announce<'_>,
    ) -> Result<()> {
        self.may_begin("connect", private_data)?;
        let channel = Channel::open()?;
        let id = Id::create(&channel)?;
        announce.add(&channel)?;
        let attempt = Attempt::new(options, private_data);
        let begun = local
            .map_or(Ok(()), |local| id.bind(local))
            .and_then(|()| id.resolve_address(remote, ADDRESS_LOOK));
        self.peer = Some(remote);
        self.id = Some(id);
        self.state = State::Attempting(Stage::Resolving, attempt);
        if let Err(error) = begun {
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
        announce: &Announce<'_>,
    ) -> Result<()> {
        self.may_begin("accept", private_data)?;
        let (mut id, offered) = request.into_parts();
        let channel = Channel::open()?;
        id.migrate(&channel)?;
        announce.add(&channel)?;
        self.remember_addresses(&id);
        self.id = Some(id);
        self.state = State::Attempting(Stage::Accepting, Attempt::new(options, private_data));
        let own = self.reads();
        let most = self.context().max_reads.1;
        let reads = Reads {
            initiator: own.initiator.min(offered.initiator),
            responder: own.responder.max(offered.responder).min(most),
        };
        let accepted = self.make_ready().and_then(|()| match &self.id {
            Some(id) => id.accept(self.wire_number(), reads, private_data),
            None => Ok(()),
        });
        if let Err(error) = accepted {
            log::info!("the request cannot be accepted any more: {error}");
            self.fail(ConnectError::Closed);
        }
        Ok(())
    }

    fn may_begin(&self, what: &'static str, private_data: &[u8]) -> Result<()> {
        if !matches!(self.state, State::Idle) {
            return Err(Error::BadState { state: self.state.name(), what });
        }
        let most = self.context().attributes.max_private_data;
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

    /// Takes an InfiniBand queue pair to where it sends and receives. iWARP's kernel side does that.
    fn make_ready(&self) -> Result<()> {
        use sys::ibv_qp_state as state;
        if self.is_iwarp() {
            return Ok(());
        }
        [state::IBV_QPS_INIT, state::IBV_QPS_RTR, state::IBV_QPS_RTS]
            .into_iter()
            .try_for_each(|to| self.raise(to))
    }

    /// Takes in what the connection manager has to tell; answers whether there was anything.
    pub(super) fn drive(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.id.as_ref().and_then(|id| id.channel().next_event()) {
            any = true;
            self.on_event(event);
        }
        any
    }

    /// Does what is due by now.
    pub(super) fn on_time(&mut self) {
        let now = Instant::now();
        match &self.state {
            State::Attempting(_, attempt) if attempt.deadline <= now => {
                let limit = attempt.options.timeout.as_millis();
                self.fail(ConnectError::TimedOut(u64::try_from(limit).unwrap_or(u64::MAX)));
            }
            State::Established | State::Closing => self.look(now),
            _ => {}
        }
    }

    /// When [`QueuePair::on_time`] wants to be called.
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

    /// Whether the peer and the device are still there.
    fn look(&mut self, now: Instant) {
        let Some(verdict) = self.liveness.look(now) else { return };
        let port = self.id.as_ref().map_or(0, Id::port);
        if let Some(fault) = self.context().fault(port) {
            return self.lose(fault);
        }
        if self.flushed_at.is_some_and(|at| now.saturating_duration_since(at) >= EXPLANATION) {
            return self.lose(BreakReason::Reset);
        }
        match verdict {
            Verdict::Fine => {}
            Verdict::Probe => self.post_probe(),
            Verdict::Lost => self.lose(BreakReason::Vanished),
        }
    }

    fn on_event(&mut self, event: Event) {
        // Whatever it is: after it the kernel waits for nobody.
        self.is_requesting = false;
        if event.kind == kind::RDMA_CM_EVENT_DEVICE_REMOVAL {
            self.context().set_gone();
        }
        let State::Attempting(stage, attempt) = &self.state else {
            return self.on_event_after(event.kind);
        };
        let Some(id) = &self.id else { return };
        let went_on = match (stage, event.kind) {
            (Stage::Resolving, kind::RDMA_CM_EVENT_ADDR_RESOLVED) => {
                if id.device_name().as_ref() != Some(&self.context().name) {
                    log::info!("the way to the peer does not lead through {}", self.context().name);
                    return self.fail(ConnectError::System(libc::EHOSTUNREACH));
                }
                id.resolve_route(attempt.left()).map(|()| Stage::Routing)
            }
            (Stage::Resolving, kind::RDMA_CM_EVENT_ADDR_ERROR)
                if event.status == -libc::ETIMEDOUT && attempt.passed() < ADDRESS_PATIENCE =>
            {
                let Some(peer) = self.peer else { return };
                // Longer each time.
                id.resolve_address(peer, attempt.passed().max(ADDRESS_LOOK)).map(|()| Stage::Resolving)
            }
            (Stage::Routing, kind::RDMA_CM_EVENT_ROUTE_RESOLVED) => {
                let connected = id.connect(self.wire_number(), self.reads(), &attempt.private_data);
                self.is_requesting = self.is_iwarp() && connected.is_ok();
                connected.map(|()| Stage::Requesting)
            }
            (Stage::Requesting, kind::RDMA_CM_EVENT_CONNECT_RESPONSE) => {
                match self.make_ready().and_then(|()| id.establish()) {
                    Ok(()) => return self.established(event.private_data),
                    Err(error) => Err(error),
                }
            }
            (Stage::Requesting, kind::RDMA_CM_EVENT_ESTABLISHED) => {
                return self.established(event.private_data);
            }
            (Stage::Accepting, kind::RDMA_CM_EVENT_ESTABLISHED) => return self.established(Vec::new()),
            (_, kind::RDMA_CM_EVENT_REJECTED) => return self.refused(event.status, event.private_data),
            (_, kind::RDMA_CM_EVENT_ADDR_CHANGE | kind::RDMA_CM_EVENT_TIMEWAIT_EXIT) => return,
            (_, other) => return self.fail(failure(other, event.status, attempt)),
        };
        match (went_on, &mut self.state) {
            (Ok(next), State::Attempting(stage, _)) => *stage = next,
            (Err(error), _) => self.fail(connect_error(&error)),
            _ => {}
        }
    }

    /// An event of a connection that stands, or stood.
    fn on_event_after(&mut self, event: kind::Type) {
        let stands = matches!(self.state, State::Established | State::Closing);
        match event {
            kind::RDMA_CM_EVENT_DISCONNECTED if stands => self.end(Some(ConnectionEvent::Disconnected)),
            kind::RDMA_CM_EVENT_DEVICE_REMOVAL if stands => {
                self.end(Some(ConnectionEvent::Broken(BreakReason::DeviceGone)));
            }
            _ => {}
        }
    }

    fn established(&mut self, private_data: Vec<u8>) {
        let before = std::mem::replace(&mut self.state, State::Established);
        if let State::Attempting(_, attempt) = before {
            self.liveness.watch(attempt.options.keepalive);
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
        let nobody = if self.is_iwarp() {
            status == -libc::ECONNREFUSED && private_data.is_empty()
        } else {
            status == REJECTED_NO_LISTENER
        };
        if nobody {
            return self.fail(ConnectError::Refused);
        }
        match status {
            REJECTED_TIMEOUT => self.fail(ConnectError::Closed),
            status if status < 0 || status == REJECTED_BY_USER => {
                self.leave(State::Ended);
                self.events.push_back(ConnectionEvent::Rejected { private_data });
            }
            other => self.fail(ConnectError::Protocol(HandshakeFault::Refused(other))),
        }
    }

    fn fail(&mut self, error: ConnectError) {
        self.leave(State::Ended);
        self.events.push_back(ConnectionEvent::Failed(error));
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
