//! Two ends and the documented way to drive them: poll until there is nothing, arm, poll once more,
//! then sleep on the wait sets. Every wait is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::{
    Access, Completion, CompletionKind, CompletionQueue, CompletionStatus, ConnectOptions, ConnectionEvent,
    ConnectionRequest, Device, EventTarget, Interest, Listener, Memory, MemoryRegion, Operation, Payload,
    ProtectionDomain, QpCapabilities, QpNumber, RecvRequest, RemoteAddress, Segment, SendRequest, Token,
    WaitSet,
};

use super::rig::Rig;

/// How long anything may take.
pub const LIMIT: Duration = Duration::from_secs(20);
/// How long to watch that nothing happens.
pub const QUIET: Duration = Duration::from_millis(50);

const DATA: Token = Token(1);
const EVENTS: Token = Token(2);
/// The token of an end's listener; queue pairs have their number.
pub const LISTENER: Token = Token(u64::MAX - 7);

/// What the suite's queue pairs are asked for.
pub const CAPABILITIES: QpCapabilities =
    QpCapabilities { send_depth: 16, recv_depth: 16, inline: 64, initiator_depth: 4, responder_resources: 4 };

/// How the suite connects and listens.
pub const OPTIONS: ConnectOptions = ConnectOptions { timeout: LIMIT, keepalive: LIMIT };

/// A plain send.
pub const SEND: Operation = Operation::Send { immediate: None, invalidate: None, solicited: false };

/// One side: a device with one protection domain and one completion queue, and what came out of it.
pub struct End<D: Device> {
    /// The device itself.
    pub device: D,
    /// Of every region and queue pair of this side.
    pub pd: D::Pd,
    /// Owns this side's queue pairs.
    pub cq: D::Cq,
    /// Set by [`End::listen`].
    pub listener: Option<D::Listener>,
    /// Readable when the completion queue has something.
    pub data: Arc<WaitSet>,
    /// Readable when a connection or the listener has something.
    pub events: Arc<WaitSet>,
    /// Both.
    wait: WaitSet,
    /// Completions that nobody has taken yet, oldest first.
    pub completions: VecDeque<Completion>,
    /// Connection events that nobody has taken yet, by queue pair, oldest first.
    pub happened: BTreeMap<QpNumber, VecDeque<ConnectionEvent>>,
    /// Connection requests that nobody has answered yet, oldest first.
    pub requests: VecDeque<D::Request>,
}

impl<D: Device> End<D> {
    /// A side with nothing posted and no queue pair.
    pub fn new(device: D) -> Self {
        let pd = device.alloc_pd().unwrap();
        let mut cq = device.create_cq(1024).unwrap();
        let data = Arc::new(WaitSet::new().unwrap());
        let events = Arc::new(WaitSet::new().unwrap());
        let wait = WaitSet::new().unwrap();
        wait.add(data.as_fd(), DATA, Interest::Read).unwrap();
        wait.add(events.as_fd(), EVENTS, Interest::Read).unwrap();
        cq.attach(Arc::clone(&data)).unwrap();
        Self {
            device,
            pd,
            cq,
            listener: None,
            data,
            events,
            wait,
            completions: VecDeque::new(),
            happened: BTreeMap::new(),
            requests: VecDeque::new(),
        }
    }

    /// Where the events of `token` are announced.
    pub fn target(&self, token: Token) -> EventTarget {
        EventTarget { wait: Arc::clone(&self.events), token }
    }

    /// Listens, and answers the address with its real port.
    pub fn listen(&mut self, address: SocketAddr) -> SocketAddr {
        let listener = self.device.listen(address, 16, &OPTIONS, self.target(LISTENER)).unwrap();
        let address = listener.local_address();
        self.listener = Some(listener);
        address
    }

    /// A queue pair whose events are polled from now on.
    pub fn queue_pair(&mut self, wanted: QpCapabilities) -> (QpNumber, QpCapabilities) {
        let (qp, granted) = self.cq.create_qp(&self.pd, wanted).unwrap();
        self.happened.insert(qp, VecDeque::new());
        (qp, granted)
    }

    /// Starts to connect.
    pub fn connect(&mut self, qp: QpNumber, address: SocketAddr, private_data: &[u8]) {
        let target = self.target(Token(qp.0.into()));
        self.cq.connect(qp, address, None, private_data, &OPTIONS, target).unwrap();
    }

    /// Accepts the oldest request.
    pub fn accept(&mut self, qp: QpNumber, private_data: &[u8]) {
        let request = self.requests.pop_front().expect("a request to accept");
        let target = self.target(Token(qp.0.into()));
        self.cq.accept(qp, request, private_data, &OPTIONS, target).unwrap();
    }

    /// Destroys a queue pair, and forgets its events.
    pub fn destroy(&mut self, qp: QpNumber) {
        self.cq.destroy_qp(qp);
        self.happened.remove(&qp);
    }

    /// Registered memory of `length` zeros.
    pub fn region(&self, length: usize, access: Access) -> D::Mr {
        self.pd.register(Memory::zeroed(length).unwrap(), access).unwrap()
    }

    /// Posts `count` receives without buffer, with ids from 0.
    pub fn post_empty_receives(&mut self, qp: QpNumber, count: u64) {
        let requests: Vec<_> = (0..count).map(|id| RecvRequest { id, buffer: None }).collect();
        self.cq.post_recv(qp, &requests).unwrap();
    }

    /// Posts one receive.
    pub fn receive_into(&mut self, qp: QpNumber, id: u64, buffer: Segment) {
        self.cq.post_recv(qp, &[RecvRequest { id, buffer: Some(buffer) }]).unwrap();
    }

    /// Posts one signaled request with registered payload.
    pub fn post(&mut self, qp: QpNumber, id: u64, operation: Operation, segments: &[Segment]) {
        let payload = Payload::Segments(segments);
        self.cq.post_send(qp, &[SendRequest { id, signaled: true, operation, payload }], false).unwrap();
    }

    /// Collects everything there is. Whether there was anything.
    pub fn poll(&mut self) -> bool {
        let mut array = [Completion::EMPTY; 8];
        let mut any = false;
        loop {
            let count = self.cq.poll(&mut array);
            self.completions.extend(&array[..count]);
            if count == 0 {
                break;
            }
            any = true;
        }
        for (&qp, happened) in &mut self.happened {
            while let Some(event) = self.cq.poll_event(qp) {
                happened.push_back(event);
                any = true;
            }
        }
        while let Some(request) = self.listener.as_mut().and_then(Listener::poll) {
            self.requests.push_back(request);
            any = true;
        }
        any
    }

    /// When the device wants to be called at the latest.
    fn deadline(&self) -> Option<Instant> {
        let connections = self.happened.keys().filter_map(|&qp| self.cq.deadline(qp));
        connections.chain(self.listener.as_ref().and_then(Listener::deadline)).min()
    }

    /// The next completion; panics with `what` was waited for.
    pub fn next_completion(&mut self, what: &str) -> Completion {
        let deadline = Instant::now() + LIMIT;
        while self.completions.is_empty() {
            self.step(deadline, what);
        }
        self.completions.pop_front().expect("checked")
    }

    /// Collects what there is, and sleeps if there is nothing.
    pub fn step(&mut self, deadline: Instant, what: &str) {
        if self.poll() {
            return;
        }
        self.cq.arm().unwrap();
        if self.poll() {
            return;
        }
        sleep(&self.wait, deadline, self.deadline(), what);
    }
}

fn sleep(wait: &WaitSet, deadline: Instant, wanted: Option<Instant>, what: &str) {
    let until = wanted.map_or(deadline, |wanted| wanted.min(deadline));
    let left = until.saturating_duration_since(Instant::now());
    // A nanosecond more, so that a deadline has passed when the wait is over.
    wait.wait(Some(left + Duration::from_nanos(1)), &mut Vec::new()).unwrap();
    assert!(Instant::now() < deadline, "waited in vain for {what}");
}

/// Two ends driven by one thread.
pub struct Pair<D: Device> {
    /// The side that connects.
    pub active: End<D>,
    /// The side that listens.
    pub passive: End<D>,
    /// Where the passive end listens.
    pub address: SocketAddr,
    wait: WaitSet,
}

/// Queue pairs of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Joined {
    /// That of the side that connected.
    pub active: QpNumber,
    /// That of the side that accepted.
    pub passive: QpNumber,
}

impl<D: Device> Pair<D> {
    /// A rig's two devices, the passive one listening.
    pub fn new(rig: &impl Rig<Device = D>) -> Self {
        let (active, passive) = rig.devices();
        let (active, mut passive) = (End::new(active), End::new(passive));
        let address = passive.listen(rig.listen_address());
        let wait = WaitSet::new().unwrap();
        wait.add(active.wait.as_fd(), Token(0), Interest::Read).unwrap();
        wait.add(passive.wait.as_fd(), Token(1), Interest::Read).unwrap();
        Self { active, passive, address, wait }
    }

    /// Drives both ends until `done` answers.
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(answer) = done(self) {
                return answer;
            }
            if self.active.poll() | self.passive.poll() {
                continue;
            }
            self.active.cq.arm().unwrap();
            self.passive.cq.arm().unwrap();
            if self.active.poll() | self.passive.poll() {
                continue;
            }
            let wanted = self.active.deadline().into_iter().chain(self.passive.deadline()).min();
            sleep(&self.wait, deadline, wanted, what);
        }
    }

    /// Drives both ends until nothing has come for a while.
    pub fn settle(&mut self) {
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
            if self.active.poll() | self.passive.poll() {
                last = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// New queue pairs, connected, after `prepare` posted receives on them.
    pub fn join(&mut self, prepare: impl FnOnce(&mut Self, Joined)) -> Joined {
        let (joined, events) = self.try_join(prepare);
        let established = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Established { .. });
        assert!(events.iter().all(established), "{events:?}");
        joined
    }

    /// The same where connecting may go wrong: also the first event of the active and the passive side.
    pub fn try_join(&mut self, prepare: impl FnOnce(&mut Self, Joined)) -> (Joined, [ConnectionEvent; 2]) {
        let joined = Joined {
            active: self.active.queue_pair(CAPABILITIES).0,
            passive: self.passive.queue_pair(CAPABILITIES).0,
        };
        prepare(self, joined);
        self.active.connect(joined.active, self.address, b"");
        self.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
        self.passive.accept(joined.passive, b"");
        (joined, [self.event(joined, false), self.event(joined, true)])
    }

    /// New connected queue pairs, the passive one with as many empty receives as it takes.
    pub fn join_with_receives(&mut self) -> Joined {
        self.join(|pair, joined| {
            pair.passive.post_empty_receives(joined.passive, CAPABILITIES.recv_depth.into());
        })
    }

    /// The next event of one side.
    pub fn event(&mut self, joined: Joined, passive: bool) -> ConnectionEvent {
        self.until("an event", |pair| {
            let (end, qp) =
                if passive { (&mut pair.passive, joined.passive) } else { (&mut pair.active, joined.active) };
            end.happened.get_mut(&qp)?.pop_front()
        })
    }

    /// The next completion of the active end.
    pub fn at_active(&mut self) -> Completion {
        self.until("a completion at the active side", |pair| pair.active.completions.pop_front())
    }

    /// The next completion of the passive end.
    pub fn at_passive(&mut self) -> Completion {
        self.until("a completion at the passive side", |pair| pair.passive.completions.pop_front())
    }

    /// That the connection works: a message goes each way it can, with an empty receive at the
    /// passive side.
    pub fn works(&mut self, joined: Joined) {
        self.active.post(joined.active, 4711, SEND, &[]);
        assert_eq!(self.at_active(), success(joined.active, 4711, CompletionKind::Send));
        let received = self.at_passive();
        assert_eq!(received, success(joined.passive, received.id, CompletionKind::Recv));
    }
}

/// The completion of a request without details.
pub fn success(qp: QpNumber, id: u64, kind: CompletionKind) -> Completion {
    Completion {
        qp,
        id,
        kind,
        status: CompletionStatus::Success,
        length: 0,
        immediate: None,
        invalidated: None,
    }
}

/// `length` bytes of a region, from `offset` on, for a local request.
pub fn segment(region: &impl MemoryRegion, offset: usize, length: usize) -> Segment {
    let address = region.address() + offset as u64;
    Segment { key: region.local_key(), address, length: u32::try_from(length).unwrap() }
}

/// A place in a region, as its peer names it.
pub fn remote(region: &impl MemoryRegion, offset: usize) -> RemoteAddress {
    RemoteAddress { key: region.remote_key(), address: region.address() + offset as u64 }
}

/// All bytes of a region.
pub fn bytes(region: &impl MemoryRegion) -> Vec<u8> {
    let mut bytes = vec![0; region.memory().len()];
    region.memory().read(0, &mut bytes).unwrap();
    bytes
}

/// Bytes that differ at every place and from pattern to pattern.
pub fn pattern(length: usize, salt: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 31 + at / 251 + salt * 97) % 255) as u8 + 1).collect()
}

/// Posts one signalled send with inline payload.
pub fn post_inline<C: CompletionQueue>(
    cq: &mut C,
    qp: QpNumber,
    id: u64,
    operation: Operation,
    bytes: &[u8],
) -> rdma_verbs::Result<()> {
    let slices = [IoSlice::new(bytes)];
    let payload = Payload::Inline(&slices);
    cq.post_send(qp, &[SendRequest { id, signaled: true, operation, payload }], false)
}

/// Asserts that private data arrived as it was sent, but for padding where the device pads.
pub fn assert_arrived(rig: &impl Rig, got: &[u8], sent: &[u8]) {
    let (data, padding) = got.split_at_checked(sent.len()).expect("all of the private data");
    assert_eq!(data, sent);
    assert!(padding.iter().all(|&byte| byte == 0), "{padding:?}");
    assert!(padding.is_empty() || rig.private_data_padded(), "{} bytes too many", padding.len());
}

/// Asserts that a connection stands, and that this private data came with the reply.
pub fn assert_established(rig: &impl Rig, event: &ConnectionEvent, sent: &[u8]) {
    match event {
        ConnectionEvent::Established { private_data } => assert_arrived(rig, private_data, sent),
        other => panic!("{other:?}"),
    }
}

/// Private data of the oldest request.
pub fn private_data<D: Device>(end: &End<D>) -> Vec<u8> {
    end.requests.front().expect("a request").private_data().to_vec()
}
