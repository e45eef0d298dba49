//! Signals the attached wait set for completions that wait in the queue, and for input that a poll left in a
//! socket, or output that a socket may take.
//!
//! Sockets make the attached wait set readable by themselves. But calls other than `poll` also find
//! completions, and a poll may leave some in the queue; no socket is readable for those. So after the
//! consumer has armed the queue, the first call that leaves completions in the queue signals the attached
//! set. The signal is switched off when they have been polled. A consumer that never sleeps pays nothing for
//! it, and one that takes completions after each call has no signal for them.
//!
//! A socket with input left in it, or with room for output, keeps the set readable, but an edge-triggered consumer gets no new event.
//! So a consumer that arms the queue in this state is signaled at once.

use crate::{EventTarget, Signal};

/// The signal of one completion queue.
#[derive(Default)]
pub(super) struct Notification {
    /// In the attached set.
    signal: Option<Signal>,
    /// Whether the queue was armed and has not been signaled since.
    armed: bool,
    signaled: bool,
}

impl Notification {
    /// Arms the next signal.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }

    /// Signals again for a consumer that is about to sleep although a poll left something to do.
    #[cold]
    pub(super) fn notify_again(&mut self) {
        if let Some(signal) = &self.signal {
            signal.set_again();
            self.signaled = true;
        }
    }

    /// Attaches this set in place of the former one, and arms the queue.
    pub(super) fn attach(&mut self, target: &EventTarget) {
        *self = Self { signal: Some(target.wait.signal(target.token)), armed: true, signaled: false };
    }

    /// Called at the end of every call. `waiting`: completions wait in the queue, or a poll left something to do.
    #[inline]
    pub(super) fn update(&mut self, waiting: bool) {
        let late = if waiting { self.armed && !self.signaled } else { self.signaled };
        if late {
            self.change(waiting);
        }
    }

    #[cold]
    fn change(&mut self, waiting: bool) {
        if let Some(signal) = &self.signal {
            signal.set(waiting);
            (self.armed, self.signaled) = (self.armed && !waiting, waiting);
        }
    }
}
