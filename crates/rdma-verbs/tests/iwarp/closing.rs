//! The ends of connections.

use std::io::{IoSlice, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::support::*;
use iwarp_wire::rdmap::Terminate;
use rdma_verbs::iwarp::Config;
use rdma_verbs::{
    BreakReason, Cause, CompletionQueue as _, CompletionStatus, ConnectionEvent, Connections as _, Error,
    MemoryRegion as _, Payload, QueuePairs as _, WaitSet,
};

fn is_ready(set: &WaitSet) -> bool {
    set.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap()
}

/// [RFC 5041 6.2.1-1, 6.2.1-2]
#[test]
fn an_orderly_end_comes_after_everything() {
    let (mut a, mut b) = pair();
    // More than the sockets hold, so that some bytes are staged when the orderly end begins.
    let posted = fill(&mut a, &b);
    a.end.cq.disconnect(a.qp);
    assert!(!a.end.cq.flushed(a.qp));
    let slices = [IoSlice::new(b"late")];
    let late = a.try_send(99, SEND, Payload::Inline(&slices));
    assert!(matches!(late, Err(Error::BadState { state: "disconnecting", .. })));
    let start = Instant::now();
    let event = loop {
        a.poll();
        if let Some(event) = b.end.cq.poll_event(b.qp) {
            break event;
        }
        assert!(start.elapsed() < LIMIT);
    };
    assert_eq!(event, ConnectionEvent::Disconnected);
    for quarter in 0..4.min(posted) {
        assert_eq!(b.read_ring(quarter * QUARTER as u64, QUARTER), pattern(1, QUARTER));
    }
    a.poll();
    let sent = a.end.completions.iter().filter(|done| done.status == CompletionStatus::Success).count();
    assert_eq!(sent as u64, posted);
    assert!(a.end.cq.flushed(a.qp));
    assert_eq!(a.event(), ConnectionEvent::Disconnected, "the other side ends too");
}

/// [RFC 5041 6.2.1-6]
#[test]
fn a_side_that_disconnected_still_receives() {
    let (mut a, mut b) = pair();
    b.send_bytes(1, SEND, b"last words");
    a.end.cq.disconnect(a.qp);
    assert_eq!(b.event(), ConnectionEvent::Disconnected);
    assert_eq!(a.event(), ConnectionEvent::Disconnected);
    a.poll();
    assert_eq!(a.end.completions[0].status, CompletionStatus::Success);
    assert_eq!(a.read_own(0, 10), b"last words");
    assert!(a.end.completions.range(1..).all(|done| done.status == CompletionStatus::Flushed));
    assert!(matches!(b.try_send(2, SEND, Payload::Inline(&[])), Err(Error::BadState { state: "over", .. })));
}

/// [RFC 5041 6.2.1-4, 6.2.1-5]
#[test]
fn staged_bytes_are_sent_after_the_peer_has_closed_its_direction() {
    let (mut a, mut b) = pair();
    fill(&mut b, &a);
    let wait = Arc::new(WaitSet::new().unwrap());
    b.attach(&wait);
    a.end.cq.disconnect(a.qp);
    assert_eq!(b.event(), ConnectionEvent::Disconnected);
    assert!(!is_ready(&b.end.events));
    assert!(!b.end.cq.flushed(b.qp));
    b.poll();
    b.end.cq.arm().unwrap();
    b.poll();
    assert!(!is_ready(&wait), "an end of input does not keep the set readable");
    let start = Instant::now();
    while a.end.cq.poll_event(a.qp) != Some(ConnectionEvent::Disconnected) {
        b.poll();
        assert!(start.elapsed() < LIMIT);
    }
    assert_eq!(a.read_ring(0, QUARTER), pattern(1, QUARTER));
    assert!(b.end.cq.flushed(b.qp));
}

#[test]
fn an_end_inside_a_message_is_a_reset() {
    for length in [1, 10, 30, 100] {
        let mut b = Side::new(Config::default());
        let mut peer = Peer::active(&mut b, V4);
        let bytes = tagged(0, true, b.remote(0).key, 0, &[1; 200]);
        peer.0.write_all(&bytes[..length]).unwrap();
        peer.0.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(b.event(), ConnectionEvent::Broken(BreakReason::Reset), "after {length} bytes");
    }
}

/// [RFC 5041 3-8] [RFC 5044 7.2-1, 8-1]
#[test]
fn an_end_between_messages_is_orderly() {
    let mut b = Side::new(Config::default());
    b.post_receives(1);
    let mut peer = Peer::active(&mut b, V4);
    peer.0.write_all(&untagged(send_header(1), b"bye")).unwrap();
    drop(peer);
    assert_eq!(b.event(), ConnectionEvent::Disconnected);
    b.poll();
    assert_eq!(b.end.completions.len(), 1);
    assert_eq!(b.end.completions[0].status, CompletionStatus::Success);
}

/// [RFC 5041 6.2.2-1, 6.2.2-2, 7-1] [RFC 5044 8-1]
#[test]
fn a_reset_is_reported_after_the_messages_before_it() {
    let mut b = Side::new(Config::default());
    b.post_receives(2);
    let mut peer = Peer::active(&mut b, V4);
    peer.0.write_all(&untagged(send_header(1), b"hello")).unwrap();
    b.send_bytes(7, SEND, b"never read");
    rustix::net::sockopt::set_socket_linger(&peer.0, Some(Duration::ZERO)).unwrap();
    drop(peer);
    // The reset arrives before the first poll, and a send finds it first.
    std::thread::sleep(Duration::from_millis(20));
    b.send_bytes(8, SEND, b"into the void");
    until_one(&mut b, |b| b.end.completions.iter().any(|done| done.id == 0));
    assert_eq!(b.read_own(0, 5), b"hello");
    assert_eq!(b.event(), ConnectionEvent::Broken(BreakReason::Reset));
    b.poll();
    assert!(b.end.completions.iter().any(|done| done.status == CompletionStatus::Flushed));
}

/// [RFC 5040 5.4-5, 7.1-2] [RFC 7306 8.1-1]
#[test]
fn an_abort_is_reported_to_the_peer() {
    let (mut a, mut b) = pair();
    a.send_bytes(1, SEND, b"first");
    a.end.cq.abort(a.qp);
    assert_eq!(a.event(), ConnectionEvent::Broken(BreakReason::Aborted));
    let reason = BreakReason::Terminated(Cause::Terminate(Terminate::LOCAL_CATASTROPHIC));
    assert_eq!(b.event(), ConnectionEvent::Broken(reason));
    b.poll();
    assert_eq!((b.end.completions[0].id, b.end.completions[0].status), (0, CompletionStatus::Success));
}

/// [RFC 5044 7.1.2-12]
#[test]
fn an_abort_of_the_passive_side_before_the_first_frame_sends_nothing() {
    let mut b = Side::new(Config::default());
    let mut peer = Peer::active(&mut b, V4);
    b.end.cq.abort(b.qp);
    assert!(matches!(peer.0.read(&mut [0]), Ok(0) | Err(_)), "a frame came before the peer's first one");
}

#[test]
fn destroying_a_connected_queue_pair_resets_the_connection() {
    let (mut a, mut b) = pair();
    a.end.cq.destroy_qp(a.qp);
    assert_eq!(b.event(), ConnectionEvent::Broken(BreakReason::Reset));
    let (a, mut b) = pair();
    drop(a.end.cq);
    assert_eq!(b.event(), ConnectionEvent::Broken(BreakReason::Reset));
}

#[test]
fn a_broken_connection_leaves_the_wait_sets_unreadable() {
    let (mut a, mut b) = pair();
    let wait = Arc::new(WaitSet::new().unwrap());
    b.attach(&wait);
    a.end.cq.abort(a.qp);
    // A poll finds the break, and signals the event target.
    let start = Instant::now();
    while !is_ready(&b.end.events) {
        b.poll();
        assert!(start.elapsed() < LIMIT);
    }
    b.poll();
    assert!(!is_ready(&wait));
    assert!(matches!(b.event(), ConnectionEvent::Broken(_)));
    assert!(!is_ready(&b.end.events) && !is_ready(&wait));
    assert_eq!(b.end.cq.poll_event(b.qp), None);
    assert!(matches!(b.end.cq.post_recv(b.qp, &[]), Err(Error::BadState { state: "over", .. })));
}

#[test]
fn a_hang_up_signals_the_event_target_and_data_does_not() {
    let (mut a, mut b) = pair();
    a.send_bytes(1, SEND, b"data");
    std::thread::sleep(Duration::from_millis(20));
    assert!(!is_ready(&b.end.events));
    a.end.cq.disconnect(a.qp);
    assert!(b.end.events.wait(Some(LIMIT), &mut Vec::new()).unwrap());
    assert_eq!(b.end.cq.poll_event(b.qp), Some(ConnectionEvent::Disconnected));
    b.poll();
    assert_eq!(
        b.end.completions[0].status,
        CompletionStatus::Success,
        "the message that arrived is not lost"
    );
}

#[test]
fn disconnecting_a_handshake_ends_it() {
    let mut a = Side::new(Config::default());
    let (mut peer, ..) = Peer::passive(&mut a);
    a.end.cq.disconnect(a.qp);
    assert_eq!(peer.0.read(&mut [0]).unwrap(), 0);
    assert_eq!(a.end.cq.poll_event(a.qp), None);
    assert_eq!(a.end.cq.deadline(a.qp), None);
}

#[test]
fn keys_of_a_closed_side_stay_with_their_region() {
    let (mut a, b) = pair();
    let key = b.ring().remote_key();
    drop(b.end.cq);
    assert!(matches!(a.event(), ConnectionEvent::Broken(_)));
    assert_eq!(b.ring.as_ref().map(|ring| ring.remote_key()), Some(key));
}
