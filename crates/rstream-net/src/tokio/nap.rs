//! A sleep of a task that nobody can wake. It needs no timer of the runtime, which not every runtime has.

use std::io;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use ::tokio::io::{AsyncRead, ReadBuf};
use ::tokio::net::unix::pipe::Receiver;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// How long one is.
const NANOSECONDS: i64 = 500_000;

/// There is a timer while somebody naps. To the reactor it is what any pipe is: something that becomes
/// readable.
#[derive(Debug, Default)]
pub(super) struct Nap(Mutex<Option<Receiver>>);

impl Nap {
    /// Ready at the end of a nap, which the first call begins.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut nap = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut timer = match nap.take() {
            Some(timer) => timer,
            None => timer()?,
        };
        let mut expirations = [0; 8];
        match Pin::new(&mut timer).poll_read(cx, &mut ReadBuf::new(&mut expirations)) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => {
                *nap = Some(timer);
                Poll::Pending
            }
        }
    }
}

fn timer() -> io::Result<Receiver> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let moment = Itimerspec { it_interval: once, it_value: Timespec { tv_sec: 0, tv_nsec: NANOSECONDS } };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &moment)?;
    Receiver::from_owned_fd_unchecked(timer)
}
