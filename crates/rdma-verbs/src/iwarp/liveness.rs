//! Notices a peer's host that has vanished while bytes are on their way to it.
//!
//! Without bytes on their way the system's keep-alive does that. With them, it does not run, and
//! the system goes on retransmitting for many minutes. `TCP_USER_TIMEOUT` would end that, but it
//! would also end the connection to a peer that is alive and merely reads nothing: its window stays closed,
//! and the kernel counts that as no progress. So the connection is looked at from time to time
//! instead, and given up when retransmissions or window probes have gone unanswered for the
//! keep-alive time. A peer that reads nothing answers every probe.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use super::socket::Socket;
use super::tcp::transmission;
use crate::timer::next_tick;

/// Looks within one keep-alive time.
const CHECKS: u32 = 4;

/// What is known of one connection.
pub(super) struct Liveness {
    keepalive: Duration,
    next: Instant,
    /// The first look that found something unanswered, with no answer since.
    silent_since: Option<Instant>,
}

impl Liveness {
    /// Of a connection that stands since now.
    pub(super) fn new(keepalive: Duration) -> Self {
        Self { keepalive, next: next_tick(keepalive / CHECKS), silent_since: None }
    }

    /// When to look next.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Looks, if it is time to. Answers whether the peer's host has vanished.
    pub(super) fn has_vanished(&mut self, socket: &Socket) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = next_tick(self.keepalive / CHECKS);
        // A socket that cannot be asked has ended, and says so when it is read.
        let Ok(state) = transmission(socket.as_fd()) else { return false };
        if state.unanswered == 0 {
            self.silent_since = None;
            return false;
        }
        let since = match self.silent_since {
            Some(since) if state.since_answer >= now - since => since,
            _ => *self.silent_since.insert(now),
        };
        now - since >= self.keepalive
    }
}
