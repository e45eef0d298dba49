//! Which process created an object.
//!
//! A child of `fork` has copies of its parent's objects, but shares the kernel's objects behind them
//! (sockets, epoll sets, timers, queue pairs). The child may close its descriptors and free its memory. Every
//! other system call on them affects the parent. Each object therefore records its [`Maker`], and checks it
//! before such a call.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Records that this process is a new child. Call it in the child of every `fork`.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that created an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker(u32);

impl Maker {
    /// This process.
    #[must_use]
    pub fn this_process() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether it is this process, rather than a parent of this process.
    #[must_use]
    #[inline]
    pub fn is_this_process(self) -> bool {
        self == Self::this_process()
    }
}
