//! Requests on their way through the transmitter: queued, streamed, waiting for completion.

use std::collections::VecDeque;

use super::encode::{self, Chunk, Encoder, Message};
use super::violation::Violation;
use crate::iwarp::region::RegionCache;
use crate::{
    Completion, CompletionKind, CompletionStatus, Operation, QpId, RemoteAddress, Segment, SendRequest,
};
use iwarp_wire::rdmap::{self, Opcode, ReadRequest};

/// A request whose bytes are not all in the stream.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) report: Report,
    pub(super) body: Body,
}

/// What a request's completion needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) id: u64,
    pub(super) kind: CompletionKind,
    pub(super) signaled: bool,
}

/// What is left of it to send.
#[derive(Debug)]
pub(super) enum Body {
    /// Inline payload, encoded when it was posted: so many bytes of the transmitter's queue.
    Encoded {
        /// Bytes not in the stream.
        left: usize,
        /// Whether others are.
        started: bool,
    },
    /// Registered memory to send or write.
    Message(Streamed),
    /// A read to ask for.
    Read(ReadRequest),
}

/// A message of registered memory that is streamed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Streamed {
    /// Where it goes.
    pub(super) target: Target,
    /// Immediate data behind it.
    pub(super) immediate: Option<(Message, u32)>,
    /// Bytes of payload.
    pub(super) length: u64,
    /// How many of them are in the stream.
    pub(super) sent: u64,
}

/// Where it goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    /// The peer's memory.
    Tagged(RemoteAddress),
    /// The peer's next receive.
    Untagged(Message),
}

/// A request whose bytes are all in the stream, and that is not complete.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) report: Report,
    /// Position of the stream behind its last byte.
    pub(super) end: u64,
}

impl Work {
    /// Whether a part of its message is in the stream and the rest not.
    pub(super) fn is_midway(&self) -> bool {
        match self.body {
            Body::Encoded { started, .. } => started,
            Body::Message(message) => message.sent > 0,
            Body::Read(_) => false,
        }
    }
}

impl Report {
    /// What is reported of `request`.
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
    /// Adds a segment. Answers whether the message is complete [RFC 5040 5.1-4]
    /// [RFC 5041 4.1-3, 4.1-4, 4.1-5, 4.1-6, 5.2-3, 5.2-7, 5.3-2].
    pub(super) fn advance(
        &mut self,
        encoder: &Encoder,
        segments: &mut VecDeque<Segment>,
        chunk: &mut Chunk<'_>,
        regions: &mut RegionCache,
    ) -> std::result::Result<bool, Violation> {
        let left = self.length - self.sent;
        let portion = encoder.portion(left).min(chunk.room());
        let last = portion as u64 == left;
        let head = match self.target {
            Target::Tagged(remote) => encode::tagged(
                Opcode::Write,
                remote.key,
                remote.address.wrapping_add(self.sent),
                portion,
                last,
            ),
            Target::Untagged(message) => message.head(self.sent, portion, last),
        };
        let complete = chunk.segment(encoder, &head, portion, |place| copy_out(segments, regions, place));
        if !complete {
            return Err(Violation::LocalKey(segments.front().map_or(0, |segment| segment.key)));
        }
        self.sent += portion as u64;
        if let (true, Some((message, word))) = (last, self.immediate) {
            encoder.short(&message.head(0, rdmap::IMMEDIATE, true), &rdmap::emit_immediate(word), chunk);
        }
        Ok(last)
    }
}

/// Copies the next bytes of `segments` out and takes them off; answers how many, 0 if there is
/// no such memory any more.
fn copy_out(segments: &mut VecDeque<Segment>, regions: &mut RegionCache, place: &mut [u8]) -> usize {
    let Some(segment) = segments.front_mut() else { return 0 };
    let Some(region) = regions.find(segment.key) else { return 0 };
    // As much as fits both; both are within `u32`, as a segment's length is.
    let count = place.len().min(segment.length as usize);
    let copied = encode::copy(region.memory(), segment.address, &mut place[..count]);
    segment.address += copied as u64;
    segment.length -= copied as u32;
    if segment.length == 0 {
        segments.pop_front();
    }
    copied
}
