//! The fault layer with faults: each fault happens with its probability, one seed gives one sequence of
//! events, and a consumer that follows the contract works.

use std::time::Duration;

use rdma_testkit::faulty::{Faulty, Plan};
use rdma_testkit::sim::{self, Config, Fabric};
use rdma_verbs::{
    BreakReason, Buffer, Completion, CompletionKind, CompletionQueue, CompletionStatus, ConnectionEvent,
    Connections, Device, Error, MessageQueues, Payload, QpCapabilities, QueuePairs, RecvQueue, RecvRequest,
    SendRequest, WaitSet,
};

use rdma_testkit::harness::{CAPABILITIES, End, Joined, Pair, SEND};
use rdma_testkit::suite::rig::Rig;

/// Simulated devices of which the active one, or both, have faults.
struct FaultyDevices {
    config: Config,
    active: Plan,
    passive: Plan,
}

impl FaultyDevices {
    fn active(active: Plan) -> Self {
        Self { config: Config::iwarp(), active, passive: Plan::none() }
    }

    fn both(config: Config, seed: u64, plan: fn(u64) -> Plan) -> Self {
        Self { config, active: plan(seed), passive: plan(seed ^ u64::MAX) }
    }
}

impl Rig for FaultyDevices {
    type Device = Faulty<sim::Device>;

    fn devices(&self) -> (Self::Device, Self::Device) {
        let fabric = Fabric::new();
        let device = |plan: &Plan| Faulty::new(fabric.device(self.config.clone()), plan.clone());
        (device(&self.active), device(&self.passive))
    }
}

fn send(id: u64, signaled: bool) -> SendRequest<'static> {
    SendRequest { id, signaled, operation: SEND, payload: Payload::Segments(&[]) }
}

fn is_readable(wait: &WaitSet) -> bool {
    wait.wait(Some(Duration::ZERO), &mut Vec::new()).unwrap()
}

#[test]
fn inline_grants_shrink() {
    let mut end = End::new(FaultyDevices::active(Plan { small_inline: 1000, ..Plan::none() }).devices().0);
    let wanted = QpCapabilities { send_depth: 1, recv_depth: 1, inline: 1000, ..CAPABILITIES };
    let granted: Vec<_> = (0..20).map(|_| end.queue_pair(wanted).1.inline).collect();
    assert!(granted.iter().all(|&inline| inline <= 1000));
    assert!(granted.iter().any(|&inline| inline < 500), "{granted:?}");
}

#[test]
fn no_inline_payload_is_certain_where_grants_shrink() {
    for (plan, certain) in [(Plan::none(), 4096), (Plan::nuisances(1), 0)] {
        assert_eq!(FaultyDevices::active(plan).devices().0.attributes().max_inline, certain);
    }
}

#[test]
fn connection_attempts_fail_with_every_error() {
    let mut pair = Pair::new(&FaultyDevices::active(Plan { fail_connect: 1000, ..Plan::none() }));
    let mut reasons = std::collections::BTreeSet::new();
    for _ in 0..30 {
        let wanted = QpCapabilities { send_depth: 1, recv_depth: 1, ..CAPABILITIES };
        let (qp, _) = pair.active.queue_pair(wanted);
        pair.active.connect(qp, pair.address, b"");
        assert!(is_readable(&pair.active.events), "the failure is signaled");
        match pair.event(Joined { active: qp, passive: qp }, false) {
            ConnectionEvent::Failed(error) => reasons.insert(format!("{error:?}")),
            other => panic!("{other:?}"),
        };
        assert!(pair.active.cq.poll_event(qp).is_none());
        pair.active.destroy(qp);
    }
    assert_eq!(reasons.len(), 5, "{reasons:?}");
}

#[test]
fn posts_are_refused_only_while_requests_are_outstanding() {
    let mut pair = Pair::new(&FaultyDevices::active(Plan { queue_full: 1000, ..Plan::none() }));
    let joined = pair.join_with_receives();
    let mut refused = 0;
    for id in 0..16 {
        let answer = pair.active.cq.post_send(joined.active, &[send(id, id % 2 == 0)], false);
        if let Err(error) = answer {
            assert!(matches!(error, Error::QueueFull { depth: 16, room: 0, asked: 1 }), "{error:?}");
            assert_ne!(id, 0, "nothing was outstanding");
            assert!(is_readable(&pair.active.data), "the refusal is signaled");
            refused += 1;
            pair.active
                .cq
                .post_send(joined.active, &[send(id, id % 2 == 0)], false)
                .expect("two posts in a row are not refused");
        }
    }
    assert!(refused > 8, "{refused}");
    for id in 0..16 {
        assert_eq!(pair.at_passive().id, id);
    }
}

#[test]
fn posts_to_a_shared_queue_are_refused_only_while_receives_are_outstanding() {
    let mut end = End::new(FaultyDevices::active(Plan { queue_full: 1000, ..Plan::none() }).devices().0);
    let srq = end.cq.create_srq(&end.pd, 64).unwrap();
    let mut refused = 0;
    for id in 0..64 {
        let request = [RecvRequest { id, buffer: Buffer::Empty }];
        if end.cq.post_srq_recv(srq, &request).is_err() {
            assert_ne!(id, 0, "nothing was outstanding");
            assert!(is_readable(&end.data), "the refusal is signaled");
            refused += 1;
            end.cq.post_srq_recv(srq, &request).expect("two posts in a row are not refused");
        }
    }
    assert!(refused > 16, "{refused}");
    assert!((0..64).all(|id| end.cq.cancel_recv(RecvQueue::Shared(srq), id)));
    end.cq
        .post_srq_recv(srq, &[RecvRequest { id: 0, buffer: Buffer::Empty }])
        .expect("nothing is outstanding");
}

/// The queue pair may be destroyed before the completion is given, and the receive would be lost.
#[test]
fn completions_of_shared_receives_are_not_held_back() {
    let holding = Plan { hold_completions: 1000, ..Plan::none() };
    let mut pair =
        Pair::new(&FaultyDevices { config: Config::iwarp(), active: Plan::none(), passive: holding });
    let srq = pair.passive.cq.create_srq(&pair.passive.pd, 8).unwrap();
    let joined = pair.join_messages(Some(srq));
    for round in 0..20 {
        for id in 0..4 {
            pair.passive.receive_shared(srq, id, &[]);
            pair.active.post_inline(joined.active, id, SEND, b"").unwrap();
        }
        let count = pair.passive.cq.poll(&mut [Completion::EMPTY; 4]);
        assert_eq!(count, 4, "round {round}");
        pair.active.poll();
    }
}

#[test]
fn a_false_zero_is_reported_once_and_signaled() {
    let mut pair = Pair::new(&FaultyDevices::active(Plan { false_zero: 1000, ..Plan::none() }));
    let joined = pair.join_with_receives();
    pair.passive.poll();
    let mut false_zeros = 0;
    for id in 0..16 {
        pair.active.cq.post_send(joined.active, &[send(id, true)], false).unwrap();
        let mut array = [Completion::EMPTY; 4];
        let mut count = pair.active.cq.poll(&mut array);
        if count == 0 {
            assert!(is_readable(&pair.active.data), "the false zero is signaled");
            false_zeros += 1;
            count = pair.active.cq.poll(&mut array);
        }
        assert_eq!((count, array[0].id), (1, id));
    }
    assert!(false_zeros > 8, "{false_zeros}");
}

#[test]
fn completions_are_held_back_in_order() {
    let mut pair = Pair::new(&FaultyDevices::active(Plan { hold_completions: 1000, ..Plan::none() }));
    let joined = pair.join_with_receives();
    let mut held = 0;
    for round in 0..10 {
        pair.active.cq.post_send(joined.active, &[0, 1, 2, 3].map(|id| send(id, true)), false).unwrap();
        let mut got = Vec::new();
        while got.len() < 4 {
            let mut array = [Completion::EMPTY; 8];
            let count = pair.active.cq.poll(&mut array);
            got.extend(array[..count].iter().map(|completion| completion.id));
            if got.len() < 4 {
                held += 1;
                assert!(is_readable(&pair.active.data), "the held completions are signaled");
            }
        }
        assert_eq!(got, [0, 1, 2, 3], "round {round}");
        assert_eq!(pair.active.cq.poll(&mut [Completion::EMPTY]), 0);
        assert!(!is_readable(&pair.active.data));
        for _ in 0..4 {
            let id = pair.at_passive().id;
            pair.passive.cq.post_recv(joined.passive, &[RecvRequest { id, buffer: Buffer::Empty }]).unwrap();
        }
    }
    assert!(held >= 5, "{held}");
}

#[test]
fn completions_hidden_from_a_consumer_that_sleeps_stay_signaled() {
    let mut hidden = 0;
    for seed in 0..300 {
        let active = Plan { seed, false_zero: 500, hold_completions: 500, small_batch: 500, ..Plan::none() };
        let config = Config { arming: true, ..Config::iwarp() };
        let mut pair = Pair::new(&FaultyDevices { config, active, passive: Plan::none() });
        let joined = pair.join_with_receives();
        let End { cq, data, .. } = &mut pair.active;
        cq.post_send(joined.active, &[0, 1, 2, 3].map(|id| send(id, true)), false).unwrap();
        let mut array = [Completion::EMPTY; 4];
        while cq.poll(&mut array) > 0 || cq.arm().unwrap() {}
        // While one thread sleeps, another one polls.
        let taken = cq.poll(&mut array[..1]);
        let is_readable = is_readable(data);
        let left: usize = (0..16).map(|_| cq.poll(&mut array)).sum();
        assert!(is_readable || left == 0, "seed {seed}: nothing signals {left} completions");
        hidden += usize::from(taken > 0 && left > 0);
    }
    assert!(hidden > 5, "{hidden}");
}

#[test]
fn held_completions_are_dropped_with_their_queue_pair() {
    let mut held = 0;
    for seed in 0..10 {
        let plan = Plan { seed, hold_completions: 1000, ..Plan::none() };
        let mut pair = Pair::new(&FaultyDevices::active(plan));
        let joined = pair.join_with_receives();
        pair.active.cq.post_send(joined.active, &[0, 1, 2, 3].map(|id| send(id, true)), false).unwrap();
        let mut array = [Completion::EMPTY; 4];
        held += 4 - pair.active.cq.poll(&mut array);
        pair.active.destroy(joined.active);
        assert_eq!(pair.active.cq.poll(&mut array), 0, "seed {seed}");
    }
    assert!(held > 5, "{held}");
}

#[test]
fn batches_are_shortened_and_wake_ups_are_spurious() {
    let plan = Plan { small_batch: 1000, spurious_wake: 500, ..Plan::none() };
    let mut pair = Pair::new(&FaultyDevices::active(plan));
    let joined = pair.join_with_receives();
    let (mut short, mut idle_wakes) = (0, 0);
    for _ in 0..4 {
        pair.active.cq.post_send(joined.active, &[0, 1, 2, 3].map(|id| send(id, true)), false).unwrap();
        let mut left = 4;
        while left > 0 {
            let count = pair.active.cq.poll(&mut [Completion::EMPTY; 4]);
            assert!(count > 0);
            short += usize::from(count < left);
            left -= count;
        }
        for _ in 0..4 {
            assert_eq!(pair.active.cq.poll(&mut [Completion::EMPTY; 4]), 0);
            idle_wakes += usize::from(is_readable(&pair.active.data));
        }
    }
    assert!(short > 0, "a batch was shortened");
    assert!((1..16).contains(&idle_wakes), "{idle_wakes}");
}

/// Connects, sends a few messages, and continues until both sides have reported the end. Returns their
/// events, and the ids of the passive side's receives in the order of completion. Returns `None` if the
/// attempt failed.
fn send_until_it_ends(pair: &mut Pair<Faulty<sim::Device>>) -> Option<([ConnectionEvent; 2], Vec<u64>)> {
    let (joined, first) = pair.try_join(|pair, joined| {
        pair.passive.post_empty_receives(joined.passive, CAPABILITIES.recv_depth.into());
    });
    if !first.iter().all(|event| matches!(event, ConnectionEvent::Established { .. })) {
        return None;
    }
    let mut back = Vec::new();
    // Faults are drawn in every call, so a bounded number of rounds suffices.
    for round in 0..10_000 {
        if round < 10 {
            match pair.active.cq.post_send(joined.active, &[send(round, true)], round % 2 == 0) {
                Ok(()) | Err(Error::QueueFull { .. } | Error::BadState { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
        pair.active.poll();
        pair.passive.poll();
        back.extend(pair.passive.completions.drain(..).map(|completion| completion.id));
        let ended = |end: &End<_>, qp| !end.connection_events[&qp].is_empty();
        if ended(&pair.active, joined.active) && ended(&pair.passive, joined.passive) && back.len() == 16 {
            break;
        }
    }
    pair.drive_until_idle();
    assert!(pair.passive.completions.is_empty(), "each receive comes back once");
    Some(([pair.event(joined, false), pair.event(joined, true)], back))
}

#[test]
fn connections_break_and_end_by_themselves() {
    let breaking = Plan { break_connection: 100, ..Plan::none() };
    let ending = Plan { end_connection: 100, ..Plan::none() };
    let broken = ConnectionEvent::Broken(BreakReason::Reset);
    for (plan, expected) in [(breaking, broken), (ending, ConnectionEvent::Disconnected)] {
        let mut seen = 0;
        for seed in 0..20 {
            let mut pair = Pair::new(&FaultyDevices::active(Plan { seed, ..plan.clone() }));
            if let Some((events, _)) = send_until_it_ends(&mut pair) {
                assert_eq!(events, [expected.clone(), expected.clone()], "seed {seed}");
                seen += 1;
            }
        }
        assert!(seen > 10, "{seen} of 20 connections were established before {expected:?}");
    }
}

/// Sends 200 messages with a consumer that handles every fault. Returns the completions of both sides in
/// order.
fn exchange(rig: &FaultyDevices) -> Vec<(bool, u64, CompletionStatus)> {
    const MESSAGES: u64 = 200;
    let mut pair = Pair::new(rig);
    let joined = pair.join_with_receives();
    let mut log = Vec::new();
    let (mut sent, mut completed, mut taken, mut reposted) = (0, 0, 0, 0);
    pair.until("all messages", |pair| {
        while let Some(completion) = pair.active.completions.pop_front() {
            assert_eq!(completion.kind, CompletionKind::Send);
            completed += 1;
            log.push((false, completion.id, completion.status));
        }
        while let Some(completion) = pair.passive.completions.pop_front() {
            assert_eq!(completion.id, taken % u64::from(CAPABILITIES.recv_depth), "in order, each once");
            taken += 1;
            log.push((true, completion.id, completion.status));
        }
        while reposted < taken {
            let receive =
                RecvRequest { id: reposted % u64::from(CAPABILITIES.recv_depth), buffer: Buffer::Empty };
            match pair.passive.cq.post_recv(joined.passive, &[receive]) {
                Ok(()) => reposted += 1,
                Err(Error::QueueFull { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        // The consumer's own flow control: no more outstanding messages than receives.
        while sent < MESSAGES && sent < reposted + u64::from(CAPABILITIES.recv_depth) && sent < completed + 16
        {
            match pair.active.cq.post_send(joined.active, &[send(sent, true)], sent % 3 == 0) {
                Ok(()) => sent += 1,
                Err(Error::QueueFull { .. }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        (completed == MESSAGES && taken == MESSAGES).then_some(())
    });
    log
}

#[test]
fn transient_faults_lose_nothing() {
    for seed in 0..60 {
        for config in [Config::iwarp(), Config::infiniband(), Config { wire: 1, ..Config::infiniband() }] {
            let log = exchange(&FaultyDevices::both(config, seed, Plan::nuisances));
            assert!(log.iter().all(|(_, _, status)| *status == CompletionStatus::Success), "seed {seed}");
            let ids = log.iter().filter(|(passive, ..)| !passive).map(|(_, id, _)| *id);
            assert!(ids.eq(0..200), "seed {seed}");
        }
    }
}

#[test]
fn one_seed_gives_one_sequence_of_events() {
    let run = |seed| exchange(&FaultyDevices::both(Config::infiniband(), seed, Plan::nuisances));
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn receives_complete_once_whatever_breaks() {
    let rough = |seed| Plan { break_connection: 20, end_connection: 20, ..Plan::nuisances(seed) };
    let mut seen = 0;
    for seed in 0..40 {
        let mut pair = Pair::new(&FaultyDevices::both(Config::iwarp(), seed, rough));
        if let Some((_, back)) = send_until_it_ends(&mut pair) {
            assert_eq!(back, (0..16).collect::<Vec<_>>(), "seed {seed}");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}
