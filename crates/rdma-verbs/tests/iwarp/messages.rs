//! Queue pairs for messages, over real sockets.

use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::support::*;
use iwarp_wire::ddp::Untagged;
use iwarp_wire::rdmap::emit_immediate;
use rdma_testkit::harness::{End, Lent, QUIET, step};
use rdma_verbs::iwarp::{Config, Device};
use rdma_verbs::{
    Access, BreakReason, Buffer, Completion, CompletionKind, CompletionQueue as _, CompletionStatus,
    ConnectionEvent, Connections as _, Error, MemoryRegion as _, MessageQueues as _, Operation, Payload,
    Place, QpCapabilities, QpId, QueuePairs as _, RecvQueue, RecvRequest, RemoteAddress, Segment,
    SendRequest, SrqId, WaitSet,
};

const SMALL: QpCapabilities = QpCapabilities {
    send_depth: 16,
    recv_depth: 4,
    inline: 4096,
    initiator_depth: 4,
    responder_resources: 4,
};
const LARGE: usize = 16 << 20;

/// An end with a queue pair for messages.
struct Seat {
    end: End<Device>,
    qp: QpId,
}

impl Seat {
    fn new() -> Self {
        let mut end = End::new(Device::default());
        let qp = message_qp(&mut end, SMALL, None);
        Self { end, qp }
    }

    fn recv(&mut self, id: u64, places: &[Place]) {
        let buffer = Buffer::Places(places);
        self.end.cq.post_recv(self.qp, &[RecvRequest { id, buffer }]).unwrap();
    }

    fn post(&mut self, id: u64, operation: Operation, payload: Payload<'_>) {
        let request = SendRequest { id, signaled: true, operation, payload };
        self.end.cq.post_send(self.qp, &[request], false).unwrap();
    }

    fn send(&mut self, id: u64, bytes: &[u8]) {
        self.post(id, SEND, Payload::Inline(&[IoSlice::new(bytes)]));
    }

    fn event(&mut self) -> ConnectionEvent {
        self.end.next_event(self.qp)
    }

    fn abort(&mut self) {
        self.end.cq.abort(self.qp);
    }
}

fn message_qp(end: &mut End<Device>, wanted: QpCapabilities, shared: Option<SrqId>) -> QpId {
    let (qp, granted) = end.cq.create_message_qp(&end.pd, wanted, shared).unwrap();
    assert_eq!(granted, wanted);
    end.connection_events.insert(qp, Default::default());
    qp
}

/// Drives the ends until `done`.
fn until(ends: &mut [&mut End<Device>], mut done: impl FnMut(&mut [&mut End<Device>]) -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done(ends) {
        step(ends, deadline, "what should come").unwrap();
    }
}

/// Connects a queue pair of `a` to one of `b`.
fn join(a: &mut End<Device>, from: QpId, b: &mut End<Device>, to: QpId) {
    let address = b.listen(V4.parse().unwrap());
    a.connect(from, address, b"");
    until(&mut [a, b], |ends| !ends[1].requests.is_empty());
    b.accept(to, b"");
    b.listener = None;
    until(&mut [a, b], |ends| {
        ends[0].connection_events[&from].len() == 1 && ends[1].connection_events[&to].len() == 1
    });
    for events in [a.connection_events.get_mut(&from), b.connection_events.get_mut(&to)] {
        let event = events.and_then(std::collections::VecDeque::pop_front);
        assert!(matches!(event, Some(ConnectionEvent::Established { .. })), "{event:?}");
    }
}

fn pair() -> (Seat, Seat) {
    let (mut a, mut b) = (Seat::new(), Seat::new());
    join(&mut a.end, a.qp, &mut b.end, b.qp);
    (a, b)
}

/// `b` takes all that it can, and sleeps then.
fn settle(b: &mut End<Device>) {
    let deadline = Instant::now() + LIMIT;
    loop {
        b.poll();
        if !b.data.wait(Some(QUIET), &mut Vec::new()).unwrap() {
            break;
        }
        assert!(Instant::now() < deadline, "it does not come to rest");
    }
}

fn is_ready(set: &WaitSet) -> bool {
    set.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap()
}

fn summary(done: &Completion) -> (u64, CompletionKind, CompletionStatus, u32) {
    (done.id, done.kind, done.status, done.length)
}

use CompletionKind::{Read, Recv, RecvWrite, Send};
use CompletionStatus::{Flushed, Success, Truncated};

#[test]
fn a_message_without_receive_waits_asleep() {
    let (mut a, mut b) = pair();
    a.send(1, b"first");
    a.send(2, b"second");
    settle(&mut b.end);
    // What comes behind it wakes nobody.
    a.send(3, &pattern(3, 4000));
    std::thread::sleep(QUIET);
    b.end.cq.arm().unwrap();
    assert!(!is_ready(&b.end.data) && !is_ready(&b.end.events), "nothing can be done");
    assert_eq!((b.end.completions.len(), a.end.poll()), (0, true));

    // It goes on within the call, and the queue says so.
    let lent = Lent::blank(5000);
    b.recv(7, &[lent.part(0, 2), lent.part(2, 8)]);
    assert!(is_ready(&b.end.data));
    let mut done = [Completion::EMPTY; 4];
    assert_eq!(b.end.cq.poll(&mut done), 1);
    assert_eq!(summary(&done[0]), (7, Recv, Success, 5));
    b.recv(8, &[lent.part(10, 3)]);
    b.recv(9, &[lent.part(13, 4500)]);
    until(&mut [&mut a.end, &mut b.end], |ends| ends[1].completions.len() == 2);
    assert_eq!(summary(&b.end.completions[0]), (8, Recv, Truncated, 6));
    assert_eq!(summary(&b.end.completions[1]), (9, Recv, Success, 4000));
    let bytes = lent.bytes();
    assert_eq!((&bytes[..5], &bytes[5..10], &bytes[10..13]), (&b"first"[..], &[0xee; 5][..], &b"sec"[..]));
    assert_eq!(bytes[13..4013], pattern(3, 4000));
    assert_eq!(b.end.cq.poll_event(b.qp), None);
}

#[test]
fn an_end_is_noticed_while_a_message_waits() {
    for late_send in [false, true] {
        let (mut a, mut b) = pair();
        let lent = Lent::blank(10);
        a.send(1, b"nobody asked");
        settle(&mut b.end);
        a.end.cq.abort(a.qp);
        if late_send {
            // It meets the end before anything else does, and takes the socket's error.
            std::thread::sleep(QUIET);
            b.post(2, SEND, Payload::Places(&[lent.place()]));
        }
        assert!(matches!(b.event(), ConnectionEvent::Broken(_)));
        b.end.poll();
        let done: Vec<_> = b.end.completions.iter().map(summary).collect();
        let expected: &[_] = if late_send { &[(2, Send, Flushed, 0)] } else { &[] };
        assert_eq!(done, expected);
        assert!(matches!(b.end.cq.post_recv(b.qp, &[]), Err(Error::BadState { .. })));
    }
}

/// [RFC 5041 6.2.1-6]
#[test]
fn messages_before_an_orderly_end_wait_for_their_receives() {
    let (mut a, mut b) = pair();
    for id in 0..3 {
        a.send(id, &[id as u8; 10]);
    }
    a.end.cq.disconnect(a.qp);
    settle(&mut b.end);
    assert_eq!(b.end.cq.poll_event(b.qp), None);
    let lent = Lent::blank(40);
    for id in 0..4 {
        b.recv(id, &[lent.part(id as usize * 10, 10)]);
    }
    assert_eq!(b.event(), ConnectionEvent::Disconnected);
    b.end.poll();
    let done: Vec<_> = b.end.completions.iter().map(summary).collect();
    let ok = |id| (id, Recv, Success, 10);
    assert_eq!(done, [ok(0), ok(1), ok(2), (3, Recv, Flushed, 0)]);
    assert_eq!(a.event(), ConnectionEvent::Disconnected);
}

/// Nothing can be posted any more for the message, so it is dropped and the connection ends.
#[test]
fn who_disconnects_drops_what_waits() {
    for stalls_first in [true, false] {
        let (mut a, mut b) = pair();
        let lent = Lent::new(pattern(5, LARGE));
        if stalls_first {
            a.post(1, SEND, Payload::Places(&[lent.place()]));
            settle(&mut b.end);
        }
        let bytes = Lent::blank(5);
        a.recv(2, &[bytes.place()]);
        b.send(3, b"so be");
        b.end.cq.disconnect(b.qp);
        if !stalls_first {
            a.post(1, SEND, Payload::Places(&[lent.place()]));
        }
        until(&mut [&mut a.end, &mut b.end], |ends| ends[0].connection_events[&a.qp].len() == 1);
        assert_eq!(a.event(), ConnectionEvent::Disconnected);
        assert_eq!(bytes.bytes(), b"so be");
        until(&mut [&mut a.end, &mut b.end], |ends| ends[1].connection_events[&b.qp].len() == 1);
        assert_eq!(b.event(), ConnectionEvent::Disconnected);
        let received = a.end.completions.iter().find(|done| done.kind == Recv).map(summary);
        assert_eq!(received, Some((2, Recv, Success, 5)));
    }
}

#[test]
fn large_messages_and_reads_go_from_place_to_place() {
    for crc in [false, true] {
        let config = Config { crc, ..Config::default() };
        let (mut a, mut b) = pair();
        if crc {
            for seat in [&mut a, &mut b] {
                seat.end = End::new(Device::new(config).unwrap());
                seat.qp = message_qp(&mut seat.end, SMALL, None);
            }
            join(&mut a.end, a.qp, &mut b.end, b.qp);
        }
        let (from, to) = (Lent::new(pattern(1, LARGE)), Lent::blank(LARGE));
        let cuts = |lent: &Lent| {
            let third = LARGE / 3;
            [
                lent.part(0, third),
                lent.part(third, 0),
                lent.part(third, 7),
                lent.part(third + 7, LARGE - third - 7),
            ]
        };
        b.recv(1, &[to.part(0, 10_000), to.part(10_000, LARGE - 10_000)]);
        let operation = Operation::Send { immediate: Some(u64::MAX - 5), invalidate: None, solicited: true };
        a.post(2, operation, Payload::Places(&cuts(&from)));
        until(&mut [&mut a.end, &mut b.end], |ends| ends.iter().all(|end| end.completions.len() == 1));
        let done = b.end.completions.pop_front().unwrap();
        assert_eq!(summary(&done), (1, Recv, Success, LARGE as u32));
        assert_eq!(done.immediate, Some(u64::MAX - 5));
        assert!(to.bytes() == pattern(1, LARGE));
        assert_eq!(a.end.completions.pop_front().map(|done| summary(&done)), Some((2, Send, Success, 0)));

        let (region, back) = (b.end.region(LARGE, Access::REMOTE_READ), Lent::blank(LARGE));
        region.memory().write(0, &pattern(9, LARGE)).unwrap();
        let remote = RemoteAddress { key: region.remote_key(), address: region.address() };
        a.post(3, Operation::Read { remote }, Payload::Places(&cuts(&back)));
        a.post(4, Operation::Read { remote }, Payload::Places(&[back.part(0, 0)]));
        until(&mut [&mut a.end, &mut b.end], |ends| ends[0].completions.len() == 2);
        let done: Vec<_> = a.end.completions.iter().map(summary).collect();
        assert_eq!(done, [(3, Read, Success, 0), (4, Read, Success, 0)]);
        assert!(back.bytes() == pattern(9, LARGE));
    }
}

/// A completion queue with a shared receive queue, and connections of peers of its own.
struct Hub {
    end: End<Device>,
    srq: SrqId,
    qps: Vec<QpId>,
    peers: Vec<Seat>,
}

impl Hub {
    fn new(connections: usize) -> Self {
        let mut end = End::new(Device::default());
        let srq = end.cq.create_srq(&end.pd, 8).unwrap();
        let (mut qps, mut peers) = (Vec::new(), Vec::new());
        for _ in 0..connections {
            let wanted = QpCapabilities { recv_depth: 0, ..SMALL };
            let (qp, mut peer) = (message_qp(&mut end, wanted, Some(srq)), Seat::new());
            join(&mut peer.end, peer.qp, &mut end, qp);
            qps.push(qp);
            peers.push(peer);
        }
        Self { end, srq, qps, peers }
    }

    fn recv(&mut self, id: u64, place: Place) {
        let buffer = Buffer::Places(&[place]);
        self.end.cq.post_srq_recv(self.srq, &[RecvRequest { id, buffer }]).unwrap();
    }

    /// Has a peer begin a message of which only a part comes, which takes a receive.
    fn begin_message(&mut self, peer: usize, lent: &Lent) {
        self.peers[peer].post(1, SEND, Payload::Places(&[lent.place()]));
        settle(&mut self.end);
    }
}

#[test]
fn a_wake_up_that_a_poll_took_is_requested_again() {
    let (mut a, mut b) = pair();
    a.send(1, b"first");
    a.send(2, b"second");
    settle(&mut b.end);
    // From here on somebody sleeps.
    b.end.cq.arm().unwrap();
    let lent = Lent::blank(11);
    b.recv(7, &[lent.part(0, 5)]);
    b.end.poll();
    assert_eq!(b.end.completions.len(), 1);
    // That was another thread than the one that sleeps.
    b.end.cq.arm_for_others();
    assert!(!b.end.data.is_readable());
    b.recv(8, &[lent.part(5, 6)]);
    assert!(b.end.data.is_readable());
    settle(&mut b.end);
    assert_eq!(b.end.completions.len(), 2);
}

#[test]
fn a_peer_that_leaves_wakes_nobody_while_its_message_waits() {
    let (mut a, mut b) = pair();
    a.send(1, b"last");
    settle(&mut b.end);
    a.end.cq.disconnect(a.qp);
    std::thread::sleep(QUIET);
    b.end.poll();
    b.end.cq.arm().unwrap();
    // Nobody looks into a set that others hold, so what is reported once would stay in it.
    assert!(!b.end.data.is_readable());
    let lent = Lent::blank(4);
    b.recv(7, &[lent.place()]);
    until(&mut [&mut b.end], |ends| ends[0].completions.len() == 1);
    assert_eq!(summary(&b.end.completions[0]), (7, Recv, Success, 4));
    assert_eq!(b.event(), ConnectionEvent::Disconnected);
}

#[test]
fn connections_share_receives_in_the_order_of_their_messages() {
    let mut hub = Hub::new(3);
    for (at, peer) in hub.peers.iter_mut().enumerate().rev() {
        peer.send(0, &[at as u8; 10]);
        settle(&mut hub.end);
    }
    let lent = Lent::blank(30);
    for at in 0..3 {
        hub.end.cq.arm().unwrap();
        hub.recv(at, lent.part(at as usize * 10, 10));
        // The one that waited longest went on within the call.
        assert!(is_ready(&hub.end.data));
        hub.end.poll();
        let done = hub.end.completions.pop_back().unwrap();
        assert_eq!((done.qp, summary(&done)), (hub.qps[2 - at as usize], (at, Recv, Success, 10)));
    }
    let expected: Vec<u8> = (0..30).map(|at| 2 - at / 10).collect();
    assert_eq!(lent.bytes(), expected);

    hub.recv(5, lent.place());
    assert!(hub.end.cq.cancel_recv(RecvQueue::Shared(hub.srq), 5));
    assert!(!hub.end.cq.cancel_recv(RecvQueue::Shared(hub.srq), 5));
    hub.peers[0].send(1, b"late");
    settle(&mut hub.end);
    assert_eq!(hub.end.completions.len(), 0);
    assert!(hub.end.cq.destroy_srq(hub.srq).is_err(), "it is in use");
    assert!(matches!(hub.end.cq.post_recv(hub.qps[0], &[]), Err(Error::Unsupported(_))));
    for qp in hub.qps.clone() {
        hub.end.destroy(qp);
    }
    hub.end.cq.destroy_srq(hub.srq).unwrap();
}

#[test]
fn the_set_of_a_queue_pair_is_readable_for_this_one() {
    let mut hub = Hub::new(2);
    let sets = [(); 2].map(|()| Arc::new(WaitSet::new().unwrap()));
    for (qp, set) in hub.qps.clone().into_iter().zip(&sets) {
        assert!(hub.end.cq.watch(qp, set).unwrap());
    }
    settle(&mut hub.end);
    assert!(!is_ready(&sets[0]) && !is_ready(&sets[1]));
    let lent = Lent::blank(10);
    hub.recv(1, lent.part(0, 5));
    hub.peers[1].send(1, b"first");
    assert!(sets[1].wait(Some(QUIET), &mut Vec::new()).unwrap());
    assert!(!is_ready(&sets[0]));
    hub.end.poll();
    assert_eq!(hub.end.completions.pop_back().unwrap().qp, hub.qps[1]);
    assert!(!is_ready(&sets[1]));
    // What a post completes is in the queue, and shows in no set, not the one of all queue pairs either.
    hub.peers[1].send(2, b"later");
    settle(&mut hub.end);
    hub.end.cq.arm().unwrap();
    hub.recv(2, lent.part(5, 5));
    assert!(!is_ready(&sets[1]) && !is_ready(&hub.end.data));
    let mut waiting = [Completion::EMPTY; 2];
    assert_eq!(hub.end.cq.take_waiting(&mut waiting), 1);
    assert_eq!((waiting[0].qp, summary(&waiting[0])), (hub.qps[1], (2, Recv, Success, 5)));
    assert_eq!(hub.end.cq.take_waiting(&mut waiting), 0);
    // It does not when it is no longer watched.
    hub.end.cq.unwatch(hub.qps[1], &sets[1]);
    hub.peers[1].send(3, b"x");
    assert!(!sets[1].wait(Some(QUIET), &mut Vec::new()).unwrap());
}

/// However its connection ends, a shared receive that was half filled serves another message, at once.
#[test]
fn a_receive_that_comes_back_goes_to_the_one_that_waits() {
    type Ending = fn(&mut Hub);
    let endings: [(&str, Ending); 4] = [
        ("destroyed", |hub| hub.end.destroy(hub.qps[0])),
        ("aborted", |hub| hub.end.cq.abort(hub.qps[0])),
        ("reset, and an event polled", |hub| {
            hub.peers[0].abort();
            std::thread::sleep(QUIET);
            assert!(hub.end.cq.poll_event(hub.qps[0]).is_some());
        }),
        ("reset, and completions polled", |hub| {
            hub.peers[0].abort();
            std::thread::sleep(QUIET);
            let mut done = [Completion::EMPTY; 4];
            assert_eq!(hub.end.cq.poll(&mut done[..1]), 0, "one that is given back is not flushed");
        }),
    ];
    for (ending, end) in endings {
        let mut hub = Hub::new(2);
        let (long, lent) = (Lent::new(pattern(1, LARGE)), Lent::blank(LARGE));
        hub.recv(3, lent.place());
        hub.begin_message(0, &long);
        hub.peers[1].send(2, b"waits");
        settle(&mut hub.end);
        assert_eq!(hub.end.completions.len(), 0);
        end(&mut hub);
        assert!(hub.end.cq.arm().unwrap() || is_ready(&hub.end.data), "{ending}");
        let mut done = [Completion::EMPTY; 2];
        assert_eq!(hub.end.cq.poll(&mut done), 1, "{ending}");
        assert_eq!((done[0].qp, summary(&done[0])), (hub.qps[1], (3, Recv, Success, 5)), "{ending}");
        assert_eq!(lent.bytes()[..5], *b"waits");
    }
}

#[test]
fn nothing_touches_a_place_after_its_queue_pair_is_destroyed() {
    let (mut a, mut b) = pair();
    let region = b.end.region(LARGE, Access::REMOTE_READ);
    let remote = RemoteAddress { key: region.remote_key(), address: region.address() };
    let (source, sink, inbox) = (Lent::new(pattern(1, LARGE)), Lent::blank(LARGE), Lent::blank(LARGE));
    a.recv(1, &[inbox.place()]);
    a.post(2, SEND, Payload::Places(&[source.place()]));
    a.post(3, Operation::Read { remote }, Payload::Places(&[sink.place()]));
    b.recv(1, &[Lent::blank(LARGE / 2).place()]);
    b.post(2, SEND, Payload::Places(&[source.place()]));
    // All three are under way.
    let begun = |lent: &Lent| lent.bytes()[0] != 0xee;
    until(&mut [&mut a.end, &mut b.end], |_| begun(&inbox) && begun(&sink) || begun(&inbox));
    a.end.destroy(a.qp);
    for lent in [&source, &sink, &inbox] {
        lent.set(0x11);
    }
    for _ in 0..100 {
        a.end.poll();
        b.end.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
    for (what, lent) in [("source", &source), ("sink", &sink), ("inbox", &inbox)] {
        assert!(lent.bytes().iter().all(|&byte| byte == 0x11), "the {what} is touched");
    }
    assert_eq!(a.end.completions.len(), 0);
}

#[test]
fn what_such_a_queue_pair_does_not_do_is_refused() {
    let (mut a, mut b) = pair();
    let region = a.end.region(100, Access::LOCAL_WRITE);
    let segment = Segment { key: region.local_key(), address: 0, length: 100 };
    let receive = RecvRequest { id: 1, buffer: Buffer::Segment(segment) };
    assert!(matches!(a.end.cq.post_recv(a.qp, &[receive]), Err(Error::Unsupported(_))));
    let lent = Lent::blank(10);
    let five = [lent.part(0, 2); 5];
    let receive = RecvRequest { id: 1, buffer: Buffer::Places(&five) };
    assert!(matches!(a.end.cq.post_recv(a.qp, &[receive]), Err(Error::OutOfRange { most: 4, .. })));
    for payload in [Payload::Segments(&[segment]), Payload::Places(&five)] {
        let request = SendRequest { id: 1, signaled: true, operation: SEND, payload };
        assert!(a.end.cq.post_send(a.qp, &[request], false).is_err());
    }
    b.recv(1, &[]);
    a.send(1, b"");
    until(&mut [&mut a.end, &mut b.end], |ends| ends[1].completions.len() == 1);
    assert_eq!(summary(&b.end.completions[0]), (1, Recv, Success, 0));
}

/// The completions of the peer's writes hold no entry of the receive queue.
#[test]
fn writes_with_immediate_take_no_receive() {
    let (mut a, mut b) = pair();
    let region = b.end.region(100, Access::REMOTE_WRITE);
    let remote = RemoteAddress { key: region.remote_key(), address: region.address() };
    for id in 0..10 {
        let operation = Operation::Write { remote, immediate: Some(id << 40) };
        a.post(id, operation, Payload::Inline(&[IoSlice::new(&[1; 7])]));
    }
    std::thread::sleep(QUIET);
    // Found, and not polled.
    assert_eq!(b.end.cq.poll_event(b.qp), None);
    for id in 0..4 {
        b.recv(id, &[]);
    }
    let full = RecvRequest { id: 4, buffer: Buffer::Empty };
    assert!(matches!(b.end.cq.post_recv(b.qp, &[full]), Err(Error::QueueFull { .. })));
    until(&mut [&mut a.end, &mut b.end], |ends| ends[1].completions.len() == 10);
    for (id, done) in (0..).zip(&b.end.completions) {
        assert_eq!(
            (summary(done), done.immediate),
            ((Completion::NO_RECEIVE, RecvWrite, Success, 7), Some(id << 40))
        );
    }
}

/// A hostile peer, and a queue pair for messages with a receive of 10 bytes if it `is_ready`.
fn hostile(is_ready: bool) -> (Peer, Side) {
    let mut side = Side::new(Config::default());
    side.end.destroy(side.qp);
    side.qp = message_qp(&mut side.end, SMALL, None);
    if is_ready {
        let buffer = Buffer::Places(&[Lent::blank(10).place()]);
        side.end.cq.post_recv(side.qp, &[RecvRequest { id: 1, buffer }]).unwrap();
    }
    (Peer::active(&mut side, V4), side)
}

/// Header of a segment of the send queue.
fn segment(last: bool, word: u32, sequence: u32, offset: u32) -> Untagged {
    Untagged { last, ulp_word: word, offset, ..send_header(sequence) }
}

#[test]
fn marks_have_a_meaning_only_where_they_are_one() {
    let (mut peer, mut side) = hostile(true);
    // One on the second segment is none; one that says anything else is none either.
    let bytes = [
        untagged(segment(false, 0, 1, 0), b"01234567"),
        untagged(segment(true, 1, 1, 8), b"89abcdefgh"),
        untagged(Untagged { ulp: 0x48, ..segment(true, 1, 2, 0) }, &emit_immediate(7)),
    ];
    peer.0.write_all(&bytes.concat()).unwrap();
    until_one(&mut side, |side| side.end.completions.len() == 2);
    let found: Vec<_> = side.end.completions.iter().map(|done| (summary(done), done.immediate)).collect();
    assert_eq!(
        found,
        [((1, Recv, Truncated, 18), None), ((Completion::NO_RECEIVE, RecvWrite, Success, 0), Some(7))]
    );
}

#[test]
fn the_first_message_opens_the_passive_side_though_it_waits() {
    let (mut peer, mut side) = hostile(false);
    peer.0.write_all(&untagged(send_header(1), b"first")).unwrap();
    settle(&mut side.end);
    let answer = [IoSlice::new(b"answer")];
    side.send(1, SEND, Payload::Inline(&answer));
    peer.0.set_read_timeout(Some(QUIET)).unwrap();
    assert_eq!(peer.0.read(&mut [0]).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    side.end.cq.post_recv(side.qp, &[RecvRequest { id: 2, buffer: Buffer::Empty }]).unwrap();
    peer.0.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(peer.read_fpdu()[18..], *b"answer");
}

/// Why the connection ends after a peer has sent these bytes, and what the peer is told.
fn ends_after(peer: &mut Peer, side: &mut Side, bytes: &[u8]) -> (String, (u8, u8, u8)) {
    peer.0.write_all(bytes).unwrap();
    let event = side.event();
    let ConnectionEvent::Broken(BreakReason::Protocol(cause)) = event else { panic!("{event:?}") };
    (cause.to_string(), peer.read_terminate())
}

/// [RFC 5040 5.2.2-4]
#[test]
fn what_no_peer_may_send_ends_the_connection() {
    let (mut peer, mut side) = hostile(true);
    let bytes = untagged(segment(true, 1, 1, 0), b"1234567");
    let expected = "Send of 7 bytes instead of 8 in one segment";
    assert_eq!(ends_after(&mut peer, &mut side, &bytes), (expected.into(), (0, 2, 0xff)));

    let (mut peer, mut side) = hostile(true);
    let bytes = tagged(2, true, 0, 0, b"gift");
    let expected = "Read Response of 4 bytes at 0 of STag 0x00000000 instead of 0 at 0";
    assert_eq!(ends_after(&mut peer, &mut side, &bytes), (expected.into(), (1, 1, 1)));

    // A response that is longer than what was asked for.
    let (mut peer, mut side) = hostile(true);
    let lent = Lent::blank(4);
    peer.0.write_all(&untagged(send_header(1), b"")).unwrap();
    until_one(&mut side, |side| side.end.completions.len() == 1);
    let operation = Operation::Read { remote: RemoteAddress { key: 5, address: 6 } };
    side.send(3, operation, Payload::Places(&[lent.place()]));
    assert_eq!(peer.read_fpdu()[1] & 0xf, 1, "a read request");
    let bytes = tagged(2, true, 0, 0, b"five!");
    let expected = "Read Response of 5 bytes at 0 of STag 0x00000000 instead of 4 at 0";
    assert_eq!(ends_after(&mut peer, &mut side, &bytes), (expected.into(), (1, 1, 1)));
    assert_eq!(lent.bytes(), [0xee; 4]);
    side.poll();
    assert_eq!(side.end.completions.back().map(summary), Some((3, Read, Flushed, 0)));
}

/// What a peer sends without end to `side`, which the test calls `look` on: bytes that it took.
fn flooded(peer: &mut Peer, side: &mut Side, fpdu: fn(u32) -> Vec<u8>, look: fn(&mut Side)) -> usize {
    peer.0.set_nonblocking(true).unwrap();
    let (mut sequence, mut flood, mut sent, mut idle) = (0, Vec::new(), 0, 0);
    while idle < 20 {
        while flood.len() < 100_000 {
            sequence += 1;
            flood.extend(fpdu(sequence));
        }
        match peer.0.write(&flood) {
            Ok(count) => {
                flood.drain(..count);
                (sent, idle) = (sent + count, 0);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                idle += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        look(side);
        assert!(sent < 64 << 20, "it is taken without end");
    }
    sent
}

/// A peer that sends without end to one who posts nothing meets the window of TCP.
#[test]
fn a_flood_without_receives_is_held_back() {
    let (mut peer, mut side) = hostile(false);
    flooded(&mut peer, &mut side, |sequence| untagged(send_header(sequence), &[7; 20]), Side::poll);
    assert_eq!(side.end.completions.len(), 0);
    assert!(!is_ready(&side.end.data));
}

/// The same for one who never polls what it has of the peer's writes.
#[test]
fn a_flood_of_writes_that_nobody_polls_is_held_back() {
    let (mut peer, mut side) = hostile(false);
    let written = |sequence| {
        untagged(Untagged { ulp: 0x48, ..segment(true, 1, sequence, 0) }, &emit_immediate(sequence.into()))
    };
    let sent = flooded(&mut peer, &mut side, written, |side| {
        assert_eq!(side.end.cq.poll_event(side.qp), None);
    });
    // It goes on where it was, with all that the connection has taken.
    let mut seen = 0;
    let all = sent / written(1).len();
    assert!(all > 1000, "{all} writes");
    until_one(&mut side, |side| {
        for done in side.end.completions.range(seen..) {
            seen += 1;
            assert_eq!(done.immediate, Some(seen as u64));
        }
        seen >= all
    });
}

/// A place of this length that nothing may access, in whose place the owner's promise is broken.
fn unreadable(length: usize) -> Place {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: a new mapping, which nothing may access.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE) };
    // SAFETY: that it is not readable is what the tests are about; only the system is asked to read it.
    unsafe { Place::new(base.unwrap().cast(), length as u32) }.unwrap()
}

#[test]
fn a_place_that_cannot_be_read_ends_the_connection() {
    for length in [257, 4096, LARGE] {
        let (mut a, mut b) = pair();
        b.recv(1, &[Lent::blank(LARGE).place()]);
        a.post(2, SEND, Payload::Places(&[unreadable(length)]));
        assert!(is_ready(&a.end.events));
        a.end.poll();
        let done = a.end.completions.pop_front().map(|done| summary(&done));
        assert_eq!(done, Some((2, Send, CompletionStatus::LocalAccess, 0)), "{length} bytes");
        assert!(matches!(a.event(), ConnectionEvent::Broken(BreakReason::Local(_))));
        assert!(matches!(b.event(), ConnectionEvent::Broken(BreakReason::Terminated(_))));
    }
}

#[test]
fn of_several_messages_the_one_that_cannot_be_read_is_to_blame() {
    let (mut a, _b) = pair();
    let lent = Lent::blank(1000);
    let places = [lent.place(), lent.place(), unreadable(1000), lent.place()].map(|place| [place]);
    let requests: Vec<_> = (1..)
        .zip(&places)
        .map(|(id, places)| SendRequest {
            id,
            signaled: true,
            operation: SEND,
            payload: Payload::Places(places),
        })
        .collect();
    a.end.cq.post_send(a.qp, &requests, false).unwrap();
    a.end.poll();
    let done: Vec<_> = a.end.completions.iter().map(|done| (done.id, done.status)).collect();
    // One call of the system was to take all of them.
    let cancelled = |id| (id, CompletionStatus::Flushed);
    assert_eq!(done, [cancelled(1), cancelled(2), (3, CompletionStatus::LocalAccess), cancelled(4)]);
}

/// The message takes two calls of the system, of which the second could be read.
#[test]
fn nothing_is_sent_behind_a_place_that_cannot_be_read() {
    let (mut a, mut b) = pair();
    let rest = [2000, 1500, 1000].map(Lent::blank);
    let places = [unreadable(66_000), rest[0].place(), rest[1].place(), rest[2].place()];
    b.recv(1, &[Lent::blank(LARGE).place()]);
    a.post(2, SEND, Payload::Places(&places));
    a.end.poll();
    let done = a.end.completions.pop_front().map(|done| summary(&done));
    assert_eq!(done, Some((2, Send, CompletionStatus::LocalAccess, 0)));
    assert!(matches!(a.event(), ConnectionEvent::Broken(BreakReason::Local(_))));
    assert!(matches!(b.event(), ConnectionEvent::Broken(BreakReason::Terminated(_))));
}
