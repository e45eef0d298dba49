//! Streams over the embedded device as tasks use them.

mod common;

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use common::{Random, check, thread_time, values};
use rstream_net::endpoint::tokio::{Listener, Stream};
use rstream_net::endpoint::{Answer, Options, Path, Rejected};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::{sleep, timeout};

const HERE: &str = "127.0.0.1:0";
const LIMIT: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

async fn pair(options: &Options) -> [Stream; 2] {
    let listener = Listener::from_blocking(options.bind(HERE).unwrap()).unwrap();
    let (client, server) =
        tokio::join!(Stream::connect_with(options, listener.local_addr()), listener.accept());
    [client.unwrap(), server.unwrap().0]
}

/// One over the queue pair, and one that moves to shared memory.
async fn pairs() -> [[Stream; 2]; 2] {
    [pair(&Options::new().share_memory(false)).await, pair(&Options::new()).await]
}

async fn write_all(mut end: impl AsyncWrite + Unpin, total: u64, seed: u64) {
    let (random, mut wrote) = (Random::new(seed), 0);
    while wrote < total {
        let length = 1 + random.below([50, 3000, 90_000][random.below(3)]);
        let bytes = values(wrote, length.min((total - wrote) as usize));
        end.write_all(&bytes).await.unwrap();
        wrote += bytes.len() as u64;
        if random.below(50) == 0 {
            tokio::task::yield_now().await;
        }
    }
    end.shutdown().await.unwrap();
}

/// Reads to the end. Some reads are given up, and must lose nothing.
async fn read_all(mut end: impl AsyncRead + Unpin, seed: u64) -> u64 {
    let (random, mut read, mut buffer) = (Random::new(seed), 0, vec![0; 100_000]);
    loop {
        let most = 1 + random.below(buffer.len());
        let wait = if random.below(20) == 0 { Duration::ZERO } else { LIMIT };
        match timeout(wait, end.read(&mut buffer[..most])).await {
            Ok(got) => match got.unwrap() {
                0 => return read,
                got => {
                    check(read, &buffer[..got]);
                    read += got as u64;
                }
            },
            Err(_) => assert_eq!(wait, Duration::ZERO),
        }
    }
}

/// Four tasks: both ends read and write at once.
async fn stream_both_ways() {
    for (options, total) in [
        (Options::new(), 4 << 20),
        (Options::new().share_memory(false), 4 << 20),
        (Options::new().rings(5003, 601).depths(3, 3), 1 << 20),
    ] {
        let tasks = pair(&options).await.map(|end| {
            let (input, output) = split(end);
            (tokio::spawn(write_all(output, total, 1)), tokio::spawn(read_all(input, 2)))
        });
        for (writer, reader) in tasks {
            timeout(LIMIT, writer).await.unwrap().unwrap();
            assert_eq!(timeout(LIMIT, reader).await.unwrap().unwrap(), total);
        }
    }
}

#[tokio::test]
async fn tasks_of_one_thread_read_and_write_at_once() {
    stream_both_ways().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_two_threads_read_and_write_at_once() {
    stream_both_ways().await;
}

#[tokio::test]
async fn a_dialogue_moves_to_shared_memory() {
    for ends in pairs().await {
        let [mut one, mut other] = ends;
        for at in 0..300 {
            one.write_all(&values(at, 10)).await.unwrap();
            let mut bytes = [0; 10];
            other.read_exact(&mut bytes).await.unwrap();
            other.write_all(&bytes).await.unwrap();
            one.read_exact(&mut bytes).await.unwrap();
            check(at, &bytes);
        }
        assert_eq!(one.path(), other.path());
        assert_eq!(one.statistics().sends.bytes, 3000);
        drop(other);
        assert_eq!(one.read(&mut [0; 9]).await.unwrap(), 0);
        assert_eq!(one.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
    let [one, _other] = pair(&Options::new()).await;
    assert_eq!(one.path(), Path::QueuePair, "it has moved no byte");
}

#[tokio::test]
async fn connections_are_accepted_and_rejected() {
    let listener = Listener::bind(HERE).await.unwrap();
    let address = listener.local_addr();
    let clients = tokio::spawn(async move {
        let options = Options::new().data("no");
        let error = Stream::connect_with(&options, address).await.unwrap_err();
        let rejected = error.get_ref().unwrap().downcast_ref::<Rejected>().unwrap();
        assert_eq!(rejected.data(), b"no");
        Stream::connect_with(&options.data("yes"), address).await.unwrap()
    });
    let mut answer = |request: &rstream_net::endpoint::Request<'_>| match request.data() {
        b"yes" => Answer::Accept(b"welcome".to_vec()),
        data => Answer::Reject(data.to_vec()),
    };
    // A future that is dropped loses no connection.
    while timeout(Duration::ZERO, listener.accept_with(&mut answer)).await.is_err() {
        if clients.is_finished() {
            break;
        }
    }
    let client = clients.await.unwrap();
    assert_eq!(client.peer_data(), b"welcome");

    let silent = std::net::TcpListener::bind(HERE).unwrap();
    let options = Options::new().connect_timeout(50 * MS);
    let error = Stream::connect_with(&options, silent.local_addr().unwrap()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

/// The thread of the runtime goes on meanwhile.
#[tokio::test]
async fn dropping_a_stream_delivers_what_was_written() {
    for [mut one, mut other] in pairs().await {
        let mut wrote = 0;
        while let Ok(length) = timeout(20 * MS, one.write(&values(wrote, 10_000))).await {
            wrote += length.unwrap() as u64;
        }
        assert!(wrote > 10_000);
        let begun = Instant::now();
        drop(one);
        assert!(begun.elapsed() < 20 * MS);
        sleep(20 * MS).await;
        let mut bytes = Vec::new();
        timeout(LIMIT, other.read_to_end(&mut bytes)).await.unwrap().unwrap();
        check(0, &bytes);
        assert_eq!(bytes.len() as u64, wrote);
    }
}

/// A reader, and a writer that finds no room, while what came for nobody is unread.
#[tokio::test]
async fn sleeping_tasks_use_no_processor_time() {
    for [one, mut other] in pairs().await {
        let (mut input, mut output) = split(one);
        other.write_all(b"unread").await.unwrap();
        let writer = tokio::spawn(async move { output.write_all(&vec![1; 32 << 20]).await.unwrap() });
        sleep(200 * MS).await;
        let before = thread_time();
        sleep(300 * MS).await;
        let mut bytes = [0; 6];
        input.read_exact(&mut bytes).await.unwrap();
        let reader = tokio::spawn(async move { input.read(&mut bytes).await.unwrap() });
        sleep(300 * MS).await;
        let used = thread_time() - before;
        assert!(used < 20 * MS, "{used:?} in 600 ms");
        other.read_exact(&mut vec![0; 32 << 20]).await.unwrap();
        timeout(LIMIT, writer).await.unwrap().unwrap();
        drop(other);
        assert_eq!(timeout(LIMIT, reader).await.unwrap().unwrap(), 0);
    }
}
