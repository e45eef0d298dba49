//! Queue pairs that were given up in the middle of connecting.
//!
//! The kernel's iWARP connection manager does not let go of a queue pair before the peer has
//! answered or a time of its own is over, and whoever destroys it earlier waits for that. So it is
//! put here, and destroyed when some later call finds that it can be. What is here when the process
//! ends is the kernel's.

use parking_lot::Mutex;

use super::queue_pair::QueuePair;

static WAITING: Mutex<Vec<QueuePair>> = Mutex::new(Vec::new());

/// Destroys a queue pair as soon as that takes no waiting.
pub(super) fn bury(queue_pair: QueuePair) {
    if !queue_pair.is_inherited() {
        WAITING.lock().push(queue_pair);
        clear();
    }
}

/// Destroys what can be destroyed by now.
pub(super) fn clear() {
    let is_done = |queue_pair: &mut QueuePair| queue_pair.is_inherited() || queue_pair.has_let_go();
    let done: Vec<QueuePair> = WAITING.lock().extract_if(.., is_done).collect();
    // Outside the lock.
    drop(done);
}
