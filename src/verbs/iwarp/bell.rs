//! The wake-up for completions that wait in the queue and not in a socket.
//!
//! Sockets make the attached wait set readable by themselves. But calls other than `poll` come
//! upon completions too, and a poll may leave some behind: no socket tells of those. So once the
//! consumer has asked for a wake-up, the first call that leaves completions in the queue rings the
//! bell, which stands in the attached set as a source of its own. It is silent again when they are
//! taken. A consumer that never sleeps never pays for it.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

use crate::verbs::{Error, Interest, Result, Token, WaitSet};

/// By what the attached set knows it; nobody reads it.
const BELL: Token = Token(0);

/// See the module.
#[derive(Default)]
pub(super) struct Bell {
    /// A wake-up was asked for and not given by the bell since.
    armed: bool,
    rung: bool,
    /// Made when it first rings: most queues never have a reason.
    eventfd: Option<OwnedFd>,
}

impl Bell {
    /// Asks for the next wake-up.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }

    /// Moves over to the set `to`, which counts as asking for the first wake-up there.
    pub(super) fn attach(&mut self, from: Option<&WaitSet>, to: &WaitSet) -> Result<()> {
        if let Some(eventfd) = &self.eventfd {
            to.add(eventfd.as_fd(), BELL, Interest::Read)?;
            if let Some(from) = from {
                // It is there since it was made, or attached.
                let _ = from.remove(eventfd.as_fd());
            }
        }
        self.arm();
        Ok(())
    }

    /// After every call: whether completions are `waiting` in the queue of the set `attached`.
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
        let outcome = if waiting { self.ring(attached) } else { self.silence() };
        if let Err(error) = outcome {
            log::error!("iwarp: the wake-up of a completion queue cannot be changed: {error}");
        }
    }

    fn ring(&mut self, attached: &WaitSet) -> Result<()> {
        let eventfd = match &mut self.eventfd {
            Some(eventfd) => eventfd,
            none => none.insert(stand_in(attached)?),
        };
        rustix::io::write(&*eventfd, &1_u64.to_ne_bytes()).map_err(Error::io("eventfd"))?;
        (self.armed, self.rung) = (false, true);
        Ok(())
    }

    fn silence(&mut self) -> Result<()> {
        let Some(eventfd) = &self.eventfd else { return Ok(()) };
        rustix::io::read(eventfd, &mut [0; size_of::<u64>()]).map_err(Error::io("eventfd"))?;
        self.rung = false;
        Ok(())
    }
}

/// An eventfd that stands in `attached`.
fn stand_in(attached: &WaitSet) -> Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let made = eventfd(0, flags).map_err(Error::io("eventfd"))?;
    attached.add(made.as_fd(), BELL, Interest::Read)?;
    Ok(made)
}
