//! The heap memory of the embedded iWARP device: little for an idle queue pair, none for a call that moves
//! data, nor for an operation of the typed layer.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use rdma_testkit::harness::{CAPABILITIES, Joined, LIMIT, Pair, remote, segment};
use rdma_testkit::rigs::IwarpRig;
use rdma_verbs::iwarp::{Device, MemoryRegion};
use rdma_verbs::typed::{Shard, Work};
use rdma_verbs::{Access, Buffer, CompletionKind, Operation, QpCapabilities, QueuePairs as _, RecvRequest};

/// Counts what each thread allocates and frees.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // The counters of an ending thread may be destroyed already.
    let _ = BYTES.try_with(|count| count.set(count.get() + bytes));
    if bytes > 0 {
        let _ = CALLS.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: every call passes the caller's arguments to the system's allocator, whose preconditions the caller
// fulfills. Counting accesses only thread-local cells, which allocate no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: see above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: see above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RECEIVES: u32 = 384;
const RING: usize = 256 * 1024;

/// Two connected ends whose receives have buffers or none.
fn connect(buffers: bool) -> (Pair<Device>, Joined, [MemoryRegion; 2]) {
    let mut pair = Pair::new(&IwarpRig::default());
    pair.capabilities =
        QpCapabilities { send_depth: RECEIVES, recv_depth: RECEIVES, inline: 64 * 1024, ..CAPABILITIES };
    let rings = [&pair.active, &pair.passive].map(|end| end.region(RING, Access::all()));
    let joined = pair.join(|pair, joined| {
        let ends = [(&mut pair.active, joined.active), (&mut pair.passive, joined.passive)];
        for ((end, qp), ring) in ends.into_iter().zip(&rings) {
            for id in 0..u64::from(RECEIVES) {
                let buffer =
                    if buffers { Buffer::Segment(segment(ring, 8 * id as usize, 8)) } else { Buffer::Empty };
                end.cq.post_recv(qp, &[RecvRequest { id, buffer }]).unwrap();
            }
        }
    });
    for end in [&mut pair.active, &mut pair.passive] {
        end.poll();
        // The memory of the harness does not count.
        end.listener = None;
        (end.completions, end.connection_events, end.requests) = Default::default();
    }
    (pair, joined, rings)
}

/// Bytes of heap memory that `build` leaves allocated.
fn cost<T>(build: impl FnOnce() -> T) -> (T, isize) {
    let before = BYTES.get();
    let built = build();
    (built, BYTES.get() - before)
}

#[test]
fn an_idle_queue_pair_is_small() {
    // The first connection allocates what each thread needs once.
    let _first = connect(true);
    let (_pair, bytes) = cost(|| connect(true));
    // Both sides have their own completion queue and protection domain. The ring is mapped, not allocated.
    let each = bytes / 2;
    println!("an idle queue pair takes {each} bytes");
    assert!(each <= 2 * 1024, "an idle queue pair takes {each} bytes");
    assert!(each >= 512, "{each} bytes cannot hold a queue pair: the count is wrong");
}

#[test]
fn data_takes_no_heap() {
    let (pair, joined, rings) = connect(false);
    let (mut ends, qps) = ([pair.active, pair.passive], [joined.active, joined.passive]);
    let mut round = |size: usize, streamed: bool| {
        let bytes = vec![7; size];
        let before = CALLS.get();
        for _ in 0..200 {
            for (from, to) in [(0, 1), (1, 0)] {
                let write = Operation::Write { remote: remote(&rings[to], 0), immediate: Some(1) };
                if streamed {
                    ends[from].post(qps[from], 0, write, &[segment(&rings[from], 0, size)]);
                } else {
                    ends[from].post_inline(qps[from], 0, write, &bytes).unwrap();
                }
                let start = Instant::now();
                let id = loop {
                    ends[from].poll_completions();
                    ends[to].poll_completions();
                    let mut done = ends[to].completions.drain(..);
                    if let Some(arrival) = done.find(|done| done.kind != CompletionKind::Write) {
                        break arrival.id;
                    }
                    assert!(start.elapsed() < LIMIT);
                };
                ends[to].cq.post_recv(qps[to], &[RecvRequest { id, buffer: Buffer::Empty }]).unwrap();
            }
        }
        CALLS.get() - before
    };
    for (size, streamed) in [(0, false), (64, false), (16_384, false), (64, true), (16_384, true)] {
        // In the first round queues grow to their size.
        round(size, streamed);
        assert_eq!(round(size, streamed), 0, "{size} bytes, streamed {streamed}");
    }
}

#[test]
fn typed_operations_take_no_heap() {
    const ROUNDS: u32 = 200;
    let shards = [(); 2].map(|()| Shard::new(Device::default()).unwrap());
    let listener = shards[1].listen(([127, 0, 0, 1], 0).into(), 1).unwrap();
    let address = listener.local_address();
    let [client, server] = shards;
    let region = server.region(64, Access::all()).unwrap();
    let remote = region.remote();
    let echo = std::thread::spawn(move || {
        let pool = server.pool(8, 64).unwrap();
        let endpoint = server.endpoint(CAPABILITIES).unwrap();
        endpoint.post_receives(&pool, 4).unwrap();
        let connection = listener.next().wait().unwrap().accept(endpoint, b"").wait().unwrap();
        while let Ok(message) = connection.recv().wait() {
            connection.send(pool.copy_of(&message).unwrap()).wait().unwrap();
        }
        connection.close().wait().unwrap();
    });
    let pool = client.pool(8, 64).unwrap();
    let endpoint = client.endpoint(CAPABILITIES).unwrap();
    endpoint.post_receives(&pool, 4).unwrap();
    let connection = endpoint.connect(address, b"").wait().unwrap();
    let round = || {
        let before = CALLS.get();
        for _ in 0..ROUNDS {
            let buf = connection.send(pool.copy_of(b"ping").unwrap()).wait().unwrap();
            assert_eq!(connection.recv().wait().unwrap()[..], *b"ping");
            let buf = connection.read(buf, remote).wait().unwrap();
            let bufs = [Work::write(buf, remote), Work::write(pool.take().unwrap(), remote)];
            drop(connection.batch(bufs).wait().unwrap());
            connection.send_inline(b"inline").unwrap();
            assert_eq!(connection.recv().wait().unwrap()[..], *b"inline");
        }
        CALLS.get() - before
    };
    // In the first round queues grow to their size.
    round();
    assert_eq!(round(), 0);
    connection.close().wait().unwrap();
    echo.join().unwrap();
}
