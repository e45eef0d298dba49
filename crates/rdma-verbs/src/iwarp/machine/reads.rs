//! Outstanding RDMA Reads of this side, limited by ORD, and reads of the peer that this side serves, limited
//! by IRD. The handshake negotiates both limits.

use std::collections::VecDeque;
use std::sync::Arc;

use super::placement::place_at;
use super::violation::Violation;
use super::work::reaches;
use crate::iwarp::region::Region;
use crate::{PeerAccesses, Place, RemoteAddress};
use iwarp_wire::rdmap::ReadRequest;

/// Reads in both directions. Responses arrive in the order of the requests [RFC 5040 5.2.2-4, 5.5-10].
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Number of reads that this side may have outstanding (ORD).
    pub(super) initiator_depth: u8,
    /// Number of reads that this side serves at a time (IRD).
    pub(super) responder_resources: u8,
    outstanding: VecDeque<Outstanding>,
    /// Sequence number of the last read that was requested.
    sequence: u32,
    /// Sequence number of the last read that was posted.
    posted: u32,
    /// The writes that a read of no bytes confirms, in order, as long as that is not done.
    confirmed: VecDeque<Confirmed>,
    /// Places of posted reads, in order.
    places: VecDeque<Place>,
    served: VecDeque<Served>,
    /// Counts the accesses of the peer.
    accesses: Option<Arc<PeerAccesses>>,
    /// Number of reads whose response is complete and that are not reported yet.
    completed: u32,
    /// Whether responses are dropped.
    given_up: bool,
}

/// A read that waits for its response.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    stag: u32,
    offset: u64,
    left: u32,
    /// Number of its places; 0: the response goes to the region that `stag` names.
    places: u8,
    /// Whether segments of the response were not where segments of the same length would be.
    is_uneven: bool,
}

/// A write that a read of no bytes follows, so that it completes when the peer has placed the bytes.
#[derive(Debug, Clone, Copy)]
struct Confirmed {
    remote: RemoteAddress,
    length: u64,
    /// Sequence number of the read.
    by: u32,
}

/// A read of the peer that is being served.
#[derive(Debug)]
pub(super) struct Served {
    /// The peer's region.
    pub(super) sink_stag: u32,
    /// Offset in it of the next byte.
    pub(super) sink_offset: u64,
    /// The region that is read; `None` for a read of no bytes.
    pub(super) source: Option<Arc<Region>>,
    /// Offset in it of the next byte of the response.
    pub(super) source_offset: u64,
    /// Number of bytes still to send.
    pub(super) left: u32,
    /// Whether a part of the response is sent.
    pub(super) started: bool,
}

impl Reads {
    /// Whether another read may be requested [RFC 5040 6.1-3, 6.1-4].
    pub(super) fn may_request(&self) -> bool {
        self.outstanding.len() < usize::from(self.initiator_depth)
    }

    /// Whether every read that was requested is done.
    pub(super) fn are_done(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Records a read that is posted, with its places.
    pub(super) fn post(&mut self, places: &[Place]) {
        self.places.extend(places);
        self.posted = self.posted.wrapping_add(1);
    }

    /// Records a write that the last posted read confirms. They are recorded in order.
    pub(super) fn confirm(&mut self, remote: RemoteAddress, length: u64) {
        self.confirmed.push_back(Confirmed { remote, length, by: self.posted });
    }

    /// Records that `request`, which has so many places, is sent.
    pub(super) fn requested(&mut self, request: &ReadRequest, places: u8) {
        let ReadRequest { sink_stag: stag, sink_offset: offset, length: left, .. } = *request;
        self.outstanding.push_back(Outstanding { stag, offset, left, places, is_uneven: false });
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// The number of posted and unreported reads before the outstanding one with this sequence number.
    pub(super) fn position(&self, sequence: u32) -> Option<usize> {
        let behind = self.sequence.wrapping_sub(sequence) as usize;
        let at = self.outstanding.len().checked_sub(behind)?.checked_sub(1)?;
        Some(self.completed as usize + at)
    }

    /// The same for one that is not requested yet.
    fn waiting_position(&self, sequence: u32) -> Option<usize> {
        let behind = sequence.wrapping_sub(self.sequence).wrapping_sub(1);
        let is_waiting = behind < self.posted.wrapping_sub(self.sequence);
        is_waiting.then_some(self.completed as usize + self.outstanding.len() + behind as usize)
    }

    /// The same for the oldest outstanding read.
    pub(super) fn oldest_position(&self) -> Option<usize> {
        (!self.outstanding.is_empty()).then_some(self.completed as usize)
    }

    /// The same for the one that confirms the oldest write to memory with this byte, and whether it is requested.
    pub(super) fn confirming_position(&self, stag: u32, offset: u64) -> Option<(usize, bool)> {
        let has_byte = |write: &&Confirmed| reaches(write.remote, write.length, stag, offset);
        let by = self.confirmed.iter().find(has_byte)?.by;
        let requested = self.position(by).map(|at| (at, true));
        requested.or_else(|| self.waiting_position(by).map(|at| (at, false)))
    }

    /// The place for the bytes at `offset` of the next response.
    pub(super) fn place(&self, offset: u64) -> Option<Place> {
        let places = self.outstanding.front()?.places;
        place_at(self.places.iter().take(places.into()), offset)
    }

    /// Number of bytes of the next response that are not in complete segments yet. `None` after [`Reads::note_uneven`].
    pub(super) fn even_left(&self) -> Option<usize> {
        self.outstanding.front().filter(|read| !read.is_uneven).map(|read| read.left as usize)
    }

    /// Records that the segments of the next response differ in length, or that something comes between them.
    pub(super) fn note_uneven(&mut self) {
        if let Some(front) = self.outstanding.front_mut() {
            front.is_uneven = true;
        }
    }

    /// Whether the next response goes to places. One that is dropped goes to none of them.
    pub(super) fn has_places(&self) -> bool {
        self.given_up || self.outstanding.front().is_some_and(|read| read.places > 0)
    }

    /// Checks that a segment of a response continues the oldest outstanding read [RFC 5041 4.2-7].
    pub(super) fn check_response(
        &self,
        stag: u32,
        offset: u64,
        length: usize,
        last: bool,
    ) -> Result<(), Violation> {
        let none = Outstanding { stag: 0, offset: 0, left: 0, places: 0, is_uneven: false };
        let front = self.outstanding.front().unwrap_or(&none);
        let fits = match u64::from(front.left).checked_sub(length as u64) {
            Some(after) => (after == 0) == last,
            None => false,
        };
        if self.outstanding.is_empty() || front.stag != stag || front.offset != offset || !fits {
            let (expected, place) = (front.left, front.offset);
            return Err(Violation::Response { stag, offset, length, expected, place });
        }
        Ok(())
    }

    /// Records that a segment which [`Reads::check_response`] accepted is placed.
    pub(super) fn placed(&mut self, length: usize, last: bool) {
        if last {
            let done = self.sequence.wrapping_sub(self.outstanding.len() as u32).wrapping_add(1);
            while self.confirmed.front().is_some_and(|write| write.by == done) {
                self.confirmed.pop_front();
            }
            let places = self.outstanding.pop_front().map_or(0, |read| read.places);
            self.places.drain(..usize::from(places).min(self.places.len()));
            self.completed += 1;
        } else if let Some(front) = self.outstanding.front_mut() {
            let length = u32::try_from(length).unwrap_or(u32::MAX).min(front.left);
            front.left -= length;
            front.offset += u64::from(length);
        }
    }

    /// Takes a read whose response is complete and that is not reported yet. Returns whether there was one.
    pub(super) fn take_completed(&mut self) -> bool {
        let any = self.completed > 0;
        self.completed -= u32::from(any);
        any
    }

    /// Queues a read of the peer. One can always be served, because a connection may have to begin with an
    /// empty read (RFC 6581 9) [RFC 5040 5.2.1-2, 5.2.1-7, 5.2.2-2, 6.1-2, 6.1-5, 8.1.1-12].
    pub(super) fn serve(&mut self, served: Served) -> Result<(), Violation> {
        let limit = self.responder_resources.max(1);
        if self.served.len() >= usize::from(limit) {
            return Err(Violation::Reads { limit });
        }
        self.served.push_back(served);
        Ok(())
    }

    /// The read that is being served.
    pub(super) fn next_served(&self) -> Option<&Served> {
        self.served.front()
    }

    /// Whether there is a read to serve.
    pub(super) fn is_serving(&self) -> bool {
        !self.served.is_empty()
    }

    /// Whether a response is partly sent.
    pub(super) fn is_midway(&self) -> bool {
        self.served.front().is_some_and(|served| served.started)
    }

    /// Records that `count` more bytes of the response, at most those that are left, are sent.
    pub(super) fn responded(&mut self, count: usize) {
        let Some(served) = self.served.front_mut() else { return };
        // `left` is a `u32`.
        served.left -= count as u32;
        served.sink_offset = served.sink_offset.wrapping_add(count as u64);
        served.source_offset += count as u64;
        served.started = true;
        if served.left == 0 {
            self.served.pop_front();
            if let Some(accesses) = self.accesses.as_ref().filter(|_| count > 0) {
                accesses.count_read();
            }
        }
    }

    /// See [`super::Machine::count_accesses`].
    pub(super) fn count_accesses(&mut self) -> Arc<PeerAccesses> {
        Arc::clone(self.accesses.get_or_insert_default())
    }

    /// Counts a write of the peer.
    pub(super) fn count_write(&self) {
        if let Some(accesses) = &self.accesses {
            accesses.count_write();
        }
    }

    /// Removes the reads of the peer, and drops the responses to those of this side, which may still arrive.
    pub(super) fn give_up(&mut self) {
        self.given_up = true;
        self.outstanding.iter_mut().for_each(|read| read.places = 0);
        self.confirmed = VecDeque::new();
        self.places = VecDeque::new();
        self.served = VecDeque::new();
    }

    /// Removes all reads, because the connection has ended.
    pub(super) fn clear(&mut self) {
        self.outstanding = VecDeque::new();
        self.confirmed = VecDeque::new();
        self.places = VecDeque::new();
        self.served = VecDeque::new();
    }
}
