//! Receives that connections share: each message reaches its connection, and all memory comes back.

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::Config;
use rdma_verbs::typed::{Connection, End, Error, Pool, Received, Shard, SharedReceives, TrustedDevice};
use rdma_verbs::{QpCapabilities, iwarp};

use super::support::{BUFFERS, QUEUES, Random, SIZE, any_port, done, poll, settle, simulated, until};

const SEEDS: u64 = 400;
const CLIENTS: usize = 4;
const STEPS: usize = 150;

/// A client, the server's end of its connection, and what was sent.
struct Client<D: TrustedDevice> {
    client: Option<Connection<D>>,
    server: Option<Connection<D>>,
    sent: u64,
    arrived: u64,
}

/// A server with shared receives, and its clients.
struct Scene<D: TrustedDevice> {
    clients: Vec<Client<D>>,
    receives: SharedReceives<D>,
    pools: [Pool; 2],
    shards: [Shard<D>; 2],
}

impl<D: TrustedDevice> Scene<D> {
    fn new(shards: [Shard<D>; 2], clients: usize, receives: u32) -> Self {
        let both = [&shards[0], &shards[1]];
        let pools = both.map(|shard| shard.pool(BUFFERS, SIZE as u32).unwrap());
        let shared = shards[1].shared_receives(receives).unwrap();
        while shared.posted() < receives as usize {
            // The faults refuse some.
            let _ = shared.post(&pools[1], 1);
        }
        let listener = shards[1].listen(any_port(), 4).unwrap();
        let clients = (0..clients)
            .map(|_| {
                let endpoint = shards[0].endpoint(QUEUES).unwrap();
                endpoint.post_receives(&pools[0], 1).unwrap();
                let mut connecting = endpoint.connect(listener.local_address(), b"");
                let incoming = until(both, "a request", || {
                    assert!(poll(&mut connecting).is_none());
                    poll(&mut listener.next())
                });
                let endpoint = shared.endpoint(QpCapabilities { recv_depth: 0, ..QUEUES }).unwrap();
                let mut accepting = incoming.unwrap().accept(endpoint, b"");
                let (mut client, mut server) = (None, None);
                until(both, "a connection", || {
                    client = client.take().or_else(|| poll(&mut connecting));
                    server = server.take().or_else(|| poll(&mut accepting));
                    (client.is_some() && server.is_some()).then_some(())
                });
                let [client, server] = [client, server].map(|side| side.and_then(Result::ok));
                Client { client, server, sent: 0, arrived: 0 }
            })
            .collect();
        Self { clients, receives: shared, pools, shards }
    }

    fn both(&self) -> [&Shard<D>; 2] {
        [&self.shards[0], &self.shards[1]]
    }

    fn send(&mut self, client: usize) {
        let bytes = message(client, self.clients[client].sent);
        let Some(connection) = &self.clients[client].client else { return };
        let mut sending = connection.send(self.pools[0].copy_of(&bytes).unwrap());
        let failed = matches!(poll(&mut sending), Some(Err(_)));
        drop(sending);
        self.clients[client].sent += u64::from(!failed);
    }

    /// The next message of a client, if there is one. What is wrong is the end of its connection.
    fn take(&mut self, client: usize) -> Option<Result<Received<D>, Error>> {
        let state = &mut self.clients[client];
        let received = poll(&mut state.server.as_ref()?.recv())?;
        if let Ok(received) = &received {
            assert_eq!(received[..], message(client, state.arrived), "client {client}");
            state.arrived += 1;
        }
        Some(received)
    }
}

/// The bytes of a message: they differ from message to message and from client to client.
fn message(client: usize, number: u64) -> [u8; 16] {
    let mut bytes = [client as u8; 16];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    bytes
}

#[test]
fn each_message_reaches_its_connection_and_every_receive_comes_back() {
    for config in [Config { wire: 2, ..Config::infiniband() }, Config { arming: true, ..Config::iwarp() }] {
        for seed in 0..SEEDS {
            let mut random = Random(seed);
            // Polls that find nothing or little although there is more.
            let late = Plan { seed, false_zero: 900, small_batch: 900, ..Plan::none() };
            let plan = random.pick(&[Plan::nuisances(seed), late]).clone();
            let mut scene = Scene::new(simulated(&config, &plan), CLIENTS, 8);
            let mut held = Vec::new();
            for _ in 0..STEPS {
                let client = random.below(CLIENTS as u64) as usize;
                let under_way: u64 = scene.clients.iter().map(|one| one.sent - one.arrived).sum();
                match random.below(5) {
                    // No more than there are receives: over iWARP a message without one breaks its
                    // connection.
                    0 if under_way + (held.len() as u64) < 5 => scene.send(client),
                    1 | 2 => held.extend(scene.take(client).map(|message| message.expect("no end"))),
                    3 => held.truncate(random.below(4) as usize),
                    _ => _ = scene.shards[random.below(2) as usize].drive().unwrap(),
                }
            }
            drop(held);
            finish(scene, &mut random, seed);
        }
    }
}

/// Each client ends its connection. All that it has sent arrives, then the end.
fn finish<D: TrustedDevice>(mut scene: Scene<D>, random: &mut Random, seed: u64) {
    for client in 0..CLIENTS {
        // These are on their way when the end comes.
        (0..2).for_each(|_| scene.send(client));
        let closing = scene.clients[client].client.take().unwrap().close();
        drop(closing);
        let shards = scene.shards.clone();
        let end = until([&shards[0], &shards[1]], "an end", || {
            // This may be what notices the end first.
            let _ = scene.clients[client].server.as_ref().and_then(Connection::end);
            scene.take(client).and_then(Result::err)
        });
        assert!(matches!(end, Error::Ended(End::Disconnected)), "seed {seed}: {end}");
        assert_eq!(scene.clients[client].arrived, scene.clients[client].sent, "seed {seed}, client {client}");
        if random.below(2) == 0 {
            scene.clients[client].server = None;
        }
    }
    settle(scene.both());
    assert_eq!(scene.receives.posted(), 8, "seed {seed}");
    let Scene { clients, receives, pools, shards } = scene;
    drop((clients, receives));
    settle([&shards[0], &shards[1]]);
    assert_eq!(pools.map(|pool| pool.available()), [BUFFERS as usize; 2], "seed {seed}");
}

/// Clients vanish, and the server drops connections and messages that nobody took.
#[test]
fn receives_survive_connections_that_break() {
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let plan = Plan { break_connection: 4, end_connection: 4, ..Plan::nuisances(seed) };
        let mut scene = Scene::new(simulated(&Config::infiniband(), &plan), CLIENTS, 8);
        for _ in 0..STEPS {
            let client = random.below(CLIENTS as u64) as usize;
            // A message whose request has failed may have arrived.
            let under_way: u64 = scene.clients.iter().map(|one| one.sent.saturating_sub(one.arrived)).sum();
            match random.below(8) {
                0 | 1 if under_way < 12 => scene.send(client),
                2 => drop(scene.take(client)),
                3 if random.below(10) == 0 => scene.clients[client].server = None,
                4 if random.below(10) == 0 => scene.clients[client].client = None,
                _ => _ = scene.shards[random.below(2) as usize].drive().unwrap(),
            }
        }
        scene.clients.clear();
        settle(scene.both());
        assert_eq!(scene.receives.posted(), 8, "seed {seed}");
        let Scene { receives, pools, shards, .. } = scene;
        drop(receives);
        settle([&shards[0], &shards[1]]);
        assert_eq!(pools.map(|pool| pool.available()), [BUFFERS as usize; 2], "seed {seed}");
    }
}

#[test]
fn a_side_that_closes_first_still_receives() {
    let sim = simulated(&Config { wire: 1, ..Config::iwarp() }, &Plan::none());
    closes_first(sim);
    closes_first([(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap()));
}

fn closes_first<D: TrustedDevice>(shards: [Shard<D>; 2]) {
    let mut scene = Scene::new(shards, 1, 4);
    let (client, server) = (scene.clients[0].client.take().unwrap(), scene.clients[0].server.take().unwrap());
    let both = [&scene.shards[0], &scene.shards[1]];
    let mut closing = server.close();
    settle([both[1]; 2]);
    assert!(poll(&mut closing).is_none(), "the peer has not ended its side");
    // It has not noticed the end.
    let mut sending = client.send(scene.pools[0].copy_of(b"late").unwrap());
    assert!(poll(&mut sending).is_none_or(|outcome| outcome.is_ok()));
    drop(sending);
    drop(client.close());
    assert_eq!(&done(both, "a message", closing.recv()).unwrap()[..], b"late");
    done(both, "the end", closing).unwrap();
}

#[test]
fn a_program_is_told_when_receives_become_few() {
    let scene = Scene::new([(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap()), 1, 3);
    let (connection, server) = (&scene.clients[0].client, &scene.clients[0].server);
    let mut few = scene.receives.fewer_than(2);
    assert!(poll(&mut few).is_none());
    let mut messages = Vec::new();
    for _ in 0..2 {
        assert!(poll(&mut few).is_none());
        let buf = scene.pools[0].copy_of(b"?").unwrap();
        drop(done(scene.both(), "a completion", connection.as_ref().unwrap().send(buf)).unwrap());
        messages.push(done(scene.both(), "a message", server.as_ref().unwrap().recv()).unwrap());
    }
    assert_eq!((poll(&mut few), scene.receives.posted()), (Some(()), 1));
    scene.receives.post(&scene.pools[1], 1).unwrap();
    assert!(poll(&mut scene.receives.fewer_than(2)).is_none());
    // One of three places is taken by that.
    drop(messages);
    settle(scene.both());
    assert_eq!(scene.receives.posted(), 3);
}

#[test]
fn the_queue_lives_as_long_as_its_connections() {
    let mut scene = Scene::new(simulated(&Config::infiniband(), &Plan::none()), 1, 4);
    let Scene { receives, .. } = scene;
    drop(receives);
    let (client, server) = (scene.clients[0].client.take().unwrap(), scene.clients[0].server.take().unwrap());
    let both = [&scene.shards[0], &scene.shards[1]];
    drop(done(both, "a completion", client.send(scene.pools[0].copy_of(b"still").unwrap())).unwrap());
    let message = done(both, "a message", server.recv()).unwrap();
    assert_eq!(&message[..], b"still");
    drop((client, server));
    settle(both);
    assert_eq!(scene.pools[1].available(), BUFFERS as usize - 1, "the message has its buffer");
    drop(message);
    assert_eq!(scene.pools[1].available(), BUFFERS as usize);
}
