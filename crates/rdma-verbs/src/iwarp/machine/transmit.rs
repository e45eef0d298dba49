//! The sending half of an established connection.
//!
//! The stream has this order: staged bytes, then the current message, then alternately queued requests and
//! responses to the peer's reads. A message that has begun is finished before another begins. Nothing is sent
//! before [`Transmitter::open`].

mod post;
mod respond;

use std::collections::VecDeque;

use super::encode::{self, Chunk, Encoder, Gather};
use super::failed::Failed;
use super::reads::Reads;
use super::stream::{Output as _, Stream, Wire};
use super::train::Train;
use super::violation::Violation;
use super::work::{Body, Pending, Report, Sources, Work};
use super::{Port, Rules, Sink};
use crate::iwarp::region::RegionCache;
use crate::{CompletionKind, CompletionStatus, QpCapabilities, QpId};
use iwarp_wire::rdmap::{About, Opcode, Terminate};

/// Number of bytes sent by one [`Transmitter::pump`] after which the rest waits for the next one, so that a long
/// message to a peer that takes it as fast does not hold the caller.
const BURST: u64 = 4 << 20;
/// Minimum room in a chunk to begin another segment in it.
pub(super) const WORTHWHILE: usize = 2048;

/// See the module.
#[derive(Debug)]
pub(super) struct Transmitter {
    qp: QpId,
    capabilities: QpCapabilities,
    rules: Rules,
    encoder: Encoder,
    stream: Stream,
    /// Whether the peer may be sent to.
    open: bool,
    /// Whether a response to a read precedes the next queued request.
    response_first: bool,
    /// Queued requests: their bytes are not all in the stream.
    work: VecDeque<Work>,
    /// The local memory of `work`, in order.
    sources: Sources,
    /// The bytes of encoded inline requests in `work`, in order.
    encoded: VecDeque<u8>,
    /// Requests whose bytes are all in the stream and that are not complete.
    pending: VecDeque<Pending>,
    /// Position of the stream after the last completed request; 0: none has completed.
    completed: u64,
    /// Whether the last [`Transmitter::pump`] stopped after [`BURST`] bytes.
    paused: bool,
    fault: Option<Violation>,
}

/// What is sent next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The oldest queued request, or more of it.
    Request,
    /// A response to the peer's oldest read, or more of it.
    Response,
    Nothing,
}

impl Transmitter {
    pub(super) fn new(qp: QpId, (capabilities, rules): (QpCapabilities, Rules), max_payload: usize) -> Self {
        Self {
            qp,
            capabilities,
            rules,
            encoder: Encoder::new(max_payload, rules),
            stream: Stream::default(),
            open: false,
            response_first: false,
            work: VecDeque::new(),
            sources: Sources::default(),
            encoded: VecDeque::new(),
            pending: VecDeque::new(),
            completed: 0,
            paused: false,
            fault: None,
        }
    }

    /// A transmitter that can only send a Terminate. Its CRC is correct, whether or not the peer checks it.
    pub(super) fn for_terminate() -> Self {
        let capabilities = QpCapabilities {
            send_depth: 0,
            recv_depth: 0,
            inline: 0,
            initiator_depth: 0,
            responder_resources: 0,
        };
        let mut transmitter = Self::new(QpId(0), (capabilities, Rules::Verbs), 1);
        transmitter.set_crc(true);
        transmitter
    }

    pub(super) fn set_crc(&mut self, crc: bool) {
        self.encoder.crc = crc;
    }

    /// See [`super::Machine::may_send`].
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Allows sending to the peer.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// Stages the empty RDMA Write by which the active side opens the connection [RFC 6581 5-1, 9.2-8].
    pub(super) fn stage_ready_to_receive(&mut self) {
        let head = encode::tagged(Opcode::Write, 0, 0, 0, true);
        self.encoder.short(&head, &[], &mut self.stream);
    }

    /// See [`super::Machine::send_room`].
    pub(super) fn room(&self) -> usize {
        (self.capabilities.send_depth as usize).saturating_sub(self.work.len() + self.pending.len())
    }

    /// See [`super::Machine::pump`].
    pub(super) fn pump<W: Wire, S: Sink>(
        &mut self,
        reads: &mut Reads,
        regions: &mut RegionCache,
        port: &mut Port<'_, W, S>,
    ) {
        let end = self.stream.taken() + BURST;
        self.paused = false;
        while self.open
            && !self.has_fault()
            && self.stream.flush(port.wire)
            && !self.stream.is_closed()
            && self.has_more(reads)
        {
            if self.stream.taken() >= end {
                self.paused = true;
                break;
            }
            let next = self.next(reads);
            if self.is_direct(next, reads) {
                if self.advance_direct(next, reads, port) { continue } else { break }
            }
            let mut chunk = Chunk::new(port.scratch);
            self.fault = self.fill(&mut chunk, reads, regions).err();
            self.stream.send(chunk.bytes(), false, port.wire);
        }
        self.complete(reads, port.sink);
    }

    /// See [`super::Machine::is_paused`].
    pub(super) fn is_paused(&self, reads: &Reads) -> bool {
        self.paused && self.wants_socket(reads)
    }

    /// The reason why it cannot continue: memory of a message is no longer registered or cannot be read, or
    /// there is no memory for staging.
    pub(super) fn fault(&self) -> Option<Violation> {
        self.fault.or(self.stream.fault().copied())
    }

    /// Whether there is a [`Transmitter::fault`].
    #[inline]
    pub(super) fn has_fault(&self) -> bool {
        self.fault.is_some() || self.stream.fault().is_some()
    }

    /// Whether [`Transmitter::pump`] has something to do: bytes to send, or reads to report.
    pub(super) fn has_output(&self, reads: &Reads) -> bool {
        self.open && (self.stream.staged() > 0 || self.has_more(reads))
            || self.awaits_read()
            || self.stream.fault().is_some()
    }

    /// Whether it can send more once the socket is writable.
    pub(super) fn wants_socket(&self, reads: &Reads) -> bool {
        self.open && !self.stream.is_closed() && (self.stream.staged() > 0 || self.has_more(reads))
    }

    /// Whether the socket has taken everything that was posted, or never will.
    pub(super) fn is_drained(&self, reads: &Reads) -> bool {
        self.stream.is_closed() || self.stream.staged() == 0 && self.work.is_empty() && !reads.is_serving()
    }

    /// See [`super::Machine::sent_after_posted`].
    pub(super) fn sent_after_posted(&self) -> u64 {
        match self.pending.back().map_or(self.completed, |last| last.end) {
            0 => u64::MAX,
            end => self.stream.taken().saturating_sub(end),
        }
    }

    pub(super) fn shrink(&mut self) {
        self.stream.shrink();
    }

    /// Sends a Terminate as the last message. What the wire does not take remains staged.
    pub(super) fn terminate<W: Wire>(&mut self, terminate: Terminate, about: &About<'_>, wire: &mut W) {
        if !self.open {
            // The peer must not get what is staged yet. It can receive a Terminate, because it sent first.
            self.stream.discard();
        }
        self.encoder.terminate(terminate, about, &mut self.stream);
        self.stream.flush(wire);
    }

    /// See [`super::Machine::send_staged`].
    pub(super) fn send_staged(&mut self, wire: &mut impl Wire) -> bool {
        self.stream.flush(wire)
    }

    /// See [`super::Machine::discard_staged`].
    pub(super) fn discard_staged(&mut self) {
        self.stream.discard();
    }

    /// See [`super::Machine::give_up`].
    pub(super) fn give_up(&mut self, reads: &Reads) {
        let sent = self.pending.iter().rfind(|pending| pending.report.kind != CompletionKind::Read);
        self.completed = sent.map_or(self.completed, |last| last.end);
        let is_cut = |work: &Work| work.is_midway() && matches!(work.body, Body::Message(_));
        if reads.is_midway() || self.work.front().is_some_and(is_cut) {
            // Nothing can follow a part of a message, which serves nothing.
            self.stream.cut(self.completed);
        } else {
            self.stage_copied();
        }
        (self.pending, self.work, self.sources) = (VecDeque::new(), VecDeque::new(), Sources::default());
        self.encoded = VecDeque::new();
    }

    /// Stages the requests before the first one that refers to memory of the application.
    fn stage_copied(&mut self) {
        let mut encoded = &*self.encoded.make_contiguous();
        for work in &self.work {
            let left = match work.body {
                Body::Encoded { left, .. } => left,
                Body::Read(..) => 0,
                Body::Message(_) => break,
            };
            let (bytes, behind) = encoded.split_at(left);
            self.stream.copied(bytes);
            self.completed = self.stream.produced();
            encoded = behind;
        }
    }

    /// Completes what is outstanding as [`CompletionStatus::Flushed`], except the request that `failed`, and the one
    /// whose memory is no longer registered or cannot be read. What is staged remains.
    pub(super) fn flush(&mut self, failed: Option<Failed>, sink: &mut impl Sink) {
        let (mut reads_before, read_status) = match failed {
            Some(Failed::Read { before, status }) => (Some(before), status),
            _ => (None, CompletionStatus::Flushed),
        };
        let mut push = |report: Report, status| {
            let is_read = report.kind == CompletionKind::Read;
            let status = if is_read && reads_before == Some(0) { read_status } else { status };
            if is_read {
                reads_before = reads_before.and_then(|before| before.checked_sub(1));
            }
            sink.push(report.completion(self.qp, status));
        };
        for pending in std::mem::take(&mut self.pending) {
            push(pending.report, CompletionStatus::Flushed);
        }
        let mut status = match self.fault() {
            Some(Violation::LocalKey(_) | Violation::LocalPlace) => CompletionStatus::LocalAccess,
            _ if failed == Some(Failed::Write) => CompletionStatus::RemoteAccess,
            _ => CompletionStatus::Flushed,
        };
        for work in std::mem::take(&mut self.work) {
            push(work.report, status);
            status = CompletionStatus::Flushed;
        }
        self.sources = Sources::default();
        self.encoded = VecDeque::new();
    }

    /// Gives up the reads that are not requested yet, because responses are dropped from now on. They are
    /// flushed in the end. What is posted behind them is sent.
    pub(super) fn give_up_reads(&mut self) {
        for work in self.work.iter_mut().filter(|work| matches!(work.body, Body::Read(..))) {
            work.body = Body::Encoded { left: 0, started: false };
        }
    }

    /// Whether it is sending a write to this place of the peer's.
    pub(super) fn is_writing_to(&self, stag: u32, offset: u64) -> bool {
        match self.work.front() {
            Some(Work { body: Body::Message(message), .. }) => message.reaches(stag, offset),
            _ => false,
        }
    }

    /// Whether the oldest request that is not complete is a read.
    pub(super) fn awaits_read(&self) -> bool {
        self.pending.front().is_some_and(|pending| pending.report.kind == CompletionKind::Read)
    }

    fn has_more(&self, reads: &Reads) -> bool {
        reads.is_serving() || self.can_work(reads)
    }

    fn can_work(&self, reads: &Reads) -> bool {
        match self.work.front() {
            Some(Work { body: Body::Read(..), .. }) => reads.may_request(),
            Some(work) => !work.is_fenced || reads.are_done(),
            None => false,
        }
    }

    /// Reports the success of a request.
    #[inline]
    fn report(&mut self, done: &Pending, sink: &mut impl Sink) {
        if done.report.signaled {
            sink.push(done.report.completion(self.qp, CompletionStatus::Success));
        }
        self.completed = done.end;
    }

    /// What is sent next.
    fn next(&self, reads: &Reads) -> Next {
        let midway = self.work.front().is_some_and(Work::is_midway);
        let can_work = self.can_work(reads);
        let respond =
            reads.is_midway() || reads.is_serving() && !midway && (self.response_first || !can_work);
        match can_work {
            true if !respond => Next::Request,
            _ if reads.is_serving() => Next::Response,
            _ => Next::Nothing,
        }
    }

    /// Whether what is next is sent straight from its places, or from the memory that is read.
    fn is_direct(&self, next: Next, reads: &Reads) -> bool {
        match (next, self.work.front()) {
            (Next::Request, Some(Work { body: Body::Message(message), .. })) => {
                message.in_places && message.is_worth_a_call()
            }
            (Next::Response, _) => self.responds_direct(reads),
            _ => false,
        }
    }

    /// Sends a part of what is next straight from where it is. Returns whether the socket may take more.
    fn advance_direct<W: Wire, S: Sink>(
        &mut self,
        next: Next,
        reads: &mut Reads,
        port: &mut Port<'_, W, S>,
    ) -> bool {
        self.response_first = next == Next::Request;
        if next == Next::Request {
            return self.send_direct(port);
        }
        let responded = self.respond_direct(reads, port);
        self.fault = responded.err();
        responded == Ok(true)
    }

    /// Sends segments of the oldest queued request straight from its places. Returns whether the socket may take
    /// more.
    fn send_direct<W: Wire, S: Sink>(&mut self, port: &mut Port<'_, W, S>) -> bool {
        let Some(Work { report, body: Body::Message(message), .. }) = self.work.front_mut() else {
            return false;
        };
        let mut train = Train::new(port.scratch);
        message.load(&self.encoder, &mut Gather::new(self.sources.places.make_contiguous()), &mut train);
        let loaded = train.len();
        let Some(begun) = self.stream.send_train(&mut train, port.wire) else {
            // It is the oldest queued request that fails, and nothing is sent behind it.
            self.fault = Some(Violation::LocalPlace);
            self.stream.fail(Violation::LocalPlace);
            return false;
        };
        let (passed, is_complete) = message.pass(&self.encoder, begun);
        self.sources.advance(passed);
        if is_complete {
            let report = *report;
            self.work.pop_front();
            self.pending.push_back(Pending { report, end: self.stream.produced() });
        }
        begun == loaded
    }

    /// Fills `chunk` with what is sent next [RFC 5040 5.1-3, 5.2.1-6, 5.3-5, 5.5-4] [RFC 5041 5.3-1]
    /// [RFC 7306 6.3-6].
    fn fill(
        &mut self,
        chunk: &mut Chunk<'_>,
        reads: &mut Reads,
        regions: &mut RegionCache,
    ) -> std::result::Result<(), Violation> {
        while chunk.room() >= WORTHWHILE {
            let next = self.next(reads);
            match next {
                _ if self.is_direct(next, reads) => break,
                Next::Request => self.advance(chunk, reads, regions)?,
                Next::Response => self.respond(chunk, reads)?,
                Next::Nothing => break,
            }
            self.response_first = next == Next::Request;
        }
        Ok(())
    }

    /// Adds a part of the oldest queued request.
    fn advance(
        &mut self,
        chunk: &mut Chunk<'_>,
        reads: &mut Reads,
        regions: &mut RegionCache,
    ) -> std::result::Result<(), Violation> {
        let Some(work) = self.work.front_mut() else { return Ok(()) };
        let finished = match &mut work.body {
            Body::Encoded { left, started } => {
                let portion = (*left).min(chunk.room());
                let (front, back) = self.encoded.as_slices();
                let split = portion.min(front.len());
                chunk.copied(&front[..split]);
                chunk.copied(&back[..portion - split]);
                self.encoded.drain(..portion);
                *left -= portion;
                *started = true;
                *left == 0
            }
            Body::Read(request, places) => {
                reads.requested(request, *places);
                self.encoder.read_request(request, chunk);
                true
            }
            Body::Message(message) => {
                let (in_places, sources) = (message.in_places, &mut self.sources);
                let fill = |target: &mut [u8]| {
                    if in_places {
                        sources.copy_places(target)
                    } else {
                        sources.copy_segments(regions, target)
                    }
                };
                let advanced = message.advance(&self.encoder, chunk, fill);
                advanced.ok_or_else(|| {
                    Violation::LocalKey(self.sources.segments.front().map_or(0, |segment| segment.key))
                })?
            }
        };
        if finished {
            let (report, end) = (work.report, self.stream.produced() + chunk.bytes().len() as u64);
            self.work.pop_front();
            self.pending.push_back(Pending { report, end });
        }
        Ok(())
    }

    /// Completes the requests that the socket took, and the reads whose response is complete
    /// [RFC 5040 5.2.2-3, 5.5-2, 5.5-5, 5.5-6, 5.5-9, 5.5-11].
    pub(super) fn complete(&mut self, reads: &mut Reads, sink: &mut impl Sink) {
        let taken = self.stream.taken();
        while let Some(&oldest) = self.pending.front() {
            let is_done = match oldest.report.kind {
                CompletionKind::Read => reads.take_completed(),
                _ => oldest.end <= taken,
            };
            if !is_done {
                break;
            }
            self.report(&oldest, sink);
            self.pending.pop_front();
        }
    }
}
