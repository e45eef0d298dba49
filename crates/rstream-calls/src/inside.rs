//! Which threads have a lock of this library's lists: a fork waits for them, and signal handlers keep away.
//!
//! In a process that was forked only the thread goes on that forked. What another thread had locked would
//! stay so for ever.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

thread_local! {
    /// How many locks the thread has.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Threads that have locks, and [`FORK`].
static THREADS: AtomicU32 = AtomicU32::new(0);
/// A fork is under way: no thread takes a lock.
const FORK: u32 = 1 << 31;

/// This thread has a lock, or is about to take one. It is made before the lock, and dropped after it.
pub(crate) struct Inside;

impl Inside {
    pub(crate) fn enter() -> Self {
        if DEPTH.get() == 0 {
            while THREADS.fetch_add(1, Ordering::AcqRel) & FORK != 0 {
                THREADS.fetch_sub(1, Ordering::AcqRel);
                rustix::thread::sched_yield();
            }
        }
        DEPTH.set(DEPTH.get() + 1);
        Self
    }

    /// Whether the caller is a handler that has interrupted a holder of a lock.
    pub(crate) fn is_in() -> bool {
        DEPTH.get() > 0
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
        if DEPTH.get() == 0 {
            THREADS.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Before a fork: waits until no other thread has a lock, and lets none take one.
pub(crate) fn close() {
    let own = u32::from(Inside::is_in());
    // Another thread may be forking.
    while THREADS.fetch_or(FORK, Ordering::AcqRel) & FORK != 0 {
        rustix::thread::sched_yield();
    }
    while THREADS.load(Ordering::Acquire) & !FORK != own {
        rustix::thread::sched_yield();
    }
}

/// After a fork, in both processes.
pub(crate) fn open() {
    THREADS.fetch_and(!FORK, Ordering::AcqRel);
}
