//! The descriptor of a completion queue: readable while there is something to read, as far as a thread may sleep on it.
//!
//! Each change is a system call. An application that calls `fi_trywait` needs changes only when it sleeps; one that has
//! the descriptor and polls needs none. So entries make it readable only if a thread may sleep, and it stays readable
//! until that has to end.

use std::sync::Arc;

use super::armed::Armed;
use rdma_verbs::{Signal, WaitSet};

/// After so many reads in a row that found nothing, the descriptor ceases to be readable: a thread may sleep without
/// `fi_trywait`. Whoever polls for short messages finds one before.
const QUIET: u32 = 64;

/// After so many reads since `fi_trywait` that found something, a thread is expected to poll. One that waits for `ofi_rxm`
/// may read some entries after `fi_trywait`, and sleep without asking again.
const READS: u32 = 16;

/// See the module.
pub(super) struct Descriptor {
    signal: Signal,
    sleepers: Sleepers,
    /// Number of calls in a row after which there was nothing to read.
    quiet: u32,
    /// Number of reads since `fi_trywait` that found something.
    reads: u32,
}

/// Which threads may sleep on the descriptor.
enum Sleepers {
    /// None: the application does not have it.
    None,
    /// Any: the application has not called `fi_trywait`.
    Unknown,
    /// Those that `fi_trywait` has told to wait, and that have not read often since. One that is woken may find that another
    /// thread was faster, and sleep on.
    Known(Armed),
}

impl Descriptor {
    /// The one that `signal` makes readable.
    pub(super) fn new(signal: Signal) -> Self {
        Self { signal, sleepers: Sleepers::None, quiet: 0, reads: 0 }
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
        self.reads = 0;
        let armed = if let Sleepers::Known(armed) = self.sleepers { armed } else { Armed::None };
        self.sleepers = Sleepers::Known(armed.with_this());
    }

    /// The calling thread has read something. If it did so often, it calls `fi_trywait` again before it sleeps.
    pub(super) fn end_sleep(&mut self) {
        self.reads = self.reads.saturating_add(1);
        if self.reads < READS {
            return;
        }
        if let Sleepers::Known(armed) = &mut self.sleepers
            && !armed.has_others()
        {
            *armed = Armed::None;
        }
    }

    /// A call has ended, after which there is something to read or not.
    pub(super) fn update(&mut self, is_ready: bool) {
        let may_sleep = match self.sleepers {
            Sleepers::None => return,
            Sleepers::Unknown => true,
            Sleepers::Known(armed) => armed != Armed::None,
        };
        if is_ready {
            self.quiet = 0;
            if may_sleep {
                self.signal.set(true);
            }
        } else {
            self.quiet = self.quiet.saturating_add(1);
            if self.quiet == QUIET {
                self.signal.set(false);
            }
        }
    }
}
