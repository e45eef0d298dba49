//! The wake-up for completions that wait in the queue and not in a socket, and for input that a poll has left
//! in a socket.
//!
//! Sockets make the attached wait set readable by themselves. But calls other than `poll` come
//! upon completions too, and a poll may leave some behind: no socket tells of those. So once the
//! consumer has asked for a wake-up, the first call that leaves completions in the queue rings the
//! bell: it signals the attached set. It is silent again when they are taken. A consumer that never
//! sleeps never pays for it.
//!
//! A socket with input left in it keeps the set readable, but tells nothing new to a consumer that waits
//! edge-triggered. So a consumer that asks for a wake-up then gets one at once.

use crate::{EventTarget, Signal};

/// See the module.
#[derive(Default)]
pub(super) struct Bell {
    /// In the attached set.
    signal: Option<Signal>,
    /// A wake-up was asked for and not given by the bell since.
    armed: bool,
    rung: bool,
}

impl Bell {
    /// Asks for the next wake-up.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }

    /// The consumer is about to sleep although a poll has left input in a socket.
    #[cold]
    pub(super) fn ring_again(&mut self) {
        if let Some(signal) = &self.signal {
            signal.set_again();
            self.rung = true;
        }
    }

    /// Signals this set from now on, whose first wake-up is asked for.
    pub(super) fn attach(&mut self, target: &EventTarget) {
        *self = Self { signal: Some(target.wait.signal(target.token)), armed: true, rung: false };
    }

    /// After every call: whether completions are `waiting` in the queue, or input in a socket.
    #[inline]
    pub(super) fn follow(&mut self, waiting: bool) {
        let late = if waiting { self.armed && !self.rung } else { self.rung };
        if late {
            self.change(waiting);
        }
    }

    #[cold]
    fn change(&mut self, waiting: bool) {
        if let Some(signal) = &self.signal {
            signal.set(waiting);
            (self.armed, self.rung) = (self.armed && !waiting, waiting);
        }
    }
}
