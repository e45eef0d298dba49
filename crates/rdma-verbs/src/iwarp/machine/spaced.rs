//! Payload of several segments that is received straight into its place with one call.
//!
//! Most peers cut a message into segments of equal length and send nothing between them. So the place of each later
//! payload is known before its header arrives. If a header says something else, the bytes behind it are in the wrong
//! place. They are still in the memory of that message, and are copied out of it again.
//!
//! This needs the length of the message, because the bytes behind its end belong to the application. It is known of a
//! Read Response, and of a Send if the peer says so (see [`marks`](iwarp_wire::rdmap::marks)). It is not known of a Write.

use std::io;
use std::iter;
use std::os::fd::BorrowedFd;

use super::{Fault, Machine, Sink, Violation};
use crate::Place;

/// Payload that is expected, with a gap behind that of each segment: its trailer and the header of the next one. It holds
/// until the next call that changes the machine.
#[derive(Debug, Clone, Copy)]
pub struct Spaced {
    /// Where all of it goes.
    place: Place,
    /// Payload of the segment that arrives, in bytes.
    first: usize,
    /// Payload of each segment behind it; the last may have less.
    each: usize,
    /// Length of a gap.
    gap: usize,
}

impl Spaced {
    /// Shortest payload of segments that are received so, in bytes. Of shorter ones, a call that has room for what follows
    /// one segment takes more.
    const SHORTEST: usize = 1000;

    /// `None` if the segments are too short, or if the place has no room for more than the one that arrives.
    pub(super) fn new(place: Place, first: usize, each: usize, gap: usize) -> Option<Self> {
        (place.len() > first && each >= Self::SHORTEST).then_some(Self { place, first, each, gap })
    }

    /// Number of bytes that are received at most, gaps included.
    #[must_use]
    pub fn length(&self) -> usize {
        self.places().map(|place| place.len() + self.gap).sum()
    }

    /// Where the payload of each segment goes, of as many as are received with one call.
    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let Self { place, first, each, .. } = *self;
        let later = (0..Place::MOST_SPACED - 1).map(move |at| place.part(first + at * each, each));
        iter::once(place.part(0, first)).chain(later.take_while(|place| !place.is_empty()))
    }

    /// Receives from `socket` without waiting: payload into its places, and the gaps into `gaps`, one behind the other.
    ///
    /// # Errors
    /// As for [`crate::Memory::receive`].
    pub fn receive(&self, socket: BorrowedFd<'_>, gaps: &mut [u8]) -> io::Result<usize> {
        Place::receive_spaced(self.places(), self.gap, socket, gaps)
    }

    /// Copies bytes as [`Spaced::receive`] receives them. Returns their number.
    pub fn fill(&self, bytes: &[u8], gaps: &mut [u8]) -> usize {
        let mut left = bytes;
        for (place, gap) in self.places().zip(gaps.chunks_exact_mut(self.gap)) {
            left = &left[place.fill(left)..];
            let count = gap.len().min(left.len());
            gap[..count].copy_from_slice(&left[..count]);
            left = &left[count..];
        }
        bytes.len() - left.len()
    }
}

impl Machine {
    /// [`Machine::target`] with the payload of segments behind it. `None` unless a response, or a message of known length,
    /// arrives in several segments and in one place.
    #[must_use]
    pub fn spaced_target(&self) -> Option<Spaced> {
        self.receiver.spaced_target(&self.reads)
    }

    /// Takes the `count` bytes that [`Spaced::receive`] received, with the gaps in `gaps`, instead of
    /// [`Machine::placed`] and [`Machine::feed`].
    ///
    /// # Errors
    /// As for [`Machine::feed`].
    #[inline(never)]
    pub fn take_spaced(
        &mut self,
        spaced: &Spaced,
        gaps: &[u8],
        count: usize,
        sink: &mut impl Sink,
    ) -> Result<(), Fault> {
        let mut left = count;
        let is_response = self.receiver.is_in_response();
        let mut pieces = spaced.places().zip(gaps.chunks_exact(spaced.gap)).peekable();
        while left > 0
            && let Some(&(place, gap)) = pieces.peek()
        {
            if !self.target().is_some_and(|target| target.is(place)) {
                if is_response {
                    self.reads.note_uneven()
                } else {
                    self.receiver.note_uneven()
                }
                // All bytes are copied first, because placing one may overwrite another.
                return self.feed(&collect(pieces, left)?, sink);
            }
            let arrived = left.min(place.len());
            self.placed(arrived);
            left -= arrived;
            let gap = &gap[..left.min(gap.len())];
            self.feed(gap, sink)?;
            left -= gap.len();
            pieces.next();
        }
        Ok(())
    }
}

/// A copy of the first `left` bytes of places and gaps.
#[cold]
fn collect<'g>(
    pieces: impl Iterator<Item = (Place, &'g [u8])>,
    mut left: usize,
) -> Result<Vec<u8>, Violation> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(left).map_err(|_| Violation::NoMemory)?;
    for (place, gap) in pieces {
        let arrived = place.part(0, left);
        arrived.append_to(&mut bytes);
        left -= arrived.len();
        let gap = &gap[..left.min(gap.len())];
        bytes.extend_from_slice(gap);
        left -= gap.len();
    }
    Ok(bytes)
}
