//! A store whose readers read with RDMA alone: the server's program takes no part. The server may change an
//! entry while a read copies it, and a read may copy in any order. So each entry has a checksum: a reader
//! that finds it wrong reads again.
//!
//! ```text
//! cargo run --example kv
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rdma_verbs::typed::{self, Connection, End, Listener, Pool, Region, Remote, Shard};
use rdma_verbs::{Access, QpCapabilities};

const ENTRIES: usize = 16;
const VALUE: usize = 248;
/// An entry: value and checksum.
const ENTRY: usize = VALUE + 8;
const READS: usize = 2000;
const QUEUES: QpCapabilities =
    QpCapabilities { send_depth: 8, recv_depth: 4, inline: 64, initiator_depth: 4, responder_resources: 4 };

fn main() -> Result<(), Box<dyn Error>> {
    let shard = Shard::embedded()?;
    let table = shard.region(ENTRIES * ENTRY, Access::REMOTE_READ)?;
    for at in 0..ENTRIES {
        table.write(at * ENTRY, &entry(&[0; VALUE]))?;
    }
    let listener = shard.listen("127.0.0.1:0".parse()?, 1)?;
    let address = listener.local_address();
    let done = AtomicBool::new(false);
    let (read, repeated) = thread::scope(|scope| {
        let writer = scope.spawn(|| change(&table, &done));
        let server = scope.spawn(|| serve(&shard, &listener, &table));
        let outcome = read_all(address);
        done.store(true, Ordering::Relaxed);
        let served = server.join().map_err(|_| "the server panicked")?;
        writer.join().map_err(|_| "the writer panicked")??;
        served?;
        outcome.map_err(Box::<dyn Error>::from)
    })?;
    println!("read {read} entries, each whole; {repeated} reads were repeated because the entry changed");
    Ok(())
}

/// An entry with this value.
fn entry(value: &[u8; VALUE]) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..VALUE].copy_from_slice(value);
    entry[VALUE..].copy_from_slice(&checksum(value).to_le_bytes());
    entry
}

/// FNV-1a.
fn checksum(value: &[u8]) -> u64 {
    value
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Changes one entry after the other, until it is done.
fn change(table: &Region, done: &AtomicBool) -> typed::Result<()> {
    for number in (0..=u8::MAX).cycle() {
        for at in 0..ENTRIES {
            table.write(at * ENTRY, &entry(&[number; VALUE]))?;
        }
        if done.load(Ordering::Relaxed) {
            break;
        }
        thread::yield_now();
    }
    Ok(())
}

/// Tells a reader where the table is. The device serves the reads while this waits for the end.
fn serve(shard: &Shard, listener: &Listener, table: &Region) -> typed::Result<()> {
    let pool = shard.pool(4, 64)?;
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&pool, 1)?;
    let connection = listener.next().wait()?.accept(endpoint, b"").wait()?;
    connection.advertise(pool.take()?, table.remote())?.wait()?;
    match connection.recv().wait() {
        Err(typed::Error::Ended(End::Disconnected)) | Ok(_) => connection.close().wait(),
        Err(error) => Err(error),
    }
}

/// Reads entries. Returns their number, and how often a read had to be repeated.
fn read_all(server: SocketAddr) -> typed::Result<(usize, usize)> {
    let shard = Shard::embedded()?;
    let pool = shard.pool(4, ENTRY as u32)?;
    let endpoint = shard.endpoint(QUEUES)?;
    endpoint.post_receives(&pool, 1)?;
    let connection = endpoint.connect(server, b"").wait()?;
    let table = connection.recv().wait()?.advert()?;
    let mut repeated = 0;
    for number in 0..READS {
        repeated += read(&connection, &pool, table, number % ENTRIES)?;
    }
    connection.close().wait()?;
    Ok((READS, repeated))
}

/// Reads an entry until it is whole. Returns how often that was repeated.
fn read(connection: &Connection, pool: &Pool, table: Remote, entry: usize) -> typed::Result<usize> {
    let place = table.piece((entry * ENTRY) as u32, ENTRY as u32)?;
    let mut buf = pool.take()?;
    for repeated in 0.. {
        buf = connection.read(buf, place).wait()?;
        let (value, sum) = buf.split_at(VALUE);
        if *sum == checksum(value).to_le_bytes() {
            assert!(value.iter().all(|&byte| byte == value[0]), "a value of two versions: {value:?}");
            return Ok(repeated);
        }
    }
    Ok(0)
}
