//! Posted receives, in the order in which messages take them.
//!
//! There are hundreds of them to a queue pair, nearly always slots of one region in turn, so each stretch of
//! those is kept as one [`Run`].

use std::collections::VecDeque;
use std::num::NonZeroU32;

use rustix::io::Errno;

use super::Sink;
use super::admit::check_segment;
use crate::iwarp::region::RegionCache;
use crate::{
    Access, Completion, CompletionKind, CompletionStatus, Error, QpId, RecvRequest, Result, Segment,
};

/// The receives of a queue pair, at most `depth`.
#[derive(Debug)]
pub(super) struct Receives {
    qp: QpId,
    depth: u32,
    posted: usize,
    /// None of them empty.
    runs: VecDeque<Run>,
}

/// Receives whose numbers follow each other, and whose buffers do.
#[derive(Debug)]
struct Run {
    /// The oldest.
    first: Receive,
    count: u32,
}

/// A posted receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Receive {
    id: u64,
    /// Offset in the region.
    pub(super) address: u64,
    /// Key of the region; `None`: no payload is expected.
    pub(super) key: Option<NonZeroU32>,
    /// Bytes of room.
    pub(super) length: u32,
}

impl Receives {
    pub(super) fn new(qp: QpId, depth: u32) -> Self {
        Self { qp, depth, posted: 0, runs: VecDeque::new() }
    }

    /// See [`super::Machine::recv_room`].
    pub(super) fn room(&self) -> usize {
        (self.depth as usize).saturating_sub(self.posted)
    }

    /// Posts receives, all or none.
    pub(super) fn post(&mut self, requests: &[RecvRequest], regions: &mut RegionCache) -> Result<()> {
        let room = self.room();
        if requests.len() > room {
            let room = u32::try_from(room).unwrap_or(self.depth);
            return Err(Error::QueueFull { depth: self.depth, room, asked: requests.len() });
        }
        let before = (self.runs.len(), self.runs.back().map_or(0, |last| last.count));
        let outcome = self.append(requests, regions);
        match outcome {
            Ok(()) => self.posted += requests.len(),
            Err(_) => self.withdraw(before),
        }
        outcome
    }

    fn append(&mut self, mut requests: &[RecvRequest], regions: &mut RegionCache) -> Result<()> {
        while let Some(run) = Run::begin(requests) {
            let (of_run, rest) = requests.split_at(run.count as usize);
            run.check(of_run, regions)?;
            match self.runs.back_mut() {
                Some(last) if last.first.after(last.count) == run.first => last.count += run.count,
                _ => {
                    let no_memory = |_| Error::io("allocate a receive queue")(Errno::NOMEM);
                    self.runs.try_reserve(1).map_err(no_memory)?;
                    self.runs.push_back(run);
                }
            }
            requests = rest;
        }
        Ok(())
    }

    /// Takes back what was appended since there were `runs` runs, the last of them with `count` receives.
    fn withdraw(&mut self, (runs, count): (usize, u32)) {
        self.runs.truncate(runs);
        if let Some(last) = self.runs.back_mut() {
            last.count = count;
        }
    }

    /// The one that the next message takes.
    #[inline]
    pub(super) fn oldest(&self) -> Option<Receive> {
        self.runs.front().map(|run| run.first)
    }

    /// A message has taken the oldest.
    #[inline]
    pub(super) fn taken(&mut self) {
        let Some(run) = self.runs.front_mut() else { return };
        self.posted -= 1;
        run.count -= 1;
        run.first = run.first.after(1);
        if run.count == 0 {
            self.runs.pop_front();
        }
    }

    /// The completion of `receive`, with nothing received.
    #[inline]
    pub(super) fn completion(&self, receive: &Receive, status: CompletionStatus) -> Completion {
        let kind = CompletionKind::Recv;
        Completion { qp: self.qp, id: receive.id, kind, status, ..Completion::EMPTY }
    }

    /// Completes all as [`CompletionStatus::Flushed`], the oldest as `first`.
    pub(super) fn flush(&mut self, first: CompletionStatus, sink: &mut impl Sink) {
        let mut status = first;
        while let Some(receive) = self.oldest() {
            sink.push(self.completion(&receive, status));
            self.taken();
            status = CompletionStatus::Flushed;
        }
        self.runs = VecDeque::new();
    }
}

impl Run {
    /// The longest run that `requests` begin with.
    fn begin(requests: &[RecvRequest]) -> Option<Self> {
        let first = Receive::new(requests.first()?);
        let follows = |&(count, request): &(u32, &RecvRequest)| Receive::new(request) == first.after(count);
        let count = (0..).zip(requests).take_while(follows).count();
        // Within the depth of the queue.
        Some(Self { first, count: count as u32 })
    }

    /// Checks the buffers of `requests`, which are this run's. They are one stretch of one region.
    fn check(&self, requests: &[RecvRequest], regions: &mut RegionCache) -> Result<()> {
        let Receive { key, address, length, .. } = self.first;
        let length = u64::from(length) * u64::from(self.count);
        let region = key.and_then(|key| regions.find(key.get()));
        if region.is_some_and(|region| region.check(Access::LOCAL_WRITE, address, length).is_ok()) {
            return Ok(());
        }
        let mut buffers = requests.iter().filter_map(|request| request.buffer.as_ref());
        buffers.try_for_each(|buffer| check_segment(buffer, Access::LOCAL_WRITE, regions))
    }
}

impl Receive {
    fn new(request: &RecvRequest) -> Self {
        let buffer = request.buffer.unwrap_or(Segment { key: 0, address: 0, length: 0 });
        let Segment { key, address, length } = buffer;
        Self { id: request.id, address, key: NonZeroU32::new(key), length }
    }

    /// The receive that is the `count`th behind it in a run. A buffer ends within its region, so that what
    /// wraps around is none's address.
    #[inline]
    fn after(&self, count: u32) -> Self {
        let address = self.address.wrapping_add(u64::from(count) * u64::from(self.length));
        Self { id: self.id.wrapping_add(count.into()), address, ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::region::ProtectionDomain;
    use crate::{Memory, MemoryRegion as _, ProtectionDomain as _};

    /// Posts and takes receives of these numbers and slots; they come back as they were.
    fn pass(chains: &[&[(u64, Option<u64>)]], runs: usize) {
        let domain = ProtectionDomain::default();
        let region = domain.register(Memory::zeroed(100).unwrap(), Access::LOCAL_WRITE).unwrap();
        let mut regions = RegionCache::new(domain);
        let request = |&(id, slot): &(u64, Option<u64>)| RecvRequest {
            id,
            buffer: slot.map(|slot| Segment { key: region.local_key(), address: slot * 10, length: 10 }),
        };
        let mut receives = Receives::new(QpId(0), 16);
        let posted: Vec<_> = chains.iter().copied().flatten().map(request).collect();
        for chain in chains {
            let chain: Vec<_> = chain.iter().map(request).collect();
            receives.post(&chain, &mut regions).unwrap();
        }
        assert_eq!((receives.runs.len(), receives.room()), (runs, 16 - posted.len()));
        for request in &posted {
            assert_eq!(receives.oldest(), Some(Receive::new(request)));
            receives.taken();
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
        let mut receives = Receives::new(QpId(0), 16);
        let request =
            |id: u64, key, address| RecvRequest { id, buffer: Some(Segment { key, address, length: 10 }) };
        let key = region.local_key();
        receives.post(&[request(0, key, 0), request(1, key, 10)], &mut regions).unwrap();
        // The key and address that are refused.
        let mut refused = |requests: &[RecvRequest]| {
            let outcome = receives.post(requests, &mut regions);
            assert_eq!((receives.room(), receives.runs.len(), receives.runs[0].count), (14, 1, 2));
            match outcome {
                Err(Error::BadSegment { key, address, .. }) => (key, address),
                other => panic!("{other:?}"),
            }
        };
        // The first goes on the run; the second is beyond the region, of no region, without a key.
        for (other, address) in [(key, 95), (key.wrapping_add(1), 30), (0, 30)] {
            let chain = [request(2, key, 20), request(9, other, address), request(10, key, 50)];
            assert_eq!(refused(&chain), (other, address));
        }
        let chain = [request(8, key, 80), request(9, key, 90), request(10, key, 100)];
        assert_eq!(refused(&chain), (key, 100));
    }

    #[test]
    fn what_does_not_follow_begins_another() {
        pass(&[&[(0, Some(8)), (1, Some(9)), (0, Some(0)), (1, Some(1))]], 2);
        pass(&[&[(0, Some(0)), (2, Some(1)), (3, Some(3)), (4, None), (4, None)]], 5);
    }
}
