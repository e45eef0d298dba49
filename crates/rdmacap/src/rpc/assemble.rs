//! Messages put together from what went inline and what went by chunks.

use std::collections::BTreeMap;

use super::call::{Call, Filling};
use super::header::{Header, Procedure, Segment};
use super::{Message, Placed, nfs, procedure};
use crate::Operation;
use crate::assemble::Content;
use crate::bytes::u32_at;

/// The bytes of segments, as many as were used of each.
fn gather<'a>(fillings: impl Iterator<Item = (&'a Filling, u32)>) -> (Vec<u8>, bool) {
    let (mut bytes, mut incomplete) = (Vec::new(), false);
    for (filling, used) in fillings {
        let (part, lacks) = filling.content.part(used as usize);
        incomplete |= lacks;
        bytes.extend(part);
    }
    (bytes, incomplete)
}

/// Zeros up to a multiple of four, which XDR has and chunks leave out.
fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The call with its chunks in place.
pub(super) fn assemble_call(call: &Call) -> Message {
    let mut incomplete = !call.inline.is_whole(call.inline_length);
    let mut positions: BTreeMap<u32, Vec<&Filling>> = BTreeMap::new();
    for (position, filling) in call.reads() {
        positions.entry(position).or_default().push(filling);
    }
    let mut chunk = |fillings: Vec<&Filling>| {
        let (bytes, lacks) = gather(fillings.into_iter().map(|filling| (filling, filling.segment.length)));
        incomplete |= lacks;
        bytes
    };
    // At position 0 is all that other chunks do not have.
    let whole = positions.remove(&0).map(&mut chunk);
    let mut by_chunks = whole.as_ref().map_or(0, Vec::len) as u64;
    let rest = whole.as_deref().or_else(|| call.inline.bytes.get(call.header.length..)).unwrap_or(&[]);
    let (mut bytes, mut taken) = (Vec::new(), 0);
    for (position, fillings) in positions {
        // Positions count in the message as it was before chunks were taken out.
        let before = (position as usize).saturating_sub(bytes.len()).min(rest.len() - taken);
        bytes.extend_from_slice(&rest[taken..taken + before]);
        taken += before;
        let chunk = chunk(fillings);
        by_chunks += chunk.len() as u64;
        bytes.extend(chunk);
        pad(&mut bytes);
    }
    bytes.extend_from_slice(&rest[taken..]);
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
    let mut message = Message {
        bytes: content.bytes.get(header.length..).unwrap_or(&[]).to_vec(),
        incomplete: !content.is_whole(operation.length),
        frame: operation.frames.1,
        time: operation.time,
        by_chunks: 0,
        placed: Placed::Exactly,
    };
    let Some(call) = call else {
        let used = header.writes.iter().flatten().chain(header.reply.iter().flatten());
        message.incomplete |= used.map(|segment| segment.length).any(|length| length > 0);
        return message;
    };
    // The reply repeats the call's chunks, with the lengths that were used.
    let mut taken = |fillings: &[Filling], used: &[Segment]| {
        let lengths = used.iter().map(|segment| segment.length);
        let (bytes, lacks) = gather(fillings.iter().zip(lengths));
        message.incomplete |= lacks || used.len() > fillings.len();
        message.by_chunks += bytes.len() as u64;
        bytes
    };
    if let Some(used) = header.reply.as_ref().filter(|_| header.procedure == Procedure::NoMessage) {
        message.bytes = taken(call.reply(), used);
    }
    let length = |used: &Vec<Segment>| used.iter().map(|segment| segment.length).sum();
    let of_write = |(at, used): (usize, &Vec<Segment>)| (length(used), taken(call.write(at), used));
    let chunks: Vec<(u32, Vec<u8>)> = header.writes.iter().enumerate().map(of_write).collect();
    place(&mut message, call, chunks);
    message
}

/// Puts the data of write chunks where it belongs. With each chunk comes the length that was used of it.
fn place(message: &mut Message, call: &Call, mut chunks: Vec<(u32, Vec<u8>)>) {
    let lengths: Vec<u32> = chunks.iter().map(|(length, _)| *length).collect();
    chunks.retain(|(length, _)| *length > 0);
    if chunks.is_empty() {
        return;
    }
    let exact = procedure(&assemble_call(call).bytes)
        .and_then(|procedure| nfs::places(procedure, &message.bytes, &lengths));
    let Some(places) = exact else {
        for (length, chunk) in chunks {
            let (place, placed) = probable_place(length, &message.bytes);
            insert(message, place, chunk);
            message.placed = message.placed.max(placed);
        }
        return;
    };
    // From the end, so that places stay right.
    for (place, (_, chunk)) in places.into_iter().zip(chunks).rev() {
        insert(message, place, chunk);
    }
}

fn insert(message: &mut Message, place: usize, mut chunk: Vec<u8>) {
    pad(&mut chunk);
    message.bytes.splice(place..place, chunk);
}

/// Where XDR most probably has the data of a write chunk.
fn probable_place(length: u32, reply: &[u8]) -> (usize, Placed) {
    match reply.chunks_exact(4).rposition(|word| u32_at(word, 0) == Some(length)) {
        Some(word) => (word * 4 + 4, Placed::BehindLength),
        None => (reply.len(), Placed::AtEnd),
    }
}
