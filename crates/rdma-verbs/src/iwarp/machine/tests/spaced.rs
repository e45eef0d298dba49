//! Responses and messages that are received several segments at a time, from peers that make segments of any length and
//! send other messages in between.

use super::joined::Chance;
use super::refusals::{tagged, untagged};
use super::*;
use crate::Place;
use iwarp_wire::ddp::{Tagged, Untagged};
use iwarp_wire::rdmap::{Opcode, ReadRequest};

/// Length of the response or message.
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

/// What arrives in several segments.
enum Long {
    /// The response to this read.
    Response(ReadRequest),
    /// The Send of this number, with a word in its headers.
    Send(u32, u32),
}

impl Long {
    /// It in segments of these lengths.
    fn segments(&self, lengths: impl IntoIterator<Item = usize>) -> Vec<Vec<u8>> {
        let bytes = pattern(9, LENGTH);
        let mut offset = 0;
        let segment = |length: usize| {
            let length = length.min(LENGTH - offset);
            let header = self.header(offset, offset + length == LENGTH);
            let segment = fpdu(&[&header, &bytes[offset..offset + length]].concat());
            offset += length;
            (length > 0).then_some(segment)
        };
        lengths.into_iter().map_while(segment).collect()
    }

    /// Header of the segment at `offset`.
    fn header(&self, offset: usize, last: bool) -> Vec<u8> {
        let (mut tagged, mut untagged) = ([0; 14], [0; 18]);
        match *self {
            Self::Response(ReadRequest { sink_stag: stag, sink_offset, .. }) => {
                let offset = sink_offset + offset as u64;
                Tagged { last, ulp: Opcode::ReadResponse.control(), stag, offset }.emit(&mut tagged);
                tagged.to_vec()
            }
            Self::Send(sequence, ulp_word) => {
                let offset = offset as u32;
                let ulp = Opcode::Send.control();
                Untagged { last, ulp, ulp_word, queue: 0, sequence, offset }.emit(&mut untagged);
                untagged.to_vec()
            }
        }
    }
}

/// A machine with a receive into `places` for a message of [`LENGTH`] bytes.
fn receiver(places: &[Place]) -> End {
    let mut end = End::for_messages(Side::Passive, false);
    end.machine.post_recv(&[RecvRequest { id: 77, buffer: Buffer::Places(places) }]).unwrap();
    end
}

/// The end and what arrives there at `places`: a message with this word, or a response.
fn awaiting(places: &[Place], word: Option<u32>) -> (End, Long) {
    match word {
        Some(word) => (receiver(places), Long::Send(1, word)),
        None => {
            let (end, request) = reader(places);
            (end, Long::Response(request))
        }
    }
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

/// The bytes are in their places and reported once, and nothing else is written.
fn check(end: &mut End, places: &[Place], guard: &Place) {
    end.pump();
    let mut found = Vec::new();
    places.iter().for_each(|place| place.append_to(&mut found));
    assert!(found == pattern(9, LENGTH));
    let mut behind = Vec::new();
    guard.append_to(&mut behind);
    assert!(behind == [0x5a; 100], "bytes behind the place are as they were");
    let done =
        end.completions.iter().filter(|done| done.id == 77 && done.status == CompletionStatus::Success);
    assert_eq!(done.count(), 1);
}

#[test]
fn equal_segments_arrive_in_place_wherever_calls_end() {
    let cases = [(1000, LENGTH), (1001, 1), (1100, 1121), (3001, 5000), (1234, 1300), (999, LENGTH)];
    for (word, (each, size)) in
        [None, Some(LENGTH as u32)].into_iter().flat_map(|word| cases.map(|case| (word, case)))
    {
        let memory = Place::leaked(LENGTH as u32 + 100);
        let (place, guard) = (memory.part(0, LENGTH), memory.from(LENGTH));
        guard.fill(&[0x5a; 100]);
        // A receive may have more room than the message needs.
        let room = if word.is_some() { memory } else { place };
        let (mut end, long) = awaiting(&[room], word);
        let next = Place::leaked(90);
        end.machine.post_recv(&[RecvRequest { id: 78, buffer: Buffer::Places(&[next]) }]).unwrap();
        let behind = untagged(Opcode::Send, 0, 1 + u32::from(word.is_some()), 0, &pattern(4, 90));
        let stream = [long.segments([each; LENGTH]).concat(), behind].concat();
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
    for seed in 1..1000 {
        let mut chance = Chance((seed * 0x9e37_79b9) | 1);
        let memory = Place::leaked(LENGTH as u32 + 100);
        let (whole, guard) = (memory.part(0, LENGTH), memory.from(LENGTH));
        guard.fill(&[0x5a; 100]);
        let cut = 1 + chance.below(LENGTH - 1);
        let places = [whole.part(0, cut), whole.from(cut)];
        let places = if seed % 2 == 0 { &places[..] } else { &[whole][..] };
        // A word may be wrong.
        let words = [None, None, Some(LENGTH as u32), Some(chance.below(LENGTH) as u32), Some(u32::MAX)];
        let word = words[chance.below(words.len())];
        let (mut end, long) = awaiting(places, word);
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
        // A message cannot come between the segments of another one, but a write can.
        let first = if word.is_some() { 2 } else { 1 };
        let message =
            |number: usize| untagged(Opcode::Send, 0, first + number as u32 - 1, 0, &pattern(number, 8));
        for segment in long.segments(lengths) {
            stream.extend(segment);
            if chance.below(10) > 0 {
                continue;
            }
            if word.is_some() {
                stream.extend(tagged(Opcode::Write, 0, 0, &[]));
            } else if sent < RECEIVES {
                sent += 1;
                stream.extend(message(sent));
            }
        }
        if word.is_some() {
            sent = 1;
            stream.extend(message(sent));
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

#[test]
fn a_message_that_ends_early_costs_only_its_own_receive() {
    let memory = Place::leaked(LENGTH as u32 + 100);
    let (place, guard) = (memory.part(0, LENGTH), memory.from(LENGTH));
    guard.fill(&[0x5a; 100]);
    let mut end = receiver(&[place]);
    let next = Place::leaked(5000);
    let buffer = Buffer::Places(std::slice::from_ref(&next));
    end.machine.post_recv(&[RecvRequest { id: 78, buffer }]).unwrap();
    let long = Long::Send(1, LENGTH as u32);
    let bytes = pattern(3, 2500);
    let segment = |offset: usize, length: usize, last: bool| {
        fpdu(&[&long.header(offset, last), &bytes[offset..offset + length]].concat())
    };
    let behind = untagged(Opcode::Send, 0, 2, 0, &pattern(4, 5000));
    let stream = [segment(0, 1200, false), segment(1200, 1300, true), behind].concat();
    assert!(pass(&mut end, &stream, || 6000) > 1200);
    for (place, expected) in
        [(place.part(0, 2500), bytes), (next, pattern(4, 5000)), (guard, vec![0x5a; 100])]
    {
        let mut found = Vec::new();
        place.append_to(&mut found);
        assert_eq!(found, expected);
    }
    let done: Vec<_> = end.completions.iter().map(|done| (done.id, done.status, done.length)).collect();
    assert_eq!(done, [(77, CompletionStatus::Success, 2500), (78, CompletionStatus::Success, 5000)]);
}

#[test]
fn behind_an_uneven_segment_each_call_is_for_one() {
    for word in [None, Some(LENGTH as u32)] {
        let memory = Place::leaked(LENGTH as u32 + 100);
        let (place, guard) = (memory.part(0, LENGTH), memory.from(LENGTH));
        guard.fill(&[0x5a; 100]);
        let (mut end, long) = awaiting(&[place], word);
        let lengths = [1200, 1500].into_iter().chain([1200; LENGTH]);
        let spaced = pass(&mut end, &long.segments(lengths).concat(), || 3000);
        assert_eq!(spaced, 3000, "one call");
        check(&mut end, &[place], &guard);
    }
    // The next message is another matter.
    let mut end = receiver(&[Place::leaked(LENGTH as u32)]);
    end.machine.receiver.note_uneven();
    let long = Long::Send(1, LENGTH as u32);
    assert_eq!(pass(&mut end, &long.segments([1200; LENGTH]).concat(), || LENGTH), 0);
    let place = Place::leaked(LENGTH as u32);
    end.machine.post_recv(&[RecvRequest { id: 78, buffer: Buffer::Places(&[place]) }]).unwrap();
    assert!(pass(&mut end, &Long::Send(2, LENGTH as u32).segments([1200])[0], || LENGTH) > 0);
}

#[test]
fn by_the_rules_of_the_specifications_no_word_is_a_length() {
    let place = Place::leaked(LENGTH as u32);
    for (mut end, expected) in
        [(End::new(Side::Passive, false), 0..1), (End::for_messages(Side::Passive, false), 1..LENGTH)]
    {
        end.machine.post_recv(&[RecvRequest { id: 1, buffer: Buffer::Places(&[place]) }]).unwrap();
        let stream = Long::Send(1, LENGTH as u32).segments([1200; 3]).concat();
        let spaced = pass(&mut end, &stream, || LENGTH);
        assert!(expected.contains(&spaced), "{spaced}");
    }
}
