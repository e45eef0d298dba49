//! What is still sent when a connection ends.

use super::refusals::{read, send_of, tagged, untagged};
use super::*;
use crate::{CompletionKind, Place};
use iwarp_wire::rdmap::{About, Opcode, Terminate};

/// The payloads of the sends in a stream.
fn sends(stream: &[u8]) -> Vec<&[u8]> {
    // The opening message is tagged; a header of a send has 18 bytes.
    ulpdus(stream).into_iter().filter(|ulpdu| ulpdu[0] & 0x80 == 0).map(|ulpdu| &ulpdu[18..]).collect()
}

/// A machine for messages whose opening message is sent, and whose wire then takes `room` bytes more.
fn opened(room: usize) -> End {
    let mut end = End::for_messages(Side::Active, false);
    end.pump();
    end.pipe.bytes.clear();
    end.pipe.room = room;
    end
}

/// Lets the wire take everything, and returns what it took. Nothing has completed meanwhile.
fn rest(end: &mut End) -> Vec<u8> {
    end.pipe.room = usize::MAX;
    end.pump();
    assert!(end.machine.is_drained());
    assert_eq!(end.completions, []);
    std::mem::take(&mut end.pipe.bytes)
}

#[test]
fn what_is_copied_is_sent_after_giving_up() {
    let mut end = opened(5);
    end.post_bytes(1, PLAIN, b"begun");
    let remote = end.remote(0);
    end.post(2, Operation::Read { remote }, Payload::Places(&[Place::leaked(8)])).unwrap();
    end.post_bytes(3, PLAIN, b"queued");
    end.post(4, PLAIN, Payload::Places(&[Place::leaked(20_000)])).unwrap();
    end.post_bytes(5, PLAIN, b"behind memory");
    end.machine.close(&mut end.completions);
    end.machine.give_up();
    let stream = rest(&mut end);
    assert_eq!(sends(&stream), [b"begun".as_slice(), b"queued"]);
    // All of it is what its peer's host has to acknowledge.
    assert_eq!(end.machine.sent_after_posted(), 0);
    assert_eq!(end.machine.send_room(), CAPABILITIES.send_depth as usize);
}

/// A part of a message serves nothing, so that the rest of its segment is not sent either.
#[test]
fn a_message_that_is_given_up_is_cut() {
    for before in [true, false] {
        let mut end = opened(3000);
        if before {
            end.post_bytes(1, PLAIN, &[1; 2000]);
            end.completions.clear();
        }
        end.post(2, PLAIN, Payload::Places(&[Place::leaked(20_000)])).unwrap();
        end.post_bytes(3, PLAIN, b"behind it");
        end.machine.close(&mut end.completions);
        end.machine.give_up();
        assert_eq!(rest(&mut end).len(), 3000, "{before}");
        let spared = if before { 3000 - 2000 - 24 } else { u64::MAX };
        assert_eq!(end.machine.sent_after_posted(), spared, "{before}");
    }
}

/// The peer reads a response that it gets only a part of.
#[test]
fn nothing_follows_a_part_of_a_response() {
    let mut end = opened(5000);
    let request = read(end.ring().remote_key(), 0, 20_000);
    end.take(&request, false);
    assert_eq!(end.fault, None);
    end.post_bytes(1, PLAIN, b"behind it");
    end.machine.close(&mut end.completions);
    end.machine.give_up();
    assert_eq!(rest(&mut end).len(), 5000);
}

/// [RFC 5040 7.1-2]
#[test]
fn a_terminate_waits_for_room_behind_what_is_staged() {
    let mut end = opened(5);
    end.post_bytes(1, PLAIN, b"staged");
    end.machine.terminate(Terminate::LOCAL_CATASTROPHIC, &mut end.pipe);
    end.machine.flush(None, &mut end.completions);
    assert_eq!(end.completions.len(), 1);
    assert!(!end.machine.send_staged(&mut end.pipe));
    end.pipe.room = usize::MAX;
    assert!(end.machine.send_staged(&mut end.pipe));
    let ulpdus = ulpdus(&end.pipe.bytes);
    assert_eq!(ulpdus[0][18..], *b"staged");
    assert_eq!(ulpdus[1][1] & 0xf, 7, "a Terminate");
    assert_eq!(ulpdus.len(), 2);
}

/// Wherever the close cuts the input, also within a message that waits for a receive: what follows changes no memory,
/// takes no receive and has no answer, and the reason of the peer is understood. [RFC 5040 6.2.1-2]
#[test]
fn a_closed_machine_takes_nothing_but_a_terminate() {
    for crc in [false, true] {
        for receives in 0..3 {
            let mut stream = Vec::new();
            for cut in 0.. {
                let mut end = End::for_messages(Side::Active, crc);
                end.receives(receives, 0);
                let (remote, place) = (end.remote(0), Place::leaked(8));
                for id in 1..=2 {
                    end.post(id, Operation::Read { remote }, Payload::Places(&[place])).unwrap();
                }
                let key = end.ring().remote_key();
                let mut reason = [0; 4];
                Terminate::READ_BOUNDS.emit(&About::default(), &mut reason);
                stream = [
                    tagged(Opcode::Write, key, 0, b"written"),
                    send_of(1),
                    tagged(Opcode::ReadResponse, 0, 0, b"response"),
                    read(key, 0, 8),
                    untagged(Opcode::Send, 0, 2, 0, &[7; 40]),
                    tagged(Opcode::Write, key, 0, b"changed"),
                    untagged(Opcode::Terminate, 2, 1, 0, &reason),
                ]
                .concat();
                let (before, after) = stream.split_at(cut);
                end.take(before, false);
                let is_over = end.fault.is_some();
                assert_eq!(is_over, cut == stream.len() && receives == 2);
                end.machine.close(&mut end.completions);
                end.completions.clear();
                let had = (place.bytes().to_vec(), end.ring_bytes(), end.pipe.bytes.len());
                if let Err(fault) = end.machine.resume(&mut end.completions) {
                    end.fault = Some(fault);
                }
                end.take(after, false);
                assert_eq!(end.fault, Some(Fault::Terminated(Terminate::READ_BOUNDS)), "{cut}");
                assert_eq!((place.bytes().to_vec(), end.ring_bytes(), end.pipe.bytes.len()), had);
                assert!(end.completions.iter().all(|done| done.kind != CompletionKind::Recv));
                if cut == stream.len() {
                    break;
                }
            }
            assert!(stream.len() > 200);
        }
    }
}
