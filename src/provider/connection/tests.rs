//! Two connections over simulated devices, with and without faults: what one side sends, the other
//! receives, whatever the device is like.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::provider::offer::{self, Peer};
use crate::provider::options::Options;
use rdma_testkit::faulty::{Faulty, Plan};
use rdma_testkit::sim;
use rdma_verbs::{ConnectOptions, ConnectionRequest, EventTarget, Listener, Token, WaitSet};
use rstream_protocol::Extension;

const OPTIONS: ConnectOptions =
    ConnectOptions { timeout: Duration::from_secs(10), keepalive: Duration::from_secs(10) };

/// Pseudo-random numbers of one seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// The byte at a place of the test's stream.
fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8).wrapping_mul(31)) as u8
}

fn extension(attributes: &rdma_verbs::DeviceAttributes, force_iwarp: bool) -> Option<Extension<'static>> {
    Some(offer::extend(offer::features(attributes, force_iwarp), &[], None, attributes))
}

/// Connects an active side with one kind of options to a passive side with another.
fn connect<D: Device>(
    active: &D,
    passive: &D,
    options: [Options; 2],
    force_iwarp: bool,
) -> [Connection<D>; 2] {
    let attributes = active.attributes();
    let target = || EventTarget { wait: Arc::new(WaitSet::new().unwrap()), token: Token(1) };
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut listener = passive.listen(any, 1, &OPTIONS, target()).unwrap();
    let mut left = Link::open(active, &options[0]).unwrap();
    let mut right = Link::open(passive, &options[1]).unwrap();

    let data = left.offer(&options[0], extension(&attributes, force_iwarp)).encode().unwrap();
    left.cq.connect(left.qp, listener.local_address(), None, &data, &OPTIONS, target()).unwrap();
    let request = until(|| listener.poll());
    let (right_peer, _) = offer::decode(request.private_data()).unwrap();
    let data = right.offer(&options[1], extension(&attributes, force_iwarp)).encode().unwrap();
    right.cq.accept(right.qp, request, &data, &OPTIONS, target()).unwrap();

    let established = |link: &mut Link<D>| match until(|| link.cq.poll_event(link.qp)) {
        ConnectionEvent::Established { private_data } => private_data,
        other => panic!("{other:?}"),
    };
    let (left_peer, _) = offer::decode(&established(&mut left)).unwrap();
    established(&mut right);

    let finish = |link, options: &Options, peer: &Peer| {
        let (stream, format) = offer::agree(options, peer, &attributes, force_iwarp, u32::MAX).unwrap();
        Connection::new(link, stream, format, peer.ring(), peer.ring_size() as usize)
    };
    [finish(left, &options[0], &left_peer), finish(right, &options[1], &right_peer)]
}

fn until<T>(mut poll: impl FnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = poll() {
            return value;
        }
        assert!(Instant::now() < give_up, "nothing came within 10 s");
    }
}

/// Streams `amount` bytes both ways at once, in calls of random length, then ends both directions.
fn stream_both_ways<D: Device>(mut sides: [Connection<D>; 2], amount: usize, dice: &mut Dice) {
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    let give_up = Instant::now() + Duration::from_secs(60);
    let longest = 1 + dice.below(100_000);
    while received != [amount; 2] {
        assert!(Instant::now() < give_up, "stalled: sent {sent:?}, received {received:?} of {amount}");
        let side = dice.below(2);
        let connection = &mut sides[side];
        let length = 1 + dice.below(longest);
        if dice.below(2) == 0 {
            let bytes: Vec<u8> = (sent[side]..amount.min(sent[side] + length)).map(pattern).collect();
            let (head, tail) = bytes.split_at(bytes.len() / 3);
            match connection.send(&[head, tail].map(IoSlice::new), bytes.len(), dice.below(8) == 0) {
                Ok(taken) => sent[side] += taken,
                Err(error) => assert_eq!(error, Errno::EAGAIN),
            }
        } else {
            let mut bytes = vec![0; length];
            let (head, tail) = bytes.split_at_mut(length / 3);
            let taken = match connection.receive(&mut [head, tail].map(IoSliceMut::new), length, true) {
                Ok(taken) => taken,
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
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
        connection.stream.shut_send();
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
        assert_eq!(connection.peek_send(), Err(Errno::EPIPE));
    }
}

fn random_options(dice: &mut Dice) -> Options {
    let sizes = [1, 7, 64, 1000, 4096, 32 * 1024, 1 << 20, 3 << 20];
    let depths = [4, 5, 16, 384, 1024];
    Options {
        send_buffer: sizes[dice.below(sizes.len())],
        recv_buffer: sizes[dice.below(sizes.len())],
        send_depth: depths[dice.below(depths.len())],
        recv_depth: depths[dice.below(depths.len())],
    }
}

fn devices(dice: &mut Dice) -> sim::Config {
    let base = if dice.below(2) == 0 { sim::Config::iwarp() } else { sim::Config::infiniband() };
    let inline = [0, 3, 4, 64, 4096, 1 << 20][dice.below(6)];
    sim::Config { inline, wire: 1 + dice.below(64), max_private_data: 64, ..base }
}

#[test]
fn every_byte_arrives_on_any_device() {
    for seed in 1..=60 {
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let fabric = sim::Fabric::new();
        let config = devices(&mut dice);
        let options = [random_options(&mut dice), random_options(&mut dice)];
        let force_iwarp = dice.below(3) == 0;
        let least = options.iter().flat_map(|o| [o.send_buffer, o.recv_buffer]).min().unwrap_or(1) as usize;
        let amount = (least * 200).clamp(200, 400_000);
        let plan = Plan { queue_full: 0, ..Plan::nuisances(seed) };
        println!("seed {seed}: {config:?} {options:?} forced {force_iwarp}, {amount} bytes");
        if dice.below(2) == 0 {
            let device = fabric.device(config);
            stream_both_ways(connect(&device, &device, options, force_iwarp), amount, &mut dice);
        } else {
            let device = Faulty::new(fabric.device(config), plan);
            stream_both_ways(connect(&device, &device, options, force_iwarp), amount, &mut dice);
        }
    }
}

#[test]
fn a_broken_connection_is_a_reset_for_both() {
    let device = sim::Fabric::new().device(sim::Config::iwarp());
    let [mut left, mut right] = connect(&device, &device, [Options::default(); 2], false);
    assert_eq!(left.inject(b"last words"), Ok(10));
    right.progress();
    left.cut();
    right.progress();
    let mut words = [0; 10];
    assert_eq!(right.receive(&mut [IoSliceMut::new(&mut words)], 10, true), Ok(10));
    assert_eq!(&words, b"last words");
    for connection in [&mut left, &mut right] {
        assert_eq!(connection.peek_receive(), Err(Errno::ECONNRESET));
        assert_eq!(connection.peek_send(), Err(Errno::ECONNRESET));
        assert!(connection.is_ready() && connection.is_over());
    }
}

/// A receive that is not posted again would be missing for good.
#[test]
fn a_refused_receive_is_a_reset() {
    let fabric = sim::Fabric::new();
    let device = |plan| Faulty::new(fabric.device(sim::Config::infiniband()), plan);
    let refusing = device(Plan { queue_full: 1000, ..Plan::none() });
    let [mut left, mut right] = connect(&device(Plan::none()), &refusing, [Options::default(); 2], false);
    let messages = u32::from(Options::default().recv_depth) / 2;
    for _ in 0..messages {
        assert_eq!(left.inject(b"x"), Ok(1));
        right.progress();
        if right.is_over() {
            break;
        }
    }
    assert!(right.is_over(), "it goes on after {messages} messages");
    while right.receive(&mut [IoSliceMut::new(&mut [0])], 1, true) == Ok(1) {}
    left.progress();
    for connection in [&mut left, &mut right] {
        assert_eq!(connection.peek_receive(), Err(Errno::ECONNRESET));
    }
}

/// What a device says of the end, completions and event, need not come together.
#[test]
fn an_end_without_completions_wakes() {
    for arming in [false, true] {
        let device = sim::Fabric::new().device(sim::Config { arming, ..sim::Config::infiniband() });
        let [mut left, mut right] = connect(&device, &device, [Options::default(); 2], false);
        left.cut();
        while right.link.cq.poll(&mut [Completion::EMPTY; 16]) > 0 {}
        let receive = |right: &mut Connection<_>| right.receive(&mut [IoSliceMut::new(&mut [0])], 1, true);
        assert_eq!(receive(&mut right), Err(Errno::EAGAIN));
        assert_eq!(right.arm(), Ok(true));
        assert_eq!(receive(&mut right), Err(Errno::ECONNRESET));
    }
}

#[test]
fn inject_is_all_or_nothing() {
    let device = sim::Fabric::new().device(sim::Config::iwarp());
    let options = Options { recv_buffer: 16, ..Options::default() };
    let [mut left, mut right] = connect(&device, &device, [options; 2], false);
    assert_eq!(left.inject(&[0; 17]), Err(Errno::EMSGSIZE));
    assert_eq!(left.inject(&[1; 10]), Ok(10));
    assert_eq!(left.inject(&[2; 10]), Err(Errno::EAGAIN));
    let mut bytes = [0; 16];
    assert_eq!(right.receive(&mut [IoSliceMut::new(&mut bytes)], 16, true), Ok(10));
    left.progress();
    assert_eq!(left.inject(&[2; 16]), Ok(16));
}
