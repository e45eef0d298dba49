//! Outstanding requests: posted and not completed, in the order of posting.
//!
//! A device's completion identifies its request. If the request failed, the completion does not contain its
//! kind, so that is kept here. Requests complete in order, except on soft iWARP: requests after a read may
//! complete before the read.

use std::collections::VecDeque;

use crate::CompletionKind;

/// A posted request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Posted {
    /// A request of the consumer.
    User {
        /// The consumer's id.
        id: u64,
        /// The kind of its completion.
        kind: CompletionKind,
        /// Whether its success is reported.
        signaled: bool,
    },
    /// A probe of the peer's host.
    Probe,
}

impl Posted {
    /// Whether later requests may complete before it.
    fn may_be_late(self) -> bool {
        matches!(self, Self::Probe | Self::User { kind: CompletionKind::Read, .. })
    }
}

/// The outstanding requests of one queue, in a ring that the sequence numbers index.
#[derive(Debug)]
pub(super) struct Outstanding {
    entries: Box<[Posted]>,
    /// Requests posted since the beginning.
    posted: u64,
    /// The highest number of a completed request, plus one. All requests before it are done, except `reads`.
    completed: u64,
    /// Numbers of the reads and probes that have not completed.
    reads: VecDeque<u64>,
}

impl Outstanding {
    /// For a queue of at least `depth` entries.
    pub(super) fn new(depth: u32) -> Self {
        Self {
            // A power of two, so that no place needs a division.
            entries: vec![Posted::Probe; (depth as usize).next_power_of_two()].into(),
            posted: 0,
            completed: 0,
            reads: VecDeque::new(),
        }
    }

    /// The number of outstanding requests, counted from the oldest one.
    pub(super) fn outstanding(&self) -> u32 {
        (self.posted - self.done()) as u32
    }

    /// The number of requests before the oldest outstanding one.
    fn done(&self) -> u64 {
        self.reads.front().map_or(self.completed, |&read| read.min(self.completed))
    }

    /// Whether the oldest outstanding request is a probe.
    pub(super) fn is_probe_oldest(&self) -> bool {
        self.done() < self.posted && self.entries[self.place(self.done())] == Posted::Probe
    }

    /// The sequence number of the oldest outstanding request.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.done() < self.posted).then(|| self.done() as u32)
    }

    /// Requests posted since the beginning.
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    /// The sequence number of the next request.
    pub(super) fn next(&self) -> u32 {
        self.posted as u32
    }

    /// Adds a posted request. The caller made sure that there is room.
    pub(super) fn push(&mut self, posted: Posted) {
        let at = self.place(self.posted);
        self.entries[at] = posted;
        if posted.may_be_late() {
            self.reads.push_back(self.posted);
        }
        self.posted += 1;
    }

    /// Completes the request of this sequence number, and all before it except reads and probes. Returns
    /// `None` if it is not outstanding.
    #[inline]
    pub(super) fn complete(&mut self, sequence: u32) -> Option<Posted> {
        let done = self.done();
        let number = done + u64::from(sequence.wrapping_sub(done as u32));
        if number >= self.posted {
            return None;
        }
        let posted = self.entries[self.place(number)];
        if posted.may_be_late() {
            self.forget_read(number)?;
        } else if number < self.completed {
            return None;
        }
        self.completed = self.completed.max(number + 1);
        Some(posted)
    }

    /// Removes a read or probe from those that have not completed, if it is one of them.
    #[cold]
    fn forget_read(&mut self, number: u64) -> Option<()> {
        self.reads.remove(self.reads.iter().position(|&read| read == number)?).map(drop)
    }

    fn place(&self, number: u64) -> usize {
        number as usize & (self.entries.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: u64) -> Posted {
        Posted::User { id, kind: CompletionKind::Send, signaled: true }
    }

    #[test]
    fn a_completion_completes_all_requests_before_it() {
        let mut ring = Outstanding::new(4);
        (0..4).for_each(|id| ring.push(user(id)));
        assert_eq!(ring.complete(2), Some(user(2)));
        assert_eq!(ring.outstanding(), 1);
        assert_eq!(ring.complete(2), None, "it is done");
        assert_eq!(ring.complete(4), None, "it was not posted");
        assert_eq!(ring.complete(3), Some(user(3)));
    }

    #[test]
    fn a_read_may_complete_after_later_requests() {
        let mut ring = Outstanding::new(4);
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
        let mut ring = Outstanding {
            posted: u64::from(u32::MAX),
            completed: u64::from(u32::MAX),
            ..Outstanding::new(3)
        };
        let first = ring.next();
        (7..10).for_each(|id| ring.push(user(id)));
        assert_eq!((first, ring.next()), (u32::MAX, 2));
        assert_eq!(ring.complete(first), Some(user(7)));
        assert_eq!(ring.complete(1), Some(user(9)));
        assert_eq!(ring.outstanding(), 0);
    }
}
