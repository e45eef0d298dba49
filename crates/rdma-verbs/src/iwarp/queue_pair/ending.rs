//! Ends the connection of a queue pair, on behalf of either side, in order or not.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::super::machine::{Fault, Port, Sink};
use super::super::membership::PollSets;
use super::super::scratch::Scratch;
use super::super::socket::{Dropped, Socket};
use super::{Phase, QueuePair, THOROUGH_ROUNDS};
use crate::{BreakReason, Cause, ConnectionEvent};
use iwarp_wire::rdmap::Terminate;

/// Why the input ended.
pub(super) enum End {
    /// The peer ended its output.
    Input,
    System(Errno),
    Fault(Fault),
}

/// For how long the end by a fault waits for the peer's.
const PEER_WAITS: Duration = Duration::from_secs(5);

/// The end of a connection by a fault of the peer or of this side.
pub(super) struct Terminating {
    /// Whether the peer has ended its output.
    pub(super) input_ended: bool,
    /// Whether the socket has all of the output.
    pub(super) output_ended: bool,
    /// When both directions end in any case.
    until: Instant,
}

impl Terminating {
    fn now() -> Self {
        Self { input_ended: false, output_ended: false, until: Instant::now() + PEER_WAITS }
    }
}

/// For how long what arrived before the socket failed waits for the next receive.
const REST_WAITS: Duration = Duration::from_secs(2);

/// The failure of a socket whose last input waits for receives.
pub(super) struct Failure {
    errno: Errno,
    /// When that input is dropped, unless a receive takes some of it before.
    pub(super) deadline: Instant,
    /// [`Machine::served`](super::super::machine::Machine::served) when the time began.
    served: u64,
}

impl Failure {
    fn now(errno: Errno, served: u64) -> Self {
        Self { errno, deadline: Instant::now() + REST_WAITS, served }
    }

    /// Whether its input is to be dropped now that its time is over. If shared receives went to others that wait, its
    /// turn is still to come.
    fn is_over(&mut self, served: u64) -> bool {
        let is_over = served == self.served;
        if !is_over {
            *self = Self::now(self.errno, served);
        }
        is_over
    }
}

impl QueuePair {
    /// Begins an orderly end: nothing more can be posted, and the output ends when everything is sent.
    pub(in super::super) fn disconnect(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) {
        match self.phase {
            Phase::Failed(_) => self.give_up_rest(sink, sets),
            Phase::Open => {
                self.phase = Phase::Closing { output_ended: false };
                self.machine.close(sink);
                self.resume(sink, sets);
                if self.send_output(sink, sets) {
                    self.notify_end();
                }
            }
            Phase::Connecting(_) => {
                self.remove_from_sets(sets);
                self.set_event_interest(None);
                self.socket = None;
                self.phase = Phase::Over;
            }
            _ => {}
        }
    }

    /// See [`crate::MessageQueues::give_up`].
    pub(in super::super) fn give_up(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) -> bool {
        match self.phase {
            Phase::Closing { .. } | Phase::Draining => {
                self.machine.give_up();
                if self.send_output(sink, sets) {
                    self.notify_end();
                }
                true
            }
            Phase::Terminating(_) | Phase::Over => true,
            Phase::Idle | Phase::Connecting(_) | Phase::Open | Phase::Failed(_) => false,
        }
    }

    /// Breaks the connection at once.
    pub(in super::super) fn abort(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) {
        self.remove_from_sets(sets);
        self.set_event_interest(None);
        let is_unreported = matches!(self.phase, Phase::Open | Phase::Closing { .. } | Phase::Failed(_));
        let was_established = is_unreported || matches!(self.phase, Phase::Draining);
        let Some(mut socket) = self.socket.take() else { return };
        if was_established {
            self.machine.terminate(Terminate::LOCAL_CATASTROPHIC, &mut socket);
            self.machine.flush(None, sink);
        }
        // If an end was reported or waits to be reported, it remains the only one.
        if is_unreported {
            self.ended = Some(ConnectionEvent::Broken(BreakReason::Aborted));
        }
        socket.reset();
        self.phase = Phase::Over;
    }

    /// Ends a connection that is not disconnected: by a reset, or for messages in order, so that those which the
    /// socket has taken still arrive. The caller drops the queue pair next.
    ///
    /// A child of the process that made the connection gives no shared receive back: the message of another
    /// connection would take it, and the child would go on with that connection.
    pub(in super::super) fn destroy(&mut self, sets: PollSets<'_>) {
        if self.socket.as_ref().is_none_or(Socket::is_of_this_process) {
            self.machine.release();
        }
        self.remove_from_sets(sets);
        self.set_event_interest(None);
        if let (Phase::Open | Phase::Closing { output_ended: false }, Some(socket)) =
            (&self.phase, self.socket.take())
            && !self.machine.is_for_messages()
        {
            socket.reset();
        }
    }

    /// Whether the peer's host has vanished; see [`Liveness`](super::super::liveness).
    pub(super) fn has_vanished(&mut self) -> bool {
        let is_established = matches!(self.phase, Phase::Open | Phase::Closing { .. });
        match (&mut self.liveness, &self.socket) {
            (Some(liveness), Some(socket)) if is_established => liveness.has_vanished(socket),
            _ => false,
        }
    }

    /// Handles the failure of the socket while a message waits for a receive: it and what came behind it are still
    /// taken when there is one. Only the output ends.
    pub(super) fn keep_rest(&mut self, errno: Errno, sink: &mut impl Sink, sets: PollSets<'_>) {
        self.peer_ended |= matches!(self.phase, Phase::Open);
        self.phase = Phase::Failed(Failure::now(errno, self.machine.served()));
        self.machine.end_output(sink);
        // It would report the failure without end.
        self.remove_from_sets(sets);
        self.report_rest(sets);
        // Whoever waits for events has a deadline from now on.
        self.notify_hang_up();
    }

    /// Makes the poll sets report when the time of what still waits for receives is over.
    fn report_rest(&mut self, sets: PollSets<'_>) {
        if let Phase::Failed(failure) = &self.phase {
            self.membership.report_at(failure.deadline, sets);
        }
    }

    /// Drops what still waits for receives after the socket failed, if its time is over.
    pub(super) fn end_late_rest(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) {
        let Phase::Failed(failure) = &mut self.phase else { return };
        if Instant::now() < failure.deadline {
            return;
        }
        if failure.is_over(self.machine.served()) {
            self.give_up_rest(sink, sets);
        } else {
            self.report_rest(sets);
        }
    }

    /// Takes the rest of what arrived before the socket failed, as far as there are receives, and then ends the
    /// connection.
    pub(super) fn receive_rest(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) {
        while !self.machine.is_stalled() {
            let end = self.receive(THOROUGH_ROUNDS, true, sink);
            if let Some(fault @ End::Fault(_)) = end {
                return self.end_rest(fault, sink, sets);
            }
            let has_more = end.is_none() && self.unread;
            if !has_more && !self.machine.is_stalled() {
                return self.give_up_rest(sink, sets);
            }
        }
        if let Phase::Failed(failure) = &mut self.phase {
            *failure = Failure::now(failure.errno, self.machine.served());
            self.report_rest(sets);
        }
    }

    /// Drops what still waits for receives after the socket failed, and ends the connection.
    pub(super) fn give_up_rest(&mut self, sink: &mut impl Sink, sets: PollSets<'_>) {
        if let Phase::Failed(Failure { errno, .. }) = self.phase {
            self.end_rest(End::System(errno), sink, sets);
        }
    }

    fn end_rest(&mut self, end: End, sink: &mut impl Sink, sets: PollSets<'_>) {
        self.finish(end, sink, sets);
        self.notify_end();
    }

    /// Handles the end of the input: decides on the event, and drains or flushes the output
    /// [RFC 5040 5.4-6, 7-1, 7.1-1] [RFC 5041 3-7, 6.2.1-4, 6.2.2-1, 7.1-7, 7.1-16].
    pub(super) fn finish(&mut self, end: End, sink: &mut impl Sink, sets: PollSets<'_>) {
        let Some(socket) = &mut self.socket else { return };
        let (event, fault) = match end {
            End::Input => (input_ended(self.machine.is_between_messages(), socket.send_error()), None),
            End::System(errno) => (ConnectionEvent::Broken(break_reason(errno)), None),
            End::Fault(fault) => (ConnectionEvent::Broken(self.terminate(&fault, sink)), Some(fault)),
        };
        let orderly = event == ConnectionEvent::Disconnected;
        self.peer_ended |= fault.is_none() && matches!(self.phase, Phase::Open);
        let is_violation = matches!(fault, Some(Fault::Violation(_)));
        // A connection that is draining has reported its end already.
        if !matches!(self.phase, Phase::Draining) {
            if let (ConnectionEvent::Broken(reason), Some(peer)) = (&event, self.peer) {
                log::info!("iwarp: the connection to {peer} is broken: {reason}");
            }
            self.ended = Some(event);
        }
        if orderly {
            self.machine.end_input(sink);
            self.phase = Phase::Draining;
            self.send_output(sink, sets);
        } else {
            self.machine.flush(fault.as_ref(), sink);
            if is_violation {
                self.phase = Phase::Terminating(Terminating::now());
                self.end_terminating(THOROUGH_ROUNDS, sets);
                if let Phase::Terminating(ending) = &self.phase {
                    // The socket of a peer that is silent reports nothing.
                    self.membership.report_at(ending.until, sets);
                }
            } else {
                self.shut_down(sets);
            }
        }
    }

    /// Continues the end after a Terminate: sends the rest of the output, and drops input. The connection is over when
    /// the peer has ended its output, too: until then more input would reset it, and the peer might learn of the reset
    /// before it has taken the Terminate.
    pub(super) fn end_terminating(&mut self, rounds: usize, sets: PollSets<'_>) {
        let (Phase::Terminating(ending), Some(socket)) = (&mut self.phase, &mut self.socket) else { return };
        if !ending.output_ended && self.machine.send_staged(socket) {
            ending.output_ended = true;
            socket.end_output();
        }
        let dropped = if ending.input_ended { Dropped::End } else { socket.drop_input(rounds) };
        ending.input_ended = dropped == Dropped::End;
        self.unread = dropped == Dropped::Part;
        let has_ended = ending.output_ended && ending.input_ended;
        if has_ended || socket.send_error().is_some() {
            self.shut_down(sets);
        } else if Instant::now() >= ending.until {
            // A peer that receives nothing learns of nothing but a reset.
            self.cut(sets);
        } else {
            self.update_interest(sets);
        }
    }

    /// Resets the connection.
    fn cut(&mut self, sets: PollSets<'_>) {
        self.remove_from_sets(sets);
        self.set_event_interest(None);
        self.machine.discard_staged();
        if let Some(socket) = self.socket.take() {
            socket.reset();
        }
        self.phase = Phase::Over;
    }

    /// Sends a Terminate message if the peer did not send one. Returns the reason to report
    /// [RFC 5040 5.4-5, 6.2.1-1] [RFC 5041 6.2.2-3, 6.2.2-4, 7.1-17] [RFC 5044 8-6].
    fn terminate(&mut self, fault: &Fault, sink: &mut impl Sink) -> BreakReason {
        match fault {
            Fault::Violation(violation) => {
                if let Some(wire) = &mut self.socket {
                    // Reads that came before the violation are answered, as far as the socket takes it.
                    let _ = self.machine.pump(&mut Port { wire, sink, scratch: &mut Scratch::take() });
                    self.machine.terminate(violation.terminate(), wire);
                }
                let cause = Cause::Violation(*violation);
                if violation.is_local() { BreakReason::Local(cause) } else { BreakReason::Protocol(cause) }
            }
            Fault::Terminated(terminate) => BreakReason::Terminated(Cause::Terminate(*terminate)),
        }
    }

    /// Ends the connection in order, after what was sent [RFC 5040 6.2.1-3, 7-2] [RFC 5041 3-9, 6.2.1-5].
    /// What has arrived is dropped, or a peer that still sends would wait for room.
    pub(super) fn shut_down(&mut self, sets: PollSets<'_>) {
        self.remove_from_sets(sets);
        self.machine.discard_staged();
        if let Some(socket) = &self.socket {
            // The system tells of room only before the end.
            socket.drop_input(THOROUGH_ROUNDS);
            socket.end();
        }
        self.phase = Phase::Over;
    }
}

/// The reason that an error of the socket means [RFC 5044 8-1].
fn break_reason(errno: Errno) -> BreakReason {
    match errno {
        Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::HOSTDOWN => BreakReason::Vanished,
        _ => BreakReason::Reset,
    }
}

/// The event that the end of the input means. It is an orderly end only between messages, and only if sending
/// has not failed with an error that reading did not show. If the peer has ended its output and closed,
/// sending fails with EPIPE: that end was orderly [RFC 5041 3-8, 7-1] [RFC 5044 7.2-1, 8-1].
fn input_ended(between_messages: bool, send_error: Option<Errno>) -> ConnectionEvent {
    match send_error {
        Some(errno) if errno != Errno::PIPE => ConnectionEvent::Broken(break_reason(errno)),
        _ if between_messages => ConnectionEvent::Disconnected,
        _ => ConnectionEvent::Broken(BreakReason::Reset),
    }
}
