//! A queue pair: its protocol machine, its socket, and the life of its connection.
//!
//! ```text
//! Idle ── connect, accept ──▶ Connecting ── handshake done ──▶ Open ── disconnect ──▶ Closing
//!                               │ failed                     │ end of input         │
//!                               ▼                            ▼                      ▼
//!                             Over ◀── all is out ──────── Draining ◀───────────────┘
//! ```
//!
//! Any failure leads to `Over` as well. The socket stays open there until the queue pair is
//! destroyed, for its descriptor is what announces the last event.

mod connect;
mod end;
mod entries;
mod input;
mod shared;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::io::Errno;

use super::connecting::Connecting;
use super::liveness::Liveness;
use super::machine::{Machine, Port, Sink, Violation};
use super::membership::{Membership, PollSets};
use super::scratch::Scratch;
use super::socket::Socket;
use crate::shm::Meeting;
use crate::{
    Completion, ConnectionEvent, Error, Interest, QpCapabilities, QpId, RecvRequest, Result, SendRequest,
    Token, WaitSet,
};
use end::End;
use entries::{Entries, Queue};
use shared::Shared;

/// Receive calls of one drive, so that a peer that never pauses does not hold its caller. The drive notes
/// that it left input in the socket.
const ROUNDS: usize = 16;
/// Receive calls of one drive that looks for the end of the connection.
const THOROUGH_ROUNDS: usize = 256;

/// See the module.
pub(super) struct QueuePair {
    pub(super) number: QpId,
    capabilities: QpCapabilities,
    machine: Machine,
    phase: Phase,
    socket: Option<Socket>,
    membership: Membership,
    /// Whether large payloads come one after the other: then only headers are read where no
    /// payload is expected, and the rest goes straight to its place.
    bulk: bool,
    /// Whether the last drive has left input in the socket.
    unread: bool,
    opened: Option<ConnectionEvent>,
    ended: Option<ConnectionEvent>,
    /// Once it is known for good; until then the socket is asked.
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// Of a connection that stands or stood.
    liveness: Option<Liveness>,
    /// Where a peer on this host can be met, until the connection stands.
    meeting: Option<Box<Meeting>>,
    /// Memory shared with the peer.
    shared: Option<Box<Shared>>,
}

enum Phase {
    Idle,
    Connecting(Box<Connecting>),
    Open,
    Closing { output_ended: bool },
    Draining,
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
            opened: None,
            ended: None,
            local: None,
            peer: None,
            liveness: None,
            meeting: None,
            shared: None,
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
            // Nothing else tells of it.
            return Some(Instant::now());
        }
        match &self.phase {
            Phase::Connecting(connecting) => Some(connecting.deadline()),
            Phase::Open | Phase::Closing { .. } => self.liveness.as_ref().map(Liveness::next),
            Phase::Idle | Phase::Draining | Phase::Over => None,
        }
    }

    /// Refuses a call that needs an unused queue pair.
    pub(super) fn check_idle(&self, what: &'static str) -> Result<()> {
        match self.phase {
            Phase::Idle => Ok(()),
            _ => Err(Error::BadState { state: self.state(), what }),
        }
    }

    /// Posts receives; `ready` are the completions that were not polled.
    pub(super) fn post_recv(
        &mut self,
        requests: &[RecvRequest<'_>],
        ready: &mut VecDeque<Completion>,
        sets: PollSets<'_>,
    ) -> Result<()> {
        match self.phase {
            Phase::Idle | Phase::Connecting(_) | Phase::Open => {
                let entries = Entries {
                    qp: self.number,
                    queue: if self.machine.is_for_messages() { Queue::MessageRecv } else { Queue::Recv },
                    depth: self.capabilities.recv_depth,
                    free: self.machine.recv_room(),
                };
                entries.check(requests.len(), ready)?;
                self.machine.post_recv(requests)?;
                self.resume(ready, sets);
                Ok(())
            }
            Phase::Closing { .. } | Phase::Draining | Phase::Over => {
                Err(Error::BadState { state: self.state(), what: "receive" })
            }
        }
    }

    /// Goes on with a message that waited for a receive.
    pub(super) fn resume(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) {
        if !self.machine.is_stalled() {
            return;
        }
        match self.machine.resume(sink) {
            Err(fault) => {
                self.finish(End::Fault(fault), sink, sets);
                self.notify_end();
            }
            Ok(()) if self.send_output(sink, sets) => self.notify_end(),
            Ok(()) => {}
        }
    }

    /// Takes back a receive; see [`crate::MessageQueues::cancel_recv`].
    pub(super) fn cancel_recv(&mut self, id: u64) -> bool {
        self.machine.cancel_recv(id)
    }

    /// Posts sends; `ready` are the completions that were not polled, to which others are added
    /// [RFC 5041 6.2.1-2].
    pub(super) fn post_send(
        &mut self,
        requests: &[SendRequest<'_>],
        more: bool,
        ready: &mut VecDeque<Completion>,
        sets: PollSets<'_>,
    ) -> Result<()> {
        let refused = |state| Error::BadState { state, what: "send" };
        if !matches!(self.phase, Phase::Open) {
            return Err(refused(self.state()));
        }
        let entries = Entries {
            qp: self.number,
            queue: Queue::Send,
            depth: self.capabilities.send_depth,
            free: self.machine.send_room(),
        };
        entries.check(requests.len(), ready)?;
        if self.post_shared(requests, ready) {
            return Ok(());
        }
        let Some(wire) = &mut self.socket else { return Err(refused(self.state())) };
        let posted = {
            let mut port = Port { wire, sink: ready, scratch: &mut Scratch::take() };
            self.machine.post_send(requests, more, &mut port)
        };
        // Held back for a caller who goes on at once: no need to watch for room meanwhile, unless
        // that watch is how this queue pair is found among others.
        if (!more || sets.own.is_some()) && self.update_interest(sets) && self.send_output(ready, sets) {
            self.notify_end();
        }
        posted.or_else(|error| self.post_failed(error, ready, sets))
    }

    /// Ends the connection if that is why a post failed. The completion of a request that could not be read
    /// tells so.
    #[cold]
    fn post_failed(
        &mut self,
        error: Error,
        ready: &mut VecDeque<Completion>,
        sets: PollSets<'_>,
    ) -> Result<()> {
        let fault = self.machine.fault();
        if fault.is_some() && self.send_output(ready, sets) {
            self.notify_end();
        }
        if let Some(Violation::LocalPlace) = fault { Ok(()) } else { Err(error) }
    }

    /// Takes what arrived and sends what waits.
    #[inline]
    pub(super) fn drive(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) {
        if self.drive_for(ROUNDS, false, sink, sets) {
            self.notify_end();
        }
    }

    /// The next connection event; takes what arrived up to the end of the connection, unless the completion
    /// queue `is_full`.
    pub(super) fn poll_event(
        &mut self,
        is_full: bool,
        sink: &mut impl Sink,
        sets: PollSets<'_>,
    ) -> Option<ConnectionEvent> {
        if matches!(self.phase, Phase::Connecting(_)) {
            self.advance(sets);
            if !self.machine.may_send() {
                // A promised first frame is there now; with it this side may.
                self.drive_for(ROUNDS, false, sink, sets);
            }
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
                // The end is behind what is to be polled first, and was told once: have it told again.
                self.notify_hang_up();
            } else {
                self.drive_for(THOROUGH_ROUNDS, true, sink, sets);
            }
            if self.has_vanished() {
                self.finish(End::System(Errno::TIMEDOUT), sink, sets);
            }
            self.ended.as_ref()?;
        }
        self.set_event_interest(None);
        self.ended.take()
    }

    /// Whether the last drive has left input in the socket, of which nothing else tells.
    pub(super) fn has_unread(&self) -> bool {
        self.unread
    }

    pub(super) fn is_flushed(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) -> bool {
        if self.send_output(sink, sets) {
            self.notify_end();
        }
        let spared = self.machine.sent_after_posted();
        let acknowledged = self.socket.as_ref().is_none_or(|socket| socket.is_acknowledged(spared));
        matches!(self.phase, Phase::Over) || self.machine.is_drained() && acknowledged
    }

    /// Adds the socket to a data set that was not there before.
    pub(super) fn add_to(&self, set: &WaitSet, token: Token) -> Result<()> {
        self.socket.as_ref().map_or(Ok(()), |socket| self.membership.add_to(socket, set, token))
    }

    /// Takes the socket out of a data set that is one no more.
    pub(super) fn remove_from(&mut self, set: &WaitSet) {
        self.unwatch_notifier(set);
        if let Some(socket) = &self.socket {
            self.membership.remove_from(socket, set);
        }
    }

    /// Takes what arrived and sends what waits. Answers whether that ended the connection.
    fn drive_for(&mut self, rounds: usize, thorough: bool, sink: &mut impl Sink, sets: PollSets<'_>) -> bool {
        let end = match self.phase {
            Phase::Open | Phase::Closing { .. } => self.receive(rounds, thorough, sink),
            Phase::Draining => None,
            Phase::Idle | Phase::Connecting(_) | Phase::Over => return false,
        };
        if let Some(end) = end {
            self.finish(end, sink, sets);
            return true;
        }
        self.send_output(sink, sets)
    }

    /// Sends what waits. Answers whether that ended the connection.
    fn send_output(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) -> bool {
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
        // Room that came before the socket was watched for it is told to nobody.
        self.finish_sending(sets) && self.send_output(sink, sets)
    }

    /// Ends the sending side when all is out, if nothing more can come. Answers whether the socket is watched
    /// for room from now on [RFC 5041 6.2.1-1, 6.2.1-6].
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
            Phase::Open => "connected",
            Phase::Closing { .. } => "disconnecting",
            Phase::Draining | Phase::Over => "over",
        }
    }

    /// Watches the socket for what there is to wait for. Answers whether that is room from now on.
    #[inline]
    fn update_interest(&mut self, sets: PollSets<'_>) -> bool {
        let Some(socket) = &self.socket else { return false };
        let output = self.machine.wants_wire();
        let wanted = match self.phase {
            Phase::Open | Phase::Closing { .. } => match (self.machine.is_stalled(), output) {
                (false, false) => Interest::Read,
                (false, true) => Interest::ReadWrite,
                // What the peer sends waits in the socket, of which nothing has to tell meanwhile.
                (true, false) => Interest::HangUp,
                (true, true) => Interest::Write,
            },
            Phase::Draining => Interest::Write,
            Phase::Idle | Phase::Connecting(_) | Phase::Over => return false,
        };
        self.membership.set_interest(socket.as_fd(), wanted, sets) && output
    }

    fn remove_from_sets(&mut self, sets: PollSets<'_>) {
        if let Some(attached) = sets.attached {
            self.unwatch_notifier(&attached.wait);
        }
        if let Some(socket) = &self.socket {
            self.membership.remove(socket.as_fd(), sets);
        }
    }

    /// Makes the event target report an end that `poll_event` has not met itself: the socket is
    /// readable then, by its end.
    fn notify_end(&mut self) {
        self.set_event_interest(Some(Interest::Read));
    }

    /// Has the peer's end told once more.
    fn notify_hang_up(&mut self) {
        self.set_event_interest(Some(Interest::HangUp));
    }

    /// Changes for what the event target watches the socket; `None`: for nothing any more.
    fn set_event_interest(&mut self, interest: Option<Interest>) {
        if let Some(socket) = &self.socket {
            self.membership.set_event_interest(socket.as_fd(), interest);
        }
    }
}
