//! Wait sets and event targets.

use std::time::{Duration, Instant};

use rdma_verbs::{Completion, CompletionQueue, Connections, Device, WaitSet};

use super::rig::Rig;
use crate::harness::{CAPABILITIES, End, Joined, LIMIT, OPTIONS, Pair, QUIET, SEND};

/// Whether the set becomes readable within this time.
fn readable(wait: &WaitSet, within: Duration) -> bool {
    wait.wait(Some(within), &mut Vec::new()).unwrap()
}

/// Polls until there is nothing, arms, and polls once more, as documented.
fn drain<D: Device>(end: &mut End<D>) {
    while end.poll() {}
    end.cq.arm().unwrap();
    while end.poll() {
        end.cq.arm().unwrap();
    }
}

pub fn the_wait_set_follows_the_completions(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    pair.settle();
    for id in 0..5 {
        drain(&mut pair.passive);
        assert!(!readable(&pair.passive.data, QUIET), "there is nothing");
        pair.active.post(joined.active, id, SEND, &[]);
        assert!(readable(&pair.passive.data, LIMIT), "a message came");
        // It stays so until somebody polls.
        assert!(readable(&pair.passive.data, Duration::ZERO));
        let completion = pair.passive.next_completion();
        assert_eq!(completion.id, id);
        drain(&mut pair.active);
        pair.active.completions.clear();
    }
    // What comes between the poll and arming is found by the poll after it, or wakes.
    drain(&mut pair.passive);
    pair.active.post(joined.active, 5, SEND, &[]);
    pair.passive.cq.arm().unwrap();
    assert_eq!(pair.passive.next_completion().id, 5);
}

pub fn what_other_calls_find_is_announced(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    pair.settle();
    for id in 0..5 {
        drain(&mut pair.passive);
        pair.active.post(joined.active, id, SEND, &[]);
        assert!(readable(&pair.passive.data, LIMIT), "a message came");
        // Somebody else asks for events or for what is flushed, which drives the queue pair.
        assert_eq!(pair.passive.cq.poll_event(joined.passive), None);
        pair.passive.cq.flushed(joined.passive);
        assert!(readable(&pair.passive.data, Duration::ZERO), "its completion was not polled");
        assert_eq!(pair.passive.next_completion().id, id);
    }
    drain(&mut pair.passive);
    assert!(!readable(&pair.passive.data, QUIET), "there is nothing");
}

pub fn event_targets_report_their_token(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let tokens = |end: &End<_>| {
        let mut ready = Vec::new();
        end.events.wait(Some(LIMIT), &mut ready).unwrap();
        ready
    };
    let (active, _) = pair.active.queue_pair(CAPABILITIES);
    let target = pair.active.target();
    let connecting = target.token;
    pair.active.cq.connect(active, pair.address, None, b"", &OPTIONS, target).unwrap();
    // A device may have to be driven for the request to go out.
    let start = Instant::now();
    while !readable(&pair.passive.events, Duration::from_millis(1)) {
        drain(&mut pair.active);
        assert!(start.elapsed() < LIMIT, "the request does not go out");
    }
    let listening = pair.passive.listening.unwrap();
    assert_eq!(tokens(&pair.passive), [listening], "the request is announced to who listens");
    pair.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
    let (passive, _) = pair.passive.queue_pair(CAPABILITIES);
    let request = pair.passive.requests.pop_front().unwrap();
    let target = pair.passive.target();
    let accepting = target.token;
    pair.passive.cq.accept(passive, request, b"", &OPTIONS, target).unwrap();
    drain(&mut pair.passive);
    assert_eq!(tokens(&pair.active), [connecting], "the reply is announced to who connected");
    let joined = Joined { active, passive };
    pair.event(joined, false);
    pair.event(joined, true);
    pair.settle();
    pair.active.cq.disconnect(active);
    let start = Instant::now();
    let mut told = tokens(&pair.passive);
    while !told.contains(&accepting) {
        assert!(start.elapsed() < LIMIT, "{told:?}");
        told = tokens(&pair.passive);
    }
    pair.event(joined, true);
}

pub fn idle_sets_are_quiet(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    pair.works(joined);
    pair.settle();
    drain(&mut pair.active);
    drain(&mut pair.passive);
    for end in [&pair.active, &pair.passive] {
        assert!(!readable(&end.data, QUIET));
        assert!(!readable(&end.events, QUIET));
    }
    assert_eq!(pair.active.cq.poll(&mut [Completion::EMPTY]), 0);
}
