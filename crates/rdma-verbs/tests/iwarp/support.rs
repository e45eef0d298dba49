//! Two connected devices, and a peer that is a plain socket.

use std::collections::VecDeque;
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use iwarp_wire::ddp::{Tagged, Untagged};
use iwarp_wire::mpa::{self, Enhanced, FRAME_HEADER, Frame, FrameKind};
use iwarp_wire::rdmap::Opcode;
use rdma_testkit::harness::{End, step};
use rdma_verbs::iwarp::{Config, ConnectionRequest, Device, Listener, MemoryRegion};
use rdma_verbs::{
    Access, CompletionQueue as _, ConnectOptions, ConnectionEvent, ConnectionRequest as _, Connections as _,
    Device as _, EventTarget, Listener as _, Memory, MemoryRegion as _, Operation, Payload, QpCapabilities,
    QpId, QueuePairs as _, RemoteAddress, Segment, SendRequest, WaitSet,
};

pub(super) use rdma_testkit::harness::{LIMIT, OPTIONS, SEND};

pub(super) const V4: &str = "127.0.0.1:0";
pub(super) const V6: &str = "[::1]:0";
pub(super) const RING: usize = 1 << 20;

pub(super) const CAPABILITIES: QpCapabilities = QpCapabilities {
    send_depth: 64,
    recv_depth: 64,
    inline: 256 * 1024,
    initiator_depth: 4,
    responder_resources: 4,
};

pub(super) fn config(mpa_revision: u8, crc: bool) -> Config {
    Config { mpa_revision, crc, ..Config::default() }
}

/// An end with one queue pair and two regions: one with remote access, one without.
pub(super) struct Side {
    pub(super) end: End<Device>,
    pub(super) qp: QpId,
    pub(super) ring: Option<MemoryRegion>,
    pub(super) own: MemoryRegion,
}

impl Side {
    pub(super) fn new(config: Config) -> Self {
        Self::with(config, CAPABILITIES)
    }

    pub(super) fn with(config: Config, capabilities: QpCapabilities) -> Self {
        let mut end = End::new(Device::new(config).unwrap());
        let (qp, granted) = end.queue_pair(capabilities);
        assert_eq!(granted, capabilities);
        let ring = Some(end.region(RING, Access::REMOTE_WRITE | Access::REMOTE_READ));
        let own = end.region(RING, Access::LOCAL_WRITE);
        Self { end, qp, ring, own }
    }

    pub(super) fn target(&self) -> EventTarget {
        self.end.target()
    }

    pub(super) fn ring(&self) -> &MemoryRegion {
        self.ring.as_ref().unwrap()
    }

    /// The remote address of the region that the peer may access.
    pub(super) fn remote(&self, address: u64) -> RemoteAddress {
        RemoteAddress { key: self.ring().remote_key(), address }
    }

    pub(super) fn segment(&self, address: u64, length: u32) -> Segment {
        Segment { key: self.own.local_key(), address, length }
    }

    pub(super) fn connect(&mut self, remote: SocketAddr, private_data: &[u8]) {
        self.end.connect(self.qp, remote, private_data);
    }

    pub(super) fn accept(&mut self, request: ConnectionRequest, private_data: &[u8]) {
        self.end.requests.push_back(request);
        self.end.accept(self.qp, private_data);
    }

    /// Posts `count` receives with ids from 0, each with 4 KiB of the private region.
    pub(super) fn post_receives(&mut self, count: u64) {
        for id in 0..count {
            self.end.receive_into(self.qp, id, self.segment(id * 4096, 4096));
        }
    }

    pub(super) fn send(&mut self, id: u64, operation: Operation, payload: Payload<'_>) {
        self.try_send(id, operation, payload).unwrap();
    }

    pub(super) fn try_send(
        &mut self,
        id: u64,
        operation: Operation,
        payload: Payload<'_>,
    ) -> rdma_verbs::Result<()> {
        self.end.cq.post_send(self.qp, &[SendRequest { id, signaled: true, operation, payload }], false)
    }

    pub(super) fn send_bytes(&mut self, id: u64, operation: Operation, bytes: &[u8]) {
        self.end.post_inline(self.qp, id, operation, bytes).unwrap();
    }

    /// Attaches this set to the completion queue.
    pub(super) fn attach(&mut self, wait: &Arc<WaitSet>) {
        self.end.data = Arc::clone(wait);
        self.end.cq.attach(Arc::clone(wait)).unwrap();
    }

    /// Collects completions, but no events.
    pub(super) fn poll(&mut self) {
        self.end.poll_completions();
    }

    pub(super) fn event(&mut self) -> ConnectionEvent {
        self.end.next_event(self.qp)
    }

    pub(super) fn read_ring(&self, offset: u64, length: usize) -> Vec<u8> {
        read(self.ring().memory(), offset, length)
    }

    pub(super) fn read_own(&self, offset: u64, length: usize) -> Vec<u8> {
        read(self.own.memory(), offset, length)
    }
}

pub(super) fn read(memory: &Memory, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    memory.read(offset, &mut bytes).unwrap();
    bytes
}

/// Bytes that differ from place to place, and for each `seed`.
pub(super) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (seed..seed + length).map(|index| (index * 31 + index / 251) as u8).collect()
}

pub(super) fn write(remote: RemoteAddress) -> Operation {
    Operation::Write { remote, immediate: None }
}

pub(super) fn listen(config: Config, address: &str) -> (Listener, Arc<WaitSet>) {
    listen_with(config, address, 16, &OPTIONS)
}

pub(super) fn listen_with(
    config: Config,
    address: &str,
    backlog: u32,
    options: &ConnectOptions,
) -> (Listener, Arc<WaitSet>) {
    let wait = Arc::new(WaitSet::new().unwrap());
    let events = EventTarget::new(&wait);
    let device = Device::new(config).unwrap();
    (device.listen(address.parse().unwrap(), backlog, options, events).unwrap(), wait)
}

/// Waits for the next request.
pub(super) fn next_request(listener: &mut Listener, wait: &WaitSet) -> ConnectionRequest {
    let start = Instant::now();
    loop {
        if let Some(request) = listener.poll() {
            return request;
        }
        assert!(start.elapsed() < LIMIT, "no request");
        let mut ready = Vec::new();
        wait.wait(Some(Duration::from_millis(200)), &mut ready).unwrap();
    }
}

/// Two connected sides with posted receives.
pub(super) fn pair_with(active: Config, passive: Config, address: &str) -> (Side, Side) {
    let (mut a, mut b) = (Side::new(active), Side::new(passive));
    a.post_receives(32);
    b.post_receives(32);
    join(&mut a, &mut b, address);
    (a, b)
}

/// Connects `a` to `b`.
pub(super) fn join(a: &mut Side, b: &mut Side, address: &str) {
    let address = b.end.listen(address.parse().unwrap());
    request_connection(a, b, address);
    accept_request(a, b);
}

/// Starts to connect `a`, until `b` has its request.
fn request_connection(a: &mut Side, b: &mut Side, address: SocketAddr) {
    a.connect(address, b"from a");
    until(a, b, |_, b| !b.end.requests.is_empty());
    assert_eq!(b.end.requests[0].private_data(), b"from a");
}

/// Accepts the request at `b`, until both are connected.
fn accept_request(a: &mut Side, b: &mut Side) {
    b.end.accept(b.qp, b"from b");
    b.end.listener = None;
    // The active side is first: the passive side waits for its first frame.
    assert_eq!(a.event(), ConnectionEvent::Established { private_data: b"from b".to_vec() });
    assert_eq!(b.event(), ConnectionEvent::Established { private_data: Vec::new() });
}

pub(super) fn pair() -> (Side, Side) {
    pair_with(Config::default(), Config::default(), V4)
}

/// Posts writes of 250 000 bytes to the quarters of the peer's region, with ids from 0, until neither the
/// sockets nor the staging memory take more. The peer does not poll. TCP may enlarge the window when it
/// probes it, so this continues until posts have been refused for half a second. Returns the number of posted
/// writes.
pub(super) fn fill(side: &mut Side, peer: &Side) -> u64 {
    let bytes = pattern(1, QUARTER);
    let slices = [IoSlice::new(&bytes)];
    let (mut posted, mut refused) = (0, 0);
    while refused < 50 {
        let to = peer.remote(posted % 4 * QUARTER as u64);
        match side.try_send(posted, write(to), Payload::Inline(&slices)) {
            Ok(()) => (posted, refused) = (posted + 1, 0),
            Err(_) => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        side.poll();
    }
    posted
}

pub(super) const QUARTER: usize = 250_000;

/// Drives both sides until `done`.
pub(super) fn until(a: &mut Side, b: &mut Side, mut done: impl FnMut(&Side, &Side) -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done(a, b) {
        step(&mut [&mut a.end, &mut b.end], deadline, "the expected state").unwrap();
        let events = [&a.end.connection_events, &b.end.connection_events];
        assert!(events.iter().all(|of| of.values().all(VecDeque::is_empty)), "{events:?}");
    }
}

/// Drives one side until `done`.
pub(super) fn until_one(side: &mut Side, mut done: impl FnMut(&Side) -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !done(side) {
        step(&mut [&mut side.end], deadline, "the expected state").unwrap();
    }
}

/// A peer whose bytes the test writes and reads.
pub(super) struct Peer(pub(super) TcpStream);

impl Peer {
    /// Connects to a device as an active side of MPA revision 1, which announces no first frame. The device's
    /// side is established afterwards.
    pub(super) fn active(side: &mut Side, address: &str) -> Self {
        let (mut listener, wait) = listen(Config::default(), address);
        let mut peer = Self::dial(listener.local_address());
        peer.0.write_all(&request(FrameKind::Request, 1, 0, b"")).unwrap();
        side.accept(next_request(&mut listener, &wait), b"");
        assert!(matches!(side.event(), ConnectionEvent::Established { .. }));
        let (reply, _) = peer.read_frame(FrameKind::Reply);
        assert!(!reply.reject);
        peer
    }

    pub(super) fn dial(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).unwrap())
    }

    pub(super) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    /// Accepts a device's connection and reads its request.
    pub(super) fn passive(side: &mut Side) -> (Self, Frame, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        side.connect(listener.local_addr().unwrap(), b"user");
        let (stream, _) = listener.accept().unwrap();
        let mut peer = Self::over(stream);
        peer.0.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let start = Instant::now();
        // Polling events makes the device send its request.
        while peer.0.peek(&mut [0]).is_err() {
            assert_eq!(side.end.cq.poll_event(side.qp), None);
            assert!(start.elapsed() < LIMIT, "no request");
        }
        peer.0.set_read_timeout(Some(LIMIT)).unwrap();
        let (frame, private_data) = peer.read_frame(FrameKind::Request);
        (peer, frame, private_data)
    }

    pub(super) fn read_frame(&mut self, kind: FrameKind) -> (Frame, Vec<u8>) {
        let mut header = [0; FRAME_HEADER];
        self.0.read_exact(&mut header).unwrap();
        let frame = Frame::parse(&header, kind).unwrap();
        let mut private_data = vec![0; usize::from(frame.private_data)];
        self.0.read_exact(&mut private_data).unwrap();
        (frame, private_data)
    }

    /// The ULPDU of the next FPDU.
    pub(super) fn read_fpdu(&mut self) -> Vec<u8> {
        let mut field = [0; 2];
        self.0.read_exact(&mut field).unwrap();
        let mut ulpdu = vec![0; usize::from(u16::from_be_bytes(field))];
        self.0.read_exact(&mut ulpdu).unwrap();
        let mut trailer = vec![0; mpa::padding(ulpdu.len()) + mpa::CRC];
        self.0.read_exact(&mut trailer).unwrap();
        ulpdu
    }

    /// Layer, type and code of the next message, which is a Terminate.
    pub(super) fn read_terminate(&mut self) -> (u8, u8, u8) {
        let ulpdu = self.read_fpdu();
        assert_eq!(ulpdu[..2], [0x41, Opcode::Terminate.control()], "not a Terminate");
        assert_eq!(ulpdu[6..18], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
        (ulpdu[18] >> 4, ulpdu[18] & 0xf, ulpdu[19])
    }
}

/// A request or reply frame with these flags, and in revision 2 with parameters.
pub(super) fn request(kind: FrameKind, revision: u8, flags: u8, private_data: &[u8]) -> Vec<u8> {
    let parameters = Enhanced {
        // An active peer announces no first frame. A passive one accepts the device's announcement.
        peer_to_peer: kind == FrameKind::Reply,
        rtr_send: false,
        rtr_write: true,
        rtr_read: kind == FrameKind::Request,
        ird: 4,
        ord: 4,
    };
    let parameters = if revision >= 2 { parameters.emit().to_vec() } else { Vec::new() };
    let frame = Frame {
        kind,
        markers: flags & 0x80 != 0,
        crc: flags & 0x40 != 0,
        reject: flags & 0x20 != 0,
        enhanced: revision >= 2,
        revision,
        private_data: (parameters.len() + private_data.len()) as u16,
    };
    let mut header = [0; FRAME_HEADER];
    frame.emit(&mut header);
    [&header[..], &parameters, private_data].concat()
}

/// An FPDU with this ULPDU and a correct CRC.
pub(super) fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(ulpdu);
    bytes.resize(bytes.len() + mpa::padding(ulpdu.len()), 0);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&mpa::crc_field(crc));
    bytes
}

pub(super) fn tagged(opcode: u8, last: bool, stag: u32, offset: u64, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; 14];
    Tagged { last, ulp: 0x40 | opcode, stag, offset }.emit(&mut header);
    fpdu(&[&header, payload].concat())
}

pub(super) fn untagged(header: Untagged, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [0; 18];
    header.emit(&mut bytes);
    fpdu(&[&bytes, payload].concat())
}

/// The header of a Send of one segment with this sequence number.
pub(super) fn send_header(sequence: u32) -> Untagged {
    Untagged { last: true, ulp: 0x43, ulp_word: 0, queue: 0, sequence, offset: 0 }
}
