//! One direction of a TCP connection: segments in any order become a stream with holes.
//!
//! The capture lost a segment that the receiver acknowledged and the capture does not have: it becomes a
//! hole. The network lost or delayed a segment that comes late. What comes again is compared with what was
//! handed on last, of which sums are kept.

use std::collections::{BTreeMap, VecDeque};

use crate::context::Budget;
use crate::link::Tcp;

/// A piece of the stream, right behind the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Bytes, as one segment had them.
    Bytes {
        bytes: &'a [u8],
        /// Bytes behind them that the capture cut off the segment.
        cut: u64,
        frame: u64,
        time: u64,
        /// Whether they begin where a segment did.
        start: bool,
    },
    /// Bytes that the capture missed.
    Lost(u64),
}

/// What a segment meant for the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Nothing out of the ordinary.
    Ordinary,
    /// Every byte had been seen.
    Repeated,
    /// Some had been seen, and were others.
    Differs,
    /// It filled a gap, which had been open for so many nanoseconds.
    Late(u64),
}

/// A segment that is ahead of what is missing.
#[derive(Debug)]
struct Stored {
    bytes: Vec<u8>,
    length: u64,
    frame: u64,
    time: u64,
}

/// What a stored segment takes beside its bytes.
const STORED: usize = 128;
/// Segments of either direction that may still come between an acknowledgement and what it is about: a
/// capture may have frames in a slightly other order than the wire had.
const PATIENCE: u64 = 64;
/// Largest window that TCP can offer (RFC 7323 2.3).
const LARGEST_WINDOW: u64 = 1 << 30;
/// Most bytes that one direction stores.
const MOST_STORED: usize = 8 << 20;
/// Segments that were handed on whose sums are kept.
const MOST_SUMS: usize = 16;

/// The sum of bytes that were handed on.
#[derive(Debug)]
struct Sum {
    at: u64,
    length: u32,
    crc: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Direction {
    /// Sequence number of offset 0.
    origin: Option<u32>,
    /// Offset up to which the stream was handed on.
    next: u64,
    /// Offset that the other side acknowledged.
    acknowledged: u64,
    /// Segments seen when the acknowledgement went beyond what is there.
    suspected: Option<u64>,
    stored: BTreeMap<u64, Stored>,
    stored_bytes: usize,
    /// Of what was handed on last.
    sums: VecDeque<Sum>,
    segments: u64,
    pub(crate) gone: Gone,
}

/// Bytes of the stream that were not handed on, so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    /// The capture missed them.
    pub(crate) lost: u64,
    /// They did not come before too much had to wait for them.
    pub(crate) given_up: u64,
}

impl Direction {
    /// The stream begins behind this sequence number.
    pub(crate) fn begin(&mut self, syn: u32) {
        self.origin.get_or_insert(syn.wrapping_add(1));
    }

    /// Whether the stream begins, or may begin, behind this sequence number.
    pub(crate) fn begins_at(&self, syn: u32) -> bool {
        self.origin.is_none_or(|origin| origin == syn.wrapping_add(1))
    }

    /// Offset up to which the other side has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// A segment of this direction.
    pub(crate) fn segment(
        &mut self,
        tcp: &Tcp<'_>,
        (frame, time): (u64, u64),
        budget: &Budget,
        out: &mut dyn FnMut(Piece<'_>),
    ) -> Arrival {
        self.segments += 1;
        if tcp.length == 0 {
            return Arrival::Ordinary;
        }
        let start = self.offset(tcp.sequence.wrapping_add(u32::from(tcp.syn)));
        let (length, next) = (tcp.length as u64, self.next as i64);
        let end = start.saturating_add_unsigned(length);
        // One byte that was acknowledged is how TCP asks whether the other side is alive.
        let differs = length > 1 && start < next && self.differs(start, tcp.payload);
        if end <= next {
            return match differs {
                true => Arrival::Differs,
                false if length > 1 => Arrival::Repeated,
                false => Arrival::Ordinary,
            };
        }
        let begins = start >= next;
        let skip = usize::try_from(next - start).unwrap_or(0);
        let bytes = tcp.payload.get(skip..).unwrap_or(&[]);
        let bytes = &bytes[..bytes.len().min(tcp.length - skip)];
        let length = length - skip as u64;
        if start > next {
            let there = self.stored.get(&(start as u64));
            let differs = there.is_some_and(|there| there.bytes.iter().zip(bytes).any(|(a, b)| a != b));
            self.store(start as u64, Stored { bytes: bytes.to_vec(), length, frame, time }, budget, out);
            return if differs { Arrival::Differs } else { Arrival::Ordinary };
        }
        let waited = self.stored.first_key_value().map(|(_, stored)| stored.time);
        self.hand_on(bytes, length, (frame, time), begins, out);
        if waited.is_some() {
            self.hand_on_stored(budget, out);
        }
        match waited {
            _ if differs => Arrival::Differs,
            Some(since) => Arrival::Late(time.saturating_sub(since)),
            None => Arrival::Ordinary,
        }
    }

    /// Whether bytes that begin at `start` are others than those that were handed on.
    fn differs(&self, start: i64, bytes: &[u8]) -> bool {
        self.sums.iter().any(|sum| {
            let place = (sum.at as i64).checked_sub(start).and_then(|place| usize::try_from(place).ok());
            let again = place.and_then(|place| bytes.get(place..)?.get(..sum.length as usize));
            again.is_some_and(|again| crc32c::crc32c(again) != sum.crc)
        })
    }

    /// The other side acknowledged what is before this sequence number.
    pub(crate) fn acknowledge(&mut self, sequence: u32, budget: &Budget, out: &mut dyn FnMut(Piece<'_>)) {
        if self.origin.is_none() {
            return;
        }
        let to = self.offset(sequence).max(0) as u64;
        // An acknowledgement beyond any window is about another connection.
        if to <= self.next + LARGEST_WINDOW {
            self.acknowledged = self.acknowledged.max(to);
        }
        if self.acknowledged <= self.next {
            self.suspected = None;
            return;
        }
        let since = *self.suspected.get_or_insert(self.segments);
        // Acknowledgements count as well, where the stream itself stands still.
        self.segments += 1;
        if self.segments - since > PATIENCE {
            self.skip(budget, out);
        }
    }

    /// No more segments come.
    pub(crate) fn finish(&mut self, budget: &Budget, out: &mut dyn FnMut(Piece<'_>)) {
        while !self.stored.is_empty() {
            self.skip(budget, out);
        }
        // The last acknowledgement is for the end of the stream, which has a number of its own.
        if self.acknowledged > self.next + 1 {
            self.skip(budget, out);
        }
    }

    /// Where in the stream a sequence number is, by the nearest distance to what comes next.
    fn offset(&mut self, sequence: u32) -> i64 {
        let origin = *self.origin.get_or_insert(sequence);
        let expected = origin.wrapping_add(self.next as u32);
        (self.next as i64).saturating_add(i64::from(sequence.wrapping_sub(expected) as i32))
    }

    fn store(&mut self, at: u64, segment: Stored, budget: &Budget, out: &mut dyn FnMut(Piece<'_>)) {
        if self.stored.get(&at).is_some_and(|there| there.length >= segment.length) {
            return;
        }
        let takes = segment.bytes.len() + STORED;
        while self.stored_bytes + takes > MOST_STORED || !budget.take(takes) {
            let first = self.stored.first_key_value().map_or(at, |(first, _)| at.min(*first));
            self.gone.given_up += first - self.next;
            self.suspected = None;
            self.pass(first, out);
            if first < at {
                self.hand_on_stored(budget, out);
            }
            if at <= self.next {
                self.hand_on_rest(at, &segment, out);
                self.hand_on_stored(budget, out);
                return;
            }
        }
        self.stored_bytes += takes;
        if let Some(shorter) = self.stored.insert(at, segment) {
            self.free(&shorter, budget);
        }
    }

    /// Gives up what is missing before the first segment that is there, or up to what was acknowledged.
    fn skip(&mut self, budget: &Budget, out: &mut dyn FnMut(Piece<'_>)) {
        let to = self.stored.keys().next().copied().unwrap_or(self.acknowledged);
        self.gone.lost += to.saturating_sub(self.next);
        self.suspected = None;
        self.pass(to, out);
        self.hand_on_stored(budget, out);
    }

    /// Goes on behind bytes that are not there.
    fn pass(&mut self, to: u64, out: &mut dyn FnMut(Piece<'_>)) {
        if let Some(length) = to.checked_sub(self.next).filter(|length| *length > 0) {
            self.next = to;
            out(Piece::Lost(length));
        }
    }

    fn hand_on(
        &mut self,
        bytes: &[u8],
        length: u64,
        (frame, time): (u64, u64),
        start: bool,
        out: &mut dyn FnMut(Piece<'_>),
    ) {
        if self.sums.len() == MOST_SUMS {
            self.sums.pop_front();
        }
        let crc = crc32c::crc32c(bytes);
        self.sums.push_back(Sum { at: self.next, length: bytes.len() as u32, crc });
        self.next += length;
        let cut = length.saturating_sub(bytes.len() as u64);
        out(Piece::Bytes { bytes, cut, frame, time, start });
    }

    fn hand_on_stored(&mut self, budget: &Budget, out: &mut dyn FnMut(Piece<'_>)) {
        while let Some(entry) = self.stored.first_entry().filter(|entry| *entry.key() <= self.next) {
            let (at, segment) = entry.remove_entry();
            self.free(&segment, budget);
            self.hand_on_rest(at, &segment, out);
        }
    }

    /// Hands on what is new in a segment that begins at `at`, or before it.
    fn hand_on_rest(&mut self, at: u64, segment: &Stored, out: &mut dyn FnMut(Piece<'_>)) {
        let skip = self.next - at;
        if skip < segment.length {
            let bytes = segment.bytes.get(skip as usize..).unwrap_or(&[]);
            self.hand_on(bytes, segment.length - skip, (segment.frame, segment.time), skip == 0, out);
        }
    }

    fn free(&mut self, segment: &Stored, budget: &Budget) {
        let takes = segment.bytes.len() + STORED;
        self.stored_bytes -= takes;
        budget.give(takes);
    }
}
