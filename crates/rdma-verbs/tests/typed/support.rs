//! Two shards that one thread drives.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rdma_testkit::faulty::{Faulty, Plan};
use rdma_testkit::sim::{self, Config, Fabric};
use rdma_verbs::typed::{Connection, Pool, Result, Shard, TrustedDevice};
use rdma_verbs::{ConnectOptions, QpCapabilities};

/// Longest time that anything may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
pub(crate) const QUEUES: QpCapabilities =
    QpCapabilities { send_depth: 8, recv_depth: 8, inline: 64, initiator_depth: 2, responder_resources: 2 };
/// Size of a buffer.
pub(crate) const SIZE: usize = 64;
/// Buffers of a pool.
pub(crate) const BUFFERS: u32 = 32;

pub(crate) type Simulated = Faulty<sim::Device>;

/// One side: its shard, a pool, and a connection to the other side.
pub(crate) struct Side<D: TrustedDevice> {
    // Dropped in this order.
    pub(crate) connection: Connection<D>,
    pub(crate) pool: Pool,
    pub(crate) shard: Shard<D>,
}

/// Two devices in memory with faults.
pub(crate) fn simulated(config: &Config, plan: &Plan) -> [Shard<Simulated>; 2] {
    simulated_with(config, plan, LIMIT)
}

/// Like [`simulated`], with a time-out for connections.
pub(crate) fn simulated_with(config: &Config, plan: &Plan, timeout: Duration) -> [Shard<Simulated>; 2] {
    let fabric = Fabric::new();
    [0, 1].map(|side| {
        let plan = Plan { seed: plan.seed.wrapping_mul(2) + side, ..plan.clone() };
        let device = Faulty::new(fabric.device(config.clone()), plan);
        Shard::with_options(device, ConnectOptions { timeout, keepalive: timeout }).unwrap()
    })
}

/// Polls a future once.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Drives both shards until `done` returns something.
pub(crate) fn until<D: TrustedDevice, T>(
    shards: [&Shard<D>; 2],
    what: &str,
    mut done: impl FnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(value) = done() {
            return value;
        }
        for shard in shards {
            shard.drive().unwrap();
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
    }
}

/// Drives both shards until a future is done.
pub(crate) fn done<D: TrustedDevice, F: Future + Unpin>(
    shards: [&Shard<D>; 2],
    what: &str,
    mut future: F,
) -> F::Output {
    until(shards, what, || poll(&mut future))
}

/// Drives both shards until they are quiet.
pub(crate) fn settle<D: TrustedDevice>(shards: [&Shard<D>; 2]) {
    let mut quiet = 0;
    until(shards, "quiet", || {
        quiet += 1;
        (quiet > 50).then_some(())
    });
}

/// Connects two shards; each side has posted `receives` of its pool.
pub(crate) fn connected<D: TrustedDevice>(
    shards: [Shard<D>; 2],
    address: SocketAddr,
    receives: u32,
) -> Result<[Side<D>; 2]> {
    let both = [&shards[0], &shards[1]];
    let [active, passive] = &shards;
    let pools = [active.pool(BUFFERS, SIZE as u32)?, passive.pool(BUFFERS, SIZE as u32)?];
    let listener = passive.listen(address, 4)?;
    let [endpoint, other] = [active.endpoint(QUEUES)?, passive.endpoint(QUEUES)?];
    endpoint.post_receives(&pools[0], receives)?;
    other.post_receives(&pools[1], receives)?;
    let mut connecting = endpoint.connect(listener.local_address(), b"");
    let (mut first, mut second) = (None, None);
    let request = until(both, "a request", || {
        first = first.take().or_else(|| poll(&mut connecting));
        match &first {
            Some(_) => Some(None),
            None => poll(&mut listener.next()).map(Some),
        }
    });
    let Some(incoming) = request else { return first.unwrap().map(|_| panic!("connected to nobody")) };
    let mut accepting = incoming?.accept(other, b"");
    until(both, "a connection", || {
        first = first.take().or_else(|| poll(&mut connecting));
        second = second.take().or_else(|| poll(&mut accepting));
        (first.is_some() && second.is_some()).then_some(())
    });
    let [first_pool, second_pool] = pools;
    let [active, passive] = shards;
    Ok([
        Side { connection: first.unwrap()?, pool: first_pool, shard: active },
        Side { connection: second.unwrap()?, pool: second_pool, shard: passive },
    ])
}

pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A seeded sequence of numbers (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}
