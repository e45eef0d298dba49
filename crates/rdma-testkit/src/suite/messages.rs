//! Sends and receives.

use rdma_verbs::{
    Access, CompletionKind, CompletionStatus, ConnectionEvent, Device, Error, MemoryRegion, Operation,
    Payload, QueuePairs, SendRequest,
};

use super::rig::Rig;
use crate::harness::{Pair, SEND, bytes, pattern, remote, segment, success};

pub fn sends_of_many_sizes_arrive(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join(|_, _| {});
    for (id, length) in [1, 3, 64, 65, 1000, 4096, 65_535, 65_536, (1 << 20) + 3].into_iter().enumerate() {
        let source = pair.active.region(length, Access::empty());
        let target = pair.passive.region(length + 2, Access::LOCAL_WRITE);
        let sent = pattern(length, id);
        source.memory().write(0, &sent).unwrap();
        pair.passive.receive_into(joined.passive, id as u64, segment(&target, 1, length));
        pair.active.post(joined.active, id as u64, SEND, &[segment(&source, 0, length)]);
        let mut expected = success(joined.passive, id as u64, CompletionKind::Recv);
        expected.length = length as u32;
        assert_eq!(pair.at_passive(), expected);
        assert_eq!(pair.at_active(), success(joined.active, id as u64, CompletionKind::Send));
        let got = bytes(&target);
        assert!(got[1..=length] == sent[..], "{length} bytes arrive unchanged");
        assert_eq!((got[0], got[length + 1]), (0, 0), "nothing around them is touched");
    }
    // A receive takes a shorter message, and an empty one with or without a buffer.
    let target = pair.passive.region(8, Access::LOCAL_WRITE);
    pair.passive.receive_into(joined.passive, 90, segment(&target, 0, 8));
    pair.active.post(joined.active, 90, SEND, &[]);
    assert_eq!(pair.at_passive(), success(joined.passive, 90, CompletionKind::Recv));
    assert_eq!(bytes(&target), [0; 8]);
}

pub fn segments_are_gathered(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join(|_, _| {});
    let source = pair.active.region(100, Access::empty());
    source.memory().write(0, &pattern(100, 0)).unwrap();
    let target = pair.passive.region(100, Access::LOCAL_WRITE);
    pair.passive.receive_into(joined.passive, 0, segment(&target, 0, 100));
    let pieces = [segment(&source, 50, 50), segment(&source, 0, 3)];
    pair.active.post(joined.active, 0, SEND, &pieces);
    assert_eq!(pair.at_passive().length, 53);
    let sent = pattern(100, 0);
    assert_eq!(bytes(&target)[..53], [&sent[50..], &sent[..3]].concat());
}

pub fn order_is_kept(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let target = pair.passive.region(16, Access::LOCAL_WRITE);
    let source = pair.active.region(16, Access::empty());
    source.memory().write(0, &pattern(16, 5)).unwrap();
    let joined = pair.join(|pair, joined| {
        for id in 0..16 {
            pair.passive.receive_into(joined.passive, id, segment(&target, id as usize, 1));
        }
    });
    for id in 0..16 {
        pair.active.post(joined.active, id, SEND, &[segment(&source, id as usize, 1)]);
    }
    for id in 0..16 {
        assert_eq!(pair.at_passive().id, id);
        assert_eq!(pair.at_active().id, id);
    }
    assert_eq!(bytes(&target), pattern(16, 5));
}

/// [RFC 5040 5.3-8]
pub fn invalidated_keys_are_reported(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    if !rig.invalidates_keys() {
        return pair.assert_works(joined);
    }
    let window = pair.passive.region(8, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let give_up = Operation::Send { immediate: None, invalidate: Some(window.remote_key()), solicited: true };
    pair.active.post(joined.active, 0, give_up, &[]);
    let completion = pair.at_passive();
    assert_eq!(completion.status, CompletionStatus::Success);
    assert_eq!(completion.invalidated, Some(window.remote_key()));
    pair.at_active();
    // The key is invalid now.
    let source = pair.active.region(8, Access::empty());
    source.memory().write(0, &[1; 8]).unwrap();
    let write = Operation::Write { remote: remote(&window, 0), immediate: None };
    pair.active.post(joined.active, 1, write, &[segment(&source, 0, 8)]);
    assert!(matches!(pair.event(joined, true), ConnectionEvent::Broken(_)));
    assert_eq!(bytes(&window), [0; 8]);
}

pub fn sends_carry_immediate_data(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let word = 0x1234_5678;
    let operation = Operation::Send { immediate: Some(word), invalidate: None, solicited: false };
    if pair.active.device.attributes().immediate == 0 {
        let answer = pair.active.post_inline(joined.active, 0, operation, b"");
        assert!(matches!(answer, Err(Error::Unsupported(_))), "{answer:?}");
        return pair.assert_works(joined);
    }
    pair.active.post(joined.active, 0, operation, &[]);
    let completion = pair.at_passive();
    assert_eq!(completion.immediate, Some(word));
    assert_eq!((completion.kind, completion.length), (CompletionKind::Recv, 0));
    pair.at_active();
    pair.assert_works(joined);
}

pub fn a_message_too_long_breaks_the_connection(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let target = pair.passive.region(16, Access::LOCAL_WRITE);
    let joined = pair.join(|pair, joined| {
        pair.passive.receive_into(joined.passive, 1, segment(&target, 4, 4));
        pair.passive.receive_into(joined.passive, 2, segment(&target, 0, 16));
    });
    let source = pair.active.region(5, Access::empty());
    source.memory().write(0, &[7; 5]).unwrap();
    let payload = [segment(&source, 0, 5)];
    let request =
        SendRequest { id: 3, signaled: false, operation: SEND, payload: Payload::Segments(&payload) };
    pair.active.cq.post_send(joined.active, &[request], false).unwrap();
    let (first, second) = (pair.at_passive(), pair.at_passive());
    assert_eq!((first.id, first.status), (1, rig.truncated_status()));
    assert_eq!((second.id, second.status), (2, CompletionStatus::Flushed));
    assert!(rig.is_break(&pair.event(joined, true)));
    assert!(rig.is_break(&pair.event(joined, false)));
    let got = bytes(&target);
    assert_eq!((&got[..4], &got[8..]), (&[0; 4][..], &[0; 8][..]), "nothing beyond the receive is touched");
}
