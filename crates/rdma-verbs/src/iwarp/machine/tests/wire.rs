//! The bytes that a machine puts on the wire.

use super::*;

/// The ULPDUs that an active machine sends after `act`, without the empty write that opens its connection.
fn sent(act: impl FnOnce(&mut End)) -> Vec<Vec<u8>> {
    sent_by(End::new(Side::Active, false), act)
}

fn sent_by(mut end: End, act: impl FnOnce(&mut End)) -> Vec<Vec<u8>> {
    end.own().memory().write(0, &pattern(0, SIZE)).unwrap();
    end.pump();
    end.pipe.bytes.clear();
    act(&mut end);
    end.pump();
    ulpdus(&end.pipe.bytes).into_iter().map(<[u8]>::to_vec).collect()
}

/// An untagged segment: control bytes, word of the layer above, queue, message, offset, payload.
fn untagged(control: [u8; 2], word: u32, place: [u32; 3], payload: &[u8]) -> Vec<u8> {
    let fields = [word, place[0], place[1], place[2]].map(u32::to_be_bytes).concat();
    [&control, &fields[..], payload].concat()
}

fn tagged(control: [u8; 2], stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    [&control, &stag.to_be_bytes()[..], &offset.to_be_bytes(), payload].concat()
}

const REMOTE: RemoteAddress = RemoteAddress { key: 0x0a0b_0c0d, address: 0x0102_0304_0506_0708 };

/// [RFC 5040 3.1-1, 4.1-1, 4.1-2, 4.1-3, 4.1-4, 4.1-5, 4.1-6, 4.1-7, 4.1-9, 4.2-1, 4.4-1, 4.8-6, 5.1-1]
/// [RFC 5040 5.2-1, 5.2.1-1, 5.2.1-5, 5.2.1-8, 5.3-1, 5.3-4, 5.3-7, 5.4-1, 5.4-2]
/// [RFC 5041 4.1-8, 4.1-10, 4.2-1, 4.2-2, 4.2-6, 4.3-1, 4.3-2, 4.3-5, 4.3-7, 4.3-10, 4.4-1, 5.2-6]
/// [RFC 5044 3-1] [RFC 7306 4.1-1, 4.1-2, 4.1-3, 6.3-1, 6.3-4, 6.3-5]
#[test]
fn every_form_of_message_has_its_fields() {
    let form = |immediate, invalidate, solicited| {
        move |end: &mut End| {
            let bytes: &[u8] = if immediate { b"" } else { b"ab" };
            end.post_bytes(1, send(immediate.then_some(0x0506_0708), invalidate, solicited), bytes);
        }
    };
    let word = [5, 6, 7, 8, 0, 0, 0, 0];
    let first = [0, 1, 0];
    assert_eq!(sent(form(false, None, false)), [untagged([0x41, 0x43], 0, first, b"ab")]);
    assert_eq!(sent(form(false, Some(9), false)), [untagged([0x41, 0x44], 9, first, b"ab")]);
    assert_eq!(sent(form(false, None, true)), [untagged([0x41, 0x45], 0, first, b"ab")]);
    assert_eq!(sent(form(false, Some(9), true)), [untagged([0x41, 0x46], 9, first, b"ab")]);
    assert_eq!(sent(form(true, None, false)), [untagged([0x41, 0x48], 0, first, &word)]);
    assert_eq!(sent(form(true, None, true)), [untagged([0x41, 0x49], 0, first, &word)]);
    let write = |immediate| {
        move |end: &mut End| end.post_bytes(1, Operation::Write { remote: REMOTE, immediate }, b"ab")
    };
    let placed = tagged([0xc1, 0x40], REMOTE.key, REMOTE.address, b"ab");
    assert_eq!(sent(write(None)), [&placed[..]]);
    let behind = untagged([0x41, 0x48], 0, first, &word);
    assert_eq!(sent(write(Some(0x0506_0708))), [placed, behind]);
    let mut sink = 0;
    let read = sent(|end| {
        let segment = end.segment(7, 300);
        sink = segment.key;
        end.post(1, Operation::Read { remote: REMOTE }, Payload::Segments(&[segment])).unwrap();
    });
    let header = [
        &sink.to_be_bytes()[..],
        &7_u64.to_be_bytes(),
        &300_u32.to_be_bytes(),
        &REMOTE.key.to_be_bytes(),
        &REMOTE.address.to_be_bytes(),
    ];
    assert_eq!(read, [untagged([0x41, 0x41], 0, [1, 1, 0], &header.concat())]);
    let terminate = sent(|end| end.machine.terminate(Terminate::LOCAL_CATASTROPHIC, &mut end.pipe));
    assert_eq!(terminate, [untagged([0x41, 0x47], 0, [2, 1, 0], &[0; 4])]);
}

/// [RFC 5040 5.1-4]
/// [RFC 5041 4.1-3, 4.1-4, 4.1-5, 4.1-6, 4.2-4, 4.2-8, 4.3-4, 4.3-5, 4.3-9, 4.3-10, 5.2-1, 5.2-3, 5.2-5]
/// [RFC 5041 5.2-7, 5.3-2]
#[test]
fn segments_of_a_message_differ_in_place_and_end() {
    let bytes = pattern(3, 9000);
    let cuts = [(0, 4000, 0), (4000, 8000, 0), (8000, 9000, 0x40)];
    for inline in [true, false] {
        let post = |operation| {
            move |end: &mut End| match inline {
                true => end.post_bytes(1, operation, &pattern(3, 9000)),
                false => {
                    let (first, second) = (end.segment(3, 5000), end.segment(5003, 4000));
                    end.post(1, operation, Payload::Segments(&[first, second])).unwrap();
                }
            }
        };
        let message = cuts
            .map(|(from, to, last)| untagged([0x01 | last, 0x46], 9, [0, 1, from as u32], &bytes[from..to]));
        assert_eq!(sent(post(send(None, Some(9), true))), message);
        let placed = cuts.map(|(from, to, last)| {
            tagged([0x81 | last, 0x40], REMOTE.key, REMOTE.address + from as u64, &bytes[from..to])
        });
        assert_eq!(sent(post(Operation::Write { remote: REMOTE, immediate: None })), placed);
    }
}

/// By the rules for messages, if its reserved word is free. The other rules leave it 0 [RFC 5040 4.1-9].
#[test]
fn a_send_of_several_segments_tells_its_length() {
    let place = crate::Place::leaked(9000);
    place.fill(&pattern(3, 9000));
    for (length, immediate, invalidate, expected) in [
        (4000, None, None, [0].as_slice()),
        (4001, None, None, &[4001, 4001]),
        (9000, None, None, &[9000, 9000, 9000]),
        (9000, None, Some(9), &[9, 9, 9]),
        (9000, Some(7), None, &[1, 1, 1]),
    ] {
        let operation = send(immediate, invalidate, false);
        let words = |end, payload: Payload<'_>| -> Vec<u32> {
            let ulpdus = sent_by(end, |end| end.post(1, operation, payload).unwrap());
            ulpdus.iter().map(|ulpdu| u32::from_be_bytes(*ulpdu[2..].first_chunk().unwrap())).collect()
        };
        let (bytes, place) = (pattern(3, length), place.part(0, length));
        let inline = [IoSlice::new(&bytes)];
        for payload in [Payload::Places(std::slice::from_ref(&place)), Payload::Inline(&inline)] {
            assert_eq!(words(End::for_messages(Side::Active, false), payload), expected);
            if immediate.is_none() {
                let reserved = vec![invalidate.unwrap_or(0); expected.len()];
                assert_eq!(words(End::new(Side::Active, false), payload), reserved);
            }
        }
    }
}

/// [RFC 5040 5.1-3, 5.2.1-6, 5.3-5, 5.5-4] [RFC 5041 4.3-6, 5.2-8, 5.3-1] [RFC 7306 6.3-6]
#[test]
fn messages_are_numbered_by_queue_in_the_order_of_posting() {
    let found = sent(|end| {
        let segment = [end.segment(0, 1)];
        for id in 0..2 {
            end.post_bytes(id, PLAIN, b"a");
            end.post(id, Operation::Read { remote: REMOTE }, Payload::Segments(&segment)).unwrap();
            end.post(id, PLAIN, Payload::Segments(&segment)).unwrap();
            end.post_bytes(id, Operation::Write { remote: REMOTE, immediate: Some(1) }, b"");
        }
    });
    let number = |ulpdu: &Vec<u8>| (ulpdu[0] == 0x41).then(|| (ulpdu[9], ulpdu[13]));
    let numbers: Vec<_> = found.iter().map(|ulpdu| (ulpdu[1], number(ulpdu))).collect();
    let round = |sends, read| {
        [
            (0x43, Some((0, sends))),
            (0x41, Some((1, read))),
            (0x43, Some((0, sends + 1))),
            (0x40, None),
            (0x48, Some((0, sends + 2))),
        ]
    };
    assert_eq!(numbers, [round(1, 1), round(4, 2)].concat());
}

/// A Read Request for (key, offset, length), into (1, 1 + `sequence`) of the requester.
fn read(sequence: u32, (key, offset, length): (u32, u64, u32)) -> Vec<u8> {
    let header = [
        &1_u32.to_be_bytes()[..],
        &(1 + u64::from(sequence)).to_be_bytes(),
        &length.to_be_bytes(),
        &key.to_be_bytes(),
        &offset.to_be_bytes(),
    ];
    untagged([0x41, 0x41], 0, [1, sequence, 0], &header.concat())
}

/// The responses of a passive machine to these reads.
fn answered(end: &mut End, reads: &[(u32, u64, u32)]) -> Vec<Vec<u8>> {
    for (sequence, &wanted) in (1..).zip(reads) {
        end.take(&fpdu(&read(sequence, wanted)), false);
    }
    assert_eq!(end.fault, None);
    ulpdus(&end.pipe.bytes).into_iter().map(<[u8]>::to_vec).collect()
}

/// [RFC 5040 4.1-3, 4.1-4, 4.1-5, 4.4-2, 5.2-1, 5.2.1-3, 5.2.1-4, 5.2.1-7, 5.2.1-9, 5.2.2-1, 5.2.2-4]
/// [RFC 5040 5.2.2-5, 5.5-10]
#[test]
fn a_read_is_answered_to_the_place_that_it_names() {
    let mut end = End::new(Side::Passive, false);
    let key = end.ring().remote_key();
    end.ring().memory().write(0, &pattern(0, SIZE)).unwrap();
    let responses = answered(&mut end, &[(key, 5, 4003), (key, 9, 1)]);
    let bytes = pattern(0, SIZE);
    assert_eq!(
        responses,
        [
            tagged([0x81, 0x42], 1, 2, &bytes[5..4005]),
            tagged([0xc1, 0x42], 1, 4002, &bytes[4005..4008]),
            tagged([0xc1, 0x42], 1, 3, &bytes[9..10]),
        ]
    );
    assert_eq!(end.completions, []);
}

/// [RFC 5040 5.2.1-11, 5.2.1-12]
#[test]
fn a_read_of_nothing_is_answered_whatever_it_names() {
    let mut end = End::new(Side::Passive, false);
    let nobody = (1..).find(|&key| end.domain.find(key).is_none()).unwrap();
    let own = end.own().remote_key();
    let responses = answered(&mut end, &[(nobody, 0, 0), (own, u64::MAX, 0)]);
    assert_eq!(responses, [tagged([0xc1, 0x42], 1, 2, b""), tagged([0xc1, 0x42], 1, 3, b"")]);
}

/// [RFC 5041 5.2-9, 5.2-10]
#[test]
fn a_write_of_nothing_may_name_anything() {
    let mut end = End::new(Side::Passive, false);
    let nobody = (1..).find(|&key| end.domain.find(key).is_none()).unwrap();
    let own = end.own().remote_key();
    for (key, offset) in [(nobody, 0), (own, 0), (own, u64::MAX)] {
        end.take(&fpdu(&tagged([0xc1, 0x40], key, offset, b"")), false);
        assert_eq!(end.fault, None);
    }
}

/// [RFC 5040 4.1-10, 5.5-1, 5.5-2, 5.5-3, 5.5-7, 5.5-8, 5.5-9] [RFC 5041 4.1-7, 5.4-1, 5.4-2] [RFC 5044 6-5]
/// [RFC 7306 4.1-4]
#[test]
fn a_message_takes_effect_with_its_last_byte() {
    let mut passive = End::new(Side::Passive, false);
    passive.receives(2, 16);
    let key = passive.ring().remote_key();
    let mut active = End::new(Side::Active, false);
    let (segment, remote) = (active.segment(4, 2), passive.remote(0));
    active.post(1, Operation::Read { remote }, Payload::Segments(&[segment])).unwrap();
    active.pipe.bytes.clear();
    // Completions and ULPDUs that each message produces at its receiver.
    let to_passive = [
        (untagged([0x01, 0x43], 0xbad, [0, 1, 0], b"ab"), 0, 0),
        (untagged([0x41, 0x43], 0xbad, [0, 1, 2], b"cd"), 1, 0),
        (untagged([0x41, 0x48], 0xbad, [0, 2, 0], &[0; 8]), 1, 0),
        (read(1, (key, 0, 1)), 0, 1),
        (read(2, (0, 0, 0)), 0, 1),
    ];
    let to_active = [
        (tagged([0x81, 0x42], segment.key, 4, b"a"), 0, 0),
        (tagged([0xc1, 0x42], segment.key, 5, b"b"), 1, 0),
    ];
    for (end, messages) in [(&mut passive, &to_passive[..]), (&mut active, &to_active)] {
        for (message, completions, answers) in messages {
            let seen = |end: &End| (end.completions.len(), ulpdus(&end.pipe.bytes).len());
            let (before, bytes) = (seen(end), fpdu(message));
            let (last, rest) = bytes.split_last().unwrap();
            end.take(rest, true);
            assert_eq!(seen(end), before, "{message:x?}");
            end.take(&[*last], true);
            assert_eq!(seen(end), (before.0 + completions, before.1 + answers), "{message:x?}");
        }
        assert_eq!(end.fault, None);
    }
    assert_eq!(passive.completions[0].length, 4);
}

/// [RFC 5041 3-5] [RFC 5044 3-1, 4.1-1, 4.1-2, 4.4-8, 4.4-10, 7.1.1-5]
#[test]
fn padding_is_zero_and_behind_it_is_the_crc() {
    for crc in [false, true] {
        for length in 0..8 {
            let mut end = End::new(Side::Active, crc);
            end.pump();
            end.pipe.bytes.clear();
            end.post_bytes(1, PLAIN, &vec![0xff; length]);
            let bytes = &end.pipe.bytes;
            let (body, field) = bytes.split_last_chunk().unwrap();
            assert!(bytes.len().is_multiple_of(4) && body.len() - (20 + length) < 4, "{length}");
            assert!(body[20 + length..].iter().all(|&byte| byte == 0));
            let expected = if crc { mpa::crc_field(crc32c::crc32c(body)) } else { [0; 4] };
            assert_eq!(*field, expected);
        }
    }
}

/// [RFC 5041 3-1, 5.2-1] [RFC 5044 3-2, 3-3, 3-4, 3-5, 4.5-3, 4.5-4, 4.5-5]
#[test]
fn no_ulpdu_is_longer_than_mpa_allows() {
    let mut end = End::new(Side::Active, false);
    let (remote, whole) = (end.remote(0), SIZE as u32);
    end.machine = Machine::new(QpId(5), &end.domain, CAPABILITIES, usize::MAX);
    end.establish(Side::Active, false);
    let source = [end.segment(0, whole), end.segment(0, whole)];
    end.post(1, Operation::Write { remote, immediate: None }, Payload::Segments(&source)).unwrap();
    end.post(2, PLAIN, Payload::Segments(&source)).unwrap();
    let longest = ulpdus(&end.pipe.bytes).into_iter().map(<[u8]>::len).max();
    assert!(longest.is_some_and(|longest| (60_000..=64_768).contains(&longest)), "{longest:?}");
}

#[test]
fn a_message_of_64_kib_takes_one_call() {
    let mut end = End::new(Side::Active, false);
    end.machine = Machine::new(QpId(5), &end.domain, CAPABILITIES, usize::MAX);
    end.establish(Side::Active, false);
    end.pump();
    end.pipe.calls = 0;
    let (remote, source) = (end.remote(0), [end.segment(0, SIZE as u32)]);
    end.post(1, Operation::Write { remote, immediate: Some(1) }, Payload::Segments(&source)).unwrap();
    assert_eq!(end.pipe.calls, 1);
    assert_eq!(end.completions.len(), 1);
}
