//! Timers as sources of wait sets, and times that the timers of many connections share.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use crate::descriptor::Descriptor;
use crate::process::Maker;
use crate::{Error, Result};

/// A timer with a descriptor. It becomes readable when the timer expires, and stays so until the timer is set
/// again or [`Timer::take`] is called. A child of the process that created it shares it, so setting it there
/// does nothing.
#[derive(Debug)]
pub struct Timer {
    descriptor: Descriptor,
    maker: Maker,
}

impl Timer {
    /// A timer that is stopped.
    pub fn new() -> Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(Error::io("timerfd_create"))?;
        Ok(Self { descriptor: descriptor.into(), maker: Maker::this_process() })
    }

    /// Makes it expire once, at the time `at`. `None` stops it.
    pub fn set(&self, at: Option<Instant>) -> Result<()> {
        let left = at.map(|at| at.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1)));
        self.start(left.unwrap_or_default(), Duration::ZERO)
    }

    /// Makes it expire periodically, every `interval` and at most once per millisecond.
    pub fn repeat(&self, interval: Duration) -> Result<()> {
        let interval = interval.max(Duration::from_millis(1));
        self.start(interval, interval)
    }

    /// Whether it expired since the last call.
    #[must_use]
    pub fn take(&self) -> bool {
        rustix::io::read(&self.descriptor, &mut [0; 8]).is_ok()
    }

    fn start(&self, first: Duration, then: Duration) -> Result<()> {
        if !self.maker.is_this_process() {
            return Ok(());
        }
        let times = Itimerspec { it_interval: timespec(then), it_value: timespec(first) };
        rustix::time::timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &times)
            .map_err(Error::io("timerfd_settime"))?;
        Ok(())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Converts a duration.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

/// The next multiple of `interval`, counted from one start time for the whole process: connections with the
/// same interval are woken together.
pub(crate) fn next_tick(interval: Duration) -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let interval = interval.max(Duration::from_millis(1));
    let ticks = START.elapsed().as_nanos() / interval.as_nanos() + 1;
    later(*START, interval.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX)))
}

/// The time so long after another one. If no clock can show it, the time in a hundred years.
pub(crate) fn later(than: Instant, by: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    than.checked_add(by).unwrap_or_else(|| than + NEVER)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Interest, WaitSet};

    #[test]
    fn a_timer_expires_once_or_periodically() {
        let (set, timer) = (Arc::new(WaitSet::new().unwrap()), Timer::new().unwrap());
        set.add(timer.as_fd(), set.token(), Interest::Read).unwrap();
        let wakes = |within| set.wait(Some(within), &mut Vec::new()).unwrap();
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(20));
        assert!(!wakes(short), "it is stopped");
        let start = Instant::now();
        timer.set(Some(start + short)).unwrap();
        assert!(wakes(long) && start.elapsed() >= short);
        assert!(wakes(Duration::ZERO), "it stays readable");
        assert!(timer.take() && !timer.take() && !wakes(short));
        timer.set(Some(start)).unwrap();
        assert!(wakes(long), "a time in the past");
        timer.set(None).unwrap();
        assert!(!wakes(short), "stopped");
        timer.repeat(short).unwrap();
        assert!(wakes(long) && timer.take() && wakes(long) && timer.take());
    }
}
