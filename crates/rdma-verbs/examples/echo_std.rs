//! An echo server and its clients as plain threads, without an async runtime: each has a shard of its own,
//! and its blocking calls drive it.
//!
//! ```text
//! cargo run --example echo_std
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use rdma_verbs::QpCapabilities;
use rdma_verbs::typed::{self, Connection, End, Incoming, Pool, Shard};

const CLIENTS: usize = 4;
const MESSAGES: u32 = 100;
const RECEIVES: u32 = 4;
const QUEUES: QpCapabilities = QpCapabilities {
    send_depth: 8,
    recv_depth: RECEIVES,
    inline: 64,
    initiator_depth: 1,
    responder_resources: 1,
};

fn main() -> Result<(), Box<dyn Error>> {
    let shard = Shard::embedded()?;
    let listener = shard.listen("127.0.0.1:0".parse()?, 64)?;
    let address = listener.local_address();
    println!("the server listens on {address}");
    let clients: Vec<_> = (0..CLIENTS).map(|number| thread::spawn(move || ask(address, number))).collect();
    let mut servers = Vec::new();
    for _ in 0..CLIENTS {
        let incoming = listener.next().wait()?;
        // A request can be accepted on any shard.
        servers.push(thread::spawn(move || serve(incoming)));
    }
    for thread in clients.into_iter().chain(servers) {
        thread.join().map_err(|_| "a thread panicked")??;
    }
    println!("{CLIENTS} clients got {MESSAGES} messages each back");
    Ok(())
}

fn serve(incoming: Incoming) -> typed::Result<()> {
    let shard = Shard::embedded()?;
    let pool = shard.pool(16, 64)?;
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&pool, RECEIVES)?;
    echo(incoming.accept(endpoint, b"").wait()?, &pool)
}

fn echo(connection: Connection, pool: &Pool) -> typed::Result<()> {
    loop {
        match connection.recv().wait() {
            Ok(message) => drop(connection.send(pool.copy_of(&message)?).wait()?),
            Err(typed::Error::Ended(End::Disconnected)) => return connection.close().wait(),
            Err(error) => return Err(error),
        }
    }
}

fn ask(server: SocketAddr, number: usize) -> typed::Result<()> {
    let shard = Shard::embedded()?;
    let pool = shard.pool(16, 64)?;
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&pool, RECEIVES)?;
    let connection = endpoint.connect(server, b"").wait()?;
    for message in 0..MESSAGES {
        let text = format!("client {number}, message {message}");
        connection.send(pool.copy_of(text.as_bytes())?).wait()?;
        let answer = connection.recv().wait()?;
        assert_eq!(answer[..], *text.as_bytes());
    }
    connection.close().wait()
}
