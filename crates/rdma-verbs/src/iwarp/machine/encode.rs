//! Encodes messages as FPDUs: headers, the split into segments, padding and CRC.

use std::collections::VecDeque;
use std::io::IoSlice;

use super::Rules;
use super::stream::Output;
use super::transmit::WORTHWHILE;
use crate::{Memory, Operation, Payload, Place, SendRequest};
use iwarp_wire::ddp::{self, Tagged, Untagged};
use iwarp_wire::mpa;
use iwarp_wire::rdmap::{self, About, Opcode, ReadRequest, Terminate, marks};

/// Length of the longest header with its length field.
const HEADER: usize = mpa::FPDU_LENGTH_FIELD + ddp::UNTAGGED;
/// Maximum number of bytes of an FPDU that are not payload.
pub(super) const OVERHEAD: usize = HEADER + mpa::MAX_TRAILER;

/// Longest payload of [`Encoder::short`]: a Read Request.
const SHORT: usize = rdmap::TERMINATE + HEADER + rdmap::READ_REQUEST;
/// Longest payload of a segment that needs no padding, whether tagged or untagged.
const LONGEST_PAYLOAD: usize = (mpa::MAX_MULPDU - ddp::UNTAGGED) & !3;
/// Room that a [`Chunk`] keeps for the immediate data that follows a segment.
const IMMEDIATE: usize = mpa::fpdu(ddp::UNTAGGED + rdmap::IMMEDIATE);
/// Length of a scratch buffer: it has room for the longest segment, followed by the rest of a message of 64
/// KiB with immediate data.
pub const SCRATCH: usize = (LONGEST_PAYLOAD + OVERHEAD + IMMEDIATE + WORTHWHILE).next_multiple_of(4096);

/// Turns messages into FPDUs, and numbers them.
#[derive(Debug)]
pub(super) struct Encoder {
    /// Whether the CRC field is filled in.
    pub(super) crc: bool,
    /// Maximum payload of a segment.
    max_payload: usize,
    rules: Rules,
    send_sequence: u32,
    read_sequence: u32,
}

/// Header of a segment with its length field, followed by leading immediate data.
pub(super) struct Head {
    bytes: [u8; HEADER + rdmap::IMMEDIATE],
    length: usize,
}

/// The fields that all segments of an untagged message have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    opcode: Opcode,
    /// The key that it invalidates, or what [`marks`] says.
    word: u32,
    sequence: u32,
}

impl Encoder {
    /// An encoder of segments of at most `max_payload` bytes. It numbers messages from 1 [RFC 5041 4.3-7].
    pub(super) fn new(max_payload: usize, rules: Rules) -> Self {
        // Leading immediate data must fit in one segment.
        let least = if rules == Rules::Messages { rdmap::IMMEDIATE } else { 1 };
        let max_payload = max_payload.clamp(least, LONGEST_PAYLOAD);
        Self { crc: false, max_payload, rules, send_sequence: 1, read_sequence: 1 }
    }

    /// Length of the next segment of a message of which `left` bytes are left [RFC 5041 3-1, 3-2, 5.2-1]
    /// [RFC 5044 3-3, 3-5, 4.5-3].
    pub(super) fn portion(&self, left: u64) -> usize {
        usize::try_from(left).unwrap_or(usize::MAX).min(self.max_payload)
    }

    /// An upper bound of the length on the wire of a message of `payload` bytes, including immediate data
    /// that follows it.
    pub(super) fn bound(&self, payload: usize) -> usize {
        payload.saturating_add((payload / self.max_payload + 1).saturating_mul(OVERHEAD) + IMMEDIATE)
    }

    /// The next message of the send queue, of `length` bytes.
    pub(super) fn message(&mut self, invalidate: Option<u32>, solicited: bool, length: u64) -> Message {
        // Who receives several segments at a time knows from their headers where the message ends.
        let is_told = length > self.max_payload as u64 && self.rules == Rules::Messages;
        let word = invalidate.unwrap_or(if is_told { length as u32 } else { 0 });
        self.numbered(Opcode::send(invalidate.is_some(), solicited), word)
    }

    /// The next message of the send queue, for immediate data.
    pub(super) fn immediate(&mut self, solicited: bool) -> Message {
        self.numbered(if solicited { Opcode::ImmediateSolicited } else { Opcode::Immediate }, 0)
    }

    /// The next message of the send queue, for the immediate data of a write.
    pub(super) fn immediate_of_write(&mut self) -> Message {
        self.numbered(Opcode::Immediate, if self.rules == Rules::Messages { marks::OF_WRITE } else { 0 })
    }

    /// The next message of the send queue, for a payload after leading immediate data.
    pub(super) fn message_with_data(&mut self, solicited: bool) -> Message {
        self.numbered(Opcode::send(false, solicited), marks::WITH_DATA)
    }

    /// The next number of the send queue [RFC 5041 4.3-6, 4.3-8].
    fn numbered(&mut self, opcode: Opcode, word: u32) -> Message {
        let sequence = self.send_sequence;
        self.send_sequence = sequence.wrapping_add(1);
        Message { opcode, word, sequence }
    }

    /// Encodes a write or send whose payload is inline or in places [RFC 5040 5.1-4]
    /// [RFC 5041 4.1-3, 4.1-4, 4.1-5, 4.1-6, 5.2-3, 5.2-7, 5.2-8, 5.3-2] [RFC 5044 7.1.1-5].
    pub(super) fn request<'a>(&mut self, request: &SendRequest<'a>, output: &mut impl Output<'a>) {
        let slices: &[IoSlice<'_>] = match request.payload {
            Payload::Inline(slices) => slices,
            Payload::Places(places) => return self.encode(request, places, output),
            // Only immediate data without payload gets here.
            Payload::Segments(_) | Payload::Fenced(_) => &[],
        };
        self.encode(request, slices, output);
    }

    /// [`Encoder::request`] for a payload of these pieces.
    #[inline]
    fn encode<'a, P: Piece>(
        &mut self,
        request: &SendRequest<'a>,
        pieces: &'a [P],
        output: &mut impl Output<'a>,
    ) {
        let length = request.payload.len() as u64;
        let mut gather = Gather::new(pieces);
        let mut offset = 0;
        match request.operation {
            Operation::Write { remote, immediate } => {
                loop {
                    let portion = self.portion(length - offset);
                    let last = offset + portion as u64 == length;
                    let head =
                        tagged(Opcode::Write, remote.key, remote.address.wrapping_add(offset), portion, last);
                    self.segment(&head, &mut gather, portion, output);
                    offset += portion as u64;
                    if last {
                        break;
                    }
                }
                if let Some(immediate) = immediate {
                    let message = self.immediate_of_write();
                    self.short(
                        &message.head(0, rdmap::IMMEDIATE, true),
                        &rdmap::emit_immediate(immediate),
                        output,
                    );
                }
            }
            Operation::Send { immediate: Some(immediate), solicited, .. } if length > 0 => {
                let message = self.message_with_data(solicited);
                self.send(&message, Some(immediate), &mut gather, length, output);
            }
            Operation::Send { immediate: Some(immediate), solicited, .. } => {
                let message = self.immediate(solicited);
                self.short(
                    &message.head(0, rdmap::IMMEDIATE, true),
                    &rdmap::emit_immediate(immediate),
                    output,
                );
            }
            Operation::Send { invalidate, solicited, .. } => {
                let message = self.message(invalidate, solicited, length);
                self.send(&message, None, &mut gather, length, output);
            }
            Operation::Read { .. } => {}
        }
    }

    /// Encodes a send of `length` bytes, which follow the immediate data if there is some.
    fn send<'a, P: Piece>(
        &self,
        message: &Message,
        mut immediate: Option<u64>,
        gather: &mut Gather<'a, P>,
        length: u64,
        output: &mut impl Output<'a>,
    ) {
        let total = length + immediate.map_or(0, |_| rdmap::IMMEDIATE as u64);
        let mut offset = 0;
        loop {
            let portion = self.portion(total - offset);
            let last = offset + portion as u64 == total;
            let mut head = message.head(offset, portion, last);
            let leading = immediate.take().map_or(0, |immediate| head.prepend_immediate(immediate));
            self.segment(&head, gather, portion - leading, output);
            offset += portion as u64;
            if last {
                break;
            }
        }
    }

    /// Encodes a segment with a copy of `payload`, at most [`SHORT`] bytes.
    pub(super) fn short<'a>(&self, head: &Head, payload: &[u8], output: &mut impl Output<'a>) {
        let mut bytes = [0; SHORT + OVERHEAD];
        let start = head.length;
        let length = payload.len().min(SHORT);
        bytes[..HEADER].copy_from_slice(&head.bytes[..HEADER]);
        bytes[start..start + length].copy_from_slice(&payload[..length]);
        let end = start + length;
        let sum = if self.crc { crc32c::crc32c(&bytes[..end]) } else { 0 };
        let (trailer, length) = self.trailer(head, sum);
        bytes[end..end + length].copy_from_slice(&trailer[..length]);
        output.copied(&bytes[..end + length]);
    }

    /// Encodes a segment with the next `portion` bytes of the caller.
    pub(super) fn segment<'a, P: Piece>(
        &self,
        head: &Head,
        gather: &mut Gather<'a, P>,
        portion: usize,
        output: &mut impl Output<'a>,
    ) {
        output.copied(head.bytes());
        let mut sum = if self.crc { crc32c::crc32c(head.bytes()) } else { 0 };
        gather.take(portion, |bytes| {
            if self.crc {
                sum = crc32c::crc32c_append(sum, bytes);
            }
            output.borrowed(bytes);
        });
        let (trailer, length) = self.trailer(head, sum);
        output.copied(&trailer[..length]);
    }

    /// Padding and CRC field after `head` and its payload, whose CRC is `sum` [RFC 5041 3-5]
    /// [RFC 5044 4.1-1, 4.1-2, 4.4-1, 4.4-8, 4.4-10].
    pub(super) fn trailer(&self, head: &Head, sum: u32) -> ([u8; mpa::MAX_TRAILER], usize) {
        let mut trailer = [0; mpa::MAX_TRAILER];
        let padding = mpa::padding(head.ulpdu());
        if self.crc {
            let sum = crc32c::crc32c_append(sum, &trailer[..padding]);
            trailer[padding..padding + mpa::CRC].copy_from_slice(&mpa::crc_field(sum));
        }
        (trailer, padding + mpa::CRC)
    }

    /// Encodes a Terminate [RFC 5040 4.2-1, 5.4-1].
    pub(super) fn terminate<'a>(
        &self,
        terminate: Terminate,
        about: &About<'_>,
        output: &mut impl Output<'a>,
    ) {
        let mut payload = [0; SHORT];
        let length = terminate.emit(about, &mut payload);
        let message = Message { opcode: Opcode::Terminate, word: 0, sequence: 1 };
        self.short(&message.head(0, length, true), &payload[..length], output);
    }

    /// Encodes a Read Request [RFC 5040 4.2-1, 5.2-1, 5.2.1-1].
    pub(super) fn read_request<'a>(&mut self, request: &ReadRequest, output: &mut impl Output<'a>) {
        let mut payload = [0; rdmap::READ_REQUEST];
        request.emit(&mut payload);
        let message = Message { opcode: Opcode::ReadRequest, word: 0, sequence: self.read_sequence };
        self.read_sequence = self.read_sequence.wrapping_add(1);
        self.short(&message.head(0, payload.len(), true), &payload, output);
    }
}

impl Message {
    /// Header of the segment of `portion` bytes at `offset`
    /// [RFC 5040 4.1-2, 4.1-3, 4.1-5, 4.1-9, 5.2.1-5, 5.3-1, 5.3-4, 5.3-7, 5.4-2]
    /// [RFC 5041 4.3-2, 4.3-4, 4.3-5, 4.3-9, 4.3-10, 4.4-1, 5.2-5] [RFC 5044 3-1]
    /// [RFC 7306 4.1-3, 6.3-1, 6.3-4].
    pub(super) fn head(&self, offset: u64, portion: usize, last: bool) -> Head {
        let queue = match self.opcode {
            Opcode::ReadRequest => rdmap::READ_QUEUE,
            Opcode::Terminate => rdmap::TERMINATE_QUEUE,
            _ => rdmap::SEND_QUEUE,
        };
        let header = Untagged {
            last,
            ulp: self.opcode.control(),
            ulp_word: self.word,
            queue,
            sequence: self.sequence,
            // Messages are at most `MAX_MESSAGE` bytes, checked when they are posted.
            offset: offset as u32,
        };
        let mut bytes = [0; HEADER + rdmap::IMMEDIATE];
        let (field, rest) = bytes.split_at_mut(mpa::FPDU_LENGTH_FIELD);
        field.copy_from_slice(&((ddp::UNTAGGED + portion) as u16).to_be_bytes());
        if let Some(place) = rest.first_chunk_mut() {
            header.emit(place);
        }
        Head { bytes, length: mpa::FPDU_LENGTH_FIELD + ddp::UNTAGGED }
    }
}

/// Header of a tagged segment of `portion` bytes [RFC 5040 4.1-3, 4.1-5, 5.1-1]
/// [RFC 5041 4.2-2, 4.2-4, 4.2-6, 4.2-8, 4.4-1, 5.2-6] [RFC 5044 3-1].
pub(super) fn tagged(opcode: Opcode, stag: u32, offset: u64, portion: usize, last: bool) -> Head {
    let mut bytes = [0; HEADER + rdmap::IMMEDIATE];
    let (field, rest) = bytes.split_at_mut(mpa::FPDU_LENGTH_FIELD);
    field.copy_from_slice(&((ddp::TAGGED + portion) as u16).to_be_bytes());
    if let Some(place) = rest.first_chunk_mut() {
        Tagged { last, ulp: opcode.control(), stag, offset }.emit(place);
    }
    Head { bytes, length: mpa::FPDU_LENGTH_FIELD + ddp::TAGGED }
}

impl Head {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Appends leading immediate data. Returns how many bytes of the payload that is.
    pub(super) fn prepend_immediate(&mut self, immediate: u64) -> usize {
        // There is room: at most one untagged header precedes it.
        if let Some(place) = self.bytes[self.length..].first_chunk_mut() {
            *place = rdmap::emit_immediate(immediate);
            self.length += rdmap::IMMEDIATE;
        }
        rdmap::IMMEDIATE
    }

    fn ulpdu(&self) -> usize {
        usize::from(u16::from_be_bytes([self.bytes[0], self.bytes[1]]))
    }
}

/// A piece of the caller's payload.
pub(super) trait Piece {
    fn bytes(&self) -> &[u8];
}

impl Piece for IoSlice<'_> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Piece for Place {
    fn bytes(&self) -> &[u8] {
        Self::bytes(self)
    }
}

/// Takes the caller's bytes piece by piece.
pub(super) struct Gather<'a, P> {
    pieces: &'a [P],
    /// Offset of the next byte in the first piece.
    at: usize,
}

impl<'a, P: Piece> Gather<'a, P> {
    pub(super) fn new(pieces: &'a [P]) -> Self {
        Self { pieces, at: 0 }
    }

    fn take(&mut self, mut count: usize, mut each: impl FnMut(&'a [u8])) {
        while let (Some((first, rest)), true) = (self.pieces.split_first(), count > 0) {
            let first: &'a [u8] = first.bytes();
            let available = &first[self.at..];
            let portion = available.len().min(count);
            if portion > 0 {
                each(&available[..portion]);
            }
            count -= portion;
            self.at += portion;
            if self.at == first.len() {
                (self.pieces, self.at) = (rest, 0);
            }
        }
    }
}

/// A buffer that is filled with complete FPDUs from registered memory.
pub(super) struct Chunk<'b> {
    buffer: &'b mut [u8],
    used: usize,
}

impl<'b> Chunk<'b> {
    pub(super) fn new(buffer: &'b mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.used]
    }

    /// Maximum payload of another segment, if immediate data follows it.
    pub(super) fn room(&self) -> usize {
        (self.buffer.len() - self.used).saturating_sub(OVERHEAD + IMMEDIATE)
    }

    /// Adds a segment of `portion` bytes, at most [`Chunk::room`]. `fill` copies them in pieces: it gets the
    /// rest of the buffer, and returns how many bytes it copied there, 0 if it cannot. Returns whether all
    /// were copied.
    pub(super) fn segment(
        &mut self,
        encoder: &Encoder,
        head: &Head,
        portion: usize,
        mut fill: impl FnMut(&mut [u8]) -> usize,
    ) -> bool {
        let start = self.used;
        let body = start + head.length;
        self.buffer[start..body].copy_from_slice(head.bytes());
        let mut done = 0;
        while done < portion {
            match fill(&mut self.buffer[body + done..body + portion]) {
                0 => return false,
                count => done += count,
            }
        }
        let end = body + portion;
        let sum = if encoder.crc { crc32c::crc32c(&self.buffer[start..end]) } else { 0 };
        let (trailer, length) = encoder.trailer(head, sum);
        self.buffer[end..end + length].copy_from_slice(&trailer[..length]);
        self.used = end + length;
        true
    }
}

impl Output<'_> for Chunk<'_> {
    /// The caller has checked [`Chunk::room`].
    fn copied(&mut self, bytes: &[u8]) {
        if let Some(place) = self.buffer.get_mut(self.used..self.used + bytes.len()) {
            place.copy_from_slice(bytes);
            self.used += bytes.len();
        }
    }

    fn borrowed(&mut self, bytes: &[u8]) {
        self.copied(bytes);
    }
}

/// Appends the output to a queue of bytes.
impl Output<'_> for VecDeque<u8> {
    fn copied(&mut self, bytes: &[u8]) {
        self.extend(bytes);
    }

    fn borrowed(&mut self, bytes: &[u8]) {
        self.extend(bytes);
    }
}

/// Copies from `memory` for [`Chunk::segment`].
pub(super) fn copy(memory: &Memory, offset: u64, place: &mut [u8]) -> usize {
    match memory.read(offset, place) {
        Ok(()) => place.len(),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sequence number of the message in an FPDU without CRC.
    fn sequence(fpdu: &VecDeque<u8>) -> Vec<u8> {
        fpdu.iter().skip(mpa::FPDU_LENGTH_FIELD + 10).take(4).copied().collect()
    }

    /// [RFC 5041 4.3-8]
    #[test]
    fn numbers_of_messages_wrap_to_zero() {
        let mut encoder = Encoder::new(1, Rules::Verbs);
        (encoder.send_sequence, encoder.read_sequence) = (u32::MAX, u32::MAX);
        let request =
            ReadRequest { sink_stag: 0, sink_offset: 0, length: 0, source_stag: 0, source_offset: 0 };
        for expected in [[0xff; 4], [0; 4], [0, 0, 0, 1]] {
            let (mut send, mut read) = (VecDeque::new(), VecDeque::new());
            let message = encoder.message(None, false, 0);
            encoder.short(&message.head(0, 0, true), &[], &mut send);
            encoder.read_request(&request, &mut read);
            assert_eq!((sequence(&send), sequence(&read)), (expected.to_vec(), expected.to_vec()));
        }
    }
}
