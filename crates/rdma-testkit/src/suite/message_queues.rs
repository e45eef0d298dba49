//! Queue pairs for messages, and shared receive queues. A device without them refuses to create one.

use rdma_verbs::{
    Access, Buffer, Completion, CompletionKind, CompletionStatus, ConnectionEvent, Connections, Device,
    Error, MemoryRegion, MessageQueues, Operation, Payload, Place, QueuePairs, RecvQueue, RecvRequest,
    SendRequest, SrqId, Transport,
};

use super::rig::Rig;
use crate::harness::{CAPABILITIES, Joined, Pair, SEND, bytes, pattern, remote, success};

use CompletionKind::{Read, Recv, RecvWrite, Send, Write};

/// Two ends of devices with queue pairs for messages.
fn message_pair<R: Rig>(rig: &R) -> Option<Pair<R::Device>> {
    let mut pair = Pair::new(rig);
    if pair.active.device.attributes().max_places > 0 {
        return Some(pair);
    }
    let active = &mut pair.active;
    let refused = active.cq.create_message_qp(&active.pd, CAPABILITIES, None);
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    None
}

/// Whether the devices follow the rules of the embedded device, not those of RDMA devices.
fn is_as_embedded<D: Device>(pair: &Pair<D>) -> bool {
    pair.active.device.attributes().transport == Transport::Iwarp
}

/// Immediate data of as many bits as the device has; `None`: it has none.
fn immediate<D: Device>(pair: &Pair<D>) -> Option<u64> {
    0x89ab_cdef_0123_4567_u64.checked_shr(64 - u32::from(pair.active.device.attributes().immediate))
}

fn send(immediate: Option<u64>) -> Operation {
    Operation::Send { immediate, invalidate: None, solicited: false }
}

/// The completion of a receive of so many bytes.
fn received<D: Device>(pair: &mut Pair<D>, joined: Joined, id: u64, length: usize) {
    let expected = Completion { length: length as u32, ..success(joined.passive, id, Recv) };
    assert_eq!(pair.at_passive(), expected);
}

/// Asserts that a message from the active to the passive side arrives in a receive that is posted now.
fn assert_works<D: Device>(pair: &mut Pair<D>, joined: Joined) {
    let target = pair.passive.lend_blank(8);
    pair.passive.receive_in(joined.passive, 4711, &[target.place()]);
    let source = pair.active.lend(b"works".to_vec());
    pair.active.post_places(joined.active, 4712, SEND, &[source.place()]);
    received(pair, joined, 4711, 5);
    assert_eq!(pair.at_active(), success(joined.active, 4712, Send));
    assert_eq!(target.bytes()[..5], *b"works");
}

pub fn messages_go_from_places_to_places(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let (joined, word) = (pair.join_messages(None), immediate(&pair));
    for (id, length) in (0..).zip([0, 1, 5, 64, 1000, 65_537]) {
        let (source, target) = (pair.active.lend(pattern(length, 3)), pair.passive.lend_blank(length + 4));
        let (half, third) = (length / 2, length / 3);
        pair.passive.receive_in(
            joined.passive,
            id,
            &[target.part(1, third), target.part(1 + third, length + 1 - third)],
        );
        let places = [source.part(half, length - half), source.part(0, half)];
        pair.active.post_places(joined.active, 10 + id, send(word), &places);
        let expected = Completion { length: length as u32, ..success(joined.passive, id, Recv) };
        assert_eq!(pair.at_passive(), Completion { immediate: word, ..expected });
        assert_eq!(pair.at_active(), success(joined.active, 10 + id, Send));
        let sent = pattern(length, 3);
        assert!(target.bytes()[1..=length] == [&sent[half..], &sent[..half]].concat());
        assert!(target.is_blank(0..1) && target.is_blank(length + 1..length + 4), "nothing else is touched");
    }
    // Inline payload, to a receive without places.
    pair.passive.cq.post_recv(joined.passive, &[RecvRequest { id: 1, buffer: Buffer::Empty }]).unwrap();
    pair.active.post_inline(joined.active, 2, SEND, b"").unwrap();
    received(&mut pair, joined, 1, 0);
}

pub fn messages_wait_for_their_receives(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let joined = pair.join_messages(None);
    let source = pair.active.lend(pattern(100, 1));
    for id in 0..3 {
        pair.active.post_places(joined.active, id, SEND, &[source.part(10 * id as usize, 10)]);
    }
    pair.drive_until_idle();
    assert!(pair.passive.completions.is_empty() && pair.passive.cq.stalls(joined.passive) <= 1);
    let target = pair.passive.lend_blank(30);
    for id in 0..3 {
        pair.passive.receive_in(joined.passive, id, &[target.part(10 * id as usize, 10)]);
    }
    for id in 0..3 {
        received(&mut pair, joined, id, 10);
        assert_eq!(pair.at_active(), success(joined.active, id, Send));
    }
    assert_eq!(target.bytes(), pattern(100, 1)[..30]);
    assert_works(&mut pair, joined);
}

pub fn a_message_too_long_is_cut_or_breaks_the_connection(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let joined = pair.join_messages(None);
    let (source, target) = (pair.active.lend(pattern(10, 1)), pair.passive.lend_blank(8));
    pair.passive.receive_in(joined.passive, 1, &[target.part(1, 2), target.part(3, 4)]);
    pair.active.post_places(joined.active, 2, SEND, &[source.place()]);
    let cut = pair.at_passive();
    assert!(target.is_blank(0..1) && target.is_blank(7..8), "nothing beyond the receive is touched");
    if is_as_embedded(&pair) {
        assert_eq!((cut.id, cut.status, cut.length), (1, CompletionStatus::Truncated, 10));
        assert_eq!(target.bytes()[1..7], pattern(10, 1)[..6]);
        assert_eq!(pair.at_active(), success(joined.active, 2, Send));
        return assert_works(&mut pair, joined);
    }
    assert_eq!((cut.id, cut.status), (1, rig.truncated_status()));
    assert!(rig.is_break(&pair.event(joined, true)));
    assert!(rig.is_break(&pair.event(joined, false)));
}

pub fn writes_with_immediate_data_are_reported(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let (joined, word) = (pair.join_messages(None), immediate(&pair));
    let window = pair.passive.region(16, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let source = pair.active.lend(b"written!".to_vec());
    let write = Operation::Write { remote: remote(&window, 4), immediate: word };
    pair.passive.cq.post_recv(joined.passive, &[RecvRequest { id: 1, buffer: Buffer::Empty }]).unwrap();
    pair.active.post_places(joined.active, 2, write, &[source.part(4, 4), source.part(0, 4)]);
    assert_eq!(pair.at_active(), success(joined.active, 2, Write));
    let id = if is_as_embedded(&pair) { Completion::NO_RECEIVE } else { 1 };
    if word.is_some() {
        let expected = Completion { length: 8, immediate: word, ..success(joined.passive, id, RecvWrite) };
        assert_eq!(pair.at_passive(), expected);
    }
    // The receive is still there, or another one is needed.
    if id == 1 {
        pair.passive.cq.post_recv(joined.passive, &[RecvRequest { id: 1, buffer: Buffer::Empty }]).unwrap();
    }
    pair.active.post_places(joined.active, 3, SEND, &[]);
    received(&mut pair, joined, 1, 0);
    assert_eq!(bytes(&window), *b"\0\0\0\0ten!writ\0\0\0\0");
}

pub fn held_writes_wait(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let (joined, word) = (pair.join_messages(None), immediate(&pair));
    if word.is_none() || !is_as_embedded(&pair) {
        // Receives bound what arrives.
        pair.passive.cq.hold_writes(joined.passive, true);
        return assert_works(&mut pair, joined);
    }
    let window = pair.passive.region(16, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let (source, target) = (pair.active.lend(pattern(16, 1)), pair.passive.lend_blank(16));
    let write = |immediate| Operation::Write { remote: remote(&window, 0), immediate };
    pair.passive.receive_in(joined.passive, 1, &[target.part(0, 8)]);
    for round in 0..3 {
        pair.passive.cq.hold_writes(joined.passive, true);
        // A write without immediate data passes, and all that follows one with it waits.
        for (id, operation) in (0..).zip([write(None), write(word), write(word), SEND]) {
            pair.active.post_places(joined.active, id, operation, &[source.part(4 * id as usize, 4)]);
        }
        pair.drive_until_idle();
        // A receive that is posted meanwhile changes nothing.
        pair.passive.receive_in(joined.passive, 1, &[target.part(0, 8)]);
        pair.drive_until_idle();
        assert!(pair.passive.completions.is_empty(), "round {round}");
        assert_eq!(pair.passive.cq.stalls(joined.passive), round + 1);
        pair.passive.cq.hold_writes(joined.passive, false);
        for _ in 0..2 {
            let id = Completion::NO_RECEIVE;
            let expected =
                Completion { length: 4, immediate: word, ..success(joined.passive, id, RecvWrite) };
            assert_eq!(pair.at_passive(), expected);
        }
        received(&mut pair, joined, 1, 4);
        assert_eq!(target.bytes()[..4], pattern(16, 1)[12..]);
        for (id, kind) in (0..).zip([Write, Write, Write, Send]) {
            assert_eq!(pair.at_active(), success(joined.active, id, kind));
        }
    }
    // What is held when the connection ends is not reported.
    pair.passive.cq.hold_writes(joined.passive, true);
    pair.active.post_places(joined.active, 1, write(word), &[source.part(0, 4)]);
    pair.drive_until_idle();
    pair.passive.cq.disconnect(joined.passive);
    pair.passive.cq.hold_writes(joined.passive, false);
    pair.drive_until_idle();
    assert_eq!(
        pair.at_passive(),
        Completion { status: CompletionStatus::Flushed, ..success(joined.passive, 1, Recv) }
    );
    assert!(pair.passive.completions.is_empty());
}

pub fn accesses_of_the_peer_are_counted(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let (joined, word) = (pair.join_messages(None), immediate(&pair));
    let Some(accesses) = pair.passive.cq.count_accesses(joined.passive) else {
        return assert!(!is_as_embedded(&pair));
    };
    // What the side that has accepted sends first may be a write of no bytes.
    let small = pair.active.region(1, Access::REMOTE_WRITE);
    let own = pair.active.cq.count_accesses(joined.active).expect("the other side has them, too");
    let write = Operation::Write { remote: remote(&small, 0), immediate: None };
    pair.passive.post_places(joined.passive, 1, write, &[]);
    assert_eq!(pair.at_passive(), success(joined.passive, 1, Write));
    pair.drive_until_idle();
    assert_eq!((own.writes(), own.reads()), (1, 0));
    let window = pair.passive.region(70_000, Access::REMOTE_READ | Access::REMOTE_WRITE);
    let bytes = pair.active.lend(pattern(70_000, 1));
    let remote = remote(&window, 0);
    let write = |immediate| Operation::Write { remote, immediate };
    let operations = [
        (write(None), 70_000, (1, 0)),
        (write(word), 5, (2, 0)),
        (write(None), 0, (3, 0)),
        (Operation::Read { remote }, 70_000, (3, 1)),
        (Operation::Read { remote }, 0, (3, 1)),
        (Operation::Read { remote }, 1, (3, 2)),
    ];
    for (operation, length, (writes, reads)) in operations {
        pair.active.post_places(joined.active, 1, operation, &[bytes.part(0, length)]);
        let kind = if matches!(operation, Operation::Read { .. }) { Read } else { Write };
        assert_eq!(pair.at_active(), success(joined.active, 1, kind));
        pair.drive_until_idle();
        assert_eq!((accesses.writes(), accesses.reads()), (writes, reads));
    }
}

pub fn reads_fill_places(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let joined = pair.join_messages(None);
    let window = pair.passive.region(1000, Access::REMOTE_READ);
    window.memory().write(0, &pattern(1000, 7)).unwrap();
    let target = pair.active.lend_blank(902);
    let (read, places) =
        (Operation::Read { remote: remote(&window, 50) }, [target.part(1, 300), target.part(301, 600)]);
    pair.active.post_places(joined.active, 1, read, &places);
    assert_eq!(pair.at_active(), success(joined.active, 1, Read));
    assert_eq!(target.bytes()[1..901], pattern(1000, 7)[50..950]);
    assert!(target.is_blank(0..1) && target.is_blank(901..902));
}

pub fn receives_are_cancelled(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let srq = shared_queue(&mut pair);
    let own = pair.join_messages(None);
    let target = pair.passive.lend_blank(40);
    let part = |at: usize| [target.part(10 * at, 10)];
    let queues = [Some(RecvQueue::Own(own.passive)), srq.map(RecvQueue::Shared)];
    for queue in queues.into_iter().flatten() {
        let joined = match queue {
            RecvQueue::Own(_) => own,
            RecvQueue::Shared(_) => pair.join_messages(srq),
        };
        target.clear();
        for (at, id) in [5, 6, 5, 6].into_iter().enumerate() {
            match queue {
                RecvQueue::Own(qp) => pair.passive.receive_in(qp, id, &part(at)),
                RecvQueue::Shared(srq) => pair.passive.receive_shared(srq, id, &part(at)),
            }
        }
        // The newest one with this id.
        assert_eq!(pair.passive.cq.cancel_recv(queue, 5), rig.cancels_receives());
        assert!(!pair.passive.cq.cancel_recv(queue, 7), "there is none");
        let source = pair.active.lend(b"message".to_vec());
        let order: &[_] = if rig.cancels_receives() {
            &[(5, 0), (6, 1), (6, 3)]
        } else {
            &[(5, 0), (6, 1), (5, 2), (6, 3)]
        };
        for &(id, at) in order {
            pair.active.post_places(joined.active, 1, SEND, &[source.place()]);
            received(&mut pair, joined, id, 7);
            assert_eq!(pair.at_active(), success(joined.active, 1, Send));
            assert_eq!(target.bytes()[10 * at..10 * at + 7], *b"message");
        }
        assert_eq!(target.is_blank(20..30), rig.cancels_receives());
        assert!(!pair.passive.cq.cancel_recv(queue, 6), "messages took them");
    }
}

/// A shared receive queue of the passive side, if its device has them.
fn shared_queue<D: Device>(pair: &mut Pair<D>) -> Option<SrqId> {
    let passive = &mut pair.passive;
    let created = passive.cq.create_srq(&passive.pd, 8);
    match passive.device.attributes().max_srq_depth {
        0 => {
            assert!(matches!(created, Err(Error::Unsupported(_))), "{created:?}");
            None
        }
        _ => Some(created.unwrap()),
    }
}

pub fn connections_share_receives(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let Some(srq) = shared_queue(&mut pair) else { return };
    let connections = [0; 3].map(|_| pair.join_messages(Some(srq)));
    let (source, target) = (pair.active.lend(pattern(60, 2)), pair.passive.lend_blank(60));
    for id in 0..6 {
        pair.passive.receive_shared(srq, id, &[target.part(10 * id as usize, 10)]);
    }
    for id in 0..6 {
        let joined = connections[[1, 0, 2, 2, 0, 1][id]];
        pair.active.post_places(joined.active, id as u64, SEND, &[source.part(10 * id, 10)]);
        received(&mut pair, joined, id as u64, 10);
        pair.at_active();
    }
    assert_eq!(target.bytes(), pattern(60, 2));
    // One that waits is served by what is posted for all.
    pair.active.post_places(connections[1].active, 7, SEND, &[source.part(0, 3)]);
    pair.drive_until_idle();
    assert!(pair.passive.completions.is_empty());
    pair.passive.receive_shared(srq, 8, &[target.part(0, 10)]);
    received(&mut pair, connections[1], 8, 3);

    let requests = [RecvRequest { id: 0, buffer: Buffer::Empty }; 9];
    let refused = pair.passive.cq.post_srq_recv(srq, &requests);
    assert!(matches!(refused, Err(Error::QueueFull { .. })), "{refused:?}");
    let refused = pair.passive.cq.post_recv(connections[0].passive, &requests[..1]);
    assert!(refused.is_err(), "it has no receives of its own");
    let refused = pair.passive.cq.destroy_srq(srq);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
    connections.iter().for_each(|joined| pair.passive.destroy(joined.passive));
    pair.passive.cq.destroy_srq(srq).unwrap();
    let refused = pair.passive.cq.post_srq_recv(srq, &requests[..1]);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
}

pub fn shared_receives_outlive_their_connections(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let Some(srq) = shared_queue(&mut pair) else { return };
    let [first, second, last] = [0; 3].map(|_| pair.join_messages(Some(srq)));
    let (source, target) = (pair.active.lend(b"late".to_vec()), pair.passive.lend_blank(20));
    pair.passive.receive_shared(srq, 1, &[target.part(0, 10)]);
    pair.passive.receive_shared(srq, 2, &[target.part(10, 10)]);
    pair.active.cq.abort(first.active);
    assert!(rig.is_break(&pair.event(first, true)));
    pair.passive.destroy(second.passive);
    pair.drive_until_idle();
    assert!(pair.passive.completions.is_empty(), "they are not flushed");
    pair.active.completions.clear();
    for id in 1..=2 {
        pair.active.post_places(last.active, id, SEND, &[source.place()]);
        received(&mut pair, last, id, 4);
    }
    assert_eq!(target.bytes()[10..14], *b"late");
}

pub fn nothing_is_received_after_disconnecting(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    if !rig.closes_directions_separately() {
        return;
    }
    for waits in [false, true] {
        let joined = pair.join_messages(None);
        let (source, target) = (pair.active.lend(b"too late".to_vec()), pair.passive.lend_blank(10));
        let answer = pair.active.lend_blank(10);
        if waits {
            pair.active.post_places(joined.active, 1, SEND, &[source.place()]);
            pair.drive_until_idle();
        } else {
            pair.passive.receive_in(joined.passive, 2, &[target.place()]);
        }
        pair.active.receive_in(joined.active, 3, &[answer.place()]);
        let last = pair.passive.lend(b"last".to_vec());
        pair.passive.post_places(joined.passive, 4, SEND, &[last.place()]);
        pair.passive.cq.disconnect(joined.passive);
        if !waits {
            pair.active.post_places(joined.active, 1, SEND, &[source.place()]);
        }
        assert_eq!(pair.event(joined, false), ConnectionEvent::Disconnected);
        assert_eq!(pair.event(joined, true), ConnectionEvent::Disconnected);
        assert_eq!(answer.bytes()[..4], *b"last");
        pair.drive_until_idle();
        let receives: Vec<_> = pair.passive.completions.iter().filter(|one| one.kind == Recv).collect();
        let is_flushed = |one: &&Completion| one.status == CompletionStatus::Flushed;
        assert!(receives.iter().all(is_flushed) && receives.len() == usize::from(!waits));
        assert!(target.is_blank(0..10));
        pair.passive.completions.clear();
        pair.active.completions.clear();
    }
}

pub fn reads_under_way_when_this_side_disconnects_are_flushed(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    if !rig.closes_directions_separately() {
        return;
    }
    let joined = pair.join_messages(None);
    let window = pair.passive.region(8, Access::REMOTE_READ);
    let target = pair.active.lend_blank(8);
    let read = Operation::Read { remote: remote(&window, 0) };
    // More than may be outstanding.
    let number = u64::from(CAPABILITIES.initiator_depth) + 2;
    for id in 0..number {
        pair.active.post_places(joined.active, id, read, &[target.part(id as usize, 1)]);
    }
    let (source, message) = (pair.active.lend(b"behind".to_vec()), pair.passive.lend_blank(6));
    pair.passive.receive_in(joined.passive, 1, &[message.place()]);
    pair.active.post_places(joined.active, number, SEND, &[source.place()]);
    pair.active.cq.disconnect(joined.active);
    assert_eq!(pair.event(joined, true), ConnectionEvent::Disconnected);
    assert_eq!(pair.event(joined, false), ConnectionEvent::Disconnected);
    received(&mut pair, joined, 1, 6);
    assert_eq!(message.bytes(), b"behind");
    for id in 0..=number {
        let flushed = pair.at_active();
        assert_eq!((flushed.id, flushed.status), (id, CompletionStatus::Flushed));
    }
    assert!(target.is_blank(0..8), "responses are dropped");
}

pub fn requests_have_a_number_of_places(rig: &impl Rig) {
    let Some(mut pair) = message_pair(rig) else { return };
    let joined = pair.join_messages(None);
    let lent = pair.active.lend(vec![1; 64]);
    let most = pair.active.device.attributes().max_places;
    let places: Vec<Place> = (0..=most).map(|at| lent.part(at, 1)).collect();
    let receive = RecvRequest { id: 1, buffer: Buffer::Places(&places) };
    let refused = pair.active.cq.post_recv(joined.active, &[receive]);
    assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
    let request = SendRequest { id: 2, signaled: true, operation: SEND, payload: Payload::Places(&places) };
    let first = SendRequest { payload: Payload::Places(&places[1..]), ..request };
    let refused = pair.active.cq.post_send(joined.active, &[first, request], false);
    assert!(matches!(refused, Err(Error::OutOfRange { .. })), "{refused:?}");
    // None of them was posted, and as many as there may be are no error.
    let target = pair.passive.lend_blank(64);
    pair.passive.receive_in(joined.passive, 3, &[target.place()]);
    pair.active.post_places(joined.active, 4, SEND, &places[..most]);
    received(&mut pair, joined, 3, most);
}
