//! Connection attempts that succeed, and that fail.

use std::time::{Duration, Instant};

use rdma_verbs::{
    ConnectError, ConnectOptions, ConnectionEvent, ConnectionRequest, Connections, Device, Error, Listener,
    QpCapabilities, QueuePairs,
};

use super::rig::Rig;
use crate::harness::{CAPABILITIES, End, Joined, LIMIT, OPTIONS, Pair, step};

/// Asserts that private data arrived as it was sent, except for the padding of a device that pads.
fn assert_arrived(rig: &impl Rig, got: &[u8], sent: &[u8]) {
    let (data, padding) = got.split_at_checked(sent.len()).expect("all of the private data");
    assert_eq!(data, sent);
    assert!(padding.iter().all(|&byte| byte == 0), "{padding:?}");
    assert!(padding.is_empty() || rig.private_data_padded(), "{} bytes too many", padding.len());
}

/// Asserts that a connection is established, and that this private data came with the reply.
fn assert_established(rig: &impl Rig, event: &ConnectionEvent, sent: &[u8]) {
    match event {
        ConnectionEvent::Established { private_data } => assert_arrived(rig, private_data, sent),
        other => panic!("{other:?}"),
    }
}

/// Private data of the oldest request.
fn private_data<D: Device>(end: &End<D>) -> Vec<u8> {
    end.requests.front().expect("a request").private_data().to_vec()
}

pub fn capabilities_are_granted(rig: &impl Rig) {
    let mut end = End::new(rig.devices().0);
    for depth in [1, 2, 100] {
        let wanted = QpCapabilities { send_depth: depth, recv_depth: 2 * depth, inline: 32, ..CAPABILITIES };
        let (_, granted) = end.queue_pair(wanted);
        assert!(granted.send_depth >= wanted.send_depth, "{granted:?}");
        assert!(granted.recv_depth >= wanted.recv_depth, "{granted:?}");
        assert!(granted.initiator_depth >= wanted.initiator_depth, "{granted:?}");
        assert!(granted.responder_resources >= wanted.responder_resources, "{granted:?}");
    }
}

pub fn depths_have_limits(rig: &impl Rig) {
    let device = rig.devices().0;
    let attributes = device.attributes();
    let mut end = End::new(device);
    let too_many_sends = QpCapabilities { send_depth: attributes.max_send_depth + 1, ..CAPABILITIES };
    let too_many_receives = QpCapabilities { recv_depth: attributes.max_recv_depth + 1, ..CAPABILITIES };
    for wanted in [too_many_sends, too_many_receives] {
        let answer = end.cq.create_qp(&end.pd, wanted);
        assert!(matches!(answer, Err(Error::OutOfRange { .. })), "{answer:?}");
    }
}

pub fn addresses_are_reported(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    assert_eq!(pair.address.ip(), rig.listen_address().ip());
    assert_ne!(pair.address.port(), 0);
    let (qp, _) = pair.active.queue_pair(CAPABILITIES);
    assert_eq!(pair.active.cq.peer_address(qp), None);
    pair.active.connect(qp, pair.address, b"");
    pair.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
    let request = &pair.passive.requests[0];
    let (from, to) = (request.peer_address(), request.local_address());
    let (passive, _) = pair.passive.queue_pair(CAPABILITIES);
    pair.passive.accept(passive, b"");
    let joined = Joined { active: qp, passive };
    pair.event(joined, false);
    pair.event(joined, true);
    assert_eq!(to, pair.address);
    assert_eq!(pair.active.cq.local_address(joined.active), Some(from));
    assert_eq!(pair.active.cq.peer_address(joined.active), Some(to));
    assert_eq!(pair.passive.cq.local_address(joined.passive), Some(to));
    assert_eq!(pair.passive.cq.peer_address(joined.passive), Some(from));
}

pub fn a_local_address_can_be_chosen(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let (qp, _) = pair.active.queue_pair(CAPABILITIES);
    let target = pair.active.target();
    let own = rig.connect_address();
    pair.active.cq.connect(qp, pair.address, Some(own), b"", &OPTIONS, target).unwrap();
    pair.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
    let peer = pair.passive.requests[0].peer_address();
    assert_eq!(peer.ip(), own.ip());
    assert_ne!(peer.port(), 0);
    assert_eq!(pair.active.cq.local_address(qp), Some(peer));
}

pub fn private_data_arrives_exactly(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let most = pair.active.device.attributes().private_data;
    let bytes = |length: usize| -> Vec<u8> { (0..length).map(|at| at as u8 ^ 0xa5).collect() };
    let lengths = [0, 1, 24, 25].map(|length| (length, length));
    for (request, reply) in lengths.into_iter().chain([(most.request - 1, 3), (most.request, most.reply)]) {
        let request = bytes(request);
        let reply: Vec<u8> = bytes(reply).into_iter().rev().collect();
        let joined = Joined {
            active: pair.active.queue_pair(CAPABILITIES).0,
            passive: pair.passive.queue_pair(CAPABILITIES).0,
        };
        pair.active.connect(joined.active, pair.address, &request);
        pair.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
        assert_arrived(rig, &private_data(&pair.passive), &request);
        pair.passive.accept(joined.passive, &reply);
        assert_established(rig, &pair.event(joined, false), &reply);
        assert_eq!(pair.event(joined, true), ConnectionEvent::Established { private_data: Vec::new() });
    }
}

pub fn private_data_has_a_limit(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let most = pair.active.device.attributes().private_data;
    let data = vec![0; most.request + 1];
    let (qp, _) = pair.active.queue_pair(CAPABILITIES);
    let target = pair.active.target();
    let answer = pair.active.cq.connect(qp, pair.address, None, &data, &OPTIONS, target);
    assert!(matches!(answer, Err(Error::OutOfRange { .. })), "{answer:?}");
    // The queue pair can still connect.
    pair.active.connect(qp, pair.address, b"");
    pair.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
    let (passive, _) = pair.passive.queue_pair(CAPABILITIES);
    let request = pair.passive.requests.pop_front().unwrap();
    let target = pair.passive.target();
    let data = vec![0; most.reply + 1];
    let answer = pair.passive.cq.accept(passive, request, &data, &OPTIONS, target);
    assert!(matches!(answer, Err(Error::OutOfRange { .. })), "{answer:?}");
}

pub fn a_reject_carries_data(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let most = pair.active.device.attributes().private_data.reject;
    let too_long = vec![7; most + 1];
    for data in [&b""[..], b"not today", &too_long] {
        let (qp, _) = pair.active.queue_pair(CAPABILITIES);
        pair.active.connect(qp, pair.address, b"please");
        pair.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
        pair.passive.requests.pop_front().unwrap().reject(data);
        let joined = Joined { active: qp, passive: qp };
        match pair.event(joined, false) {
            ConnectionEvent::Rejected { private_data } => {
                assert_arrived(rig, &private_data, &data[..data.len().min(most)]);
            }
            other => panic!("{other:?}"),
        }
        pair.drive_until_idle();
        assert!(pair.active.connection_events[&qp].is_empty(), "nothing follows");
    }
}

pub fn connecting_without_a_listener_is_refused(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    pair.passive.listener = None;
    let (qp, _) = pair.active.queue_pair(CAPABILITIES);
    pair.active.connect(qp, pair.address, b"");
    let event = pair.event(Joined { active: qp, passive: qp }, false);
    assert_eq!(event, ConnectionEvent::Failed(ConnectError::Refused));
}

pub fn an_unanswered_request_times_out(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let (qp, _) = pair.active.queue_pair(CAPABILITIES);
    let options = ConnectOptions { timeout: Duration::from_millis(80), ..OPTIONS };
    let target = pair.active.target();
    let start = Instant::now();
    pair.active.cq.connect(qp, pair.address, None, b"", &options, target).unwrap();
    // The other end is never driven.
    let deadline = start + LIMIT;
    while pair.active.connection_events[&qp].is_empty() {
        assert!(pair.active.cq.deadline(qp).is_some(), "the attempt has a deadline");
        step(&mut [&mut pair.active], deadline, "the time-out").unwrap();
    }
    assert!(start.elapsed() >= options.timeout, "too early: {:?}", start.elapsed());
    assert_eq!(pair.active.connection_events[&qp], [ConnectionEvent::Failed(ConnectError::TimedOut(80))]);
    assert_eq!(pair.active.cq.deadline(qp), None);
}

pub fn a_dropped_request_fails(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let (qp, _) = pair.active.queue_pair(CAPABILITIES);
    pair.active.connect(qp, pair.address, b"");
    pair.until("a request", |pair| pair.passive.requests.pop_front().map(drop));
    let event = pair.event(Joined { active: qp, passive: qp }, false);
    let rejected = matches!(event, ConnectionEvent::Rejected { .. }) && !rig.reports_how_it_ended();
    assert!(rejected || event == ConnectionEvent::Failed(ConnectError::Closed), "{event:?}");
}

pub fn an_address_is_bound_once(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let again = pair.passive.device.listen(pair.address, 1, &OPTIONS, pair.passive.target());
    assert!(matches!(again.err(), Some(Error::Io { .. })));
    // The address is free after the listener is dropped.
    pair.passive.listener = None;
    let address = pair.passive.listen(pair.address);
    assert_eq!(address, pair.address);
    pair.join_with_receives();
}

pub fn one_listener_accepts_many(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let active: Vec<_> = (0..8).map(|_| pair.active.queue_pair(CAPABILITIES).0).collect();
    for (number, &qp) in active.iter().enumerate() {
        pair.active.connect(qp, pair.address, &[number as u8]);
    }
    pair.until("all requests", |pair| (pair.passive.requests.len() == active.len()).then_some(()));
    let mut connected = Vec::new();
    while !pair.passive.requests.is_empty() {
        let number = usize::from(private_data(&pair.passive)[0]);
        let (passive, _) = pair.passive.queue_pair(CAPABILITIES);
        pair.passive.post_empty_receives(passive, 1);
        pair.passive.accept(passive, &[number as u8]);
        connected.push((number, Joined { active: active[number], passive }));
    }
    for &(number, joined) in &connected {
        assert_established(rig, &pair.event(joined, false), &[number as u8]);
        assert!(matches!(pair.event(joined, true), ConnectionEvent::Established { .. }));
        pair.assert_works(joined);
    }
}

pub fn a_queue_pair_connects_once(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let target = pair.active.target();
    let again = pair.active.cq.connect(joined.active, pair.address, None, b"", &OPTIONS, target);
    assert!(matches!(again, Err(Error::BadState { .. })), "{again:?}");
    pair.assert_works(joined);
    // The listener got no second request.
    assert!(pair.passive.listener.as_mut().unwrap().poll().is_none());
}
