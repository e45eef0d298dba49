//! The receiving half: what arrived in the local ring, what of it the application took, and what
//! of both is not given back yet.
//!
//! Room goes back in steps: an update is due when the bytes read and not returned reach half the
//! ring (less, where a word's field or [`GUARANTEED_ROOM`] asks for it), so a peer whose window is
//! used up hears of room as soon as everything was read, whatever the ring's size.

use super::Violation;
use super::credits::RecvCredits;
use super::ring::{Position, Ring};
use super::setup::{GUARANTEED_ROOM, Setup};
use super::words::{BYTES_MASK, Control};

/// A contiguous piece of the local receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Where it begins in the ring.
    pub offset: u32,
    /// Its length in bytes; 0 if there is nothing.
    pub length: u32,
}

/// What the application still wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Everything.
    All,
    /// What had arrived at this offset; later bytes are dropped, and their room is not given back.
    Until(u64),
    /// Nothing: what arrives counts as read.
    Nothing,
}

/// What the peer may send, and what of it is not read or not returned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Receiver {
    /// As the peer writes it; bytes count as free once returned.
    ring: Ring,
    read: Position,
    wanted: Wanted,
    credits: RecvCredits,
    byte_threshold: u32,
}

impl Receiver {
    pub(super) fn new(setup: &Setup) -> Self {
        let ring = setup.local_ring;
        Self {
            ring: Ring::new(ring),
            read: Position::default(),
            wanted: Wanted::All,
            credits: RecvCredits::new(setup.local_receives, setup.peer_receives),
            byte_threshold: (ring / 2).min(ring.saturating_sub(GUARANTEED_ROOM)).clamp(1, BYTES_MASK),
        }
    }

    /// Whether the peer may have sent one more message.
    pub(super) fn check_arrival(&self) -> Result<(), Violation> {
        self.credits.check_arrival()
    }

    /// A message arrived, allowed by [`Receiver::check_arrival`].
    pub(super) fn on_message(&mut self) {
        self.credits.arrived();
    }

    /// The message was data, placed at the next index. Nothing is taken over on an error.
    pub(super) fn on_data(&mut self, length: u32) -> Result<(), Violation> {
        let window = self.ring.room();
        if length == 0 {
            return Err(Violation::EmptyData);
        }
        if length > window {
            return Err(Violation::BeyondWindow { length, window });
        }
        if length > self.ring.until_wrap() {
            let (index, ring) = (self.ring.next().index, self.ring.size());
            return Err(Violation::OverWrap { length, index, ring });
        }
        self.ring.take(length);
        if self.wanted == Wanted::Nothing {
            self.read = self.ring.next();
        }
        Ok(())
    }

    /// The index at which the next data message begins.
    pub(super) fn landing(&self) -> u32 {
        self.ring.next().index
    }

    /// Bytes that can be read now; never more than the ring's size.
    pub(super) fn readable(&self) -> u32 {
        let end = match self.wanted {
            Wanted::Until(end) => end,
            Wanted::All | Wanted::Nothing => self.ring.next().offset,
        };
        (end - self.read.offset) as u32
    }

    /// The contiguous piece of at most `at_most` readable bytes, `skip` bytes after the read
    /// position.
    pub(super) fn span(&self, skip: usize, at_most: usize) -> Span {
        let readable = self.readable();
        let skip = u32::try_from(skip).map_or(readable, |skip| skip.min(readable));
        let start = self.read.after(skip, self.ring.size());
        let length = (readable - skip)
            .min(self.ring.size() - start.index)
            .min(u32::try_from(at_most).unwrap_or(u32::MAX));
        Span { offset: start.index, length }
    }

    /// The application took `length` bytes; no more than are readable count.
    pub(super) fn consume(&mut self, length: usize) {
        let readable = self.readable();
        let length = u32::try_from(length).map_or(readable, |length| length.min(readable));
        self.read = self.read.after(length, self.ring.size());
    }

    /// The application wants nothing more, not even what is there.
    pub(super) fn discard(&mut self) {
        self.wanted = Wanted::Nothing;
        self.read = self.ring.next();
    }

    /// The application wants what is there and nothing that comes.
    pub(super) fn keep(&mut self) {
        if self.wanted == Wanted::All {
            self.wanted = Wanted::Until(self.ring.next().offset);
        }
    }

    /// Whether the application wants what comes.
    pub(super) fn is_open(&self) -> bool {
        self.wanted == Wanted::All
    }

    /// Whether an update is due: for receives, or for room if the peer will write more.
    pub(super) fn update_due(&self, peer_writes: bool) -> bool {
        self.credits.due() || (peer_writes && self.unreturned() >= self.byte_threshold)
    }

    /// What the next control word gives back.
    pub(super) fn returnable(&self) -> Control {
        Control {
            bytes: self.unreturned().min(BYTES_MASK),
            receives: self.credits.returnable(),
            ..Control::default()
        }
    }

    /// A control word gives back what [`Receiver::returnable`] said.
    pub(super) fn returned(&mut self, control: Control) {
        self.ring.free(control.bytes);
        self.credits.returned(control.receives);
    }

    /// Bytes of all data messages so far.
    pub(super) fn received_bytes(&self) -> u64 {
        self.ring.next().offset
    }

    /// Bytes read whose room the peer does not know of.
    fn unreturned(&self) -> u32 {
        (self.read.offset - self.ring.freed()) as u32
    }
}
