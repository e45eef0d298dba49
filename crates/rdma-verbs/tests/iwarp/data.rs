//! Data over sockets.

use std::io::{IoSlice, Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use super::support::*;
use rdma_verbs::iwarp::{Config, Device};
use rdma_verbs::typed::TrustedDevice as _;
use rdma_verbs::{
    Buffer, Completion, CompletionKind, CompletionQueue as _, CompletionStatus, ConnectionEvent, Error,
    MemoryRegion as _, Operation, Payload, QpCapabilities, QueuePairs as _, RecvRequest, SendRequest,
    WaitSet,
};

#[test]
fn all_forms_of_send_arrive() {
    for crc in [false, true] {
        let (mut a, mut b) = pair_with(config(2, crc), Config::default(), V4);
        let key = b.ring().remote_key();
        let form = |immediate, invalidate, solicited| Operation::Send { immediate, invalidate, solicited };
        a.send_bytes(1, form(None, None, false), b"plain");
        a.send_bytes(2, form(None, None, true), b"solicited");
        a.send_bytes(3, form(Some(0x8000_0001), None, false), b"");
        a.send_bytes(4, form(Some(2), None, true), b"");
        let to = b.remote(5);
        a.send_bytes(5, Operation::Write { remote: to, immediate: Some(3) }, &pattern(9, 70_000));
        a.send_bytes(6, form(None, Some(key), false), b"invalidate");
        until(&mut a, &mut b, |a, b| a.end.completions.len() == 6 && b.end.completions.len() == 6);
        let summary: Vec<_> = b
            .end
            .completions
            .iter()
            .map(|done| (done.id, done.kind, done.length, done.immediate, done.invalidated))
            .collect();
        use CompletionKind::{Recv, RecvWrite};
        assert_eq!(
            summary,
            [
                (0, Recv, 5, None, None),
                (1, Recv, 9, None, None),
                (2, Recv, 0, Some(0x8000_0001), None),
                (3, Recv, 0, Some(2), None),
                (4, RecvWrite, 70_000, Some(3), None),
                (5, Recv, 10, None, Some(key)),
            ]
        );
        assert_eq!(b.read_own(4096, 9), b"solicited");
        assert_eq!(b.read_ring(5, 70_000), pattern(9, 70_000));
        let kinds: Vec<_> = a.end.completions.iter().map(|done| (done.id, done.kind)).collect();
        use CompletionKind::{Send, Write};
        assert_eq!(kinds, [(1, Send), (2, Send), (3, Send), (4, Send), (5, Write), (6, Send)]);
    }
}

#[test]
fn reads_fetch_from_the_peer() {
    for crc in [false, true] {
        let (mut a, mut b) = pair_with(config(1, crc), Config::default(), V6);
        b.ring().memory().write(0, &pattern(3, RING)).unwrap();
        a.ring().memory().write(0, &pattern(4, RING)).unwrap();
        // More reads than are served at a time, in both directions at once.
        for id in 0..10 {
            let remotes = [b.remote(id * 100_000), a.remote(id * 100_000)];
            for (side, remote) in [&mut a, &mut b].into_iter().zip(remotes) {
                let sink = [side.segment(id * 100_000, 100_000)];
                side.send(id, Operation::Read { remote }, Payload::Segments(&sink));
            }
        }
        until(&mut a, &mut b, |a, b| a.end.completions.len() == 10 && b.end.completions.len() == 10);
        assert_eq!(a.read_own(0, 1_000_000), pattern(3, 1_000_000));
        assert_eq!(b.read_own(0, 1_000_000), pattern(4, 1_000_000));
        assert!(a.end.completions.iter().all(|done| done.kind == CompletionKind::Read));
    }
}

#[test]
fn long_registered_segments_are_sent() {
    let (mut a, mut b) = pair();
    a.own.memory().write(0, &pattern(1, RING)).unwrap();
    let segments = [a.segment(0, 600_000), a.segment(700_000, 0), a.segment(800_000, 5)];
    let to = b.remote(10);
    a.send(1, Operation::Write { remote: to, immediate: Some(9) }, Payload::Segments(&segments));
    let short = [a.segment(1, 4000)];
    a.send(2, SEND, Payload::Segments(&short));
    until(&mut a, &mut b, |a, b| a.end.completions.len() == 2 && b.end.completions.len() == 2);
    assert_eq!(b.read_ring(10, 600_000), pattern(1, 600_000));
    assert_eq!(b.read_ring(600_010, 5), pattern(800_001, 5));
    assert_eq!(b.end.completions[0].length, 600_005);
    assert_eq!(b.read_own(4096, 4000), pattern(2, 4000));
}

#[test]
fn a_request_posted_with_more_waits_for_the_next_call() {
    let (mut a, mut b) = pair();
    let slices = [IoSlice::new(b"held")];
    let request = SendRequest { id: 1, signaled: true, operation: SEND, payload: Payload::Inline(&slices) };
    a.end.cq.post_send(a.qp, &[request], true).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    b.poll();
    assert!(b.end.completions.is_empty());
    a.poll();
    until_one(&mut b, |b| b.end.completions.len() == 1);
    assert_eq!(a.end.completions.len(), 1);
}

/// Posts a request and polls. Returns what has completed.
fn post_and_poll(side: &mut Side, id: u64, operation: Operation, payload: Payload<'_>) -> Vec<u64> {
    let mut out = [Completion::EMPTY; 4];
    let request = SendRequest { id, signaled: true, operation, payload };
    let count = Device::post_and_poll(&mut side.end.cq, side.qp, &request, &mut out).unwrap();
    assert!(out[..count].iter().all(|done| done.status == CompletionStatus::Success));
    out[..count].iter().map(|done| done.id).collect()
}

#[test]
fn a_request_that_is_posted_and_polled_for_comes_after_what_waits() {
    let (mut a, mut b) = pair();
    a.own.memory().write(0, &pattern(1, 8)).unwrap();
    let source = [a.segment(0, 8)];
    assert_eq!(post_and_poll(&mut a, 1, SEND, Payload::Segments(&source)), [1]);
    a.send_bytes(2, SEND, b"waits");
    assert_eq!(post_and_poll(&mut a, 3, SEND, Payload::Segments(&source)), [2, 3]);
    until_one(&mut b, |b| b.end.completions.len() == 3);
    assert_eq!(b.read_own(2 * 4096, 8), pattern(1, 8));
}

/// The queue finds its ready sockets by a set of its own.
#[test]
fn what_the_socket_did_not_take_is_sent_when_it_has_room() {
    const LENGTH: u32 = 16_000;
    let (mut a, mut b) = (Side::new(Config::default()), Side::new(Config::default()));
    a.end.queue_pair(CAPABILITIES);
    join(&mut a, &mut b, V4);
    let (to, source) = (b.remote(0), [a.segment(0, LENGTH)]);
    let mut posted = 0;
    while post_and_poll(&mut a, posted, write(to), Payload::Segments(&source)) == [posted] {
        posted += 1;
    }
    assert!(posted > 0);
    let start = std::time::Instant::now();
    while a.end.completions.is_empty() {
        b.poll();
        a.poll();
        assert!(start.elapsed() < LIMIT, "the rest is not sent");
    }
    assert_eq!(a.end.completions[0].id, posted);
}

#[test]
fn a_full_send_queue_takes_no_request_that_is_polled_for() {
    let few = QpCapabilities { send_depth: 2, ..CAPABILITIES };
    let (mut a, mut b) = (Side::with(Config::default(), few), Side::new(Config::default()));
    join(&mut a, &mut b, V4);
    let source = [a.segment(0, 8)];
    let request = SendRequest { id: 9, signaled: true, operation: SEND, payload: Payload::Segments(&source) };
    for id in 0..2 {
        let read = Operation::Read { remote: b.remote(0) };
        assert!(post_and_poll(&mut a, id, read, Payload::Segments(&source)).is_empty());
    }
    let refused = Device::post_and_poll(&mut a.end.cq, a.qp, &request, &mut [Completion::EMPTY; 1]);
    assert!(matches!(refused, Err(Error::QueueFull { depth: 2, room: 0, asked: 1 })), "{refused:?}");
}

/// [RFC 5044 7.1-2, 7.1.2-12]
#[test]
fn the_passive_side_sends_only_after_the_first_frame() {
    let mut b = Side::new(Config::default());
    let mut peer = Peer::active(&mut b, V4);
    b.send_bytes(1, SEND, b"early");
    b.poll();
    peer.0.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(peer.0.read(&mut [0]).is_err(), "the passive side did not hold back");
    assert!(b.end.completions.is_empty());
    peer.0.set_read_timeout(Some(LIMIT)).unwrap();
    peer.0.write_all(&tagged(0, true, 0, 0, b"")).unwrap();
    until_one(&mut b, |b| !b.end.completions.is_empty());
    assert_eq!(peer.read_fpdu()[18..], *b"early");
}

/// [RFC 5044 7.1.2-7]
#[test]
fn a_stream_split_at_every_byte_is_received() {
    let mut b = Side::new(Config::default());
    b.post_receives(2);
    let mut peer = Peer::active(&mut b, V4);
    let bytes =
        [tagged(0, true, b.remote(0).key, 7, b"payload"), untagged(send_header(1), b"message")].concat();
    for byte in &bytes {
        peer.0.write_all(std::slice::from_ref(byte)).unwrap();
        b.poll();
    }
    until_one(&mut b, |b| b.end.completions.len() == 1);
    assert_eq!(b.read_ring(7, 7), b"payload");
    assert_eq!(b.read_own(0, 7), b"message");
}

/// [RFC 5041 3-6, 5.2-4] [RFC 5044 3-6, 4.3-10]
#[test]
fn segments_of_any_legal_length_are_placed() {
    let mut b = Side::new(Config::default());
    let mut peer = Peer::active(&mut b, V4);
    let key = b.remote(0).key;
    let bytes = pattern(8, 65_521);
    peer.0.write_all(&tagged(0, true, key, 1, &bytes)).unwrap();
    peer.0.write_all(&tagged(0, false, key, 70_000, &bytes[..1])).unwrap();
    peer.0.write_all(&tagged(0, true, key, 70_001, &bytes[1..4])).unwrap();
    let start = std::time::Instant::now();
    while b.read_ring(70_000, 4) != bytes[..4] {
        b.poll();
        assert!(start.elapsed() < LIMIT);
    }
    assert_eq!(b.read_ring(1, bytes.len()), bytes);
}

/// Many megabytes to a receiver that stops now and then: bytes that the socket does not take are staged,
/// posts are refused when the staging memory is full, and nothing is lost.
#[test]
fn a_peer_that_stops_reading_bounds_staging_and_loses_nothing() {
    let (mut a, mut b) = pair();
    let mut full = 0;
    let (mut posted, mut seen) = (0_u64, 0_u64);
    let total = 300;
    while seen < total {
        while posted < total && posted - seen < 30 {
            let to = b.remote((posted % 4) * 200_000);
            let bytes = pattern(posted as usize, 200_000);
            let slices = [IoSlice::new(&bytes)];
            let write = Operation::Write { remote: to, immediate: Some(posted) };
            match a.try_send(posted, write, Payload::Inline(&slices)) {
                Ok(()) => posted += 1,
                Err(Error::QueueFull { .. }) => {
                    full += 1;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
        }
        a.poll();
        let mut out = [Completion::EMPTY; 4];
        let count = b.end.cq.poll(&mut out);
        for done in &out[..count] {
            assert_eq!((done.immediate, done.length), (Some(seen), 200_000));
            assert_eq!(done.status, CompletionStatus::Success);
            seen += 1;
            let buffer = Buffer::Segment(b.segment(0, 8));
            b.end.cq.post_recv(b.qp, &[RecvRequest { id: done.id, buffer }]).unwrap();
        }
    }
    assert!(full > 0, "the peer was never blocked");
    until_one(&mut a, |a| a.end.completions.len() as u64 == total);
    assert!(a.end.completions.iter().map(|done| done.id).eq(0..total));
}

#[test]
fn one_queue_serves_many_queue_pairs() {
    const PAIRS: usize = 20;
    let mut hub = Side::new(Config::default());
    let wait = Arc::clone(&hub.end.data);
    let capabilities = QpCapabilities { recv_depth: 4, ..CAPABILITIES };
    let mut spokes = Vec::new();
    let mut numbers = Vec::new();
    for _ in 0..PAIRS {
        let (qp, _) = hub.end.queue_pair(capabilities);
        hub.qp = qp;
        hub.end.post_empty_receives(qp, 4);
        let mut spoke = Side::new(Config::default());
        spoke.post_receives(1);
        join(&mut spoke, &mut hub, V4);
        numbers.push(qp);
        spokes.push(spoke);
    }
    assert!(
        !wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap() || {
            hub.poll();
            true
        }
    );
    let word = |index| Operation::Send { immediate: Some(index), invalidate: None, solicited: false };
    for (index, spoke) in spokes.iter_mut().enumerate() {
        spoke.send_bytes(0, word(index as u64), b"");
    }
    hub.end.completions.clear();
    let start = std::time::Instant::now();
    while hub.end.completions.len() < PAIRS {
        assert!(wait.wait(Some(LIMIT), &mut Vec::new()).unwrap(), "not woken");
        hub.poll();
        assert!(start.elapsed() < LIMIT);
    }
    for done in &hub.end.completions {
        let index = numbers.iter().position(|&number| number == done.qp).unwrap();
        assert_eq!(done.immediate, Some(index as u64));
    }
    // Calls with the id of a destroyed queue pair fail, and the others continue.
    hub.end.destroy(numbers[3]);
    let gone = hub.end.cq.post_recv(numbers[3], &[]);
    assert!(matches!(gone, Err(Error::BadState { state: "unknown", .. })));
    hub.qp = numbers[4];
    hub.send_bytes(1, word(5), b"");
    until_one(&mut spokes[4], |spoke| spoke.end.completions.len() == 2);
    assert_eq!(spokes[3].event(), ConnectionEvent::Broken(rdma_verbs::BreakReason::Reset));
}

/// [RFC 5040 8.1.1-11]
#[test]
fn queue_pairs_are_limited_by_the_completion_queue_depth() {
    let device = rdma_verbs::iwarp::Device::new(Config::default()).unwrap();
    let pd = rdma_verbs::Device::alloc_pd(&device).unwrap();
    let mut cq = rdma_verbs::Device::create_cq(&device, 128).unwrap();
    let half = QpCapabilities { send_depth: 40, recv_depth: 24, ..CAPABILITIES };
    cq.create_qp(&pd, half).unwrap();
    let more = QpCapabilities { recv_depth: 25, ..half };
    assert!(matches!(cq.create_qp(&pd, more), Err(Error::CompletionQueueFull { needed: 129, most: 128 })));
    cq.create_qp(&pd, half).unwrap();
}

#[test]
fn the_attached_wait_set_is_readable_while_a_poll_has_work() {
    let (mut a, mut b) = pair();
    let (of_a, of_b) = (Arc::new(WaitSet::new().unwrap()), Arc::new(WaitSet::new().unwrap()));
    a.attach(&of_a);
    b.attach(&of_b);
    let is_ready = |set: &WaitSet| set.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    until(&mut a, &mut b, |_, _| !is_ready(&of_a) && !is_ready(&of_b));
    a.send_bytes(1, SEND, b"x");
    assert!(is_ready(&of_a), "a completion is signaled");
    assert!(of_b.wait(Some(LIMIT), &mut Vec::new()).unwrap());
    a.poll();
    b.poll();
    assert_eq!((a.end.completions.len(), b.end.completions.len()), (1, 1));
    assert!(!is_ready(&of_a) && !is_ready(&of_b));
    // After the socket is full, the set becomes readable when the peer has read from it.
    let bytes = vec![0; 200_000];
    let to = b.remote(0);
    for id in 0..60 {
        if a.try_send(id, write(to), Payload::Inline(&[IoSlice::new(&bytes)])).is_err() {
            break;
        }
    }
    a.poll();
    assert!(!is_ready(&of_a), "there is no room");
    let start = std::time::Instant::now();
    while !is_ready(&of_a) {
        b.poll();
        assert!(start.elapsed() < LIMIT);
    }
    // Data does not signal the target of connection events.
    assert!(!is_ready(&a.end.events) && !is_ready(&b.end.events));
}

#[test]
fn completions_beyond_the_array_stay_queued() {
    let (mut a, mut b) = pair();
    for id in 0..20 {
        a.send_bytes(id, SEND, b"x");
    }
    let mut got = 0;
    let mut out = [Completion::EMPTY; 3];
    while got < 20 {
        let count = b.end.cq.poll(&mut out);
        for done in &out[..count] {
            assert_eq!(done.id, got);
            got += 1;
        }
    }
    assert_eq!(b.end.cq.poll(&mut out), 0);
}

/// The set has the socket of the second queue pair already, because it reports its events.
#[test]
fn a_set_that_could_not_be_attached_can_be_later() {
    let (mut a, mut b) = pair();
    let wait = Arc::new(WaitSet::new().unwrap());
    let first = (a.qp, std::mem::replace(&mut a.end.events, Arc::clone(&wait)));
    (a.qp, _) = a.end.queue_pair(CAPABILITIES);
    let _peer = Peer::active(&mut a, V4);
    a.end.cq.attach(Arc::clone(&wait)).unwrap_err();
    a.end.destroy(a.qp);
    (a.qp, a.end.events) = first;
    a.attach(&wait);
    b.send_bytes(1, SEND, b"x");
    assert!(wait.wait(Some(LIMIT), &mut Vec::new()).unwrap());
    a.poll();
    assert_eq!(a.end.completions.len(), 1);
}
