//! Messages put together from what went inline and what went by chunks.

use std::collections::BTreeMap;

use super::header::{Header, Procedure, Segment};
use super::{Call, Filling, Message, Placed};
use crate::Operation;
use crate::assemble::Content;
use crate::bytes::u32_at;

/// The bytes of segments, as many as were used of each.
fn gather<'a>(fillings: impl Iterator<Item = (&'a Filling, u32)>) -> (Vec<u8>, bool) {
    let (mut bytes, mut incomplete) = (Vec::new(), false);
    for (filling, used) in fillings {
        let (start, used) = (bytes.len(), used as usize);
        let content = &filling.content;
        let there = &content.bytes[..content.bytes.len().min(used)];
        incomplete |= !content.is_whole(used as u64);
        bytes.extend_from_slice(there);
        if content.is_whole(used as u64) {
            bytes.resize(start + used, 0);
        }
    }
    (bytes, incomplete)
}

/// Zeros up to a multiple of four, which XDR has and chunks leave out.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The call with its chunks in place.
pub(super) fn assemble_call(call: &Call) -> Message {
    let inline = call.inline.bytes.get(call.header.length..).unwrap_or(&[]);
    let mut incomplete = !call.inline.is_whole(call.inline_length);
    let mut positions: BTreeMap<u32, Vec<&Filling>> = BTreeMap::new();
    for ((position, _), filling) in call.header.reads.iter().zip(&call.fillings) {
        positions.entry(*position).or_default().push(filling);
    }
    let (mut bytes, mut taken, mut by_chunks) = (Vec::new(), 0, 0);
    for (position, fillings) in positions {
        // Positions count in the message as it was before chunks were taken out.
        let before = (position as usize).saturating_sub(bytes.len()).min(inline.len() - taken);
        bytes.extend_from_slice(&inline[taken..taken + before]);
        taken += before;
        let (chunk, lacks) = gather(fillings.into_iter().map(|filling| (filling, filling.segment.length)));
        incomplete |= lacks;
        by_chunks += chunk.len() as u64;
        bytes.extend(chunk);
        if position > 0 {
            pad(&mut bytes);
        }
    }
    bytes.extend_from_slice(&inline[taken..]);
    let &Call { frame, time, .. } = call;
    Message { bytes, incomplete, frame, time, by_chunks, placed: Placed::Exactly }
}

/// The reply with its chunks in place, as far as they are known.
pub(super) fn assemble_reply(
    operation: &Operation,
    header: &Header,
    content: &Content,
    call: Option<&Call>,
) -> Message {
    let inline = content.bytes.get(header.length..).unwrap_or(&[]);
    let mut message = Message {
        bytes: inline.to_vec(),
        incomplete: !content.is_whole(operation.length),
        frame: operation.frames.1,
        time: operation.time,
        by_chunks: 0,
        placed: Placed::Exactly,
    };
    let used: Vec<&Segment> = header.writes.iter().flatten().chain(header.reply.iter().flatten()).collect();
    let Some(call) = call else {
        message.incomplete |= used.iter().any(|segment| segment.length > 0);
        return message;
    };
    // The reply repeats the call's chunks, with the lengths that were used.
    let mut fillings = call.fillings[call.header.reads.len()..].iter();
    for chunk in &header.writes {
        let (bytes, lacks) = gather(fillings.by_ref().zip(chunk.iter().map(|segment| segment.length)));
        message.incomplete |= lacks;
        message.by_chunks += bytes.len() as u64;
        if !bytes.is_empty() {
            place_chunk(&mut message, bytes);
        }
    }
    let skipped: usize = call.header.writes.iter().skip(header.writes.len()).map(Vec::len).sum();
    if let Some(chunk) = &header.reply {
        let fillings = fillings.skip(skipped).zip(chunk.iter().map(|segment| segment.length));
        let (bytes, lacks) = gather(fillings);
        message.incomplete |= lacks;
        if header.procedure == Procedure::NoMessage {
            message.by_chunks += bytes.len() as u64;
            message.bytes = bytes;
        }
    }
    message
}

/// Puts the data of a write chunk where XDR most probably has it.
fn place_chunk(message: &mut Message, mut chunk: Vec<u8>) {
    let length = chunk.len() as u32;
    let behind = message.bytes.chunks_exact(4).rposition(|word| u32_at(word, 0) == Some(length));
    pad(&mut chunk);
    let (at, placed) = match behind {
        Some(word) => (word * 4 + 4, Placed::BehindLength),
        None => (message.bytes.len(), Placed::AtEnd),
    };
    message.bytes.splice(at..at, chunk);
    if message.placed != Placed::AtEnd {
        message.placed = placed;
    }
}
