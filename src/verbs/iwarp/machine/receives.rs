//! Posted receives, in the order in which messages take them.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use rustix::io::Errno;

use super::Sink;
use super::admit::check_segment;
use crate::verbs::iwarp::region::RegionCache;
use crate::verbs::{
    Access, Completion, CompletionKind, CompletionStatus, Error, QpNumber, RecvRequest, Result, Segment,
};

/// The receives of a queue pair, at most `depth`.
#[derive(Debug)]
pub(super) struct Receives {
    qp: QpNumber,
    depth: u32,
    queue: VecDeque<Receive>,
}

/// A posted receive, packed: there are hundreds of them to a queue pair.
#[derive(Debug, Clone, Copy)]
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
    pub(super) fn new(qp: QpNumber, depth: u32) -> Self {
        Self { qp, depth, queue: VecDeque::new() }
    }

    /// See [`super::Machine::recv_room`].
    pub(super) fn room(&self) -> usize {
        (self.depth as usize).saturating_sub(self.queue.len())
    }

    /// Posts receives, all or none.
    pub(super) fn post(&mut self, requests: &[RecvRequest], regions: &mut RegionCache) -> Result<()> {
        let room = self.room();
        if requests.len() > room {
            let room = u32::try_from(room).unwrap_or(self.depth);
            return Err(Error::QueueFull { depth: self.depth, room, asked: requests.len() });
        }
        for buffer in requests.iter().filter_map(|request| request.buffer.as_ref()) {
            check_segment(buffer, Access::LOCAL_WRITE, regions)?;
        }
        if self.queue.capacity() == 0 {
            let no_memory = |_| Error::io("allocate a receive queue")(Errno::NOMEM);
            self.queue.try_reserve_exact(self.depth as usize).map_err(no_memory)?;
        }
        self.queue.extend(requests.iter().map(Receive::new));
        Ok(())
    }

    /// The one that the next message takes.
    #[inline]
    pub(super) fn oldest(&self) -> Option<Receive> {
        self.queue.front().copied()
    }

    /// A message has taken the oldest.
    #[inline]
    pub(super) fn taken(&mut self) {
        self.queue.pop_front();
    }

    /// The completion of `receive`, with nothing received.
    #[inline]
    pub(super) fn completion(&self, receive: &Receive, status: CompletionStatus) -> Completion {
        let kind = CompletionKind::Recv;
        Completion { qp: self.qp, id: receive.id, kind, status, ..Completion::EMPTY }
    }

    /// Completes all as flushed.
    pub(super) fn flush(&mut self, sink: &mut impl Sink) {
        for receive in std::mem::take(&mut self.queue) {
            sink.push(self.completion(&receive, CompletionStatus::Flushed));
        }
    }
}

impl Receive {
    fn new(request: &RecvRequest) -> Self {
        let buffer = request.buffer.unwrap_or(Segment { key: 0, address: 0, length: 0 });
        let Segment { key, address, length } = buffer;
        Self { id: request.id, address, key: NonZeroU32::new(key), length }
    }
}
