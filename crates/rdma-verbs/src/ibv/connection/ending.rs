//! The end of a connection: broken, ended by either side, or an attempt that is abandoned. And the end of its
//! queue pair.
//!
//! The kernel's iWARP connection manager holds a queue pair until the peer has answered or a time-out of its
//! own has passed. A thread that destroys the queue pair earlier blocks for as long. Such queue pairs
//! therefore wait in a list ([`destroy`]), and later calls destroy those that can be destroyed at once. The
//! kernel destroys the rest when the process ends.

use std::os::fd::AsFd;

use parking_lot::Mutex;

use super::{QueuePair, State, connect_error};
use crate::{BreakReason, Cause, ConnectionEvent, Error};

/// Queue pairs to be destroyed.
static WAITING: Mutex<Vec<QueuePair>> = Mutex::new(Vec::new());

/// Destroys a queue pair now or, if that would block, in a later call of [`destroy_waiting`]. Its requests
/// end now: what they use is the consumer's again.
pub(in super::super) fn destroy(mut queue_pair: QueuePair) {
    if !queue_pair.is_inherited() {
        if matches!(queue_pair.state, State::Attempting(..)) {
            queue_pair.end_attempt();
        }
        WAITING.lock().push(queue_pair);
        destroy_waiting();
    }
}

/// Destroys the waiting queue pairs that can be destroyed without blocking.
pub(in super::super) fn destroy_waiting() {
    let is_done = |queue_pair: &mut QueuePair| queue_pair.is_inherited() || queue_pair.is_released();
    let done: Vec<QueuePair> = WAITING.lock().extract_if(.., is_done).collect();
    // Dropped after the lock is released.
    drop(done);
}

/// The cause of a break for which the device refused a request.
fn cause(error: &Error) -> Cause {
    match error {
        Error::Io { source, .. } => Cause::System(source.raw_os_error().unwrap_or(libc::EIO)),
        _ => Cause::System(libc::EINVAL),
    }
}

impl QueuePair {
    /// Ends the connection as broken. If the peer ended it first, reports that end instead: it may be the
    /// cause.
    pub(in super::super) fn break_with(&mut self, reason: BreakReason) {
        if matches!(reason, BreakReason::Reset | BreakReason::Vanished) {
            self.drive();
        }
        if self.is_open() {
            self.end(ConnectionEvent::Broken(reason));
        }
    }

    /// Ends the connection because the device took only a part of the posted requests: none can follow in
    /// order.
    pub(in super::super) fn fail_post(&mut self, error: &Error) {
        match self.state {
            State::Idle | State::Attempting(..) => self.fail(connect_error(error)),
            State::Established | State::Closing => self.break_with(BreakReason::Local(cause(error))),
            State::Ended => {}
        }
    }

    /// Ends the connection in both directions and reports `event`. The transport informs the peer.
    pub(super) fn end(&mut self, event: ConnectionEvent) {
        let by_peer = event == ConnectionEvent::Disconnected && matches!(self.state, State::Established);
        // The peer may have ended it because the same device is gone for both.
        self.peer_ended = by_peer && !self.context().is_gone();
        self.state = State::Ended;
        self.liveness.stop();
        if let (ConnectionEvent::Broken(reason), Some(peer)) = (&event, self.peer) {
            log::info!("ibv: the connection to {peer} is broken: {reason}");
        }
        self.events.push_back(event);
        self.fail_requests();
        if let Some(id) = &self.id {
            id.disconnect();
        }
    }

    /// Ends a connection attempt.
    pub(super) fn end_attempt(&mut self) {
        self.state = State::Ended;
        self.fail_requests();
        if !self.is_requesting {
            self.id = None;
        }
    }

    /// Whether the kernel holds the queue pair no longer, so that destroying it does not block.
    fn is_released(&mut self) -> bool {
        self.drive();
        !self.is_requesting
    }

    /// Begins the orderly end.
    pub(in super::super) fn disconnect(&mut self) {
        self.drops_shared = self.most_places > 0;
        match self.state {
            State::Established => {
                self.state = State::Closing;
                self.close_when_flushed();
            }
            State::Attempting(..) => self.end_attempt(),
            _ => {}
        }
    }

    /// Finishes the orderly end once the peer's host has acknowledged everything.
    #[inline]
    pub(in super::super) fn close_when_flushed(&mut self) {
        if matches!(self.state, State::Closing) && self.flushed() {
            self.finish_closing();
        }
    }

    #[cold]
    fn finish_closing(&mut self) {
        if !self.is_iwarp() {
            // This flushes the receives. No send is outstanding that it could harm.
            self.fail_requests();
        }
        self.state = State::Ended;
        self.liveness.stop();
        if let Some(id) = &self.id {
            id.disconnect();
        }
    }

    /// Whether requests are outstanding although the connection has ended.
    pub(in super::super) fn has_ended_unflushed(&self) -> bool {
        // The kernel holds one that is requesting, and destroying it would block.
        matches!(self.state, State::Ended)
            && !self.is_requesting
            && self.sends.outstanding() + self.receives.outstanding() > 0
    }

    /// Whether destroying it may lose shared receives. One with requests of its own is destroyed at once, which ends
    /// the device's access to their memory: the consumer has waited for these, see
    /// [`MessageQueues::has_sends`](crate::MessageQueues::has_sends).
    pub(in super::super) fn may_leave_shared(&self) -> bool {
        let may_have_taken = !self.is_iwarp() && !matches!(self.state, State::Idle | State::Attempting(..));
        self.shared.is_some() && may_have_taken && self.sends.outstanding() == 0 && !self.is_inherited()
    }

    /// Ends the connection before the queue pair is destroyed. No call names it any more.
    pub(in super::super) fn retire(&mut self) {
        self.end_events();
        if !matches!(self.state, State::Ended) {
            self.finish_closing();
        }
    }

    /// Takes the connection out of the event target.
    pub(in super::super) fn end_events(&mut self) {
        if let (Some(id), Some(set)) = (&self.id, self.event_set.take()) {
            // It cannot fail: the connection was added when it began.
            let _ = set.remove(id.channel().as_fd());
        }
    }

    /// Ends the connection at once.
    pub(in super::super) fn abort(&mut self) {
        match self.state {
            State::Established | State::Closing => {
                self.end(ConnectionEvent::Broken(BreakReason::Aborted));
            }
            State::Attempting(..) => self.end_attempt(),
            _ => {}
        }
    }

    /// Whether the peer's host has acknowledged everything. On InfiniBand the completions show it; on iWARP
    /// only the response to a later read does, so this posts a probe.
    #[inline(never)]
    pub(in super::super) fn flushed(&mut self) -> bool {
        if self.sends.posted() == 0 || !self.is_open() {
            return true;
        }
        let completed = self.sends.outstanding() == 0;
        if completed && (self.probed || !self.is_iwarp()) {
            return true;
        }
        if !self.liveness.probing() {
            self.post_probe();
        }
        false
    }
}
