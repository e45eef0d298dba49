//! Streams in tokio's runtime: tasks that wait for both directions, futures that are dropped, many
//! connections.

mod common;

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::{Random, check, peer_address, spawn_test, values};
use rstream_net::Path;
use rstream_net::tokio::{ReuniteError, TcpListener, TcpStream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(30);

async fn pair(after: [u32; 2]) -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let ends = [one.unwrap(), other.unwrap().0];
    ends[0].upgrade_after(after[0]);
    ends[1].upgrade_after(after[1]);
    ends
}

async fn upgraded() -> [TcpStream; 2] {
    let [mut one, mut other] = pair([0, 0]).await;
    while [&one, &other].iter().any(|end| end.path() != Path::SharedMemory) {
        exchange(&mut one, &mut other).await;
    }
    // Both directions begin.
    exchange(&mut one, &mut other).await;
    [one, other]
}

async fn exchange(one: &mut TcpStream, other: &mut TcpStream) {
    one.write_all(b"there").await.unwrap();
    other.read_exact(&mut [0; 5]).await.unwrap();
    other.write_all(b"back").await.unwrap();
    one.read_exact(&mut [0; 4]).await.unwrap();
}

/// Writes so many bytes, some by vectored calls, with futures that are dropped, and ends the output.
async fn write_all(end: &mut (impl AsyncWrite + Unpin), total: u64, seed: u64) {
    let (random, mut wrote) = (Random::new(seed), 0);
    while wrote < total {
        let length = 1 + random.below([50, 3000, 200_000][random.below(3)]);
        let bytes = values(wrote, length.min((total - wrote) as usize));
        let (first, second) = bytes.split_at(random.below(bytes.len()));
        let sent = match random.below(3) {
            0 => end.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]).await.unwrap(),
            1 => end.write(&bytes).await.unwrap(),
            _ => match timeout(Duration::from_micros(300), end.write(&bytes)).await {
                Ok(sent) => sent.unwrap(),
                Err(_) => 0,
            },
        };
        wrote += sent as u64;
        if random.below(60) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
    end.shutdown().await.unwrap();
}

/// Reads to the end, with futures that are dropped. Returns how many bytes there were.
async fn read_all(end: &mut (impl AsyncRead + Unpin), seed: u64) -> u64 {
    let (random, mut read, mut buffer) = (Random::new(seed), 0, vec![0; 200_000]);
    loop {
        let most = 1 + random.below([100, 200_000][random.below(2)]);
        let got = if random.below(3) == 0 {
            match timeout(Duration::from_micros(300), end.read(&mut buffer[..most])).await {
                Ok(got) => got.unwrap(),
                Err(_) => continue,
            }
        } else {
            end.read(&mut buffer[..most]).await.unwrap()
        };
        if got == 0 {
            return read;
        }
        check(read, &buffer[..got]);
        read += got as u64;
        if random.below(60) == 0 {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Both directions of both ends at once, each in a task of its own.
async fn flood(ends: [TcpStream; 2], seed: u64) {
    const TOTAL: u64 = 4 << 20;
    let mut tasks = JoinSet::new();
    for end in ends {
        let (mut input, mut output) = end.into_split();
        tasks.spawn(async move { assert_eq!(read_all(&mut input, seed).await, TOTAL) });
        tasks.spawn(async move { write_all(&mut output, TOTAL, seed + 7).await });
    }
    timeout(LIMIT, tasks.join_all()).await.expect("no task sleeps for ever");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn tasks_read_and_write_at_once() {
    for (seed, after) in [[0, 0], [8, 8], [2, 0], [0, 40], [u32::MAX, 8]].into_iter().enumerate() {
        flood(pair(after).await, seed as u64).await;
    }
    for seed in 10..16 {
        flood(upgraded().await, seed).await;
    }
}

#[tokio::test]
async fn tasks_of_one_thread_read_and_write_at_once() {
    for seed in 0..3 {
        flood(pair([8, 8]).await, seed).await;
        flood(upgraded().await, seed).await;
    }
}

/// A reader and a writer of one connection sleep, and each bell is for one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn no_task_loses_a_bell_that_another_takes() {
    const ROUNDS: usize = 300;
    const BULK: usize = 700 << 10;
    let [one, other] = upgraded().await;
    let ((mut input, mut output), (mut from, mut to)) = (one.into_split(), other.into_split());
    let mut tasks = JoinSet::new();
    // It sleeps until there is room, for a ring has less than it writes.
    tasks.spawn(async move {
        for _ in 0..ROUNDS {
            output.write_all(&vec![1; BULK]).await.unwrap();
        }
    });
    // It sleeps until there is a message.
    tasks.spawn(async move {
        for _ in 0..ROUNDS {
            input.read_exact(&mut [0; 3]).await.unwrap();
        }
    });
    // It makes room and sends a message, in turns first, some time after both fell asleep.
    tasks.spawn(async move {
        let (random, mut bulk) = (Random::new(1), vec![0; BULK]);
        for round in 0..ROUNDS {
            sleep(Duration::from_micros(random.below(1500) as u64)).await;
            if round % 2 == 0 {
                to.write_all(b"abc").await.unwrap();
            }
            from.read_exact(&mut bulk).await.unwrap();
            if round % 2 == 1 {
                to.write_all(b"abc").await.unwrap();
            }
        }
    });
    timeout(LIMIT, tasks.join_all()).await.expect("no task sleeps for ever");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_connections_share_a_runtime() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        loop {
            let mut end = listener.accept().await.unwrap().0;
            tokio::spawn(async move {
                let (mut input, mut output) = end.split();
                tokio::io::copy(&mut input, &mut output).await.unwrap();
            });
        }
    });
    let mut clients = JoinSet::new();
    for seed in 0..200 {
        clients.spawn(async move {
            let (random, mut moved, mut buffer) = (Random::new(seed), 0, vec![0; 20_000]);
            let mut end = TcpStream::connect(address).await.unwrap();
            for _ in 0..30 {
                let bytes = values(moved, 1 + random.below(buffer.len()));
                end.write_all(&bytes).await.unwrap();
                end.read_exact(&mut buffer[..bytes.len()]).await.unwrap();
                check(moved, &buffer[..bytes.len()]);
                moved += bytes.len() as u64;
            }
            end.path() == Path::SharedMemory
        });
    }
    let upgraded = timeout(LIMIT, clients.join_all()).await.expect("no task sleeps for ever");
    assert!(upgraded.into_iter().all(|is_upgraded| is_upgraded));
    server.abort();
}

#[tokio::test]
async fn readiness_is_told() {
    for [one, mut other] in [upgraded().await, pair([u32::MAX; 2]).await, pair([8, 8]).await] {
        let mut buffer = vec![0; 4 << 20];
        assert_eq!(one.try_read(&mut buffer).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(timeout(Duration::from_millis(20), one.readable()).await.is_err());
        // Three tasks wait for the same byte.
        let wait = async { tokio::join!(one.readable(), one.readable(), one.ready(Interest::READABLE)) };
        let send = async {
            sleep(Duration::from_millis(5)).await;
            other.write_all(b"x").await.unwrap();
        };
        let ((a, b, c), ()) = timeout(LIMIT, async { tokio::join!(wait, send) }).await.unwrap();
        assert!(a.is_ok() && b.is_ok() && c.unwrap().is_readable());
        assert_eq!(one.peek(&mut buffer).await.unwrap(), 1);
        assert_eq!(one.try_read(&mut buffer).unwrap(), 1);

        let mut wrote = 0;
        timeout(LIMIT, one.writable()).await.unwrap().unwrap();
        let full = loop {
            match one.try_write(&buffer[..100_000]) {
                Ok(sent) => wrote += sent,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let drain = async {
            sleep(Duration::from_millis(5)).await;
            let mut left = wrote;
            while left > 0 {
                left -= other.read(&mut buffer).await.unwrap();
            }
        };
        let outcome = timeout(LIMIT, async { tokio::join!(one.writable(), drain) }).await;
        outcome.expect("there is room").0.unwrap();
        drop(other);
        timeout(LIMIT, one.readable()).await.unwrap().unwrap();
        assert_eq!(one.try_read(&mut buffer).unwrap(), 0);
    }
}

/// A task that waits in one of several ways, while others try and wait too.
#[tokio::test]
async fn whoever_waits_for_input_is_woken_beside_others() {
    for [one, mut other] in [upgraded().await, pair([u32::MAX; 2]).await] {
        let (mut input, output) = one.into_split();
        let whole = Arc::new(output);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { input.read(&mut [0; 1]).await.unwrap() });
        for _ in 0..2 {
            let whole = Arc::clone(&whole);
            tasks.spawn(async move { whole.as_ref().as_ref().peek(&mut [0; 9]).await.unwrap() });
            sleep(Duration::from_millis(10)).await;
        }
        // Calls that do not wait, more than it takes to be known for that.
        for _ in 0..10 {
            let tried = whole.as_ref().as_ref().try_read(&mut [0; 9]);
            assert_eq!(tried.unwrap_err().kind(), ErrorKind::WouldBlock);
        }
        sleep(Duration::from_millis(10)).await;
        other.write_all(b"xyz").await.unwrap();
        while let Some(woken) = timeout(LIMIT, tasks.join_next()).await.expect("a task is not woken") {
            assert!(woken.unwrap() > 0);
        }
    }
}

#[tokio::test]
async fn a_wait_that_is_given_up_leaves_nothing_behind() {
    for [one, _other] in [upgraded().await, pair([u32::MAX; 2]).await] {
        let waits = Arc::new(());
        for _ in 0..100 {
            let mark = Arc::clone(&waits);
            let waker = Waker::from(Arc::new(Marked(mark)));
            let mut readable = pin!(one.readable());
            assert!(readable.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(Arc::strong_count(&waits), 1);
    }
}

struct Marked(#[expect(dead_code, reason = "it is counted")] Arc<()>);

impl Wake for Marked {
    fn wake(self: Arc<Self>) {}
}

#[tokio::test]
async fn to_end_the_output_of_a_connection_that_is_gone_is_no_error() {
    for [mut one, other] in [upgraded().await, pair([u32::MAX; 2]).await] {
        one.write_all(b"unread").await.unwrap();
        drop(other);
        timeout(LIMIT, one.readable()).await.unwrap().unwrap();
        for _ in 0..2 {
            one.shutdown().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_half_that_is_dropped_ends_the_output() {
    let [one, mut other] = upgraded().await;
    let (mut input, mut output) = one.into_split();
    output.write_all(b"the end").await.unwrap();
    drop(output);
    let mut all = Vec::new();
    other.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"the end");
    other.write_all(b"an answer").await.unwrap();
    drop(other);
    all.clear();
    input.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"an answer");

    let [[one, _kept], [other, mut peer]] = [upgraded().await, upgraded().await];
    let ((one, _output), (input, other)) = (one.into_split(), other.into_split());
    let ReuniteError(_one, other) = one.reunite(other).unwrap_err();
    let mut whole = other.reunite(input).unwrap();
    whole.write_all(b"whole").await.unwrap();
    peer.read_exact(&mut [0; 5]).await.unwrap();
}

#[tokio::test]
async fn a_plain_peer_sees_a_plain_stream() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let peer = async {
        let mut plain = tokio::net::TcpStream::connect(address).await.unwrap();
        plain.set_nodelay(true).unwrap();
        for _ in 0..100 {
            plain.write_all(&values(0, 5000)).await.unwrap();
            let mut bytes = [0; 5000];
            plain.read_exact(&mut bytes).await.unwrap();
            check(0, &bytes);
        }
    };
    let own = async {
        let mut end = listener.accept().await.unwrap().0;
        let (mut input, mut output) = end.split();
        assert_eq!(tokio::io::copy(&mut input, &mut output).await.unwrap(), 500_000);
        assert_eq!(end.path(), Path::Tcp("not yet"));
    };
    timeout(LIMIT, async { tokio::join!(peer, own) }).await.unwrap();
}

#[tokio::test]
async fn a_sleeping_task_uses_no_processor_time() {
    let [mut one, mut other] = upgraded().await;
    let reader = tokio::spawn(async move { one.read(&mut [0; 9]).await.unwrap() });
    sleep(Duration::from_millis(5)).await;
    let before = common::thread_time();
    sleep(Duration::from_millis(400)).await;
    let used = common::thread_time() - before;
    assert!(used < Duration::from_millis(2), "{used:?} in 400 ms");
    other.write_all(b"x").await.unwrap();
    assert_eq!(reader.await.unwrap(), 1);
}

/// What the other process does: it upgrades the connection, and then waits.
#[tokio::test]
async fn peer_that_waits() {
    let Some(address) = peer_address() else { return };
    let mut end = TcpStream::connect(address).await.unwrap();
    while end.path() != Path::SharedMemory {
        end.write_all(b"there").await.unwrap();
        end.read_exact(&mut [0; 4]).await.unwrap();
    }
    end.write_all(b"ready").await.unwrap();
    let mut order = [0];
    end.read_exact(&mut order).await.unwrap();
    if order == *b"e" {
        end.shutdown().await.unwrap();
    }
    std::future::pending().await
}

#[tokio::test]
async fn tasks_learn_that_their_peer_was_killed() {
    for order in [b'w', b'e'] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut child = spawn_test("peer_that_waits", listener.local_addr().unwrap());
        let mut end = listener.accept().await.unwrap().0;
        let mut message = [0; 5];
        loop {
            end.read_exact(&mut message).await.unwrap();
            if &message == b"ready" {
                break;
            }
            end.write_all(b"back").await.unwrap();
        }
        end.write_all(&[order]).await.unwrap();
        let (mut input, mut output) = end.split();
        let read = async { while input.read(&mut [0; 99]).await.is_ok_and(|got| got > 0) {} };
        let write = async { while output.write(&[0; 100_000]).await.is_ok() {} };
        let kill = async {
            sleep(Duration::from_millis(100)).await;
            child.kill().unwrap();
            child.wait().unwrap();
        };
        timeout(LIMIT, async { tokio::join!(read, write, kill) }).await.expect("both learn it");
    }
}

/// A writer whose reader has not taken what TCP carried: bells lie behind that.
#[tokio::test]
async fn a_reader_that_holds_back_holds_no_writer() {
    let [mut one, mut other] = pair([0, 0]).await;
    other.write_all(&values(0, 100_000)).await.unwrap();
    let (mut moved, mut buffer) = (0, vec![0; 100_000]);
    // Both sides use the rings, and a part of the kernel's bytes stays unread.
    for _ in 0..200 {
        one.write_all(&values(moved, 10)).await.unwrap();
        other.read_exact(&mut buffer[..10]).await.unwrap();
        check(moved, &buffer[..10]);
        moved += 10;
    }
    assert!([&one, &other].iter().all(|end| end.path() == Path::SharedMemory));
    let drain = async {
        while moved < 2010 + (4 << 20) - 10 {
            sleep(Duration::from_micros(100)).await;
            let got = other.read(&mut buffer).await.unwrap();
            check(moved, &buffer[..got]);
            moved += got as u64;
        }
    };
    let bulk = values(2000, 4 << 20);
    let outcome = timeout(LIMIT, async { tokio::join!(one.write_all(&bulk), drain) }).await;
    outcome.expect("the writer goes on").0.unwrap();
    let mut bytes = vec![0; 100_000];
    one.read_exact(&mut bytes).await.unwrap();
    check(0, &bytes);
}

#[tokio::test]
async fn a_poll_leaves_nothing_behind() {
    let [one, mut other] = upgraded().await;
    let (mut input, _output) = one.into_split();
    // A future that waited and is gone takes nothing.
    let mut bytes = [0; 9];
    let mut place = tokio::io::ReadBuf::new(&mut bytes);
    poll_fn(|cx| {
        assert!(Pin::new(&mut input).poll_read(cx, &mut place).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    other.write_all(b"kept").await.unwrap();
    let mut bytes = [0; 4];
    timeout(LIMIT, input.read_exact(&mut bytes)).await.unwrap().unwrap();
    assert_eq!(&bytes, b"kept");
}
