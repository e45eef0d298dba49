//! A queue pair: its protocol machine, its socket, and the life of its connection.
//!
//! ```text
//! Idle ── connect, accept ──▶ Opening ── handshake done ──▶ Open ── disconnect ──▶ Closing
//!                               │ failed                     │ end of input         │
//!                               ▼                            ▼                      ▼
//!                             Over ◀── all is out ──────── Draining ◀───────────────┘
//! ```
//!
//! Any failure leads to `Over` as well. The socket stays open there until the queue pair is
//! destroyed, for its descriptor is what announces the last event.

use std::collections::VecDeque;
mod ending;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::entries::{Entries, Queue};
use super::liveness::Liveness;
use super::machine::{Agreement, Machine, Port, Sink};
use super::opening::{Opening, Outcome};
use super::socket::Socket;
use super::watch::{DataSets, Watch};
use crate::verbs::{
    Completion, ConnectError, ConnectionEvent, Error, EventTarget, Interest, QpCapabilities, QpNumber,
    RecvRequest, Result, SendRequest, Token, WaitSet,
};
use ending::End;

/// Bytes asked of the socket where no payload is expected: many small messages at once.
const READ: usize = 16 * 1024;
/// Bytes asked for behind a payload that goes straight to its place: its trailer and the headers
/// that follow; what comes of the next payload with it has to be copied.
const REST: usize = 1024;
/// Receive calls of one drive, so that a peer that never pauses does not hold its caller.
const ROUNDS: usize = 16;
/// Receive calls of one drive that looks for the end of the connection.
const THOROUGH_ROUNDS: usize = 256;

/// See the module.
pub(super) struct QueuePair {
    pub(super) number: QpNumber,
    capabilities: QpCapabilities,
    machine: Machine,
    phase: Phase,
    socket: Option<Socket>,
    watch: Watch,
    /// Whether large payloads come one after the other: then only headers are read where no
    /// payload is expected, and the rest goes straight to its place.
    bulk: bool,
    opened: Option<ConnectionEvent>,
    ended: Option<ConnectionEvent>,
    /// Once it is known for good; until then the socket is asked.
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// Of a connection that stands or stood.
    liveness: Option<Liveness>,
}

enum Phase {
    Idle,
    Opening(Box<Opening>),
    Open,
    Closing { told: bool },
    Draining,
    Over,
}

impl QueuePair {
    pub(super) fn new(number: QpNumber, capabilities: QpCapabilities, machine: Machine) -> Self {
        Self {
            number,
            capabilities,
            machine,
            phase: Phase::Idle,
            socket: None,
            watch: Watch::new(number),
            bulk: false,
            opened: None,
            ended: None,
            local: None,
            peer: None,
            liveness: None,
        }
    }

    pub(super) fn capabilities(&self) -> QpCapabilities {
        self.capabilities
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.local.or_else(|| self.socket.as_ref()?.local_address())
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        self.peer
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Opening(opening) => Some(opening.deadline()),
            Phase::Open | Phase::Closing { .. } => self.liveness.as_ref().map(Liveness::next),
            Phase::Idle | Phase::Draining | Phase::Over => None,
        }
    }

    /// Begins the active side's handshake on a socket that connects; `refused` is what the
    /// connection attempt met at once.
    pub(super) fn connect(
        &mut self,
        (socket, refused): (Socket, Option<Errno>),
        opening: Opening,
        target: EventTarget,
        sets: DataSets<'_>,
    ) -> Result<()> {
        let refused = refused.map(|errno| opening.error(errno));
        self.open(socket, opening);
        match refused {
            Some(error) => self.fail(error),
            // A peer that is near is connected to at once.
            None => self.advance(sets),
        }
        self.announce_on(target)
    }

    /// Ends the passive side's handshake with `peer`.
    pub(super) fn accept(
        &mut self,
        socket: Socket,
        (local, peer): (SocketAddr, SocketAddr),
        opening: Opening,
        target: EventTarget,
        sets: DataSets<'_>,
    ) -> Result<()> {
        (self.local, self.peer) = (Some(local), Some(peer));
        self.open(socket, opening);
        self.advance(sets);
        self.announce_on(target)
    }

    /// Refuses a call that needs an unused queue pair.
    pub(super) fn check_idle(&self, what: &'static str) -> Result<()> {
        match self.phase {
            Phase::Idle => Ok(()),
            _ => Err(Error::BadState { state: self.state(), what }),
        }
    }

    fn open(&mut self, socket: Socket, opening: Opening) {
        self.socket = Some(socket);
        self.phase = Phase::Opening(Box::new(opening));
    }

    /// Has connection events announced, one that is there already among them.
    fn announce_on(&mut self, target: EventTarget) -> Result<()> {
        let interest = match &self.phase {
            Phase::Opening(opening) => opening.interest(),
            _ => Interest::ReadWrite,
        };
        match &self.socket {
            Some(socket) => self.watch.announce_on(socket.as_fd(), interest, target),
            None => Ok(()),
        }
    }

    /// Posts receives; `ready` are the completions that were not polled.
    pub(super) fn post_recv(&mut self, requests: &[RecvRequest], ready: &VecDeque<Completion>) -> Result<()> {
        match self.phase {
            Phase::Idle | Phase::Opening(_) | Phase::Open => {
                let entries = Entries {
                    qp: self.number,
                    queue: Queue::Recv,
                    depth: self.capabilities.recv_depth,
                    free: self.machine.recv_room(),
                };
                entries.check(requests.len(), ready)?;
                self.machine.post_recv(requests)
            }
            Phase::Closing { .. } | Phase::Draining | Phase::Over => {
                Err(Error::BadState { state: self.state(), what: "receive" })
            }
        }
    }

    /// Posts sends; `ready` are the completions that were not polled, to which others are added.
    pub(super) fn post_send(
        &mut self,
        requests: &[SendRequest<'_>],
        more: bool,
        scratch: &mut [u8],
        ready: &mut VecDeque<Completion>,
        sets: DataSets<'_>,
    ) -> Result<()> {
        let (Phase::Open, Some(wire)) = (&self.phase, &mut self.socket) else {
            return Err(Error::BadState { state: self.state(), what: "send" });
        };
        let entries = Entries {
            qp: self.number,
            queue: Queue::Send,
            depth: self.capabilities.send_depth,
            free: self.machine.send_room(),
        };
        entries.check(requests.len(), ready)?;
        let posted = self.machine.post_send(requests, more, &mut Port { wire, sink: ready, scratch });
        // Held back for a caller who goes on at once: no need to watch for room meanwhile, unless
        // that watch is how this queue pair is found among others.
        if !more || sets.finder.is_some() {
            self.watch(sets);
        }
        posted
    }

    /// Takes what arrived and sends what waits.
    #[inline]
    pub(super) fn drive(&mut self, scratch: &mut [u8], sink: &mut impl Sink, sets: DataSets<'_>) {
        if self.drive_for(ROUNDS, false, scratch, sink, sets) {
            self.announce_end();
        }
    }

    /// The next connection event; takes what arrived up to the end of the connection.
    pub(super) fn poll_event(
        &mut self,
        scratch: &mut [u8],
        sink: &mut impl Sink,
        sets: DataSets<'_>,
    ) -> Option<ConnectionEvent> {
        if matches!(self.phase, Phase::Opening(_)) {
            self.advance(sets);
            // A promised first frame is there now; with it this side may send.
            self.drive_for(ROUNDS, false, scratch, sink, sets);
        }
        if let Some(event) = self.opened.take() {
            if self.ended.is_none() {
                self.follow(match event {
                    ConnectionEvent::Established { .. } => Some(Interest::HangUp),
                    _ => None,
                });
            }
            return Some(event);
        }
        if self.ended.is_none() {
            self.drive_for(THOROUGH_ROUNDS, true, scratch, sink, sets);
            if self.is_lost() {
                self.finish(End::System(Errno::TIMEDOUT), scratch, sink, sets);
            }
            self.ended.as_ref()?;
        }
        self.follow(None);
        self.ended.take()
    }

    pub(super) fn is_flushed(
        &mut self,
        scratch: &mut [u8],
        sink: &mut impl Sink,
        sets: DataSets<'_>,
    ) -> bool {
        if self.push_out(scratch, sink, sets) {
            self.announce_end();
        }
        let spared = self.machine.sent_after_posted();
        let acknowledged = self.socket.as_ref().is_none_or(|socket| socket.is_acknowledged(spared));
        matches!(self.phase, Phase::Over) || self.machine.is_drained() && acknowledged
    }

    /// Adds the socket to a data set that was not there before.
    pub(super) fn join(&self, set: &WaitSet, token: Token) -> Result<()> {
        self.socket.as_ref().map_or(Ok(()), |socket| self.watch.join(socket, set, token))
    }

    /// Takes the socket out of a data set that is one no more.
    pub(super) fn part(&self, set: &WaitSet) {
        if let Some(socket) = &self.socket {
            self.watch.part(socket, set);
        }
    }

    /// Takes what arrived and sends what waits. Answers whether that ended the connection.
    fn drive_for(
        &mut self,
        rounds: usize,
        thorough: bool,
        scratch: &mut [u8],
        sink: &mut impl Sink,
        sets: DataSets<'_>,
    ) -> bool {
        let end = match self.phase {
            Phase::Open | Phase::Closing { .. } => self.receive(rounds, thorough, scratch, sink),
            Phase::Draining => None,
            Phase::Idle | Phase::Opening(_) | Phase::Over => return false,
        };
        if let Some(end) = end {
            self.finish(end, scratch, sink, sets);
            return true;
        }
        self.push_out(scratch, sink, sets)
    }

    /// Sends what waits. Answers whether that ended the connection.
    fn push_out(&mut self, scratch: &mut [u8], sink: &mut impl Sink, sets: DataSets<'_>) -> bool {
        let Some(wire) = &mut self.socket else { return false };
        if self.machine.has_output()
            && let Err(violation) = self.machine.pump(&mut Port { wire, sink, scratch })
        {
            self.finish(End::Fault(violation.into()), scratch, sink, sets);
            return true;
        }
        if matches!(self.phase, Phase::Draining) && !self.machine.wants_wire() {
            self.machine.flush(None, sink);
            self.end_over(sets);
        }
        self.settle(sets);
        false
    }

    /// Receives until there is nothing, something to report, or an end.
    fn receive(
        &mut self,
        rounds: usize,
        thorough: bool,
        scratch: &mut [u8],
        sink: &mut impl Sink,
    ) -> Option<End> {
        let Some(socket) = &self.socket else { return None };
        let mut counting = Counting { sink, count: 0 };
        for _ in 0..rounds {
            let (asked, straight, received) = match self.machine.target() {
                Some(place) => {
                    let rest = &mut scratch[..REST];
                    (place.length + REST, place.length, socket.receive_at(&place, rest))
                }
                None => {
                    let asked = match self.bulk {
                        _ if self.machine.checks_crc() => scratch.len(),
                        true => REST,
                        false => READ,
                    };
                    (asked, 0, socket.receive(&mut scratch[..asked]))
                }
            };
            let count = match received {
                Ok(0) => return Some(End::Input),
                Ok(count) => count,
                Err(Errno::AGAIN) => {
                    self.machine.relax();
                    return None;
                }
                Err(errno) => return Some(End::System(errno)),
            };
            let placed = count.min(straight);
            self.bulk = placed >= READ || self.bulk && count == asked;
            self.machine.placed(placed);
            if let Err(fault) = self.machine.feed(&scratch[..count - placed], &mut counting) {
                return Some(End::Fault(fault));
            }
            if !thorough && (count < asked || counting.count > 0) {
                return None;
            }
        }
        if thorough {
            // The end may be behind what is left, and was told once: have it told again.
            self.follow(Some(Interest::HangUp));
        }
        None
    }

    /// Ends the sending side when all is out, if nothing more can come.
    fn settle(&mut self, sets: DataSets<'_>) {
        if let (Phase::Closing { told }, Some(socket)) = (&mut self.phase, &self.socket)
            && !*told
            && self.machine.is_drained()
        {
            *told = true;
            socket.end_output();
        }
        self.watch(sets);
    }

    /// Takes the handshake further, as far as it goes now.
    fn advance(&mut self, sets: DataSets<'_>) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        let Some(socket) = &mut self.socket else { return };
        let wanted = match opening.advance(socket) {
            Ok(None) => opening.interest(),
            Ok(Some(Outcome::Rejected(private_data))) => {
                self.opened = Some(ConnectionEvent::Rejected { private_data });
                self.phase = Phase::Over;
                return;
            }
            Ok(Some(Outcome::Accepted(agreement, private_data))) => {
                let keepalive = opening.keepalive();
                return self.establish(&agreement, private_data, keepalive, sets);
            }
            Err(error) => return self.fail(error),
        };
        self.follow(Some(wanted));
    }

    fn establish(
        &mut self,
        agreement: &Agreement,
        private_data: Vec<u8>,
        keepalive: Duration,
        sets: DataSets<'_>,
    ) {
        let Some(socket) = &mut self.socket else { return };
        if let Err(errno) = socket.tune(keepalive) {
            return self.fail(ConnectError::System(errno.raw_os_error()));
        }
        self.local = self.local.or_else(|| socket.local_address());
        self.peer = self.peer.or_else(|| socket.peer_address());
        self.machine.establish(agreement);
        self.phase = Phase::Open;
        self.liveness = Some(Liveness::new(keepalive));
        self.opened = Some(ConnectionEvent::Established { private_data });
        // There is nothing to stream from registered memory yet: no scratch is needed.
        let mut none = Vec::new();
        self.push_out(&mut [], &mut none, sets);
    }

    fn fail(&mut self, error: ConnectError) {
        if let Some(socket) = &self.socket {
            socket.end();
        }
        self.opened = Some(ConnectionEvent::Failed(error));
        self.phase = Phase::Over;
    }

    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Idle => "idle",
            Phase::Opening(_) => "connecting",
            Phase::Open => "connected",
            Phase::Closing { .. } => "disconnecting",
            Phase::Draining | Phase::Over => "over",
        }
    }

    /// Watches the socket for what there is to wait for.
    #[inline]
    fn watch(&mut self, sets: DataSets<'_>) {
        let Some(socket) = &self.socket else { return };
        let output = self.machine.wants_wire();
        let wanted = match self.phase {
            Phase::Open | Phase::Closing { .. } if output => Interest::ReadWrite,
            Phase::Open | Phase::Closing { .. } => Interest::Read,
            Phase::Draining => Interest::Write,
            Phase::Idle | Phase::Opening(_) | Phase::Over => return,
        };
        self.watch.watch(socket.as_fd(), wanted, sets);
    }

    fn leave_sets(&mut self, sets: DataSets<'_>) {
        if let Some(socket) = &self.socket {
            self.watch.leave(socket.as_fd(), sets);
        }
    }

    /// Makes the event target report an end that `poll_event` has not met itself: the socket is
    /// readable then, by its end.
    fn announce_end(&mut self) {
        self.follow(Some(Interest::Read));
    }

    /// Changes for what the event target watches the socket; `None`: for nothing any more.
    fn follow(&mut self, interest: Option<Interest>) {
        if let Some(socket) = &self.socket {
            self.watch.announce(socket.as_fd(), interest);
        }
    }
}

/// Counts the completions that go by.
struct Counting<'s, S: Sink> {
    sink: &'s mut S,
    count: usize,
}

impl<S: Sink> Sink for Counting<'_, S> {
    fn push(&mut self, completion: Completion) {
        self.count += 1;
        self.sink.push(completion);
    }
}
