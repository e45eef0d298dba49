//! Tests of the simulated device only: the properties that its configuration selects.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use rdma_testkit::sim::{self, Config, Fabric};
use rdma_verbs::{
    Access, BreakReason, Buffer, Completion, CompletionKind, CompletionQueue, CompletionStatus, ConnectError,
    ConnectionEvent, Connections, Device, DeviceEvent, Error, EventTarget, Memory, MemoryRegion,
    MessageQueues, Operation, Payload, ProtectionDomain, QueuePairs, RecvRequest, RegionName, RemoteAddress,
    SendRequest, Transport, WaitSet,
};

use rdma_testkit::harness::{
    CAPABILITIES, End, Joined, OPTIONS, Pair, SEND, bytes, pattern, remote, segment, success,
};
use rdma_testkit::rigs::SimRig;
use rdma_testkit::suite::rig::Rig;

fn infiniband_on_a_narrow_wire() -> SimRig {
    SimRig(Config { wire: 1, ..Config::infiniband() })
}

#[test]
fn an_infiniband_message_waits_for_its_receive() {
    let mut pair = Pair::new(&SimRig::infiniband());
    let joined = pair.join(|_, _| {});
    pair.active.post(joined.active, 1, SEND, &[]);
    pair.drive_until_idle();
    assert!(pair.active.completions.is_empty() && pair.passive.completions.is_empty());
    pair.passive.post_empty_receives(joined.passive, 1);
    // A poll suffices, without polling connection events.
    let mut array = [Completion::EMPTY; 2];
    assert_eq!(pair.passive.cq.poll(&mut array), 1);
    assert_eq!(array[0], success(joined.passive, 0, CompletionKind::Recv));
    assert_eq!(pair.at_active(), success(joined.active, 1, CompletionKind::Send));
}

#[test]
fn a_message_does_not_wait_for_a_receive_after_disconnecting() {
    let mut pair = Pair::new(&SimRig::infiniband());
    let joined = pair.join(|_, _| {});
    pair.active.post(joined.active, 1, SEND, &[]);
    pair.drive_until_idle();
    pair.passive.cq.disconnect(joined.passive);
    assert!(matches!(pair.event(joined, true), ConnectionEvent::Broken(BreakReason::Protocol(_))));
    assert!(matches!(pair.event(joined, false), ConnectionEvent::Broken(BreakReason::Terminated(_))));
    assert_eq!(pair.at_active().status, CompletionStatus::ReceiverNotReady);
}

#[test]
fn an_iwarp_message_without_a_receive_breaks_the_connection() {
    let mut pair = Pair::new(&SimRig::iwarp());
    let joined = pair.join(|_, _| {});
    pair.active.post(joined.active, 1, SEND, &[]);
    assert!(matches!(pair.event(joined, true), ConnectionEvent::Broken(BreakReason::Protocol(_))));
    assert!(matches!(pair.event(joined, false), ConnectionEvent::Broken(BreakReason::Terminated(_))));
}

#[test]
fn infiniband_completes_a_request_when_the_peer_has_received_it() {
    for (rig, early) in [(SimRig::infiniband(), false), (SimRig::iwarp(), true)] {
        assert_eq!(rig.0.transport == Transport::Iwarp, early);
        let mut pair = Pair::new(&rig);
        let joined = pair.join_with_receives();
        pair.drive_until_idle();
        pair.active.post(joined.active, 1, SEND, &[]);
        pair.active.poll();
        assert_eq!(!pair.active.completions.is_empty(), early);
        assert_eq!(pair.active.cq.flushed(joined.active), early);
        pair.passive.poll();
        assert!(pair.active.cq.flushed(joined.active));
        assert_eq!(pair.at_active(), success(joined.active, 1, CompletionKind::Send));
    }
}

#[test]
fn infiniband_reports_which_request_was_refused() {
    let mut pair = Pair::new(&SimRig::infiniband());
    let joined = pair.join_with_receives();
    let source = pair.active.region(8, Access::empty());
    let wrong = Operation::Write { remote: RemoteAddress { key: 0, address: 0 }, immediate: None };
    let pieces = [segment(&source, 0, 8)];
    let unsignaled = |id, operation, payload| SendRequest { id, signaled: false, operation, payload };
    let requests = [
        unsignaled(1, SEND, Payload::Segments(&[])),
        unsignaled(2, wrong, Payload::Segments(&pieces)),
        unsignaled(3, SEND, Payload::Segments(&[])),
    ];
    pair.active.cq.post_send(joined.active, &requests, false).unwrap();
    let (refused, flushed) = (pair.at_active(), pair.at_active());
    assert_eq!((refused.id, refused.status), (2, CompletionStatus::RemoteAccess));
    assert_eq!((flushed.id, flushed.status), (3, CompletionStatus::Flushed));
    assert_eq!(pair.at_passive(), success(joined.passive, 0, CompletionKind::Recv));
}

#[test]
fn requests_beyond_the_wire_capacity_stay_in_the_senders_memory() {
    let mut pair = Pair::new(&SimRig::narrow());
    let target = pair.passive.region(8, Access::LOCAL_WRITE);
    let source = pair.active.region(8, Access::empty());
    source.memory().write(0, b"old-old-").unwrap();
    let joined = pair.join(|pair, joined| {
        pair.passive.receive_into(joined.passive, 0, segment(&target, 0, 4));
        pair.passive.receive_into(joined.passive, 1, segment(&target, 4, 4));
    });
    for id in 0..2 {
        pair.active.post(joined.active, id, SEND, &[segment(&source, 4 * id as usize, 4)]);
    }
    // Memory that is changed before the completion is sent as changed.
    source.memory().write(0, b"new-new-").unwrap();
    pair.at_passive();
    pair.at_passive();
    assert_eq!(bytes(&target), b"old-new-");
}

#[test]
fn a_region_dropped_too_early_is_a_local_error() {
    let mut pair = Pair::new(&SimRig::narrow());
    let source = pair.active.region(8, Access::empty());
    let joined = pair.join_with_receives();
    pair.active.post(joined.active, 0, SEND, &[]);
    pair.active.post(joined.active, 1, SEND, &[segment(&source, 0, 8)]);
    pair.active.post(joined.active, 2, SEND, &[]);
    drop(source);
    let ends = [0; 3].map(|_| pair.at_active()).map(|completion| (completion.id, completion.status));
    use CompletionStatus::{Flushed, LocalAccess, Success};
    assert_eq!(ends, [(0, Success), (1, LocalAccess), (2, Flushed)]);
    assert_eq!(pair.event(joined, false), ConnectionEvent::Broken(BreakReason::Aborted));
    assert_eq!(pair.event(joined, true), ConnectionEvent::Broken(BreakReason::Reset));

    let target = pair.passive.region(8, Access::LOCAL_WRITE);
    let joined =
        pair.join(|pair, joined| pair.passive.receive_into(joined.passive, 5, segment(&target, 0, 8)));
    drop(target);
    pair.passive.completions.clear();
    let source = pair.active.region(1, Access::empty());
    pair.active.post(joined.active, 0, SEND, &[segment(&source, 0, 1)]);
    assert_eq!(pair.at_passive().status, LocalAccess);
    assert!(matches!(pair.event(joined, true), ConnectionEvent::Broken(BreakReason::Local(_))));
}

#[test]
fn both_sides_may_end_in_order_at_once() {
    for rig in [SimRig::iwarp(), SimRig::narrow(), SimRig::infiniband(), infiniband_on_a_narrow_wire()] {
        let mut pair = Pair::new(&rig);
        let joined = pair.join(|pair, joined| {
            pair.active.post_empty_receives(joined.active, 8);
            pair.passive.post_empty_receives(joined.passive, 8);
        });
        for id in 0..8 {
            pair.active.post(joined.active, id, SEND, &[]);
            pair.passive.post(joined.passive, id, SEND, &[]);
        }
        pair.active.cq.disconnect(joined.active);
        pair.passive.cq.disconnect(joined.passive);
        assert_eq!(pair.event(joined, true), ConnectionEvent::Disconnected);
        assert_eq!(pair.event(joined, false), ConnectionEvent::Disconnected);
        for _ in 0..16 {
            assert_eq!(pair.at_active().status, CompletionStatus::Success);
            assert_eq!(pair.at_passive().status, CompletionStatus::Success);
        }
    }
}

#[test]
fn a_side_that_disconnected_may_be_destroyed() {
    let mut pair = Pair::new(&infiniband_on_a_narrow_wire());
    let joined = pair.join(|pair, joined| pair.passive.post_empty_receives(joined.passive, 2));
    for id in 0..3 {
        pair.active.post(joined.active, id, SEND, &[]);
    }
    pair.active.cq.disconnect(joined.active);
    pair.passive.cq.disconnect(joined.passive);
    pair.passive.destroy(joined.passive);
    assert_eq!(pair.event(joined, false), ConnectionEvent::Disconnected);
    // It received the first message before it was destroyed.
    use CompletionStatus::{Flushed, Success};
    let ends = [0; 3].map(|_| pair.at_active()).map(|completion| (completion.id, completion.status));
    assert_eq!(ends, [(0, Success), (1, Flushed), (2, Flushed)]);
}

#[test]
fn only_an_armed_queue_is_signaled() {
    let mut pair = Pair::new(&SimRig::infiniband());
    let joined = pair.join_with_receives();
    pair.drive_until_idle();
    let is_readable =
        |pair: &Pair<sim::Device>| pair.passive.data.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap();
    pair.passive.cq.arm().unwrap();
    assert!(!is_readable(&pair));
    pair.active.post(joined.active, 0, SEND, &[]);
    assert!(is_readable(&pair), "it was armed");
    pair.passive.poll();
    pair.passive.cq.arm().unwrap();
    pair.active.post(joined.active, 1, SEND, &[]);
    pair.passive.poll();
    pair.active.post(joined.active, 2, SEND, &[]);
    pair.passive.cq.arm().unwrap();
    assert!(!is_readable(&pair), "a completion from before arming does not wake");
    pair.active.post(joined.active, 3, SEND, &[]);
    assert!(is_readable(&pair));
}

#[test]
fn a_backlog_is_bounded_and_drops_requests_of_peers_that_left() {
    let fabric = Fabric::new();
    let (mut active, mut passive) =
        (End::new(fabric.device(Config::iwarp())), End::new(fabric.device(Config::iwarp())));
    let target = passive.target();
    let listener = passive.device.listen("[::1]:0".parse().unwrap(), 2, &OPTIONS, target).unwrap();
    let address = rdma_verbs::Listener::local_address(&listener);
    passive.listener = Some(listener);
    let queue_pairs: Vec<_> = (0..3).map(|_| active.queue_pair(CAPABILITIES).0).collect();
    for &qp in &queue_pairs {
        active.connect(qp, address, b"");
    }
    active.poll();
    assert!(active.connection_events[&queue_pairs[1]].is_empty());
    assert_eq!(active.connection_events[&queue_pairs[2]], [ConnectionEvent::Failed(ConnectError::Refused)]);
    active.destroy(queue_pairs[0]);
    passive.poll();
    assert_eq!(passive.requests.len(), 1, "the one whose peer did not leave");
    let (qp, _) = passive.queue_pair(CAPABILITIES);
    passive.accept(qp, b"");
    active.poll();
    assert!(matches!(active.connection_events[&queue_pairs[1]][0], ConnectionEvent::Established { .. }));
}

#[test]
fn addresses_follow_the_rules_of_a_network() {
    let fabric = Fabric::new();
    let mut end = End::new(fabric.device(Config::iwarp()));
    let address = end.listen("0.0.0.0:0".parse().unwrap());
    let here = std::net::SocketAddr::from(([127, 0, 0, 1], address.port()));
    // A wildcard listener gets the requests to all addresses of its family on its own fabric.
    let mut stranger = End::new(Fabric::new().device(Config::iwarp()));
    for (end, reaches) in [(&mut end, true), (&mut stranger, false)] {
        let (qp, _) = end.queue_pair(CAPABILITIES);
        end.connect(qp, here, b"");
        end.poll();
        let refused = [ConnectionEvent::Failed(ConnectError::Refused)];
        assert_eq!(end.connection_events[&qp].is_empty(), reaches, "{:?}", end.connection_events[&qp]);
        assert_eq!(end.connection_events[&qp] == refused, !reaches);
    }
    assert_eq!(rdma_verbs::ConnectionRequest::local_address(&end.requests[0]), here);
    // A local address of the other family, and one that is bound already.
    let (qp, _) = end.queue_pair(CAPABILITIES);
    for (local, errno) in [("[::1]:0".parse().unwrap(), libc::EAFNOSUPPORT), (address, libc::EADDRINUSE)] {
        let target = end.target();
        let remote = std::net::SocketAddr::from(([0, 0, 0, 0], 1));
        match end.cq.connect(qp, remote, Some(local), b"", &OPTIONS, target) {
            Err(Error::Io { source, .. }) => assert_eq!(source.raw_os_error(), Some(errno)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn reads_need_depth_on_both_sides() {
    let mut pair = Pair::new(&SimRig::iwarp());
    let (active, _) = pair.active.queue_pair(CAPABILITIES);
    let without = rdma_verbs::QpCapabilities { responder_resources: 0, ..CAPABILITIES };
    let (passive, _) = pair.passive.queue_pair(without);
    pair.active.connect(active, pair.address, b"");
    pair.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
    pair.passive.accept(passive, b"");
    pair.event(Joined { active, passive }, false);
    let target = pair.active.region(8, Access::LOCAL_WRITE);
    let window = pair.passive.region(8, Access::REMOTE_READ);
    let pieces = [segment(&target, 0, 8)];
    let request = SendRequest {
        id: 0,
        signaled: true,
        operation: Operation::Read { remote: remote(&window, 0) },
        payload: Payload::Segments(&pieces),
    };
    let refused = pair.active.cq.post_send(active, &[request], false);
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
}

#[test]
fn queue_pairs_are_limited_by_the_depth_of_the_completion_queue() {
    let device = Fabric::new().device(Config::iwarp());
    assert!(matches!(device.create_cq(0), Err(Error::OutOfRange { .. })));
    let pd = device.alloc_pd().unwrap();
    let mut cq = device.create_cq(63).unwrap();
    let (first, _) = cq.create_qp(&pd, CAPABILITIES).unwrap();
    assert!(matches!(cq.create_qp(&pd, CAPABILITIES), Err(Error::CompletionQueueFull { .. })));
    cq.destroy_qp(first);
    cq.create_qp(&pd, CAPABILITIES).unwrap();
}

#[test]
fn keys_are_valid_only_in_their_domain_and_for_their_use() {
    let device = Fabric::new().device(Config::iwarp());
    let mut end = End::new(device.clone());
    let stranger = End::new(device);
    let (qp, _) = end.queue_pair(CAPABILITIES);
    let (own, foreign) = (end.region(8, Access::all()), stranger.region(8, Access::all()));
    let as_remote = rdma_verbs::Segment { key: own.remote_key(), ..segment(&own, 0, 8) };
    for buffer in [segment(&foreign, 0, 8), as_remote] {
        let refused = end.cq.post_recv(qp, &[RecvRequest { id: 0, buffer: Buffer::Segment(buffer) }]);
        assert!(matches!(refused, Err(Error::BadSegment { .. })), "{refused:?}");
    }
    assert_ne!(own.address(), foreign.address());
}

#[test]
fn the_consumer_may_choose_keys_and_addresses() {
    let device = Fabric::new().device(Config::iwarp());
    let pd = device.alloc_pd().unwrap();
    let register = |key, address| {
        let name = RegionName { key: NonZeroU32::new(key), address };
        pd.register_as(Memory::zeroed(8).unwrap(), Access::all(), name)
    };
    let drawn = pd.register(Memory::zeroed(8).unwrap(), Access::all()).unwrap();
    for key in [drawn.local_key(), drawn.remote_key()] {
        assert!(matches!(register(key, 0), Err(Error::KeyTaken(taken)) if taken == key));
    }
    // A drawn key avoids the chosen ones.
    let next = drawn.remote_key() + 4;
    let chosen = register(next, 5).unwrap();
    assert_eq!((chosen.local_key(), chosen.remote_key(), chosen.address()), (next, next, 5));
    let other = register(0, 7).unwrap();
    assert!(![next, next - 1].contains(&other.remote_key()) && other.address() == 7);
    // It may be used again at once.
    drop(chosen);
    register(next, 6).unwrap();
}

#[test]
fn immediate_data_has_a_number_of_bits() {
    for (immediate, word, fits) in [(32, 1 << 32, false), (32, (1 << 32) - 1, true), (64, u64::MAX, true)] {
        let mut pair = Pair::new(&SimRig(Config { immediate, ..Config::iwarp() }));
        let joined = pair.join_with_receives();
        let operation = Operation::Send { immediate: Some(word), invalidate: None, solicited: false };
        let answer = pair.active.post_inline(joined.active, 1, operation, b"");
        assert_eq!(answer.is_ok(), fits, "{answer:?}");
        if fits {
            assert_eq!(pair.at_passive().immediate, Some(word));
        }
    }
}

#[test]
fn a_shared_receive_whose_completion_is_not_polled_is_posted_again() {
    for rig in [SimRig::iwarp(), SimRig::infiniband()] {
        let mut pair = Pair::new(&rig);
        let srq = pair.passive.cq.create_srq(&pair.passive.pd, 2).unwrap();
        let [first, second] = [0; 2].map(|_| pair.join_messages(Some(srq)));
        let (source, target) = (pair.active.lend(b"twice".to_vec()), pair.passive.lend_blank(20));
        for id in 0..2 {
            pair.passive.receive_shared(srq, id, &[target.part(10 * id as usize, 10)]);
            pair.active.post_places(first.active, id, SEND, &[source.place()]);
        }
        // It takes both messages, and reports none.
        assert_eq!(pair.passive.cq.poll(&mut []), 0);
        let full = RecvRequest { id: 2, buffer: Buffer::Empty };
        let refused = pair.passive.cq.post_srq_recv(srq, &[full]);
        assert!(matches!(refused, Err(Error::QueueFull { room: 0, .. })), "{refused:?}");
        pair.passive.destroy(first.passive);
        for id in 0..2 {
            pair.active.post_places(second.active, 7, SEND, &[source.place()]);
            let expected = Completion { length: 5, ..success(second.passive, id, CompletionKind::Recv) };
            assert_eq!(pair.at_passive(), expected);
        }
    }
}

#[test]
fn devices_with_different_configurations_interoperate() {
    let fabric = Fabric::new();
    struct Mixed(Fabric);
    impl Rig for Mixed {
        type Device = sim::Device;
        fn devices(&self) -> (sim::Device, sim::Device) {
            (self.0.device(Config::infiniband()), self.0.device(Config::iwarp()))
        }
    }
    let mut pair = Pair::new(&Mixed(fabric));
    let window = pair.passive.region(64, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let source = pair.active.region(64, Access::empty());
    source.memory().write(0, &pattern(64, 0)).unwrap();
    let joined = pair.join_with_receives();
    pair.assert_works(joined);
    // The receiver does not support immediate data.
    let write = Operation::Write { remote: remote(&window, 0), immediate: Some(1) };
    pair.active.post(joined.active, 1, write, &[segment(&source, 0, 64)]);
    assert!(matches!(pair.event(joined, true), ConnectionEvent::Broken(BreakReason::Protocol(_))));
    assert_eq!(pair.at_active().status, CompletionStatus::RemoteOperation);
    assert_eq!(bytes(&window), [0; 64]);
}

#[test]
fn device_events_reach_all_who_asked() {
    let device = Fabric::new().device(Config::iwarp());
    device.report(DeviceEvent::Gone);
    let wait = Arc::new(WaitSet::new().unwrap());
    let mut all = [(); 2].map(|()| device.clone().events(EventTarget::new(&wait)).unwrap());
    let reported = [DeviceEvent::PortDown(1), DeviceEvent::PortActive(1)];
    reported.iter().for_each(|&event| device.report(event));
    for events in &mut all {
        assert!(wait.is_readable());
        assert_eq!([(); 3].map(|()| events.poll()), [Some(reported[0]), Some(reported[1]), None]);
    }
    assert!(!wait.is_readable());
    // What nobody polls is bounded.
    (0..100).for_each(|number| device.report(DeviceEvent::Other(number)));
    assert_eq!(all[0].poll(), Some(DeviceEvent::Other(36)));
    drop(all);
    assert!(!wait.is_readable());
}
