//! Whole operations from the bytes that are reported piece by piece.

use std::collections::hash_map::Entry;

use crate::hash::Map;

use crate::context::Budget;
use crate::operation::Placement;
use crate::ranges::Ranges;

/// Longest hole in front of a piece, and how much longer it may be for each byte that is there: of what is
/// held, zeros are not nearly all.
const HOLE: u64 = 64 << 10;
const HOLE_PER_BYTE: u64 = 16;
/// What a piece takes that touches no other.
const RANGE: usize = 40;

/// The bytes of an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// The bytes, with zeros where they are not in the capture.
    pub bytes: Vec<u8>,
    /// What of them is there.
    pub there: Ranges,
    /// Whether some was dropped: too much was held, or nearly all before it was missing.
    pub dropped: bool,
    /// How many are there.
    known: u64,
    /// What they take of the bound on memory.
    charge: usize,
}

impl Content {
    /// Whether all of `length` bytes are there.
    #[must_use]
    pub fn is_whole(&self, length: u64) -> bool {
        !self.dropped && self.there.contains(0, length)
    }

    /// The bytes up to the first that is not there.
    #[must_use]
    pub fn start(&self) -> &[u8] {
        let end = self.there.iter().next().filter(|range| range.0 == 0).map_or(0, |range| range.1);
        self.bytes.get(..usize::try_from(end).unwrap_or(usize::MAX)).unwrap_or(&self.bytes)
    }

    /// The first `length` bytes, with zeros where they are missing, and whether some are. What is missing at
    /// the end is left out, if it is long.
    pub(crate) fn part(&self, length: usize) -> (Vec<u8>, bool) {
        let mut bytes = self.bytes[..self.bytes.len().min(length)].to_vec();
        bytes.resize(length.min(self.longest() as usize), 0);
        (bytes, !self.is_whole(length as u64))
    }

    /// How far from the start a piece may begin.
    fn longest(&self) -> u64 {
        self.bytes.len() as u64 + HOLE + self.known.saturating_mul(HOLE_PER_BYTE)
    }

    /// Adds a piece, or drops it.
    pub(crate) fn put(&mut self, offset: u64, piece: &[u8], budget: &Budget) {
        let known = self.bytes.len();
        let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(piece.len()));
        let end = end.filter(|_| offset <= self.longest());
        let takes = |end: &usize| end.saturating_sub(known) + RANGE;
        let Some(end) = end.filter(|end| budget.take(takes(end))) else {
            self.dropped = true;
            return;
        };
        self.charge += takes(&end);
        if known < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[end - piece.len()..end].copy_from_slice(piece);
        self.known += piece.len() as u64;
        self.there.insert(offset, offset + piece.len() as u64);
    }

    /// It will not be held any more.
    pub(crate) fn release(&self, budget: &Budget) {
        budget.give(self.charge);
    }
}

/// Holds the bytes of operations until they are asked for, within a bound.
#[derive(Debug)]
pub struct Assembler {
    open: Map<u64, Content>,
    budget: Budget,
}

/// What an operation takes beside its bytes.
const OPEN: usize = 128;

impl Assembler {
    /// One that holds at most `memory` bytes. What is beyond is dropped, and its [`Content`] says so.
    #[must_use]
    pub fn new(memory: usize) -> Self {
        Self { open: Map::default(), budget: Budget::new(memory) }
    }

    /// Takes bytes of an operation.
    pub fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        let content = match self.open.entry(placement.operation) {
            Entry::Occupied(content) => content.into_mut(),
            Entry::Vacant(place) if self.budget.take(OPEN) => place.insert(Content::default()),
            Entry::Vacant(_) => return,
        };
        content.put(placement.offset, bytes, &self.budget);
    }

    /// What there is of an operation, which is not held any more.
    pub fn take(&mut self, operation: u64) -> Content {
        let Some(content) = self.open.remove(&operation) else { return Content::default() };
        self.budget.give(OPEN);
        content.release(&self.budget);
        content
    }

    /// The bound, which what is made of the bytes shares.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }
}
