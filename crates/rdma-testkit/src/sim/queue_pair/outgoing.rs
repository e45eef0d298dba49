//! The send queue: sends posted requests as frames, and completes them.

use std::collections::VecDeque;

use super::local::LocalMemory;
use super::{Entries, Finished, QueuePair, ReadyList};
use crate::sim::link::Frame;
use crate::sim::region::Regions;
use rdma_verbs::{
    BreakReason, Completion, CompletionKind, CompletionStatus, Operation, QpId, Result, Transport,
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
    /// No further reads are sent: they are [lost](Progress::Lost).
    gives_up_reads: bool,
}

/// A request as it was posted.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) signaled: bool,
    /// Whether it is sent when the reads before it are done.
    pub(super) is_fenced: bool,
    pub(super) operation: Operation,
    pub(super) payload: LocalPayload,
}

/// The local memory of a request.
#[derive(Debug)]
pub(super) enum LocalPayload {
    /// Inline payload, copied when it was posted.
    Bytes(Vec<u8>),
    /// The consumer's memory.
    Memory(LocalMemory),
}

/// A request whose frame was sent.
#[derive(Debug)]
struct OnWire {
    id: u64,
    signaled: bool,
    kind: CompletionKind,
    /// The local memory that a read fills.
    target: Option<LocalMemory>,
    progress: Progress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Outstanding,
    Done,
    /// A read whose response was dropped, or that was given up. It is flushed in the end.
    Lost,
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
            gives_up_reads: false,
        }
    }

    /// Gives up the reads that were not sent, because responses are dropped from now on.
    pub(super) fn give_up_reads(&mut self) {
        self.gives_up_reads = true;
    }

    /// Whether the oldest waiting request is given up.
    fn gives_up_next(&self) -> bool {
        self.gives_up_reads && self.waiting.front().is_some_and(Request::is_read)
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

    /// The next request to send, unless it is a read and too many are outstanding, or fenced and some are.
    fn next(&self) -> Option<&Request> {
        let limit = |request: &Request| match request {
            Request { is_fenced: true, .. } => Some(1),
            request => request.is_read().then_some(self.read_limit),
        };
        self.waiting.front().filter(|request| limit(request).is_none_or(|limit| self.reads < limit))
    }

    /// Notes that the oldest waiting request was sent and is as far as this.
    fn sent(&mut self, progress: Progress) {
        let Some(request) = self.waiting.pop_front() else { return };
        let is_read = request.is_read();
        self.reads += u8::from(is_read && progress == Progress::Outstanding);
        self.on_wire.push_back(OnWire {
            id: request.id,
            signaled: request.signaled,
            kind: request.kind(),
            progress,
            target: match request.payload {
                LocalPayload::Memory(memory) if is_read => Some(memory),
                _ => None,
            },
        });
    }

    /// The oldest request on the wire that is not finished.
    fn oldest(&mut self) -> Option<&mut OnWire> {
        self.on_wire.iter_mut().find(|request| request.progress == Progress::Outstanding)
    }

    /// The local memory that the oldest read fills.
    pub(super) fn read_target(&mut self) -> Option<&LocalMemory> {
        self.oldest()?.target.as_ref()
    }

    /// Notes that the oldest unfinished request on the wire is done.
    pub(super) fn done(&mut self) {
        self.finish(Progress::Done);
    }

    /// Notes that the response to the oldest read was dropped.
    pub(super) fn lose_response(&mut self) {
        self.finish(Progress::Lost);
    }

    fn finish(&mut self, progress: Progress) {
        if let Some(request) = self.oldest() {
            request.progress = progress;
            let is_read = request.kind == CompletionKind::Read;
            self.reads -= u8::from(is_read);
        }
    }

    /// Removes the request that was sent first, if it has got so far.
    fn pop_if(&mut self, progress: Progress) -> Option<OnWire> {
        if self.on_wire.front()?.progress == progress { self.on_wire.pop_front() } else { None }
    }

    /// Reports the requests that are done, in the order of posting.
    pub(super) fn report_done(&mut self, qp: QpId, ready: &mut ReadyList) {
        while let Some(request) = self.pop_if(Progress::Done) {
            if request.signaled {
                self.report(qp, request.id, request.kind, CompletionStatus::Success, ready);
            } else {
                self.unsignaled += 1;
            }
        }
    }

    /// Fails the oldest unfinished request on the wire, after the report of those before it.
    pub(super) fn fail_on_wire(&mut self, qp: QpId, status: CompletionStatus, ready: &mut ReadyList) {
        self.report_done(qp, ready);
        while let Some(request) = self.pop_if(Progress::Lost) {
            self.report(qp, request.id, request.kind, CompletionStatus::Flushed, ready);
            self.report_done(qp, ready);
        }
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

    /// The frame of the request, for which the consumer's memory is read now.
    ///
    /// # Errors
    /// A region was dropped after the request was posted.
    fn frame(&self, regions: &Regions) -> Result<Frame> {
        Ok(match self.operation {
            Operation::Send { immediate, invalidate, solicited: _ } => {
                Frame::Send { bytes: self.payload.bytes(regions)?, immediate, invalidate }
            }
            Operation::Write { remote, immediate } => {
                Frame::Write { bytes: self.payload.bytes(regions)?, remote, immediate }
            }
            Operation::Read { remote } => Frame::ReadRequest { remote, length: self.payload.len() },
        })
    }
}

impl LocalPayload {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Memory(memory) => memory.len(),
        }
    }

    fn bytes(&self, regions: &Regions) -> Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.clone()),
            Self::Memory(memory) => memory.read(regions),
        }
    }
}

impl QueuePair {
    /// Sends the requests that the wire has room for, and [`Frame::Close`] after the last one of a connection
    /// that is closing.
    pub(super) fn transmit(&mut self, ready: &mut ReadyList) {
        let Some(port) = &self.port else { return };
        let early = self.config.transport == Transport::Iwarp;
        loop {
            if self.sends.gives_up_next() {
                self.sends.sent(Progress::Lost);
                continue;
            }
            let Some(request) = self.sends.next().filter(|_| port.has_room(self.config.wire)) else { break };
            let is_done = early && !request.is_read();
            let Ok(frame) = request.frame(&self.regions) else {
                self.sends.fail_waiting(self.number, CompletionStatus::LocalAccess, ready);
                return self.break_connection(BreakReason::Aborted, ready);
            };
            port.push(frame);
            self.sends.sent(if is_done { Progress::Done } else { Progress::Outstanding });
        }
        self.sends.report_done(self.number, ready);
        if self.closing && !self.close_sent && self.sends.waiting.is_empty() {
            port.push(Frame::Close);
            self.close_sent = true;
        }
    }
}
