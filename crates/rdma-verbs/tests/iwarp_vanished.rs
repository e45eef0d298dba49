//! A host that vanishes is noticed within twice the keep-alive time, whether or not something was
//! on its way to it; a peer that is there and reads nothing is waited for.
//!
//! The first test runs itself again in a network namespace of its own and takes the loopback device
//! down there: from then on nothing arrives, and nobody says so. Where the system allows no
//! namespaces, it says that it was skipped.

use std::io::IoSlice;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_testkit::skip;
use rdma_verbs::iwarp::{CompletionQueue, Device, ProtectionDomain};
use rdma_verbs::{
    Access, BreakReason, Completion, CompletionQueue as _, ConnectOptions, ConnectionEvent, Device as _,
    EventTarget, Listener as _, Memory, MemoryRegion as _, Operation, Payload, ProtectionDomain as _,
    QpCapabilities, QpNumber, RemoteAddress, Segment, SendRequest, Token, WaitSet,
};

const INSIDE: &str = "RSTREAM_TEST_NAMESPACE";
const KEEPALIVE: Duration = Duration::from_secs(2);

/// A queue pair with all that it stands on.
struct Side {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QpNumber,
    wait: Arc<WaitSet>,
}

impl Side {
    fn new(device: &Device) -> Self {
        let pd = device.alloc_pd().unwrap();
        let mut cq = device.create_cq(16).unwrap();
        let wanted = QpCapabilities {
            send_depth: 8,
            recv_depth: 8,
            inline: 64,
            initiator_depth: 1,
            responder_resources: 1,
        };
        let (qp, _) = cq.create_qp(&pd, wanted).unwrap();
        Self { pd, cq, qp, wait: Arc::new(WaitSet::new().unwrap()) }
    }

    fn target(&self) -> EventTarget {
        EventTarget { wait: Arc::clone(&self.wait), token: Token(1) }
    }

    fn event(&mut self, patience: Duration) -> Option<ConnectionEvent> {
        let start = Instant::now();
        while start.elapsed() < patience {
            if let Some(event) = self.cq.poll_event(self.qp) {
                return Some(event);
            }
            self.wait.wait(Some(Duration::from_millis(50)), &mut Vec::new()).unwrap();
        }
        None
    }
}

fn pair() -> (Side, Side) {
    let device = Device::default();
    let options = ConnectOptions { timeout: Duration::from_secs(5), keepalive: KEEPALIVE };
    let (mut a, mut b) = (Side::new(&device), Side::new(&device));
    let mut listener = device.listen("127.0.0.1:0".parse().unwrap(), 4, &options, b.target()).unwrap();
    let target = a.target();
    a.cq.connect(a.qp, listener.local_address(), None, b"", &options, target).unwrap();
    let request = loop {
        assert_eq!(a.cq.poll_event(a.qp), None);
        if let Some(request) = listener.poll() {
            break request;
        }
    };
    let target = b.target();
    b.cq.accept(b.qp, request, b"", &options, target).unwrap();
    for side in [&mut a, &mut b] {
        assert!(matches!(side.event(KEEPALIVE), Some(ConnectionEvent::Established { .. })));
    }
    (a, b)
}

fn loopback(state: &str) {
    let status = Command::new("ip").args(["link", "set", "lo", state]).status().unwrap();
    assert!(status.success(), "ip link set lo {state}: {status}");
}

fn vanish() {
    loopback("up");
    let (mut idle, _idle_peer) = pair();
    let (mut sending, _sending_peer) = pair();
    loopback("down");
    let start = Instant::now();
    let slices = [IoSlice::new(b"into the void")];
    let operation = Operation::Send { immediate: None, invalidate: None, solicited: false };
    let request = SendRequest { id: 1, signaled: false, operation, payload: Payload::Inline(&slices) };
    sending.cq.post_send(sending.qp, &[request], false).unwrap();
    assert!(!sending.cq.flushed(sending.qp));
    // Both are driven all the time, as an event queue does.
    let mut ends = [None, None];
    while ends.contains(&None) {
        for (side, end) in [&mut sending, &mut idle].into_iter().zip(&mut ends) {
            *end = end.take().or_else(|| side.event(Duration::from_millis(10)));
        }
        // The kernel's timers and this loop may be a little late.
        assert!(start.elapsed() < 2 * KEEPALIVE + Duration::from_millis(500), "{ends:?}");
    }
    assert_eq!(ends, [const { Some(ConnectionEvent::Broken(BreakReason::Vanished)) }; 2]);
}

#[test]
fn a_vanished_host_is_noticed_within_twice_the_keepalive() {
    if std::env::var_os(INSIDE).is_some() {
        return vanish();
    }
    let test = "a_vanished_host_is_noticed_within_twice_the_keepalive";
    let namespace = ["--net", "--map-root-user"];
    let allowed = Command::new("unshare").args(namespace).args(["ip", "link"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return skip(test, "no network namespace of its own can be made here");
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
fn a_peer_that_reads_nothing_is_not_taken_for_lost() {
    let (mut writer, mut reader) = pair();
    let register = |side: &Side, access| side.pd.register(Memory::zeroed(MUCH).unwrap(), access).unwrap();
    let from = register(&writer, Access::empty());
    let to = register(&reader, Access::REMOTE_WRITE);
    from.memory().write(MUCH as u64 - 4, b"last").unwrap();
    let segments = [Segment { key: from.local_key(), address: from.address(), length: MUCH as u32 }];
    let remote = RemoteAddress { key: to.remote_key(), address: to.address() };
    let operation = Operation::Write { remote, immediate: None };
    let payload = Payload::Segments(&segments);
    let request = SendRequest { id: 1, signaled: true, operation, payload };
    writer.cq.post_send(writer.qp, &[request], false).unwrap();
    // The window is closed and stays so, and the kernel probes it.
    assert_eq!(writer.event(3 * KEEPALIVE), None);
    assert!(!writer.cq.flushed(writer.qp), "everything fitted: this shows nothing");

    let start = Instant::now();
    let mut last = [0; 4];
    while last != *b"last" {
        assert!(start.elapsed() < Duration::from_secs(30), "the rest does not come");
        for side in [&mut reader, &mut writer] {
            side.cq.poll(&mut [Completion::EMPTY; 4]);
        }
        to.memory().read(MUCH as u64 - 4, &mut last).unwrap();
    }
    assert_eq!(writer.event(Duration::from_millis(50)), None);
}
