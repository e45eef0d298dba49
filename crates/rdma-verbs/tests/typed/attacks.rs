//! Programs that use the typed layer as it is not meant to be used.

use std::mem;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::Config;
use rdma_verbs::typed::{End, Error, Failed, Pieces, Remote, Shard, TrustedDevice, Work};
use rdma_verbs::{Access, ConnectOptions, QpCapabilities, iwarp};

use super::support::{
    BUFFERS, QUEUES, Random, Side, any_port, connected, done, poll, settle, simulated, simulated_with,
};

fn embedded() -> [Shard<iwarp::Device>; 2] {
    [(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap())
}

fn in_memory() -> [Shard<super::support::Simulated>; 2] {
    simulated(&Config::infiniband(), &Plan::none())
}

#[test]
fn options_may_have_any_length() {
    for keepalive in [Duration::ZERO, Duration::from_secs(1 << 40), Duration::MAX] {
        let options = ConnectOptions { timeout: Duration::MAX, keepalive };
        exchange([(); 2].map(|()| Shard::with_options(iwarp::Device::default(), options.clone()).unwrap()));
    }
    exchange(simulated_with(&Config::infiniband(), &Plan::none(), Duration::MAX));
}

fn exchange<D: TrustedDevice>(shards: [Shard<D>; 2]) {
    let [first, second] = connected(shards, any_port(), 1).unwrap();
    let both = [&first.shard, &second.shard];
    done(both, "a send", first.connection.send(first.pool.copy_of(b"text").unwrap())).unwrap();
    assert_eq!(done(both, "a message", second.connection.recv()).unwrap()[..], *b"text");
    drop(first.connection);
    settle(both);
}

/// Ends both sides. Every buffer comes back.
fn finish<D: TrustedDevice>([first, second]: [Side<D>; 2]) {
    let both = [&first.shard, &second.shard];
    drop((first.connection, second.connection));
    settle(both);
    assert_eq!([first.pool.available(), second.pool.available()], [BUFFERS as usize; 2]);
}

/// The waker of a task that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        // As `panic!` does, but it says nothing.
        resume_unwind(Box::new("as a waker might"));
    }
}

#[test]
fn wakers_that_panic_harm_no_one_else() {
    for seed in 0..50 {
        panics(seed, embedded());
        panics(seed, in_memory());
    }
}

fn panics<D: TrustedDevice>(seed: u64, shards: [Shard<D>; 2]) {
    let sides = connected(shards, any_port(), 4).unwrap();
    let (mut random, waker) = (Random(seed), Waker::from(Arc::new(Panics)));
    let mut context = Context::from_waker(&waker);
    let regions = [0, 1].map(|at: usize| sides[at].shard.region(64, Access::all()).unwrap());
    let mut receiving = [0, 1].map(|at: usize| sides[at].connection.recv());
    let (mut messages, mut landings) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        let at = random.below(2) as usize;
        let Side { connection, pool, shard } = &sides[at];
        match random.below(8) {
            0 | 1 => {
                let Ok(buf) = pool.copy_of(b"text") else { continue };
                let _ = Pin::new(&mut connection.send(buf)).poll(&mut context);
            }
            2 => {
                let read = connection.read(regions[at].piece(0..64).unwrap(), regions[1 - at].remote());
                let _ = pin!(read).poll(&mut context);
            }
            3 | 4 => match Pin::new(&mut receiving[at]).poll(&mut context) {
                Poll::Ready(Ok(message)) => messages.push(message),
                Poll::Ready(Err(_)) | Poll::Pending => {}
            },
            5 => drop(messages.pop()),
            6 => {
                landings.extend(connection.land(regions[at].piece(0..8).unwrap()).ok());
                landings.last_mut().map(|landing| Pin::new(landing).poll(&mut context).is_ready());
            }
            _ => drop(shard.drive()),
        }
    }
    sides[0].connection.abort();
    drop((receiving, messages, landings));
    finish(sides);
}

#[test]
fn values_that_change_places_keep_their_memory() {
    swaps(embedded());
    swaps(in_memory());
}

fn swaps<D: TrustedDevice>(shards: [Shard<D>; 2]) {
    let sides = connected(shards, any_port(), 4).unwrap();
    let [first, second] = &sides;
    let both = [&first.shard, &second.shard];
    for (side, text) in [(first, b"1st"), (second, b"2nd"), (first, b"1st"), (second, b"2nd")] {
        done(both, "a send", side.connection.send(side.pool.copy_of(text).unwrap())).unwrap();
    }
    let mut messages = [second, first]
        .map(|side| [(); 2].map(|()| done(both, "a message", side.connection.recv()).unwrap()));
    let [of_second, of_first] = &mut messages;
    mem::swap(of_second, of_first);
    mem::swap(&mut of_second[0], &mut of_first[1]);
    assert_eq!(
        [&of_second[0][..], &of_second[1], &of_first[0], &of_first[1]],
        [b"1st", b"2nd", b"1st", b"2nd"]
    );
    let [[a, b], [c, d]] = messages;
    let (mut kept, mut other) = (a.into_buf(), b.into_buf());
    mem::swap(&mut kept, &mut other);
    assert_eq!((&kept[..], &other[..]), (&b"2nd"[..], &b"1st"[..]));
    let failed = done(both, "a refusal", second.connection.send(kept)).unwrap_err();
    drop((failed, other, d, c));
    assert_eq!([first.connection.receives(), second.connection.receives()], [3; 2]);
    finish(sides);
}

#[test]
fn sizes_near_the_end_of_numbers_are_refused() {
    sizes(embedded());
    sizes(in_memory());
}

fn sizes<D: TrustedDevice>(shards: [Shard<D>; 2]) {
    let sides = connected(shards, any_port(), 1).unwrap();
    let [first, second] = &sides;
    let (shard, both) = (&first.shard, [&first.shard, &second.shard]);
    for (buffers, size) in [(0, 1), (1, 0), (u32::MAX, u32::MAX)] {
        assert!(shard.pool(buffers, size).is_err());
    }
    for size in [0, usize::MAX, isize::MAX as usize, 1 << 32] {
        assert!(shard.region(size, Access::all()).is_err());
    }
    let all = QpCapabilities {
        send_depth: u32::MAX,
        recv_depth: u32::MAX,
        inline: usize::MAX,
        initiator_depth: u8::MAX,
        responder_resources: u8::MAX,
    };
    for wanted in [all, QpCapabilities { recv_depth: 1, ..all }, QpCapabilities { send_depth: 1, ..all }] {
        assert!(shard.endpoint(wanted).is_err());
    }
    let endpoint = shard.endpoint(QpCapabilities { inline: usize::MAX, ..QUEUES }).unwrap();
    assert!(endpoint.post_receives(&first.pool, u32::MAX).is_err());
    assert!(shard.shared_receives(u32::MAX).is_err());
    drop(endpoint);
    let region = shard.region(16, Access::all()).unwrap();
    for (start, end) in
        [(17, 17), (0, 17), (16, 15), (5, usize::MAX), (usize::MAX, usize::MAX), (usize::MAX, 0)]
    {
        assert!(region.piece(start..end).is_err(), "{start} to {end}");
    }
    for (offset, length) in [(17, 0), (16, 1), (usize::MAX, 1), (usize::MAX, 0)] {
        assert!(region.write(offset, &vec![0; length]).is_err());
        assert!(region.read(offset, &mut vec![0; length]).is_err());
    }
    // Far beyond what the peer has.
    let far = Remote { key: region.remote().key, address: u64::MAX - 7, length: u32::MAX };
    assert!(far.piece(8, 1).is_err() && far.piece(u32::MAX, u32::MAX).is_err());
    let mut buf = first.pool.take().unwrap();
    assert!(buf.resize(usize::MAX).is_err() && buf.resize(buf.capacity() + 1).is_err());
    let pieces =
        || Pieces::new([0..16, 8..16, 3..3, 0..16].map(|range| region.piece(range).unwrap())).unwrap();
    drop(done(both, "a write", first.connection.write(pieces(), far)));
    drop(done(both, "a read", first.connection.read(region.piece(0..16).unwrap(), far)));
    drop(done(both, "the end", first.connection.post(Work::send_invalidate(buf, u32::MAX))));
    assert!(poll(&mut first.connection.send(pieces())).is_none_or(|outcome| outcome.is_err()));
    drop(region);
    finish(sides);
}

/// A device that has taken a part of a batch may still use its memory.
#[test]
fn a_batch_of_which_a_part_is_refused_waits_for_the_other_part() {
    let mut waited = 0;
    for seed in 0..20 {
        let plan = Plan { seed, partial_post: 1000, hold_completions: 900, ..Plan::none() };
        let sides = connected(simulated(&Config::infiniband(), &plan), any_port(), 4).unwrap();
        let [Side { connection, pool, shard }, other] = &sides;
        let works = [(); 4].map(|()| Work::send(pool.copy_of(b"text").unwrap()));
        let mut batch = connection.batch(works);
        let outcome = poll(&mut batch);
        waited += usize::from(outcome.is_none());
        let outcome = match outcome {
            Some(outcome) => {
                drop(batch);
                outcome
            }
            None => done([shard, &other.shard], "a batch", batch),
        };
        assert_eq!(connection.outstanding(), connection.receives(), "the device has none of it");
        let Failed { memory, error } = outcome.unwrap_err();
        assert!(matches!(error, Error::Operation { end: Some(End::Broken(_)), .. }), "{error}");
        assert!(memory.iter().all(|buf| buf[..] == *b"text"));
        drop(memory);
        finish(sides);
    }
    assert!(waited > 0);
}
