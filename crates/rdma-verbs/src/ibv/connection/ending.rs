//! The end of a connection: lost, ended by either side, or given up.

use super::failure::connect_error;
use super::{QueuePair, State};
use crate::{BreakReason, Cause, ConnectionEvent, Error};

/// What the device's refusal of a request says.
fn cause(error: &Error) -> Cause {
    match error {
        Error::Io { source, .. } => Cause::System(source.raw_os_error().unwrap_or(libc::EIO)),
        _ => Cause::System(libc::EINVAL),
    }
}

impl QueuePair {
    /// The connection broke. Unless the peer ended it: that may be what it broke of.
    pub(in super::super) fn lose(&mut self, reason: BreakReason) {
        if matches!(reason, BreakReason::Reset | BreakReason::Vanished) {
            self.drive();
        }
        if matches!(self.state, State::Established | State::Closing) {
            self.end(Some(ConnectionEvent::Broken(reason)));
        }
    }

    /// The device took a part of what was to be posted: nothing can follow in order.
    pub(in super::super) fn give_up(&mut self, error: &Error) {
        match self.state {
            State::Idle | State::Attempting(..) => self.fail(connect_error(error)),
            State::Established | State::Closing => self.lose(BreakReason::Local(cause(error))),
            State::Ended => {}
        }
    }

    /// Ends the connection in both directions; the transport tells the peer.
    pub(super) fn end(&mut self, event: Option<ConnectionEvent>) {
        self.state = State::Ended;
        self.liveness.stop();
        self.events.extend(event);
        self.fail_requests();
        if let Some(id) = &self.id {
            id.disconnect();
        }
    }

    /// Gives the attempt up.
    pub(super) fn leave(&mut self, state: State) {
        self.state = state;
        self.fail_requests();
        if !self.is_requesting {
            self.id = None;
        }
    }

    /// Whether the queue pair can be destroyed without waiting for the peer.
    pub(in super::super) fn has_let_go(&mut self) -> bool {
        self.drive();
        !self.is_requesting
    }

    /// Begins the orderly end.
    pub(in super::super) fn disconnect(&mut self) {
        match self.state {
            State::Established => {
                self.state = State::Closing;
                self.close_when_flushed();
            }
            State::Attempting(..) => self.leave(State::Ended),
            _ => {}
        }
    }

    /// Finishes the orderly end once the peer's host has everything.
    pub(in super::super) fn close_when_flushed(&mut self) {
        if matches!(self.state, State::Closing) && self.flushed() {
            if !self.is_iwarp() {
                // Receives come back flushed; nothing that was sent is left to harm.
                self.fail_requests();
            }
            self.state = State::Ended;
            self.liveness.stop();
            if let Some(id) = &self.id {
                id.disconnect();
            }
        }
    }

    /// Ends the connection at once.
    pub(in super::super) fn abort(&mut self) {
        match self.state {
            State::Established | State::Closing => {
                self.end(Some(ConnectionEvent::Broken(BreakReason::Aborted)));
            }
            State::Attempting(..) => self.leave(State::Ended),
            _ => {}
        }
    }

    /// Whether the peer's host has everything. A completion says so on InfiniBand; on iWARP only the
    /// answer to a read behind it does.
    pub(in super::super) fn flushed(&mut self) -> bool {
        if self.sends.posted() == 0 || !matches!(self.state, State::Established | State::Closing) {
            return true;
        }
        let done = self.sends.outstanding() == 0;
        if done && (self.probed || !self.is_iwarp()) {
            return true;
        }
        if !self.liveness.probing() {
            self.post_probe();
        }
        false
    }
}
