//! How the two sides leave their rings, and go on by whatever way they came from.
//!
//! The side that wishes it freezes: it neither reads nor writes, so that its peer knows what it has read. A
//! peer that grants the wish sends what is unread in its own ring again, the other way, and leaves that ring.
//! Then the side that wished leaves its own; what its peer has not read of that is still read here.
//!
//! A side that leaves says how many notifications it has sent, because those may go the same way as the bytes
//! that follow.

use super::{Reader, Writer};
use crate::sync::Ordering;
use crate::{Error, Result};

/// In the word of the wish. Anything else is no wish.
const WISHED: u32 = 1;
const GRANTED: u32 = 2;

impl Writer {
    /// Wishes to leave both rings. This side must have given back everything that it read, and must read and
    /// write nothing from now on, until [`Writer::withdraw`].
    pub fn wish(&mut self) {
        self.ring.direction().writer.0.wish.store(WISHED, Ordering::Release);
    }

    /// Takes the wish back. Answers whether the peer had not granted it: else it cannot be taken back.
    pub fn withdraw(&mut self) -> bool {
        let wish = &self.ring.direction().writer.0.wish;
        wish.compare_exchange(WISHED, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// [`Reader::has_wish`], for a side that only writes.
    #[inline]
    #[must_use]
    pub fn has_wish(&self) -> bool {
        self.ring.opposite().writer.0.wish.load(Ordering::Acquire) == WISHED
    }

    /// Leaves this ring, after so many notifications.
    pub fn leave(&mut self, notifications: u64) {
        let said = &self.ring.direction().writer.0;
        said.notifications.store(notifications, Ordering::Relaxed);
        said.left.store(1, Ordering::Release);
    }

    /// The numbers of the first byte that the peer has not read, and of the next that would be written.
    ///
    /// # Errors
    /// [`Error::Position`].
    pub fn unread(&mut self) -> Result<(u64, u64)> {
        match self.look() {
            Ok(()) | Err(Error::Closed) => Ok((self.at.read, self.at.written)),
            Err(error) => Err(error),
        }
    }

    /// Copies what was written from this number on, which [`Writer::unread`] has named, and returns how many
    /// bytes that is.
    pub fn copy_written(&mut self, from: u64, buffer: &mut [u8]) -> usize {
        let at = &self.at;
        let behind = (at.written - from.clamp(at.read, at.written)) as usize;
        let mut place = at.place;
        place.offset =
            if behind <= place.offset { place.offset } else { place.offset + place.window } - behind;
        let length = behind.min(buffer.len());
        let straight = place.straight(length);
        self.ring.copy_out(place.offset, &mut buffer[..straight]);
        self.ring.copy_out(0, &mut buffer[straight..length]);
        length
    }
}

impl Reader {
    /// Whether the peer wishes to leave both rings.
    #[must_use]
    pub fn has_wish(&self) -> bool {
        self.ring.direction().writer.0.wish.load(Ordering::Acquire) == WISHED
    }

    /// Grants the peer's wish. Answers whether it was still there.
    pub fn grant(&mut self) -> bool {
        let wish = &self.ring.direction().writer.0.wish;
        wish.compare_exchange(WISHED, GRANTED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// If the peer has left this ring: after how many notifications.
    #[must_use]
    pub fn left_after(&self) -> Option<u64> {
        let said = &self.ring.direction().writer.0;
        let has_left = said.left.load(Ordering::Acquire) != 0;
        has_left.then(|| said.notifications.load(Ordering::Relaxed))
    }
}
