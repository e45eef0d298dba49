//! What the embedded iWARP device takes from the heap: little for an idle queue pair, nothing for
//! a call that carries data.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::iwarp::{CompletionQueue, Device, MemoryRegion};
use rdma_verbs::{
    Access, Completion, CompletionQueue as _, ConnectOptions, ConnectionEvent, Device as _, EventTarget,
    Listener as _, Memory, MemoryRegion as _, Operation, Payload, ProtectionDomain as _, QpCapabilities,
    QpNumber, RecvRequest, RemoteAddress, Segment, SendRequest, Token, WaitSet,
};

/// Counts what each thread takes and gives back.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends counts no more.
    let _ = BYTES.try_with(|count| count.set(count.get() + bytes));
    if bytes > 0 {
        let _ = CALLS.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: every call is passed on to the system's allocator with the caller's own arguments, whose
// preconditions are therefore the caller's; counting touches only thread-local cells that need no
// memory.
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
const PATIENCE: Duration = Duration::from_secs(20);

struct Side {
    cq: CompletionQueue,
    qp: QpNumber,
    ring: MemoryRegion,
    wait: Arc<WaitSet>,
}

impl Side {
    fn new(device: &Device, buffers: bool) -> Self {
        let pd = device.alloc_pd().unwrap();
        let mut cq = device.create_cq(2 * RECEIVES).unwrap();
        let wanted = QpCapabilities {
            send_depth: RECEIVES,
            recv_depth: RECEIVES,
            inline: 64 * 1024,
            initiator_depth: 4,
            responder_resources: 4,
        };
        let (qp, _) = cq.create_qp(&pd, wanted).unwrap();
        let ring = pd.register(Memory::zeroed(RING).unwrap(), Access::all()).unwrap();
        let mut side = Self { cq, qp, ring, wait: Arc::new(WaitSet::new().unwrap()) };
        for id in 0..u64::from(RECEIVES) {
            side.post_recv(id, buffers);
        }
        side
    }

    fn post_recv(&mut self, id: u64, buffer: bool) {
        let buffer = buffer.then(|| self.segment(id * 8, 8));
        self.cq.post_recv(self.qp, &[RecvRequest { id, buffer }]).unwrap();
    }

    fn segment(&self, address: u64, length: u32) -> Segment {
        Segment { key: self.ring.local_key(), address, length }
    }

    fn target(&self) -> EventTarget {
        EventTarget { wait: Arc::clone(&self.wait), token: Token(1) }
    }
}

fn options() -> ConnectOptions {
    ConnectOptions { timeout: PATIENCE, keepalive: Duration::from_secs(30) }
}

fn connect(a: &mut Side, b: &mut Side, device: &Device) {
    let address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let mut listener = device.listen(address, 4, &options(), b.target()).unwrap();
    let target = a.target();
    a.cq.connect(a.qp, listener.local_address(), None, &[1; 24], &options(), target).unwrap();
    let request = loop {
        assert_eq!(a.cq.poll_event(a.qp), None);
        if let Some(request) = listener.poll() {
            break request;
        }
    };
    let target = b.target();
    b.cq.accept(b.qp, request, &[2; 24], &options(), target).unwrap();
    for side in [a, b] {
        let start = Instant::now();
        loop {
            match side.cq.poll_event(side.qp) {
                Some(ConnectionEvent::Established { .. }) => break,
                Some(event) => panic!("{event:?}"),
                None => assert!(start.elapsed() < PATIENCE),
            }
        }
    }
}

/// Heap that `build` leaves in use.
fn cost<T>(build: impl FnOnce() -> T) -> (T, isize) {
    let before = BYTES.get();
    let built = build();
    (built, BYTES.get() - before)
}

#[test]
fn an_idle_queue_pair_is_small() {
    let device = Device::default();
    // What a thread needs once, however many queue pairs it has.
    let (mut a, mut b) = (Side::new(&device, true), Side::new(&device, true));
    connect(&mut a, &mut b, &device);
    let mut out = [Completion::EMPTY; 8];
    a.cq.poll(&mut out);
    b.cq.poll(&mut out);
    let (pair, bytes) = cost(|| {
        let (mut a, mut b) = (Side::new(&device, true), Side::new(&device, true));
        connect(&mut a, &mut b, &device);
        a.cq.poll(&mut out);
        b.cq.poll(&mut out);
        (a, b)
    });
    // Both sides, each with its queue and domain. The ring is no heap: it is pages of its own.
    let each = bytes / 2;
    println!("an idle queue pair takes {each} bytes");
    assert!(each <= 2 * 1024, "an idle queue pair takes {each} bytes");
    assert!(each >= 512, "{each} bytes cannot hold a queue pair: the count is wrong");
    drop(pair);
}

#[test]
fn data_takes_no_heap() {
    let device = Device::default();
    let (mut a, mut b) = (Side::new(&device, false), Side::new(&device, false));
    connect(&mut a, &mut b, &device);
    let remotes = [b.ring.remote_key(), a.ring.remote_key()];
    let mut round = |size: usize, streamed: bool| {
        let bytes = vec![7; size];
        let before = CALLS.get();
        for _ in 0..200 {
            for (from, to, key) in [(0, 1, remotes[0]), (1, 0, remotes[1])] {
                let sides = [&mut a, &mut b];
                let slices = [IoSlice::new(&bytes)];
                let segments = [sides[from].segment(0, size as u32)];
                let payload = if streamed { Payload::Segments(&segments) } else { Payload::Inline(&slices) };
                let remote = RemoteAddress { key, address: 0 };
                let operation = Operation::Write { remote, immediate: Some(1) };
                let request = SendRequest { id: 0, signaled: true, operation, payload };
                sides[from].cq.post_send(sides[from].qp, &[request], false).unwrap();
                let mut out = [Completion::EMPTY; 4];
                let start = Instant::now();
                let mut received = 0;
                while received == 0 {
                    sides[from].cq.poll(&mut out);
                    received = sides[to].cq.poll(&mut out);
                    assert!(start.elapsed() < PATIENCE);
                }
                sides[to].cq.post_recv(sides[to].qp, &[RecvRequest { id: out[0].id, buffer: None }]).unwrap();
            }
        }
        CALLS.get() - before
    };
    for (size, streamed) in [(0, false), (64, false), (16_384, false), (64, true), (16_384, true)] {
        // The first time queues find their size.
        round(size, streamed);
        assert_eq!(round(size, streamed), 0, "{size} bytes, streamed {streamed}");
    }
}
