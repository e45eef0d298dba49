//! Posting requests: what can be sent at once is, without being queued, and the rest waits for
//! [`Transmitter::pump`].

use rustix::io::Errno;

use super::super::encode::{self, Chunk};
use super::super::reads::Reads;
use super::super::stream::{Batch, Wire};
use super::super::validate::{inline, validate_request};
use super::super::violation::Violation;
use super::super::work::{Body, BufferModel, Pending, Report, Streamed, Work};
use super::super::{Port, Rules, Sink};
use super::Transmitter;
use crate::iwarp::region::RegionCache;
use crate::memory::{Source, can_be_read};
use crate::{Access, Error, Operation, Payload, Place, RemoteAddress, Result, Segment, SendRequest};
use iwarp_wire::rdmap::{self, ReadRequest};

/// Allowance for headers in staging, for each entry of the send queue: a small write with immediate data has
/// 55 bytes of headers.
const STAGED_HEADERS: usize = 64;
/// Bytes of inline payload, with all that belongs to it on the wire, that are always taken beside a request that is
/// queued.
const LITTLE: usize = 128;

impl Transmitter {
    /// See [`super::super::Machine::post_send`].
    pub(in super::super) fn post<W: Wire, S: Sink>(
        &mut self,
        requests: &[SendRequest<'_>],
        more: bool,
        reads: &mut Reads,
        regions: &mut RegionCache,
        port: &mut Port<'_, W, S>,
    ) -> Result<()> {
        let is_sent = match (requests, more) {
            ([request @ SendRequest { payload: Payload::Segments(_), .. }], false) => {
                self.send_at_once(request, reads, regions, port)
            }
            _ => false,
        };
        if !is_sent {
            self.post_any(requests, more, reads, regions, port)?;
        }
        if !self.pending.is_empty() {
            self.complete(reads, port.sink);
        }
        match self.stream.fault() {
            None => Ok(()),
            Some(Violation::LocalPlace) => {
                self.queue_unreadable(requests);
                Err(Error::io("read a place")(Errno::FAULT))
            }
            Some(_) => Err(Error::io("stage output")(Errno::NOMEM)),
        }
    }

    /// Posts requests that cannot be [sent at once](Transmitter::send_at_once).
    // 8 instructions fewer for each message of an endpoint for messages.
    #[inline(always)]
    fn post_any<W: Wire, S: Sink>(
        &mut self,
        requests: &[SendRequest<'_>],
        more: bool,
        reads: &mut Reads,
        regions: &mut RegionCache,
        port: &mut Port<'_, W, S>,
    ) -> Result<()> {
        self.check(requests, reads, regions)?;
        if !more && self.has_output(reads) {
            self.pump(reads, regions, port);
        }
        let is_free = self.work.is_empty() && !reads.is_midway();
        let is_ready = is_free && self.open && !more && self.stream.staged() == 0;
        let plain = requests.iter().all(|request| self.is_taken_at_once(request));
        if is_ready && plain {
            self.send_now(requests, port);
        } else if let ([request], true) = (requests, is_ready && !reads.is_serving())
            && let Some(segments) = self.short_segments(request, reads)
        {
            self.send_segments(request, segments, reads, regions, port);
        } else {
            let is_staged = plain && is_free;
            // What is behind a fault is queued, to be flushed.
            if !self.has_fault() {
                self.check_staging(requests, is_staged)?;
            }
            if is_staged {
                self.stage(requests);
            } else {
                self.queue(requests, reads);
            }
            if !more {
                self.pump(reads, regions, port);
            }
        }
        Ok(())
    }

    /// See [`super::super::Machine::send_at_once`].
    pub(in super::super) fn send_at_once<W: Wire, S: Sink>(
        &mut self,
        request: &SendRequest<'_>,
        reads: &Reads,
        regions: &mut RegionCache,
        port: &mut Port<'_, W, S>,
    ) -> bool {
        let (Operation::Send { immediate: None, .. } | Operation::Write { .. }) = request.operation else {
            return false;
        };
        let Payload::Segments(&[Segment { key, address, length }]) = request.payload else { return false };
        let is_first = self.open && self.work.is_empty() && self.stream.staged() == 0;
        let is_alone = is_first && !reads.is_serving() && !reads.is_midway();
        if !is_alone || self.room() == 0 || self.rules != Rules::Verbs || !self.is_short(length.into()) {
            return false;
        }
        let Some(region) = regions.find(key) else { return false };
        let Ok(offset) = region.check(Access::empty(), address, length.into()) else { return false };
        self.send_short(request, port, |target| encode::copy(region.memory(), offset, target))
    }

    /// Checks whether the requests can be posted; changes nothing.
    fn check(&self, requests: &[SendRequest<'_>], reads: &Reads, regions: &mut RegionCache) -> Result<()> {
        let room = self.room();
        if requests.len() > room {
            return Err(self.queue_full(room, requests.len()));
        }
        for request in requests {
            let limits = (self.capabilities.inline, self.rules);
            validate_request(request, limits, reads.initiator_depth, regions)?;
        }
        Ok(())
    }

    /// Checks whether there is room for the payload that is copied: that of all requests if they are to be staged, or
    /// inline payload. If nothing waits there always is, because the caller bounds the size of a chain. So there is for
    /// [a little](LITTLE) inline payload beside a request that is queued, because the depth of the queue bounds those.
    fn check_staging(&self, requests: &[SendRequest<'_>], is_staged: bool) -> Result<()> {
        let waiting = self.stream.staged() + self.encoded.len();
        let bound = self.capabilities.inline + self.capabilities.send_depth as usize * STAGED_HEADERS;
        let copied = requests.iter().filter(|request| is_staged || inline(request).is_some());
        let (number, added) = copied.fold((0, 0), |(number, added), request| {
            (number + 1, added + self.encoder.bound(request.payload.len()))
        });
        let spare = if number < requests.len() { number * LITTLE } else { 0 };
        if waiting > 0 && added > spare && waiting + added > bound {
            return Err(self.queue_full(0, requests.len()));
        }
        Ok(())
    }

    fn queue_full(&self, room: usize, asked: usize) -> Error {
        let depth = self.capabilities.send_depth;
        Error::QueueFull { depth, room: u32::try_from(room).unwrap_or(depth), asked }
    }

    /// Sends requests straight from the caller's memory.
    fn send_now<W: Wire, S: Sink>(&mut self, requests: &[SendRequest<'_>], port: &mut Port<'_, W, S>) {
        let Some((last, earlier)) = requests.split_last() else { return };
        let mut batch = Batch::new(&mut self.stream, port.wire, port.scratch);
        for request in earlier {
            self.encoder.request(request, &mut batch);
            self.pending.push_back(Pending { report: Report::of(request), end: batch.position() });
        }
        self.encoder.request(last, &mut batch);
        batch.finish();
        self.sent(last, port.sink);
    }

    /// If a place that cannot be read has kept some of these requests from the stream, queues the one whose place that
    /// is, as the oldest, and those behind it.
    #[cold]
    fn queue_unreadable(&mut self, requests: &[SendRequest<'_>]) {
        // If some are queued, it is the oldest of them.
        if !self.work.is_empty() || self.rules != Rules::Messages {
            return;
        }
        let taken = self.stream.taken();
        let missing = self.pending.iter().rev().take_while(|pending| pending.end > taken).count();
        let requests = &requests[requests.len().saturating_sub(missing)..];
        // The only one needs no look.
        let readable =
            if missing > 1 { requests.iter().take_while(|one| has_readable_places(one)).count() } else { 0 };
        let first = self.pending.len() - missing + readable;
        let queued = self.pending.drain(first..).map(|Pending { report, .. }| Work {
            report,
            is_fenced: false,
            body: Body::Encoded { left: 0, started: false },
        });
        self.work.extend(queued);
    }

    /// Completes a request that is a send or write, and the last one in the stream, as soon as all is taken.
    #[inline]
    fn sent(&mut self, request: &SendRequest<'_>, sink: &mut impl Sink) {
        let pending = Pending { report: Report::of(request), end: self.stream.produced() };
        // Usually that is now.
        if self.pending.is_empty() && pending.end <= self.stream.taken() {
            self.report(&pending, sink);
        } else {
            self.pending.push_back(pending);
        }
    }

    /// The segments of a send or write that one segment of DDP can carry, if nothing has to precede it.
    fn short_segments<'a>(&self, request: &SendRequest<'a>, reads: &Reads) -> Option<&'a [Segment]> {
        let segments = match request.payload {
            Payload::Segments(segments) => segments,
            Payload::Fenced(segments) if reads.are_done() => segments,
            Payload::Fenced(_) | Payload::Inline(_) | Payload::Places(_) => return None,
        };
        let is_short = self.is_short(request.payload.len() as u64);
        Some(segments).filter(|_| is_short && !matches!(request.operation, Operation::Read { .. }))
    }

    /// Whether one segment of DDP can carry a message.
    fn is_short(&self, length: u64) -> bool {
        self.encoder.portion(length) as u64 == length
    }

    /// Sends a message of [`Transmitter::short_segments`], without queuing it.
    fn send_segments<W: Wire, S: Sink>(
        &mut self,
        request: &SendRequest<'_>,
        segments: &[Segment],
        reads: &mut Reads,
        regions: &mut RegionCache,
        port: &mut Port<'_, W, S>,
    ) {
        let mut segments = segments.iter().filter(|segment| segment.length > 0);
        let mut used = 0;
        let is_sent = self.send_short(request, port, |target| {
            let Some(&Segment { key, address, length }) = segments.next() else { return 0 };
            used = key;
            let Some(region) = regions.find(key) else { return 0 };
            encode::copy(region.memory(), region.offset(address), &mut target[..length as usize])
        });
        if !is_sent {
            // Another thread has deregistered the memory since it was checked.
            self.fault = Some(Violation::LocalKey(used));
            self.queue(std::slice::from_ref(request), reads);
        }
    }

    /// Sends a message of one segment of DDP, whose payload `fill` copies as [`Chunk::segment`] says. Returns
    /// whether the payload could be copied. If not, nothing is sent.
    #[inline]
    fn send_short<W: Wire, S: Sink>(
        &mut self,
        request: &SendRequest<'_>,
        port: &mut Port<'_, W, S>,
        fill: impl FnMut(&mut [u8]) -> usize,
    ) -> bool {
        let Ok(mut message) = self.message(request) else { return false };
        let mut chunk = Chunk::new(port.scratch);
        if message.advance(&self.encoder, &mut chunk, fill).is_none() {
            return false;
        }
        self.stream.send(chunk.bytes(), false, port.wire);
        self.sent(request, port.sink);
        true
    }

    /// Stages requests.
    fn stage(&mut self, requests: &[SendRequest<'_>]) {
        for request in requests {
            self.encoder.request(request, &mut self.stream);
            self.pending.push_back(Pending { report: Report::of(request), end: self.stream.produced() });
        }
    }

    /// Queues requests of any kind after those that are queued.
    fn queue(&mut self, requests: &[SendRequest<'_>], reads: &mut Reads) {
        for (at, request) in requests.iter().enumerate() {
            let body = if inline(request).is_some() {
                let before = self.encoded.len();
                self.encoder.request(request, &mut self.encoded);
                Body::Encoded { left: self.encoded.len() - before, started: false }
            } else {
                match self.message(request) {
                    Ok(message) => {
                        self.sources.add(request.payload);
                        Body::Message(message)
                    }
                    Err(remote) => {
                        let body = read(request.payload, remote, reads);
                        if request.payload.is_empty() {
                            confirm(&requests[..at], reads);
                        }
                        body
                    }
                }
            };
            let is_fenced = matches!(request.payload, Payload::Fenced(_));
            self.work.push_back(Work { report: Report::of(request), is_fenced, body });
        }
    }

    /// The message of a send or write, or the source of a read.
    fn message(&mut self, request: &SendRequest<'_>) -> std::result::Result<Streamed, RemoteAddress> {
        let mut length = request.payload.len() as u64;
        let (mut leading, mut trailing) = (None, None);
        let model = match request.operation {
            Operation::Write { remote, immediate } => {
                trailing = immediate.map(|data| (self.encoder.immediate_of_write(), data));
                BufferModel::Tagged(remote)
            }
            Operation::Send { immediate: Some(data), solicited, .. } => {
                leading = Some(data);
                length += rdmap::IMMEDIATE as u64;
                BufferModel::Untagged(self.encoder.message_with_data(solicited))
            }
            Operation::Send { invalidate, solicited, .. } => {
                BufferModel::Untagged(self.encoder.message(invalidate, solicited, length))
            }
            Operation::Read { remote } => return Err(remote),
        };
        let in_places = matches!(request.payload, Payload::Places(_));
        Ok(Streamed {
            model,
            in_places,
            leading_immediate: leading,
            trailing_immediate: trailing,
            length,
            sent: 0,
        })
    }

    /// Whether the payload of a request is taken when it is posted, if nothing is queued before it. Referring
    /// to a short payload in places costs more than taking it.
    fn is_taken_at_once(&self, request: &SendRequest<'_>) -> bool {
        inline(request).is_some()
            || matches!(request.payload, Payload::Places(_))
                && !matches!(request.operation, Operation::Read { .. })
                && self.stream.staged() == 0
                && request.payload.len() <= self.capabilities.inline
    }
}

/// Whether the places of a request, if it has some, can be read.
fn has_readable_places(request: &SendRequest<'_>) -> bool {
    let Payload::Places(places) = request.payload else { return true };
    let sources: Vec<_> = places.iter().map(|place| Source::from(place.bytes())).collect();
    can_be_read(&sources)
}

/// The queued form of a read.
fn read(payload: Payload<'_>, remote: RemoteAddress, reads: &mut Reads) -> Body {
    let (sink, places): (_, &[Place]) = match payload {
        Payload::Segments(segments) => (segments.first().copied(), &[]),
        Payload::Places(places) => (None, places),
        Payload::Inline(_) | Payload::Fenced(_) => (None, &[]),
    };
    reads.post(places);
    // For places, key and address have no meaning. Validation bounds their number by `MAX_PLACES` and their
    // length by `MAX_MESSAGE`.
    let sink = sink.unwrap_or(Segment { key: 0, address: 0, length: payload.len() as u32 });
    let request = ReadRequest {
        sink_stag: sink.key,
        sink_offset: sink.address,
        length: sink.length,
        source_stag: remote.key,
        source_offset: remote.address,
    };
    Body::Read(request, places.len() as u8)
}

/// Records that a read of no bytes confirms the writes right before it, which end `before`.
fn confirm(before: &[SendRequest<'_>], reads: &mut Reads) {
    let remote = |request: &SendRequest<'_>| match request.operation {
        Operation::Write { remote, .. } => Some((remote, request.payload.len() as u64)),
        Operation::Send { .. } | Operation::Read { .. } => None,
    };
    let first = before.iter().rposition(|request| remote(request).is_none()).map_or(0, |other| other + 1);
    before[first..].iter().filter_map(remote).for_each(|(remote, length)| reads.confirm(remote, length));
}
