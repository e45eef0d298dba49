//! The ends of connections: orderly, by an abort, and by the loss of a side.

use std::time::{Duration, Instant};

use rdma_verbs::{
    Access, BreakReason, Buffer, CompletionKind, CompletionStatus, ConnectionEvent, Connections, Device,
    Error, MemoryRegion, Operation, Payload, QueuePairs, RecvRequest, SendRequest,
};

use super::rig::Rig;
use crate::harness::{Joined, LIMIT, Pair, SEND, bytes, pattern, remote, segment, success};

/// Asserts that the passive end gets `count` flushed receives in order.
fn assert_flushed<D: Device>(pair: &mut Pair<D>, first: u64, count: u64) {
    for id in first..first + count {
        let completion = pair.at_passive();
        assert_eq!((completion.id, completion.status), (id, CompletionStatus::Flushed));
    }
}

pub fn an_orderly_end_loses_nothing(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let size = 300_000;
    let window = pair.passive.region(size, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let source = pair.active.region(size, Access::empty());
    source.memory().write(0, &pattern(size, 6)).unwrap();
    for part in 0..6 {
        let place = part * size / 6;
        let write = Operation::Write { remote: remote(&window, place), immediate: None };
        pair.active.post(joined.active, 0, write, &[segment(&source, place, size / 6)]);
        pair.active.post(joined.active, 1, SEND, &[]);
    }
    pair.active.cq.disconnect(joined.active);
    for id in 0..6 {
        assert_eq!(pair.at_passive(), success(joined.passive, id, CompletionKind::Recv));
    }
    assert!(bytes(&window) == pattern(size, 6));
    assert_eq!(pair.event(joined, true), ConnectionEvent::Disconnected);
    assert_flushed(&mut pair, 6, 10);
    for _ in 0..12 {
        assert_eq!(pair.at_active().status, CompletionStatus::Success);
    }
    pair.drive_until_idle();
    assert!(pair.passive.connection_events[&joined.passive].is_empty(), "nothing follows");
    let events = &pair.active.connection_events[&joined.active];
    assert!(
        events.iter().all(|event| *event == ConnectionEvent::Disconnected) && events.len() <= 1,
        "{events:?}"
    );
}

pub fn messages_after_disconnecting_are_received(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    if !rig.closes_directions_separately() {
        let joined = pair.join_with_receives();
        return pair.assert_works(joined);
    }
    let joined = pair.join(|pair, joined| pair.active.post_empty_receives(joined.active, 4));
    // The active side sends first, as iWARP requires.
    pair.passive.post_empty_receives(joined.passive, 1);
    pair.assert_works(joined);
    pair.active.cq.disconnect(joined.active);
    // The passive side was not driven since, so it has not noticed the end.
    pair.passive.post(joined.passive, 9, SEND, &[]);
    assert_eq!(pair.at_active(), success(joined.active, 0, CompletionKind::Recv));
    assert_eq!(pair.event(joined, true), ConnectionEvent::Disconnected);
}

pub fn receives_are_flushed(rig: &impl Rig) {
    for abort in [false, true] {
        let mut pair = Pair::new(rig);
        let joined = pair.join_with_receives();
        pair.assert_works(joined);
        if abort {
            pair.passive.cq.abort(joined.passive);
        } else {
            pair.active.cq.disconnect(joined.active);
        }
        assert_flushed(&mut pair, 1, 15);
        pair.drive_until_idle();
        assert!(pair.passive.completions.is_empty(), "each comes back once");
    }
}

pub fn what_is_posted_after_an_unread_end_is_flushed(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    pair.assert_works(joined);
    pair.active.cq.disconnect(joined.active);
    // The passive side is not driven, so it does not know what its device may know already.
    for _ in 0..20 {
        pair.active.poll();
        std::thread::sleep(Duration::from_millis(10));
    }
    pair.passive.cq.post_recv(joined.passive, &[RecvRequest { id: 16, buffer: Buffer::Empty }]).unwrap();
    let request = SendRequest { id: 99, signaled: true, operation: SEND, payload: Payload::Segments(&[]) };
    let mut sends = usize::from(pair.passive.cq.post_send(joined.passive, &[request], false).is_ok());
    let mut receives = 1..17;
    while sends > 0 || !receives.is_empty() {
        let completion = pair.at_passive();
        if completion.kind == CompletionKind::Send {
            assert_eq!(completion.id, 99);
            sends = sends.checked_sub(1).expect("a completion for each send");
        } else {
            assert_eq!(
                (Some(completion.id), completion.status),
                (receives.next(), CompletionStatus::Flushed)
            );
        }
    }
    pair.drive_until_idle();
    assert!(pair.passive.completions.is_empty(), "each comes back once");
}

pub fn nothing_is_posted_after_disconnecting(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let request = SendRequest { id: 0, signaled: true, operation: SEND, payload: Payload::Segments(&[]) };
    pair.active.cq.disconnect(joined.active);
    let refused = pair.active.cq.post_send(joined.active, &[request], false);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
    let refused = pair.active.cq.post_recv(joined.active, &[RecvRequest { id: 0, buffer: Buffer::Empty }]);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
    assert_eq!(pair.event(joined, true), ConnectionEvent::Disconnected);
    let refused = pair.passive.cq.post_send(joined.passive, &[request], false);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
    // A second call changes nothing.
    pair.active.cq.disconnect(joined.active);
    pair.passive.cq.disconnect(joined.passive);
    pair.drive_until_idle();
    assert!(pair.passive.connection_events[&joined.passive].is_empty());
}

pub fn an_abort_breaks_both_sides(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let bystander = pair.join_with_receives();
    let joined = pair.join_with_receives();
    pair.active.post(joined.active, 0, SEND, &[]);
    pair.active.cq.abort(joined.active);
    assert_eq!(pair.event(joined, false), ConnectionEvent::Broken(BreakReason::Aborted));
    let event = pair.event(joined, true);
    assert!(rig.is_break(&event), "{event:?}");
    let request = SendRequest { id: 0, signaled: true, operation: SEND, payload: Payload::Segments(&[]) };
    let refused = pair.active.cq.post_send(joined.active, &[request], false);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
    pair.drive_until_idle();
    assert!(pair.active.connection_events[&joined.active].is_empty(), "nothing follows");
    assert!(pair.passive.connection_events[&joined.passive].is_empty(), "nothing follows");
    pair.active.completions.clear();
    pair.passive.completions.clear();
    pair.assert_works(bystander);
}

pub fn a_destroyed_queue_pair_reports_nothing(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let bystander = pair.join_with_receives();
    let joined = pair.join_with_receives();
    pair.active.post(joined.active, 5, SEND, &[]);
    pair.active.destroy(joined.active);
    let event = pair.event(joined, true);
    assert!(rig.is_break(&event), "{event:?}");
    pair.drive_until_idle();
    assert!(pair.active.completions.is_empty(), "its outstanding requests never complete");
    let Joined { passive, .. } = joined;
    pair.passive.destroy(passive);
    pair.passive.completions.clear();
    pair.assert_works(bystander);
}

pub fn a_dropped_queue_breaks_its_connections(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let connections = [pair.join_with_receives(), pair.join_with_receives()];
    let fresh = pair.active.device.create_cq(64).unwrap();
    drop(std::mem::replace(&mut pair.active.cq, fresh));
    pair.active.connection_events.clear();
    for joined in connections {
        let event = pair.event(joined, true);
        assert!(rig.is_break(&event), "{event:?}");
    }
}

pub fn everything_is_flushed_in_the_end(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    assert!(pair.active.cq.flushed(joined.active), "nothing was posted");
    let size = 200_000;
    let window = pair.passive.region(size, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let source = pair.active.region(size, Access::empty());
    for id in 0..8 {
        let write = Operation::Write { remote: remote(&window, 0), immediate: None };
        pair.active.post(joined.active, id, write, &[segment(&source, 0, size)]);
    }
    pair.active.post(joined.active, 8, SEND, &[]);
    let deadline = Instant::now() + LIMIT;
    while !pair.active.cq.flushed(joined.active) {
        assert!(Instant::now() < deadline, "waited in vain for everything to be flushed");
        pair.active.poll();
        pair.passive.poll();
        std::thread::sleep(Duration::from_millis(1));
    }
    // Destroying this side loses nothing now.
    pair.active.destroy(joined.active);
    let first = pair.at_passive();
    assert_eq!(first, success(joined.passive, 0, CompletionKind::Recv));
}
