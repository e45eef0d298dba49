//! What is still sent when a connection ends.

use super::*;
use crate::Place;
use iwarp_wire::rdmap::Terminate;

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
    let request = {
        let mut ulpdu = vec![0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
        ulpdu.extend([0; 12]);
        ulpdu.extend(20_000u32.to_be_bytes());
        ulpdu.extend(end.ring().remote_key().to_be_bytes());
        ulpdu.extend([0; 8]);
        fpdu(&ulpdu)
    };
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
