//! Two connections over simulated devices, with and without faults: each side receives what the other one
//! sends, on every kind of device.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use std::io::{IoSlice, IoSliceMut};

use rdma_testkit::faulty::{Faulty, Plan};
use rdma_testkit::sim;
use rdma_verbs::{
    Completion, CompletionQueue, ConnectOptions, ConnectionRequest, Device, EventTarget, Listener, WaitSet,
};

mod rings;

use super::{Connection, Error, Handshake, Outcome, Peer, Settings, Sizes, StreamQueuePair, run};

fn settings(sizes: Sizes, force_iwarp: bool) -> Settings {
    let connect = ConnectOptions { timeout: Duration::from_secs(10), keepalive: Duration::from_secs(10) };
    Settings { sizes, force_iwarp, share_memory: true, connect, at_cancellation_point: run }
}

/// A pseudo-random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// The byte at an offset of the test's stream.
fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8).wrapping_mul(31)) as u8
}

/// Connects an active and a passive side, each with its own sizes.
fn connect<D: Device>(active: &D, passive: &D, sizes: [Sizes; 2], force_iwarp: bool) -> [Connection<D>; 2] {
    let events = || EventTarget::new(&Arc::new(WaitSet::new().unwrap()));
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let [left, right] = sizes.map(|sizes| settings(sizes, force_iwarp));
    let mut listener = passive.listen(any, 1, &left.connect, events()).unwrap();

    let queue_pair = Box::new(StreamQueuePair::open(active, &left).unwrap());
    let to = (listener.local_address(), None);
    let active = Handshake::connect(queue_pair, to, b"", left, active.attributes(), events());
    let mut active = Some(active.map_err(|(_, error)| error).unwrap());
    let request = until(|| listener.poll());
    let (peer, _) = Peer::decode(request.private_data()).unwrap();
    let queue_pair = Box::new(StreamQueuePair::open(passive, &right).unwrap());
    let passive = Handshake::accept(queue_pair, (request, peer), b"", right, passive.attributes(), events());
    let mut passive = Some(passive.map_err(|(_, error)| error).unwrap());
    [&mut active, &mut passive].map(|side| {
        until(|| match side.take()?.poll() {
            Ok(Outcome::Connected(connection, _)) => Some(*connection),
            Ok(_) => panic!("no connection"),
            Err(waiting) => {
                *side = Some(waiting);
                None
            }
        })
    })
}

fn until<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < deadline, "nothing came within 10 s");
    }
}

/// Streams `amount` bytes both ways at once, in calls of random length, then ends both directions.
fn stream_both_ways<D: Device>(mut sides: [Connection<D>; 2], amount: usize, random: &mut Random) {
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let longest = 1 + random.below(100_000);
    while received != [amount; 2] {
        assert!(Instant::now() < deadline, "stalled: sent {sent:?}, received {received:?} of {amount}");
        let side = random.below(2);
        let connection = &mut sides[side];
        let length = 1 + random.below(longest);
        if random.below(2) == 0 {
            let bytes: Vec<u8> = (sent[side]..amount.min(sent[side] + length)).map(pattern).collect();
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            match connection.send(&[head, tail].map(IoSlice::new), bytes.len(), random.below(8) == 0) {
                Ok(taken) => sent[side] += taken,
                Err(error) => assert_eq!(error, Error::WouldBlock),
            }
        } else {
            let mut bytes = vec![0; length];
            let (head, tail) = bytes.split_at_mut(length / 3);
            let taken = match connection.receive(&mut [head, tail].map(IoSliceMut::new), length, true) {
                Ok(taken) => taken,
                Err(error) => {
                    assert_eq!(error, Error::WouldBlock);
                    0
                }
            };
            for (at, byte) in bytes[..taken].iter().enumerate() {
                assert_eq!(
                    *byte,
                    pattern(received[side] + at),
                    "byte {} of side {side}",
                    received[side] + at
                );
            }
            received[side] += taken;
        }
    }
    for connection in &mut sides {
        connection.shut_send();
    }
    for side in [0, 1, 0, 1, 0, 1, 0, 1] {
        sides[side].progress();
    }
    for mut connection in sides {
        until(|| {
            connection.progress();
            connection.is_over().then_some(())
        });
        assert_eq!(connection.peek_receive(), Ok(0));
        assert_eq!(connection.peek_send(), Err(Error::Shut));
    }
}

fn random_sizes(random: &mut Random) -> Sizes {
    let sizes = [1, 7, 64, 1000, 4096, 32 * 1024, 1 << 20, 3 << 20];
    let depths = [4, 5, 16, 384, 1024];
    Sizes {
        send_buffer: sizes[random.below(sizes.len())],
        recv_buffer: sizes[random.below(sizes.len())],
        send_depth: depths[random.below(depths.len())],
        recv_depth: depths[random.below(depths.len())],
    }
}

fn devices(random: &mut Random) -> sim::Config {
    let base = if random.below(2) == 0 { sim::Config::iwarp() } else { sim::Config::infiniband() };
    let inline = [0, 3, 4, 64, 4096, 1 << 20][random.below(6)];
    sim::Config { inline, wire: 1 + random.below(64), max_private_data: 64, ..base }
}

#[test]
fn every_byte_arrives_on_any_device() {
    for seed in 1..=60 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let fabric = sim::Fabric::new();
        let config = devices(&mut random);
        let sizes = [random_sizes(&mut random), random_sizes(&mut random)];
        let force_iwarp = random.below(3) == 0;
        let least = sizes.iter().flat_map(|o| [o.send_buffer, o.recv_buffer]).min().unwrap_or(1) as usize;
        let amount = (least * 200).clamp(200, 400_000);
        let plan = Plan { queue_full: 0, ..Plan::nuisances(seed) };
        println!("seed {seed}: {config:?} {sizes:?} forced {force_iwarp}, {amount} bytes");
        if random.below(2) == 0 {
            let device = fabric.device(config);
            stream_both_ways(connect(&device, &device, sizes, force_iwarp), amount, &mut random);
        } else {
            let device = Faulty::new(fabric.device(config), plan);
            stream_both_ways(connect(&device, &device, sizes, force_iwarp), amount, &mut random);
        }
    }
}

#[test]
fn a_broken_connection_is_a_reset_for_both() {
    let device = sim::Fabric::new().device(sim::Config::iwarp());
    let [mut left, mut right] = connect(&device, &device, [Sizes::DEFAULT; 2], false);
    assert_eq!(left.inject(b"last words"), Ok(10));
    right.progress();
    left.abort();
    right.progress();
    let mut words = [0; 10];
    assert_eq!(right.receive(&mut [IoSliceMut::new(&mut words)], 10, true), Ok(10));
    assert_eq!(&words, b"last words");
    for connection in [&mut left, &mut right] {
        assert_eq!(connection.peek_receive(), Err(Error::Reset));
        assert_eq!(connection.peek_send(), Err(Error::Reset));
        assert!(connection.is_ready() && connection.is_over());
    }
}

/// A receive that cannot be posted again ends the connection, because the peer counts on it.
#[test]
fn a_refused_receive_is_a_reset() {
    let fabric = sim::Fabric::new();
    let device = |plan| Faulty::new(fabric.device(sim::Config::infiniband()), plan);
    let refusing = device(Plan { queue_full: 1000, ..Plan::none() });
    let [mut left, mut right] = connect(&device(Plan::none()), &refusing, [Sizes::DEFAULT; 2], false);
    let messages = u32::from(Sizes::DEFAULT.recv_depth) / 2;
    for _ in 0..messages {
        assert_eq!(left.inject(b"x"), Ok(1));
        right.progress();
        if right.is_over() {
            break;
        }
    }
    assert!(right.is_over(), "the connection continues after {messages} messages");
    while right.receive(&mut [IoSliceMut::new(&mut [0])], 1, true) == Ok(1) {}
    left.progress();
    for connection in [&mut left, &mut right] {
        assert_eq!(connection.peek_receive(), Err(Error::Reset));
    }
}

/// A device may report flushed completions before the event of the end.
#[test]
fn an_end_without_completions_is_reported_by_arm() {
    for arming in [false, true] {
        let device = sim::Fabric::new().device(sim::Config { arming, ..sim::Config::infiniband() });
        let [mut left, mut right] = connect(&device, &device, [Sizes::DEFAULT; 2], false);
        left.abort();
        while right.queue_pair.cq.poll(&mut [Completion::EMPTY; 16]) > 0 {}
        let receive = |right: &mut Connection<_>| right.receive(&mut [IoSliceMut::new(&mut [0])], 1, true);
        assert_eq!(receive(&mut right), Err(Error::WouldBlock));
        assert!(right.arm().unwrap());
        assert_eq!(receive(&mut right), Err(Error::Reset));
    }
}

#[test]
fn inject_is_all_or_nothing() {
    let device = sim::Fabric::new().device(sim::Config::iwarp());
    let sizes = Sizes { recv_buffer: 16, ..Sizes::DEFAULT };
    let [mut left, mut right] = connect(&device, &device, [sizes; 2], false);
    assert_eq!(left.inject(&[0; 17]), Err(Error::TooLong));
    assert_eq!(left.inject(&[1; 10]), Ok(10));
    assert_eq!(left.inject(&[2; 10]), Err(Error::WouldBlock));
    let mut bytes = [0; 16];
    assert_eq!(right.receive(&mut [IoSliceMut::new(&mut bytes)], 16, true), Ok(10));
    left.progress();
    assert_eq!(left.inject(&[2; 16]), Ok(16));
}
