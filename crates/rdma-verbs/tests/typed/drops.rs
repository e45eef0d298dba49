//! What is dropped when: memory that a device uses is no one else's, whatever is dropped or forgotten, and
//! all of it comes back.

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::Config;
use rdma_verbs::Access;
use rdma_verbs::typed::{Buf, Connection, Error, Operation, Pool, Received, Region, TrustedDevice, Work};

use super::support::{
    BUFFERS, QUEUES, Random, SIZE, Side, Simulated, any_port, connected, poll, settle, simulated,
    simulated_with, until,
};

const SEEDS: u64 = 400;
const STEPS: usize = 120;
/// What a test fills free buffers with.
const GARBAGE: u8 = 0xee;

/// The devices in memory. The payload of all but one or two requests stays in the memory of the sender.
fn configs() -> [Config; 3] {
    [
        Config { wire: 1, ..Config::iwarp() },
        Config { wire: 2, ..Config::infiniband() },
        Config { wire: 1, inline: 0, arming: true, ..Config::iwarp() },
    ]
}

/// The bytes of a message: they differ from message to message.
fn message(number: u64) -> [u8; SIZE] {
    let mut bytes = [(number * 37 % 199) as u8; SIZE];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// Free buffers that a test has taken, to see whether anything else uses them.
struct Taken(Vec<Buf>);

impl Taken {
    fn all_of(pool: &Pool) -> Self {
        let mut taken = Vec::new();
        while let Ok(mut buf) = pool.take() {
            buf.fill(GARBAGE);
            taken.push(buf);
        }
        Self(taken)
    }

    fn check(&self) {
        for buf in &self.0 {
            assert!(buf.iter().all(|&byte| byte == GARBAGE), "a device wrote a free buffer: {:?}", &buf[..]);
        }
    }
}

/// An operation, and what its memory has to be when it is done, if that is known.
type Expected<'s, D> = (Operation<'s, Buf, D>, Option<[u8; SIZE]>);

/// What a side has under way. It borrows the side.
struct Flight<'s, D: TrustedDevice> {
    side: &'s Side<D>,
    operations: Vec<Expected<'s, D>>,
    held: Vec<Received<D>>,
    taken: Taken,
    /// Number of messages that were posted.
    posted: u64,
    /// Number of messages of the peer that arrived.
    arrived: u64,
    /// Number of posted operations that were forgotten.
    forgotten: usize,
}

impl<'s, D: TrustedDevice> Flight<'s, D> {
    fn new(side: &'s Side<D>) -> Self {
        let (operations, held) = (Vec::new(), Vec::new());
        Self { side, operations, held, taken: Taken(Vec::new()), posted: 0, arrived: 0, forgotten: 0 }
    }

    /// Posts an operation. `result` is what its memory has to be when it is done.
    fn post(&mut self, work: Work<Buf>, result: Option<[u8; SIZE]>) -> bool {
        let free = self.side.pool.available();
        let mut operation = self.side.connection.post(work);
        match poll(&mut operation) {
            None => self.operations.push((operation, result)),
            Some(Ok(buf)) => check(&buf, result),
            Some(Err(failed)) => {
                let posted = matches!(failed.error, Error::Operation { .. });
                drop(failed);
                assert!(self.side.pool.available() > free, "the buffer came back");
                return posted;
            }
        }
        true
    }

    /// One random step. `peer` tells how many messages the peer has taken.
    fn step(&mut self, random: &mut Random, peer_arrived: u64, peer_region: &Region) {
        let pool = &self.side.pool;
        match random.below(12) {
            0 | 1 if self.posted - peer_arrived < 4 => {
                let Ok(mut buf) = pool.take() else { return };
                let bytes = message(self.posted);
                buf.copy_from_slice(&bytes);
                self.posted += u64::from(self.post(Work::send(buf), Some(bytes)));
            }
            2 => {
                let Ok(buf) = pool.take() else { return };
                self.post(Work::read(buf, peer_region.remote()), Some([7; SIZE]));
            }
            3 => {
                let Ok(mut buf) = pool.take() else { return };
                buf.fill(7);
                self.post(Work::write(buf, peer_region.remote()), Some([7; SIZE]));
            }
            4 => {
                let free = pool.available();
                if let Ok(buf) = pool.take() {
                    drop(self.side.connection.send(buf));
                }
                assert_eq!(pool.available(), free, "nothing was posted");
            }
            5 if !self.operations.is_empty() => {
                let at = random.below(self.operations.len() as u64) as usize;
                drop(self.operations.swap_remove(at));
            }
            6 if !self.operations.is_empty() && self.forgotten < 3 => {
                let at = random.below(self.operations.len() as u64) as usize;
                mem::forget(self.operations.swap_remove(at));
                self.forgotten += 1;
            }
            7 => self.operations.retain_mut(|(operation, result)| match poll(operation) {
                None => true,
                Some(Ok(buf)) => {
                    check(&buf, *result);
                    false
                }
                Some(Err(_)) => false,
            }),
            8 | 9 => {
                if let Some(Ok(received)) = poll(&mut self.side.connection.recv()) {
                    assert_eq!(received[..], message(self.arrived), "message {}", self.arrived);
                    self.arrived += 1;
                    if random.below(3) == 0 {
                        self.held.push(received);
                    }
                    self.held.truncate(2);
                }
            }
            10 => {
                self.taken.check();
                self.taken = Taken::all_of(&self.side.pool);
            }
            _ => self.taken = Taken(Vec::new()),
        }
        self.taken.check();
    }
}

fn check(buf: &Buf, result: Option<[u8; SIZE]>) {
    if let Some(result) = result {
        assert_eq!(buf[..], result);
    }
}

/// How a scene ends.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// Connections are dropped.
    Drop,
    /// One side closes, the other one follows.
    Close,
    /// One side breaks the connection.
    Abort,
    /// Connections and shards are dropped, and nothing is driven any more.
    All,
}

fn scene(seed: u64, config: &Config) {
    let mut random = Random(seed);
    let plan = Plan {
        break_connection: *random.pick(&[0, 0, 3]),
        end_connection: *random.pick(&[0, 0, 3]),
        ..Plan::nuisances(seed)
    };
    let Ok(sides) = connected(simulated(config, &plan), any_port(), QUEUES.recv_depth) else { return };
    let [first, second] = &sides;
    let shards = [&first.shard, &second.shard];
    let regions = shards.map(|shard| shard.region(SIZE, Access::all()).unwrap());
    regions.iter().for_each(|region| region.write(0, &[7; SIZE]).unwrap());

    let mut flights = [Flight::new(first), Flight::new(second)];
    for _ in 0..STEPS {
        let at = random.below(2) as usize;
        let arrived = flights[1 - at].arrived;
        flights[at].step(&mut random, arrived, &regions[1 - at]);
        if random.below(2) == 0 {
            shards[random.below(2) as usize].drive().unwrap();
        }
    }
    let forgotten = flights.each_ref().map(|flight| flight.forgotten);
    let ending = *random.pick(&[Ending::Drop, Ending::Close, Ending::Abort, Ending::All]);
    drop(flights);
    end(sides, ending, forgotten);
}

/// Ends both sides, and checks that every buffer comes back when it may, and not earlier.
fn end(sides: [Side<Simulated>; 2], ending: Ending, forgotten: [usize; 2]) {
    let [first, second] = sides;
    let pools = [first.pool, second.pool];
    let shards = [first.shard, second.shard];
    let both = [&shards[0], &shards[1]];
    let taken = pools.each_ref().map(Taken::all_of);
    match ending {
        Ending::Drop => drop((first.connection, second.connection)),
        Ending::Close => {
            let mut closing = first.connection.close();
            let mut end = None;
            until(both, "the peer's end", || {
                end = end.take().or_else(|| poll(&mut second.connection.recv()).filter(Result::is_err));
                end.take()
            })
            .unwrap_err();
            drop(second.connection);
            // It may be broken, too.
            let _ = until(both, "the end", || poll(&mut closing));
        }
        Ending::Abort => {
            first.connection.abort();
            settle(both);
            assert!(first.connection.end().is_some());
            drop((first.connection, second.connection));
        }
        Ending::All => drop((first.connection, second.connection)),
    }
    if !matches!(ending, Ending::All) {
        settle(both);
        taken.iter().for_each(Taken::check);
        let held = taken.each_ref().map(|taken| taken.0.len());
        for side in 0..2 {
            let expected = BUFFERS as usize - held[side] - forgotten[side];
            assert_eq!(pools[side].available(), expected, "{ending:?}: side {side}");
        }
    }
    drop(shards);
    taken.iter().for_each(Taken::check);
    drop(taken);
    assert_eq!(
        pools.map(|pool| pool.available()),
        [BUFFERS as usize; 2],
        "{ending:?}: with the shard all ends"
    );
}

#[test]
fn memory_in_flight_is_no_one_elses_and_comes_back() {
    for config in configs() {
        for seed in 0..SEEDS {
            let outcome = std::panic::catch_unwind(|| scene(seed, &config));
            if let Err(panic) = outcome {
                eprintln!("seed {seed}, {config:?}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn a_forgotten_connection_is_lost_and_does_no_more() {
    /// As forgotten as by `mem::forget`, and yet reachable for leak checkers.
    static FORGOTTEN: Mutex<Vec<Connection<Simulated>>> = Mutex::new(Vec::new());
    let sides = connected(simulated(&configs()[0], &Plan::none()), any_port(), 4).unwrap();
    let [first, second] = sides;
    let taken = Taken::all_of(&first.pool);
    FORGOTTEN.lock().unwrap().push(first.connection);
    let buf = second.pool.copy_of(b"into a receive of the forgotten connection").unwrap();
    let mut operation = second.connection.send(buf);
    assert!(poll(&mut operation).is_some_and(|outcome| outcome.is_ok()));
    drop(operation);
    settle([&first.shard, &second.shard]);
    drop((first.shard, second.shard, second.connection));
    taken.check();
    drop(taken);
    assert_eq!(first.pool.available(), BUFFERS as usize - 4, "its receives are lost");
    assert_eq!(second.pool.available(), BUFFERS as usize);
}

#[test]
fn a_peer_that_does_not_end_its_side_is_cut_after_the_time_out() {
    let short = Duration::from_millis(50);
    let shards = simulated_with(&configs()[0], &Plan::none(), short);
    let [first, second] = connected(shards, any_port(), 4).unwrap();
    let mut operations = [0, 1, 2].map(|at| first.connection.send(first.pool.copy_of(&message(at)).unwrap()));
    let pending = operations.iter_mut().filter_map(|operation| poll(operation).is_none().then_some(()));
    assert_eq!(pending.count(), 2, "the wire holds one message");
    drop(operations);
    drop(first.connection);
    let start = Instant::now();
    // The peer is not driven.
    until([&first.shard; 2], "the buffers", || (first.pool.available() == BUFFERS as usize).then_some(()));
    assert!(start.elapsed() >= short - Duration::from_millis(1), "before, the device had them");
    let taken = Taken::all_of(&first.pool);
    let mut operation = second.connection.send(second.pool.copy_of(b"too late").unwrap());
    let _ = poll(&mut operation);
    settle([&first.shard, &second.shard]);
    taken.check();
    let received = poll(&mut second.connection.recv()).expect("something came");
    assert!(received.is_err() || received.is_ok_and(|received| received[..] == message(0)));
}

#[test]
fn an_endpoint_gives_its_receives_back() {
    let [shard, _] = simulated(&configs()[0], &Plan::none());
    let pool = shard.pool(4, 16).unwrap();
    let endpoint = shard.endpoint(QUEUES).unwrap();
    endpoint.post_receives(&pool, 4).unwrap();
    assert_eq!(pool.available(), 0);
    drop(endpoint);
    assert_eq!(pool.available(), 4);
}

/// A waker that uses the shard, and whose drop does.
struct Meddling<D: TrustedDevice> {
    side: Side<D>,
    wakes: AtomicUsize,
}

impl<D: TrustedDevice> Wake for Meddling<D> {
    fn wake(self: Arc<Self>) {
        self.side.shard.drive().unwrap();
        let _ = self.side.connection.end();
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn wakers_run_and_are_dropped_outside_the_lock() {
    let [first, second] = connected(simulated(&configs()[0], &Plan::none()), any_port(), 4).unwrap();
    let (shard, other) = (first.shard.clone(), second.shard.clone());
    let meddling = Arc::new(Meddling { side: first, wakes: AtomicUsize::new(0) });
    let waker = Waker::from(Arc::clone(&meddling));
    let mut recv = meddling.side.connection.recv();
    let mut pending = |waker: &Waker| {
        assert!(std::pin::Pin::new(&mut recv).poll(&mut Context::from_waker(waker)).is_pending());
    };
    pending(&waker);
    drop(waker);
    // It replaces the waker, which runs or is dropped now.
    pending(Waker::noop());
    assert_eq!(meddling.wakes.load(Ordering::Relaxed), 1);
    let waker = Waker::from(Arc::clone(&meddling));
    pending(&waker);
    drop(recv);
    assert_eq!(meddling.wakes.load(Ordering::Relaxed), 2);
    let mut recv = meddling.side.connection.recv();
    assert!(std::pin::Pin::new(&mut recv).poll(&mut Context::from_waker(&waker)).is_pending());
    second.connection.send_inline(b"!").unwrap();
    until([&shard, &other], "a wake", || (meddling.wakes.load(Ordering::Relaxed) == 3).then_some(()));
}
