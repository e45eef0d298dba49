//! How a program tests itself against faults: it is generic over the device, and its test gives it a device
//! in memory that breaks connections and refuses requests, by a seed. All runs in one thread, so the same
//! seed gives the same faults.
//!
//! ```text
//! cargo run --example tested
//! ```

use std::error::Error;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use rdma_testkit::faulty::{Faulty, Plan};
use rdma_testkit::sim::{Config, Fabric};
use rdma_verbs::typed::Shard;

use program::Sum;

const SEEDS: u64 = 50;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut most, mut attempts) = (0, 0);
    for seed in 0..SEEDS {
        let sum = run(seed)?;
        assert_eq!(sum.sum, program::EXPECTED, "seed {seed}");
        assert_eq!(run(seed)?, sum, "seed {seed} gives the same faults again");
        most = most.max(sum.attempts);
        attempts += sum.attempts;
    }
    println!("the sum is right for {SEEDS} seeds, after {attempts} attempts, at most {most} of one seed");
    Ok(())
}

/// Runs the program's client and its server with the faults of this seed.
fn run(seed: u64) -> Result<Sum, Box<dyn Error>> {
    let plan = Plan { break_connection: 3, fail_connect: 100, ..Plan::nuisances(seed) };
    let shard = Shard::new(Faulty::new(Fabric::new().device(Config::iwarp()), plan))?;
    let listener = shard.listen("127.0.0.1:0".parse()?, 4)?;
    let mut client = pin!(program::sum(&shard, listener.local_address()));
    let mut server = pin!(program::serve(&shard, &listener));
    // The server goes on for ever.
    let either = poll_fn(|context| match client.as_mut().poll(context) {
        Poll::Pending => server.as_mut().poll(context),
        ready => ready,
    });
    Ok(shard.block_on(either))
}

/// The program. The client sends numbers, the server answers each with the sum so far. If the connection
/// breaks, the client begins again. It knows nothing of tests.
mod program {
    use std::net::SocketAddr;

    use rdma_verbs::QpCapabilities;
    use rdma_verbs::typed::{self, Connection, Error, Listener, Pool, Shard, TrustedDevice};

    const NUMBERS: u32 = 20;
    pub(crate) const EXPECTED: u32 = NUMBERS * (NUMBERS + 1) / 2;
    const QUEUES: QpCapabilities = QpCapabilities {
        send_depth: 4,
        recv_depth: 4,
        inline: 0,
        initiator_depth: 1,
        responder_resources: 1,
    };

    #[derive(Debug, PartialEq, Eq)]
    pub(crate) struct Sum {
        pub(crate) sum: u32,
        pub(crate) attempts: u32,
    }

    pub(crate) async fn sum<D: TrustedDevice>(shard: &Shard<D>, server: SocketAddr) -> Sum {
        let mut attempts = 1;
        loop {
            match try_sum(shard, server).await {
                Ok(sum) => return Sum { sum, attempts },
                Err(_) => attempts += 1,
            }
        }
    }

    async fn try_sum<D: TrustedDevice>(shard: &Shard<D>, server: SocketAddr) -> typed::Result<u32> {
        let pool = shard.pool(8, 4)?;
        let endpoint = shard.endpoint(QUEUES)?;
        endpoint.post_receives(&pool, 2)?;
        let connection = endpoint.connect(server, b"").await?;
        let mut sum = 0;
        for number in 1..=NUMBERS {
            send(&connection, &pool, number).await?;
            sum = receive(&connection).await?;
        }
        Ok(sum)
    }

    pub(crate) async fn serve<D: TrustedDevice, Never>(shard: &Shard<D>, listener: &Listener<D>) -> Never {
        loop {
            // The client comes back.
            let _ = serve_one(shard, listener).await;
        }
    }

    async fn serve_one<D: TrustedDevice>(shard: &Shard<D>, listener: &Listener<D>) -> typed::Result<()> {
        let pool = shard.pool(8, 4)?;
        let endpoint = shard.endpoint(QUEUES)?;
        endpoint.post_receives(&pool, 2)?;
        let connection = listener.next().await?.accept(endpoint, b"").await?;
        let mut sum = 0_u32;
        loop {
            sum = sum.wrapping_add(receive(&connection).await?);
            send(&connection, &pool, sum).await?;
        }
    }

    async fn receive<D: TrustedDevice>(connection: &Connection<D>) -> typed::Result<u32> {
        let message = connection.recv().await?;
        Ok(message[..].try_into().map_or(0, u32::from_be_bytes))
    }

    async fn send<D: TrustedDevice>(
        connection: &Connection<D>,
        pool: &Pool,
        number: u32,
    ) -> typed::Result<()> {
        let mut buf = pool.copy_of(&number.to_be_bytes())?;
        loop {
            match connection.send(buf).await {
                Ok(_) => return Ok(()),
                // The buffer comes back, so it can be sent again.
                Err(failed) if is_full(&failed.error) => buf = failed.memory,
                Err(failed) => return Err(failed.error),
            }
        }
    }

    fn is_full(error: &Error) -> bool {
        matches!(error, Error::Verbs(rdma_verbs::Error::QueueFull { .. }))
    }
}
