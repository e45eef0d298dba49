//! Wakes a sleeper from time to time, so that a peer's host is probed also for one that waits for
//! nothing but completions: without traffic there are none.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::{Error, Result};

/// A timer that is readable once an interval has passed.
pub(super) struct Pulse {
    timer: OwnedFd,
}

impl Pulse {
    /// One that does not run yet.
    pub(super) fn new() -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags).map_err(error)?;
        Ok(Self { timer })
    }

    /// Beats four times in the keep-alive time: a look that comes a little late still leaves two before
    /// twice that time is over.
    pub(super) fn start(&self, keepalive: Duration) -> Result<()> {
        let interval = (keepalive / 4).max(Duration::from_millis(1));
        let interval = Timespec {
            tv_sec: interval.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: interval.subsec_nanos().into(),
        };
        let beats = Itimerspec { it_interval: interval, it_value: interval };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &beats).map_err(error)?;
        Ok(())
    }

    /// Whether it has beaten since the last call.
    pub(super) fn take(&self) -> bool {
        rustix::io::read(&self.timer, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Pulse {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

fn error(errno: rustix::io::Errno) -> Error {
    Error::Io { what: "timer", source: errno.into() }
}
