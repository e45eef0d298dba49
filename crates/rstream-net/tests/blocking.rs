//! Threads, time-outs, ends and peers of streams that wait.

mod common;

use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use common::{Random, check, pair, peer_address, preloaded_echo, spawn_test, upgrade, upgraded, values};
use rstream_net::{Path, TcpListener, TcpStream};
use rustix::process::{Resource, Rlimit};

/// Writes so many bytes in pieces of random lengths, and ends the output.
fn write_all(mut end: &TcpStream, total: u64, seed: u64) {
    let (random, mut wrote) = (Random::new(seed), 0);
    while wrote < total {
        let length = 1 + random.below([50, 3000, 90_000][random.below(3)]);
        let bytes = values(wrote, length.min((total - wrote) as usize));
        end.write_all(&bytes).unwrap();
        wrote += bytes.len() as u64;
        if random.below(200) == 0 {
            thread::sleep(Duration::from_micros(100));
        }
    }
    end.shutdown(Shutdown::Write).unwrap();
}

/// Reads to the end. Returns how many bytes there were.
fn read_all(mut end: &TcpStream, seed: u64) -> u64 {
    let (random, mut read, mut buffer) = (Random::new(seed), 0, vec![0; 100_000]);
    loop {
        let most = 1 + random.below(buffer.len());
        if random.below(10) == 0 {
            let got = end.peek(&mut buffer[..most]).unwrap();
            check(read, &buffer[..got]);
        }
        let got = end.read(&mut buffer[..most]).unwrap();
        if got == 0 {
            return read;
        }
        check(read, &buffer[..got]);
        read += got as u64;
    }
}

#[test]
fn threads_read_and_write_at_once() {
    const TOTAL: u64 = 4 << 20;
    // Whether a flood leaves a moment to meet in is left to chance.
    let early = [[0, 0], [8, 8], [2, 0], [0, 40], [u32::MAX, 8]].map(pair);
    for (seed, ends) in early.into_iter().chain([upgraded(), upgraded(), upgraded()]).enumerate() {
        thread::scope(|scope| {
            for end in &ends {
                let other = end.try_clone().unwrap();
                scope.spawn(move || write_all(&other, TOTAL, seed as u64));
                scope.spawn(move || assert_eq!(read_all(end, seed as u64 + 9), TOTAL));
            }
        });
    }
}

/// Runs this in another thread until it sleeps. Returns what tells that it has ended.
fn sleeping(call: impl FnOnce() + Send + 'static) -> Receiver<()> {
    let ((begin, begun), (end, has_ended)) = (channel(), channel());
    thread::spawn(move || {
        begin.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        call();
        let _ = end.send(());
    });
    let state = format!("/proc/self/task/{}/stat", begun.recv().unwrap());
    while !fs::read_to_string(&state).unwrap().contains(") S ") {
        thread::yield_now();
    }
    has_ended
}

/// A bell that comes for one of them must not be lost to the other.
#[test]
fn a_reader_from_before_the_upgrade_sleeps_beside_a_writer() {
    const LARGE: usize = 4 << 20;
    const LIMIT: Duration = Duration::from_secs(10);
    for turn in 0..60 {
        let [one, mut other] = pair([0, 0]);
        other.set_read_timeout(Some(LIMIT)).unwrap();
        let [mut reads, mut writes] = [0; 2].map(|_| one.try_clone().unwrap());
        let reader = sleeping(move || reads.read_exact(&mut [0; 1]).unwrap());
        while [&one, &other].iter().any(|end| end.path() != Path::SharedMemory) {
            (&one).write_all(b"x").unwrap();
            other.read_exact(&mut [0; 1]).unwrap();
        }
        let writer = sleeping(move || writes.write_all(&vec![0; LARGE]).unwrap());
        if turn % 2 == 0 {
            other.write_all(b"x").unwrap();
            reader.recv_timeout(LIMIT).unwrap();
        }
        other.read_exact(&mut vec![0; LARGE]).unwrap();
        writer.recv_timeout(LIMIT).unwrap();
        if turn % 2 == 1 {
            other.write_all(b"x").unwrap();
            reader.recv_timeout(LIMIT).unwrap();
        }
    }
}

#[test]
fn threads_that_read_share_the_bytes() {
    let [one, other] = upgraded();
    let most = |end: &TcpStream| {
        let (mut end, mut sum, mut buffer) = (end, (0, 0), [0; 1000]);
        loop {
            match end.read(&mut buffer).unwrap() {
                0 => return sum,
                got => {
                    let bytes = buffer[..got].iter().map(|&byte| u64::from(byte));
                    sum = (sum.0 + got as u64, sum.1 + bytes.sum::<u64>());
                }
            }
        }
    };
    let sums = thread::scope(|scope| {
        let readers = [0; 3].map(|_| scope.spawn(|| most(&other)));
        write_all(&one, 1 << 20, 3);
        readers.map(|reader| reader.join().unwrap())
    });
    let expected: u64 = values(0, 1 << 20).into_iter().map(u64::from).sum();
    assert_eq!(sums.iter().map(|sum| sum.0).sum::<u64>(), 1 << 20);
    assert_eq!(sums.iter().map(|sum| sum.1).sum::<u64>(), expected);
}

#[test]
fn calls_time_out() {
    let limit = Duration::from_millis(30);
    for [one, other] in [upgraded(), pair([8, 8])] {
        one.set_read_timeout(Some(limit)).unwrap();
        let start = Instant::now();
        assert_eq!((&one).read(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(start.elapsed() >= limit);
        // A limit for reads is none for writes.
        (&one).write_all(&[0; 9]).unwrap();
        (&other).read_exact(&mut [0; 9]).unwrap();
        one.set_write_timeout(Some(limit)).unwrap();
        let start = Instant::now();
        let error = loop {
            if let Err(error) = (&one).write(&[0; 100_000]) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(start.elapsed() >= limit);
    }
}

#[test]
fn a_shutdown_ends_a_read_of_another_thread() {
    for [one, other] in [upgraded(), pair([8, 8])] {
        for how in [Shutdown::Read, Shutdown::Both] {
            thread::scope(|scope| {
                let reader = scope.spawn(|| (&one).read(&mut [0; 9]));
                thread::sleep(Duration::from_millis(20));
                one.shutdown(how).unwrap();
                assert_eq!(reader.join().unwrap().unwrap(), 0);
            });
        }
        assert_eq!((&other).read(&mut [0; 9]).unwrap(), 0);
        assert!((&one).write(b"x").is_err());
    }
}

/// A write of more than there is room for, which waits: what the thread says in the end.
fn waiting_write(end: &TcpStream) -> Receiver<io::Result<()>> {
    let (mut end, (say, said)) = (end.try_clone().unwrap(), channel());
    let _ = sleeping(move || say.send(end.write_all(&vec![0; 30 << 20])).unwrap());
    // It sleeps for what is left, and for nothing else.
    thread::sleep(Duration::from_millis(50));
    said
}

#[test]
fn a_shutdown_ends_a_write_of_another_thread() {
    for [one, _other] in [upgraded(), pair([u32::MAX; 2])] {
        let said = waiting_write(&one);
        one.shutdown(Shutdown::Write).unwrap();
        let outcome = said.recv_timeout(Duration::from_secs(10)).expect("the write ends");
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}

#[test]
fn a_write_that_waits_goes_on_when_others_are_not_to() {
    for [one, other] in [upgraded(), pair([u32::MAX; 2])] {
        let said = waiting_write(&one);
        one.set_nonblocking(true).unwrap();
        other.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        (&other).read_exact(&mut vec![0; 30 << 20]).unwrap();
        said.recv_timeout(Duration::from_secs(10)).expect("the write ends").unwrap();
    }
}

/// The call that has sent a part tells of that.
#[test]
fn the_next_call_tells_what_ended_a_write() {
    for [one, other] in [upgraded(), pair([u32::MAX; 2])] {
        let said = waiting_write(&one);
        drop(other);
        let outcome = said.recv_timeout(Duration::from_secs(10)).expect("the write ends");
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        // It is told once.
        assert_eq!((&one).read(&mut [0; 9]).unwrap(), 0);
        assert_eq!((&one).write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}

#[test]
fn bytes_left_unread_reset_the_connection() {
    let [one, other] = upgraded();
    (&one).write_all(b"unread").unwrap();
    drop(other);
    assert_eq!((&one).read(&mut [0; 9]).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    assert!((0..3).any(|_| (&one).write(b"x").is_err()));
}

#[test]
fn a_sleeping_reader_uses_no_processor_time() {
    let [one, other] = upgraded();
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let before = common::thread_time();
            (&one).read_exact(&mut [0; 1]).unwrap();
            common::thread_time() - before
        });
        thread::sleep(Duration::from_millis(400));
        (&other).write_all(b"x").unwrap();
        let used = reader.join().unwrap();
        assert!(used < Duration::from_millis(2), "{used:?} in 400 ms");
    });
}

#[test]
fn a_connection_that_was_used_stays_on_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut plain = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut other = listener.accept().unwrap().0;
    plain.write_all(b"used").unwrap();
    other.read_exact(&mut [0; 4]).unwrap();
    let mut one = TcpStream::from_std(plain).unwrap();
    for _ in 0..50 {
        one.write_all(b"there").unwrap();
        other.read_exact(&mut [0; 5]).unwrap();
        other.write_all(b"back").unwrap();
        one.read_exact(&mut [0; 4]).unwrap();
    }
    assert_eq!(one.path(), Path::Tcp("it was used before"));
    assert_eq!(other.path(), Path::Tcp("not yet"));
}

#[test]
fn connections_of_either_origin_upgrade() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let one = TcpStream::from_std(std::net::TcpStream::connect(address).unwrap()).unwrap();
    let other = std::net::TcpListener::from(listener).accept().unwrap().0;
    let ends = [one, TcpStream::from_std(other).unwrap()];
    upgrade(&ends);
    assert!(format!("{ends:?}").contains("SharedMemory"));
}

// ---- a peer that dies ---------------------------------------------------------------------------

/// What the other process does: it upgrades the connection, and then waits.
#[test]
fn peer_that_waits() {
    let Some(address) = peer_address() else { return };
    let mut end = TcpStream::connect(address).unwrap();
    while end.path() != Path::SharedMemory {
        end.write_all(b"there").unwrap();
        end.read_exact(&mut [0; 4]).unwrap();
    }
    end.write_all(b"ready").unwrap();
    // One byte says what to do before the wait.
    let mut order = [0];
    end.read_exact(&mut order).unwrap();
    if order == *b"e" {
        end.shutdown(Shutdown::Write).unwrap();
    }
    loop {
        thread::park();
    }
}

/// Kills a peer that has been told `order`, while `wait` waits.
fn kill_while(order: u8, wait: impl FnOnce(&TcpStream) + Send) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = spawn_test("peer_that_waits", listener.local_addr().unwrap());
    let mut end = listener.accept().unwrap().0;
    let mut message = [0; 5];
    loop {
        end.read_exact(&mut message).unwrap();
        if &message == b"ready" {
            break;
        }
        end.write_all(b"back").unwrap();
    }
    assert_eq!(end.path(), Path::SharedMemory);
    end.write_all(&[order]).unwrap();
    thread::scope(|scope| {
        let (sent, received) = std::sync::mpsc::channel();
        let waiting = &end;
        scope.spawn(move || {
            wait(waiting);
            sent.send(()).unwrap();
        });
        thread::sleep(Duration::from_millis(100));
        child.kill().unwrap();
        child.wait().unwrap();
        let outcome = received.recv_timeout(Duration::from_secs(10));
        if outcome.is_err() {
            // Ends the thread, so that the test can fail.
            let _ = end.shutdown(Shutdown::Both);
        }
        outcome.expect("the call has returned");
    });
}

/// What the other process does: it connects as often as it can, and uses each connection a while.
#[test]
fn program_of_few_descriptors() {
    let Some(address) = peer_address() else { return };
    if fs::metadata("/proc/self/fd").unwrap().len() == 0 {
        eprintln!("skipped: this system does not tell how many descriptors a process has");
        return;
    }
    let most = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(FEW), ..most }).unwrap();
    let mut ends = Vec::new();
    while let Ok(mut end) = TcpStream::connect(address) {
        for _ in 0..20 {
            end.write_all(b"x").unwrap();
            end.read_exact(&mut [0; 1]).unwrap();
        }
        ends.push(end);
    }
    assert!(ends.len() as u64 > FEW - 20, "{} connections with {FEW} descriptors", ends.len());
}

const FEW: u64 = 200;

/// Peers that do not use rstream are waited for, each at a socket of its own.
#[test]
fn descriptors_are_the_programs() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut child = spawn_test("program_of_few_descriptors", listener.local_addr().unwrap());
    thread::spawn(move || {
        let mut kept = Vec::new();
        for end in listener.incoming() {
            let mut end = end.unwrap();
            for _ in 0..20 {
                if end.read_exact(&mut [0; 1]).is_err() {
                    return;
                }
                end.write_all(b"x").unwrap();
            }
            kept.push(end);
        }
    });
    assert!(child.wait().unwrap().success());
}

fn read_to_end(mut end: &TcpStream) {
    while end.read(&mut [0; 99]).is_ok_and(|got| got > 0) {}
}

fn write_until_error(mut end: &TcpStream) {
    while end.write(&[0; 100_000]).is_ok() {}
}

#[test]
fn a_reader_learns_that_its_peer_was_killed() {
    kill_while(b'w', read_to_end);
}

#[test]
fn a_writer_learns_that_its_peer_was_killed() {
    kill_while(b'w', write_until_error);
}

#[test]
fn a_writer_learns_that_its_peer_was_killed_after_its_end() {
    kill_while(b'e', |end| {
        read_to_end(end);
        write_until_error(end);
    });
}

// ---- a peer that is preloaded -------------------------------------------------------------------

#[test]
fn a_preloaded_program_shares_memory() {
    let Some((mut server, address)) = preloaded_echo("a_preloaded_program_shares_memory", "keep") else {
        return;
    };
    let end = TcpStream::connect(address).unwrap();
    let (random, mut moved, mut buffer) = (Random::new(5), 0, vec![0; 60_000]);
    for _ in 0..300 {
        let bytes = values(moved, 1 + random.below(buffer.len()));
        (&end).write_all(&bytes).unwrap();
        (&end).read_exact(&mut buffer[..bytes.len()]).unwrap();
        check(moved, &buffer[..bytes.len()]);
        moved += bytes.len() as u64;
    }
    assert_eq!(end.path(), Path::SharedMemory);
    end.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&end).read(&mut buffer).unwrap(), 0);
    assert!(server.wait().unwrap().success());
}
