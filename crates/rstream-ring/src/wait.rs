//! How a side that waits for its peer sleeps, and how the peer wakes it.
//!
//! The side that waits says so in its wait word, then looks once more. The peer publishes, then looks at the
//! wait word. With the fences of [`sync`](crate::sync) in between at least one of them sees the other.
//!
//! The peer takes the word back and then notifies. In between anything may happen: the side that waited may
//! find by itself what it waited for, and sleep again, before the notification comes. So a notification may
//! end a sleep for nothing, but never two: [`arm`](crate::arm) takes one each time.

use crate::notifier::Notify;
use crate::ring::{Reader, Writer};
use crate::sync::{AtomicU32, Ordering, fence, heavy, light};

/// Neither sleeps nor polls for long: the peer makes a full fence each time that it publishes.
const AWAKE: u32 = 0;
/// Asks for a notification.
const ASLEEP: u32 = 1;
/// Polls, and will make a heavy fence before it sleeps: the peer makes a light one.
const POLLING: u32 = 2;

/// What a side says of its waiting. It lies in shared memory; what is none of the above counts as [`AWAKE`].
#[repr(transparent)]
pub(crate) struct WaitWord(AtomicU32);

impl WaitWord {
    /// For the side that waits: asks for a notification. The next look sees what was published before, or the
    /// peer sees the question. `polled`: whether [`WaitWord::poll`] was called since the last time. Returns
    /// whether this holds; if not, it holds the next time.
    pub(crate) fn ask(&self, polled: bool) -> bool {
        self.0.store(ASLEEP, Ordering::Relaxed);
        if !polled {
            fence(Ordering::SeqCst);
            return true;
        }
        // It fails in a process that was forbidden the call since it mapped the segment. Then the peer may
        // have published what no look can see yet, and not have seen the question. That is over within the
        // time for which a processor keeps a store to itself, much less than this call took.
        heavy()
    }

    /// For the side that waits: whether the peer has not answered what it asked.
    pub(crate) fn is_asking(&self) -> bool {
        self.0.load(Ordering::Relaxed) == ASLEEP
    }

    /// For the side that waits: from now on it polls, until it asks again. The peer must have prepared.
    pub(crate) fn poll(&self) {
        self.0.store(POLLING, Ordering::Relaxed);
    }

    /// For the side that waits: it does not wait any more. A notification may be under way.
    pub(crate) fn stop(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// For the peer, after publishing: notifies the side that waits if it asked.
    #[inline]
    pub(crate) fn wake(&self, notifier: &impl Notify) {
        light();
        if self.0.load(Ordering::Relaxed) != POLLING {
            self.wake_after_fence(notifier);
        }
    }

    #[inline]
    fn wake_after_fence(&self, notifier: &impl Notify) {
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) == ASLEEP
            && self.0.compare_exchange(ASLEEP, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            notifier.notify();
        }
    }
}

/// Before a sleep: takes one notification, and asks the peer for the next. It comes when `input` has
/// something to read, the end or an error, or `output` has room for so many bytes or an error. Returns
/// whether that is so already: then nobody may notify.
///
/// One call names everything that this side sleeps for, in any of its threads, because it may take the
/// notification that was meant for another.
pub fn arm(notifier: &impl Notify, input: Option<&mut Reader>, output: Option<(&mut Writer, usize)>) -> bool {
    notifier.take();
    ask(notifier, input, output)
}

/// The part of [`arm`] that follows taking a notification, for a side that wants to know whether there was
/// one.
pub fn ask(notifier: &impl Notify, input: Option<&mut Reader>, output: Option<(&mut Writer, usize)>) -> bool {
    let input = input.is_some_and(|reader| reader.arm(notifier));
    let output = output.is_some_and(|(writer, length)| writer.arm(length));
    input || output
}

#[cfg(loom)]
impl Default for WaitWord {
    fn default() -> Self {
        Self(AtomicU32::new(AWAKE))
    }
}
