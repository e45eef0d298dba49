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

use crate::{Signal, WaitSet};

/// See the module.
#[derive(Default)]
pub(super) struct Bell {
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
    pub(super) fn ring_again(&mut self, attached: Option<&WaitSet>) {
        let Some(attached) = attached else { return };
        match attached.signal_again(Signal::Queue) {
            Ok(()) => self.rung = true,
            Err(error) => log::error!("iwarp: the wake-up of a completion queue cannot be repeated: {error}"),
        }
    }

    /// Leaves the set `from`. Another one that is attached next has asked for its first wake-up.
    pub(super) fn leave(&mut self, from: Option<&WaitSet>) {
        if self.rung {
            self.change(false, from);
        }
        self.arm();
    }

    /// After every call: whether completions are `waiting` in the queue of the set `attached`, or input in a
    /// socket.
    #[inline]
    pub(super) fn follow(&mut self, waiting: bool, attached: Option<&WaitSet>) {
        let late = if waiting { self.armed && !self.rung } else { self.rung };
        if late {
            self.change(waiting, attached);
        }
    }

    #[cold]
    fn change(&mut self, waiting: bool, attached: Option<&WaitSet>) {
        let Some(attached) = attached else { return };
        match attached.signal(Signal::Queue, waiting) {
            Ok(()) => (self.armed, self.rung) = (self.armed && !waiting, waiting),
            Err(error) => {
                log::error!("iwarp: the wake-up of a completion queue cannot be changed: {error}");
            }
        }
    }
}
