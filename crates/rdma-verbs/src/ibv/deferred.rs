//! Deferred destruction of queue pairs that were given up in the middle of connecting.
//!
//! The kernel's iWARP connection manager holds a queue pair until the peer has answered or a time-out of its
//! own has passed. A thread that destroys the queue pair earlier blocks for as long. So such queue pairs wait
//! here, and a later call destroys those that can be destroyed at once. The kernel destroys the rest when the
//! process ends.

use parking_lot::Mutex;

use super::queue_pair::QueuePair;

static WAITING: Mutex<Vec<QueuePair>> = Mutex::new(Vec::new());

/// Destroys a queue pair now or, if that would block, by a later call of [`retry`].
pub(super) fn destroy(queue_pair: QueuePair) {
    if !queue_pair.is_inherited() {
        WAITING.lock().push(queue_pair);
        retry();
    }
}

/// Destroys the waiting queue pairs that can be destroyed without blocking.
pub(super) fn retry() {
    let is_done = |queue_pair: &mut QueuePair| queue_pair.is_inherited() || queue_pair.has_let_go();
    let done: Vec<QueuePair> = WAITING.lock().extract_if(.., is_done).collect();
    // Dropped after the lock is released.
    drop(done);
}
