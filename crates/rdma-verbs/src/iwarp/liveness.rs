//! Detects that the peer's host has vanished while data sent to it is not acknowledged.
//!
//! While all data is acknowledged, the keep-alive timer of the system does that. While some is not, that
//! timer does not run, and the system retransmits for many minutes. `TCP_USER_TIMEOUT` would shorten this,
//! but it would also end the connection to a peer that is alive and does not read: its window stays closed,
//! and the kernel counts that as no progress. So this module checks the connection at intervals, and reports
//! the host as vanished if retransmissions or window probes have not been answered for the keep-alive time. A
//! peer that does not read answers every probe.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use super::socket::Socket;
use super::tcp::transmission;
use crate::timer::next_tick;

/// Number of checks within one keep-alive time.
const CHECKS: u32 = 4;

/// The checks of one connection.
pub(super) struct Liveness {
    keepalive: Duration,
    next: Instant,
    /// Time of the first check that found something unanswered, if nothing has been answered since.
    silent_since: Option<Instant>,
}

impl Liveness {
    /// For a connection that has just been established.
    pub(super) fn new(keepalive: Duration) -> Self {
        Self { keepalive, next: next_tick(keepalive / CHECKS), silent_since: None }
    }

    /// Time of the next check.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Checks, if it is time to. Returns whether the peer's host has vanished.
    pub(super) fn has_vanished(&mut self, socket: &Socket) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = next_tick(self.keepalive / CHECKS);
        // If the socket has no information, its connection has ended; reading from it reports that.
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
