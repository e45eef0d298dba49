//! What the models replace by loom's: atomics and locks; and the fences by which a side that goes to sleep
//! and a side that publishes see each other.
//!
//! Both store one word and then load the other's. With a full fence in between, at least one of them sees
//! what the other stored. A full fence in the side that publishes costs ten times what else a short message
//! costs, because it waits for cache lines that the peer has. So there is a pair of unequal fences: [`light`]
//! costs nothing, and [`heavy`] is a system call that makes every running thread of the peer's process
//! execute the full fence that `light` leaves out.

#[cfg(not(loom))]
pub(crate) use std::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
};

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Mutex, MutexGuard},
};

/// The fence of a side whose peer uses [`heavy`].
#[inline]
pub(crate) fn light() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    // What the two amount to when they meet.
    #[cfg(loom)]
    if is_prepared() {
        fence(Ordering::SeqCst);
    }
}

/// Between two looks at what another thread is about to do.
#[cfg(not(loom))]
pub(crate) fn pause(look: u32) {
    if look < 16 { std::thread::yield_now() } else { sleep(50) }
}

#[cfg(loom)]
pub(crate) fn pause(_: u32) {
    loom::thread::yield_now();
}

/// Sleeps for so many microseconds, without a cancellation point of the C library (`pthreads(7)`): a
/// cancellation would unwind through Rust.
#[cfg(not(loom))]
pub(crate) fn sleep(microseconds: u32) {
    let time = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(microseconds) * 1000 };
    let _ = rustix::thread::nanosleep(&time);
}

#[cfg(loom)]
pub(crate) fn sleep(_: u32) {
    loom::thread::yield_now();
}

#[cfg(not(loom))]
pub use process::prepare;
#[cfg(not(loom))]
pub(crate) use process::{heavy, is_prepared};

#[cfg(loom)]
pub(crate) use model::{PREPARED, heavy, is_prepared};

#[cfg(not(loom))]
mod process {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::thread::{MembarrierCommand, membarrier};

    /// Whether this process, or one that it was forked from, is registered. A fork inherits the registration.
    static PREPARED: AtomicBool = AtomicBool::new(false);

    /// Lets peers spare this process a full fence for each message (`membarrier(2)`). Segments that are
    /// mapped afterwards profit. Returns whether the system can do that.
    ///
    /// The first call takes less than a microsecond in a process of one thread, and tens of milliseconds in
    /// one of several: call it early. Nothing depends on it but speed.
    pub fn prepare() -> bool {
        let prepared = is_prepared() || membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok();
        PREPARED.store(prepared, Ordering::Relaxed);
        prepared
    }

    pub(crate) fn is_prepared() -> bool {
        PREPARED.load(Ordering::Relaxed)
    }

    /// The fence of a side whose peer uses [`light`](super::light) and has prepared. Returns whether the
    /// system made it.
    pub(crate) fn heavy() -> bool {
        membarrier(MembarrierCommand::GlobalExpedited).is_ok()
    }
}

#[cfg(loom)]
mod model {
    use std::cell::Cell;

    thread_local! {
        /// Loom runs the threads of a model in one.
        pub(crate) static PREPARED: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) fn is_prepared() -> bool {
        PREPARED.get()
    }

    pub(crate) fn heavy() -> bool {
        super::fence(super::Ordering::SeqCst);
        true
    }
}
