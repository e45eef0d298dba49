//! The completion queue: reports finished requests, and lets a caller sleep until there are some.

use std::sync::Arc;

use crate::{Completion, Connections, MessageQueues, QpId, QueuePairs, Result, WaitSet};

/// A completion queue and the queue pairs that report to it, with their connections.
pub trait CompletionQueue: QueuePairs + MessageQueues + Connections + Send {
    /// Fills `out` with completions and returns their number. Sends what [`MessageQueues::post_corked`] has left to wait.
    /// If completions wait already, it performs no other input or output; otherwise it drives the queue pairs. 0 means
    /// that there is nothing to do until the wait set reports something.
    fn poll(&mut self, out: &mut [Completion]) -> usize;

    /// From now on `wait` becomes readable when [`CompletionQueue::poll`] has something to do, as after
    /// [`CompletionQueue::arm`]. It may not report what is there already: poll once more. It stays readable
    /// until there is nothing to poll, or until the queue is armed: polls of one thread do not hide the rest
    /// from another thread, which sleeps. Only one set can be attached: a later call replaces the earlier
    /// set.
    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()>;

    /// From now on `wait` is readable when the connection of this queue pair has something to do for
    /// [`CompletionQueue::poll`], whatever others have. Also from now on, completions that other calls leave in the
    /// queue make no set readable, not the attached one either: call [`CompletionQueue::take_waiting`] after these.
    /// Returns `false`, and does nothing, if the device has one descriptor for all queue pairs.
    fn watch(&mut self, qp: QpId, wait: &Arc<WaitSet>) -> Result<bool> {
        let _ = (qp, wait);
        Ok(false)
    }

    /// Ends [`CompletionQueue::watch`]. Returns whether the queue pair was watched there.
    fn unwatch(&mut self, qp: QpId, wait: &Arc<WaitSet>) -> bool {
        let _ = (qp, wait);
        false
    }

    /// Fills `out` with completions that wait already, without input or output, and returns their number. A device
    /// whose attached set shows these returns 0.
    fn take_waiting(&mut self, out: &mut [Completion]) -> usize {
        let _ = out;
        0
    }

    /// Requests a wake-up by the attached set. Call it when `poll` has returned 0 and the caller is about to
    /// sleep. Returns whether a completion may have arrived in between: then poll once more first. A device
    /// whose wait set always shows its state returns `false`. For connection events that wait, see
    /// [`Connections::deadline`].
    fn arm(&mut self) -> Result<bool>;

    /// Requests a wake-up again that polls may have taken since [`CompletionQueue::arm`]. For a caller that
    /// polls while other threads sleep: what comes after this call wakes them. A device whose polls take no
    /// wake-up has nothing to do.
    fn arm_for_others(&mut self) {}
}
