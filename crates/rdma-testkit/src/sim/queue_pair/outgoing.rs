//! The send queue: from posted requests over frames on the wire to completions.

use std::collections::VecDeque;

use super::{Entries, Finished, QueuePair, Sink};
use crate::sim::link::Frame;
use crate::sim::region::Regions;
use rdma_verbs::{
    Access, BreakReason, Completion, CompletionKind, CompletionStatus, Operation, QpId, Segment, Transport,
};

/// The requests of one queue pair, oldest first: on the wire, then waiting for it.
#[derive(Debug)]
pub(super) struct SendQueue {
    depth: u32,
    /// Requests whose end the consumer has not learnt of.
    occupied: u32,
    waiting: VecDeque<Request>,
    on_wire: VecDeque<OnWire>,
    /// Unsignalled requests that succeeded since the last completion.
    silent: u32,
    read_limit: u8,
    reads: u8,
}

/// A request as it was posted.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) signaled: bool,
    pub(super) operation: Operation,
    pub(super) payload: Captured,
}

/// The local bytes of a request.
#[derive(Debug)]
pub(super) enum Captured {
    /// Taken when it was posted.
    Bytes(Vec<u8>),
    /// Still in the consumer's registered memory.
    Segments(Vec<Segment>),
}

/// A request whose frame went out.
#[derive(Debug)]
struct OnWire {
    id: u64,
    signaled: bool,
    kind: CompletionKind,
    /// Where the bytes of a read go.
    target: Option<Segment>,
    done: bool,
}

impl SendQueue {
    pub(super) fn new(depth: u32) -> Self {
        Self {
            depth,
            occupied: 0,
            waiting: VecDeque::new(),
            on_wire: VecDeque::new(),
            silent: 0,
            read_limit: 0,
            reads: 0,
        }
    }

    pub(super) fn allow_reads(&mut self, limit: u8) {
        self.read_limit = limit;
    }

    pub(super) fn can_read(&self) -> bool {
        self.read_limit > 0
    }

    pub(super) fn room(&self) -> u32 {
        self.depth - self.occupied
    }

    /// Adds a request; the caller made sure of the room.
    pub(super) fn push(&mut self, request: Request) {
        self.occupied += 1;
        self.waiting.push_back(request);
    }

    pub(super) fn free(&mut self, count: u32) {
        self.occupied -= count;
    }

    /// Whether every request is done.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.on_wire.is_empty()
    }

    /// The request that is next to go out, if reads do not hold it back.
    fn next(&self) -> Option<&Request> {
        self.waiting.front().filter(|request| !request.is_read() || self.reads < self.read_limit)
    }

    /// The oldest waiting request went out; `done` if that is all it takes.
    fn sent(&mut self, done: bool) {
        let Some(request) = self.waiting.pop_front() else { return };
        let target = request.read_target();
        self.reads += u8::from(request.is_read());
        self.on_wire.push_back(OnWire {
            id: request.id,
            signaled: request.signaled,
            kind: request.kind(),
            done: done && !request.is_read(),
            target,
        });
    }

    /// Where the answer to the oldest read goes.
    pub(super) fn read_target(&self) -> Option<Segment> {
        self.on_wire.iter().find(|request| !request.done)?.target
    }

    /// The oldest request on the wire that was not done is done.
    pub(super) fn done(&mut self) {
        if let Some(request) = self.on_wire.iter_mut().find(|request| !request.done) {
            request.done = true;
            self.reads -= u8::from(request.kind == CompletionKind::Read);
        }
    }

    /// Reports what is done, in the order of posting.
    pub(super) fn settle(&mut self, qp: QpId, sink: &mut Sink) {
        while self.on_wire.front().is_some_and(|request| request.done)
            && let Some(request) = self.on_wire.pop_front()
        {
            if request.signaled {
                self.report(qp, request.id, request.kind, CompletionStatus::Success, sink);
            } else {
                self.silent += 1;
            }
        }
    }

    /// The oldest request on the wire failed; everything before it is settled.
    pub(super) fn fail_on_wire(&mut self, qp: QpId, status: CompletionStatus, sink: &mut Sink) {
        if let Some(request) = self.on_wire.pop_front() {
            self.report(qp, request.id, request.kind, status, sink);
        }
    }

    /// The oldest waiting request failed: those before it are flushed.
    fn fail_waiting(&mut self, qp: QpId, status: CompletionStatus, sink: &mut Sink) {
        self.flush_wire(qp, sink);
        if let Some(request) = self.waiting.pop_front() {
            self.report(qp, request.id, request.kind(), status, sink);
        }
    }

    /// Reports everything as flushed.
    pub(super) fn flush(&mut self, qp: QpId, sink: &mut Sink) {
        self.flush_wire(qp, sink);
        while let Some(request) = self.waiting.pop_front() {
            self.report(qp, request.id, request.kind(), CompletionStatus::Flushed, sink);
        }
    }

    fn flush_wire(&mut self, qp: QpId, sink: &mut Sink) {
        self.settle(qp, sink);
        while let Some(request) = self.on_wire.pop_front() {
            self.report(qp, request.id, request.kind, CompletionStatus::Flushed, sink);
        }
        self.reads = 0;
    }

    fn report(&mut self, qp: QpId, id: u64, kind: CompletionKind, status: CompletionStatus, sink: &mut Sink) {
        let completion = Completion { qp, id, kind, status, length: 0, immediate: None, invalidated: None };
        let frees = Entries::Send(std::mem::take(&mut self.silent) + 1);
        sink.push_back(Finished { completion, frees });
    }
}

impl Request {
    fn is_read(&self) -> bool {
        matches!(self.operation, Operation::Read { .. })
    }

    fn kind(&self) -> CompletionKind {
        match self.operation {
            Operation::Send { .. } => CompletionKind::Send,
            Operation::Write { .. } => CompletionKind::Write,
            Operation::Read { .. } => CompletionKind::Read,
        }
    }

    fn read_target(&self) -> Option<Segment> {
        match &self.payload {
            Captured::Segments(segments) if self.is_read() => segments.first().copied(),
            _ => None,
        }
    }

    /// What goes on the wire; the consumer's memory is read now. `None`: a region that was there
    /// when the request was posted is gone.
    fn frame(&self, regions: &Regions) -> Option<Frame> {
        Some(match self.operation {
            Operation::Send { immediate, invalidate, solicited: _ } => {
                Frame::Send { bytes: self.bytes(regions)?, immediate, invalidate }
            }
            Operation::Write { remote, immediate } => {
                Frame::Write { bytes: self.bytes(regions)?, remote, immediate }
            }
            Operation::Read { remote } => {
                Frame::ReadRequest { remote, length: self.read_target().map_or(0, |target| target.length) }
            }
        })
    }

    fn bytes(&self, regions: &Regions) -> Option<Vec<u8>> {
        let segments = match &self.payload {
            Captured::Bytes(bytes) => return Some(bytes.clone()),
            Captured::Segments(segments) => segments,
        };
        let mut bytes = Vec::new();
        for segment in segments {
            let place = regions.local(segment, Access::empty()).ok()?;
            let start = bytes.len();
            bytes.resize(start + segment.length as usize, 0);
            place.read(&mut bytes[start..]);
        }
        Some(bytes)
    }
}

impl QueuePair {
    /// Sends what the wire takes, then the announcement that nothing more comes, if it is time.
    pub(super) fn transmit(&mut self, sink: &mut Sink) {
        let Some(port) = &self.port else { return };
        let done = self.config.transport == Transport::Iwarp;
        while let Some(request) = self.sends.next()
            && port.has_room(self.config.wire)
        {
            let Some(frame) = request.frame(&self.regions) else {
                self.sends.fail_waiting(self.number, CompletionStatus::LocalAccess, sink);
                return self.break_off(BreakReason::Aborted, sink);
            };
            port.push(frame);
            self.sends.sent(done);
        }
        self.sends.settle(self.number, sink);
        if self.closing && !self.close_sent && self.sends.waiting.is_empty() {
            port.push(Frame::Close);
            self.close_sent = true;
        }
    }
}
