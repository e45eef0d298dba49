//! Posted receives, in the order in which messages consume them.
//!
//! A queue has hundreds of them, and they nearly always are successive slots of one region. So each sequence
//! of such receives is stored as one [`Run`].

mod shared;

use std::collections::{TryReserveError, VecDeque};
use std::num::NonZeroU32;

use rustix::io::Errno;

use super::placement::place_at;
use super::validate::{validate_places, validate_segment};
use crate::iwarp::region::RegionCache;
use crate::{Access, Buffer, Error, Place, RecvRequest, Result, Segment};
pub(super) use shared::ReceiveSource;
pub use shared::SharedReceives;

/// A queue of at most `depth` posted receives.
#[derive(Debug)]
pub(in crate::iwarp) struct Receives {
    depth: u32,
    posted: usize,
    /// None of them is empty.
    runs: VecDeque<Run>,
    /// The places of all receives, in order.
    places: VecDeque<Place>,
}

/// Receives with successive ids and successive buffers.
#[derive(Debug)]
struct Run {
    /// The oldest receive.
    first: Receive,
    count: u32,
}

/// A posted receive without its places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Receive {
    pub(super) id: u64,
    /// Address in the region; for a receive without a key, the number of its places.
    pub(super) address: u64,
    /// Key of the region; `None`: it has places, or expects no payload.
    pub(super) key: Option<NonZeroU32>,
    /// Length of the buffer in bytes.
    pub(super) length: u32,
}

impl Receives {
    pub(in crate::iwarp) fn new(depth: u32) -> Self {
        Self { depth, posted: 0, runs: VecDeque::new(), places: VecDeque::new() }
    }

    /// Number of free entries.
    pub(super) fn room(&self) -> usize {
        (self.depth as usize).saturating_sub(self.posted)
    }

    /// Number of posted receives.
    #[cfg(test)]
    pub(super) fn posted(&self) -> usize {
        self.posted
    }

    /// Posts receives: all of them or none.
    pub(in crate::iwarp) fn post(
        &mut self,
        requests: &[RecvRequest<'_>],
        regions: Option<&mut RegionCache>,
    ) -> Result<()> {
        let room = self.room();
        if requests.len() > room {
            let room = u32::try_from(room).unwrap_or(self.depth);
            return Err(Error::QueueFull { depth: self.depth, room, asked: requests.len() });
        }
        let before = (self.runs.len(), self.runs.back().map_or(0, |last| last.count), self.places.len());
        let outcome = self.append(requests, regions);
        match outcome {
            Ok(()) => self.posted += requests.len(),
            Err(_) => self.withdraw(before),
        }
        outcome
    }

    /// Posts a receive whose memory is checked, if that needs no memory and there is room. Returns whether it did.
    pub(super) fn add(&mut self, request: &RecvRequest<'_>) -> bool {
        let receive = Receive::new(request);
        let (is_full, has_place) = (self.room() == 0, self.runs.len() < self.runs.capacity());
        match self.runs.back_mut() {
            _ if is_full => return false,
            Some(last) if last.first.after(last.count) == receive => last.count += 1,
            _ if has_place => self.runs.push_back(Run { first: receive, count: 1 }),
            _ => return false,
        }
        self.posted += 1;
        true
    }

    fn append(
        &mut self,
        mut requests: &[RecvRequest<'_>],
        mut regions: Option<&mut RegionCache>,
    ) -> Result<()> {
        let no_memory = |_| Error::io("allocate a receive queue")(Errno::NOMEM);
        while let Some(run) = Run::begin(requests) {
            let (of_run, rest) = requests.split_at(run.count as usize);
            run.check(of_run, regions.as_deref_mut())?;
            if run.first.places() > 0 {
                self.append_places(of_run).map_err(no_memory)?;
            }
            match self.runs.back_mut() {
                Some(last) if last.first.after(last.count) == run.first => last.count += run.count,
                _ => {
                    self.runs.try_reserve(1).map_err(no_memory)?;
                    self.runs.push_back(run);
                }
            }
            requests = rest;
        }
        Ok(())
    }

    #[cold]
    fn append_places(&mut self, requests: &[RecvRequest<'_>]) -> std::result::Result<(), TryReserveError> {
        for request in requests {
            if let Buffer::Places(places) = request.buffer {
                self.places.try_reserve(places.len())?;
                self.places.extend(places);
            }
        }
        Ok(())
    }

    /// Removes what was appended since there were `runs` runs, the last of them with `count` receives, and
    /// `places` places.
    fn withdraw(&mut self, (runs, count, places): (usize, u32, usize)) {
        self.runs.truncate(runs);
        self.places.truncate(places);
        if let Some(last) = self.runs.back_mut() {
            last.count = count;
        }
    }

    /// Whether no receive is posted.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The receive that the next message consumes.
    #[inline]
    pub(super) fn oldest(&self) -> Option<Receive> {
        self.runs.front().map(|run| run.first)
    }

    /// The place for the bytes at `offset` of the oldest receive.
    pub(super) fn place(&self, offset: u64) -> Option<Place> {
        let places = self.oldest()?.places();
        place_at(self.places.iter().take(places), offset)
    }

    /// Removes the oldest receive, whose message is complete.
    #[inline]
    pub(super) fn remove_oldest(&mut self) {
        let Some(run) = self.runs.front_mut() else { return };
        self.posted -= 1;
        let places = run.first.places();
        run.count -= 1;
        run.first = run.first.after(1);
        if run.count == 0 {
            self.runs.pop_front();
        }
        if places > 0 {
            self.places.drain(..places);
        }
    }

    /// Moves the oldest receive of `other` to the end of this queue. Returns whether there was one.
    fn take_oldest_of(&mut self, other: &mut Self) -> bool {
        let Some(receive) = other.oldest() else { return false };
        self.places.extend(other.places.range(..receive.places()));
        other.remove_oldest();
        self.runs.push_back(Run { first: receive, count: 1 });
        self.posted += 1;
        true
    }

    /// Moves all receives to the front of `other`.
    fn return_to(&mut self, other: &mut Self) {
        other.posted += std::mem::take(&mut self.posted);
        while let Some(run) = self.runs.pop_back() {
            other.runs.push_front(run);
        }
        while let Some(place) = self.places.pop_back() {
            other.places.push_front(place);
        }
    }

    /// See [`crate::MessageQueues::cancel_recv`]. `is_taken`: a message has consumed the oldest receive.
    pub(in crate::iwarp) fn cancel(&mut self, id: u64, is_taken: bool) -> bool {
        let holds = |run: &Run| id.wrapping_sub(run.first.id) < u64::from(run.count);
        let Some(at) = self.runs.iter().rposition(holds) else { return false };
        let Run { first, count } = self.runs[at];
        // It is less than `count`.
        let skipped = id.wrapping_sub(first.id) as u32;
        if is_taken && at == 0 && skipped == 0 {
            return false;
        }
        let before: usize = self.runs.range(..at).map(Run::places).sum();
        let start = before + skipped as usize * first.places();
        self.places.drain(start..start + first.places());
        let behind = Run { first: first.after(skipped + 1), count: count - skipped - 1 };
        self.runs[at].count = skipped;
        if behind.count > 0 {
            self.runs.insert(at + 1, behind);
        }
        if skipped == 0 {
            self.runs.remove(at);
        }
        self.posted -= 1;
        true
    }
}

impl Run {
    /// The longest run at the beginning of `requests`.
    fn begin(requests: &[RecvRequest<'_>]) -> Option<Self> {
        let first = Receive::new(requests.first()?);
        let follows = |(count, request): (u32, &RecvRequest<'_>)| Receive::new(request) == first.after(count);
        let others = (1..).zip(&requests[1..]).take_while(|&at| follows(at)).count();
        // They are at most the depth of the queue.
        Some(Self { first, count: 1 + others as u32 })
    }

    /// Checks the buffers of `requests`, which are those of this run. If they are segments, they are
    /// contiguous in one region.
    fn check(&self, requests: &[RecvRequest<'_>], regions: Option<&mut RegionCache>) -> Result<()> {
        let Receive { key, address, length, .. } = self.first;
        let length = u64::from(length) * u64::from(self.count);
        let mut regions = regions;
        let region = regions.as_deref_mut().zip(key).and_then(|(regions, key)| regions.find(key.get()));
        if region.is_some_and(|region| region.check(Access::LOCAL_WRITE, address, length).is_ok()) {
            return Ok(());
        }
        requests.iter().try_for_each(|request| match request.buffer {
            Buffer::Empty => Ok(()),
            Buffer::Places(places) => validate_places(places),
            Buffer::Segment(segment) => match &mut regions {
                Some(regions) => validate_segment(&segment, Access::LOCAL_WRITE, regions),
                None => Err(Error::Unsupported("receives for messages in registered memory")),
            },
        })
    }

    /// Number of the places of all its receives.
    fn places(&self) -> usize {
        self.count as usize * self.first.places()
    }
}

impl Receive {
    fn new(request: &RecvRequest<'_>) -> Self {
        let (key, address, length) = match request.buffer {
            Buffer::Empty => (0, 0, 0),
            Buffer::Segment(Segment { key, address, length }) => (key, address, length),
            // `validate_places` refuses places that are too long before this length is used.
            Buffer::Places(places) => {
                (0, places.len() as u64, u32::try_from(request.buffer.len()).unwrap_or(u32::MAX))
            }
        };
        Self { id: request.id, address, key: NonZeroU32::new(key), length }
    }

    /// The receive that follows this one in a run after `count` steps. A posted buffer ends within its
    /// region, so an address that wraps around belongs to no posted receive.
    #[inline]
    fn after(&self, count: u32) -> Self {
        let stride = if self.key.is_some() { u64::from(self.length) } else { 0 };
        let address = self.address.wrapping_add(u64::from(count) * stride);
        Self { id: self.id.wrapping_add(count.into()), address, ..*self }
    }

    /// Number of its places, at most [`MAX_PLACES`](super::MAX_PLACES).
    #[inline]
    pub(super) fn places(&self) -> usize {
        if self.key.is_none() { self.address as usize } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::region::ProtectionDomain;
    use crate::{Memory, MemoryRegion as _, ProtectionDomain as _};

    /// Posts and removes receives with these ids and slots; each is unchanged when it is removed.
    fn pass(chains: &[&[(u64, Option<u64>)]], runs: usize) {
        let domain = ProtectionDomain::default();
        let region = domain.register(Memory::zeroed(100).unwrap(), Access::LOCAL_WRITE).unwrap();
        let mut regions = RegionCache::new(domain);
        let segment = |slot| Segment { key: region.local_key(), address: slot * 10, length: 10 };
        let request = |&(id, slot): &(u64, Option<u64>)| RecvRequest {
            id,
            buffer: slot.map_or(Buffer::Empty, |slot| Buffer::Segment(segment(slot))),
        };
        let mut receives = Receives::new(16);
        let posted: Vec<_> = chains.iter().copied().flatten().map(request).collect();
        for chain in chains {
            let chain: Vec<_> = chain.iter().map(request).collect();
            receives.post(&chain, Some(&mut regions)).unwrap();
        }
        assert_eq!((receives.runs.len(), receives.room()), (runs, 16 - posted.len()));
        for request in &posted {
            assert_eq!(receives.oldest(), Some(Receive::new(request)));
            receives.remove_oldest();
        }
        assert_eq!((receives.oldest(), receives.room()), (None, 16));
    }

    #[test]
    fn slots_in_turn_are_one_run() {
        pass(&[&[(7, Some(0)), (8, Some(1))], &[(9, Some(2))]], 1);
        pass(&[&[(u64::MAX, None), (0, None), (1, None)]], 1);
    }

    #[test]
    fn all_are_posted_or_none() {
        let domain = ProtectionDomain::default();
        let region = domain.register(Memory::zeroed(100).unwrap(), Access::LOCAL_WRITE).unwrap();
        let mut regions = RegionCache::new(domain);
        let mut receives = Receives::new(16);
        let request = |id: u64, key, address| RecvRequest {
            id,
            buffer: Buffer::Segment(Segment { key, address, length: 10 }),
        };
        let key = region.local_key();
        receives.post(&[request(0, key, 0), request(1, key, 10)], Some(&mut regions)).unwrap();
        // Returns the key and address that are refused.
        let mut refused = |requests: &[RecvRequest]| {
            let outcome = receives.post(requests, Some(&mut regions));
            assert_eq!((receives.room(), receives.runs.len(), receives.runs[0].count), (14, 1, 2));
            match outcome {
                Err(Error::BadSegment { key, address, .. }) => (key, address),
                other => panic!("{other:?}"),
            }
        };
        // The first continues the run; the second is beyond the region, of no region, without a key.
        for (other, address) in [(key, 95), (key.wrapping_add(1), 30), (0, 30)] {
            let chain = [request(2, key, 20), request(9, other, address), request(10, key, 50)];
            assert_eq!(refused(&chain), (other, address));
        }
        let chain = [request(8, key, 80), request(9, key, 90), request(10, key, 100)];
        assert_eq!(refused(&chain), (key, 100));
    }

    #[test]
    fn receives_are_added_one_by_one_while_there_is_room() {
        let mut receives = Receives::new(4);
        let request = |id, address| RecvRequest {
            id,
            buffer: Buffer::Segment(Segment { key: 1, address, length: 10 }),
        };
        assert!(!receives.add(&request(0, 0)), "it needs memory");
        receives.post(&[RecvRequest { id: 0, buffer: Buffer::Empty }], None).unwrap();
        let added = [request(1, 0), request(2, 10), request(7, 20)];
        assert!(added.iter().all(|request| receives.add(request)));
        assert!(!receives.add(&request(8, 30)), "the queue is full");
        assert_eq!((receives.posted(), receives.runs.len()), (4, 3));
        receives.remove_oldest();
        for request in &added {
            assert_eq!(receives.oldest(), Some(Receive::new(request)));
            receives.remove_oldest();
        }
    }

    #[test]
    fn what_does_not_follow_begins_another() {
        pass(&[&[(0, Some(8)), (1, Some(9)), (0, Some(0)), (1, Some(1))]], 2);
        pass(&[&[(0, Some(0)), (2, Some(1)), (3, Some(3)), (4, None), (4, None)]], 5);
    }
}
