//! A greeting there and one back, between two threads of this program on the embedded device.
//!
//! ```text
//! cargo run --example hello
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use rdma_verbs::QpCapabilities;
use rdma_verbs::typed::{Listener, Shard};

const QUEUES: QpCapabilities =
    QpCapabilities { send_depth: 4, recv_depth: 4, inline: 64, initiator_depth: 1, responder_resources: 1 };

fn main() -> Result<(), Box<dyn Error>> {
    let shard = Shard::embedded()?;
    let listener = shard.listen("127.0.0.1:0".parse()?, 1)?;
    let address = listener.local_address();
    println!("server: listens on {address}");
    let server = thread::spawn(move || serve(&shard, &listener).map_err(|error| error.to_string()));
    greet(address)?;
    server.join().map_err(|_| "the server panicked")??;
    Ok(())
}

fn greet(server: SocketAddr) -> Result<(), Box<dyn Error>> {
    let shard = Shard::embedded()?;
    let pool = shard.pool(4, 64)?;
    let endpoint = shard.endpoint(QUEUES)?;
    // A message needs a posted receive, so receives come before the connection.
    endpoint.post_receives(&pool, 1)?;
    let connection = endpoint.connect(server, b"hello example").wait()?;

    // The buffer moves into the operation and comes back, so nothing can change it while it is sent.
    let buffer = connection.send(pool.copy_of(b"Hello, server.")?).wait()?;
    println!("client: sent {:?}", String::from_utf8_lossy(&buffer));
    let answer = connection.recv().wait()?;
    println!("client: received {:?}", String::from_utf8_lossy(&answer));
    drop(answer);
    connection.close().wait()?;
    println!("client: closed");
    Ok(())
}

fn serve(shard: &Shard, listener: &Listener) -> Result<(), Box<dyn Error>> {
    let pool = shard.pool(4, 64)?;
    let incoming = listener.next().wait()?;
    println!("server: request with {:?}", String::from_utf8_lossy(incoming.private_data()));
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&pool, 1)?;
    let connection = incoming.accept(endpoint, b"").wait()?;

    let greeting = connection.recv().wait()?;
    println!("server: received {:?}", String::from_utf8_lossy(&greeting));
    // Bytes that fit in a request need no buffer.
    connection.send_inline(b"Hello, client.")?;
    let end = connection.recv().wait().map(drop).unwrap_err();
    println!("server: {end}");
    connection.close().wait()?;
    Ok(())
}
