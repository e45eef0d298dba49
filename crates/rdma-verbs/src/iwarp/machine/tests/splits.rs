//! One exchange, recorded once and fed in all splits. The outcome is always the same.

use super::refusals::read;
use super::*;
use crate::{CompletionKind, Place};

/// The outcome of an exchange.
#[derive(Debug, PartialEq)]
struct Outcome {
    completions: Vec<Completion>,
    ring: Vec<u8>,
    own: Vec<u8>,
    answered: Vec<u8>,
}

/// The stream of an active machine that uses every kind of message on `b`.
fn record(b: &mut End, crc: bool) -> Vec<u8> {
    let mut a = End::new(Side::Active, crc);
    a.own().memory().write(0, &pattern(7, SIZE)).unwrap();
    let to = |address| b.remote(address);
    a.post_bytes(1, Operation::Write { remote: to(0), immediate: None }, &pattern(0, 9));
    a.post_bytes(2, PLAIN, b"abc");
    a.post_bytes(3, Operation::Write { remote: to(100), immediate: Some(0xdead_beef) }, &pattern(1, 301));
    a.post_bytes(4, send(Some(77), None, false), b"");
    a.post_bytes(5, send(None, None, true), b"");
    let source = a.segment(10, 20);
    let read = Operation::Read { remote: to(50) };
    let sink = a.segment(1000, 200);
    a.post(6, read, Payload::Segments(&[sink])).unwrap();
    a.post(7, Operation::Write { remote: to(500), immediate: None }, Payload::Segments(&[source, source]))
        .unwrap();
    a.post(8, PLAIN, Payload::Segments(&[source, a.segment(0, 3)])).unwrap();
    a.post_bytes(9, send(None, Some(b.spare.remote_key()), true), b"gone");
    a.pump();
    assert!(a.machine.is_drained());
    std::mem::take(&mut a.pipe.bytes)
}

fn replay(b: &mut End, crc: bool, pieces: &[&[u8]], straight: bool) -> Outcome {
    b.restart(Side::Passive, crc);
    b.receives(8, 64);
    for piece in pieces {
        b.take(piece, straight);
        assert_eq!(b.fault, None);
    }
    assert!(b.machine.is_between_messages());
    let completions = std::mem::take(&mut b.completions);
    Outcome { completions, ring: b.ring_bytes(), own: b.own_bytes(), answered: b.pipe.bytes.clone() }
}

/// The outcome of a stream in pieces, and its length. The stream is recorded for each replay, because it
/// names keys, one of which it invalidates; what depends on their values is made equal.
fn outcome(crc: bool, straight: bool, cut: impl Fn(&[u8]) -> Vec<&[u8]>) -> (Outcome, usize) {
    let mut b = End::new(Side::Passive, crc);
    let stream = record(&mut b, crc);
    let mut outcome = replay(&mut b, crc, &cut(&stream), straight);
    let key = b.spare.remote_key();
    for completion in &mut outcome.completions {
        if let Some(stag) = &mut completion.invalidated {
            assert_eq!(*stag, key);
            *stag = 1;
        }
    }
    // The sink of the Read Response is a key of the active side's, which differs every time.
    outcome.answered.iter_mut().skip(4).take(4).for_each(|byte| *byte = 0);
    if crc {
        let end = outcome.answered.len();
        outcome.answered.truncate(end - 4);
    }
    (outcome, stream.len())
}

/// [RFC 5040 4.1-2, 5.1-2, 5.3-2, 5.3-6] [RFC 5041 4.1-1, 4.1-2, 4.2-3, 4.3-3, 5.4-2, 5.4-3] [RFC 7306 6.3-2]
#[test]
fn the_whole_stream_does_what_it_says() {
    for crc in [false, true] {
        let (outcome, _) = outcome(crc, false, |stream| vec![stream]);
        use CompletionKind::{Recv, RecvWrite};
        let summary: Vec<_> = outcome
            .completions
            .iter()
            .map(|done| (done.id, done.kind, done.length, done.immediate, done.invalidated))
            .collect();
        assert_eq!(
            summary,
            [
                (0, Recv, 3, None, None),
                (1, RecvWrite, 301, Some(0xdead_beef), None),
                (2, Recv, 0, Some(77), None),
                (3, Recv, 0, None, None),
                (4, Recv, 23, None, None),
                (5, Recv, 4, None, Some(1)),
            ]
        );
        assert_eq!(outcome.ring[..9], pattern(0, 9));
        assert_eq!(outcome.ring[100..401], pattern(1, 301));
        assert_eq!(outcome.ring[500..520], pattern(17, 20));
        assert_eq!(outcome.ring[520..540], pattern(17, 20));
        assert_eq!(outcome.own[..3], *b"abc");
        assert_eq!(outcome.own[256..276], pattern(17, 20));
        assert_eq!(outcome.own[276..279], pattern(7, 3));
        assert_eq!(outcome.own[320..324], *b"gone");
        // 16 bytes of header, 200 of payload, and 4 of CRC, which is omitted if CRCs are used.
        assert_eq!(outcome.answered.len(), 216 + if crc { 0 } else { 4 });
        assert_eq!(outcome.answered[16 + 50..16 + 200], pattern(1, 150));
    }
}

/// [RFC 5041 3-4, 5.2-4] [RFC 5044 3-6, 4.3-9, 4.3-10, 5.1-3, 5.2-1, 6-2, 6-4]
#[test]
fn every_cut_in_two_gives_the_same() {
    for crc in [false, true] {
        for straight in [false, true] {
            let (expected, length) = outcome(crc, false, |stream| vec![stream]);
            for at in 0..=length {
                let (cut, _) = outcome(crc, straight, |stream| {
                    let (first, second) = stream.split_at(at);
                    vec![first, second]
                });
                assert_eq!(cut, expected, "cut at {at}, CRC {crc}, straight {straight}");
            }
        }
    }
}

/// [RFC 5044 5.1-3, 5.2-1]
#[test]
fn pieces_of_every_size_give_the_same() {
    for crc in [false, true] {
        for straight in [false, true] {
            let (expected, _) = outcome(crc, false, |stream| vec![stream]);
            for size in 1..70 {
                let (cut, _) = outcome(crc, straight, |stream| stream.chunks(size).collect());
                assert_eq!(cut, expected, "pieces of {size}, CRC {crc}, straight {straight}");
            }
        }
    }
}

/// [RFC 5040 5.5-5] [RFC 5041 3-2]
#[test]
fn a_wire_that_takes_single_bytes_carries_the_same_stream() {
    for crc in [false, true] {
        let mut b = End::new(Side::Passive, crc);
        let mut a = End::new(Side::Active, crc);
        let mut whole = End::new(Side::Active, crc);
        a.pipe.room = 0;
        let bytes = pattern(3, 10_000);
        let operation = Operation::Write { remote: b.remote(1), immediate: Some(5) };
        whole.post_bytes(1, operation, &bytes);
        a.post_bytes(1, operation, &bytes);
        while !a.machine.is_drained() {
            assert!(a.completions.is_empty());
            assert!(a.machine.wants_wire());
            a.pipe.room = 1;
            a.pump();
        }
        assert_eq!(a.completions.len(), 1);
        assert_eq!(a.pipe.bytes, whole.pipe.bytes);
        b.receives(1, 8);
        b.take(&a.pipe.bytes, true);
        assert_eq!(b.ring_bytes()[1..10_001], bytes);
        assert_eq!((b.completions[0].length, b.completions[0].immediate), (10_000, Some(5)));
    }
}

/// Rooms of a wire that takes so many bytes at a time: within each part of an FPDU of 4000 bytes of payload, at its end,
/// and after several.
const ROOMS: [usize; 9] = [3, 1000, 4019, 4020, 4022, 4024, 4025, 12_345, 70_000];

/// What `end` sends, a wire's room after the other.
fn sent_in_parts(end: &mut End, room: usize) -> Vec<u8> {
    while end.machine.wants_wire() {
        let before = end.pipe.bytes.len();
        end.pipe.room = room;
        end.pump();
        assert_eq!(end.fault, None);
        assert!(end.pipe.bytes.len() == before + room || end.machine.is_drained(), "the wire has room left");
    }
    std::mem::take(&mut end.pipe.bytes)
}

#[test]
fn a_message_in_places_is_the_same_stream_whatever_the_wire_takes() {
    let remote = RemoteAddress { key: 1, address: 9 };
    let operations = [
        PLAIN,
        send(Some(7), None, false),
        Operation::Write { remote, immediate: None },
        Operation::Write { remote, immediate: Some(7) },
    ];
    // All but the last are more than one system call sends.
    for lengths in [&[100_001][..], &[1, 70_000, 3999, 4000], &[4000, 8192]] {
        let places: Vec<_> = lengths.iter().map(|&length| Place::leaked(length)).collect();
        for (at, place) in places.iter().enumerate() {
            place.fill(&pattern(at * 1000, place.len()));
        }
        for (crc, operation) in [false, true].into_iter().flat_map(|crc| operations.map(|what| (crc, what))) {
            let posted = |room| {
                let mut end = End::for_messages(Side::Active, crc);
                end.pump();
                end.pipe = Pipe { room, ..Pipe::default() };
                end.post(1, operation, Payload::Places(&places)).unwrap();
                end
            };
            let whole = posted(usize::MAX);
            let ulpdus = ulpdus(&whole.pipe.bytes);
            assert!(ulpdus.iter().all(|ulpdu| ulpdu.len() <= 4018));
            let length = lengths.iter().sum::<u32>() as usize;
            assert!(whole.pipe.calls <= 2 + length / 60_000, "{} calls", whole.pipe.calls);
            for room in ROOMS {
                let mut end = posted(0);
                assert!(sent_in_parts(&mut end, room) == whole.pipe.bytes, "room for {room} bytes");
                assert_eq!(end.completions.len(), 1);
            }
        }
    }
}

#[test]
fn a_response_is_the_same_stream_whatever_the_wire_takes() {
    let answered = |room| {
        let mut end = End::new(Side::Passive, false);
        end.ring().memory().write(0, &pattern(5, SIZE)).unwrap();
        let request = read(end.ring().remote_key(), 1, SIZE as u32 - 1);
        let mut second = request.clone();
        second[15] = 2;
        end.pipe.room = 0;
        end.take(&[request, second].concat(), false);
        sent_in_parts(&mut end, room)
    };
    let whole = answered(usize::MAX);
    let payload: Vec<u8> = ulpdus(&whole).iter().flat_map(|ulpdu| &ulpdu[14..]).copied().collect();
    assert!(payload == [&pattern(5, SIZE)[1..]; 2].concat());
    for room in ROOMS {
        assert!(answered(room) == whole, "room for {room} bytes");
    }
}

#[test]
fn a_wire_that_takes_everything_is_left_after_some_mebibytes() {
    let b = End::new(Side::Passive, false);
    let mut a = End::new(Side::Active, false);
    a.pipe.room = 0;
    let whole = a.segment(0, SIZE as u32);
    let operation = Operation::Write { remote: b.remote(0), immediate: None };
    let count = CAPABILITIES.send_depth as usize;
    for id in 0..count {
        a.post(id as u64, operation, Payload::Segments(&[whole; 4])).unwrap();
        assert!(!a.machine.is_paused(), "the wire takes nothing");
    }
    a.pipe.room = usize::MAX;
    let mut pumps = 0;
    while a.machine.wants_wire() {
        a.pump();
        pumps += 1;
        assert_eq!(a.machine.is_paused(), a.machine.wants_wire());
        assert!(std::mem::take(&mut a.pipe.bytes).len() < 5 << 20);
    }
    assert_eq!((pumps, a.completions.len()), (2, count));
}

#[test]
fn every_end_inside_the_stream_is_known_as_one() {
    let mut b = End::new(Side::Passive, false);
    let mut a = End::new(Side::Active, false);
    a.post_bytes(1, PLAIN, &pattern(0, 5000));
    a.post_bytes(2, PLAIN, b"x");
    // An FPDU ends after the opening Write, after each of the two segments of the first message, and after
    // the second message. No message ends between those two segments.
    let fpdus = [20, 20 + 20 + 4000 + 4, 20 + 20 + 4000 + 4 + 20 + 1000 + 4];
    let ends = [0, fpdus[0], fpdus[2], a.pipe.bytes.len()];
    for length in 0..=a.pipe.bytes.len() {
        b.restart(Side::Passive, false);
        b.receives(2, 8192);
        let bytes = a.pipe.bytes[..length].to_vec();
        b.take(&bytes, false);
        assert_eq!(b.machine.is_between_messages(), ends.contains(&length), "after {length} bytes");
    }
}
