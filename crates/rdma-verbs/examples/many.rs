//! A server of a thousand clients, whose messages share one queue of a few receives.
//!
//! ```text
//! cargo run --release --example many [CLIENTS]
//! ```
//!
//! Over iWARP, a message that finds no receive breaks its connection. So the server tells its clients when to
//! send, as many at a time as there are receives.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rdma_verbs::QpCapabilities;
use rdma_verbs::typed::{self, Connection, Pool, Shard};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const CLIENTS: u32 = 1_000;
const MESSAGES: u32 = 10;
/// Receives of the server.
const RECEIVES: u32 = 32;
/// Bytes of a message.
const SIZE: u32 = 64;
const QUEUES: QpCapabilities =
    QpCapabilities { send_depth: 4, recv_depth: 1, inline: 8, initiator_depth: 1, responder_resources: 1 };

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let clients = env::args().nth(1).map_or(Ok(CLIENTS), |clients| clients.parse())?;
    // Both sides' sockets are in this process.
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: most, maximum: most })?;

    let (server, peers) = (Shard::embedded()?, Shard::embedded()?);
    let drivers = [tokio::spawn(server.tokio_driver()?), tokio::spawn(peers.tokio_driver()?)];
    let start = Instant::now();
    let listener = server.listen("127.0.0.1:0".parse()?, clients)?;
    let (address, buffers) = (listener.local_address(), peers.pool(2 * clients, SIZE)?);
    let mut asking = JoinSet::new();
    for number in 0..clients {
        asking.spawn(ask(peers.clone(), buffers.clone(), address, number));
    }

    let pool = server.pool(RECEIVES, SIZE)?;
    let receives = server.shared_receives(RECEIVES)?;
    receives.post(&pool, RECEIVES)?;
    let turns = Arc::new(Semaphore::new(RECEIVES as usize));
    let mut serving = JoinSet::new();
    for _ in 0..clients {
        let connection = listener.next().await?.accept(receives.endpoint(QUEUES)?, b"").await?;
        serving.spawn(serve(connection, Arc::clone(&turns)));
    }
    println!("{clients} clients are connected after {:?}", start.elapsed());

    let mut sum = 0;
    while let Some(outcome) = serving.join_next().await {
        sum += outcome??;
    }
    while let Some(outcome) = asking.join_next().await {
        outcome??;
    }
    let numbers = u64::from(clients) * u64::from(clients - 1) / 2;
    assert_eq!(sum, numbers * u64::from(MESSAGES), "each client has sent its number in each message");
    assert_eq!(receives.posted(), RECEIVES as usize, "every receive is posted again");
    println!("{} messages came in {RECEIVES} receives, after {:?}", clients * MESSAGES, start.elapsed());
    drop((receives, pool, listener, server, buffers, peers));
    for driver in drivers {
        driver.await??;
    }
    Ok(())
}

/// Lets a client send its messages, each when there is a receive for it. Returns the sum of their numbers.
async fn serve(connection: Connection, turns: Arc<Semaphore>) -> Result<u64, Failure> {
    let mut sum = 0;
    for _ in 0..MESSAGES {
        let turn = turns.acquire().await?;
        connection.send_inline(b"go")?;
        let message = connection.recv().await?;
        sum += u64::from(u32::from_be_bytes(message[..].try_into()?));
        // The receive is posted again before the next client gets the turn.
        drop(message);
        drop(turn);
    }
    connection.close().await?;
    Ok(sum)
}

async fn ask(shard: Shard, pool: Pool, server: SocketAddr, number: u32) -> typed::Result<()> {
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&pool, 1)?;
    let connection = endpoint.connect(server, b"").await?;
    for _ in 0..MESSAGES {
        connection.recv().await?;
        connection.send(pool.copy_of(&number.to_be_bytes())?).await?;
    }
    connection.close().await
}
