//! The waiting calls of a [`Connection`].

use rdma_testkit::harness::{CAPABILITIES, Connection, Error, remote, segment};
use rdma_testkit::sim::{Config, Device, Fabric};
use rdma_verbs::{Access, BreakReason, ConnectionEvent, Connections, Listener, MemoryRegion, RemoteAddress};

/// Connects two sides, and runs `client` and `server` on them in two threads.
fn connected(client: impl FnOnce(Connection<Device>), server: impl FnOnce(Connection<Device>) + Send) {
    let fabric = Fabric::new();
    let open = || Connection::new(fabric.device(Config::iwarp()), CAPABILITIES, 16).unwrap();
    let (mut active, mut passive) = (open(), open());
    passive.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = passive.end.listener.as_ref().unwrap().local_address();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            passive.accept().unwrap();
            server(passive);
        });
        active.connect(address).unwrap();
        client(active);
    });
}

#[test]
fn messages_writes_and_reads_arrive() {
    connected(
        |mut client| {
            let memory = client.region(8, Access::all()).unwrap();
            let RemoteAddress { key, address } = remote(&memory, 0);
            client.send(&[key.into(), address].map(u64::to_le_bytes).concat()).unwrap();
            assert_eq!(client.receive().unwrap(), b"done");
            let mut bytes = [0; 8];
            memory.memory().read(0, &mut bytes).unwrap();
            assert_eq!(bytes, *b"pingping");
            client.disconnect().unwrap();
        },
        |mut server| {
            let message = server.receive().unwrap();
            let [key, address] = [0, 8].map(|at| u64::from_le_bytes(message[at..at + 8].try_into().unwrap()));
            let memory = server.region(8, Access::all()).unwrap();
            memory.memory().write(0, b"ping").unwrap();
            let target = RemoteAddress { key: key as u32, address };
            server.write(segment(&memory, 0, 4), target).unwrap();
            server.read(target, segment(&memory, 4, 4)).unwrap();
            server.write(segment(&memory, 0, 8), target).unwrap();
            server.send(b"done").unwrap();
            server.wait_for_end().unwrap();
        },
    );
}

#[test]
fn the_last_message_is_received_and_the_next_receive_fails() {
    connected(
        |mut client| {
            // Both the message and the end arrive before the first call.
            let qp = client.qp;
            client
                .end
                .until("the end", |end| (!end.connection_events[&qp].is_empty()).then_some(()))
                .unwrap();
            assert_eq!(client.receive().unwrap(), b"bye");
            assert!(matches!(client.receive(), Err(Error::Verbs(rdma_verbs::Error::BadState { .. }))));
            client.disconnect().unwrap();
        },
        |mut server| {
            server.send(b"bye").unwrap();
            server.disconnect().unwrap();
        },
    );
}

#[test]
fn a_break_is_reported() {
    connected(
        |mut client| {
            assert_eq!(client.receive().unwrap(), b"here");
            client.end.cq.abort(client.qp);
            let outcome = client.wait_for_end();
            let event = ConnectionEvent::Broken(BreakReason::Aborted);
            assert!(matches!(&outcome, Err(Error::Event { event: it, .. }) if *it == event), "{outcome:?}");
        },
        |mut server| {
            server.send(b"here").unwrap();
            let outcome = server.receive();
            let broken =
                matches!(&outcome, Err(Error::Request { event: Some(ConnectionEvent::Broken(_)), .. }));
            assert!(broken, "{outcome:?}");
        },
    );
}
