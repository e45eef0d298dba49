//! A lock in memory that processes share, whose owner may die.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::jitter;

/// Mutual exclusion between the threads of all processes that map it. All zeros are a free lock.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct ForkLock(AtomicU32);

/// The lock is taken.
pub(crate) struct Locked<'a>(&'a ForkLock);

/// Why a lock cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Busy {
    /// This thread has it: a signal handler interrupted a call.
    Interrupted,
    /// Its owner died: what it guards is not valid any more.
    Lost,
}

const FREE: u32 = 0;
/// Beside the owner's thread: others wait.
const WAITERS: u32 = 1 << 31;
/// The owner died.
const LOST: u32 = u32::MAX;
/// Looks at a lock that another thread has, before a sleep. It is held for the time of a copy.
const LOOKS: u32 = 100;
/// After so long a wait, looks whether the owner lives.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl ForkLock {
    /// Waits for the lock.
    #[inline]
    pub(crate) fn lock(&self) -> Result<Locked<'_>, Busy> {
        let own = thread();
        match self.0.compare_exchange(FREE, own, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Locked(self)),
            Err(_) => self.wait(own),
        }
    }

    #[cold]
    fn wait(&self, own: u32) -> Result<Locked<'_>, Busy> {
        for look in 0.. {
            let word = self.0.load(Ordering::Relaxed);
            match word {
                LOST => return Err(Busy::Lost),
                FREE => {
                    // Others may sleep still.
                    let taken = if look < LOOKS { own } else { own | WAITERS };
                    if self.0.compare_exchange(FREE, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                        return Ok(Locked(self));
                    }
                }
                _ if word & !WAITERS == own => return Err(Busy::Interrupted),
                _ if look < LOOKS => std::hint::spin_loop(),
                _ => self.sleep(word),
            }
        }
        Err(Busy::Lost)
    }

    fn sleep(&self, word: u32) {
        let waited = word | WAITERS;
        if word != waited
            && self.0.compare_exchange(word, waited, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        if futex::wait(&self.0, futex::Flags::empty(), waited, Some(&PATIENCE)) == Err(Errno::TIMEDOUT)
            && !is_alive(word & !WAITERS)
            && self.0.compare_exchange(waited, LOST, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            let _ = futex::wake(&self.0, futex::Flags::empty(), u32::MAX >> 1);
        }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        jitter();
        if self.0.0.swap(FREE, Ordering::Release) & WAITERS != 0 {
            let _ = futex::wake(&self.0.0, futex::Flags::empty(), 1);
        }
    }
}

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The number that the system has given the calling thread.
#[inline]
pub(crate) fn thread() -> u32 {
    THREAD.with(|known| {
        if known.get() == 0 {
            known.set(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs());
        }
        known.get()
    })
}

/// To be called in a process that was forked: its thread has another number than the one that forked.
pub(crate) fn forget_thread() {
    THREAD.with(|known| known.set(0));
}

/// Whether a thread with this number runs.
pub(crate) fn is_alive(thread: u32) -> bool {
    let number = i32::try_from(thread).ok().and_then(Pid::from_raw);
    number.is_some_and(|number| test_kill_process(number) != Err(Errno::SRCH))
}
