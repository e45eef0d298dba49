//! Waiting: no wake-up is lost, neither by a reactor that reports edges nor by threads that block.

use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::{Config, Fabric};
use rdma_verbs::typed::{Connection, Descriptor, Driver, Pool, Readiness, Shard, TrustedDevice};
use rdma_verbs::{DeviceEvent, iwarp};
use rustix::event::{Timespec, epoll};

use super::support::{LIMIT, QUEUES, SIZE, any_port, connected, poll, simulated, simulated_with, until};

/// A shard whose device reports something needs a turn only, whether or not anyone takes it.
#[test]
fn device_events_are_reported() {
    let device = Fabric::new().device(Config::iwarp());
    let shard = Shard::new(device.clone()).unwrap();
    let [events, others] = [(); 2].map(|()| shard.device_events().unwrap());
    let mut next = events.next();
    assert!(poll(&mut next).is_none());
    let reporter = thread::spawn(move || {
        thread::sleep(Duration::from_millis(20));
        device.report(DeviceEvent::PortDown(1));
        device.report(DeviceEvent::PortActive(1));
    });
    assert_eq!(next.wait(), DeviceEvent::PortDown(1));
    reporter.join().unwrap();
    assert_eq!(events.next().wait(), DeviceEvent::PortActive(1));
    // Nobody has taken the others', and the shard is idle all the same.
    while shard.drive().unwrap() {}
    assert_eq!(others.next().wait(), DeviceEvent::PortDown(1));
    drop(others);
    assert!(poll(&mut events.next()).is_none());
}

const SEEDS: u64 = 60;
const ROUNDS: u32 = 50;

/// A reactor that reports each edge once, to all tasks of its thread.
struct Reactor {
    epoll: OwnedFd,
    /// There was an edge that `poll_readable` has not reported.
    edge: AtomicBool,
    /// A task was woken.
    woken: AtomicBool,
}

impl Reactor {
    fn new() -> Arc<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        Arc::new(Self { epoll, edge: AtomicBool::new(true), woken: AtomicBool::new(false) })
    }

    /// Runs a future, and sleeps only until an edge.
    fn run<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::clone(self));
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            if self.woken.swap(false, Ordering::AcqRel) {
                continue;
            }
            self.sleep();
        }
    }

    /// Sleeps until an edge.
    fn sleep(&self) {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 4];
        let limit = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
        let (events, _) = epoll::wait(&self.epoll, &mut events, Some(&limit)).unwrap();
        assert!(!events.is_empty(), "a wake-up is lost");
        self.edge.store(true, Ordering::Release);
    }
}

impl Wake for Reactor {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
    }
}

/// The descriptor of a shard in a reactor.
struct Edges {
    reactor: Arc<Reactor>,
    _descriptor: Descriptor,
}

impl Edges {
    fn new(reactor: &Arc<Reactor>, descriptor: Descriptor) -> io::Result<Self> {
        let interest = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&reactor.epoll, &descriptor, epoll::EventData::new_u64(0), interest)?;
        Ok(Self { reactor: Arc::clone(reactor), _descriptor: descriptor })
    }
}

impl Readiness for Edges {
    fn poll_readable(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.reactor.edge.swap(false, Ordering::AcqRel) {
            true => Poll::Ready(Ok(())),
            false => Poll::Pending,
        }
    }
}

/// Sends messages and waits for the answers; or the other way round.
async fn exchange<D: TrustedDevice>(connection: Connection<D>, pool: Pool, asks: bool) {
    for round in 0..ROUNDS {
        let turns: &[bool] = if asks { &[true, false] } else { &[false, true] };
        for &sends in turns {
            if sends {
                // A fault may refuse it as if the queue were full.
                while let Err(failed) = connection.send(pool.copy_of(&round.to_be_bytes()).unwrap()).await {
                    assert!(failed.to_string().starts_with("queue of"), "{failed}");
                }
            } else {
                let received = connection.recv().await.unwrap();
                assert_eq!(received[..], round.to_be_bytes());
            }
        }
    }
    // Both sides have all that they wait for.
    let _ = connection.close().await;
}

/// Runs both futures to their ends.
async fn join(first: impl Future<Output = ()>, second: impl Future<Output = ()>) {
    let (mut first, mut second) = (pin!(first), pin!(second));
    let mut done = [false; 2];
    poll_fn(|context| {
        done[0] = done[0] || first.as_mut().poll(context).is_ready();
        done[1] = done[1] || second.as_mut().poll(context).is_ready();
        if done == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// One side in a thread with a reactor that reports edges.
fn on_edges<D: TrustedDevice>(shard: Shard<D>, connection: Connection<D>, pool: Pool, asks: bool) {
    let reactor = Reactor::new();
    let driver = Driver::new(&shard, |descriptor| Edges::new(&reactor, descriptor)).unwrap();
    drop(shard);
    let driver = async { driver.await.unwrap() };
    reactor.run(join(exchange(connection, pool, asks), driver));
}

fn both_on_edges<D: TrustedDevice>(shards: [Shard<D>; 2]) {
    let [first, second] = connected(shards, any_port(), QUEUES.recv_depth).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| on_edges(first.shard, first.connection, first.pool, true));
        scope.spawn(|| on_edges(second.shard, second.connection, second.pool, false));
    });
}

#[test]
fn no_edge_is_lost_with_faults() {
    for seed in 0..SEEDS {
        both_on_edges(simulated(&Config::iwarp(), &Plan::nuisances(seed)));
        both_on_edges(simulated(&Config { wire: 1, ..Config::infiniband() }, &Plan::nuisances(seed)));
    }
}

#[test]
fn no_edge_is_lost_by_the_embedded_device() {
    for _ in 0..20 {
        both_on_edges([(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap()));
    }
}

#[test]
fn a_driver_wakes_at_deadlines() {
    let short = Duration::from_millis(50);
    let [shard, other] = simulated_with(&Config::iwarp(), &Plan::none(), short);
    let listener = other.listen(any_port(), 1).unwrap();
    let reactor = Reactor::new();
    let driver = Driver::new(&shard, |descriptor| Edges::new(&reactor, descriptor)).unwrap();
    let start = Instant::now();
    reactor.run(join(async { driver.await.unwrap() }, async {
        let connecting = shard.endpoint(QUEUES).unwrap().connect(listener.local_address(), b"");
        let error = connecting.await.map(drop).unwrap_err();
        assert_eq!(error.to_string(), "no answer within 50 ms");
        assert!(start.elapsed() >= short && start.elapsed() < LIMIT);
        drop(shard);
    }));
}

/// A turn may see that a deadline has passed before the kernel reports the same of the timer.
#[test]
fn a_timer_that_expires_late_leaves_the_shard_idle() {
    let short = Duration::from_micros(200);
    let [shard, other] = simulated_with(&Config::iwarp(), &Plan::none(), short);
    let listener = other.listen(any_port(), 1).unwrap();
    for _ in 0..1000 {
        // The processor that this thread leaves is the one that the timer interrupts.
        let mut connecting = shard.endpoint(QUEUES).unwrap().connect(listener.local_address(), b"");
        shard.drive().unwrap();
        let failed = thread::scope(|scope| {
            scope.spawn(|| until([&shard; 2], "the end", || poll(&mut connecting))).join()
        });
        assert!(failed.unwrap().is_err());
        thread::sleep(short);
        assert!((0..100).any(|_| !shard.drive().unwrap()), "it stays busy");
    }
}

#[test]
fn a_blocking_call_ends_at_its_deadline_and_can_go_on() {
    let [first, second] = connected(simulated(&Config::infiniband(), &Plan::none()), any_port(), 4).unwrap();
    let (start, short) = (Instant::now(), Duration::from_millis(30));
    let mut recv = first.connection.recv();
    assert!(first.shard.block_on_until(&mut recv, start + short).is_none());
    assert!(start.elapsed() >= short);
    second.connection.send_inline(b"now").unwrap();
    let received = first.shard.block_on_until(&mut recv, Instant::now() + LIMIT).unwrap().unwrap();
    assert_eq!(&received[..], b"now");
}

/// Threads that share a shard take each other's completions, and have to wake each other.
fn threads_share_a_shard<D: TrustedDevice>(shards: [Shard<D>; 2]) {
    let [first, second] = shards;
    let connections: Vec<_> = (0..3)
        .map(|_| connected([first.clone(), second.clone()], any_port(), QUEUES.recv_depth).unwrap())
        .collect();
    drop((first, second));
    let (done, finished) = std::sync::mpsc::channel();
    let threads: Vec<_> = connections
        .into_iter()
        .flat_map(|[first, second]| [(first, true), (second, false)])
        .map(|(side, asks)| {
            let done = done.clone();
            thread::spawn(move || {
                side.shard.block_on(Box::pin(exchange(side.connection, side.pool, asks)));
                done.send(()).unwrap();
            })
        })
        .collect();
    for _ in &threads {
        finished.recv_timeout(LIMIT).expect("a thread sleeps for good, or has panicked");
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn threads_that_block_wake_each_other() {
    for seed in 0..SEEDS / 3 {
        threads_share_a_shard(simulated(&Config::iwarp(), &Plan::nuisances(seed)));
        threads_share_a_shard(simulated(&Config::infiniband(), &Plan::nuisances(seed)));
    }
    threads_share_a_shard([(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap()));
}

#[test]
fn a_driver_ends_with_the_last_handle() {
    let [shard, _] = simulated(&Config::iwarp(), &Plan::none());
    let reactor = Reactor::new();
    let driver = Driver::new(&shard, |descriptor| Edges::new(&reactor, descriptor)).unwrap();
    // The driver is polled first, so it sleeps when the shard is dropped.
    reactor.run(join(async { driver.await.unwrap() }, async { drop(shard) }));
}

/// A turn of one driver handles the event that was to wake another one.
#[test]
fn every_driver_ends() {
    let [shard, _] = simulated(&Config::iwarp(), &Plan::none());
    let [first, second] = [(); 2].map(|()| Reactor::new());
    let driver = |reactor| Driver::new(&shard, |descriptor| Edges::new(reactor, descriptor)).unwrap();
    let [mut one, mut other] = [driver(&first), driver(&second)];
    assert!(poll(&mut one).is_none() && poll(&mut other).is_none());
    drop(shard);
    poll(&mut one).expect("there is no handle left").unwrap();
    second.sleep();
    poll(&mut other).expect("there is no handle left").unwrap();
}

#[test]
fn a_driver_ends_after_what_was_dropped_has_ended() {
    let [first, second] = connected(simulated(&Config::iwarp(), &Plan::none()), any_port(), 4).unwrap();
    let reactor = Reactor::new();
    let driver = Driver::new(&first.shard, |descriptor| Edges::new(&reactor, descriptor)).unwrap();
    assert!(poll(&mut first.connection.send(first.pool.copy_of(&[9; SIZE]).unwrap())).unwrap().is_ok());
    let peer = thread::spawn(move || {
        let received = second.connection.recv().wait().unwrap();
        assert_eq!(received[..], [9; SIZE]);
        drop(received);
        second.connection.close().wait().unwrap();
    });
    drop(first.shard);
    reactor.run(async {
        drop(first.connection.close());
        driver.await.unwrap();
    });
    peer.join().unwrap();
}
