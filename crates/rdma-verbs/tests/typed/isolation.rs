//! The memory of a pool is out of reach of everything but the operations that its buffers move into.

use rdma_testkit::faulty::Plan;
use rdma_testkit::harness::{CAPABILITIES, End};
use rdma_testkit::sim::{Config, Fabric};
use rdma_verbs::typed::{Error, Shard};
use rdma_verbs::{
    Access, Buffer, Error as VerbsError, MemoryRegion as _, QueuePairs as _, RecvRequest, Segment,
};

use super::support::{any_port, connected, done, simulated};

/// The device in memory counts its keys and addresses up, so that all that a pool may have can be tried.
#[test]
fn raw_requests_cannot_name_the_memory_of_a_pool() {
    let fabric = Fabric::new();
    let shard = Shard::new(fabric.device(Config::iwarp())).unwrap();
    let pool = shard.pool(1, 16).unwrap();
    let buf = pool.take().unwrap();
    let mut end = End::new(fabric.device(Config::iwarp()));
    let (qp, _) = end.queue_pair(CAPABILITIES);
    let own = end.region(16, Access::LOCAL_WRITE);
    let mut receive_at = |key, address| {
        let buffer = Buffer::Segment(Segment { key, address, length: 1 });
        end.cq.post_recv(qp, &[RecvRequest { id: 0, buffer }])
    };
    let addresses = || (0..=own.address() / 16).map(|at| at * 16);
    for key in 0..own.local_key() {
        for address in addresses() {
            let outcome = receive_at(key, address);
            assert!(matches!(outcome, Err(VerbsError::BadSegment { .. })), "{key} at {address:#x}");
        }
    }
    receive_at(own.local_key(), own.address()).unwrap();
    drop(buf);
}

#[test]
fn memory_of_another_shard_is_refused_and_comes_back() {
    let [first, second] = connected(simulated(&Config::iwarp(), &Plan::none()), any_port(), 1).unwrap();
    let both = [&first.shard, &second.shard];
    let buf = second.pool.copy_of(b"mine").unwrap();
    let failed = done(both, "a refusal", first.connection.send(buf)).unwrap_err();
    assert!(matches!(failed.error, Error::ForeignMemory { memory, connection } if memory != connection));
    assert_eq!(&failed.memory[..], b"mine");
    let error = first.connection.post_receives(&second.pool, 1).unwrap_err();
    assert!(matches!(error, Error::ForeignMemory { .. }), "{error}");
    let piece = second.shard.region(8, Access::all()).unwrap().piece(0..8).unwrap();
    let failed = done(both, "a refusal", first.connection.send(piece)).unwrap_err();
    assert!(matches!(failed.error, Error::ForeignMemory { .. }));
}
