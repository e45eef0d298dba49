//! How the reader of shared memory sleeps, and how its writer wakes it.
//!
//! The reader says that it sleeps, then looks once more. The writer writes, then looks whether the reader
//! sleeps. With a full fence in between on both sides at least one of them sees the other.
//!
//! The writer takes the word back and then notifies. In between anything may happen: the reader may find
//! the message by itself, and sleep again, before the notification comes. So a notification may wake the
//! reader for nothing, but never twice: the reader takes one each time that it goes to sleep.

use super::notifier::Notify;
use super::sync::{AtomicU32, Ordering, fence};

/// Not 0 while the reader asks for a notification. It lies in shared memory.
#[repr(transparent)]
pub(super) struct Asleep(AtomicU32);

impl Asleep {
    /// For the reader: takes one notification and asks for the next. Answers what `look` finds then, for
    /// which nobody may notify.
    pub(super) fn fall_asleep(&self, notifier: &mut impl Notify, look: impl FnOnce() -> bool) -> bool {
        notifier.take();
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        look()
    }

    /// For the writer, after writing: notifies the reader if it sleeps.
    #[inline]
    pub(super) fn wake(&self, notifier: &impl Notify) {
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::AcqRel) != 0 {
            notifier.notify();
        }
    }
}

#[cfg(test)]
impl Default for Asleep {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}
