//! Requests in the transmitter: queued, partly sent, or waiting for completion.

use std::collections::VecDeque;

use super::encode::{self, Chunk, Encoder, Gather, Head, Message};
use super::stream::Output;
use super::train::Train;
use crate::iwarp::region::RegionCache;
use crate::{
    Completion, CompletionKind, CompletionStatus, Operation, Payload, Place, QpId, RemoteAddress, Segment,
    SendRequest,
};
use iwarp_wire::rdmap::{self, Opcode, ReadRequest};

/// Minimum length of a message for which a system call of its own costs less than copying it.
const DIRECT: u64 = 8192;

/// A queued request: its bytes are not all in the stream.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) report: Report,
    /// Whether it begins when the reads before it are done.
    pub(super) is_fenced: bool,
    pub(super) body: Body,
}

/// What the completion of a request reports.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) id: u64,
    pub(super) kind: CompletionKind,
    pub(super) signaled: bool,
}

/// The part of a request that is not in the stream yet.
#[derive(Debug)]
pub(super) enum Body {
    /// Inline payload, encoded when it was posted, in the transmitter's queue of bytes.
    Encoded {
        /// Number of bytes that are not in the stream.
        left: usize,
        /// Whether some are in the stream.
        started: bool,
    },
    /// A message of registered memory or places.
    Message(Streamed),
    /// A read to request, and the number of its places.
    Read(ReadRequest, u8),
}

/// A message of registered memory or places that is streamed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streamed {
    pub(super) model: BufferModel,
    /// Whether its bytes are in places, rather than in registered memory.
    pub(super) in_places: bool,
    /// Immediate data that precedes its payload.
    pub(super) leading_immediate: Option<u64>,
    /// Immediate data that follows the message.
    pub(super) trailing_immediate: Option<(Message, u64)>,
    /// Number of bytes of payload and leading immediate data.
    pub(super) length: u64,
    /// Number of these bytes that are in the stream.
    pub(super) sent: u64,
}

/// The local memory of the queued messages, in order.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) segments: VecDeque<Segment>,
    pub(super) places: VecDeque<Place>,
}

/// Where a message goes, by the buffer models of DDP.
#[derive(Debug, Clone, Copy)]
pub(super) enum BufferModel {
    /// To the peer's memory.
    Tagged(RemoteAddress),
    /// To the peer's next receive.
    Untagged(Message),
}

/// A request whose bytes are all in the stream, and that is not complete.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    pub(super) report: Report,
    /// Position of the stream after its last byte.
    pub(super) end: u64,
}

/// Whether so many bytes from `remote` on include this one.
pub(super) fn reaches(remote: RemoteAddress, length: u64, stag: u32, offset: u64) -> bool {
    remote.key == stag && offset.wrapping_sub(remote.address) < length
}

impl Work {
    /// Whether its message is partly in the stream.
    pub(super) fn is_midway(&self) -> bool {
        match self.body {
            Body::Encoded { started, .. } => started,
            Body::Message(message) => message.sent > 0,
            Body::Read(..) => false,
        }
    }
}

impl Report {
    /// The report of `request`.
    pub(super) fn of(request: &SendRequest<'_>) -> Self {
        let kind = match request.operation {
            Operation::Send { .. } => CompletionKind::Send,
            Operation::Write { .. } => CompletionKind::Write,
            Operation::Read { .. } => CompletionKind::Read,
        };
        Self { id: request.id, kind, signaled: request.signaled }
    }

    /// The completion with this status.
    pub(super) fn completion(self, qp: QpId, status: CompletionStatus) -> Completion {
        Completion { qp, id: self.id, kind: self.kind, status, ..Completion::EMPTY }
    }
}

impl Streamed {
    /// Whether it is a write of which a part is sent, to memory with this byte.
    pub(super) fn reaches(&self, stag: u32, offset: u64) -> bool {
        match self.model {
            BufferModel::Tagged(remote) => reaches(remote, self.sent, stag, offset),
            BufferModel::Untagged(_) => false,
        }
    }

    /// Adds a segment, whose payload `fill` copies as [`Chunk::segment`] says. Returns whether the message is
    /// complete; `None`: the payload could not be copied [RFC 5040 5.1-4]
    /// [RFC 5041 4.1-3, 4.1-4, 4.1-5, 4.1-6, 5.2-3, 5.2-7, 5.3-2].
    pub(super) fn advance(
        &mut self,
        encoder: &Encoder,
        chunk: &mut Chunk<'_>,
        fill: impl FnMut(&mut [u8]) -> usize,
    ) -> Option<bool> {
        let (portion, last) = self.portion(encoder, chunk.room());
        let (head, payload) = self.head(portion, last);
        if !chunk.segment(encoder, &head, payload, fill) {
            return None;
        }
        self.sent += portion as u64;
        if last {
            self.finish(encoder, chunk);
        }
        Some(last)
    }

    /// Adds its next segments to `train`, as many as that has room for. `gather` has its places. [`Streamed::pass`]
    /// records which of them are sent.
    pub(super) fn load<'m>(
        mut self,
        encoder: &Encoder,
        gather: &mut Gather<'m, Place>,
        train: &mut Train<'m>,
    ) {
        while train.has_room() {
            let (portion, last) = self.portion(encoder, usize::MAX);
            let (head, payload) = self.head(portion, last);
            encoder.segment(&head, gather, payload, train);
            self.sent += portion as u64;
            if last {
                self.finish(encoder, train);
            }
            train.end_fpdu();
            if last {
                break;
            }
        }
    }

    /// Records that its next segments, so many of them, are in the stream. Returns how many bytes of its places that
    /// is, and whether the message is complete.
    pub(super) fn pass(&mut self, encoder: &Encoder, segments: usize) -> (usize, bool) {
        let leading = self.leading_immediate.filter(|_| self.sent == 0 && segments > 0);
        let before = self.sent;
        let is_complete = (0..segments).fold(false, |_, _| {
            let (portion, last) = self.portion(encoder, usize::MAX);
            self.sent += portion as u64;
            last
        });
        let passed = (self.sent - before) as usize - leading.map_or(0, |_| rdmap::IMMEDIATE);
        (passed, is_complete)
    }

    /// Whether it is long enough for system calls of its own.
    pub(super) fn is_worth_a_call(&self) -> bool {
        self.length >= DIRECT
    }

    /// Length of the next segment, at most `room`, and whether it is the last.
    fn portion(&self, encoder: &Encoder, room: usize) -> (usize, bool) {
        let left = self.length - self.sent;
        let portion = encoder.portion(left).min(room);
        (portion, portion as u64 == left)
    }

    /// The head of the next segment of `portion` bytes, and how many of them follow the head.
    fn head(&self, portion: usize, last: bool) -> (Head, usize) {
        let mut head = match self.model {
            BufferModel::Tagged(remote) => encode::tagged(
                Opcode::Write,
                remote.key,
                remote.address.wrapping_add(self.sent),
                portion,
                last,
            ),
            BufferModel::Untagged(message) => message.head(self.sent, portion, last),
        };
        let leading = self.leading_immediate.filter(|_| self.sent == 0);
        let leading = leading.map_or(0, |immediate| head.prepend_immediate(immediate));
        (head, portion - leading)
    }

    /// Adds the immediate data that follows the message, if there is some.
    fn finish<'a>(&self, encoder: &Encoder, output: &mut impl Output<'a>) {
        if let Some((message, word)) = self.trailing_immediate {
            encoder.short(&message.head(0, rdmap::IMMEDIATE, true), &rdmap::emit_immediate(word), output);
        }
    }
}

impl Sources {
    /// Adds the memory of a message.
    pub(super) fn add(&mut self, payload: Payload<'_>) {
        match payload {
            Payload::Places(places) => {
                self.places.extend(places.iter().filter(|place| !place.is_empty()));
            }
            Payload::Segments(segments) | Payload::Fenced(segments) => {
                self.segments.extend(segments.iter().filter(|segment| segment.length > 0));
            }
            Payload::Inline(_) => {}
        }
    }

    /// Copies the next bytes of registered memory and removes them. Returns their number; 0: the memory is no
    /// longer registered.
    pub(super) fn copy_segments(&mut self, regions: &mut RegionCache, target: &mut [u8]) -> usize {
        let Some(segment) = self.segments.front_mut() else { return 0 };
        let Some(region) = regions.find(segment.key) else { return 0 };
        // Both lengths fit in `u32`, because that of a segment does.
        let count = target.len().min(segment.length as usize);
        let copied = encode::copy(region.memory(), region.offset(segment.address), &mut target[..count]);
        segment.address += copied as u64;
        segment.length -= copied as u32;
        if segment.length == 0 {
            self.segments.pop_front();
        }
        copied
    }

    /// Copies the next bytes of places and removes them. Returns their number.
    pub(super) fn copy_places(&mut self, target: &mut [u8]) -> usize {
        let Some(place) = self.places.front() else { return 0 };
        let count = target.len().min(place.len());
        target[..count].copy_from_slice(&place.bytes()[..count]);
        self.advance(count);
        count
    }

    /// Removes so many bytes of places.
    pub(super) fn advance(&mut self, mut count: usize) {
        while let (Some(place), true) = (self.places.front_mut(), count > 0) {
            let passed = count.min(place.len());
            *place = place.from(passed);
            count -= passed;
            if place.is_empty() {
                self.places.pop_front();
            }
        }
    }
}
