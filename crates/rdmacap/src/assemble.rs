//! Whole operations from the bytes that are reported piece by piece.

use std::collections::HashMap;

use crate::operation::Placement;
use crate::ranges::Ranges;

/// The bytes of an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    /// The bytes, with zeros where they are not in the capture.
    pub bytes: Vec<u8>,
    /// What of them is there.
    pub there: Ranges,
    /// Whether some was dropped because too much was held.
    pub dropped: bool,
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
        let end = self.there.as_slice().first().filter(|range| range.0 == 0).map_or(0, |range| range.1);
        self.bytes.get(..usize::try_from(end).unwrap_or(usize::MAX)).unwrap_or(&self.bytes)
    }
}

/// Holds the bytes of operations until they are asked for, within a bound.
#[derive(Debug)]
pub struct Assembler {
    open: HashMap<u64, Content>,
    left: usize,
}

/// What an operation takes beside its bytes.
const OPEN: usize = 128;

impl Assembler {
    /// One that holds at most `memory` bytes. What is beyond is dropped, and its [`Content`] says so.
    #[must_use]
    pub fn new(memory: usize) -> Self {
        Self { open: HashMap::new(), left: memory }
    }

    /// Takes bytes of an operation.
    pub fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        let known = self.open.get(&placement.operation).map_or(0, |content| content.bytes.len());
        let end = usize::try_from(placement.offset).ok().and_then(|offset| offset.checked_add(bytes.len()));
        let takes = end.map(|end| end.saturating_sub(known) + if known == 0 { OPEN } else { 0 });
        let Some((end, left)) = end.zip(takes.and_then(|takes| self.left.checked_sub(takes))) else {
            if let Some(content) = self.open.get_mut(&placement.operation) {
                content.dropped = true;
            }
            return;
        };
        self.left = left;
        let content = self.open.entry(placement.operation).or_default();
        if content.bytes.len() < end {
            content.bytes.resize(end, 0);
        }
        content.bytes[end - bytes.len()..end].copy_from_slice(bytes);
        content.there.insert(placement.offset, placement.offset + bytes.len() as u64);
    }

    /// What there is of an operation, which is not held any more.
    pub fn take(&mut self, operation: u64) -> Content {
        let content = self.open.remove(&operation);
        if let Some(content) = &content {
            self.left += content.bytes.len() + OPEN;
        }
        content.unwrap_or_default()
    }
}
