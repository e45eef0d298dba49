//! A connection goes back to TCP in the middle of its stream, whatever the other side does meanwhile: a peer
//! under `rstream-run` hands its end to another program, one in C detaches it, or a stream of `std` is made of one
//! end.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use common::{Random, attached_echo, check, pair, preloaded_echo, upgraded, values};
use rstream_net::{Path, TcpStream, tokio as asynchronous};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

const BACK: Path = Path::Tcp("back on TCP");
/// Bytes that upgrade the connection, before the peer tries first.
const EARLY: u64 = 100_000;
/// Up to where a writer does not wait for what comes back.
const FLOOD: u64 = 1_500_000;
/// Bytes in all. Behind the flood the peer tries at least twice.
const TOTAL: u64 = 4_000_000;
const LIMIT: Duration = Duration::from_secs(20);

/// Messages there and back, with a pause before each answer is read. Returns whether the connection was
/// shared memory.
fn exchange(end: &TcpStream, from: u64, to: u64, pause: Duration) -> bool {
    let (random, mut moved, mut buffer) = (Random::new(6), from, vec![0; 20_000]);
    let mut was_shared = false;
    while moved < to {
        let bytes = values(moved, (1 + random.below(buffer.len())).min((to - moved) as usize));
        (&*end).write_all(&bytes).unwrap();
        if (190_000..220_000).contains(&moved) {
            thread::sleep(pause);
        }
        (&*end).read_exact(&mut buffer[..bytes.len()]).unwrap();
        check(moved, &buffer[..bytes.len()]);
        moved += bytes.len() as u64;
        was_shared |= end.path() == Path::SharedMemory;
    }
    was_shared
}

fn finish(end: &TcpStream) {
    assert_eq!(end.path(), BACK);
    end.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&*end).read(&mut [0; 9]).unwrap(), 0);
}

/// In the one case this side waits in a read while the peer goes, in the other it is between calls.
#[test]
fn a_dialogue_goes_on() {
    for (how, pause) in [("become", 0), ("become", 300), ("send", 0), ("send", 300)] {
        let Some((mut server, address)) = preloaded_echo("a_dialogue_goes_on", how) else { return };
        let end = TcpStream::connect(address).unwrap();
        assert!(exchange(&end, 0, 500_000, Duration::from_millis(pause)));
        finish(&end);
        assert!(server.wait().unwrap().success());
    }
}

/// A peer that has attached its end from C, and one that detaches it.
#[test]
fn a_dialogue_with_an_attached_peer_goes_on() {
    for how in ["stay", "detach"] {
        let Some((mut server, address)) = attached_echo("a_dialogue_with_an_attached_peer_goes_on", how)
        else {
            return;
        };
        let end = TcpStream::connect(address).unwrap();
        assert!(exchange(&end, 0, 500_000, Duration::ZERO));
        match how {
            "detach" => finish(&end),
            _ => assert_eq!(end.path(), Path::SharedMemory),
        }
        drop(end);
        assert!(server.wait().unwrap().success());
    }
}

/// The peer is refused while more is unread than TCP takes, and tries again behind the flood.
#[test]
fn a_flood_goes_on() {
    for how in ["become", "send"] {
        let Some((mut server, address)) = preloaded_echo("a_flood_goes_on", how) else { return };
        let end = &TcpStream::connect(address).unwrap();
        assert!(exchange(end, 0, EARLY, Duration::ZERO));
        thread::scope(|scope| {
            let bytes = values(EARLY, (FLOOD - EARLY) as usize);
            let mut returned = vec![0; bytes.len()];
            scope.spawn(move || (&*end).write_all(&bytes).unwrap());
            (&*end).read_exact(&mut returned).unwrap();
            check(EARLY, &returned);
        });
        exchange(end, FLOOD, TOTAL, Duration::ZERO);
        finish(end);
        assert!(server.wait().unwrap().success());
    }
}

/// With unread bytes on the way, and a peer that waits or polls.
#[test]
fn a_stream_of_std_goes_on() {
    for (polls, before) in
        [(false, 0), (true, 0), (false, 7000), (true, 7000), (false, 20_000), (true, 20_000)]
    {
        let [one, other] = &upgraded();
        other.set_nonblocking(polls).unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let (mut end, mut buffer, mut read) = (other, [0; 500], 0);
                loop {
                    match end.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(got) => {
                            check(read, &buffer[..got]);
                            end.write_all(&buffer[..got]).unwrap();
                            read += got as u64;
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
                assert_eq!((read, other.path()), (40_000, BACK));
                end.shutdown(Shutdown::Write).unwrap();
            });
            let (mut end, mut buffer) = (one, vec![0; 40_000]);
            end.write_all(&values(0, 20_000)).unwrap();
            end.read_exact(&mut buffer[..before]).unwrap();
            let mut plain = one.to_std().unwrap();
            assert_eq!(one.path(), BACK);
            plain.write_all(&values(20_000, 20_000)).unwrap();
            plain.read_exact(&mut buffer[before..]).unwrap();
            check(0, &buffer);
            plain.shutdown(Shutdown::Write).unwrap();
            assert_eq!(plain.read(&mut buffer).unwrap(), 0);
        });
    }
}

#[test]
fn a_stream_of_std_needs_an_answer() {
    let [one, other] = upgraded();
    (&one).write_all(b"before").unwrap();
    assert_eq!(one.to_std().unwrap_err().kind(), ErrorKind::TimedOut);
    assert_eq!(one.path(), Path::SharedMemory);
    (&one).write_all(b" and after").unwrap();
    let mut bytes = [0; 16];
    (&other).read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"before and after");
}

#[test]
fn a_new_connection_is_one_of_std() {
    let [one, other] = pair([u32::MAX, 0]);
    let mut plain = one.to_std().unwrap();
    plain.write_all(b"bytes").unwrap();
    let mut bytes = [0; 5];
    (&other).read_exact(&mut bytes).unwrap();
    assert_eq!((&bytes, one.path()), (b"bytes", Path::Tcp("a stream of std was made of it")));
}

async fn exchange_as_task(end: &mut asynchronous::TcpStream, from: u64, to: u64, pause: Duration) -> bool {
    let (random, mut moved, mut buffer) = (Random::new(7), from, vec![0; 20_000]);
    let mut was_shared = false;
    while moved < to {
        let bytes = values(moved, (1 + random.below(buffer.len())).min((to - moved) as usize));
        end.write_all(&bytes).await.unwrap();
        if (190_000..220_000).contains(&moved) {
            sleep(pause).await;
        }
        end.read_exact(&mut buffer[..bytes.len()]).await.unwrap();
        check(moved, &buffer[..bytes.len()]);
        moved += bytes.len() as u64;
        was_shared |= end.path() == Path::SharedMemory;
    }
    was_shared
}

async fn finish_as_task(mut end: asynchronous::TcpStream) {
    assert_eq!(end.path(), BACK);
    end.shutdown().await.unwrap();
    assert_eq!(end.read(&mut [0; 9]).await.unwrap(), 0);
}

/// As [`a_dialogue_goes_on`].
#[tokio::test]
async fn a_dialogue_of_a_task_goes_on() {
    for (how, pause) in [("become", 0), ("become", 300), ("send", 0), ("send", 300)] {
        let Some((mut server, address)) = preloaded_echo("a_dialogue_of_a_task_goes_on", how) else { return };
        let mut end = asynchronous::TcpStream::connect(address).await.unwrap();
        let pause = Duration::from_millis(pause);
        let dialogue = timeout(LIMIT, exchange_as_task(&mut end, 0, 500_000, pause));
        assert!(dialogue.await.expect("the peer goes on"));
        finish_as_task(end).await;
        assert!(server.wait().unwrap().success());
    }
}

/// As [`a_flood_goes_on`].
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_tasks_goes_on() {
    for how in ["become", "send"] {
        let Some((mut server, address)) = preloaded_echo("a_flood_of_tasks_goes_on", how) else { return };
        let mut end = asynchronous::TcpStream::connect(address).await.unwrap();
        assert!(exchange_as_task(&mut end, 0, EARLY, Duration::ZERO).await);
        let (mut input, mut output) = end.into_split();
        let writer = tokio::spawn(async move {
            output.write_all(&values(EARLY, (FLOOD - EARLY) as usize)).await.unwrap();
            output
        });
        let mut bytes = vec![0; (FLOOD - EARLY) as usize];
        timeout(LIMIT, input.read_exact(&mut bytes)).await.expect("the peer goes on").unwrap();
        check(EARLY, &bytes);
        let mut end = input.reunite(writer.await.unwrap()).unwrap();
        let dialogue = timeout(LIMIT, exchange_as_task(&mut end, FLOOD, TOTAL, Duration::ZERO));
        dialogue.await.expect("the peer goes on");
        finish_as_task(end).await;
        assert!(server.wait().unwrap().success());
    }
}
