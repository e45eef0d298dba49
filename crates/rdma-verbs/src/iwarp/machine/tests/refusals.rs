//! Violations of a peer and the Terminate messages that report them; requests that cannot be posted.

use super::*;
use crate::{Buffer, CompletionKind, Place};
use iwarp_wire::ddp::{Tagged, Untagged};
use iwarp_wire::rdmap::{About, Opcode, ReadRequest};

pub(super) fn tagged(opcode: Opcode, stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; 14];
    Tagged { last: true, ulp: opcode.control(), stag, offset }.emit(&mut header);
    fpdu(&[&header, payload].concat())
}

pub(super) fn untagged(opcode: Opcode, queue: u32, sequence: u32, offset: u32, payload: &[u8]) -> Vec<u8> {
    let header = Untagged { last: true, ulp: opcode.control(), ulp_word: 0xbad, queue, sequence, offset };
    let mut bytes = [0; 18];
    header.emit(&mut bytes);
    fpdu(&[&bytes, payload].concat())
}

pub(super) fn read(stag: u32, offset: u64, length: u32) -> Vec<u8> {
    let request =
        ReadRequest { sink_stag: 1, sink_offset: 2, length, source_stag: stag, source_offset: offset };
    let mut payload = [0; 28];
    request.emit(&mut payload);
    untagged(Opcode::ReadRequest, 1, 1, 0, &payload)
}

/// The headers of the faulty segment that a Terminate includes (RFC 5040 4.8).
#[derive(Debug, Clone, Copy)]
enum Repeats {
    /// Nothing: the error is not about a segment, or its header is not known to be one.
    Nothing,
    /// Its length and DDP header.
    Header,
    /// These and the header of the Read Request in it.
    Request,
}

impl Repeats {
    /// The flags and the bytes for them, for the segment in `fpdu`.
    fn of(self, fpdu: &[u8]) -> (u8, &[u8]) {
        let header = 2 + if fpdu[2] & 0x80 != 0 { 14 } else { 18 };
        match self {
            Self::Nothing => (0, &[]),
            Self::Header => (0xc0, &fpdu[..header]),
            Self::Request => (0xe0, &fpdu[..header + 28]),
        }
    }
}

/// The Terminate that a machine sends because of `bytes`. `about` has the faulty segment.
fn answer(end: &mut End, bytes: &[u8], repeats: Repeats, about: &[u8]) -> Terminate {
    end.restart(Side::Passive, false);
    end.receives(2, 16);
    end.take(bytes, true);
    let Some(Fault::Violation(violation)) = end.fault else { panic!("{:?} after {bytes:x?}", end.fault) };
    end.machine.terminate(violation.terminate(), &mut end.pipe);
    let sent = &end.pipe.bytes;
    let (bits, copies) = repeats.of(about);
    let length = 18 + 4 + copies.len();
    assert_eq!(sent[..4], [(length >> 8) as u8, length as u8, 0x41, 0x47], "{violation}");
    assert_eq!(sent[22..24], [bits, 0], "{violation}");
    assert_eq!(sent[24..2 + length], *copies, "{violation}");
    assert_eq!(sent.len(), 2 + length + mpa::padding(length) + 4, "{violation}");
    Terminate::parse(sent[20..24].try_into().unwrap())
}

/// [RFC 5040 4.1-6, 4.8-2, 4.8-3, 4.8-4, 4.8-5, 4.8-8, 4.8-9, 4.8-10, 5.2.1-2, 5.2.1-10, 5.2.2-2, 5.3-9]
/// [RFC 5040 6.1-2, 6.1-5, 7.1-3, 7.1-4, 7.2-1, 7.2-2, 7.2-3, 7.2-4, 7.2-6, 7.2-7, 7.2-9, 7.2-10, 7.2-11]
/// [RFC 5040 8.1.1-3, 8.1.1-12]
/// [RFC 5041 4.1-11, 4.2-3, 4.2-5, 4.2-7, 4.3-3, 5.3-4, 7.1-1, 7.1-2, 7.1-3, 7.1-4, 7.1-5, 7.1-8, 7.1-9]
/// [RFC 5041 7.1-10, 7.1-11, 7.1-12, 7.1-13, 7.1-14, 7.1-15, 7.2-1, 8.3.1-3] [RFC 5044 8-4]
/// [RFC 7306 6.3-7, 8.1-2, 8.2-1, 8.2-2, 8.2-3]
#[test]
fn each_violation_has_its_code() {
    let mut end = End::new(Side::Passive, false);
    let three = [send_of(1), send_of(2), send_of(3)].concat();
    assert_eq!(answer(&mut end, &three, Repeats::Header, &send_of(3)), Terminate::NO_BUFFER);
    refuses_each_violation(&mut end, &[]);
}

/// The same for a machine for messages, which cuts what is too long, and lets a message without a receive wait.
#[test]
fn each_violation_among_messages_has_its_code() {
    let mut end = End::for_messages(Side::Passive, false);
    refuses_each_violation(&mut end, &["too long"]);
}

fn refuses_each_violation(end: &mut End, allowed: &[&str]) {
    let (good, own) = (end.ring().remote_key(), end.own().remote_key());
    let size = SIZE as u64;
    let bad = (1..).find(|&key| end.domain.find(key).is_none()).unwrap();
    let versions = |mut bytes: Vec<u8>, at: usize, value: u8| {
        bytes[at] = value;
        bytes
    };
    use Opcode::{Immediate, ReadResponse, Send, SendInvalidate, Write};
    let immediate = [0; 8];
    let cases = [
        ("STag", tagged(Write, bad, 0, b"x"), Terminate::TAGGED_STAG, Repeats::Header),
        ("bounds", tagged(Write, good, size - 3, b"four"), Terminate::TAGGED_BOUNDS, Repeats::Header),
        ("far bounds", tagged(Write, good, size + 1, b"x"), Terminate::TAGGED_BOUNDS, Repeats::Header),
        ("wrap", tagged(Write, good, u64::MAX, b"xy"), Terminate::TAGGED_WRAP, Repeats::Header),
        ("rights", tagged(Write, own, 0, b"x"), Terminate::ACCESS, Repeats::Header),
        ("read STag", read(bad, 0, 1), Terminate::READ_STAG, Repeats::Request),
        ("read bounds", read(good, size, 1), Terminate::READ_BOUNDS, Repeats::Request),
        ("read wrap", read(good, u64::MAX, 2), Terminate::READ_WRAP, Repeats::Request),
        ("read rights", read(own, 0, 1), Terminate::ACCESS, Repeats::Request),
        ("response unasked", tagged(ReadResponse, own, 0, b"x"), Terminate::TAGGED_BOUNDS, Repeats::Header),
        ("too long", untagged(Send, 0, 1, 0, &[0; 17]), Terminate::TOO_LONG, Repeats::Header),
        ("queue", untagged(Send, 3, 1, 0, b""), Terminate::QUEUE, Repeats::Header),
        ("queue of reads", untagged(Send, 1, 1, 0, b""), Terminate::QUEUE, Repeats::Header),
        ("sequence", untagged(Send, 0, 2, 0, b""), Terminate::SEQUENCE, Repeats::Header),
        ("offset", untagged(Send, 0, 1, 4, b""), Terminate::MESSAGE_OFFSET, Repeats::Header),
        ("invalidate", untagged(SendInvalidate, 0, 1, 0, b""), Terminate::INVALIDATE, Repeats::Header),
        (
            "short immediate",
            untagged(Immediate, 0, 1, 0, &immediate[1..]),
            Terminate::RDMAP_UNSPECIFIED,
            Repeats::Header,
        ),
        ("untagged write", untagged(Write, 0, 1, 0, b""), Terminate::OPCODE, Repeats::Header),
        ("tagged send", tagged(Send, good, 0, b""), Terminate::OPCODE, Repeats::Header),
        ("opcode", versions(untagged(Send, 0, 1, 0, b""), 3, 0x4a), Terminate::OPCODE, Repeats::Header),
        (
            "RDMAP version",
            versions(untagged(Send, 0, 1, 0, b""), 3, 0x83),
            Terminate::RDMAP_VERSION,
            Repeats::Header,
        ),
        (
            "DDP version",
            versions(untagged(Send, 0, 1, 0, b""), 2, 0x42),
            Terminate::UNTAGGED_VERSION,
            Repeats::Nothing,
        ),
        (
            "tagged version",
            versions(tagged(Write, good, 0, b""), 2, 0xc2),
            Terminate::TAGGED_VERSION,
            Repeats::Nothing,
        ),
        ("short", fpdu(&[0xc1, 0x40, 1, 2]), Terminate::FPDU_LENGTH, Repeats::Nothing),
    ];
    for (what, bytes, expected, repeats) in cases.into_iter().filter(|(what, ..)| !allowed.contains(what)) {
        assert_eq!(answer(end, &bytes, repeats, &bytes), expected, "{what}");
        assert_eq!(end.ring_bytes(), vec![0; SIZE], "{what} left something behind");
    }
    let reads: Vec<u8> = (1..=3)
        .flat_map(|sequence| {
            let mut request = read(good, 0, 60_000);
            request[15] = sequence;
            request
        })
        .collect();
    end.restart(Side::Passive, false);
    end.pipe.room = 0;
    end.take(&reads, false);
    assert_eq!(end.fault, Some(Fault::Violation(Violation::Reads { limit: 2 })));
}

/// [RFC 5040 4.8-4] [RFC 5044 8-6]
#[test]
fn a_terminate_about_no_segment_repeats_none() {
    let mut end = End::new(Side::Passive, true);
    let mut bytes = read(1, 0, 1);
    *bytes.last_mut().unwrap() ^= 1;
    end.take(&bytes, true);
    assert!(matches!(end.fault, Some(Fault::Violation(Violation::Crc { .. }))));
    end.machine.terminate(Terminate::CRC, &mut end.pipe);
    assert_eq!(end.pipe.bytes[20..24], [0x20, 2, 0, 0]);
    assert_eq!(end.pipe.bytes[..2], [0, 22]);
}

pub(super) fn send_of(sequence: u32) -> Vec<u8> {
    untagged(Opcode::Send, 0, sequence, 0, b"")
}

/// [RFC 5040 7.1-2] [RFC 7306 8.1-1]
#[test]
fn a_terminate_about_what_this_side_sends_repeats_no_segment() {
    let mut end = End::new(Side::Passive, false);
    end.pipe.room = 1000;
    let first = read(end.ring().remote_key(), 0, SIZE as u32);
    let mut second = first.clone();
    second[15] = 2;
    // A correct segment follows the reads; its payload is missing.
    let begun = tagged(Opcode::Write, end.spare.remote_key(), 0, b"x");
    end.take(&[&first, &second, &begun[..16]].concat(), false);
    assert_eq!(end.fault, None);
    end.ring = None;
    end.pipe.room = usize::MAX;
    end.pump();
    let Some(Fault::Violation(violation)) = end.fault else { panic!("{:?}", end.fault) };
    end.machine.terminate(violation.terminate(), &mut end.pipe);
    let last = ulpdus(&end.pipe.bytes).pop().unwrap();
    assert_eq!(last[..2], [0x41, Opcode::Terminate.control()]);
    assert_eq!(last[18..], [0x01, 0, 0, 0]);
}

/// [RFC 5041 3-5] [RFC 5044 4.4-6, 4.4-11, 4.4-12, 6-1, 6-3, 6-5]
#[test]
fn what_the_crc_does_not_vouch_for_is_not_placed() {
    // One bit of the DDP version, of the key, of the offset, of the payload, of the padding.
    for (at, bit) in [(2, 2), (4, 1), (15, 1), (16, 1), (19, 1)] {
        for straight in [false, true] {
            let mut end = End::new(Side::Passive, true);
            let mut bytes = tagged(Opcode::Write, end.ring().remote_key(), 100, b"abc");
            bytes[at] ^= bit;
            for byte in &bytes {
                end.take(std::slice::from_ref(byte), straight);
            }
            let crc = matches!(end.fault, Some(Fault::Violation(Violation::Crc { .. })));
            assert!(crc, "byte {at}: {:?}", end.fault);
            assert_eq!(end.ring_bytes(), vec![0; SIZE], "byte {at}");
        }
    }
}

/// [RFC 5040 8.1.1-7]
#[test]
fn a_key_of_several_queue_pairs_is_not_given_up() {
    let mut end = End::new(Side::Passive, false);
    end.receives(1, 16);
    let other = Machine::new(QpId(6), &end.domain, CAPABILITIES, 4000);
    let key = end.spare.remote_key();
    let mut give_up = [0; 18];
    let header = Untagged {
        last: true,
        ulp: Opcode::SendInvalidate.control(),
        ulp_word: key,
        queue: 0,
        sequence: 1,
        offset: 0,
    };
    header.emit(&mut give_up);
    end.take(&fpdu(&give_up), false);
    assert_eq!(end.fault, Some(Fault::Violation(Violation::Invalidate(key))));
    assert!(end.domain.find(key).is_some());
    drop(other);
    end.restart(Side::Passive, false);
    end.receives(1, 16);
    end.take(&fpdu(&give_up), false);
    assert_eq!(end.fault, None);
    assert!(end.domain.find(key).is_none());
}

/// [RFC 5040 5.3-8, 5.3-9, 7.2-5, 7.2-8, 8.1.1-1] [RFC 5041 4.2-5, 7.1-8, 8.2-1, 8.2-4, 8.3.1-1]
#[test]
fn a_key_of_another_domain_names_nothing() {
    let mut end = End::new(Side::Passive, false);
    let other = End::new(Side::Passive, false);
    let (ring, spare) = (other.ring().remote_key(), other.spare.remote_key());
    let give_up = Untagged {
        last: true,
        ulp: Opcode::SendInvalidate.control(),
        ulp_word: spare,
        queue: 0,
        sequence: 1,
        offset: 0,
    };
    let mut header = [0; 18];
    give_up.emit(&mut header);
    for (bytes, expected) in [
        (tagged(Opcode::Write, ring, 0, b"x"), Terminate::TAGGED_STAG),
        (read(ring, 0, 1), Terminate::READ_STAG),
        (fpdu(&header), Terminate::INVALIDATE),
    ] {
        end.restart(Side::Passive, false);
        end.receives(1, 16);
        end.take(&bytes, false);
        let Some(Fault::Violation(violation)) = end.fault else { panic!("{:?}", end.fault) };
        assert_eq!(violation.terminate(), expected);
    }
    assert_eq!(other.ring_bytes(), vec![0; SIZE]);
    assert!(other.domain.find(spare).is_some());
}

/// Immediate data is a message of its own [RFC 7306 6.3-3].
#[test]
fn immediate_data_within_a_message_is_refused() {
    for (offset, expected) in [(0, 50), (50, 0)] {
        let mut end = End::for_messages(Side::Passive, false);
        let place = Place::leaked(100);
        let buffer = Buffer::Places(std::slice::from_ref(&place));
        end.machine.post_recv(&[RecvRequest { id: 1, buffer }]).unwrap();
        let begun = Untagged {
            last: false,
            ulp: Opcode::Send.control(),
            ulp_word: 0,
            queue: 0,
            sequence: 1,
            offset: 0,
        };
        let mut header = [0; 18];
        begun.emit(&mut header);
        end.take(&fpdu(&[&header[..], &[1; 50]].concat()), false);
        end.take(&untagged(Opcode::Immediate, 0, 1, offset, &[2; 8]), false);
        let violation = Violation::MessageOffset { found: offset, expected };
        assert_eq!(end.fault, Some(Fault::Violation(violation)));
        assert!(end.completions.is_empty());
    }
}

/// [RFC 5044 4.1-3, 4.1-4, 4.4-7, 7.1.1-7, 7.1.1-9]
#[test]
fn padding_and_an_unused_crc_field_hold_anything() {
    for crc in [false, true] {
        let mut end = End::new(Side::Passive, crc);
        let mut bytes = tagged(Opcode::Write, end.ring().remote_key(), 0, b"a");
        let (body, field) = bytes.split_last_chunk_mut().unwrap();
        let [.., one, two, three] = body else { panic!("no padding in {body:x?}") };
        (*one, *two, *three) = (7, 8, 9);
        *field = if crc { mpa::crc_field(crc32c::crc32c(body)) } else { [1, 2, 3, 4] };
        end.take(&bytes, true);
        assert_eq!(end.fault, None);
        assert_eq!(end.ring_bytes()[..2], [b'a', 0]);
    }
}

/// [RFC 5041 6.2.2-1, 7-1] [RFC 5044 4.4-12, 8-2, 8-4, 8-5]
#[test]
fn a_wrong_crc_is_told_with_both_numbers() {
    let mut end = End::new(Side::Passive, true);
    end.receives(1, 16);
    let mut bytes = untagged(Opcode::Send, 0, 1, 0, b"abc");
    let at = bytes.len() - 6;
    bytes[at] ^= 1;
    // Correct input after it is ignored.
    end.take(&[bytes, send_of(1)].concat(), false);
    let Some(Fault::Violation(violation @ Violation::Crc { found, expected })) = end.fault else {
        panic!("{:?}", end.fault)
    };
    assert_ne!(found, expected);
    assert_eq!(violation.terminate(), Terminate::CRC);
    let text = violation.to_string();
    assert!(text.contains(&format!("{found:#010x}")) && text.contains(&format!("{expected:#010x}")));
    assert!(end.completions.is_empty());
}

/// [RFC 5040 8.1.1-6] [RFC 5041 8.3.1-6]
#[test]
fn a_key_dies_with_its_region_also_under_a_message() {
    for straight in [false, true] {
        let mut end = End::new(Side::Passive, false);
        let key = end.ring().remote_key();
        let bytes = tagged(Opcode::Write, key, 0, &[1; 1000]);
        end.take(&bytes, straight);
        assert_eq!(end.fault, None);
        end.take(&bytes[..500], straight);
        assert!(end.machine.target().is_some());
        end.ring = None;
        assert!(end.machine.target().is_none());
        end.take(&bytes[500..], straight);
        assert_eq!(end.fault, Some(Fault::Violation(Violation::Stag { purpose: Purpose::Write, stag: key })));
    }
}

#[test]
fn a_region_that_dies_under_a_response_ends_the_connection() {
    let mut end = End::new(Side::Passive, false);
    end.pipe.room = 1000;
    // The first is encoded, and waits for the wire; the second is not.
    let first = read(end.ring().remote_key(), 0, SIZE as u32);
    let mut second = first.clone();
    second[15] = 2;
    end.take(&[first, second].concat(), false);
    assert_eq!(end.fault, None);
    end.ring = None;
    end.pipe.room = usize::MAX;
    end.pump();
    assert!(matches!(end.fault, Some(Fault::Violation(Violation::Stag { purpose: Purpose::Read, .. }))));
}

#[test]
fn a_read_of_memory_that_is_not_there_ends_the_connection() {
    let mut end = End::new(Side::Passive, false);
    end.pipe.unreadable = true;
    let stag = end.ring().remote_key();
    end.take(&read(stag, 0, SIZE as u32), false);
    assert_eq!(end.fault, Some(Fault::Violation(Violation::Stag { purpose: Purpose::Read, stag })));
}

#[test]
fn a_message_in_a_place_that_cannot_be_read_is_a_local_error() {
    let place = Place::leaked(20_000);
    let mut end = End::for_messages(Side::Active, false);
    end.pump();
    end.pipe = Pipe { unreadable: true, ..Pipe::endless() };
    assert!(matches!(end.post(1, PLAIN, Payload::Places(&[place])), Err(Error::Io { .. })));
    assert_eq!(end.machine.fault(), Some(Violation::LocalPlace));
    end.machine.flush(Some(&Violation::LocalPlace.into()), &mut end.completions);
    let done: Vec<_> = end.completions.iter().map(|done| (done.id, done.status)).collect();
    assert_eq!(done, [(1, CompletionStatus::LocalAccess)]);
    assert!(end.pipe.bytes.is_empty(), "a Terminate can follow");
}

/// Also a request for whose bytes there is no room: the message is found out when that is posted.
#[test]
fn requests_behind_a_place_that_cannot_be_read_are_flushed() {
    let mut end = End::for_messages(Side::Active, false);
    end.pump();
    end.pipe = Pipe::default();
    end.post(1, PLAIN, Payload::Places(&[Place::leaked(20_000)])).unwrap();
    let bytes = vec![0; CAPABILITIES.inline];
    let inline = [IoSlice::new(&bytes)];
    let full = (2..).find(|&id| end.post(id, PLAIN, Payload::Inline(&inline)).is_err()).unwrap();
    assert!(end.machine.send_room() > 0, "the room for bytes is less than that for requests");
    end.pipe = Pipe { unreadable: true, ..Pipe::endless() };
    assert!(matches!(end.post(full, PLAIN, Payload::Inline(&inline)), Err(Error::Io { .. })));
    end.machine.flush(Some(&Violation::LocalPlace.into()), &mut end.completions);
    let done: Vec<_> = end.completions.iter().map(|done| (done.id, done.status)).collect();
    let behind = (2..=full).map(|id| (id, CompletionStatus::Flushed));
    let expected: Vec<_> = [(1, CompletionStatus::LocalAccess)].into_iter().chain(behind).collect();
    assert_eq!(done, expected);
}

/// [RFC 5040 7.1-1]
#[test]
fn a_receive_whose_region_died_is_a_local_error() {
    let mut end = End::new(Side::Passive, false);
    end.receives(1, 16);
    let key = end.own().local_key();
    end.own = None;
    end.take(&untagged(Opcode::Send, 0, 1, 0, b"x"), false);
    let fault = Fault::Violation(Violation::LocalKey(key));
    assert_eq!(end.fault, Some(fault));
    end.machine.flush(Some(&fault), &mut end.completions);
    let statuses: Vec<_> = end.completions.iter().map(|done| done.status).collect();
    assert_eq!(statuses, [CompletionStatus::LocalAccess]);
}

#[test]
fn a_message_too_long_is_reported_at_its_receive() {
    let mut end = End::new(Side::Passive, false);
    end.receives(2, 16);
    end.take(&untagged(Opcode::Send, 0, 1, 0, &[0; 17]), false);
    let fault = end.fault.unwrap();
    assert_eq!(fault.to_string(), "message of 17 bytes or more for a receive of 16");
    end.machine.flush(Some(&fault), &mut end.completions);
    let statuses: Vec<_> = end.completions.iter().map(|done| (done.id, done.status)).collect();
    assert_eq!(statuses, [(0, CompletionStatus::Truncated), (1, CompletionStatus::Flushed)]);
}

/// [RFC 5040 6.2.1-2]
#[test]
fn a_refused_read_is_a_remote_error() {
    let mut end = End::new(Side::Active, false);
    let (remote, sink) = (end.remote(0), end.segment(0, 8));
    end.post(1, Operation::Read { remote }, Payload::Segments(&[sink])).unwrap();
    end.post_bytes(2, PLAIN, b"x");
    let mut payload = [0; 4];
    Terminate::READ_BOUNDS.emit(&About::default(), &mut payload);
    end.take(&untagged(Opcode::Terminate, 2, 1, 0, &payload), false);
    let fault = Fault::Terminated(Terminate::READ_BOUNDS);
    assert_eq!(end.fault, Some(fault));
    end.machine.flush(Some(&fault), &mut end.completions);
    let summary: Vec<_> = end.completions.iter().map(|done| (done.id, done.kind, done.status)).collect();
    assert_eq!(
        summary,
        [
            (1, CompletionKind::Read, CompletionStatus::RemoteAccess),
            (2, CompletionKind::Send, CompletionStatus::Flushed),
        ]
    );
}

/// A read is complete with the last byte of its response, though it is reported only after all of the input that
/// came along, in which the connection ends. The one that the peer refuses is the next. [RFC 5040 5.5-10, 6.2.1-2]
#[test]
fn a_response_that_comes_along_with_the_fault_is_reported() {
    let mut end = End::new(Side::Active, false);
    let (remote, sink) = (end.remote(0), end.segment(0, 8));
    for id in 1..=2 {
        end.post(id, Operation::Read { remote }, Payload::Segments(&[sink])).unwrap();
    }
    end.post_bytes(3, PLAIN, b"x");
    let mut payload = [0; 4];
    Terminate::READ_BOUNDS.emit(&About::default(), &mut payload);
    let terminate = untagged(Opcode::Terminate, 2, 1, 0, &payload);
    let response = tagged(Opcode::ReadResponse, sink.key, sink.address, b"response");
    end.take(&[response, terminate].concat(), false);
    let fault = Fault::Terminated(Terminate::READ_BOUNDS);
    assert_eq!(end.fault, Some(fault));
    end.machine.flush(Some(&fault), &mut end.completions);
    let statuses: Vec<_> = end.completions.iter().map(|done| (done.id, done.status)).collect();
    assert_eq!(
        statuses,
        [(1, CompletionStatus::Success), (2, CompletionStatus::RemoteAccess), (3, CompletionStatus::Flushed),]
    );
}

/// The responses to reads that are given up with the output are dropped, also one that has begun to arrive, and what
/// is behind them arrives.
#[test]
fn responses_after_the_end_of_the_output_are_dropped() {
    // Within the header, and within the payload.
    for (begun, places) in [(0, false), (20, false), (0, true), (3, true), (20, true)] {
        let mut end = End::for_messages(Side::Active, false);
        end.receives(1, 0);
        let (remote, sink) = (end.remote(0), end.segment(0, 8));
        let place = Place::leaked(8);
        let target = [place];
        let payload =
            if places { Payload::Places(&target) } else { Payload::Segments(std::slice::from_ref(&sink)) };
        end.post(1, Operation::Read { remote }, payload).unwrap();
        let request = ReadRequest::parse(ulpdus(&end.pipe.bytes).last().unwrap()[18..].try_into().unwrap());
        let response = tagged(Opcode::ReadResponse, request.sink_stag, request.sink_offset, b"response");
        let (before, after) = response.split_at(begun);
        end.take(before, false);
        let had = (place.bytes().to_vec(), end.own_bytes());
        end.machine.end_output(&mut end.completions);
        end.take(&[after, &send_of(1)].concat(), false);
        assert_eq!(end.fault, None);
        let done: Vec<_> = end.completions.iter().map(|done| (done.kind, done.status)).collect();
        let expected = [
            (CompletionKind::Read, CompletionStatus::Flushed),
            (CompletionKind::Recv, CompletionStatus::Success),
        ];
        assert_eq!(done, expected);
        assert_eq!((place.bytes().to_vec(), end.own_bytes()), had);
    }
}

/// A sequence number that no read has is that of a peer which repeats its own idea of the header: then the
/// oldest read is meant. [RFC 5040 4.8-8, 6.2.1-2]
#[test]
fn a_refused_read_is_named_by_its_sequence_number() {
    for (sequence, refused) in [(1, 1), (2, 2), (3, 1), (0x0200_0000, 1)] {
        // Two of the three are requested at a time.
        let mut end = End::new(Side::Active, false);
        let sink = end.segment(0, 8);
        for id in 1..=3 {
            let remote = end.remote(0);
            end.post(id, Operation::Read { remote }, Payload::Segments(&[sink])).unwrap();
        }
        end.post_bytes(4, PLAIN, b"x");
        let request = untagged(Opcode::ReadRequest, 1, sequence, 0, &[0; 28]);
        let head = request.first_chunk::<20>().unwrap();
        let mut payload = [0; 24];
        Terminate::READ_STAG.emit(&About { head, request: None }, &mut payload);
        end.take(&untagged(Opcode::Terminate, 2, 1, 0, &payload), false);
        let fault = Fault::Terminated(Terminate::READ_STAG);
        assert_eq!(end.fault, Some(fault));
        end.machine.flush(Some(&fault), &mut end.completions);
        let statuses: Vec<_> = end.completions.iter().map(|done| (done.id, done.status)).collect();
        let expected: Vec<_> = (1..=4)
            .map(|id| match id == refused {
                true => (id, CompletionStatus::RemoteAccess),
                false => (id, CompletionStatus::Flushed),
            })
            .collect();
        assert_eq!(statuses, expected);
    }
}

/// A write that is refused when it is all sent fails with the read of no bytes that was posted behind it. A read of
/// no bytes that confirms another write, or a send, does not fail in its place. [RFC 5040 4.8-8, 6.2.1-2]
#[test]
fn a_refused_write_is_named_by_its_place() {
    const EMPTY: Payload<'_> = Payload::Places(&[]);
    let refused = [(7, 150, Some(2)), (7, 99, None), (7, 200, Some(3)), (8, 150, None), (7, 325, Some(3))];
    // Two reads are requested at a time.
    let cases = refused.iter().flat_map(|&case| [true, false].map(|is_answered| (case, is_answered)));
    for ((key, address, refused), is_answered) in cases {
        let mut end = End::for_messages(Side::Active, false);
        let slices = [IoSlice::new(&[0; 50])];
        let write = |id, address| SendRequest {
            id,
            signaled: true,
            operation: Operation::Write { remote: RemoteAddress { key: 7, address }, immediate: None },
            payload: Payload::Inline(&slices),
        };
        let send = |id| SendRequest { operation: PLAIN, ..write(id, 0) };
        let read = |id| SendRequest {
            operation: Operation::Read { remote: RemoteAddress { key: 0, address: 0 } },
            payload: EMPTY,
            ..write(id, 0)
        };
        let scratch = &mut end.scratch;
        for requests in [
            [send(1), read(1)].as_slice(),
            &[write(10, 8000), send(11)],
            &[write(2, 100), write(2, 150), read(2)],
            &[write(3, 200), write(3, 300), read(3)],
        ] {
            let mut port = Port { wire: &mut end.pipe, sink: &mut end.completions, scratch };
            end.machine.post_send(requests, false, &mut port).unwrap();
        }
        if is_answered {
            end.take(&tagged(Opcode::ReadResponse, 0, 0, b""), false);
        }
        end.completions.clear();
        let header = tagged(Opcode::Write, key, address, b"");
        let mut payload = [0; 24];
        Terminate::TAGGED_STAG
            .emit(&About { head: header.first_chunk::<16>().unwrap(), request: None }, &mut payload);
        end.take(&untagged(Opcode::Terminate, 2, 1, 0, &payload), false);
        let fault = Fault::Terminated(Terminate::TAGGED_STAG);
        assert_eq!(end.fault, Some(fault));
        end.machine.flush(Some(&fault), &mut end.completions);
        for done in &end.completions {
            let is_refused = done.status == CompletionStatus::RemoteAccess;
            let is_meant = done.kind == CompletionKind::Read && Some(done.id) == refused;
            assert_eq!(is_refused, is_meant, "{done:?} {key} {address}");
        }
        let reads = end.completions.iter().filter(|done| done.kind == CompletionKind::Read);
        assert_eq!(reads.count(), if is_answered { 2 } else { 3 });
    }
}

/// [RFC 5040 5.4-3, 5.4-4]
#[test]
fn a_terminate_that_holds_headers_is_read() {
    for length in [4, 6, 20, 24, 52, 500] {
        let mut end = End::new(Side::Active, false);
        let mut payload = vec![0xee; length];
        payload[..4].copy_from_slice(&[0x11, 1, 0xe0, 0]);
        end.take(&untagged(Opcode::Terminate, 2, 1, 0, &payload), false);
        assert_eq!(end.fault, Some(Fault::Terminated(Terminate::TAGGED_BOUNDS)));
    }
}

/// [RFC 5041 5.2-2]
#[test]
fn what_cannot_be_posted_changes_nothing() {
    let mut end = End::new(Side::Active, false);
    end.pump();
    let (remote, key) = (end.remote(0), end.own().local_key());
    let before = end.pipe.bytes.len();
    let wide = vec![0; CAPABILITIES.inline + 1];
    let segment = |address, length| Segment { key, address, length };
    let read_only = Segment { key: end.ring().local_key(), address: 0, length: 8 };
    let read = Operation::Read { remote };
    let refused: [(&str, Operation, Payload<'_>); 9] = [
        ("inline too long", PLAIN, Payload::Inline(&[IoSlice::new(&wide)])),
        ("immediate with payload", send(Some(1), None, false), Payload::Inline(&[IoSlice::new(b"x")])),
        ("immediate with invalidate", send(Some(1), Some(2), false), Payload::Inline(&[])),
        ("no such key", PLAIN, Payload::Segments(&[Segment { key: 1, address: 0, length: 1 }])),
        ("beyond the region", PLAIN, Payload::Segments(&[segment(SIZE as u64, 1)])),
        ("address wraps", PLAIN, Payload::Segments(&[segment(u64::MAX, 2)])),
        ("inline read", read, Payload::Inline(&[])),
        ("read in two", read, Payload::Segments(&[segment(0, 1), segment(1, 1)])),
        ("read into memory not to be written", read, Payload::Segments(&[read_only])),
    ];
    for (what, operation, payload) in refused {
        assert!(!end.send_at_once(1, operation, payload), "{what}");
        assert!(end.post(1, operation, payload).is_err(), "{what}");
    }
    let longest = [segment(0, u32::MAX), segment(0, 1)];
    let too_long = end.post(1, PLAIN, Payload::Segments(&longest));
    assert!(matches!(too_long, Err(Error::OutOfRange { value: 0x1_0000_0000, most: 0xffff_ffff, .. })));
    assert_eq!(end.pipe.bytes.len(), before);
    end.post_bytes(1, PLAIN, b"");
    assert_eq!(end.pipe.bytes[before..][12..16], [0, 0, 0, 1], "the first message has the first number");
    let buffer = Buffer::Segment(read_only);
    assert!(matches!(
        end.machine.post_recv(&[RecvRequest { id: 1, buffer: Buffer::Empty }, RecvRequest { id: 2, buffer }]),
        Err(Error::BadSegment { .. })
    ));
    for buffer in [Buffer::Empty, Buffer::Segment(Segment { key: 1, address: 0, length: 1 })] {
        assert!(!end.machine.add_receive(&RecvRequest { id: 1, buffer }), "{buffer:?}");
    }
    let many = [RecvRequest { id: 0, buffer: Buffer::Empty }; 33];
    assert!(matches!(end.machine.post_recv(&many), Err(Error::QueueFull { depth: 32, room: 32, asked: 33 })));
    end.machine.post_recv(&many[..32]).unwrap();
}

#[test]
fn the_send_queue_and_staging_are_bounded() {
    let mut end = End::new(Side::Active, false);
    end.pipe.room = 0;
    let mut posted = 0;
    let error = loop {
        match end.post(posted, PLAIN, Payload::Inline(&[IoSlice::new(&[0; 1000])])) {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::QueueFull { depth: 32, room: 0, asked: 1 }), "{error}");
    assert!((10..20).contains(&posted), "{posted} posts of 1000 bytes went into staging");
    end.pipe.room = usize::MAX;
    end.pump();
    assert_eq!(end.completions.len() as u64, posted);
    end.pipe.room = 0;
    for id in 0..32 {
        end.post_bytes(id, PLAIN, b"x");
    }
    assert!(matches!(end.post(0, PLAIN, Payload::Inline(&[])), Err(Error::QueueFull { room: 0, .. })));
}

/// [RFC 5044 7.1.2-12]
#[test]
fn the_passive_side_holds_back_until_the_first_fpdu() {
    let mut end = End::new(Side::Passive, false);
    end.post_bytes(1, PLAIN, b"early");
    let source = end.segment(0, 100);
    end.post(2, PLAIN, Payload::Segments(&[source])).unwrap();
    end.pump();
    assert!(end.pipe.bytes.is_empty() && !end.machine.wants_wire() && end.completions.is_empty());
    let opening = tagged(Opcode::Write, 0, 0, b"");
    for byte in &opening {
        assert!(end.pipe.bytes.is_empty());
        end.take(std::slice::from_ref(byte), false);
    }
    assert_eq!(end.pipe.bytes.len(), 2 + 18 + 5 + 3 + 4 + 2 + 18 + 100 + 4);
    assert_eq!(end.completions.len(), 2);
}

/// [RFC 5044 7.1.2-12]
#[test]
fn a_message_is_sent_at_once_only_if_nothing_precedes_it() {
    let is_sent = |end: &mut End| {
        let source = [end.segment(0, 100)];
        end.send_at_once(9, PLAIN, Payload::Segments(&source))
    };
    let mut end = End::new(Side::Passive, false);
    assert!(!is_sent(&mut end), "the peer may not be sent to");
    end.take(&tagged(Opcode::Write, 0, 0, b""), false);
    assert!(is_sent(&mut end));
    assert_eq!((end.completions.len(), end.pipe.bytes.len()), (1, 2 + 18 + 100 + 4));
    // Two reads are requested, the third one waits.
    let (remote, sink) = (end.remote(0), [end.segment(0, 1)]);
    for id in 0..3 {
        end.post(id, Operation::Read { remote }, Payload::Segments(&sink)).unwrap();
    }
    assert!(!is_sent(&mut end), "a read precedes it");

    let mut end = End::new(Side::Active, false);
    end.pump();
    end.pipe.room = 30;
    assert!(is_sent(&mut end), "the wire takes a part");
    assert!(end.completions.is_empty());
    assert!(!is_sent(&mut end), "the rest precedes it");
    end.pipe.room = usize::MAX;
    end.pump();
    assert_eq!(end.completions.len(), 1);
    assert!(is_sent(&mut end));
}

/// [RFC 6581 9.2-3]
#[test]
fn an_empty_fpdu_or_an_empty_read_opens_the_connection_too() {
    for opening in [fpdu(b""), read(0, 0, 0)] {
        let mut end = End::new(Side::Passive, false);
        end.take(&opening, false);
        assert_eq!(end.fault, None);
        let response = end.pipe.bytes.len();
        end.post_bytes(1, PLAIN, b"");
        assert_eq!(end.pipe.bytes.len(), response + 24);
    }
}

#[test]
fn a_dead_wire_lets_input_go_on() {
    let mut end = End::new(Side::Active, false);
    end.receives(2, 16);
    end.pipe.dead = true;
    end.pump();
    end.post_bytes(9, PLAIN, b"lost");
    end.take(&send_of(1), false);
    assert_eq!(end.fault, None);
    assert_eq!(end.completions.len(), 1);
    end.machine.flush(None, &mut end.completions);
    let ids: Vec<_> = end.completions.iter().map(|done| (done.id, done.status)).collect();
    assert_eq!(
        ids,
        [(0, CompletionStatus::Success), (9, CompletionStatus::Flushed), (1, CompletionStatus::Flushed)]
    );
}
