//! Posting, queue depths, and completions.

use std::io::IoSlice;

use rdma_verbs::{
    ANY_DEPTH, Access, Buffer, Completion, CompletionKind, CompletionQueue, CompletionStatus, Connections,
    Device, Error, MemoryRegion, Operation, Payload, QpCapabilities, QpId, QueuePairs, RecvRequest, Segment,
    SendRequest,
};

use super::rig::Rig;
use crate::harness::{CAPABILITIES, End, Pair, SEND, bytes, pattern, remote, segment, success};

const NOTHING: Payload<'static> = Payload::Segments(&[]);

fn sends(count: u64, signaled: bool) -> Vec<SendRequest<'static>> {
    (0..count).map(|id| SendRequest { id, signaled, operation: SEND, payload: NOTHING }).collect()
}

pub fn sends_are_posted_all_or_none(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    // The granted depth may be more than the requested one.
    let (probe, granted) = pair.active.queue_pair(CAPABILITIES);
    pair.active.destroy(probe);
    let depth = u64::from(granted.send_depth);
    let refused = pair.active.cq.post_send(joined.active, &sends(depth + 1, true), false);
    assert!(matches!(refused, Err(Error::QueueFull { .. })), "{refused:?}");
    pair.drive_until_idle();
    assert!(pair.passive.completions.is_empty(), "none was sent");
    for request in sends(16, true) {
        pair.active.cq.post_send(joined.active, &[request], false).unwrap();
    }
    if depth == 16 {
        // Requests occupy the queue until their completions are polled.
        let refused = pair.active.cq.post_send(joined.active, &sends(1, true), false);
        assert!(matches!(refused, Err(Error::QueueFull { depth: 16, room: 0, asked: 1 })), "{refused:?}");
    }
    for id in 0..16 {
        assert_eq!(pair.at_active(), success(joined.active, id, CompletionKind::Send));
        assert_eq!(pair.at_passive(), success(joined.passive, id, CompletionKind::Recv));
    }
    pair.passive.post_empty_receives(joined.passive, 16);
    pair.active.cq.post_send(joined.active, &sends(16, true), false).unwrap();
    for _ in 0..16 {
        pair.at_passive();
    }
    pair.active.cq.post_send(joined.active, &[], false).unwrap();
}

pub fn receives_are_posted_all_or_none(rig: &impl Rig) {
    let mut end = End::new(rig.devices().0);
    let (qp, granted) = end.queue_pair(CAPABILITIES);
    let requests = vec![RecvRequest { id: 0, buffer: Buffer::Empty }; granted.recv_depth as usize + 1];
    let refused = end.cq.post_recv(qp, &requests);
    assert!(matches!(refused, Err(Error::QueueFull { .. })), "{refused:?}");
    end.cq.post_recv(qp, &requests[1..]).unwrap();
    let refused = end.cq.post_recv(qp, &requests[..1]);
    assert!(matches!(refused, Err(Error::QueueFull { room: 0, asked: 1, .. })), "{refused:?}");
    end.cq.post_recv(qp, &[]).unwrap();
}

pub fn only_signaled_successes_are_reported(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    for round in 0..10 {
        // Fifteen unsignaled requests and one signaled request fill the queue.
        let mut requests = sends(16, false);
        requests[15].signaled = true;
        pair.active.cq.post_send(joined.active, &requests, false).unwrap();
        assert_eq!(pair.at_active(), success(joined.active, 15, CompletionKind::Send), "round {round}");
        for id in 0..16 {
            assert_eq!(pair.at_passive().id, id, "round {round}");
        }
        pair.passive.post_empty_receives(joined.passive, 16);
    }
    pair.drive_until_idle();
    assert!(pair.active.completions.is_empty());
}

pub fn inline_payload_has_a_limit_and_is_copied_at_once(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let (probe, granted) = pair.active.queue_pair(CAPABILITIES);
    pair.active.destroy(probe);
    let target = pair.passive.region(256 + granted.inline, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let joined = pair.join(|pair, joined| {
        let buffer = segment(&target, 0, target.memory().len());
        pair.passive.receive_into(joined.passive, 0, buffer);
        pair.passive.receive_into(joined.passive, 1, buffer);
    });
    let too_long = vec![0; granted.inline + 1];
    for operation in [SEND, Operation::Write { remote: remote(&target, 0), immediate: None }] {
        let refused = pair.active.post_inline(joined.active, 0, operation, &too_long);
        assert!(matches!(refused, Err(Error::InlineTooLong { .. })), "{refused:?}");
    }
    // The longest payload, in several slices. Their memory is overwritten before anything is driven.
    let mut payload = pattern(granted.inline, 4);
    let (head, tail) = payload.split_at(granted.inline / 3);
    let slices = [IoSlice::new(head), IoSlice::new(&[]), IoSlice::new(tail)];
    let request = SendRequest { id: 7, signaled: true, operation: SEND, payload: Payload::Inline(&slices) };
    pair.active.cq.post_send(joined.active, &[request], false).unwrap();
    payload.fill(0);
    let completion = pair.at_passive();
    assert_eq!((completion.id, completion.length as usize), (0, granted.inline));
    assert_eq!(bytes(&target)[..granted.inline], pattern(granted.inline, 4));
    assert_eq!(pair.at_active(), success(joined.active, 7, CompletionKind::Send));
    pair.assert_works(joined);
}

pub fn local_segments_are_checked(rig: &impl Rig) {
    if !rig.checks_segments() {
        return wrong_segments_fail(rig);
    }
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let region = pair.active.region(64, Access::LOCAL_WRITE);
    let unwritable = pair.active.region(64, Access::empty());
    let window = pair.passive.region(64, Access::REMOTE_READ);
    let dead = pair.active.region(64, Access::LOCAL_WRITE);
    let dead_segment = segment(&dead, 0, 8);
    drop(dead);
    let good = segment(&region, 0, 8);
    let bad = [
        ("key", Segment { key: good.key ^ 0x5a5a_5a00, ..good }),
        ("end", Segment { length: 65, ..good }),
        ("start", Segment { address: good.address + 60, ..good }),
        ("before", Segment { address: good.address.wrapping_sub(1), ..good }),
        ("wrap", Segment { address: u64::MAX - 2, ..good }),
        ("dead", dead_segment),
    ];
    let (spare, _) = pair.active.queue_pair(CAPABILITIES);
    let read = Operation::Read { remote: remote(&window, 0) };
    for (what, segment) in bad {
        for operation in [SEND, read] {
            let pieces = [segment];
            let payload = Payload::Segments(&pieces);
            let first = SendRequest { id: 1, signaled: true, operation: SEND, payload: NOTHING };
            let second = SendRequest { id: 2, operation, payload, ..first };
            let refused = pair.active.cq.post_send(joined.active, &[first, second], false);
            assert!(matches!(refused, Err(Error::BadSegment { .. })), "{what}: {refused:?}");
        }
        let requests = [
            RecvRequest { id: 1, buffer: Buffer::Segment(good) },
            RecvRequest { id: 2, buffer: Buffer::Segment(segment) },
        ];
        let refused = pair.active.cq.post_recv(spare, &requests);
        assert!(matches!(refused, Err(Error::BadSegment { .. })), "{what}: {refused:?}");
    }
    // A region without local write access cannot be the target of a read or a receive.
    let pieces = [segment(&unwritable, 0, 8)];
    let payload = Payload::Segments(&pieces);
    let request = SendRequest { id: 3, signaled: true, operation: read, payload };
    let refused = pair.active.cq.post_send(joined.active, &[request], false);
    assert!(matches!(refused, Err(Error::BadSegment { .. })), "{refused:?}");
    let refused =
        pair.active.cq.post_recv(spare, &[RecvRequest { id: 3, buffer: Buffer::Segment(pieces[0]) }]);
    assert!(matches!(refused, Err(Error::BadSegment { .. })), "{refused:?}");
    pair.drive_until_idle();
    assert!(pair.active.completions.is_empty() && pair.passive.completions.is_empty(), "nothing was posted");
    pair.assert_works(joined);
}

/// A wrong segment on a device that accepts the post: the request fails, and only its connection breaks.
fn wrong_segments_fail(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let bystander = pair.join_with_receives();
    let region = pair.active.region(64, Access::LOCAL_WRITE);
    let good = segment(&region, 0, 8);
    let dead = pair.active.region(64, Access::LOCAL_WRITE);
    let dead_segment = segment(&dead, 0, 8);
    drop(dead);
    let bad = [
        ("key", Segment { key: good.key ^ 0x5a5a_5a00, ..good }),
        ("end", Segment { length: 65, ..good }),
        ("before", Segment { address: good.address.wrapping_sub(1), ..good }),
        ("wrap", Segment { address: u64::MAX - 2, ..good }),
        ("dead", dead_segment),
    ];
    for (what, segment) in bad {
        let joined = pair.join_with_receives();
        pair.active.post(joined.active, 1, SEND, &[segment]);
        for passive in [false, true] {
            let event = pair.event(joined, passive);
            assert!(rig.is_break(&event), "{what}: {event:?}");
        }
        let failed = pair.at_active();
        // Not every device reports what was wrong.
        let allowed = [CompletionStatus::LocalAccess, CompletionStatus::LocalOperation];
        assert!(failed.id == 1 && allowed.contains(&failed.status), "{what}: {failed:?}");
        pair.drive_until_idle();
        assert!(pair.passive.completions.drain(..).all(|left| left.status == CompletionStatus::Flushed));
    }
    pair.assert_works(bystander);
}

pub fn unknown_queue_pairs_are_refused(rig: &impl Rig) {
    let mut end = End::new(rig.devices().0);
    let (gone, _) = end.queue_pair(CAPABILITIES);
    end.destroy(gone);
    let (next, _) = end.queue_pair(CAPABILITIES);
    assert_ne!(next, gone, "ids are not used again");
    for qp in [gone, QpId(u32::MAX)] {
        let refused = end.cq.post_recv(qp, &[RecvRequest { id: 0, buffer: Buffer::Empty }]);
        assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
        let refused = end.cq.post_send(qp, &sends(1, true), false);
        assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
        assert_eq!(end.cq.poll_event(qp), None);
        assert_eq!(end.cq.local_address(qp), None);
        assert_eq!(end.cq.peer_address(qp), None);
        assert_eq!(end.cq.deadline(qp), None);
        end.cq.disconnect(qp);
        end.cq.abort(qp);
        end.cq.destroy_qp(qp);
    }
}

pub fn nothing_is_sent_before_a_connection(rig: &impl Rig) {
    let mut end = End::new(rig.devices().0);
    let (qp, _) = end.queue_pair(CAPABILITIES);
    let refused = end.cq.post_send(qp, &sends(1, true), false);
    assert!(matches!(refused, Err(Error::BadState { .. })), "{refused:?}");
}

pub fn queue_pairs_share_a_completion_queue(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let connections: Vec<_> = (0..5).map(|_| pair.join_with_receives()).collect();
    for (number, joined) in connections.iter().enumerate() {
        for id in 0..3 {
            pair.active.post(joined.active, 10 * number as u64 + id, SEND, &[]);
        }
    }
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        sent.push(pair.at_active());
        received.push(pair.at_passive());
    }
    for (number, joined) in connections.iter().enumerate() {
        let ids = |list: &[Completion], qp| {
            list.iter()
                .filter(|completion| completion.qp == qp)
                .map(|completion| completion.id)
                .collect::<Vec<_>>()
        };
        let first = 10 * number as u64;
        assert_eq!(ids(&sent, joined.active), [first, first + 1, first + 2]);
        assert_eq!(ids(&received, joined.passive), [0, 1, 2]);
    }
    assert!(sent.iter().chain(&received).all(|completion| completion.status == CompletionStatus::Success));
}

pub fn any_depth_has_room_for_many_queue_pairs(rig: &impl Rig) {
    let device = rig.devices().0;
    assert!(device.attributes().max_any_depth >= 10_000);
    let (pd, mut cq) = (device.alloc_pd().unwrap(), device.create_cq(ANY_DEPTH).unwrap());
    let wanted = QpCapabilities { send_depth: 100, recv_depth: 100, ..CAPABILITIES };
    for _ in 0..20 {
        cq.create_qp(&pd, wanted).unwrap();
    }
}

pub fn held_back_requests_are_sent(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    // They are sent with the next post, or else by a poll.
    pair.active.cq.post_send(joined.active, &sends(2, true), true).unwrap();
    pair.active.cq.post_send(joined.active, &sends(1, true), false).unwrap();
    assert_eq!([0, 1, 0].map(|_| pair.at_passive().id), [0, 1, 2]);
    assert_eq!([0; 3].map(|_| pair.at_active().id), [0, 1, 0]);
    pair.drive_until_idle();
    pair.active.cq.post_send(joined.active, &sends(1, true), true).unwrap();
    let mut array = [Completion::EMPTY; 4];
    let count = pair.active.cq.poll(&mut array);
    pair.active.completions.extend(&array[..count]);
    // Nothing else drives the sender before the message arrives.
    assert_eq!(pair.passive.next_completion().id, 3);
    assert_eq!(pair.at_active(), success(joined.active, 0, CompletionKind::Send));
}

pub fn completions_are_polled_in_small_batches(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let wanted = QpCapabilities { send_depth: 1, ..CAPABILITIES };
    let (unused, _) = pair.passive.queue_pair(wanted);
    let joined = pair.join_with_receives();
    pair.active.cq.post_send(joined.active, &sends(9, false), false).unwrap();
    pair.until("the last message", |pair| {
        let mut one = [Completion::EMPTY];
        // A poll into an empty array returns no completion and loses none.
        assert_eq!(pair.passive.cq.poll(&mut []), 0);
        if pair.passive.cq.poll(&mut one) == 1 {
            pair.passive.completions.push_back(one[0]);
        }
        (pair.passive.completions.len() == 9).then_some(())
    });
    let ids: Vec<_> = pair.passive.completions.iter().map(|completion| completion.id).collect();
    assert_eq!(ids, (0..9).collect::<Vec<_>>());
    assert!(pair.passive.completions.iter().all(|completion| completion.qp != unused));
}
