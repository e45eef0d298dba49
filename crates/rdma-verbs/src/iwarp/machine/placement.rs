//! Where received payload goes.

use std::io;
use std::os::fd::BorrowedFd;

use crate::{Memory, Place};

/// Where the next bytes of payload belong.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'m> {
    /// Where it goes.
    pub target: Target<'m>,
    /// Number of bytes, more than 0.
    pub length: usize,
}

/// Where payload goes.
#[derive(Debug, Clone, Copy)]
pub enum Target<'m> {
    /// To this offset of a region's memory.
    Memory(&'m Memory, u64),
    /// To the beginning of a place.
    Place(Place),
}

impl Placement<'_> {
    /// Whether it is this place, with its length.
    pub(super) fn is(&self, place: Place) -> bool {
        matches!(self.target, Target::Place(whole) if whole.part(0, self.length) == place)
    }

    /// Copies bytes there, up to `length`. Returns their number.
    pub fn fill(&self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.length);
        match self.target {
            // It cannot fail: the segment was checked against the region.
            Target::Memory(memory, offset) => memory.write(offset, &bytes[..count]).map_or(0, |()| count),
            Target::Place(place) => place.fill(&bytes[..count]),
        }
    }

    /// Receives from `socket` without waiting: payload into its place, and what follows into `rest`.
    ///
    /// # Errors
    /// As for [`Memory::receive`].
    pub fn receive(&self, socket: BorrowedFd<'_>, rest: &mut [u8]) -> io::Result<usize> {
        match self.target {
            Target::Memory(memory, offset) => memory.receive(socket, offset, self.length, rest),
            Target::Place(place) => place.receive(socket, self.length, rest),
        }
    }
}

/// The contiguous bytes at `offset` of the concatenated `places`; `None` at the end.
pub(super) fn place_at<'p>(places: impl IntoIterator<Item = &'p Place>, mut offset: u64) -> Option<Place> {
    for place in places {
        match offset.checked_sub(place.len() as u64) {
            Some(beyond) => offset = beyond,
            // Less than the place's length, which is a `usize`.
            None => return Some(place.from(offset as usize)),
        }
    }
    None
}
