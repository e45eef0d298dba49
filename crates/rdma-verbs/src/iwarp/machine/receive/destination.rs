//! Where payload goes.

use std::sync::Arc;

use super::super::reads::Reads;
use super::super::violation::{Purpose, Violation};
use super::super::{Placement, Rules, Spaced, Target};
use super::{Effect, Part, Receiver};
use crate::Place;
use crate::iwarp::region::Region;
use iwarp_wire::rdmap::Opcode;
use iwarp_wire::{ddp, mpa};

/// Where payload is placed.
#[derive(Debug)]
pub(super) enum Destination {
    /// At this offset of a region's memory.
    Region(Arc<Region>, u64),
    /// At this offset of the places of the current receive. Bytes beyond their end are dropped.
    Receive(u64),
    /// At this offset of the places of the read whose response this is.
    Read(u64),
}

impl Destination {
    fn advance(&mut self, count: usize) {
        match self {
            Self::Region(_, offset) | Self::Receive(offset) | Self::Read(offset) => *offset += count as u64,
        }
    }
}

impl Receiver {
    /// See [`super::super::Machine::target`].
    #[inline]
    pub(in super::super) fn target(&self, reads: &Reads) -> Option<Placement<'_>> {
        if self.part == Part::Payload { self.placement(reads) } else { None }
    }

    /// See [`super::super::Machine::spaced_target`].
    pub(in super::super) fn spaced_target(&self, reads: &Reads) -> Option<Spaced> {
        if self.part != Part::Payload {
            return None;
        }
        let (place, left, length, header) = match (self.effect, self.destination.as_ref()?) {
            (Effect::Response { length, last: false }, &Destination::Read(offset)) => {
                (reads.place(offset)?, reads.even_left()?, length, ddp::TAGGED)
            }
            (Effect::Send { opcode, word, length, last: false }, &Destination::Receive(offset)) => {
                (self.receives.own.place(offset)?, self.even_left(opcode, word)?, length, ddp::UNTAGGED)
            }
            _ => return None,
        };
        let place = place.part(0, left.saturating_sub(length - self.left));
        Spaced::new(place, self.left, length, usize::from(self.trailer) + mpa::FPDU_LENGTH_FIELD + header)
    }

    /// Number of bytes of the message that are not in complete segments yet, if its header tells the length. `None`
    /// after [`Receiver::note_uneven`].
    fn even_left(&self, opcode: Opcode, word: u32) -> Option<usize> {
        let says_length = self.rules == Rules::Messages && !opcode.invalidates() && !self.is_uneven;
        says_length.then(|| word.saturating_sub(self.message) as usize)
    }

    /// Has the rest of the message received segment by segment: its segments differ in length, or something comes
    /// between them. If it has ended before its length, this is about the next one.
    pub(in super::super) fn note_uneven(&mut self) {
        self.is_uneven = true;
    }

    fn placement(&self, reads: &Reads) -> Option<Placement<'_>> {
        let in_place =
            |place: Place| Placement { target: Target::Place(place), length: self.left.min(place.len()) };
        match *self.destination.as_ref()? {
            // An invalidated region has no place [RFC 5040 8.1.1-6] [RFC 5041 8.3.1-6].
            Destination::Region(ref region, offset) => region
                .is_valid()
                .then(|| Placement { target: Target::Memory(region.memory(), offset), length: self.left }),
            Destination::Receive(offset) => self.receives.own.place(offset).map(in_place),
            Destination::Read(offset) => reads.place(offset).map(in_place),
        }
    }

    /// See [`super::super::Machine::placed`].
    pub(in super::super) fn placed(&mut self, count: usize) {
        if self.part != Part::Payload || count == 0 {
            return;
        }
        let count = count.min(self.left);
        if let Some(destination) = &mut self.destination {
            destination.advance(count);
        }
        self.left -= count;
        if self.left == 0 {
            self.begin_trailer();
        }
    }

    /// Places a piece of payload [RFC 5040 8.1.1-6] [RFC 5041 5.2-4, 8.3.1-6].
    pub(super) fn store(&mut self, piece: &[u8], reads: &Reads) -> std::result::Result<(), Violation> {
        match &mut self.destination {
            None => {}
            Some(Destination::Region(region, offset)) => {
                if !region.is_valid() || region.memory().write(*offset, piece).is_err() {
                    let stag = region.stag();
                    return Err(match self.effect {
                        Effect::Send { .. } => Violation::LocalKey(stag),
                        _ => Violation::Stag { purpose: Purpose::Write, stag },
                    });
                }
                *offset += piece.len() as u64;
            }
            Some(Destination::Receive(offset)) => {
                fill(offset, piece, |offset| self.receives.own.place(offset))
            }
            Some(Destination::Read(offset)) => fill(offset, piece, |offset| reads.place(offset)),
        }
        Ok(())
    }
}

/// Copies a piece of payload to the places from `offset` on, as far as they have room, and advances `offset`.
#[cold]
fn fill(offset: &mut u64, mut piece: &[u8], place: impl Fn(u64) -> Option<Place>) {
    let end = *offset + piece.len() as u64;
    while let (false, Some(place)) = (piece.is_empty(), place(*offset)) {
        let count = place.fill(piece);
        *offset += count as u64;
        piece = &piece[count..];
    }
    *offset = end;
}
