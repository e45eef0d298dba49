//! Responses that are received several segments at a time, from peers that make segments of any length and send other
//! messages in between.

use super::joined::Chance;
use super::refusals::untagged;
use super::*;
use crate::Place;
use iwarp_wire::ddp::Tagged;
use iwarp_wire::rdmap::{Opcode, ReadRequest};

/// Length of the response.
const LENGTH: usize = 10_000;
/// Receives of 8 bytes that messages in between take.
const RECEIVES: usize = 8;

/// A machine that waits for a response of [`LENGTH`] bytes to `places`.
fn reader(places: &[Place]) -> (End, ReadRequest) {
    let mut end = End::for_messages(Side::Active, false);
    let request = Operation::Read { remote: RemoteAddress { key: 1, address: 0 } };
    end.post(77, request, Payload::Places(places)).unwrap();
    let sent = std::mem::take(&mut end.pipe.bytes);
    let request = ulpdus(&sent).last().unwrap()[18..].first_chunk().map(ReadRequest::parse).unwrap();
    (end, request)
}

/// A response in segments of these lengths.
fn response(to: &ReadRequest, lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
    let bytes = pattern(9, LENGTH);
    let mut offset = 0;
    let segment = |length: usize| {
        let length = length.min(LENGTH - offset);
        let mut header = [0; 14];
        let last = offset + length == LENGTH;
        let stag = to.sink_stag;
        Tagged { last, ulp: Opcode::ReadResponse.control(), stag, offset: to.sink_offset + offset as u64 }
            .emit(&mut header);
        let segment = fpdu(&[&header, &bytes[offset..offset + length]].concat());
        offset += length;
        (length > 0).then_some(segment)
    };
    lengths.into_iter().map_while(segment).collect()
}

/// Passes the stream as sockets do that have so many bytes at a time. Returns how many bytes came with calls for
/// several segments.
fn pass(end: &mut End, mut stream: &[u8], mut arrived: impl FnMut() -> usize) -> usize {
    let mut spaced_bytes = 0;
    while !stream.is_empty() {
        let now = &stream[..arrived().min(stream.len())];
        let taken = match end.machine.spaced_target() {
            Some(spaced) => {
                // What is left of another call.
                let mut gaps = [0xee; 1024];
                let count = spaced.fill(now, &mut gaps);
                assert!(count <= spaced.length());
                assert_eq!(end.machine.take_spaced(&spaced, &gaps, count, &mut end.completions), Ok(()));
                spaced_bytes += count;
                count
            }
            None => {
                let count = now.len().min(30);
                assert_eq!(end.machine.feed(&now[..count], &mut end.completions), Ok(()));
                count
            }
        };
        stream = &stream[taken..];
    }
    spaced_bytes
}

/// The response is in its places and reported once, and nothing else is written.
fn check(end: &mut End, places: &[Place], guard: &Place) {
    end.pump();
    let mut found = Vec::new();
    places.iter().for_each(|place| place.append_to(&mut found));
    assert!(found == pattern(9, LENGTH));
    let mut behind = Vec::new();
    guard.append_to(&mut behind);
    assert!(behind == [0x5a; 100], "bytes behind the place are as they were");
    let reads =
        end.completions.iter().filter(|done| done.id == 77 && done.status == CompletionStatus::Success);
    assert_eq!(reads.count(), 1);
}

#[test]
fn equal_segments_arrive_in_place_wherever_calls_end() {
    for (each, size) in [(1000, LENGTH), (1001, 1), (1100, 1121), (3001, 5000), (1234, 1300), (999, LENGTH)] {
        let memory = Place::leaked(LENGTH as u32 + 100);
        let (place, guard) = (memory.part(0, LENGTH), memory.from(LENGTH));
        guard.fill(&[0x5a; 100]);
        let (mut end, request) = reader(&[place]);
        let stream = response(&request, [each; LENGTH]).concat();
        let spaced = pass(&mut end, &stream, || size);
        let expected = if each < 1000 {
            0..1
        } else if size < each {
            1..LENGTH
        } else {
            LENGTH / 2..2 * LENGTH
        };
        assert!(expected.contains(&spaced), "{spaced} bytes of {LENGTH} with segments of {each}");
        check(&mut end, &[place], &guard);
    }
}

#[test]
fn segments_of_any_length_and_messages_in_between_arrive_as_well() {
    for seed in 1..500 {
        let mut chance = Chance((seed * 0x9e37_79b9) | 1);
        let memory = Place::leaked(LENGTH as u32 + 100);
        let (whole, guard) = (memory.part(0, LENGTH), memory.from(LENGTH));
        guard.fill(&[0x5a; 100]);
        let cut = 1 + chance.below(LENGTH - 1);
        let places = [whole.part(0, cut), whole.from(cut)];
        let places = if seed % 2 == 0 { &places[..] } else { &[whole][..] };
        let (mut end, request) = reader(places);
        let buffers: Vec<_> = (0..RECEIVES).map(|_| Place::leaked(8)).collect();
        for (id, buffer) in buffers.iter().enumerate() {
            let buffer = Buffer::Places(std::slice::from_ref(buffer));
            end.machine.post_recv(&[RecvRequest { id: id as u64, buffer }]).unwrap();
        }
        let (common, few) = (500 + chance.below(2000), chance.below(8));
        let lengths: Vec<_> =
            std::iter::repeat_with(|| if chance.below(8) < few { 1 + chance.below(2000) } else { common })
                .take(LENGTH)
                .collect();
        let mut sent = 0;
        let mut stream = Vec::new();
        for segment in response(&request, lengths) {
            stream.extend(segment);
            if chance.below(10) == 0 && sent < RECEIVES {
                sent += 1;
                let bytes = pattern(sent, 8);
                stream.extend(untagged(Opcode::Send, 0, sent as u32, 0, &bytes));
            }
        }
        let most = 1 + chance.below(LENGTH);
        pass(&mut end, &stream, || 1 + chance.below(most));
        check(&mut end, places, &guard);
        for (buffer, number) in buffers.iter().zip(1..=sent) {
            let mut found = Vec::new();
            buffer.append_to(&mut found);
            assert_eq!(found, pattern(number, 8), "message {number} of seed {seed}");
        }
        assert_eq!(end.completions.len(), 1 + sent);
    }
}
