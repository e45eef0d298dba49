//! Two queue pairs on one host that share memory.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use super::support::*;
use rdma_verbs::iwarp::Config;
use rdma_verbs::shm::SLOTS;
use rdma_verbs::{
    BreakReason, Buffer, CompletionKind, CompletionQueue as _, CompletionStatus, ConnectionEvent,
    Connections as _, Operation, Payload, QpCapabilities, QueuePairs as _, RecvRequest, SameHost as _,
    SendRequest, WaitSet,
};

const IMMEDIATE: Operation = Operation::Send { immediate: Some(7), invalidate: None, solicited: false };

fn deep() -> Side {
    let depth = 1000;
    Side::with(Config::default(), QpCapabilities { send_depth: depth, recv_depth: depth, ..CAPABILITIES })
}

/// Two sides that share their rings; receives are posted on both.
fn sharing() -> (Side, Side) {
    let (mut a, mut b) = (deep(), deep());
    a.post_receives(250);
    b.post_receives(250);
    join_sharing(&mut a, &mut b, V4);
    (a, b)
}

#[test]
fn both_directions_carry_bytes_over_either_family() {
    for address in [V4, V6] {
        let (mut a, mut b) = (deep(), deep());
        a.post_receives(250);
        b.post_receives(250);
        join_sharing(&mut a, &mut b, address);
        for round in 0..20 {
            let length = 1 + round * 3001;
            let (to_b, to_a) = (b.remote(round as u64), a.remote(round as u64));
            let with = |remote| Operation::Write { remote, immediate: Some(round as u64) };
            a.send_bytes(round as u64, with(to_b), &pattern(round, length));
            b.send_bytes(round as u64, with(to_a), &pattern(round + 1, length));
            until(&mut a, &mut b, |a, b| a.end.completions.len() == 2 && b.end.completions.len() == 2);
            assert_eq!(b.read_ring(round as u64, length), pattern(round, length));
            assert_eq!(a.read_ring(round as u64, length), pattern(round + 1, length));
            for side in [&mut a, &mut b] {
                let arrival = side.end.completions.iter().find(|done| done.kind == CompletionKind::RecvWrite);
                let arrival = arrival.expect("a write arrived");
                assert_eq!((arrival.length, arrival.immediate), (length as u32, Some(round as u64)));
                side.end.completions.clear();
            }
        }
    }
}

/// The connection's stream carries no data.
#[test]
fn shared_memory_carries_the_bytes_instead_of_the_socket() {
    let (mut a, mut b) = sharing();
    let (to, bytes) = (b.remote(0), pattern(1, 100_000));
    let slices = [IoSlice::new(&bytes)];
    let operation = Operation::Write { remote: to, immediate: None };
    // Far more than the sockets and the staging memory take while the peer does not read.
    for id in 0..400 {
        let payload = Payload::Inline(&slices);
        a.end.cq.post_send(a.qp, &[SendRequest { id, signaled: true, operation, payload }], false).unwrap();
        a.poll();
    }
    assert_eq!(a.end.completions.len(), 400, "all are done at once");
    b.poll();
    assert_eq!(b.read_ring(0, 100_000), bytes);
}

/// Posts one of several kinds of message, which carries `word`. Each consumes a receive. Some use shared
/// memory, and some the stream.
fn post_any(a: &mut Side, b: &Side, kind: u32, word: u64) {
    let (id, to) = (word, b.remote(word % 1000));
    let immediate = Some(word);
    match kind {
        0 => a.send_bytes(id, SEND, &word.to_le_bytes()),
        1 => {
            let segments = [a.segment(0, 5000)];
            a.send(id, Operation::Write { remote: to, immediate }, Payload::Segments(&segments));
        }
        2 => a.send_bytes(id, Operation::Write { remote: to, immediate }, &pattern(1, 3000)),
        3 => {
            let sink = [a.segment(0, 100)];
            a.send(id, Operation::Read { remote: to }, Payload::Segments(&sink));
            a.send_bytes(id, Operation::Send { immediate, invalidate: None, solicited: true }, b"");
        }
        _ => a.send_bytes(id, Operation::Send { immediate, invalidate: None, solicited: false }, b""),
    }
}

/// Messages arrive in the order of posting, whether they use shared memory or the stream.
#[test]
fn messages_over_shared_memory_and_the_stream_keep_their_order() {
    let (mut a, mut b) = sharing();
    let mut random = 1_u32;
    let mut sent = 0;
    for _ in 0..300 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let batch = 1 + (random >> 20) % 40;
        for number in 0..batch {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            post_any(&mut a, &b, random >> 28, sent + u64::from(number));
        }
        until(&mut a, &mut b, |_, b| b.end.completions.len() == batch as usize);
        for done in std::mem::take(&mut b.end.completions) {
            assert_eq!(done.status, CompletionStatus::Success);
            let word = done.immediate.unwrap_or_else(|| {
                let bytes = b.read_own(done.id * 4096, 4);
                u32::from_le_bytes(bytes.try_into().unwrap()).into()
            });
            assert_eq!(word, sent, "out of order");
            sent += 1;
            let buffer = Buffer::Segment(b.segment(done.id * 4096, 4096));
            b.end.cq.post_recv(b.qp, &[RecvRequest { id: done.id, buffer }]).unwrap();
        }
    }
    assert!(sent > 1000);
}

/// When the message ring is full because the peer does not poll, further messages use the stream.
#[test]
fn a_full_message_ring_loses_nothing() {
    let (mut a, mut b) = (deep(), deep());
    for id in 0..1000 {
        b.end.cq.post_recv(b.qp, &[RecvRequest { id, buffer: Buffer::Empty }]).unwrap();
    }
    join_sharing(&mut a, &mut b, V4);
    let count = SLOTS as u64 + 300;
    for id in 0..count {
        a.send_bytes(id, IMMEDIATE, b"");
        a.poll();
    }
    until(&mut a, &mut b, |a, b| {
        a.end.completions.len() as u64 == count && b.end.completions.len() as u64 == count
    });
    assert!(b.end.completions.iter().map(|done| done.id).eq(0..count));
}

#[test]
fn posted_messages_arrive_before_the_end() {
    let (mut a, mut b) = sharing();
    for id in 0..100 {
        a.send_bytes(id, if id % 3 == 0 { SEND } else { IMMEDIATE }, b"");
    }
    a.end.cq.disconnect(a.qp);
    assert_eq!(b.event(), ConnectionEvent::Disconnected);
    b.poll();
    let arrived = b.end.completions.iter().filter(|done| done.status == CompletionStatus::Success);
    assert_eq!(arrived.count(), 100);
}

#[test]
fn an_abort_is_reported_after_the_messages_before_it() {
    let (mut a, mut b) = sharing();
    (0..10).for_each(|id| a.send_bytes(id, IMMEDIATE, b""));
    a.end.cq.abort(a.qp);
    assert!(matches!(b.event(), ConnectionEvent::Broken(_)));
    b.poll();
    let arrived = b.end.completions.iter().filter(|done| done.status == CompletionStatus::Success);
    assert_eq!(arrived.count(), 10);
}

#[test]
fn writes_to_a_dropped_region_break_the_connection() {
    let (mut a, mut b) = sharing();
    let to = b.remote(0);
    b.ring = None;
    a.send_bytes(1, Operation::Write { remote: to, immediate: Some(1) }, b"late");
    assert!(matches!(b.event(), ConnectionEvent::Broken(BreakReason::Protocol(_))));
    assert!(matches!(a.event(), ConnectionEvent::Broken(BreakReason::Terminated(_))));
}

#[test]
fn a_message_without_a_receive_breaks_the_connection() {
    let (mut a, mut b) = (deep(), deep());
    join_sharing(&mut a, &mut b, V4);
    a.send_bytes(1, IMMEDIATE, b"");
    assert!(matches!(b.event(), ConnectionEvent::Broken(BreakReason::Protocol(_))));
}

/// Messages over shared memory and over the stream wake a side that sleeps on its wait set, whether the set
/// was attached before or after connecting.
#[test]
fn a_sleeping_side_is_woken() {
    for early in [false, true] {
        let (mut a, mut b) = (deep(), deep());
        b.post_receives(250);
        let wait = Arc::new(WaitSet::new().unwrap());
        if early {
            b.attach(&wait);
        }
        join_sharing(&mut a, &mut b, V4);
        if !early {
            a.send_bytes(0, IMMEDIATE, b"");
            b.attach(&wait);
            b.poll();
            assert_eq!(b.end.completions.len(), 1, "it was there before");
            assert!(!wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap(), "readable without a message");
        }
        for id in 0..100 {
            b.poll();
            while b.end.cq.arm().unwrap() {
                b.poll();
            }
            a.send_bytes(id, if id % 3 == 0 { SEND } else { IMMEDIATE }, b"");
            assert!(wait.wait(Some(LIMIT), &mut Vec::new()).unwrap(), "not woken");
            b.poll();
            while b.end.cq.arm().unwrap() {
                b.poll();
            }
            assert!(!wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap(), "readable without a message");
        }
        b.poll();
        while b.end.cq.arm().unwrap() {
            b.poll();
        }
        assert!(!wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap(), "readable without a message");
    }
}

/// A side that polls, arms, polls and sleeps does not miss a message after messages that complete nothing.
#[test]
fn messages_without_a_completion_do_not_hide_later_ones() {
    let (mut a, mut b) = sharing();
    let wait = Arc::new(WaitSet::new().unwrap());
    b.attach(&wait);
    let plain = Operation::Write { remote: b.remote(0), immediate: None };
    for id in 0..SLOTS as u64 - 10 {
        a.send_bytes(id, plain, b"x");
        a.poll();
    }
    a.send_bytes(1000, IMMEDIATE, b"");
    b.poll();
    if b.end.cq.arm().unwrap() {
        b.poll();
    }
    let woken = wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    assert!(woken || b.end.completions.len() == 1, "neither woken nor completed");
}

/// The active side offers the rendezvous, and the passive side does not take part.
#[test]
fn the_connection_works_if_the_rendezvous_fails() {
    let (mut a, mut b) = (deep(), deep());
    b.post_receives(10);
    let ring = a.ring.as_ref().unwrap();
    assert!(a.end.cq.invite(a.qp, "127.0.0.1:9".parse().unwrap(), ring).is_some());
    join(&mut a, &mut b, V4);
    a.end.cq.meet(a.qp, true);
    a.send_bytes(1, IMMEDIATE, b"");
    until(&mut a, &mut b, |_, b| b.end.completions.len() == 1);
    assert_eq!(b.end.completions[0].immediate, Some(7));
}
