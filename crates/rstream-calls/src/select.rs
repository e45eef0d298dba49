//! `select`: the same wait as `poll`, for sets of numbers.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use libc::{fd_set, pollfd, sigset_t, timespec, timeval};
use rustix::io::Errno;

use crate::errno::set_errno;
use crate::{poll, real, table};

const IN: i16 = libc::POLLIN | libc::POLLRDNORM;
const OUT: i16 = libc::POLLOUT | libc::POLLWRNORM;
/// What counts as readable, and as writable.
const READABLE: i16 = IN | libc::POLLHUP | libc::POLLERR;
const WRITABLE: i16 = OUT | libc::POLLERR;

/// The application's three sets.
#[derive(Clone, Copy)]
struct Sets([*mut fd_set; 3]);

const WORD: usize = usize::BITS as usize;

impl Sets {
    /// The word in which a descriptor's bit is. A set has as many words as the number of descriptors says,
    /// which can be more than `fd_set` has.
    unsafe fn word(self, set: usize, fd: usize) -> Option<*mut usize> {
        // SAFETY: the application promises sets for so many descriptors.
        (!self.0[set].is_null()).then(|| unsafe { self.0[set].cast::<usize>().add(fd / WORD) })
    }

    unsafe fn has(self, set: usize, fd: usize) -> bool {
        // SAFETY: as above.
        unsafe { self.word(set, fd).is_some_and(|word| *word >> (fd % WORD) & 1 != 0) }
    }

    unsafe fn put(self, set: usize, fd: usize, is_in: bool) {
        // SAFETY: as above.
        unsafe {
            if let Some(word) = self.word(set, fd) {
                *word = *word & !(1 << (fd % WORD)) | usize::from(is_in) << (fd % WORD);
            }
        }
    }

    /// What is asked of each descriptor.
    unsafe fn asked(self, count: usize) -> Vec<pollfd> {
        let asked = |fd| {
            // SAFETY: as above.
            let has = |set| unsafe { self.has(set, fd) };
            let events = [IN, OUT, libc::POLLPRI].into_iter().enumerate();
            let events = events.fold(0, |events, (set, event)| events | if has(set) { event } else { 0 });
            (events != 0).then_some(pollfd { fd: fd as c_int, events, revents: 0 })
        };
        (0..count).filter_map(asked).collect()
    }

    /// Keeps those that are ready. Returns how many bits that are.
    unsafe fn answer(self, polled: &[pollfd]) -> c_int {
        let mut bits = 0;
        for polled in polled {
            let ready = [READABLE, WRITABLE, libc::POLLPRI].into_iter().enumerate();
            for (set, ready) in ready {
                // SAFETY: as above.
                unsafe {
                    let is_ready = self.has(set, polled.fd as usize) && polled.revents & ready != 0;
                    self.put(set, polled.fd as usize, is_ready);
                    bits += c_int::from(is_ready);
                }
            }
        }
        bits
    }
}

/// How many descriptors a set may have bits for. The kernel looks at no bits beyond its table, and programs
/// rely on that: they pass the most that there can be.
fn clamp(count: usize) -> usize {
    if count <= libc::FD_SETSIZE {
        return count;
    }
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse::<usize>().ok());
    count.min(numbers.max().map_or(0, |highest| highest + 1).max(libc::FD_SETSIZE))
}

/// Waits if any of the descriptors needs more than the kernel's call.
unsafe fn wait(count: c_int, sets: Sets, timeout: Option<Duration>, mask: *const sigset_t) -> Option<c_int> {
    let count = usize::try_from(count).ok()?;
    let is_watched = (0..count.min(table::length())).any(|fd| {
        table::get(fd as c_int).is_some()
            // SAFETY: the descriptor is open, so that the kernel looks at its bit too.
            && (0..3).any(|set| unsafe { sets.has(set, fd) })
    });
    if !is_watched {
        return None;
    }
    // SAFETY: the application promises sets for so many descriptors.
    let mut polled = ManuallyDrop::new(unsafe { sets.asked(clamp(count)) });
    let found = poll::wait(&mut polled, timeout, mask);
    let is_bad = polled.iter().any(|polled| polled.revents & libc::POLLNVAL != 0);
    let returned = match found {
        ..0 => found,
        _ if is_bad => {
            set_errno(Errno::BADF);
            -1
        }
        // SAFETY: as above.
        _ => unsafe { sets.answer(&polled) },
    };
    drop(ManuallyDrop::into_inner(polled));
    Some(returned)
}

/// As Linux takes it: microseconds may make more than a second.
fn duration(time: &timeval) -> Result<Duration, Errno> {
    match (u64::try_from(time.tv_sec), u64::try_from(time.tv_usec)) {
        (Ok(seconds), Ok(micros)) => {
            Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
        }
        _ => Err(Errno::INVAL),
    }
}

/// `select`.
pub unsafe fn select(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    other: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the application's arguments, here and below.
    unsafe {
        let sets = Sets([readable, writable, other]);
        let begin = Instant::now();
        let Ok(limit) = timeout.as_ref().map(duration).transpose() else {
            return real::select(count, readable, writable, other, timeout);
        };
        match wait(count, sets, limit, std::ptr::null()) {
            None => real::select(count, readable, writable, other, timeout),
            Some(found) => {
                // Linux says what is left.
                if let (Some(timeout), Some(limit)) = (timeout.as_mut(), limit) {
                    let left = limit.saturating_sub(begin.elapsed());
                    (timeout.tv_sec, timeout.tv_usec) = (left.as_secs() as i64, left.subsec_micros().into());
                }
                found
            }
        }
    }
}

/// `pselect`.
pub unsafe fn pselect(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    other: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        let sets = Sets([readable, writable, other]);
        let limit = timeout.as_ref().map(poll::duration).transpose();
        let found = limit.ok().and_then(|limit| wait(count, sets, limit, mask));
        found.unwrap_or_else(|| real::pselect(count, readable, writable, other, timeout, mask))
    }
}
