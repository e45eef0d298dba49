//! The descriptor of a completion queue: readable while there is something to read, if the application has it.
//!
//! Each change is a system call. An application that calls `fi_trywait` needs changes only when it sleeps; one that has
//! the descriptor and polls needs none. So the descriptor stays readable until `fi_trywait` finds nothing to read, or
//! many reads do.

use std::sync::Arc;

use rdma_verbs::{Signal, WaitSet};

/// After so many reads in a row that found nothing, by whichever threads, the descriptor ceases to be readable. Otherwise a
/// thread that sleeps without `fi_trywait` would be woken without end. Whoever polls for short messages finds one before.
const QUIET: u32 = 64;

/// See the module.
pub(super) struct Descriptor {
    signal: Signal,
    /// The application has it. From then on a thread may sleep on it at any time. That it has read since `fi_trywait` does
    /// not say that it asks again: `ofi_rxm` may read, answer, and let its caller sleep.
    is_exposed: bool,
    /// Number of reads in a row that found nothing, since the descriptor was made readable or unreadable.
    quiet: u32,
}

impl Descriptor {
    /// The one that `signal` makes readable.
    pub(super) fn new(signal: Signal) -> Self {
        Self { signal, is_exposed: false, quiet: 0 }
    }

    pub(super) fn wait_set(&self) -> &Arc<WaitSet> {
        self.signal.wait_set()
    }

    /// The application gets it.
    pub(super) fn expose(&mut self) {
        self.is_exposed = true;
    }

    /// `fi_trywait` found nothing to read: the calling thread may sleep until there is something.
    pub(super) fn begin_sleep(&mut self) {
        self.set(false);
        self.is_exposed = true;
    }

    /// A thread has read, and found something or nothing.
    #[inline]
    pub(super) fn has_read(&mut self, found: bool) {
        self.quiet = if found { 0 } else { self.quiet.saturating_add(1) };
        if self.quiet == QUIET {
            self.signal.set(false);
        }
    }

    /// A call has ended, after which there is something to read or not.
    pub(super) fn update(&mut self, is_ready: bool) {
        if is_ready && self.is_exposed {
            self.set(true);
        }
    }

    fn set(&mut self, is_readable: bool) {
        self.signal.set(is_readable);
        self.quiet = 0;
    }
}
