//! Requests that are posted and not completed, in the order of posting.
//!
//! A completion says which request it is of, and not what that was if it failed: the rings know.
//! Requests complete in order, but for reads on soft iWARP: what follows a read may complete before
//! its answer has come.

use std::collections::VecDeque;

use crate::CompletionKind;

/// What was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Posted {
    /// A request of the consumer's.
    User {
        /// As the consumer calls it.
        id: u64,
        /// What it completes as.
        kind: CompletionKind,
        /// Whether it tells of its success.
        signaled: bool,
    },
    /// A request of this module's own.
    Probe,
}

impl Posted {
    /// Whether what was posted after it may complete before it.
    fn may_be_late(self) -> bool {
        matches!(self, Self::Probe | Self::User { kind: CompletionKind::Read, .. })
    }
}

/// The posted requests of one queue.
#[derive(Debug)]
pub(super) struct Ring {
    entries: Box<[Posted]>,
    /// Requests posted since the beginning.
    posted: u64,
    /// The highest request that completed, plus one: all before it are done but for `reads`.
    completed: u64,
    /// Reads that have not completed.
    reads: VecDeque<u64>,
}

impl Ring {
    /// For a queue of `depth` entries, at least one.
    pub(super) fn new(depth: u32) -> Self {
        Self {
            entries: vec![Posted::Probe; depth.max(1) as usize].into(),
            posted: 0,
            completed: 0,
            reads: VecDeque::new(),
        }
    }

    /// Requests that are posted and not done.
    pub(super) fn outstanding(&self) -> u32 {
        (self.posted - self.done()) as u32
    }

    /// Requests that are done: they and all before them.
    fn done(&self) -> u64 {
        self.reads.front().map_or(self.completed, |&read| read.min(self.completed))
    }

    /// Requests posted since the beginning.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    /// The sequence number that the next request gets.
    pub(super) fn next(&self) -> u32 {
        self.posted as u32
    }

    /// Notes a request that was posted; there is room.
    pub(super) fn push(&mut self, posted: Posted) {
        let at = self.place(self.posted);
        self.entries[at] = posted;
        if posted.may_be_late() {
            self.reads.push_back(self.posted);
        }
        self.posted += 1;
    }

    /// The request of this sequence number is done, and all before it but for reads. `None` if it
    /// is not outstanding.
    pub(super) fn complete(&mut self, sequence: u32) -> Option<Posted> {
        let done = self.done();
        let number = done + u64::from(sequence.wrapping_sub(done as u32));
        if number >= self.posted {
            return None;
        }
        let posted = self.entries[self.place(number)];
        if posted.may_be_late() {
            self.reads.remove(self.reads.iter().position(|&read| read == number)?);
        } else if number < self.completed {
            return None;
        }
        self.completed = self.completed.max(number + 1);
        Some(posted)
    }

    fn place(&self, number: u64) -> usize {
        (number % self.entries.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: u64) -> Posted {
        Posted::User { id, kind: CompletionKind::Send, signaled: true }
    }

    #[test]
    fn a_completion_stands_for_all_before_it() {
        let mut ring = Ring::new(4);
        (0..4).for_each(|id| ring.push(user(id)));
        assert_eq!(ring.complete(2), Some(user(2)));
        assert_eq!(ring.outstanding(), 1);
        assert_eq!(ring.complete(2), None, "it is done");
        assert_eq!(ring.complete(4), None, "it was not posted");
        assert_eq!(ring.complete(3), Some(user(3)));
    }

    #[test]
    fn a_read_may_be_late() {
        let mut ring = Ring::new(4);
        ring.push(user(0));
        ring.push(Posted::Probe);
        ring.push(user(2));
        assert_eq!(ring.complete(2), Some(user(2)));
        assert_eq!(ring.outstanding(), 2, "the probe holds its entry");
        assert_eq!(ring.complete(2), None, "once only");
        assert_eq!(ring.complete(1), Some(Posted::Probe));
        assert_eq!((ring.complete(1), ring.outstanding()), (None, 0));
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut ring = Ring { posted: u64::from(u32::MAX), completed: u64::from(u32::MAX), ..Ring::new(3) };
        let first = ring.next();
        (7..10).for_each(|id| ring.push(user(id)));
        assert_eq!((first, ring.next()), (u32::MAX, 2));
        assert_eq!(ring.complete(first), Some(user(7)));
        assert_eq!(ring.complete(1), Some(user(9)));
        assert_eq!(ring.outstanding(), 0);
    }
}
