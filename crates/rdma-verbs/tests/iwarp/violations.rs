//! Violations of a peer: a Terminate reports them to the peer, and the event reports them with their numbers
//! to the consumer.

use std::io::{Read as _, Write as _};

use super::support::*;
use iwarp_wire::ddp::Untagged;
use iwarp_wire::rdmap::ControlError;
use rdma_verbs::iwarp::Config;
use rdma_verbs::iwarp::machine::Violation;
use rdma_verbs::{
    BreakReason, Cause, CompletionStatus, ConnectionEvent, Connections as _, Error, Operation, Payload,
    RemoteAddress,
};

/// The errors that `b` finds and that `a` gets in the Terminate, after `violate` had `a` violate a rule.
fn reports(violate: impl FnOnce(&mut Side, &mut Side)) -> (String, String, Side, Side) {
    let (mut a, mut b) = pair();
    violate(&mut a, &mut b);
    let events = [&mut b, &mut a].map(|side| side.event());
    let [
        ConnectionEvent::Broken(BreakReason::Protocol(found)),
        ConnectionEvent::Broken(BreakReason::Terminated(reported)),
    ] = events
    else {
        panic!("{events:?}")
    };
    (found.to_string(), reported.to_string(), a, b)
}

/// [RFC 5040 6.2.1-1, 7.1-1] [RFC 5041 6.2.2-1, 8.3-4]
#[test]
fn a_bad_key_is_terminated() {
    let (found, reported, ..) = reports(|a, _| {
        a.send_bytes(1, write(RemoteAddress { key: 0x1234_5678, address: 0 }), b"x");
    });
    assert_eq!(found, "Write with STag 0x12345678, which names nothing");
    assert_eq!(reported, "invalid STag (layer 1, type 1, code 0)");
}

#[test]
fn a_write_beyond_the_region_is_terminated() {
    let (found, reported, ..) = reports(|a, b| {
        let to = b.remote(RING as u64 - 3);
        a.send_bytes(1, write(to), b"four");
    });
    assert!(
        found.contains("Write of 4 bytes at 1048573") && found.ends_with("the region has 1048576"),
        "{found}"
    );
    assert_eq!(reported, "base or bounds violation (layer 1, type 1, code 1)");
}

/// [RFC 5041 7.1-9, 8.3-4]
#[test]
fn a_region_without_the_right_is_not_touched() {
    let (found, reported, _, b) = reports(|a, b| {
        let key = b.segment(0, 0).key;
        a.send_bytes(1, write(RemoteAddress { key, address: 0 }), b"x");
    });
    assert!(found.ends_with("no right"), "{found}");
    assert_eq!(reported, "access rights violation (layer 0, type 1, code 2)");
    assert_eq!(b.read_own(0, 1), [0]);
}

/// [RFC 5041 6.2.2-2, 7.1-4]
#[test]
fn a_message_too_long_ends_its_receive() {
    let (found, reported, mut a, mut b) = reports(|a, _| a.send_bytes(1, SEND, &[1; 4097]));
    assert_eq!(found, "message of 4097 bytes or more for a receive of 4096");
    assert_eq!(reported, "message too long for its buffer (layer 1, type 2, code 5)");
    b.poll();
    assert_eq!((b.end.completions[0].id, b.end.completions[0].status), (0, CompletionStatus::Truncated));
    assert_eq!(b.end.completions.len(), 32);
    assert!(b.end.completions.range(1..).all(|done| done.status == CompletionStatus::Flushed));
    a.poll();
    assert_eq!(a.end.completions[0].status, CompletionStatus::Success, "the socket took it");
}

/// [RFC 5041 7.1-2, 7.1-6, 7.1-7]
#[test]
fn a_message_without_a_receive_is_terminated() {
    let (found, reported, ..) = reports(|a, _| {
        for id in 0..33 {
            a.send_bytes(id, SEND, b"x");
        }
    });
    assert_eq!(found, "message 33 found no receive");
    assert_eq!(reported, "no buffer available (layer 1, type 2, code 2)");
}

#[test]
fn a_read_that_is_refused_fails_remotely() {
    let (found, reported, mut a, _) = reports(|a, b| {
        let remote = b.remote(RING as u64);
        let sink = [a.segment(0, 8)];
        a.send(5, Operation::Read { remote }, Payload::Segments(&sink));
    });
    assert!(found.starts_with("Read of 8 bytes at 1048576"), "{found}");
    assert_eq!(reported, "base or bounds violation (layer 0, type 1, code 1)");
    a.poll();
    assert_eq!((a.end.completions[0].id, a.end.completions[0].status), (5, CompletionStatus::RemoteAccess));
}

/// [RFC 5040 8.1.1-4, 8.1.1-5, 8.1.1-6] [RFC 5041 8.3-2, 8.3.1-4, 8.3.1-5, 8.3.1-6]
#[test]
fn a_key_is_invalid_when_its_region_is_dropped() {
    let (mut a, mut b) = pair();
    let to = b.remote(0);
    a.send_bytes(1, write(to), b"alive");
    a.send_bytes(2, SEND, b"x");
    until(&mut a, &mut b, |_, b| b.end.completions.len() == 1);
    b.ring = None;
    a.send_bytes(3, write(to), b"dead");
    let event = b.event();
    assert!(matches!(
        event,
        ConnectionEvent::Broken(BreakReason::Protocol(Cause::Violation(Violation::Stag { .. })))
    ));
}

/// [RFC 5040 5.4-6, 6.2.1-1, 6.2.1-3, 7-2] [RFC 5041 3-9, 6.2.2-3, 6.2.2-4]
#[test]
fn an_unknown_opcode_of_a_foreign_peer_is_terminated() {
    let mut b = Side::new(Config::default());
    b.post_receives(1);
    let mut peer = Peer::active(&mut b, V4);
    peer.0.write_all(&untagged(Untagged { ulp: 0x4c, ..send_header(1) }, b"?")).unwrap();
    let reason = BreakReason::Protocol(Violation::Control(ControlError::Opcode(0xc)).into());
    assert_eq!(b.event(), ConnectionEvent::Broken(reason));
    assert_eq!(peer.read_terminate(), (0, 2, 6));
    assert_eq!(peer.0.read(&mut [0]).unwrap(), 0);
    assert!(b.end.cq.poll_event(b.qp).is_none());
}

/// [RFC 5040 5.4-6, 7-1, 7.1-5] [RFC 5041 3-7, 6.2-1, 7.1-13, 7.1-16, 7.1-17] [RFC 5044 8-5]
#[test]
fn nothing_is_placed_or_answered_after_a_violation() {
    let mut b = Side::new(Config::default());
    let mut peer = Peer::active(&mut b, V4);
    let key = b.remote(0).key;
    let late = [
        tagged(0, true, key ^ 1, 0, b"wrong"),
        tagged(0, true, key, 0, b"late"),
        untagged(send_header(1), b""),
    ];
    peer.0.write_all(&late.concat()).unwrap();
    assert!(matches!(b.event(), ConnectionEvent::Broken(BreakReason::Protocol(_))));
    assert_eq!(peer.read_terminate(), (1, 1, 0));
    assert_eq!(peer.0.read(&mut [0]).unwrap(), 0);
    let more = b.try_send(1, SEND, Payload::Inline(&[]));
    assert!(matches!(more, Err(Error::BadState { state: "over", .. })));
    b.poll();
    assert_eq!(b.read_ring(0, 5), [0; 5]);
    assert_eq!(b.end.completions, []);
}

#[test]
fn a_violation_that_a_poll_finds_is_signaled() {
    let mut b = Side::new(Config::default());
    let mut peer = Peer::active(&mut b, V4);
    assert!(!b.end.events.wait(Some(std::time::Duration::ZERO), &mut Vec::new()).unwrap());
    peer.0.write_all(&untagged(send_header(1), b"nowhere to go")).unwrap();
    let start = std::time::Instant::now();
    // Only polls, until the event target is signaled.
    while !b.end.events.wait(Some(std::time::Duration::ZERO), &mut Vec::new()).unwrap() {
        b.poll();
        assert!(start.elapsed() < LIMIT);
    }
    assert!(matches!(b.end.cq.poll_event(b.qp), Some(ConnectionEvent::Broken(BreakReason::Protocol(_)))));
    assert!(!b.end.events.wait(Some(std::time::Duration::ZERO), &mut Vec::new()).unwrap(), "reported once");
}
