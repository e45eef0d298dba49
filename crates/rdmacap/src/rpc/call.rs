//! A call that waits for its reply: the memory that it offers, and what came of it.

use std::ops::Range;

use super::header::{Header, Segment};
use crate::assemble::Content;
use crate::context::Budget;

/// What a call takes of the bound on memory beside its bytes, and what a segment takes.
const CALL: usize = 512;
const SEGMENT: usize = 192;

/// A segment of a call, and what came of it.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) segment: Segment,
    pub(super) content: Content,
}

/// A call without a reply so far.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) header: Header,
    pub(super) inline: Content,
    pub(super) inline_length: u64,
    pub(super) frame: u64,
    pub(super) time: u64,
    /// Read segments, then those of the write chunks, then those of the reply chunk.
    pub(super) fillings: Vec<Filling>,
    /// Counts calls, so that the oldest is known.
    pub(super) order: u64,
}

impl Call {
    /// A call with nothing in its chunks, and what it takes of the bound on memory.
    pub(super) fn new(header: Header, inline: Content, inline_length: u64, order: u64) -> (Self, usize) {
        let segments = header.reads.iter().map(|(_, segment)| segment);
        let segments = segments.chain(header.writes.iter().flatten()).chain(header.reply.iter().flatten());
        let empty = |segment: &Segment| Filling { segment: *segment, content: Content::default() };
        let fillings: Vec<Filling> = segments.map(empty).collect();
        let call = Self { header, inline, inline_length, frame: 0, time: 0, fillings, order };
        let takes = call.charge();
        (call, takes)
    }

    fn charge(&self) -> usize {
        CALL + SEGMENT * self.fillings.len() + self.inline.bytes.len()
    }

    /// It is over.
    pub(super) fn release(&self, budget: &Budget) {
        budget.give(self.charge());
        self.fillings.iter().for_each(|filling| filling.content.release(budget));
    }

    /// What read chunks have, with their positions.
    pub(super) fn reads(&self) -> impl Iterator<Item = (u32, &Filling)> {
        let positions = self.header.reads.iter().map(|(position, _)| *position);
        positions.zip(&self.fillings)
    }

    /// What a write chunk has.
    pub(super) fn write(&self, chunk: usize) -> &[Filling] {
        let before = self.header.writes.iter().take(chunk).map(Vec::len).sum();
        self.fillings(before..before + self.header.writes.get(chunk).map_or(0, Vec::len))
    }

    /// What the reply chunk has.
    pub(super) fn reply(&self) -> &[Filling] {
        let before = self.header.writes.iter().map(Vec::len).sum();
        self.fillings(before..before + self.header.reply.as_ref().map_or(0, Vec::len))
    }

    /// Segments that are written, counted behind those that are read.
    fn fillings(&self, range: Range<usize>) -> &[Filling] {
        let reads = self.header.reads.len();
        &self.fillings[reads + range.start..reads + range.end]
    }
}
