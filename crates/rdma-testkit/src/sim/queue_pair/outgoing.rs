//! The send queue: sends posted requests as frames, and completes them.

use std::collections::VecDeque;

use super::{Entries, Finished, QueuePair, ReadyList};
use crate::sim::link::Frame;
use crate::sim::region::Regions;
use rdma_verbs::{
    Access, BreakReason, Completion, CompletionKind, CompletionStatus, Operation, QpId, Segment, Transport,
};

/// The outstanding requests of one queue pair, oldest first: those that were sent, then those that wait.
#[derive(Debug)]
pub(super) struct SendQueue {
    depth: u32,
    /// Requests that no polled completion covers.
    occupied: u32,
    waiting: VecDeque<Request>,
    on_wire: VecDeque<OnWire>,
    /// Unsignaled requests that succeeded since the last completion.
    unsignaled: u32,
    read_limit: u8,
    reads: u8,
}

/// A request as it was posted.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) signaled: bool,
    pub(super) operation: Operation,
    pub(super) payload: LocalPayload,
}

/// The local memory of a request.
#[derive(Debug)]
pub(super) enum LocalPayload {
    /// Inline payload, copied when it was posted.
    Bytes(Vec<u8>),
    /// The consumer's registered memory.
    Segments(Vec<Segment>),
}

/// A request whose frame was sent.
#[derive(Debug)]
struct OnWire {
    id: u64,
    signaled: bool,
    kind: CompletionKind,
    /// The local memory that a read fills.
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
            unsignaled: 0,
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

    /// Adds a request. The caller made sure that there is room.
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

    /// The next request to send, unless it is a read and too many are outstanding.
    fn next(&self) -> Option<&Request> {
        self.waiting.front().filter(|request| !request.is_read() || self.reads < self.read_limit)
    }

    /// Notes that the oldest waiting request was sent, and whether that completes it unless it is a read.
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

    /// The local memory that the oldest read fills.
    pub(super) fn read_target(&self) -> Option<Segment> {
        self.on_wire.iter().find(|request| !request.done)?.target
    }

    /// Notes that the oldest unfinished request on the wire is done.
    pub(super) fn done(&mut self) {
        if let Some(request) = self.on_wire.iter_mut().find(|request| !request.done) {
            request.done = true;
            self.reads -= u8::from(request.kind == CompletionKind::Read);
        }
    }

    /// Reports the requests that are done, in the order of posting.
    pub(super) fn report_done(&mut self, qp: QpId, ready: &mut ReadyList) {
        while self.on_wire.front().is_some_and(|request| request.done)
            && let Some(request) = self.on_wire.pop_front()
        {
            if request.signaled {
                self.report(qp, request.id, request.kind, CompletionStatus::Success, ready);
            } else {
                self.unsignaled += 1;
            }
        }
    }

    /// Fails the oldest request on the wire. Those before it are reported already.
    pub(super) fn fail_on_wire(&mut self, qp: QpId, status: CompletionStatus, ready: &mut ReadyList) {
        if let Some(request) = self.on_wire.pop_front() {
            self.report(qp, request.id, request.kind, status, ready);
        }
    }

    /// Fails the oldest waiting request. Those on the wire are flushed.
    fn fail_waiting(&mut self, qp: QpId, status: CompletionStatus, ready: &mut ReadyList) {
        self.flush_wire(qp, ready);
        if let Some(request) = self.waiting.pop_front() {
            self.report(qp, request.id, request.kind(), status, ready);
        }
    }

    /// Flushes all requests.
    pub(super) fn flush(&mut self, qp: QpId, ready: &mut ReadyList) {
        self.flush_wire(qp, ready);
        while let Some(request) = self.waiting.pop_front() {
            self.report(qp, request.id, request.kind(), CompletionStatus::Flushed, ready);
        }
    }

    fn flush_wire(&mut self, qp: QpId, ready: &mut ReadyList) {
        self.report_done(qp, ready);
        while let Some(request) = self.on_wire.pop_front() {
            self.report(qp, request.id, request.kind, CompletionStatus::Flushed, ready);
        }
        self.reads = 0;
    }

    fn report(
        &mut self,
        qp: QpId,
        id: u64,
        kind: CompletionKind,
        status: CompletionStatus,
        ready: &mut ReadyList,
    ) {
        let completion = Completion { qp, id, kind, status, length: 0, immediate: None, invalidated: None };
        let frees = Entries::Send(std::mem::take(&mut self.unsignaled) + 1);
        ready.push_back(Finished { completion, frees });
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
            LocalPayload::Segments(segments) if self.is_read() => segments.first().copied(),
            _ => None,
        }
    }

    /// The frame of the request, for which the consumer's memory is read now. `None` if a region was dropped
    /// after the request was posted.
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
            LocalPayload::Bytes(bytes) => return Some(bytes.clone()),
            LocalPayload::Segments(segments) => segments,
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
    /// Sends the requests that the wire has room for, and [`Frame::Close`] after the last one of a connection
    /// that is closing.
    pub(super) fn transmit(&mut self, ready: &mut ReadyList) {
        let Some(port) = &self.port else { return };
        let done = self.config.transport == Transport::Iwarp;
        while let Some(request) = self.sends.next()
            && port.has_room(self.config.wire)
        {
            let Some(frame) = request.frame(&self.regions) else {
                self.sends.fail_waiting(self.number, CompletionStatus::LocalAccess, ready);
                return self.break_connection(BreakReason::Aborted, ready);
            };
            port.push(frame);
            self.sends.sent(done);
        }
        self.sends.report_done(self.number, ready);
        if self.closing && !self.close_sent && self.sends.waiting.is_empty() {
            port.push(Frame::Close);
            self.close_sent = true;
        }
    }
}
