//! Bad input: the error names the numbers, and memory comes back to its owner.

use std::thread;
use std::time::Duration;

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::Config;
use rdma_verbs::typed::{End, Error, Pool, Shard, TrustedDevice};
use rdma_verbs::{Access, CompletionStatus, ConnectError, iwarp};

use super::support::{
    BUFFERS, QUEUES, SIZE, Side, Simulated, any_port, connected, done, poll, settle, simulated,
    simulated_with, until,
};

fn pair(config: Config) -> [Side<Simulated>; 2] {
    connected(simulated(&config, &Plan::none()), any_port(), 4).unwrap()
}

fn all_are_back(pool: &Pool) {
    assert_eq!(pool.available(), BUFFERS as usize - 4, "all but the receives");
}

#[test]
fn a_wrong_key_fails_the_operation_and_names_the_key() {
    let [first, second] = pair(Config::infiniband());
    let both = [&first.shard, &second.shard];
    let region = second.shard.region(SIZE, Access::REMOTE_WRITE).unwrap();
    let mut remote = region.remote();
    remote.key ^= 0x100;
    let failed =
        done(both, "a failure", first.connection.write(first.pool.take().unwrap(), remote)).unwrap_err();
    let Error::Operation { status, end } = &failed.error else { panic!("{failed}") };
    assert_eq!(*status, CompletionStatus::RemoteAccess);
    let end = end.as_ref().expect("the connection is broken").to_string();
    let access = format!("key {:#x} does not open {SIZE} bytes at {:#x}", remote.key, remote.address);
    assert!(end.contains(&access), "{end}");
    drop(failed);
    let end = until(both, "the end", || second.connection.end()).to_string();
    assert!(end.contains(&access), "{end}");
    settle(both);
    assert_eq!(first.pool.available(), BUFFERS as usize, "the receives are flushed");
}

#[test]
fn a_region_that_is_dropped_is_out_of_reach() {
    let [first, second] = pair(Config::infiniband());
    let both = [&first.shard, &second.shard];
    let region = second.shard.region(SIZE, Access::REMOTE_READ).unwrap();
    let remote = region.remote();
    let read = || done(both, "an end", first.connection.read(first.pool.take().unwrap(), remote));
    drop(read().unwrap());
    drop(region);
    let failed = read().unwrap_err();
    let status = CompletionStatus::RemoteAccess;
    assert!(matches!(failed.error, Error::Operation { status: found, .. } if found == status), "{failed}");
}

#[test]
fn a_region_lives_as_long_as_an_operation_uses_it() {
    let [first, second] = pair(Config { wire: 1, ..Config::iwarp() });
    let target = second.shard.region(4 * SIZE, Access::REMOTE_WRITE).unwrap();
    let region = first.shard.region(SIZE, Access::empty()).unwrap();
    region.write(0, &[5; SIZE]).unwrap();
    let mut writes = [0_u32, 1, 2].map(|at| {
        let remote = target.remote().piece(at * SIZE as u32, SIZE as u32).unwrap();
        first.connection.write(region.piece(0..SIZE).unwrap(), remote)
    });
    drop(region);
    let pending = writes.iter_mut().filter_map(|write| poll(write).is_none().then_some(())).count();
    assert_eq!(pending, 2, "the wire holds one");
    drop(writes);
    settle([&first.shard, &second.shard]);
    let mut bytes = [0; 3 * SIZE];
    target.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [5; 3 * SIZE]);
}

#[test]
fn a_full_queue_gives_the_buffer_back() {
    let [first, second] = pair(Config { wire: 1, ..Config::iwarp() });
    let send = || first.connection.send(first.pool.take().unwrap());
    let mut posted: Vec<_> = (0..=QUEUES.send_depth).map(|_| send()).collect();
    assert!(poll(&mut posted[0]).unwrap().is_ok(), "it is on the wire");
    assert!(posted[1..].iter_mut().all(|operation| poll(operation).is_none()), "these fill the queue");
    let failed = poll(&mut send()).unwrap().unwrap_err();
    assert_eq!(failed.to_string(), "queue of 8 entries has room for 0, not for 1");
    assert_eq!(failed.memory.len(), SIZE);
    // It breaks the connection: the peer has four receives only.
    settle([&first.shard, &second.shard]);
    let failures = posted[1..].iter_mut().filter_map(|operation| poll(operation).unwrap().err()).count();
    assert!(failures > 0 && failures < posted.len());
}

#[test]
fn an_empty_pool_says_so() {
    let [shard, _] = simulated(&Config::iwarp(), &Plan::none());
    let pool = shard.pool(2, 16).unwrap();
    let held = [pool.take().unwrap(), pool.take().unwrap()];
    assert_eq!(pool.take().unwrap_err().to_string(), "all 2 buffers of 16 bytes are held");
    let error = shard.endpoint(QUEUES).unwrap().post_receives(&pool, 1).unwrap_err();
    assert!(matches!(error, Error::PoolEmpty { buffers: 2, size: 16 }));
    drop(held);
    let error = pool.copy_of(&[0; 17]).unwrap_err();
    assert_eq!(error.to_string(), "buffer length of 17 is outside 0 to 16");
    assert_eq!(pool.available(), 2);
}

#[test]
fn a_peer_that_vanishes_ends_what_waits() {
    let [first, second] = pair(Config { wire: 1, ..Config::iwarp() });
    let mut sends = [(); 3].map(|()| first.connection.send(first.pool.take().unwrap()));
    sends.iter_mut().for_each(|send| drop(poll(send)));
    let mut recv = first.connection.recv();
    assert!(poll(&mut recv).is_none());
    second.connection.abort();
    drop((second.connection, second.shard));
    settle([&first.shard; 2]);
    assert!(matches!(poll(&mut recv), Some(Err(Error::Ended(End::Broken(_))))));
    for send in &mut sends[1..] {
        let failed = poll(send).unwrap().unwrap_err();
        let flushed = CompletionStatus::Flushed;
        assert!(matches!(&failed.error, Error::Operation { status, end: Some(_) } if *status == flushed));
    }
    let failed = poll(&mut first.connection.send(first.pool.take().unwrap())).unwrap().unwrap_err();
    assert!(matches!(failed.error, Error::Ended(End::Broken(_))), "{failed}");
    assert!(matches!(first.connection.send_inline(b"?"), Err(Error::Ended(_))));
    drop(failed);
    assert_eq!(first.pool.available(), BUFFERS as usize);
}

#[test]
fn what_does_not_fit_is_refused_before_it_breaks_anything() {
    let [first, second] = pair(Config::infiniband());
    let both = [&first.shard, &second.shard];
    let region = second.shard.region(SIZE - 1, Access::all()).unwrap();
    let write = first.connection.write(first.pool.take().unwrap(), region.remote());
    let failed = done(both, "a refusal", write).unwrap_err();
    assert_eq!(failed.to_string(), "64 bytes at 0 are not within 63");
    drop(failed);
    let constant = first.shard.region(8, Access::REMOTE_READ).unwrap();
    let read = first.connection.read(constant.piece(0..8).unwrap(), region.remote());
    let failed = done(both, "a refusal", read).unwrap_err();
    let (needed, granted) = (Access::LOCAL_WRITE, Access::REMOTE_READ);
    assert!(
        matches!(failed.error, Error::MissingRights { needed: n, granted: g } if n == needed && g == granted)
    );
    assert_eq!(constant.piece(4..9).unwrap_err().to_string(), "5 bytes at 4 are not within 8");
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let reversed = constant.piece(4..3);
    assert!(reversed.is_err());
    drop(failed);
    drop(done(
        both,
        "a refusal",
        first.connection.advertise(first.pool.take().unwrap(), region.remote()).unwrap(),
    ));
    all_are_back(&first.pool);
    let advert = done(both, "an advert", second.connection.recv()).unwrap();
    assert_eq!(advert.advert().unwrap(), region.remote());
}

#[test]
fn attempts_fail_with_their_reason() {
    let short = Duration::from_millis(50);
    let shards = simulated_with(&Config::iwarp(), &Plan::none(), short);
    let both = [&shards[0], &shards[1]];
    let pool = shards[0].pool(4, 16).unwrap();
    let listener = shards[1].listen(any_port(), 1).unwrap();
    let address = listener.local_address();
    let connect = |private_data: &[u8]| {
        let endpoint = shards[0].endpoint(QUEUES).unwrap();
        endpoint.post_receives(&pool, 4).unwrap();
        endpoint.connect(address, private_data)
    };
    // Rejected.
    let mut connecting = connect(b"let me in");
    assert!(poll(&mut connecting).is_none());
    let incoming = until(both, "a request", || poll(&mut listener.next())).unwrap();
    assert_eq!(incoming.private_data(), b"let me in");
    incoming.reject(b"no");
    let Some(Err(Error::Ended(end))) = Some(done(both, "an answer", connecting).map(drop)) else { panic!() };
    assert_eq!(end, End::Rejected { private_data: b"no".to_vec() });
    assert_eq!(pool.available(), 4);
    // Not answered.
    let error = done(both, "an answer", connect(b"")).map(drop).unwrap_err();
    assert!(matches!(error, Error::Ended(End::Failed(ConnectError::TimedOut(50)))), "{error}");
    // Dropped.
    let connecting = connect(b"");
    assert_eq!(pool.available(), 0);
    drop(connecting);
    assert_eq!(pool.available(), 4);
    // Too much to say.
    let error = done(both, "an answer", connect(&[0; 509])).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "private data length of 509 is outside 0 to 508");
    // Nobody there.
    drop(listener);
    let error = done(both, "an answer", connect(b"")).map(drop).unwrap_err();
    assert!(matches!(error, Error::Ended(End::Failed(ConnectError::Refused))), "{error}");
}

#[test]
fn a_backlog_is_bounded() {
    let shards = simulated(&Config::iwarp(), &Plan::none());
    let both = [&shards[0], &shards[1]];
    let listener = shards[1].listen(any_port(), 2).unwrap();
    let connect = |_| shards[0].endpoint(QUEUES).unwrap().connect(listener.local_address(), b"");
    let mut connecting: Vec<_> = (0..2).map(connect).collect();
    settle(both);
    connecting.extend((2..4).map(connect));
    settle(both);
    let outcomes: Vec<_> = connecting.iter_mut().map(poll).collect();
    assert!(outcomes[..2].iter().all(Option::is_none));
    assert!(outcomes[2..].iter().all(|outcome| matches!(outcome, Some(Err(_)))), "these were cut");
    assert!(poll(&mut listener.next()).is_some() && poll(&mut listener.next()).is_some());
    assert!(poll(&mut listener.next()).is_none());
}

#[test]
fn a_listener_that_stops_tells_who_waits() {
    stops(simulated(&Config::infiniband(), &Plan::none()));
    stops([(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap()));
}

fn stops<D: TrustedDevice>(shards: [Shard<D>; 2]) {
    let [client, server] = &shards;
    let both = [client, server];
    let listener = server.listen(any_port(), 4).unwrap();
    let connect = || client.endpoint(QUEUES).unwrap().connect(listener.local_address(), b"");
    let is_stopped = |outcome| matches!(outcome, Err(Error::Ended(End::ListenerStopped)));
    thread::scope(|scope| {
        let waits = scope.spawn(|| is_stopped(listener.next().wait().map(drop)));
        thread::sleep(Duration::from_millis(50));
        listener.stop();
        assert!(waits.join().unwrap());
    });
    assert!(done(both, "an answer", connect()).is_err());
    // Its address is free.
    let again = server.listen(listener.local_address(), 4).unwrap();
    let mut connecting = connect();
    let request = until(both, "a request", || {
        assert!(poll(&mut connecting).is_none());
        poll(&mut again.next())
    });
    assert!(is_stopped(poll(&mut listener.next()).unwrap().map(drop)));
    drop((listener, request));
    assert!(poll(&mut again.next()).is_none(), "it listens on");
}

/// The embedded device reports writes done when TCP has taken them, so the end of the connection tells.
#[test]
fn the_embedded_device_names_a_wrong_key() {
    let shards = [(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap());
    let [first, second] = connected(shards, any_port(), 4).unwrap();
    let both = [&first.shard, &second.shard];
    let region = second.shard.region(SIZE, Access::REMOTE_READ).unwrap();
    let mut remote = region.remote();
    drop(done(both, "a read", first.connection.read(first.pool.take().unwrap(), remote)).unwrap());
    remote.key ^= 0x100;
    let failed =
        done(both, "a failure", first.connection.read(first.pool.take().unwrap(), remote)).unwrap_err();
    assert!(matches!(failed.error, Error::Operation { .. }), "{failed}");
    let end = until(both, "the end", || second.connection.end()).to_string();
    assert!(end.contains(&format!("{:#010x}", remote.key)), "{end}");
    drop(failed);
    settle(both);
    assert_eq!(first.pool.available(), BUFFERS as usize);
}
