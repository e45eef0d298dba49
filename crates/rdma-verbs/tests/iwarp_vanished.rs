//! A host that vanishes is noticed within twice the keep-alive time, whether or not bytes were sent to it. A
//! peer that exists and reads nothing does not count as vanished.
//!
//! The first test runs itself again in its own network namespace and takes the loopback device down there:
//! from then on nothing arrives, and no error is reported. The test is skipped if the system allows no
//! namespaces.

use std::collections::VecDeque;
use std::process::Command;
use std::time::{Duration, Instant};

use rdma_testkit::harness::{End, Joined, Pair, SEND, remote, segment, step};
use rdma_testkit::rigs::IwarpRig;
use rdma_testkit::skip;
use rdma_verbs::iwarp::Device;
use rdma_verbs::{Access, BreakReason, ConnectionEvent, Connections as _, MemoryRegion as _, Operation};

const INSIDE: &str = "RSTREAM_TEST_NAMESPACE";
const KEEPALIVE: Duration = Duration::from_secs(2);

/// Drives an end for this time, or until its first connection event.
fn event(end: &mut End<Device>, time: Duration) -> Option<ConnectionEvent> {
    let deadline = Instant::now() + time;
    loop {
        let is_over = step(&mut [&mut *end], deadline, "an event").is_err() || Instant::now() >= deadline;
        let event = end.connection_events.values_mut().find_map(VecDeque::pop_front);
        if is_over || event.is_some() {
            return event;
        }
    }
}

fn pair() -> (Pair<Device>, Joined) {
    let mut pair = Pair::new(&IwarpRig::default());
    pair.active.options.keepalive = KEEPALIVE;
    pair.passive.options.keepalive = KEEPALIVE;
    let joined = pair.join(|_, _| {});
    (pair, joined)
}

fn loopback(state: &str) {
    let status = Command::new("ip").args(["link", "set", "lo", state]).status().unwrap();
    assert!(status.success(), "ip link set lo {state}: {status}");
}

fn vanish() {
    loopback("up");
    let (mut idle, _) = pair();
    let (mut sending, joined) = pair();
    loopback("down");
    let start = Instant::now();
    let qp = joined.active;
    sending.active.post_inline(qp, 1, SEND, b"into the void").unwrap();
    assert!(!sending.active.cq.flushed(qp));
    // Both are driven continuously, as by an event queue.
    let mut ends = [None, None];
    while ends.contains(&None) {
        for (pair, end) in [&mut sending, &mut idle].into_iter().zip(&mut ends) {
            *end = end.take().or_else(|| event(&mut pair.active, Duration::from_millis(10)));
        }
        // The kernel's timers and this loop may be a little late.
        assert!(start.elapsed() < 2 * KEEPALIVE + Duration::from_millis(500), "{ends:?}");
    }
    assert_eq!(ends, [const { Some(ConnectionEvent::Broken(BreakReason::Vanished)) }; 2]);
}

/// [RFC 5044 8-1]
#[test]
fn a_vanished_host_is_noticed_within_twice_the_keepalive() {
    if std::env::var_os(INSIDE).is_some() {
        return vanish();
    }
    let test = "a_vanished_host_is_noticed_within_twice_the_keepalive";
    let namespace = ["--net", "--map-root-user"];
    let allowed = Command::new("unshare").args(namespace).args(["ip", "link"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return skip(test, "no network namespace can be created here");
    }
    let output = Command::new("unshare")
        .args(namespace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !text.contains("skipped"), "{text}");
}

/// More than the sockets between two processes hold.
const MUCH: usize = 64 << 20;

#[test]
fn a_peer_that_reads_nothing_is_not_considered_lost() {
    let (pair, joined) = pair();
    let (mut writer, mut reader, qp) = (pair.active, pair.passive, joined.active);
    let from = writer.region(MUCH, Access::empty());
    let to = reader.region(MUCH, Access::REMOTE_WRITE);
    from.memory().write(MUCH as u64 - 4, b"last").unwrap();
    let write = Operation::Write { remote: remote(&to, 0), immediate: None };
    writer.post(qp, 1, write, &[segment(&from, 0, MUCH)]);
    // The TCP window stays closed, and the kernel probes it.
    assert_eq!(event(&mut writer, 3 * KEEPALIVE), None);
    assert!(!writer.cq.flushed(qp), "the sockets took everything: this shows nothing");

    let start = Instant::now();
    let mut last = [0; 4];
    while last != *b"last" {
        assert!(start.elapsed() < Duration::from_secs(30), "the rest does not come");
        reader.poll_completions();
        writer.poll_completions();
        to.memory().read(MUCH as u64 - 4, &mut last).unwrap();
    }
    assert_eq!(event(&mut writer, Duration::from_millis(50)), None);
}
