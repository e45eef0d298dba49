//! Exchanges of iWARP made by hand: handshakes of both revisions, what breaks DDP and RDMAP, and Terminate.

mod wire;

use iwarp_wire::ddp::{self, Tagged, Untagged};
use iwarp_wire::mpa;
use iwarp_wire::rdmap::{
    About, AtomicKind, AtomicRequest, Opcode, ReadRequest, Terminate, emit_immediate, marks,
};
use rdmacap::{Atomic, Kind, Known, Operation, Outcome, Topic};
use rstream_protocol::Hello;
use wire::iwarp::{Plan, Wire};
use wire::{Frame, Seen, read};

const PLAN: Plan =
    Plan { seed: 0, operations: 0, checksums: true, markers: false, mulpdu: 1400, mss: 1448, aligned: true };

/// What a session says of a connection, of which the sides serve two reads at a time.
fn talk(talk: impl FnOnce(&mut Wire)) -> Seen {
    talk_after([b"hello", b""], talk)
}

/// The same after a handshake with this private data.
fn talk_after(private_data: [&[u8]; 2], talk: impl FnOnce(&mut Wire)) -> Seen {
    let mut wire = Wire::new(PLAN);
    wire.open_tcp();
    (0..2).for_each(|from| wire.greet(from, false, Some(2), private_data[from]));
    talk(&mut wire);
    wire.acknowledge(0);
    wire.acknowledge(1);
    wire.close();
    read(&wire.frames.into_iter().map(|segment| segment.frame).collect::<Vec<_>>())
}

fn texts(seen: &Seen, topic: Topic) -> Vec<&str> {
    seen.findings.iter().filter(|finding| finding.topic == topic).map(|finding| &*finding.text).collect()
}

/// A segment of a message on queue 0 with these numbers.
fn segment(wire: &mut Wire, sequence: u32, offset: u32, last: bool, bytes: &[u8]) {
    let mut header = [0; ddp::UNTAGGED];
    let ulp = Opcode::Send.control();
    Untagged { last, ulp, ulp_word: 0, queue: 0, sequence, offset }.emit(&mut header);
    wire.fpdu(0, &[&header, bytes].concat());
}

fn request(wire: &mut Wire, sink: u32) {
    let request =
        ReadRequest { sink_stag: sink, sink_offset: 0, length: 4, source_stag: 0x77, source_offset: 0x1000 };
    let mut message = [0; 28];
    request.emit(&mut message);
    wire.untagged(0, Opcode::ReadRequest, 0, &message);
}

fn response(wire: &mut Wire, sink: u32) {
    response_of(wire, sink, b"data");
}

fn response_of(wire: &mut Wire, sink: u32, bytes: &[u8; 4]) {
    let mut header = [0; ddp::TAGGED];
    Tagged { last: true, ulp: Opcode::ReadResponse.control(), stag: sink, offset: 0 }.emit(&mut header);
    wire.fpdu(1, &[&header[..], bytes].concat());
}

/// An atomic operation on what is 3, and its response.
fn atomic_exchange(wire: &mut Wire, kind: AtomicKind, operand_mask: u64) {
    let request = AtomicRequest {
        kind,
        id: 1,
        stag: 7,
        offset: 0x1000,
        operand: 10,
        operand_mask,
        compare: 3,
        compare_mask: u64::MAX,
    };
    let mut message = [0; 52];
    request.emit(&mut message);
    wire.untagged(0, Opcode::AtomicRequest, 0, &message);
    wire.untagged(1, Opcode::AtomicResponse, 0, &[&[0, 0, 0, 1], &3_u64.to_be_bytes()[..]].concat());
}

#[test]
fn both_revisions_of_the_handshake_are_read() {
    let seen = talk(|wire| segment(wire, 1, 0, true, b"first"));
    let found = &seen.connections[0];
    assert_eq!((found.known, found.reads), (Known::Mpa, [Some(2); 2]));
    assert_eq!(found.private_data, [Some(b"hello".to_vec()), Some(Vec::new())]);
    assert_eq!(seen.findings, []);
    // Revision 1 says nothing of reads, and 0x3fff states nothing.
    let handshake = |reads, reject| {
        let mut wire = Wire::new(PLAN);
        wire.open_tcp();
        wire.greet(0, false, reads, b"a");
        wire.greet(1, reject, reads, b"b");
        read(&wire.frames.into_iter().map(|segment| segment.frame).collect::<Vec<_>>())
    };
    for reads in [None, Some(0x3fff)] {
        let seen = handshake(reads, false);
        assert_eq!(seen.connections[0].reads, [None; 2]);
        assert_eq!(seen.connections[0].private_data, [Some(b"a".to_vec()), Some(b"b".to_vec())]);
    }
    let seen = handshake(Some(1), true);
    assert!(seen.connections[0].refused);
    assert_eq!(texts(&seen, Topic::Connection), ["the passive side refused it"]);
}

#[test]
fn message_numbers_and_offsets_are_checked() {
    let seen = talk(|wire| {
        segment(wire, 1, 0, true, b"one");
        segment(wire, 3, 0, true, b"three");
        segment(wire, 4, 0, true, b"four");
    });
    assert_eq!(texts(&seen, Topic::Protocol), ["message 3 on queue 0 from a, after which 2 was due"]);
    // A segment that does not go on where the one before has ended, and one that begins nowhere.
    let seen = talk(|wire| {
        segment(wire, 1, 0, false, b"half");
        segment(wire, 1, 5, true, b"of it");
        segment(wire, 2, 7, true, b"what?");
    });
    let expected = ["a breaks a message off before its end", "a message of a begins at byte 7"];
    assert_eq!(texts(&seen, Topic::Protocol), expected);
    let outcomes: Vec<_> = seen.operations.iter().map(|found| (found.length, &*found.missing)).collect();
    assert_eq!(outcomes, [(4, &[][..]), (10, &[(0, 5)]), (12, &[(0, 7)])]);
    // A write that another message interrupts.
    let seen = talk(|wire| {
        let mut header = [0; ddp::TAGGED];
        Tagged { last: false, ulp: Opcode::Write.control(), stag: 5, offset: 0x1000 }.emit(&mut header);
        wire.fpdu(0, &[&header[..], b"begun"].concat());
        segment(wire, 1, 0, true, b"");
    });
    assert_eq!(texts(&seen, Topic::Protocol), ["a breaks a message off before its end"]);
    assert_eq!(seen.operations[0].outcome, Outcome::Incomplete);
    // A send on another queue than its own, one in a tagged segment, an unknown opcode, another version.
    let wrong = |change: fn(&mut [u8; ddp::UNTAGGED])| {
        let seen = talk(|wire| {
            let mut header = [0; ddp::UNTAGGED];
            let ulp = Opcode::Send.control();
            Untagged { last: true, ulp, ulp_word: 0, queue: 0, sequence: 1, offset: 0 }.emit(&mut header);
            change(&mut header);
            wire.fpdu(0, &header);
            segment(wire, 1, 0, true, b"behind it");
        });
        assert_eq!(seen.operations.len(), 1);
        texts(&seen, Topic::Protocol)[0].to_owned()
    };
    assert_eq!(wrong(|header| header[9] = 1), "Send on queue 1, from a");
    assert_eq!(wrong(|header| header[0] |= 0x80), "Send in a tagged segment, from a");
    assert_eq!(wrong(|header| header[1] |= 0x0f), "RDMAP opcode 0xf, where 0x0 to 0xb are known, from a");
    assert_eq!(wrong(|header| header[0] ^= 2), "DDP version 3 instead of 1, from a");
    // Without checksums nothing says where the next FPDU is; it is found by its looks.
    let mut wire = Wire::new(Plan { checksums: false, ..PLAN });
    wire.open([b"", b""]);
    segment(&mut wire, 1, 0, true, b"before");
    wire.raw(0, &[0xee; 64]);
    (2..6).for_each(|sequence| segment(&mut wire, sequence, 0, true, b"behind"));
    wire.acknowledge(1);
    wire.close();
    let seen = read(&wire.frames.into_iter().map(|segment| segment.frame).collect::<Vec<_>>());
    assert_eq!(texts(&seen, Topic::Protocol), ["what a sends is no FPDU where one should begin"]);
    assert_eq!(seen.operations.len(), 5);
}

#[test]
fn responses_go_to_the_oldest_request_that_they_fit() {
    let seen = talk(|wire| {
        for sink in [1, 2] {
            request(wire, sink);
        }
        response(wire, 1);
        request(wire, 3);
        response(wire, 2);
        response(wire, 3);
        // Nobody asked for this one.
        response(wire, 9);
    });
    assert_eq!(seen.operations.len(), 3);
    for (operation, sink) in seen.operations.iter().zip(1..) {
        assert_eq!((operation.kind, &operation.outcome), (Kind::Read, &Outcome::Answered));
        assert_eq!(operation.sink.map(|target| target.key), Some(sink));
        assert_eq!(seen.content(operation.id, 4), Some(&b"data"[..]));
    }
    let found = texts(&seen, Topic::Protocol);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("no read in the capture asked for the response of 4 bytes from b"),
        "{found:?}"
    );
}

/// The capture misses the end of a response, and another read follows into the same place.
#[test]
fn a_response_that_begins_anew_belongs_to_another_read() {
    let mut wire = Wire::new(Plan { mulpdu: ddp::UNTAGGED + 28, ..PLAN });
    wire.open([b"", b""]);
    for letter in [b'x', b'y'] {
        wire.read(0, (0x77, 0x1000), (1, 0), &[letter; 80]);
    }
    let ends =
        wire.frames.iter().filter(|segment| segment.carries.as_ref().is_some_and(|(from, _)| *from == 1));
    let lost = ends.map(|segment| segment.frame.clone()).nth(3).expect("three segments behind the reply");
    (0..2).for_each(|from| wire.acknowledge(from));
    wire.close();
    let frames = wire.frames.into_iter().map(|segment| segment.frame).filter(|frame| *frame != lost);
    let seen = read(&frames.collect::<Vec<_>>());
    let [first, second] = &seen.operations[..] else { panic!("{:#?}", seen.operations) };
    assert_eq!((&first.outcome, &first.missing[..]), (&Outcome::Implied, &[(64, 80)][..]));
    assert!(seen.agrees(first.id, &[b'x'; 80]));
    assert_eq!(second.outcome, Outcome::Answered);
    assert_eq!(seen.content(second.id, 80), Some(&[b'y'; 80][..]));
}

/// Without checksums it takes three FPDUs in a row to know where they begin. Here the requests are the first
/// two, and are answered before the third comes.
#[test]
fn responses_wait_for_requests_whose_stream_is_still_searched() {
    let mut wire = Wire::new(Plan { checksums: false, ..PLAN });
    (0..3).for_each(|_| _ = wire.untagged(1, Opcode::Send, 0, b"known"));
    // One of a read before the capture, into the same place.
    response_of(&mut wire, 1, b"past");
    request(&mut wire, 1);
    response(&mut wire, 1);
    atomic_exchange(&mut wire, AtomicKind::FetchAdd, 0);
    segment(&mut wire, 1, 0, true, b"third");
    (0..2).for_each(|from| wire.acknowledge(from));
    wire.close();
    let seen = read(&wire.frames.into_iter().map(|segment| segment.frame).collect::<Vec<_>>());
    let of = |kind| seen.operations.iter().find(|found| found.kind == kind).expect("one of the kind");
    let (read, atomic) = (of(Kind::Read), of(Kind::FetchAdd));
    assert_eq!((&read.outcome, read.frames, read.took), (&Outcome::Answered, (5, 6), Some(1000)));
    assert_eq!(seen.content(read.id, 4), Some(&b"data"[..]));
    assert_eq!((&atomic.outcome, atomic.frames, atomic.took), (&Outcome::Answered, (7, 8), Some(1000)));
    assert_eq!(atomic.atomic.and_then(|atomic| atomic.old), Some(3));
    let lost: Vec<u64> = seen
        .findings
        .iter()
        .filter(|found| found.topic == Topic::CaptureLoss)
        .map(|found| found.frame)
        .collect();
    assert_eq!((lost, seen.findings.len()), (vec![4], 2), "{:?}", seen.findings);
}

#[test]
fn reads_beyond_what_the_responder_serves_are_told() {
    let reads = |count: u32| {
        talk(|wire| {
            (1..=count).for_each(|sink| request(wire, sink));
            (1..=count).for_each(|sink| response(wire, sink));
        })
    };
    assert_eq!(reads(2).findings, []);
    let seen = reads(3);
    assert_eq!(texts(&seen, Topic::Protocol), ["a has more than 2 reads outstanding, which b serves"]);
    assert!(seen.operations.iter().all(|operation| operation.outcome == Outcome::Answered));
}

#[test]
fn a_terminate_ends_what_it_quotes() {
    let terminate = |wire: &mut Wire, what: Terminate, head: &[u8], request: Option<&[u8; 28]>| {
        let length = (head.len() as u16).to_be_bytes();
        let head = [&length[..mpa::FPDU_LENGTH_FIELD], head].concat();
        let mut message = [0; 64];
        let written = what.emit(&About { head: &head, request }, &mut message);
        wire.untagged(1, Opcode::Terminate, 0, &message[..written]);
    };
    // Of two writes the second, by its key and offset.
    let seen = talk(|wire| {
        wire.write(0, 0x51, 0x1000, b"fine");
        segment(wire, 1, 0, true, b"between");
        wire.write(0, 0x52, 0x2000, b"wrong");
        wire.flush(0);
        let mut header = [0; ddp::TAGGED];
        Tagged { last: true, ulp: Opcode::Write.control(), stag: 0x52, offset: 0x2000 }.emit(&mut header);
        terminate(wire, Terminate::TAGGED_BOUNDS, &header, None);
    });
    let failed: Vec<&Operation> = seen.operations.iter().filter(|found| found.outcome.failed()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].target.map(|target| target.key), Some(0x52));
    assert_eq!(failed[0].outcome.to_string(), "terminated:base or bounds violation");
    let text = format!(
        "b terminated the connection: base or bounds violation (layer 1, type 1, code 1), about the write of frame {}",
        failed[0].frames.0
    );
    assert_eq!(texts(&seen, Topic::Terminate), [text]);
    // A send for which there was no receive.
    let seen = talk(|wire| {
        segment(wire, 1, 0, true, b"nobody waits");
        let mut header = [0; ddp::UNTAGGED];
        let ulp = Opcode::Send.control();
        Untagged { last: true, ulp, ulp_word: 0, queue: 0, sequence: 1, offset: 0 }.emit(&mut header);
        terminate(wire, Terminate::NO_BUFFER, &header, None);
    });
    assert_eq!(seen.operations[0].outcome, Outcome::Terminated("no buffer available".into()));
    // About nothing.
    let seen = talk(|wire| {
        segment(wire, 1, 0, true, b"fine");
        let written = Terminate::LOCAL_CATASTROPHIC.emit(&About::default(), &mut [0; 64]);
        assert_eq!(written, 4);
        wire.untagged(1, Opcode::Terminate, 0, &[0; 4]);
    });
    assert_eq!(seen.operations[0].outcome, Outcome::Acked);
    assert!(
        texts(&seen, Topic::Terminate)[0].ends_with("local catastrophic error (layer 0, type 0, code 0)")
    );
}

#[test]
fn masked_atomics_do_not_tell_what_they_left() {
    let atomic = |kind, mask| {
        let seen = talk(|wire| atomic_exchange(wire, kind, mask));
        let Operation { kind, atomic, .. } = &seen.operations[0];
        atomic.expect("an atomic").left(*kind)
    };
    assert_eq!(atomic(AtomicKind::FetchAdd, 0), Some(13));
    assert_eq!(atomic(AtomicKind::FetchAdd, 1 << 63), Some(13));
    assert_eq!(atomic(AtomicKind::FetchAdd, 1 << 7), None);
    assert_eq!(atomic(AtomicKind::CompareSwap, u64::MAX), Some(10));
    assert_eq!(atomic(AtomicKind::CompareSwap, 0xff), None);
    // Compared with something else, it leaves what it found.
    let missed = Atomic { operand: 10, compare: 4, masked: false, old: Some(3) };
    assert_eq!(missed.left(Kind::CompareSwap), Some(3));
}

/// A write is acknowledged twice: with its bytes, and with its immediate data.
#[test]
fn immediate_data_may_come_after_their_write_was_acknowledged() {
    let seen = talk(|wire| {
        wire.write(0, 5, 0x1000, b"written");
        wire.acknowledge(1);
        wire.untagged(0, Opcode::Immediate, 0, &emit_immediate(7));
    });
    let [write] = &seen.operations[..] else { panic!("{:#?}", seen.operations) };
    assert_eq!((&write.outcome, write.immediate), (&Outcome::Acked, Some(7)));
    assert_eq!(seen.findings, []);
}

/// The peers mark what immediate data belong to; where they are no message endpoints, nobody looks at marks.
#[test]
fn immediate_data_of_message_endpoints_are_where_their_marks_say() {
    let data = |at: u64| 0x0123_4567_89ab_cd00 | at;
    let exchange = |wire: &mut Wire| {
        let alone = |wire: &mut Wire, word, at| {
            wire.untagged(0, Opcode::Immediate, word, &emit_immediate(data(at)));
        };
        // The write that opens the connection; writes with data and without, behind which data come alone.
        wire.write(0, 0, 0, b"");
        wire.write(0, 5, 0x1000, b"written");
        alone(wire, marks::OF_WRITE, 1);
        wire.write(0, 5, 0x2000, b"");
        alone(wire, marks::OF_WRITE, 2);
        wire.write(0, 5, 0x3000, b"also");
        alone(wire, 0, 3);
        // Messages of one segment and of three, and without bytes of their own.
        for (at, bytes) in [(4, &b"short"[..]), (5, &[7; 3000]), (6, b"")] {
            let bytes = [&emit_immediate(data(at)), bytes].concat();
            wire.untagged(0, Opcode::Send, marks::WITH_DATA, &bytes);
        }
        wire.untagged(0, Opcode::Send, 0, b"without");
    };
    let told = |seen: &Seen| -> Vec<_> {
        assert_eq!(seen.findings, []);
        seen.operations.iter().map(|found| (found.kind, found.length, found.immediate)).collect()
    };
    let greeting = Hello { tags: false, user_data: b"" }.encode();
    let seen = talk_after([&greeting; 2], exchange);
    let expected = [
        (Kind::Write, 0, None),
        (Kind::Write, 7, Some(data(1))),
        (Kind::Write, 0, Some(data(2))),
        (Kind::Write, 4, None),
        (Kind::Immediate, 0, Some(data(3))),
        (Kind::Send, 13, Some(data(4))),
        (Kind::Send, 3008, Some(data(5))),
        (Kind::Send, 8, Some(data(6))),
        (Kind::Send, 7, None),
    ];
    assert_eq!(told(&seen), expected);
    // Without the data of both sides what is right behind a write belongs to it, and a send has none.
    let expected = [
        (Kind::Write, 0, None),
        (Kind::Write, 7, Some(data(1))),
        (Kind::Write, 0, None),
        (Kind::Immediate, 0, Some(data(2))),
        (Kind::Write, 4, Some(data(3))),
        (Kind::Send, 13, None),
        (Kind::Send, 3008, None),
        (Kind::Send, 8, None),
        (Kind::Send, 7, None),
    ];
    assert_eq!(told(&talk_after([&greeting, b""], exchange)), expected);
}

/// A responder that ends in the middle of a response quotes nothing: no segment of the requester is wrong.
#[test]
fn a_terminate_in_the_middle_of_a_response_is_about_its_read() {
    let seen = talk(|wire| {
        request(wire, 1);
        request(wire, 2);
        response(wire, 1);
        let mut header = [0; ddp::TAGGED];
        Tagged { last: false, ulp: Opcode::ReadResponse.control(), stag: 2, offset: 0 }.emit(&mut header);
        wire.fpdu(1, &[&header[..], b"d"].concat());
        let mut message = [0; 4];
        let length = Terminate::READ_STAG.emit(&About::default(), &mut message);
        wire.untagged(1, Opcode::Terminate, 0, &message[..length]);
    });
    let ends: Vec<_> = seen.operations.iter().map(|found| (&found.outcome, &*found.missing)).collect();
    let terminated = Outcome::Terminated("invalid STag".into());
    assert_eq!(ends, [(&Outcome::Answered, &[][..]), (&terminated, &[])]);
}

/// What TCP sends again is compared with what it sent: as it was, together with what follows, and ahead of what
/// is missing. Only a question whether the other side is alive may have any byte.
#[test]
fn what_tcp_sends_again_is_compared() {
    const DATA: usize = 54;
    let talk = |again: &dyn Fn(&mut Vec<Frame>)| {
        let mut wire = Wire::new(Plan { checksums: false, ..PLAN });
        wire.open([b"", b""]);
        for _ in 0..3 {
            wire.untagged(0, Opcode::Send, 0, b"a message of some bytes");
            wire.flush(0);
        }
        wire.acknowledge(1);
        wire.close();
        let mut frames: Vec<Frame> = wire.frames.into_iter().map(|segment| segment.frame).collect();
        again(&mut frames);
        texts(&read(&frames), Topic::Differs).len()
    };
    let other = |frame: &Frame| {
        let mut frame = frame.clone();
        *frame.bytes.last_mut().expect("a byte") ^= 1;
        frame
    };
    // Two segments in one, with the length of that.
    let joined = |first: &Frame, second: &Frame| {
        let mut frame = Frame { bytes: [&first.bytes, &second.bytes[DATA..]].concat(), ..first.clone() };
        let length = (frame.bytes.len() - 14) as u16;
        frame.bytes[16..18].copy_from_slice(&length.to_be_bytes());
        frame.original_length = frame.bytes.len() as u32;
        frame
    };
    let first = 5;
    assert_eq!(talk(&|frames| frames.insert(first + 1, frames[first].clone())), 0);
    assert_eq!(talk(&|frames| frames.insert(first + 1, other(&frames[first]))), 1);
    // The first is not the last that was handed on.
    assert_eq!(talk(&|frames| frames.insert(first + 2, other(&frames[first]))), 1);
    assert_eq!(talk(&|frames| frames.insert(first + 2, joined(&frames[first], &frames[first + 1]))), 0);
    let joined_other = |frames: &mut Vec<Frame>| {
        frames.insert(first + 2, joined(&frames[first], &other(&frames[first + 1])));
    };
    assert_eq!(talk(&joined_other), 1);
    // The same with bytes that are new, and ahead of bytes that are missing.
    let overlapping = |frames: &mut Vec<Frame>| {
        frames[first + 1] = joined(&other(&frames[first]), &frames[first + 1]);
    };
    assert_eq!(talk(&overlapping), 1);
    let ahead = |frames: &mut Vec<Frame>| {
        frames.insert(first + 2, other(&frames[first + 1]));
        frames[first..first + 3].rotate_left(1);
    };
    assert_eq!(talk(&ahead), 1);
    let question = |frames: &mut Vec<Frame>| {
        let mut frame = frames[first].clone();
        frame.bytes.truncate(DATA + 1);
        frame.bytes[16..18].copy_from_slice(&41_u16.to_be_bytes());
        frame.bytes[DATA] ^= 0xff;
        frame.original_length = DATA as u32 + 1;
        frames.insert(first + 1, frame);
    };
    assert_eq!(talk(&question), 0);
}
