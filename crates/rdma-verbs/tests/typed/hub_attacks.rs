//! A hub whose peer is none, or lies: that connection ends, with a reason, and no other one.

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::Config;
use rdma_verbs::typed::messages::{Event, Hub, Options, Peer, Reason};
use rdma_verbs::typed::{Connection, End, Error, Pool, Remote, Shard, Work};
use rdma_verbs::{Access, QpCapabilities};

use super::support::{QUEUES, Random, Simulated, any_port, done, poll, settle, simulated, until};

const OPTIONS: Options = Options { eager: 64, longest: 10_000, window: 4, offers: 2, queue: 4 };
/// What such a hub says first.
const HELLO: [u8; 16] = *b"hub1\x00\x04\x02\x00\x00\x00\x00\x40\x00\x00\x27\x10";
const EAGER: u8 = 0;
const OFFER: u8 = 1;
const DONE: u8 = 2;
const CREDIT: u8 = 3;

fn message(kind: u8, credits: u16, length: u32, rest: &[u8]) -> Vec<u8> {
    let ([c0, c1], [l0, l1, l2, l3]) = (credits.to_be_bytes(), length.to_be_bytes());
    [&[kind, 0, c0, c1, l0, l1, l2, l3], rest].concat()
}

fn offer(memory: Remote) -> Vec<u8> {
    let place = [&memory.address.to_be_bytes()[..], &memory.key.to_be_bytes()].concat();
    message(OFFER, 0, memory.length, &place)
}

/// A hub, and peers that are none.
struct Scene {
    shards: [Shard<Simulated>; 2],
    hub: Hub<Simulated>,
    address: std::net::SocketAddr,
    pool: Pool,
}

impl Scene {
    fn new(plan: &Plan) -> Self {
        let shards = simulated(&Config::infiniband(), plan);
        let mut hub = Hub::new(&shards[1], OPTIONS).unwrap();
        let address = hub.listen(any_port(), 4).unwrap();
        let pool = shards[0].pool(64, 256).unwrap();
        Self { shards, hub, address, pool }
    }

    /// The next event that is of this kind.
    fn event<T>(&mut self, what: &str, mut wanted: impl FnMut(Event<Simulated>) -> Option<T>) -> T {
        let Self { shards: [first, second], hub, .. } = self;
        until([first, second], what, || poll(&mut hub.next()).and_then(&mut wanted))
    }

    /// A connection of the attacker, and the hub's peer.
    fn connect(&mut self) -> (Connection<Simulated>, Peer) {
        let queues = QpCapabilities { recv_depth: 16, send_depth: 64, ..QUEUES };
        let endpoint = self.shards[0].endpoint(queues).unwrap();
        endpoint.post_receives(&self.pool, 16).unwrap();
        let connecting = endpoint.connect(self.address, &HELLO);
        let request = self.event("a request", |event| match event {
            Event::Request(request) => Some(request),
            _ => None,
        });
        let peer = self.hub.accept(request, b"").unwrap();
        let connection = done([&self.shards[0], &self.shards[1]], "a connection", connecting).unwrap();
        self.event("a connection", |event| match event {
            Event::Established { .. } => Some(()),
            _ => None,
        });
        (connection, peer)
    }

    fn send(&self, connection: &Connection<Simulated>, message: &[u8]) {
        let sending = connection.send(self.pool.copy_of(message).unwrap());
        let _ = done([&self.shards[0], &self.shards[1]], "a completion", sending);
    }

    /// Why the hub ends a connection.
    fn end_of(&mut self, expected: Peer) -> Reason {
        self.event("an end", |event| match event {
            Event::Disconnected { peer, reason } => {
                assert_eq!(peer, expected);
                Some(reason)
            }
            Event::Message { .. } | Event::Sent { .. } => None,
            event => panic!("{event:?}"),
        })
    }

    /// The reason for which the hub ends a connection over which these messages come.
    fn attack(&mut self, messages: &[Vec<u8>]) -> String {
        let (connection, peer) = self.connect();
        for message in messages {
            self.send(&connection, message);
        }
        let reason = self.end_of(peer);
        let text = reason.to_string();
        let Reason::Violation(_) = reason else { panic!("{text}") };
        let both = [&self.shards[0], &self.shards[1]];
        until(both, "the attacker's end", || connection.end());
        text
    }
}

#[test]
fn what_no_hub_sends_ends_the_connection_with_a_reason() {
    let mut scene = Scene::new(&Plan::none());
    let (honest, honest_peer) = scene.connect();
    let place = |length| offer(Remote { key: 1, address: 2, length });
    let attacks: &[(&[Vec<u8>], &str)] = &[
        (&[vec![]], "a message of 0 bytes has no header"),
        (&[vec![0; 7]], "a message of 7 bytes has no header"),
        (&[message(4, 0, 0, b"")], "a message of kind 4"),
        (&[vec![0, 9, 0, 0, 0, 0, 0, 0]], "a reserved byte of 9"),
        (&[message(EAGER, 0, 5, b"four")], "the header says 5 bytes, 4 arrived"),
        (&[message(EAGER, 0, u32::MAX, b"")], "a length of 4294967295 is not within 0 to 64"),
        (&[message(CREDIT, 5, 0, b"")], "5 credits more than 0 exceed the window of 4"),
        (
            &[message(CREDIT, 4, 0, b""), message(CREDIT, u16::MAX, 0, b"")],
            "65535 credits more than 4 exceed the window of 4",
        ),
        (&[message(CREDIT, 0, 0, b"")], "a message of credits has none"),
        (&[message(DONE, 0, 0, b"")], "the peer has read an offer that was not made"),
        (&[place(64)], "a length of 64 is not within 65 to 10000"),
        (&[place(10_001)], "a length of 10001 is not within 65 to 10000"),
        (&[place(u32::MAX)], "a length of 4294967295 is not within 65 to 10000"),
        (&[message(OFFER, 0, 100, &[0; 11])], "the header says 100 bytes, 11 arrived"),
    ];
    for (messages, expected) in attacks {
        assert_eq!(scene.attack(messages), format!("the peer is no hub, or lies: {expected}"));
    }
    // More messages than it has credits for, while the program holds none back: the hub has not told of any.
    let flood = vec![message(EAGER, 0, 0, b""); 5];
    let (connection, peer) = scene.connect();
    let sends: Vec<_> = flood
        .iter()
        .map(|message| {
            let mut send = connection.send(scene.pool.copy_of(message).unwrap());
            let _ = poll(&mut send);
            send
        })
        .collect();
    let reason = scene.end_of(peer).to_string();
    assert_eq!(reason, "the peer is no hub, or lies: a message without a credit");
    drop(sends);
    // The honest one is still there.
    scene.send(&honest, &message(EAGER, 0, 5, b"still"));
    scene.event("a message", |event| match event {
        Event::Message { peer, message } => {
            assert_eq!((peer, &*message), (honest_peer, &b"still"[..]));
            Some(())
        }
        _ => None,
    });
}

#[test]
fn requests_that_no_hub_posts_end_the_connection() {
    let mut scene = Scene::new(&Plan::none());
    let region = scene.shards[1].region(64, Access::all()).unwrap();
    let works: [fn(Pool, Remote) -> Work<_>; 2] = [
        |pool, remote| Work::write_immediate(pool.copy_of(b"?").unwrap(), remote, 7),
        |pool, remote| Work::send_invalidate(pool.copy_of(&[0; 8]).unwrap(), remote.key),
    ];
    for work in works {
        let (connection, peer) = scene.connect();
        let post = connection.post(work(scene.pool.clone(), region.remote()));
        drop(done([&scene.shards[0], &scene.shards[1]], "a completion", post).unwrap());
        let reason = scene.end_of(peer).to_string();
        assert_eq!(reason, "the peer is no hub, or lies: a request of a kind that no hub posts");
    }
}

#[test]
fn an_offer_of_nothing_ends_the_connection() {
    let mut scene = Scene::new(&Plan::none());
    let (connection, peer) = scene.connect();
    scene.send(&connection, &offer(Remote { key: 0x77, address: u64::MAX - 3, length: 100 }));
    let reason = scene.end_of(peer).to_string();
    assert!(reason.contains("key 0x77 does not open 100 bytes"), "{reason}");
}

/// Offers that the program does not take, and reads that the peer never answers: the hub's memory for them
/// is bounded.
#[test]
fn offers_at_a_time_are_bounded() {
    let mut scene = Scene::new(&Plan::none());
    let region = scene.shards[0].region(100, Access::REMOTE_READ).unwrap();
    let (connection, peer) = scene.connect();
    let both = [&scene.shards[0], &scene.shards[1]];
    // The hub is not polled meanwhile, so it reads none of them.
    for _ in 0..3 {
        let sending = connection.send(scene.pool.copy_of(&offer(region.remote())).unwrap());
        done(both, "a completion", sending).unwrap();
    }
    assert_eq!(scene.end_of(peer).to_string(), "the peer is no hub, or lies: more than 2 offers at a time");
}

/// The peer offers more as soon as the hub has read, and the program takes one message at a time: the hub
/// does not read further ahead than its options say.
#[test]
fn reading_ahead_is_bounded() {
    let mut scene = Scene::new(&Plan::none());
    let region = scene.shards[0].region(100, Access::REMOTE_READ).unwrap();
    let (connection, _) = scene.connect();
    let both = [scene.shards[0].clone(), scene.shards[1].clone()];
    let both = [&both[0], &both[1]];
    let mut read = 0;
    // Offers that the peer makes, whether a message is ready, and offers that the hub has read until then.
    for (offers, is_ready, expected) in [(2, false, 0), (0, true, 2), (2, true, 2), (0, true, 3)] {
        (0..offers).for_each(|_| scene.send(&connection, &offer(region.remote())));
        settle(both);
        assert_eq!(poll(&mut scene.hub.next()).is_some(), is_ready);
        settle(both);
        while let Some(message) = poll(&mut connection.recv()) {
            read += u32::from(message.unwrap()[0] == DONE);
        }
        assert_eq!(read, expected);
    }
}

#[test]
fn a_request_or_a_reply_without_a_hello_comes_to_nothing() {
    let mut scene = Scene::new(&Plan::none());
    for hello in [&b""[..], b"hub2", &[0; 56]] {
        let endpoint = scene.shards[0].endpoint(QUEUES).unwrap();
        let mut connecting = endpoint.connect(scene.address, hello);
        let Scene { shards: [first, second], hub, .. } = &mut scene;
        let outcome = until([first, second], "an answer", || {
            assert!(poll(&mut hub.next()).is_none());
            poll(&mut connecting)
        });
        assert!(matches!(outcome.map(drop), Err(Error::Ended(End::Rejected { .. }))));
    }
    let listener = scene.shards[0].listen(any_port(), 1).unwrap();
    let peer = scene.hub.connect(listener.local_address(), b"").unwrap();
    let incoming = done([&scene.shards[0], &scene.shards[1]], "a request", listener.next()).unwrap();
    assert_eq!(&incoming.private_data()[..16], HELLO);
    let accepting = incoming.accept(scene.shards[0].endpoint(QUEUES).unwrap(), b"welcome");
    let accepted = done([&scene.shards[0], &scene.shards[1]], "a connection", accepting).unwrap();
    let reason = scene.end_of(peer).to_string();
    assert_eq!(reason, "the peer is no hub, or lies: private data of 56 bytes are no hello");
    drop(accepted);
}

/// Messages at random, most of them nearly right: the hub ends that connection or goes on, and an honest one
/// beside it works.
#[test]
fn random_messages_do_no_harm() {
    let mut violations = 0;
    for seed in 0..600 {
        let mut random = Random(seed);
        let mut scene = Scene::new(&Plan::nuisances(seed));
        let region = scene.shards[0].region(4_000, Access::REMOTE_READ).unwrap();
        let (honest, honest_peer) = scene.connect();
        let (connection, peer) = scene.connect();
        for _ in 0..20 {
            let length = random.below(70) as u32;
            let rest = vec![random.below(256) as u8; length as usize];
            let bytes = match random.below(7) {
                0 => (0..length).map(|_| random.below(256) as u8).collect(),
                1 => message(random.below(5) as u8, random.below(6) as u16, random.below(80) as u32, &rest),
                2 => offer(Remote { length: random.below(5_000) as u32, ..region.remote() }),
                3 => message(CREDIT, 1 + random.below(2) as u16, 0, b""),
                _ => message(EAGER, 0, length.min(64), &rest[..length.min(64) as usize]),
            };
            let mut send = connection.send(scene.pool.copy_of(&bytes).unwrap());
            let _ = poll(&mut send);
            for _ in 0..random.below(4) {
                let _ = scene.shards[random.below(2) as usize].drive().unwrap();
                let _ = scene.hub.send(peer, &[1; 100]);
                if let Some(Event::Disconnected { peer: found, reason }) = poll(&mut scene.hub.next()) {
                    assert_eq!(found, peer);
                    violations += u32::from(matches!(reason, Reason::Violation(_)));
                }
            }
        }
        scene.send(&honest, &message(EAGER, 0, 6, b"honest"));
        scene.event("a message", |event| match event {
            Event::Message { peer, message } if peer == honest_peer => {
                assert_eq!(&*message, b"honest");
                Some(())
            }
            Event::Disconnected { peer: found, .. } => {
                assert_eq!(found, peer);
                None
            }
            _ => None,
        });
    }
    assert!(violations > 200, "{violations}");
}
