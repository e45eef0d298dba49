//! Wait sets and event targets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::{Completion, CompletionQueue, Connections, Device, EventTarget, WaitSet};

use super::rig::Rig;
use crate::harness::{CAPABILITIES, End, Joined, LIMIT, OPTIONS, Pair, QUIET, SEND};

/// Whether the set is readable within this time.
fn readable(wait: &WaitSet, within: Duration) -> bool {
    wait.wait(Some(within), &mut Vec::new()).unwrap()
}

/// Polls until nothing is found, arms, and polls once more, as documented.
fn drain<D: Device>(end: &mut End<D>) {
    while end.poll() {}
    end.cq.arm().unwrap();
    while end.poll() {
        end.cq.arm().unwrap();
    }
}

pub fn the_wait_set_is_readable_while_there_are_completions(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    pair.drive_until_idle();
    for id in 0..5 {
        drain(&mut pair.passive);
        assert!(!readable(&pair.passive.data, QUIET), "there is nothing");
        pair.active.post(joined.active, id, SEND, &[]);
        assert!(readable(&pair.passive.data, LIMIT), "a message came");
        // It stays readable until a poll.
        assert!(readable(&pair.passive.data, Duration::ZERO));
        let completion = pair.passive.next_completion();
        assert_eq!(completion.id, id);
        drain(&mut pair.active);
        pair.active.completions.clear();
    }
    // A completion that arrives between the poll and arming is found by the next poll or wakes the caller.
    drain(&mut pair.passive);
    pair.active.post(joined.active, 5, SEND, &[]);
    pair.passive.cq.arm().unwrap();
    assert_eq!(pair.passive.next_completion().id, 5);
}

pub fn completions_found_by_other_calls_are_signaled(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    pair.drive_until_idle();
    for id in 0..5 {
        drain(&mut pair.passive);
        pair.active.post(joined.active, id, SEND, &[]);
        assert!(readable(&pair.passive.data, LIMIT), "a message came");
        // These calls drive the queue pair as well.
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
    // Some devices send the request only when they are driven.
    let start = Instant::now();
    while !readable(&pair.passive.events, Duration::from_millis(1)) {
        drain(&mut pair.active);
        assert!(start.elapsed() < LIMIT, "the request is not sent");
    }
    let listening = pair.passive.listening.unwrap();
    assert_eq!(tokens(&pair.passive), [listening], "the request signals the listener's target");
    pair.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
    let (passive, _) = pair.passive.queue_pair(CAPABILITIES);
    let request = pair.passive.requests.pop_front().unwrap();
    let target = pair.passive.target();
    let accepting = target.token;
    pair.passive.cq.accept(passive, request, b"", &OPTIONS, target).unwrap();
    drain(&mut pair.passive);
    assert_eq!(tokens(&pair.active), [connecting], "the reply signals the connecting queue pair's target");
    let joined = Joined { active, passive };
    pair.event(joined, false);
    pair.event(joined, true);
    pair.drive_until_idle();
    pair.active.cq.disconnect(active);
    let start = Instant::now();
    let mut reported = tokens(&pair.passive);
    while !reported.contains(&accepting) {
        assert!(start.elapsed() < LIMIT, "{reported:?}");
        reported = tokens(&pair.passive);
    }
    pair.event(joined, true);
}

pub fn idle_wait_sets_are_not_readable(rig: &impl Rig) {
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    pair.assert_works(joined);
    pair.drive_until_idle();
    drain(&mut pair.active);
    drain(&mut pair.passive);
    for end in [&pair.active, &pair.passive] {
        assert!(!readable(&end.data, QUIET));
        assert!(!readable(&end.events, QUIET));
    }
    assert_eq!(pair.active.cq.poll(&mut [Completion::EMPTY]), 0);
}

pub fn an_idle_device_has_no_events(rig: &impl Rig) {
    let (device, _) = rig.devices();
    let wait = Arc::new(WaitSet::new().unwrap());
    let mut events = device.events(EventTarget::new(&wait)).unwrap();
    assert_eq!(events.poll(), None);
    assert!(!wait.is_readable());
    drop(events);
    assert!(!wait.is_readable());
}
