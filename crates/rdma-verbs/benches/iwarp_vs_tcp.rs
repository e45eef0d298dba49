//! Compares the embedded iWARP device with plain TCP. Both use loopback and poll, and they run in turns.
//!
//! `cargo bench --bench iwarp_vs_tcp [-- --segment BYTES --rounds N --crc]`
//!
//! One way: messages of 64 KiB. The device writes them with immediate data into the peer's ring of 1 MiB, and
//! the peer returns room when it has consumed half a ring. TCP reads them into a buffer of the same size.
//! Ping-pong: messages of 64 bytes; the result is half of the round-trip time.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rdma_testkit::harness::{End, Pair};
use rdma_testkit::rigs::IwarpRig;
use rdma_verbs::iwarp::{Config, Device, MemoryRegion};
use rdma_verbs::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue as _, CompletionStatus, Connections as _,
    MemoryRegion as _, Operation, Payload, QpCapabilities, QpId, QueuePairs as _, RecvRequest, RemoteAddress,
    SendRequest,
};

const MESSAGE: usize = 64 * 1024;
const RING: usize = 1 << 20;
const PING: usize = 64;
const RECEIVES: u32 = 384;

#[derive(Clone, Copy)]
struct Settings {
    config: Config,
    rounds: usize,
    bytes: usize,
    pings: usize,
}

fn main() {
    let settings = settings();
    println!(
        "one way: {} MiB of {} KiB messages; ping-pong: {} of {PING} B; {} rounds; segment {} B, CRC {}; {} CPUs",
        settings.bytes >> 20,
        MESSAGE >> 10,
        settings.pings,
        settings.rounds,
        settings.config.segment,
        if settings.config.crc { "on" } else { "off" },
        std::thread::available_parallelism().map_or(0, usize::from),
    );
    let mut results: [Vec<f64>; 6] = Default::default();
    for _ in 0..settings.rounds {
        results[0].push(rate(settings.bytes, iwarp(settings, one_way_send, one_way_receive)));
        results[1].push(rate(settings.bytes, tcp(settings, tcp_one_way_send, tcp_one_way_receive)));
        results[2].push(half_trip(settings.pings, iwarp(settings, ping, pong)));
        results[3].push(half_trip(settings.pings, tcp(settings, tcp_ping, tcp_pong)));
        results[4].push(half_trip(settings.pings, iwarp_alone(settings)));
        results[5].push(half_trip(settings.pings, tcp_alone(settings)));
    }
    let [rate, tcp_rate, trip, tcp_trip, alone, tcp_alone] = results.map(Summary::of);
    println!("| scenario | iwarp median (min to max) | TCP median (min to max) | ratio |\n|---|---|---|---|");
    println!(
        "| one way, MiB/s | {rate} | {tcp_rate} | {:.3} (aim: 0.95 or more) |",
        rate.median / tcp_rate.median
    );
    println!(
        "| ping-pong, µs | {trip} | {tcp_trip} | {:.3} (aim: 1.10 or less) |",
        trip.median / tcp_trip.median
    );
    println!(
        "| ping-pong in one thread, µs | {alone} | {tcp_alone} | {:.3} |",
        alone.median / tcp_alone.median
    );
}

fn settings() -> Settings {
    let mut settings = Settings { config: Config::default(), rounds: 7, bytes: 1 << 30, pings: 20_000 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|value| value.parse().ok()).expect("a number");
        match argument.as_str() {
            "--segment" => settings.config.segment = number(),
            "--rounds" => settings.rounds = number(),
            "--mib" => settings.bytes = number() << 20,
            "--pings" => settings.pings = number(),
            "--crc" => settings.config.crc = true,
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    settings
}

struct Summary {
    median: f64,
    least: f64,
    most: f64,
}

impl Summary {
    fn of(mut results: Vec<f64>) -> Self {
        results.sort_by(f64::total_cmp);
        Self { median: results[results.len() / 2], least: results[0], most: results[results.len() - 1] }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ({:.2} to {:.2})", self.median, self.least, self.most)
    }
}

fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / (1 << 20) as f64 / time.as_secs_f64()
}

fn half_trip(count: usize, time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64 / 2.0
}

/// One side of a connection over the device.
struct Side {
    end: End<Device>,
    qp: QpId,
    ring: MemoryRegion,
    remote: u32,
}

impl Side {
    fn post(&mut self, operation: Operation, payload: &[u8]) -> bool {
        let payload = &[IoSlice::new(payload)];
        let request = SendRequest { id: 0, signaled: false, operation, payload: Payload::Inline(payload) };
        self.end.cq.post_send(self.qp, &[request], false).is_ok()
    }

    /// Calls `each` with every completed receive, and posts it again. Returns their number.
    fn poll(&mut self, mut each: impl FnMut(&Completion)) -> usize {
        let mut out = [Completion::EMPTY; 32];
        let count = self.end.cq.poll(&mut out);
        for completion in &out[..count] {
            assert_eq!(completion.status, CompletionStatus::Success);
            assert!(matches!(completion.kind, CompletionKind::Recv | CompletionKind::RecvWrite));
            each(completion);
            self.end
                .cq
                .post_recv(self.qp, &[RecvRequest { id: completion.id, buffer: Buffer::Empty }])
                .unwrap();
        }
        if count == 0 {
            std::thread::yield_now();
        }
        count
    }
}

/// Two connected sides.
fn connect(settings: Settings) -> (Side, Side) {
    let mut pair = Pair::new(&IwarpRig(settings.config));
    pair.capabilities = QpCapabilities {
        send_depth: RECEIVES,
        recv_depth: RECEIVES,
        inline: MESSAGE,
        initiator_depth: 1,
        responder_resources: 1,
    };
    let joined = pair.join(|pair, joined| {
        pair.active.post_empty_receives(joined.active, RECEIVES.into());
        pair.passive.post_empty_receives(joined.passive, RECEIVES.into());
    });
    let side =
        |end: End<Device>, qp| Side { qp, ring: end.region(RING, Access::REMOTE_WRITE), end, remote: 0 };
    let (mut a, mut b) = (side(pair.active, joined.active), side(pair.passive, joined.passive));
    (a.remote, b.remote) = (b.ring.remote_key(), a.ring.remote_key());
    (a, b)
}

/// Runs `active` and `passive` on a connection. Returns how long the active side took.
fn iwarp(
    settings: Settings,
    active: fn(&mut Side, Settings) -> Duration,
    passive: fn(&mut Side, Settings),
) -> Duration {
    let (mut a, mut b) = connect(settings);
    let thread = std::thread::spawn(move || {
        passive(&mut b, settings);
        while !b.end.cq.flushed(b.qp) {
            std::thread::yield_now();
        }
    });
    let time = active(&mut a, settings);
    thread.join().unwrap();
    time
}

/// Ping-pong with both sides in one thread, which measures the calls without the scheduler.
fn iwarp_alone(settings: Settings) -> Duration {
    let (mut a, mut b) = connect(settings);
    let message = [7; PING];
    let start = Instant::now();
    for _ in 0..settings.pings {
        for (from, to) in [(0, 1), (1, 0)] {
            let sides = [&mut a, &mut b];
            let remote = RemoteAddress { key: sides[from].remote, address: 0 };
            assert!(sides[from].post(Operation::Write { remote, immediate: Some(0) }, &message));
            while sides[to].poll(|_| {}) == 0 {}
        }
    }
    start.elapsed()
}

fn one_way_send(side: &mut Side, settings: Settings) -> Duration {
    let message = vec![7; MESSAGE];
    let (mut sent, mut freed) = (0, 0);
    let start = Instant::now();
    while freed < settings.bytes {
        while sent < settings.bytes && sent - freed + MESSAGE <= RING {
            let remote = RemoteAddress { key: side.remote, address: (sent % RING) as u64 };
            if !side.post(Operation::Write { remote, immediate: Some(0) }, &message) {
                break;
            }
            sent += MESSAGE;
        }
        side.poll(|completion| freed += completion.immediate.unwrap() as usize);
    }
    start.elapsed()
}

fn one_way_receive(side: &mut Side, settings: Settings) {
    let (mut arrived, mut returned) = (0, 0);
    while returned < settings.bytes {
        side.poll(|completion| arrived += completion.length as usize);
        if arrived - returned >= RING / 2 || arrived == settings.bytes {
            let credit = Operation::Send {
                immediate: Some((arrived - returned) as u64),
                invalidate: None,
                solicited: false,
            };
            if side.post(credit, &[]) {
                returned = arrived;
            }
        }
    }
}

fn ping(side: &mut Side, settings: Settings) -> Duration {
    let message = [7; PING];
    let remote = RemoteAddress { key: side.remote, address: 0 };
    let start = Instant::now();
    for _ in 0..settings.pings {
        assert!(side.post(Operation::Write { remote, immediate: Some(0) }, &message));
        while side.poll(|_| {}) == 0 {}
    }
    start.elapsed()
}

fn pong(side: &mut Side, settings: Settings) {
    let message = [7; PING];
    let remote = RemoteAddress { key: side.remote, address: 0 };
    for _ in 0..settings.pings {
        while side.poll(|_| {}) == 0 {}
        assert!(side.post(Operation::Write { remote, immediate: Some(0) }, &message));
    }
}

/// Runs `active` and `passive` on a TCP connection. Returns how long the active side took.
fn tcp(
    settings: Settings,
    active: fn(&mut TcpStream, Settings) -> Duration,
    passive: fn(&mut TcpStream, Settings),
) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        prepare(&stream);
        passive(&mut stream, settings);
    });
    let mut stream = TcpStream::connect(address).unwrap();
    prepare(&stream);
    let time = active(&mut stream, settings);
    thread.join().unwrap();
    time
}

fn tcp_alone(settings: Settings) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut b, _) = listener.accept().unwrap();
    prepare(&a);
    prepare(&b);
    let mut message = [7; PING];
    let start = Instant::now();
    for _ in 0..settings.pings {
        send_all(&mut a, &message);
        receive_all(&mut b, &mut message);
        send_all(&mut b, &message);
        receive_all(&mut a, &mut message);
    }
    start.elapsed()
}

fn prepare(stream: &TcpStream) {
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
}

/// Repeats `call` while it would block.
fn spin(mut call: impl FnMut() -> std::io::Result<usize>) -> usize {
    loop {
        match call() {
            Ok(count) => return count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn send_all(stream: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let count = spin(|| stream.write(bytes));
        bytes = &bytes[count..];
    }
}

fn receive_all(stream: &mut TcpStream, mut buffer: &mut [u8]) {
    while !buffer.is_empty() {
        let count = spin(|| stream.read(buffer));
        buffer = &mut buffer[count..];
    }
}

fn tcp_one_way_send(stream: &mut TcpStream, settings: Settings) -> Duration {
    let message = vec![7; MESSAGE];
    let start = Instant::now();
    for _ in 0..settings.bytes / MESSAGE {
        send_all(stream, &message);
    }
    receive_all(stream, &mut [0]);
    start.elapsed()
}

fn tcp_one_way_receive(stream: &mut TcpStream, settings: Settings) {
    let mut buffer = vec![0; MESSAGE];
    let mut arrived = 0;
    while arrived < settings.bytes {
        arrived += spin(|| stream.read(&mut buffer));
    }
    send_all(stream, &[1]);
}

fn tcp_ping(stream: &mut TcpStream, settings: Settings) -> Duration {
    let mut message = [7; PING];
    let start = Instant::now();
    for _ in 0..settings.pings {
        send_all(stream, &message);
        receive_all(stream, &mut message);
    }
    start.elapsed()
}

fn tcp_pong(stream: &mut TcpStream, settings: Settings) {
    let mut message = [7; PING];
    for _ in 0..settings.pings {
        receive_all(stream, &mut message);
        send_all(stream, &message);
    }
}
