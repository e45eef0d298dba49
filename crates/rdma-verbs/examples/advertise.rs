//! One side advertises a region, the other one writes to it and reads it back, without the first one's
//! program: only a number tells it at the end.
//!
//! ```text
//! cargo run --example advertise
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use rdma_verbs::typed::{self, Listener, Shard, Work};
use rdma_verbs::{Access, QpCapabilities};

const LENGTH: usize = 1 << 20;
/// Bytes of one write.
const PIECE: u32 = 1 << 16;
const QUEUES: QpCapabilities =
    QpCapabilities { send_depth: 16, recv_depth: 4, inline: 64, initiator_depth: 4, responder_resources: 4 };

fn main() -> Result<(), Box<dyn Error>> {
    let shard = Shard::embedded()?;
    let listener = shard.listen("127.0.0.1:0".parse()?, 1)?;
    let address = listener.local_address();
    let owner = thread::spawn(move || own(&shard, &listener));
    fill(address)?;
    owner.join().map_err(|_| "the owner of the region panicked")??;
    Ok(())
}

/// The side that has the region.
fn own(shard: &Shard, listener: &Listener) -> typed::Result<()> {
    let pool = shard.pool(8, 64)?;
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = shard.region(LENGTH, access)?;
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&pool, 2)?;
    let connection = listener.next().wait()?.accept(endpoint, b"").wait()?;
    connection.advertise(pool.take()?, region.remote())?.wait()?;
    println!("owner: advertised {:x?}", region.remote());

    let told = connection.recv().wait()?;
    println!("owner: told that {} is written", String::from_utf8_lossy(&told));
    let mut last = [0; 8];
    region.read(LENGTH - last.len(), &mut last)?;
    println!("owner: the last bytes are {last:?}");
    drop(told);
    connection.close().wait()
}

/// The side that writes and reads.
fn fill(owner: SocketAddr) -> typed::Result<()> {
    let shard = Shard::embedded()?;
    let messages = shard.pool(4, 64)?;
    let pieces = shard.pool(4, PIECE)?;
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&messages, 1)?;
    let connection = endpoint.connect(owner, b"").wait()?;
    let remote = connection.recv().wait()?.advert()?;

    for offset in (0..remote.length).step_by(2 * PIECE as usize) {
        // Two writes that the device is told of at once.
        let mut bufs = [pieces.take()?, pieces.take()?];
        bufs.iter_mut().for_each(|buf| buf.fill((offset / PIECE) as u8 + 1));
        let [first, second] = bufs;
        let place = |at| remote.piece(at, PIECE);
        connection
            .batch([Work::write(first, place(offset)?), Work::write(second, place(offset + PIECE)?)])
            .wait()?;
    }
    let read = connection.read(pieces.take()?, remote.piece(LENGTH as u32 - PIECE, PIECE)?).wait()?;
    println!("writer: read {} bytes back, each {}", read.len(), read[0]);
    assert!(read.iter().all(|&byte| byte == read[0]));
    connection.send_inline(b"all of it")?;
    connection.close().wait()
}
