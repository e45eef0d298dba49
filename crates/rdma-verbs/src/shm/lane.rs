//! One direction of shared memory: a ring of messages with one writer and one reader.
//!
//! The reader looks at the slot that comes next, and not at an index of the writer's: a message costs
//! one cache line on its way. A bit of the slot, the lap, is 1 in the writer's first round, 0 in its
//! second, and so on; memory begins as zeros. The reader counts what it took for the writer, who
//! looks at that only when the slots that it knows to be free are used up.
//!
//! Nothing that the other side wrote is trusted: a count that cannot be makes the lane full for good,
//! words that mean nothing are [`Garbage`].

use std::ops::Deref;

use super::message::{Garbage, LAP, Message};
use super::notifier::Notify;
use super::sync::{AtomicU64, Ordering};
use super::waking::Asleep;

/// Slots of a lane. More messages than that on their way take the connection's stream.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 512 };

/// The memory of a lane. All zeros are a lane that nobody has used.
#[repr(C)]
pub(super) struct Lane {
    /// Messages taken, counted by the reader.
    taken: Line<AtomicU64>,
    asleep: Line<Asleep>,
    slots: [Slot; SLOTS],
}

/// Two cache lines, which processors fetch together: what one side writes often is not beside what
/// the other reads often.
#[repr(C, align(128))]
pub(super) struct Line<T>(pub(super) T);

#[repr(C)]
struct Slot {
    head: AtomicU64,
    body: AtomicU64,
}

/// The writing end; `L` is where the lane lies.
pub(super) struct Writer<L> {
    lane: L,
    /// Messages written.
    written: u64,
    /// Messages taken, as far as was looked.
    taken: u64,
}

/// The reading end.
pub(super) struct Reader<L> {
    lane: L,
    /// Messages taken.
    taken: u64,
}

/// The lap of the message with this number.
fn lap(number: u64) -> u64 {
    !(number / SLOTS as u64) & LAP
}

fn slot(lane: &Lane, number: u64) -> &Slot {
    &lane.slots[(number % SLOTS as u64) as usize]
}

impl<L: Deref<Target = Lane>> Writer<L> {
    pub(super) fn new(lane: L) -> Self {
        Self { lane, written: 0, taken: 0 }
    }

    /// Whether `count` messages can be written now.
    #[inline]
    pub(super) fn has_room(&mut self, count: usize) -> bool {
        let fits = |used: u64| used.saturating_add(count as u64) <= SLOTS as u64;
        if fits(self.written - self.taken) {
            return true;
        }
        let taken = self.lane.taken.0.load(Ordering::Acquire);
        // What the reader says lies between what it said before and what there is to take.
        if (self.taken..=self.written).contains(&taken) {
            self.taken = taken;
        }
        fits(self.written - self.taken)
    }

    /// Writes a message, for which there is room. What was written to memory before is seen by who
    /// reads it.
    #[inline]
    pub(super) fn write(&mut self, message: Message) {
        let (head, body) = message.encode();
        let slot = slot(&self.lane, self.written);
        slot.body.store(body, Ordering::Relaxed);
        slot.head.store(head | lap(self.written), Ordering::Release);
        self.written += 1;
    }

    /// After writing: notifies the reader if it sleeps.
    #[inline]
    pub(super) fn wake(&self, notifier: &impl Notify) {
        self.lane.asleep.0.wake(notifier);
    }
}

impl<L: Deref<Target = Lane>> Reader<L> {
    pub(super) fn new(lane: L) -> Self {
        Self { lane, taken: 0 }
    }

    /// The next message, if there is one; it stays the next until [`Reader::take`].
    #[inline]
    pub(super) fn peek(&self) -> Option<Result<Message, Garbage>> {
        let slot = slot(&self.lane, self.taken);
        let head = slot.head.load(Ordering::Acquire);
        if head & LAP != lap(self.taken) {
            return None;
        }
        Some(Message::decode(head, slot.body.load(Ordering::Relaxed)))
    }

    /// Takes the next message.
    #[inline]
    pub(super) fn take(&mut self) {
        self.taken += 1;
        self.lane.taken.0.store(self.taken, Ordering::Release);
    }

    /// Asks the writer to notify this side of what it writes from now on. Answers whether a message is
    /// there already.
    pub(super) fn fall_asleep(&self, notifier: &mut impl Notify) -> bool {
        self.lane.asleep.0.fall_asleep(notifier, || self.peek().is_some())
    }
}

#[cfg(test)]
impl Default for Lane {
    fn default() -> Self {
        let slot = |_| Slot { head: AtomicU64::new(0), body: AtomicU64::new(0) };
        Self {
            taken: Line(AtomicU64::new(0)),
            asleep: Line(Asleep::default()),
            slots: std::array::from_fn(slot),
        }
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
