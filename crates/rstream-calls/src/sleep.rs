//! How a call of the application waits, in the kernel and as the kernel would: signals, time-outs,
//! cancellation and `shutdown` by another thread act as they do on a TCP socket.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use rstream_sockets::{Naps, OUTPUT_SLEEP, Wait};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::{errno, futex, real};

/// Whether calls of this socket wait.
pub(crate) fn is_blocking(fd: c_int) -> bool {
    // SAFETY: the call has no pointers.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK == 0
}

/// Until when a call waits, once it has begun to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deadline {
    /// Whether the socket was asked for its limit.
    is_known: bool,
    end: Option<Instant>,
    naps: Naps,
}

impl Deadline {
    /// What is left. `None`: there is no limit.
    fn left(&mut self, fd: c_int, output: bool) -> Option<Duration> {
        if !self.is_known {
            let limit = time_limit(fd, if output { libc::SO_SNDTIMEO } else { libc::SO_RCVTIMEO });
            self.end = limit.and_then(|limit| Instant::now().checked_add(limit));
            self.is_known = true;
        }
        self.end.map(|end| end.saturating_duration_since(Instant::now()))
    }
}

/// Gives up the lead when the sleep ends, also when it is cancelled.
struct Lead<'a>(&'a Connection);

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.0.stream.woken();
    }
}

/// What a call does that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    /// It sends.
    pub(crate) output: bool,
    /// A part was moved already: each signal ends it.
    pub(crate) has_part: bool,
}

/// Waits after a call that had nothing since `turn`.
pub(crate) fn sleep(
    connection: &Connection,
    fd: c_int,
    turn: u32,
    waiter: Waiter,
    deadline: &mut Deadline,
) -> Result<(), Errno> {
    let left = deadline.left(fd, waiter.output);
    if left == Some(Duration::ZERO) {
        return Err(Errno::AGAIN);
    }
    let wait = connection.stream.wait(turn, waiter.output)?;
    if wait != Wait::Again {
        connection.stream.count_sleep();
    }
    match wait {
        Wait::Again => Ok(()),
        Wait::Behind(turn) => connection.stream.follow_by(left, |word, most| futex::wait(word, turn, most)),
        Wait::Nap => {
            let nap = deadline.naps.length();
            let nap = left.map_or(nap, |left| left.min(nap));
            let moment = libc::timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
            // SAFETY: `moment` is valid, and nothing is asked back.
            match unsafe { libc::nanosleep(&raw const moment, std::ptr::null_mut()) } {
                0 => Ok(()),
                _ => Err(errno::errno()),
            }
        }
        Wait::Kernel => {
            let outcome = {
                let _lead = Lead(connection);
                sleep_in_kernel(connection, fd, waiter, left)
            };
            // What woke it may be the end.
            connection.settle();
            outcome
        }
    }
}

fn sleep_in_kernel(
    connection: &Connection,
    fd: c_int,
    waiter: Waiter,
    left: Option<Duration>,
) -> Result<(), Errno> {
    if left.is_some() || waiter.has_part || waiter.output && time_limit(fd, libc::SO_RCVTIMEO).is_some() {
        // As a call of a socket with a limit, and one that has moved a part, this is interrupted by every
        // signal.
        let most = if waiter.output { Some(left.unwrap_or(OUTPUT_SLEEP).min(OUTPUT_SLEEP)) } else { left };
        let limit = most.map(|most| libc::timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: most.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(std::ptr::null(), |limit| &raw const *limit);
        let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, and a time that is valid or null.
        return match unsafe { real::ppoll(&raw mut polled, 1, limit, std::ptr::null()) } {
            0 if most == left => Err(Errno::AGAIN),
            0.. => Ok(()),
            _ => Err(errno::errno()),
        };
    }
    let mut byte = 0_u8;
    // SAFETY: the buffer has one byte. It waits for a bell, and leaves it.
    match unsafe { real::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) } {
        0.. => Ok(()),
        _ => match errno::errno() {
            error @ (Errno::INTR | Errno::AGAIN) => Err(error),
            // The kernel says it once.
            error => {
                connection.stream.note_error(&connection.socket(fd), error);
                Ok(())
            }
        },
    }
}

/// A time limit of the socket.
pub(crate) fn time_limit(fd: c_int, name: c_int) -> Option<Duration> {
    let mut limit = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `limit`, which has as many.
    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, name, (&raw mut limit).cast(), &raw mut length) };
    let limit = Duration::new(limit.tv_sec.max(0) as u64, limit.tv_usec.clamp(0, 999_999) as u32 * 1000);
    (!limit.is_zero()).then_some(limit)
}
