//! What the typed layer costs: a ping-pong of 64 bytes over the embedded device, by raw posts and by the
//! typed layer. One thread plays both sides and spins, so that the number of instructions is the same in
//! every run.
//!
//! ```text
//! typed_cost [raw|typed [ROUNDS]]
//! ```
//!
//! `scripts/checks/instructions.sh` counts the instructions of each. Without arguments, both run and print
//! their times.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rdma_testkit::harness::{OPTIONS, Pair, SEND, segment};
use rdma_testkit::rigs::IwarpRig;
use rdma_verbs::typed::{Buf, Connection, Pool, Shard, TrustedDevice};
use rdma_verbs::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue as _, CompletionStatus, Payload,
    QpCapabilities, QpId, QueuePairs as _, RecvRequest, Segment, SendRequest, iwarp,
};

const SIZE: u32 = 64;
const QUEUES: QpCapabilities =
    QpCapabilities { send_depth: 4, recv_depth: 4, inline: 0, initiator_depth: 1, responder_resources: 1 };

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let rounds = arguments.get(1).map_or(100_000, |rounds| rounds.parse().expect("a number of rounds"));
    let which = arguments.first().map(String::as_str);
    if which != Some("typed") {
        timed("raw", rounds, raw);
    }
    if which != Some("raw") {
        timed("typed", rounds, typed);
    }
}

/// Runs a variant; it returns when its exchange began.
fn timed(name: &str, rounds: u32, run: fn(u32) -> Instant) {
    let start = run(rounds);
    println!("{name}: {} ns a round", start.elapsed().as_nanos() / u128::from(rounds));
}

/// One side by raw posts.
struct Raw<'q> {
    cq: &'q mut iwarp::CompletionQueue,
    qp: QpId,
    source: Segment,
    target: Segment,
}

impl Raw<'_> {
    fn post_receive(&mut self) {
        let request = RecvRequest { id: 1, buffer: Buffer::Segment(self.target) };
        self.cq.post_recv(self.qp, &[request]).expect("a receive is posted");
    }

    fn send(&mut self) {
        let payload = Payload::Segments(std::slice::from_ref(&self.source));
        let request = SendRequest { id: 2, signaled: true, operation: SEND, payload };
        self.cq.post_send(self.qp, &[request], false).expect("a send is posted");
        self.await_completion(CompletionKind::Send);
    }

    fn receive(&mut self) {
        assert_eq!(self.await_completion(CompletionKind::Recv), SIZE);
        self.post_receive();
    }

    /// Returns the length that it tells.
    fn await_completion(&mut self, kind: CompletionKind) -> u32 {
        let mut batch = [Completion::EMPTY; 1];
        while self.cq.poll(&mut batch) == 0 {}
        assert_eq!((batch[0].kind, batch[0].status), (kind, CompletionStatus::Success));
        batch[0].length
    }
}

fn raw(rounds: u32) -> Instant {
    let mut pair = Pair::new(&IwarpRig::default());
    let connection = pair.join(|_, _| {});
    let regions = [&pair.active, &pair.passive]
        .map(|end| [(); 2].map(|()| end.region(SIZE as usize, Access::LOCAL_WRITE)));
    let place = |side: usize, at: usize| segment(&regions[side][at], 0, SIZE as usize);
    let mut sides = [
        Raw { cq: &mut pair.active.cq, qp: connection.active, source: place(0, 0), target: place(0, 1) },
        Raw { cq: &mut pair.passive.cq, qp: connection.passive, source: place(1, 0), target: place(1, 1) },
    ];
    sides.iter_mut().for_each(Raw::post_receive);
    let start = Instant::now();
    exchange_raw(&mut sides, rounds);
    start
}

#[inline(never)]
fn exchange_raw([first, second]: &mut [Raw<'_>; 2], rounds: u32) {
    for _ in 0..rounds {
        first.send();
        second.receive();
        second.send();
        first.receive();
    }
}

fn typed(rounds: u32) -> Instant {
    let shards = [(); 2].map(|()| {
        Shard::with_options(iwarp::Device::default(), OPTIONS).expect("the embedded device is there")
    });
    let pools = shards.each_ref().map(|shard| shard.pool(4, SIZE).expect("a pool"));
    let sides = connect(&shards, &pools);
    let bufs = pools.each_ref().map(|pool| pool.take().expect("a buffer"));
    let start = Instant::now();
    exchange_typed(&sides, bufs, rounds);
    start
}

fn connect<D: TrustedDevice>(shards: &[Shard<D>; 2], pools: &[Pool; 2]) -> [Connection<D>; 2] {
    let listener = shards[1].listen(([127, 0, 0, 1], 0).into(), 1).expect("a port");
    let [client, server] = [0, 1].map(|side: usize| {
        let endpoint = shards[side].endpoint(QUEUES).expect("an endpoint");
        endpoint.post_receives(&pools[side], 1).expect("a receive");
        endpoint
    });
    let mut connecting = client.connect(listener.local_address(), b"");
    let request = spin_both(&mut connecting, &mut listener.next());
    let mut accepting = request.expect("a request").accept(server, b"");
    let (mut first, mut second) = (None, None);
    while first.is_none() || second.is_none() {
        first = first.or_else(|| poll(&mut connecting));
        second = second.or_else(|| poll(&mut accepting));
    }
    [first, second].map(|side| side.expect("polled").expect("a connection"))
}

/// Polls both until the second is done; the first one is not done before.
fn spin_both<T>(first: &mut (impl Future + Unpin), second: &mut (impl Future<Output = T> + Unpin)) -> T {
    loop {
        assert!(poll(first).is_none(), "nobody has accepted");
        if let Some(output) = poll(second) {
            return output;
        }
    }
}

#[inline]
fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[inline]
fn spin<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
    }
}

type Side = Connection<iwarp::Device>;

fn send(side: &Side, buf: Buf) -> Buf {
    spin(side.send(buf)).expect("a send is done")
}

fn receive(side: &Side) {
    assert_eq!(spin(side.recv()).expect("a message").len(), SIZE as usize);
}

#[inline(never)]
fn exchange_typed([first, second]: &[Side; 2], mut bufs: [Buf; 2], rounds: u32) {
    for _ in 0..rounds {
        let [of_first, of_second] = bufs;
        let of_first = send(first, of_first);
        receive(second);
        let of_second = send(second, of_second);
        receive(first);
        bufs = [of_first, of_second];
    }
}
