//! Two connected devices, and a peer made of a plain socket.

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::iwarp::{CompletionQueue, Config, ConnectionRequest, Device, Listener, MemoryRegion};
use crate::{
    Access, Completion, CompletionQueue as _, ConnectOptions, ConnectionEvent, ConnectionRequest as _,
    Device as _, EventTarget, Listener as _, Memory, MemoryRegion as _, Operation, Payload,
    ProtectionDomain as _, QpCapabilities, QpNumber, RecvRequest, RemoteAddress, Segment, SendRequest, Token,
    WaitSet,
};
use iwarp_wire::ddp::{Tagged, Untagged};
use iwarp_wire::mpa::{self, Enhanced, FRAME_HEADER, Frame, FrameKind};
use iwarp_wire::rdmap::Opcode;

pub(super) const V4: &str = "127.0.0.1:0";
pub(super) const V6: &str = "[::1]:0";
pub(super) const RING: usize = 1 << 20;
/// Longer than anything takes that is expected to happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const CAPABILITIES: QpCapabilities = QpCapabilities {
    send_depth: 64,
    recv_depth: 64,
    inline: 256 * 1024,
    initiator_depth: 4,
    responder_resources: 4,
};

pub(super) fn options() -> ConnectOptions {
    ConnectOptions { timeout: PATIENCE, keepalive: Duration::from_secs(30) }
}

pub(super) fn config(mpa_revision: u8, crc: bool) -> Config {
    Config { mpa_revision, crc, ..Config::default() }
}

/// A queue with one queue pair and two regions: one that the peer may use, one for itself.
pub(super) struct Side {
    pub(super) device: Device,
    pub(super) cq: CompletionQueue,
    pub(super) qp: QpNumber,
    pub(super) wait: Arc<WaitSet>,
    pub(super) ring: Option<MemoryRegion>,
    pub(super) own: MemoryRegion,
    pub(super) completions: Vec<Completion>,
}

impl Side {
    pub(super) fn new(config: Config) -> Self {
        Self::with(config, CAPABILITIES)
    }

    pub(super) fn with(config: Config, capabilities: QpCapabilities) -> Self {
        let device = Device::new(config).unwrap();
        let pd = device.alloc_pd().unwrap();
        let mut cq = device.create_cq(2048).unwrap();
        let (qp, granted) = cq.create_qp(&pd, capabilities).unwrap();
        assert_eq!(granted, capabilities);
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let ring = pd.register(Memory::zeroed(RING).unwrap(), remote).unwrap();
        let own = pd.register(Memory::zeroed(RING).unwrap(), Access::LOCAL_WRITE).unwrap();
        let wait = Arc::new(WaitSet::new().unwrap());
        Self { device, cq, qp, wait, ring: Some(ring), own, completions: Vec::new() }
    }

    pub(super) fn target(&self) -> EventTarget {
        EventTarget { wait: Arc::clone(&self.wait), token: Token(7) }
    }

    pub(super) fn ring(&self) -> &MemoryRegion {
        self.ring.as_ref().unwrap()
    }

    /// Where the peer may write and read.
    pub(super) fn remote(&self, address: u64) -> RemoteAddress {
        RemoteAddress { key: self.ring().remote_key(), address }
    }

    pub(super) fn segment(&self, address: u64, length: u32) -> Segment {
        Segment { key: self.own.local_key(), address, length }
    }

    pub(super) fn connect(&mut self, remote: SocketAddr, private_data: &[u8]) {
        self.cq.connect(self.qp, remote, None, private_data, &options(), self.target()).unwrap();
    }

    pub(super) fn accept(&mut self, request: ConnectionRequest, private_data: &[u8]) {
        self.cq.accept(self.qp, request, private_data, &options(), self.target()).unwrap();
    }

    /// Posts receives with the ids 0 to `count`, each with 4 KiB of its own region.
    pub(super) fn post_receives(&mut self, count: u64) {
        for id in 0..count {
            let buffer = Some(self.segment(id * 4096, 4096));
            self.cq.post_recv(self.qp, &[RecvRequest { id, buffer }]).unwrap();
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
    ) -> crate::Result<()> {
        self.cq.post_send(self.qp, &[SendRequest { id, signaled: true, operation, payload }], false)
    }

    pub(super) fn send_bytes(&mut self, id: u64, operation: Operation, bytes: &[u8]) {
        self.send(id, operation, Payload::Inline(&[IoSlice::new(bytes)]));
    }

    pub(super) fn poll(&mut self) {
        let mut out = [Completion::EMPTY; 8];
        loop {
            let count = self.cq.poll(&mut out);
            self.completions.extend_from_slice(&out[..count]);
            if count == 0 {
                return;
            }
        }
    }

    /// The next event, within a patience.
    pub(super) fn event(&mut self) -> ConnectionEvent {
        let start = Instant::now();
        loop {
            if let Some(event) = self.cq.poll_event(self.qp) {
                return event;
            }
            assert!(start.elapsed() < PATIENCE, "no event");
            let mut ready = Vec::new();
            self.wait.wait(Some(Duration::from_millis(200)), &mut ready).unwrap();
            assert!(ready.iter().all(|&token| token == Token(7)));
        }
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

/// Bytes that differ everywhere, from `seed` on.
pub(super) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (seed..seed + length).map(|index| (index * 31 + index / 251) as u8).collect()
}

pub(super) const SEND: Operation = Operation::Send { immediate: None, invalidate: None, solicited: false };

pub(super) fn write(remote: RemoteAddress) -> Operation {
    Operation::Write { remote, immediate: None }
}

pub(super) fn listen(config: Config, address: &str) -> (Listener, Arc<WaitSet>) {
    listen_with(config, address, 16, &options())
}

pub(super) fn listen_with(
    config: Config,
    address: &str,
    backlog: u32,
    options: &ConnectOptions,
) -> (Listener, Arc<WaitSet>) {
    let wait = Arc::new(WaitSet::new().unwrap());
    let events = EventTarget { wait: Arc::clone(&wait), token: Token(9) };
    let device = Device::new(config).unwrap();
    (device.listen(address.parse().unwrap(), backlog, options, events).unwrap(), wait)
}

/// The next request, waiting on the set as a user does.
pub(super) fn next_request(listener: &mut Listener, wait: &WaitSet) -> ConnectionRequest {
    let start = Instant::now();
    loop {
        if let Some(request) = listener.poll() {
            return request;
        }
        assert!(start.elapsed() < PATIENCE, "no request");
        let mut ready = Vec::new();
        wait.wait(Some(Duration::from_millis(200)), &mut ready).unwrap();
    }
}

/// Two sides that are connected; receives are posted on both.
pub(super) fn pair_with(active: Config, passive: Config, address: &str) -> (Side, Side) {
    let (mut a, mut b) = (Side::new(active), Side::new(passive));
    a.post_receives(32);
    b.post_receives(32);
    join(&mut a, &mut b, address);
    (a, b)
}

/// Connects `a` to `b`.
pub(super) fn join(a: &mut Side, b: &mut Side, address: &str) {
    let (mut listener, wait) = listen(Config::default(), address);
    let request = ask(a, &mut listener, &wait);
    answer(a, b, request);
}

/// Connects `a` to `b`, and has them share their rings.
pub(super) fn join_sharing(a: &mut Side, b: &mut Side, address: &str) {
    let (mut listener, wait) = listen(Config::default(), address);
    let ring = a.ring.as_ref().unwrap();
    let invitation = a.cq.invite(a.qp, listener.local_address(), ring).expect("both are on this host");
    let request = ask(a, &mut listener, &wait);
    let visited = b.cq.visit(b.qp, &request, &invitation, b.ring.as_ref().unwrap());
    assert!(visited, "nothing is in the way");
    answer(a, b, request);
    a.cq.meet(a.qp, visited);
}

/// Has `a` ask for a connection.
fn ask(a: &mut Side, listener: &mut Listener, wait: &WaitSet) -> ConnectionRequest {
    a.connect(listener.local_address(), b"from a");
    assert_eq!(a.cq.poll_event(a.qp), None);
    let start = Instant::now();
    let request = loop {
        // The active side has to send its request once it is connected.
        assert_eq!(a.cq.poll_event(a.qp), None);
        if let Some(request) = listener.poll() {
            break request;
        }
        assert!(start.elapsed() < PATIENCE, "no request");
        wait.wait(Some(Duration::from_millis(1)), &mut Vec::new()).unwrap();
    };
    assert_eq!(request.private_data(), b"from a");
    request
}

/// Has `b` accept it.
fn answer(a: &mut Side, b: &mut Side, request: ConnectionRequest) {
    b.accept(request, b"from b");
    // The passive side waits for the active side's first frame, which needs the reply.
    assert_eq!(a.event(), ConnectionEvent::Established { private_data: b"from b".to_vec() });
    assert_eq!(b.event(), ConnectionEvent::Established { private_data: Vec::new() });
}

pub(super) fn pair() -> (Side, Side) {
    pair_with(Config::default(), Config::default(), V4)
}

/// Writes to the peer, who does not poll, until neither the sockets nor staging take any more, for so
/// long that the system has probed the closed window, which can make it larger.
/// Answers the writes posted, with ids from 0: 250 000 bytes each, to the quarters of its region.
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

/// Polls both sides until `done`.
pub(super) fn until(a: &mut Side, b: &mut Side, mut done: impl FnMut(&Side, &Side) -> bool) {
    let start = Instant::now();
    while !done(a, b) {
        a.poll();
        b.poll();
        let events = [&mut *a, b].map(|side| side.cq.poll_event(side.qp));
        assert_eq!(events, [None, None], "an end instead of what should come");
        assert!(start.elapsed() < PATIENCE, "it does not come: {:?}, {:?}", a.completions, b.completions);
    }
}

/// Polls one side until `done`.
pub(super) fn until_one(side: &mut Side, mut done: impl FnMut(&Side) -> bool) {
    let start = Instant::now();
    while !done(side) {
        side.poll();
        assert!(start.elapsed() < PATIENCE, "it does not come: {:?}", side.completions);
    }
}

/// A peer that a test plays byte by byte.
pub(super) struct Peer(pub(super) TcpStream);

impl Peer {
    /// Connects to a device as an active side of revision 1, which promises no first frame, and
    /// returns it established.
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
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
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
        // The device sends its request when it is asked for events once it is connected.
        while peer.0.peek(&mut [0]).is_err() {
            assert_eq!(side.cq.poll_event(side.qp), None);
            assert!(start.elapsed() < PATIENCE, "no request");
        }
        peer.0.set_read_timeout(Some(PATIENCE)).unwrap();
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

    /// Layer, type and code of the Terminate that comes next.
    pub(super) fn read_terminate(&mut self) -> (u8, u8, u8) {
        let ulpdu = self.read_fpdu();
        assert_eq!(ulpdu[..2], [0x41, Opcode::Terminate.control()], "not a Terminate");
        assert_eq!(ulpdu[6..18], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
        (ulpdu[18] >> 4, ulpdu[18] & 0xf, ulpdu[19])
    }
}

/// A request or reply frame with flags as they are on the wire; in revision 2 with parameters.
pub(super) fn request(kind: FrameKind, revision: u8, flags: u8, private_data: &[u8]) -> Vec<u8> {
    let parameters = Enhanced {
        // An active peer that promises no first frame; a passive one takes up ours.
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

/// An FPDU around a ULPDU, its CRC right.
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

/// Header of a whole Send with this sequence number.
pub(super) fn send_header(sequence: u32) -> Untagged {
    Untagged { last: true, ulp: 0x43, ulp_word: 0, queue: 0, sequence, offset: 0 }
}
