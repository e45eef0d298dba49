//! A queue pair: its protocol machine, its socket, and the state of its connection.
//!
//! ```text
//! Idle ── connect, accept ──▶ Connecting ── handshake done ──▶ Open ── disconnect ──▶ Closing
//!                                 │ failed                      │ end of input         │
//!                                 ▼                             ▼                      ▼
//!                               Over ◀─── all is sent ──────── Draining ◀──────────────┘
//! ```
//!
//! Any failure leads to `Over` as well, a violation by `Terminating`, in which the peer gets the reason. The socket
//! stays open in the state `Over` until the queue pair is destroyed.

mod connect;
mod ending;
mod entries;
mod input;
mod posting;

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::connecting::Connecting;
use super::liveness::Liveness;
use super::machine::{Machine, Port, Sink};
use super::membership::{Membership, PollSets};
use super::scratch::Scratch;
use super::socket::Socket;
use crate::{ConnectionEvent, Error, Interest, PeerAccesses, QpCapabilities, QpId, Result, Token, WaitSet};
use ending::{End, Failure, Terminating};

/// Maximum number of receive calls of one `drive`, so that a peer that sends without pause does not hold the
/// caller. `unread` records that input is left.
const ROUNDS: usize = 16;
/// The same for a call that looks for the end of the connection.
const THOROUGH_ROUNDS: usize = 256;

/// See the module.
pub(super) struct QueuePair {
    pub(super) number: QpId,
    capabilities: QpCapabilities,
    machine: Machine,
    phase: Phase,
    socket: Option<Socket>,
    membership: Membership,
    /// Whether large payloads follow each other. Then, where no payload is expected, only headers are read,
    /// and the next payload is received straight into its place.
    bulk: bool,
    /// Whether the last drive left input in the socket.
    unread: bool,
    /// Whether a call that looked for the end of the input could not get there: a message waits for a receive.
    missed_end: bool,
    opened: Option<ConnectionEvent>,
    ended: Option<ConnectionEvent>,
    /// See [`crate::MessageQueues::peer_ended`].
    peer_ended: bool,
    /// Set once it is final; until then the socket is asked.
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// Set once the connection is established.
    liveness: Option<Liveness>,
}

enum Phase {
    Idle,
    Connecting(Box<Connecting>),
    Open,
    Closing {
        output_ended: bool,
    },
    /// The socket has failed while a message waits for a receive. What arrived before is still taken.
    Failed(Failure),
    Draining,
    /// The connection has ended by a fault. A Terminate and what precedes it is still sent, and input is dropped until
    /// the peer ends its output.
    Terminating(Terminating),
    Over,
}

impl QueuePair {
    pub(super) fn new(number: QpId, capabilities: QpCapabilities, machine: Machine) -> Self {
        Self {
            number,
            capabilities,
            machine,
            phase: Phase::Idle,
            socket: None,
            membership: Membership::new(number),
            bulk: false,
            unread: false,
            missed_end: false,
            opened: None,
            ended: None,
            peer_ended: false,
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
        if self.opened.is_some() && self.socket.is_none() {
            // There is no socket that could report it.
            return Some(Instant::now());
        }
        match &self.phase {
            Phase::Connecting(connecting) => Some(connecting.deadline()),
            Phase::Failed(failure) => Some(failure.deadline),
            Phase::Open | Phase::Closing { .. } => self.liveness.as_ref().map(Liveness::next),
            Phase::Idle | Phase::Draining | Phase::Terminating(_) | Phase::Over => None,
        }
    }

    /// Checks that the queue pair is unused.
    pub(super) fn check_idle(&self, what: &'static str) -> Result<()> {
        match self.phase {
            Phase::Idle => Ok(()),
            _ => Err(Error::BadState { state: self.state(), what }),
        }
    }

    /// See [`crate::MessageQueues::hold_writes`].
    pub(super) fn hold_writes(&mut self, hold: bool, sink: &mut impl Sink, sets: PollSets<'_>) {
        self.machine.hold_writes(hold);
        self.resume(sink, sets);
    }

    /// Resumes a message that waited, if it need not wait any longer.
    pub(super) fn resume(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) {
        if !self.machine.is_stalled() {
            return;
        }
        match self.machine.resume(sink) {
            Err(fault) => {
                self.finish(End::Fault(fault), sink, sets);
                self.notify_end();
            }
            Ok(()) if matches!(self.phase, Phase::Failed(_)) => self.receive_rest(sink, sets),
            Ok(()) if self.send_output(sink, sets) => self.notify_end(),
            Ok(()) if self.missed_end && !self.machine.is_stalled() => {
                // The set reported the end once: request another report.
                self.missed_end = false;
                self.notify_hang_up();
            }
            Ok(()) => {}
        }
    }

    /// See [`crate::MessageQueues::count_accesses`].
    pub(super) fn count_accesses(&mut self) -> Arc<PeerAccesses> {
        self.machine.count_accesses()
    }

    /// See [`crate::MessageQueues::stalls`].
    pub(super) fn stalls(&self) -> u64 {
        self.machine.stalls()
    }

    /// Receives what arrived and sends what waits.
    #[inline]
    pub(super) fn drive(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) {
        if self.drive_for(ROUNDS, false, sink, sets) {
            self.notify_end();
        }
    }

    /// Returns the next connection event. Receives what arrived up to the end of the connection, unless the
    /// completion queue `is_full`.
    pub(super) fn poll_event(
        &mut self,
        is_full: bool,
        sink: &mut impl Sink,
        sets: PollSets<'_>,
    ) -> Option<ConnectionEvent> {
        if matches!(self.phase, Phase::Connecting(_)) {
            self.advance(sets);
        }
        if self.opened.is_some() && !self.machine.may_send() {
            // The peer's promised first FPDU has arrived; this side may send once it is taken.
            self.drive_for(ROUNDS, false, sink, sets);
        }
        if let Some(event) = self.opened.take() {
            if self.ended.is_none() {
                self.set_event_interest(match event {
                    ConnectionEvent::Established { .. } => Some(Interest::HangUp),
                    _ => None,
                });
            }
            return Some(event);
        }
        if self.ended.is_none() {
            if is_full {
                // The end follows input that cannot be taken yet. The set reported it once: request another
                // report.
                self.notify_hang_up();
            } else {
                self.drive_for(THOROUGH_ROUNDS, true, sink, sets);
            }
            self.end_late_rest(sink, sets);
            if self.has_vanished() {
                self.finish(End::System(Errno::TIMEDOUT), sink, sets);
            }
            self.ended.as_ref()?;
        }
        self.set_event_interest(None);
        self.ended.take()
    }

    /// Whether the last drive left input in the socket, or output that the socket may take. An edge-triggered
    /// waiter gets no event for that.
    pub(super) fn is_unfinished(&self) -> bool {
        (self.unread || self.machine.is_paused()) && self.may_go_on()
    }

    /// Whether a later drive takes what the last one left. Input that is left when the connection ends is never taken.
    #[cold]
    fn may_go_on(&self) -> bool {
        match self.phase {
            Phase::Open | Phase::Closing { .. } | Phase::Terminating(_) => true,
            Phase::Draining => self.machine.is_paused(),
            Phase::Idle | Phase::Connecting(_) | Phase::Failed(_) | Phase::Over => false,
        }
    }

    pub(super) fn is_flushed(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) -> bool {
        if self.send_output(sink, sets) {
            self.notify_end();
        }
        let spared = self.machine.sent_after_posted();
        let acknowledged = |spared| self.socket.as_ref().is_none_or(|socket| socket.is_acknowledged(spared));
        match &self.phase {
            Phase::Over => true,
            Phase::Terminating(ending) => ending.output_ended && acknowledged(0),
            _ => self.machine.is_drained() && acknowledged(spared),
        }
    }

    /// See [`crate::MessageQueues::has_ended`].
    pub(super) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// See [`crate::MessageQueues::peer_ended`].
    pub(super) fn peer_ended(&self) -> bool {
        self.peer_ended
    }

    /// See [`crate::MessageQueues::awaits_peer`].
    pub(super) fn awaits_peer(&self) -> bool {
        matches!(self.phase, Phase::Terminating(_))
    }

    /// See [`Membership::add_to`].
    pub(super) fn add_to(&self, set: &WaitSet, token: Token) -> Result<()> {
        self.socket.as_ref().map_or(Ok(()), |socket| self.membership.add_to(socket, set, token))
    }

    /// Removes the socket from `set`, which is no longer one of the poll sets.
    pub(super) fn remove_from(&self, set: &WaitSet) {
        if let Some(socket) = &self.socket {
            self.membership.remove_from(socket, set);
        }
    }

    /// See [`verbs::CompletionQueue::watch`](crate::CompletionQueue::watch).
    pub(super) fn watch(&mut self, wait: &Arc<WaitSet>) -> Result<()> {
        self.membership.watch(self.socket.as_ref(), wait)
    }

    pub(super) fn unwatch(&mut self, wait: &Arc<WaitSet>) -> bool {
        self.membership.unwatch(self.socket.as_ref(), wait)
    }

    /// Receives what arrived and sends what waits. Returns whether that ended the connection.
    fn drive_for(&mut self, rounds: usize, thorough: bool, sink: &mut impl Sink, sets: PollSets<'_>) -> bool {
        let end = match self.phase {
            Phase::Open | Phase::Closing { .. } => self.receive(rounds, thorough, sink),
            Phase::Draining => None,
            Phase::Connecting(_) => return self.drive_handshake(rounds, sink, sets),
            Phase::Terminating(_) => {
                self.end_terminating(rounds, sets);
                return false;
            }
            Phase::Failed(_) => {
                self.end_late_rest(sink, sets);
                return false;
            }
            Phase::Idle | Phase::Over => return false,
        };
        match end {
            Some(End::System(errno)) if self.machine.is_stalled() => {
                self.keep_rest(errno, sink, sets);
                false
            }
            Some(end) => {
                self.finish(end, sink, sets);
                true
            }
            None => self.send_output(sink, sets),
        }
    }

    /// Sends what waits. Returns whether that ended the connection.
    fn send_output(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) -> bool {
        if let Phase::Terminating(_) = self.phase {
            self.end_terminating(ROUNDS, sets);
            return false;
        }
        let Some(wire) = &mut self.socket else { return false };
        if self.machine.has_output()
            && let Err(violation) = self.machine.pump(&mut Port { wire, sink, scratch: &mut Scratch::take() })
        {
            self.finish(End::Fault(violation.into()), sink, sets);
            return true;
        }
        if matches!(self.phase, Phase::Draining) && !self.machine.wants_wire() {
            self.machine.flush(None, sink);
            self.shut_down(sets);
        }
        // If the socket is watched for room from now on, room that appeared before is not reported: try
        // again.
        self.finish_sending(sets) && self.send_output(sink, sets)
    }

    /// Ends the output of a closing connection when everything is sent, and updates the interest in the
    /// socket. Returns whether it is watched for room from now on [RFC 5041 6.2.1-1, 6.2.1-6].
    // 18 instructions fewer for each call that drives the queue pair.
    #[inline(always)]
    fn finish_sending(&mut self, sets: PollSets<'_>) -> bool {
        if let (Phase::Closing { output_ended }, Some(socket)) = (&mut self.phase, &self.socket)
            && !*output_ended
            && self.machine.is_drained()
        {
            *output_ended = true;
            socket.end_output();
        }
        self.update_interest(sets)
    }

    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Idle => "idle",
            Phase::Connecting(_) => "connecting",
            Phase::Open | Phase::Failed(_) => "connected",
            Phase::Closing { .. } => "disconnecting",
            Phase::Draining | Phase::Terminating(_) | Phase::Over => "over",
        }
    }

    /// Updates the interest in the socket. Returns whether it is watched for room from now on.
    #[inline]
    fn update_interest(&mut self, sets: PollSets<'_>) -> bool {
        let Some(socket) = &self.socket else { return false };
        let output = self.machine.wants_wire();
        let wanted = match &self.phase {
            Phase::Open | Phase::Closing { .. } => match (self.machine.is_stalled(), output) {
                (false, false) => Interest::Read,
                (false, true) => Interest::ReadWrite,
                // Nothing is received meanwhile, so neither input nor its end need be reported.
                (true, false) => Interest::Failure,
                (true, true) => Interest::Write,
            },
            Phase::Draining => Interest::Write,
            Phase::Terminating(Terminating { input_ended, output_ended, .. }) => {
                match (input_ended, output_ended) {
                    (false, false) => Interest::ReadWrite,
                    (true, _) => Interest::Write,
                    (false, true) => Interest::Read,
                }
            }
            Phase::Connecting(connecting) if self.polls_handshake() => connecting.interest(),
            Phase::Idle | Phase::Connecting(_) | Phase::Failed(_) | Phase::Over => return false,
        };
        self.membership.set_interest(socket.as_fd(), wanted, sets) && output
    }

    fn remove_from_sets(&mut self, sets: PollSets<'_>) {
        if let Some(socket) = &self.socket {
            self.membership.remove(socket.as_fd(), sets);
        }
    }

    /// Makes the event target report an end that a call other than `poll_event` found.
    fn notify_end(&mut self) {
        self.membership.signal_event();
    }

    /// Makes the event target report again that the peer hung up.
    fn notify_hang_up(&mut self) {
        self.set_event_interest(Some(Interest::HangUp));
    }

    /// Changes the interest in the socket at the event target; `None`: removes it.
    pub(super) fn set_event_interest(&mut self, interest: Option<Interest>) {
        if let Some(socket) = &self.socket {
            self.membership.set_event_interest(socket.as_fd(), interest);
        }
    }
}
