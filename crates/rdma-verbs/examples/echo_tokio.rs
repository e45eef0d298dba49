//! An echo server and its clients as tasks of tokio, all on one shard of the embedded device.
//!
//! ```text
//! cargo run --example echo_tokio
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use rdma_verbs::QpCapabilities;
use rdma_verbs::typed::{self, Connection, End, Listener, Pool, Shard};

const CLIENTS: usize = 8;
const MESSAGES: u32 = 100;
const RECEIVES: u32 = 4;
const QUEUES: QpCapabilities = QpCapabilities {
    send_depth: 8,
    recv_depth: RECEIVES,
    inline: 64,
    initiator_depth: 1,
    responder_resources: 1,
};

static ECHOED: AtomicUsize = AtomicUsize::new(0);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let shard = Shard::embedded()?;
    // The futures below hold no descriptors: this task waits for all of them.
    let driver = tokio::spawn(shard.tokio_driver()?);

    let pool = shard.pool(256, 64)?;
    let listener = shard.listen("127.0.0.1:0".parse()?, 64)?;
    let address = listener.local_address();
    println!("the server listens on {address}");
    let server = tokio::spawn(serve(shard.clone(), listener, pool.clone()));
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| tokio::spawn(ask(shard.clone(), pool.clone(), address, number))).collect();
    for client in clients {
        client.await??;
    }
    server.abort();
    let _ = server.await;

    // The driver ends with the last value that was made of the shard.
    drop((shard, pool));
    driver.await??;
    println!("{CLIENTS} clients got {} messages back", ECHOED.load(Ordering::Relaxed));
    Ok(())
}

async fn serve(shard: Shard, listener: Listener, pool: Pool) -> typed::Result<()> {
    loop {
        let incoming = listener.next().await?;
        let endpoint = shard.endpoint(QUEUES)?;
        endpoint.post_receives(&pool, RECEIVES)?;
        let connection = incoming.accept(endpoint, b"").await?;
        let pool = pool.clone();
        tokio::spawn(async move {
            if let Err(error) = echo(connection, &pool).await {
                eprintln!("a connection ended: {error}");
            }
        });
    }
}

async fn echo(connection: Connection, pool: &Pool) -> typed::Result<()> {
    loop {
        match connection.recv().await {
            Ok(message) => drop(connection.send(pool.copy_of(&message)?).await?),
            Err(typed::Error::Ended(End::Disconnected)) => return connection.close().await,
            Err(error) => return Err(error),
        }
    }
}

async fn ask(shard: Shard, pool: Pool, server: SocketAddr, number: usize) -> typed::Result<()> {
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&pool, RECEIVES)?;
    let connection = endpoint.connect(server, b"").await?;
    for message in 0..MESSAGES {
        let text = format!("client {number}, message {message}");
        connection.send(pool.copy_of(text.as_bytes())?).await?;
        let answer = connection.recv().await?;
        assert_eq!(answer[..], *text.as_bytes());
        ECHOED.fetch_add(1, Ordering::Relaxed);
    }
    connection.close().await
}
