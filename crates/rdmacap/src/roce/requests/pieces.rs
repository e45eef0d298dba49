//! What is kept of packets: an operation that is not over, a packet whose operation is not known, a response
//! whose request has not come.

use crate::Operation;
use crate::context::Budget;
use crate::operation::{Kind, Outcome};
use crate::ranges::Ranges;
use crate::roce::packet::Packet;

/// An operation that has not been reported.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) operation: Operation,
    /// Its first packet number.
    pub(super) first: u64,
    /// Its last, where known.
    pub(super) last: Option<u64>,
    /// Packets of the request that were seen, from 0.
    pub(super) got: Ranges,
    /// Packets of the response that were seen.
    pub(super) answered: Ranges,
    /// Checksums of the payloads of the request's packets.
    pub(super) sums: Vec<u32>,
    /// Whether the packet that begins it was seen.
    pub(super) headed: bool,
    /// What became of it, when, and after how many packets.
    pub(super) over: Option<(Outcome, u64, u64)>,
    pub(super) sent: bool,
    /// Times that the receiver was not ready for it.
    pub(super) not_ready: u32,
    pub(super) charge: usize,
}

impl Pending {
    pub(super) fn packets(&self) -> Option<u64> {
        self.last.map(|last| last - self.first + 1)
    }

    pub(super) fn is_answered_by_data(&self) -> bool {
        matches!(self.operation.kind, Kind::Read | Kind::CompareSwap | Kind::FetchAdd)
    }

    /// Whether all packets of the request were seen. A read's is one packet, however many numbers it takes.
    pub(super) fn is_whole(&self) -> bool {
        if self.is_answered_by_data() {
            return self.headed;
        }
        self.headed && self.packets().is_some_and(|packets| self.got.contains(0, packets))
    }

    /// Whether all packets of the response were seen as well.
    pub(super) fn is_complete(&self) -> bool {
        let answered = || self.packets().is_some_and(|packets| self.answered.contains(0, packets));
        self.is_whole() && (!self.is_answered_by_data() || answered())
    }

    /// Bytes of memory that say which packets are there, and which content they had.
    pub(super) fn weight(&self) -> usize {
        self.got.weight() + self.answered.weight() + size_of_val(&*self.sums)
    }

    /// Charges what has been added to the [weight](Self::weight) since it was `before`.
    pub(super) fn recharge(&mut self, before: usize, budget: &Budget) {
        let more = self.weight().saturating_sub(before);
        self.charge += more;
        budget.owe(more);
    }

    pub(super) fn contains(&self, psn: u64) -> bool {
        psn >= self.first && self.last.is_none_or(|last| psn <= last)
    }
}

/// A packet in the middle or at the end of an operation that is not known yet.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) kind: Kind,
    pub(super) ends: bool,
    pub(super) immediate: Option<u64>,
    pub(super) invalidate: Option<u32>,
    pub(super) solicited: bool,
    pub(super) payload: Vec<u8>,
    pub(super) length: usize,
    pub(super) frame: u64,
    pub(super) time: u64,
}

impl Orphan {
    pub(super) fn piece(&self) -> Piece<'_> {
        let &Self { ends, immediate, invalidate, solicited, ref payload, length, frame, .. } = self;
        Piece { ends, immediate, invalidate, solicited, payload, length, frame }
    }
}

/// A response whose request has not come.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) ends: bool,
    pub(super) original: Option<u64>,
    pub(super) payload: Vec<u8>,
    pub(super) length: usize,
    pub(super) frame: u64,
    pub(super) time: u64,
}

/// A response of the other side.
#[derive(Debug, Clone, Copy)]
pub(super) struct Response<'a> {
    /// Whether it is the last of its read's.
    pub(super) ends: bool,
    /// What an atomic found; `None`: it is a read's.
    pub(super) original: Option<u64>,
    pub(super) payload: &'a [u8],
    pub(super) length: usize,
}

/// What a packet adds to its operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) ends: bool,
    pub(super) immediate: Option<u64>,
    pub(super) invalidate: Option<u32>,
    pub(super) solicited: bool,
    pub(super) payload: &'a [u8],
    pub(super) length: usize,
    pub(super) frame: u64,
}

impl<'a> Piece<'a> {
    pub(super) fn new(packet: &Packet<'a>, ends: bool, frame: u64) -> Self {
        let &Packet { immediate, invalidate, solicited, payload, length, .. } = packet;
        Self { ends, immediate, invalidate, solicited, payload, length, frame }
    }
}
