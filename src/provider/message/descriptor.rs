//! The descriptor of a completion queue: readable while there is something to read, as far as a thread may sleep on it.
//!
//! Each change is a system call. An application that calls `fi_trywait` needs changes only when it sleeps; one that has
//! the descriptor and polls needs none. So entries make it readable only if a thread may sleep, and it stays readable
//! until that has to end.

use std::sync::Arc;

use super::armed::Armed;
use rdma_verbs::{Signal, WaitSet};

/// After so many reads in a row that found nothing, a thread that called `fi_trywait` is expected to poll, and the descriptor
/// ceases to be readable: a thread may sleep without `fi_trywait`. Whoever polls for short messages finds one before.
///
/// Reads that find something do not count: `ofi_rxm` may read after `fi_trywait`, send for what it has found, and sleep
/// without asking again.
const QUIET: u32 = 64;

/// See the module.
pub(super) struct Descriptor {
    signal: Signal,
    sleepers: Sleepers,
    /// Number of reads in a row, since `fi_trywait` if that was called, that found nothing.
    quiet: u32,
}

/// Which threads may sleep on the descriptor.
enum Sleepers {
    /// None: the application does not have it.
    None,
    /// Any: the application has not called `fi_trywait`.
    Unknown,
    /// Those that `fi_trywait` has told to wait, and that do not poll since. One that is woken may find that another thread
    /// was faster, and sleep on.
    Known(Armed),
}

impl Descriptor {
    /// The one that `signal` makes readable.
    pub(super) fn new(signal: Signal) -> Self {
        Self { signal, sleepers: Sleepers::None, quiet: 0 }
    }

    pub(super) fn wait_set(&self) -> &Arc<WaitSet> {
        self.signal.wait_set()
    }

    /// The application gets it.
    pub(super) fn expose(&mut self) {
        if let Sleepers::None = self.sleepers {
            self.sleepers = Sleepers::Unknown;
        }
    }

    /// `fi_trywait` found nothing to read: the calling thread may sleep until there is something.
    pub(super) fn begin_sleep(&mut self) {
        self.signal.set(false);
        self.quiet = 0;
        let armed = if let Sleepers::Known(armed) = self.sleepers { armed } else { Armed::None };
        self.sleepers = Sleepers::Known(armed.with_this());
    }

    /// The calling thread has read, and found something or nothing.
    #[inline]
    pub(super) fn has_read(&mut self, found: bool) {
        if found {
            self.quiet = 0;
            return;
        }
        self.quiet = self.quiet.saturating_add(1);
        if self.quiet == QUIET {
            self.signal.set(false);
            self.end_sleep();
        }
    }

    /// The calling thread calls `fi_trywait` again before it sleeps.
    fn end_sleep(&mut self) {
        if let Sleepers::Known(armed) = &mut self.sleepers
            && !armed.has_others()
        {
            *armed = Armed::None;
        }
    }

    /// A call has ended, after which there is something to read or not.
    pub(super) fn update(&mut self, is_ready: bool) {
        let may_sleep = match self.sleepers {
            Sleepers::None => false,
            Sleepers::Unknown => true,
            Sleepers::Known(armed) => armed != Armed::None,
        };
        if is_ready && may_sleep {
            self.signal.set(true);
        }
    }
}
