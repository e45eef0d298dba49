//! The completion queue: what is done, and how to sleep until something is.

use std::sync::Arc;

use crate::{Completion, Connections, MessageQueues, QueuePairs, Result, WaitSet};

/// A completion queue and the queue pairs that report to it, with their connections.
pub trait CompletionQueue: QueuePairs + MessageQueues + Connections + Send {
    /// Fills `out` with completions and answers how many; completions that are already there come
    /// without input or output, and only if there are none the queue pairs are driven. 0 means
    /// that nothing is left to do until the wait set says so.
    fn poll(&mut self, out: &mut [Completion]) -> usize;

    /// From now on `wait` becomes readable when [`CompletionQueue::poll`] would do something, as after
    /// [`CompletionQueue::arm`]. Of what is there already it may not tell: poll once more. Several sets are
    /// not supported: a later call replaces the earlier set.
    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()>;

    /// Asks for the next wake-up on the attached set; call it when `poll` answered 0 and the caller
    /// is about to sleep. Answers whether a completion may have come in between: then poll once
    /// more first. Devices whose wait set follows their state by itself answer `false`. Of connection events
    /// that wait [`Connections::deadline`] tells.
    fn arm(&mut self) -> Result<bool>;
}
