//! Which process made an object.
//!
//! A child of `fork` has copies of its parent's objects, but the kernel's side of them (sockets, epoll sets,
//! timers, queue pairs) is shared. The child may close its descriptors and free its memory; every other
//! system call on them changes what the parent has. So an object notes its [`Maker`], and asks it first.

use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Notes that this process is a new child: call it in the child of every `fork`.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that made an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker(u32);

impl Maker {
    /// This process.
    #[must_use]
    pub fn this_process() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is it, and no child of it.
    #[must_use]
    #[inline]
    pub fn is_this_process(self) -> bool {
        self == Self::this_process()
    }
}
