//! The typed layer over rdma-core: the kernel's soft iWARP and soft RoCE, as `scripts/vm.sh` sets them up. A
//! plain `cargo test` does not run it. `scripts/test.sh rdma-verbs` does, where these devices exist.

#[expect(dead_code, reason = "it is made for more tests than these")]
#[path = "typed/support.rs"]
mod support;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Instant;

use rdma_verbs::typed::{End, Error, Shard, Work};
use rdma_verbs::{Access, AnyDevice, DeviceEvent, DeviceInfo, QpCapabilities, devices};

use support::{BUFFERS, SIZE, connected, done, until};

const ROUNDS: u32 = 200;

fn shards(kind: &str) -> [Shard<AnyDevice>; 2] {
    let found = devices();
    assert_eq!(found.last(), Some(&DeviceInfo::Embedded));
    [0, 1].map(|number| {
        let name = format!("{kind}{number}");
        Shard::open(found.iter().find(|device| device.name() == name).unwrap()).unwrap()
    })
}

/// Messages, writes, reads and the end, and all buffers are back.
fn works(kind: &str, address: &str, reads_into_buffers: bool) {
    let address: SocketAddr = address.parse().unwrap();
    let [first, second] = connected(shards(kind), address, 4).unwrap();
    let both = [&first.shard, &second.shard];
    let pools = [first.pool.clone(), second.pool.clone()];
    for round in 0..ROUNDS {
        for (from, to) in [(&first, &second), (&second, &first)] {
            let sent = from.pool.copy_of(&round.to_be_bytes()).unwrap();
            let sent = done(both, "a completion", from.connection.send(sent)).unwrap();
            assert_eq!(sent[..], round.to_be_bytes());
            let received = done(both, "a message", to.connection.recv()).unwrap();
            assert_eq!(received[..], round.to_be_bytes());
        }
    }

    let region = second.shard.region(2 * SIZE, Access::all()).unwrap();
    let remote = region.remote();
    let bufs = [3, 4].map(|value| first.pool.copy_of(&[value; SIZE]).unwrap());
    let [low, high] = bufs;
    let writes =
        [Work::write(low, remote), Work::write(high, remote.piece(SIZE as u32, SIZE as u32).unwrap())];
    drop(done(both, "two writes", first.connection.batch(writes)).unwrap());
    let target = first.shard.region(2 * SIZE, Access::all()).unwrap();
    let read = first.connection.read(target.piece(0..2 * SIZE).unwrap(), remote);
    drop(done(both, "a read", read).unwrap());
    let mut bytes = [0; 2 * SIZE];
    target.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, std::array::from_fn(|at| if at < SIZE { 3 } else { 4 }));

    let outcome = done(both, "a read", first.connection.read(first.pool.take().unwrap(), remote));
    if reads_into_buffers {
        assert_eq!(outcome.unwrap()[..], [3; SIZE]);
    } else {
        let failed = outcome.unwrap_err();
        assert!(matches!(failed.error, Error::MissingRights { .. }), "{failed}");
    }

    let mut closing = first.connection.close();
    let end = done(both, "the peer's end", second.connection.recv()).map(drop).unwrap_err();
    assert!(matches!(end, Error::Ended(End::Disconnected)), "{end}");
    drop(second.connection);
    until(both, "the end", || support::poll(&mut closing)).unwrap();
    drop(closing);
    until(both, "the buffers", || {
        pools.iter().all(|pool| pool.available() == BUFFERS as usize).then_some(())
    });
}

/// What is dropped in the middle of its work comes back when the device has finished with it.
fn drops_are_safe(kind: &str, address: &str) {
    let [first, second] = connected(shards(kind), address.parse().unwrap(), 4).unwrap();
    let both = [&first.shard, &second.shard];
    for _ in 0..4 {
        let mut sending = first.connection.send(first.pool.take().unwrap());
        let _ = support::poll(&mut sending);
    }
    drop(first.connection);
    until(both, "the buffers", || (first.pool.available() == BUFFERS as usize).then_some(()));
    // An attempt that nobody answers.
    let endpoint = first.shard.endpoint(QpCapabilities { inline: 0, ..support::QUEUES }).unwrap();
    endpoint.post_receives(&first.pool, 4).unwrap();
    let listener = second.shard.listen(address.parse().unwrap(), 1).unwrap();
    let mut connecting = endpoint.connect(listener.local_address(), b"");
    assert!(support::poll(&mut connecting).is_none());
    drop(connecting);
    assert_eq!(first.pool.available(), BUFFERS as usize);
}

/// Messages of two connections in shared receives, which all come back.
fn shares_receives(kind: &str, address: &str) {
    const RECEIVES: u32 = 4;
    let [first, second] = shards(kind);
    let both = [&first, &second];
    let pools = both.map(|shard| shard.pool(8, SIZE as u32).unwrap());
    let receives = second.shared_receives(RECEIVES).unwrap();
    receives.post(&pools[1], RECEIVES).unwrap();
    let listener = second.listen(address.parse().unwrap(), 2).unwrap();
    let connections = [0, 1].map(|_| {
        let endpoint = first.endpoint(support::QUEUES).unwrap();
        let mut connecting = endpoint.connect(listener.local_address(), b"");
        let incoming = until(both, "a request", || {
            assert!(support::poll(&mut connecting).is_none());
            support::poll(&mut listener.next())
        });
        let mut accepting = incoming.unwrap().accept(receives.endpoint(support::QUEUES).unwrap(), b"");
        let (mut client, mut server) = (None, None);
        until(both, "a connection", || {
            client = client.take().or_else(|| support::poll(&mut connecting));
            server = server.take().or_else(|| support::poll(&mut accepting));
            (client.is_some() && server.is_some()).then_some(())
        });
        (client.unwrap().unwrap(), server.unwrap().unwrap())
    });
    for round in 0..ROUNDS {
        for (client, server) in &connections {
            let sent = pools[0].copy_of(&round.to_be_bytes()).unwrap();
            drop(done(both, "a completion", client.send(sent)).unwrap());
            assert_eq!(done(both, "a message", server.recv()).unwrap()[..], round.to_be_bytes());
        }
    }
    for (client, server) in connections {
        drop(done(both, "a completion", client.send(pools[0].copy_of(b"last").unwrap())).unwrap());
        drop(client.close());
        assert_eq!(&done(both, "a message", server.recv()).unwrap()[..], b"last");
        let end = done(both, "the end", server.recv()).map(drop).unwrap_err();
        assert!(matches!(end, Error::Ended(End::Disconnected)), "{end}");
    }
    until(both, "the receives", || (receives.posted() == RECEIVES as usize).then_some(()));
    drop(receives);
    until(both, "the buffers", || (pools[1].available() == 8).then_some(()));
}

/// The port of the second device goes down and comes up again.
fn reports_its_port(kind: &str) {
    let befalls = |what: &str| {
        let status = Command::new("scripts/vm/fault.sh").args([kind, what]).status().unwrap();
        assert!(status.success(), "{what}");
    };
    let [_, shard] = shards(kind);
    let events = shard.device_events().unwrap();
    let until = |wanted| loop {
        match shard.block_on_until(&mut events.next(), Instant::now() + support::LIMIT) {
            Some(event) if event == wanted => break,
            Some(_) => {}
            None => panic!("waited in vain for {wanted:?}"),
        }
    };
    befalls("down");
    until(DeviceEvent::PortDown(1));
    befalls("up");
    until(DeviceEvent::PortActive(1));
}

#[test]
fn siw() {
    works("siw", "10.1.0.2:0", false);
    let [shard, _] = shards("siw");
    let error = shard.shared_receives(4).map(drop).unwrap_err();
    assert!(matches!(error, Error::Verbs(rdma_verbs::Error::Unsupported(_))), "{error}");
    drops_are_safe("siw", "10.1.0.2:0");
    reports_its_port("siw");
}

#[test]
fn rxe() {
    works("rxe", "10.2.0.2:0", true);
    shares_receives("rxe", "10.2.0.2:0");
    drops_are_safe("rxe", "10.2.0.2:0");
    reports_its_port("rxe");
}
