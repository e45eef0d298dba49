//! Recognizes connections whose program waits by system calls of its own, as Rust's async-io does. Upgraded, they would
//! gain nothing: the peer rings for each message. And whoever waits for room would be told at once that there is some,
//! because the kernel has.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// So often a call that may not wait found nothing, and one of the next two something, although no wait was seen.
const WAITS: u32 = 3;
/// More calls in vain in a row: their caller does not wait, but asks again and again.
const IN_VAIN: u32 = 2;

/// What is known of a connection's waits.
#[derive(Default)]
pub(crate) struct Unseen {
    /// Whether a wait was seen.
    is_seen: AtomicBool,
    /// Calls in a row that found nothing.
    in_vain: AtomicU32,
    waits: AtomicU32,
}

impl Unseen {
    /// A call waits for it.
    pub(crate) fn note_seen(&self) {
        self.is_seen.store(true, Ordering::Relaxed);
    }

    /// A call that may not wait has found nothing.
    pub(crate) fn note_nothing(&self) {
        self.in_vain.fetch_add(1, Ordering::Relaxed);
    }

    /// A call has received something. Returns whether the program waits unseen.
    pub(crate) fn note_something(&self) -> bool {
        let in_vain = self.in_vain.swap(0, Ordering::Relaxed);
        (1..=IN_VAIN).contains(&in_vain)
            && self.waits.fetch_add(1, Ordering::Relaxed) + 1 >= WAITS
            && !self.is_seen.load(Ordering::Relaxed)
    }
}
