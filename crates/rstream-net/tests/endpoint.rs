//! Streams over the embedded device, between threads and between processes.

mod common;

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::process::Child;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use common::{Random, check, peer_address, spawn_test, thread_time, values};
use rdma_verbs::typed::Shard;
use rstream_net::endpoint::{Answer, Listener, Options, Path, Rejected, Stream};
use rstream_protocol::Hello;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const HERE: &str = "127.0.0.1:0";
const MS: Duration = Duration::from_millis(1);
/// More than the rings and the sockets of a connection hold.
const LARGE: usize = 32 << 20;

/// Both ends of a connection.
fn pair(options: &Options) -> [Stream; 2] {
    let listener = options.bind(HERE).unwrap();
    let address = listener.local_addr();
    let client = thread::spawn({
        let options = options.clone();
        move || options.connect(address).unwrap()
    });
    let (server, peer) = listener.accept().unwrap();
    let client = client.join().unwrap();
    assert_eq!((client.local_addr(), client.peer_addr()), (peer, address));
    assert_eq!((server.local_addr(), server.peer_addr()), (address, peer));
    [client, server]
}

/// One over the queue pair, and one that has moved to shared memory.
fn pairs() -> [[Stream; 2]; 2] {
    let shared = pair(&Options::new());
    let [mut one, mut other] = [&shared[0], &shared[1]];
    for _ in 0..50 {
        one.write_all(b"there").unwrap();
        other.read_exact(&mut [0; 5]).unwrap();
        other.write_all(b"back").unwrap();
        one.read_exact(&mut [0; 4]).unwrap();
    }
    assert_eq!([one.path(), other.path()], [Path::SharedMemory; 2]);
    let queued = pair(&Options::new().share_memory(false));
    [queued, shared]
}

/// Writes so many bytes in pieces of random lengths.
fn write_all(mut end: &Stream, total: u64, seed: u64) {
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
}

/// Reads to the end. Returns how many bytes there were.
fn read_all(mut end: &Stream, seed: u64) -> u64 {
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

fn kind<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

fn is_readable(end: &impl AsFd, wait: Duration) -> bool {
    let limit = Timespec::try_from(wait).unwrap();
    poll(&mut [PollFd::new(end, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

/// Nothing is there, and the descriptor says so. What it says for nothing ends with a call.
fn assert_quiet(end: &Stream) {
    assert!(
        !is_readable(end, Duration::ZERO) || {
            let outcome = (&*end).read(&mut [0]);
            kind(outcome) == ErrorKind::WouldBlock && !is_readable(end, Duration::ZERO)
        }
    );
}

// ---- bytes --------------------------------------------------------------------------------------

#[test]
fn threads_read_and_write_at_once() {
    let all = [
        (Options::new(), 4 << 20),
        (Options::new().share_memory(false), 4 << 20),
        (Options::new().rings(1 << 20, 1 << 20), 16 << 20),
        (Options::new().rings(1, 7), 5000),
        (Options::new().rings(5003, 601).depths(3, 3).share_memory(false), 1 << 20),
    ];
    for (seed, (options, total)) in (0..).zip(all) {
        thread::scope(|scope| {
            for end in pair(&options) {
                scope.spawn(move || {
                    thread::scope(|scope| {
                        scope.spawn(|| {
                            write_all(&end, total, seed);
                            end.shutdown(Shutdown::Write).unwrap();
                        });
                        assert_eq!(read_all(&end, seed + 9), total);
                    });
                    let statistics = end.statistics();
                    assert_eq!((statistics.sends.bytes, statistics.receives.bytes), (total, total));
                    assert_eq!(kind((&end).write(b"x")), ErrorKind::BrokenPipe);
                });
            }
        });
    }
}

#[test]
fn threads_that_read_share_the_bytes() {
    for [one, other] in &pairs() {
        const TOTAL: usize = 1 << 20;
        let most = |mut end: &Stream| {
            let (mut sum, mut buffer) = ((0, 0), [0; 1000]);
            loop {
                match end.read(&mut buffer).unwrap() {
                    0 => return sum,
                    got => {
                        let bytes = buffer[..got].iter().map(|&byte| u64::from(byte));
                        sum = (sum.0 + got, sum.1 + bytes.sum::<u64>());
                    }
                }
            }
        };
        let sums = thread::scope(|scope| {
            let readers = [0; 3].map(|_| scope.spawn(|| most(other)));
            let writers = [TOTAL / 2; 2].map(|bytes| scope.spawn(move || write_all(one, bytes as u64, 3)));
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            one.shutdown(Shutdown::Write).unwrap();
            readers.map(|reader| reader.join().unwrap())
        });
        let expected: u64 = 2 * values(0, TOTAL / 2).into_iter().map(u64::from).sum::<u64>();
        assert_eq!(sums.iter().map(|sum| sum.0).sum::<usize>(), TOTAL);
        assert_eq!(sums.iter().map(|sum| sum.1).sum::<u64>(), expected);
    }
}

/// As an event loop has them: one thread, which sleeps on the two descriptors.
#[test]
fn one_thread_polls_both_ends() {
    const TOTAL: u64 = 3 << 20;
    for ends in &pairs() {
        ends.iter().for_each(|end| end.set_nonblocking(true).unwrap());
        ends.iter().for_each(assert_quiet);
        let random = Random::new(4);
        let (mut sent, mut received, mut ended) = ([0; 2], [0; 2], [false; 2]);
        let mut buffer = vec![0; 70_000];
        while ended != [true; 2] {
            let mut is_busy = false;
            for (at, mut end) in ends.iter().enumerate() {
                let bytes = values(sent[at], (1 + random.below(70_000)).min((TOTAL - sent[at]) as usize));
                if !bytes.is_empty() {
                    match end.write(&bytes) {
                        Ok(length) => (sent[at], is_busy) = (sent[at] + length as u64, true),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                    if sent[at] == TOTAL {
                        end.shutdown(Shutdown::Write).unwrap();
                    }
                }
                let most = 1 + random.below(buffer.len());
                match end.read(&mut buffer[..most]) {
                    Ok(0) => ended[at] = true,
                    Ok(length) => {
                        check(received[at], &buffer[..length]);
                        (received[at], is_busy) = (received[at] + length as u64, true);
                    }
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            if !is_busy && ended == [false; 2] {
                let mut polled = [0, 1].map(|at| PollFd::new(&ends[at], PollFlags::IN));
                let limit = Timespec::try_from(10_000 * MS).unwrap();
                assert_ne!(
                    poll(&mut polled, Some(&limit)).unwrap(),
                    0,
                    "sent {sent:?}, received {received:?}"
                );
            }
        }
        assert_eq!(received, [TOTAL; 2]);
    }
}

// ---- ends ---------------------------------------------------------------------------------------

#[test]
fn a_write_of_many_pieces_loses_none() {
    const PIECES: usize = 1000;
    for [one, other] in pairs() {
        let bytes = values(0, 3 * PIECES);
        // Pieces of 0 to 3 bytes.
        let mut rest = &bytes[..];
        let mut pieces = Vec::new();
        for at in 0..PIECES {
            let (piece, later) = rest.split_at(at % 4);
            pieces.push(IoSlice::new(piece));
            rest = later;
        }
        let total = bytes.len() - rest.len();
        other.set_read_timeout(Some(5000 * MS)).unwrap();
        let mut buffer = vec![0; total];
        thread::scope(|scope| {
            scope.spawn(|| (&other).read_exact(&mut buffer).unwrap());
            let mut left = &mut pieces[..];
            while !left.is_empty() {
                let wrote = (&one).write_vectored(left).unwrap();
                IoSlice::advance_slices(&mut left, wrote);
            }
        });
        check(0, &buffer);
    }
}

#[test]
fn one_direction_ends_before_the_other() {
    for [one, other] in &pairs() {
        let [mut one, mut other] = [one, other];
        one.write_all(b"last words").unwrap();
        one.shutdown(Shutdown::Write).unwrap();
        assert_eq!(kind(one.write(b"x")), ErrorKind::BrokenPipe);
        let mut text = String::new();
        other.read_to_string(&mut text).unwrap();
        assert_eq!(text, "last words");
        thread::scope(|scope| {
            scope.spawn(|| {
                write_all(other, 1 << 20, 1);
                other.shutdown(Shutdown::Write).unwrap();
            });
            assert_eq!(read_all(one, 2), 1 << 20);
        });
        assert_eq!(kind(other.write(b"x")), ErrorKind::BrokenPipe);
    }
}

#[test]
fn dropping_a_stream_delivers_what_was_written() {
    for [mut one, mut other] in pairs() {
        let length = thread::scope(|scope| {
            let writer = scope.spawn(move || {
                // As much as is taken before the reader reads.
                one.set_write_timeout(Some(20 * MS)).unwrap();
                let mut length = 0;
                while let Ok(taken) = one.write(&values(length, 10_000)) {
                    length += taken as u64;
                }
                length
            });
            thread::sleep(60 * MS);
            let (mut bytes, begun) = (Vec::new(), Instant::now());
            other.read_to_end(&mut bytes).unwrap();
            assert!(begun.elapsed() < 1000 * MS);
            check(0, &bytes);
            assert_eq!(bytes.len() as u64, writer.join().unwrap());
            bytes.len()
        });
        assert!(length > 10_000);
        assert_eq!(kind(other.write(b"x")), ErrorKind::BrokenPipe);
    }
}

/// The peer's host is stopped, as far as this side can tell: its process takes nothing.
#[test]
fn dropping_a_stream_waits_for_the_linger_time_at_most() {
    let options = Options::new().share_memory(false).rings(LARGE as u32, LARGE as u32).linger(300 * MS);
    let [mut one, other] = pair(&options);
    one.set_nonblocking(true).unwrap();
    while one.write(&[0; 1 << 20]).is_ok() {}
    let begun = Instant::now();
    drop(one);
    assert!((250 * MS..2000 * MS).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    drop(other);
}

#[test]
fn a_shutdown_ends_calls_of_other_threads() {
    for [one, other] in &pairs() {
        let [mut reader, mut writer] = [one, one];
        thread::scope(|scope| {
            let writer = scope.spawn(move || writer.write_all(&vec![0; LARGE]));
            let reader = scope.spawn(move || reader.read(&mut [0; 9]));
            thread::sleep(30 * MS);
            one.shutdown(Shutdown::Both).unwrap();
            assert_eq!(reader.join().unwrap().unwrap(), 0);
            assert_eq!(kind(writer.join().unwrap()), ErrorKind::BrokenPipe);
        });
        let mut other = other;
        other.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(kind(other.write(b"x")), ErrorKind::BrokenPipe);
    }
}

// ---- waiting ------------------------------------------------------------------------------------

#[test]
fn calls_time_out() {
    let limit = 30 * MS;
    for [mut one, mut other] in pairs() {
        assert_eq!(kind(one.set_read_timeout(Some(Duration::ZERO))), ErrorKind::InvalidInput);
        one.set_read_timeout(Some(limit)).unwrap();
        let start = Instant::now();
        assert_eq!(kind(one.read(&mut [0; 9])), ErrorKind::WouldBlock);
        assert!((limit..10 * limit).contains(&start.elapsed()));
        // A limit for reads is none for writes.
        one.write_all(&[0; 9]).unwrap();
        other.read_exact(&mut [0; 9]).unwrap();
        one.set_write_timeout(Some(limit)).unwrap();
        assert_eq!((one.read_timeout().unwrap(), one.write_timeout().unwrap()), (Some(limit), Some(limit)));
        let error = loop {
            let start = Instant::now();
            if let Err(error) = one.write(&[0; 100_000]) {
                assert!((limit..10 * limit).contains(&start.elapsed()));
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        // The stream goes on. What the write lacked does not keep a read awake.
        let before = thread_time();
        (0..5).for_each(|_| assert_eq!(kind(one.read(&mut [0; 9])), ErrorKind::WouldBlock));
        assert!(thread_time() - before < 20 * MS, "{:?} in 150 ms", thread_time() - before);
        other.write_all(b"x").unwrap();
        one.read_exact(&mut [0; 1]).unwrap();
    }
}

/// A reader, and a writer whose peer has sent what nobody reads.
#[test]
fn sleeping_threads_use_no_processor_time() {
    for [one, other] in &pairs() {
        let [mut reader, mut writer] = [one, one];
        let (mut peer, most) = (other, 5 * MS);
        thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let before = thread_time();
                reader.read_exact(&mut [0; 1]).unwrap();
                thread_time() - before
            });
            let writer = scope.spawn(move || {
                // Only the sleep counts.
                while writer.write(&vec![0; 1 << 20]).unwrap() == 1 << 20 {}
                let before = thread_time();
                writer.write_all(&[0; 1 << 20]).unwrap();
                thread_time() - before
            });
            thread::sleep(400 * MS);
            peer.write_all(b"two").unwrap();
            let used = reader.join().unwrap();
            assert!(used < most, "the reader used {used:?} in 400 ms");
            thread::sleep(400 * MS);
            let mut buffer = vec![0; 1 << 20];
            while !writer.is_finished() {
                peer.set_read_timeout(Some(50 * MS)).unwrap();
                let _ = peer.read(&mut buffer);
            }
            let used = writer.join().unwrap();
            assert!(used < 4 * most, "the writer used {used:?} in 800 ms");
        });
    }
}

/// The writer's sleep is not ended by what the descriptor shows.
#[test]
fn a_writer_sleeps_beside_a_descriptor_that_is_readable() {
    for [one, other] in &pairs() {
        let mut peer = other;
        one.set_nonblocking(true).unwrap();
        assert_quiet(one);
        one.set_nonblocking(false).unwrap();
        peer.write_all(b"unread").unwrap();
        assert!(is_readable(one, 10_000 * MS));
        one.peek(&mut [0; 1]).unwrap();
        one.set_write_timeout(Some(300 * MS)).unwrap();
        let mut writer = one;
        while writer.write(&[0; 100_000]).unwrap() == 100_000 {}
        let before = thread_time();
        while writer.write(&[0; 100_000]).is_ok() {}
        let used = thread_time() - before;
        assert!(used < 10 * MS, "{used:?} in 300 ms");
        assert!(is_readable(one, Duration::ZERO));
    }
}

// ---- connecting ---------------------------------------------------------------------------------

#[test]
fn connection_data_goes_both_ways() {
    let listener = Options::new().data("by default").bind(HERE).unwrap();
    let address = listener.local_addr();
    let client = Options::new().data("request");
    let room = client.data_room();
    let longest = client.clone().data(vec![7; room]);
    let clients = thread::spawn(move || {
        let streams = [&client, &longest].map(|options| options.connect(address).unwrap());
        let error = client.connect(address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let rejected = error.get_ref().unwrap().downcast_ref::<Rejected>().unwrap();
        assert_eq!(rejected.data(), b"no");
        let too_long = client.data(vec![0; room + 1]);
        assert_eq!(kind(too_long.connect(address)), ErrorKind::InvalidInput);
        let last = Stream::connect(address).unwrap();
        (streams, last)
    });
    let (first, _) = listener.accept().unwrap();
    assert_eq!(first.peer_data(), b"request");
    let second = listener.accept_with(|request| Answer::Accept(request.data().to_vec())).unwrap().0;
    assert_eq!(second.peer_data(), vec![7; room]);
    // The third is rejected, the fourth never comes.
    let mut requests = 0;
    let answer = |request: &rstream_net::endpoint::Request<'_>| {
        assert_eq!(request.peer_addr().ip(), address.ip());
        requests += 1;
        if request.data() == b"request" { Answer::Reject(b"no".to_vec()) } else { Answer::Accept(vec![9]) }
    };
    let (third, _) = listener.accept_with(answer).unwrap();
    assert_eq!((requests, third.peer_data()), (2, &b""[..]));
    let ([one, other], last) = clients.join().unwrap();
    assert_eq!((one.peer_data(), other.peer_data()), (&b"by default"[..], &*vec![7; room]));
    assert_eq!(last.peer_data(), [9]);
}

#[test]
fn failures_to_connect_are_told_apart() {
    let plain = std::net::TcpListener::bind(HERE).unwrap();
    let silent = plain.local_addr().unwrap();
    let options = Options::new().connect_timeout(50 * MS);
    let begun = Instant::now();
    assert_eq!(kind(options.connect(silent)), ErrorKind::TimedOut);
    assert!((50 * MS..5000 * MS).contains(&begun.elapsed()));
    let talker = thread::spawn(move || {
        let _silent = plain.accept().unwrap();
        let mut end = plain.accept().unwrap().0;
        end.write_all(&[b'x'; 100]).unwrap();
        end
    });
    assert_eq!(kind(Options::new().connect(silent)), ErrorKind::InvalidData);
    drop(talker.join().unwrap());
    // Now nobody listens there.
    assert_eq!(kind(Stream::connect(silent)), ErrorKind::ConnectionRefused);
    let none: [SocketAddr; 0] = [];
    assert_eq!(kind(Stream::connect(&none[..])), ErrorKind::InvalidInput);
    for options in [Options::new().rings(0, 1), Options::new().depths(2, 3), Options::new().backlog(0)] {
        assert_eq!(kind(options.bind(HERE)), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_listener_for_messages_is_told_apart() {
    let shard = Shard::embedded().unwrap();
    let listener = shard.listen(HERE.parse().unwrap(), 1).unwrap();
    let address = listener.local_address();
    let messages = thread::spawn(move || {
        let _shard = shard;
        listener.next().wait().unwrap().reject(&Hello { tags: false, user_data: b"of messages" }.encode());
    });
    let error = Stream::connect(address).unwrap_err();
    messages.join().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(error.to_string(), "the peer rejected the connection: what listens there is for messages");
    assert_eq!(error.get_ref().unwrap().downcast_ref::<Rejected>().unwrap().data(), b"");
}

#[test]
fn peers_that_are_no_streams_keep_nobody_out() {
    let listener = Listener::bind(HERE).unwrap();
    let address = listener.local_addr();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
    assert!(!is_readable(&listener, Duration::ZERO));
    let strangers: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    let talks = |(at, mut end): (usize, &std::net::TcpStream)| {
        if at % 2 == 0 {
            end.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        }
    };
    strangers.iter().enumerate().for_each(talks);
    let client = thread::spawn(move || Stream::connect(address).unwrap());
    let begun = Instant::now();
    let server = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        assert!(is_readable(&listener, 5000 * MS));
    };
    assert!(begun.elapsed() < 2000 * MS);
    assert_eq!(server.peer_addr(), client.join().unwrap().local_addr());
}

#[test]
fn many_clients_are_accepted_by_several_threads() {
    const CLIENTS: usize = 48;
    let listener = &Listener::bind(HERE).unwrap();
    let address = listener.local_addr();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(move || {
                for stream in listener.incoming().take(CLIENTS / 3) {
                    let (mut stream, mut bytes) = (stream.unwrap(), [0; 8]);
                    stream.read_exact(&mut bytes).unwrap();
                    stream.write_all(&bytes).unwrap();
                }
            });
        }
        for client in 0..CLIENTS as u64 {
            scope.spawn(move || {
                let (mut stream, mut bytes) = (Stream::connect(address).unwrap(), [0; 8]);
                stream.write_all(&client.to_le_bytes()).unwrap();
                stream.read_exact(&mut bytes).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), client);
                assert_eq!(stream.read(&mut bytes).unwrap(), 0);
            });
        }
    });
}

// ---- processes ----------------------------------------------------------------------------------

/// What the other process does: it returns what comes until it is told to stop, and then waits.
#[test]
fn peer_process() {
    let Some(address) = peer_address() else { return };
    let mut end = Stream::connect(address).unwrap();
    let mut buffer = vec![0; 40_000];
    loop {
        let length = end.read(&mut buffer).unwrap();
        match &buffer[..length] {
            [] => return,
            b"end" => end.shutdown(Shutdown::Write).unwrap(),
            bytes => {
                end.write_all(bytes).unwrap();
                continue;
            }
        }
        loop {
            thread::park();
        }
    }
}

/// A process that returns what it receives, and the connection to it.
fn process() -> (Child, Stream) {
    let listener = Listener::bind(HERE).unwrap();
    let child = spawn_test("peer_process", listener.local_addr());
    (child, listener.accept().unwrap().0)
}

#[test]
fn a_process_returns_what_it_receives() {
    const TOTAL: u64 = 8 << 20;
    let (mut child, end) = process();
    thread::scope(|scope| {
        scope.spawn(|| {
            write_all(&end, TOTAL, 5);
            end.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(read_all(&end, 6), TOTAL);
    });
    assert_eq!(end.path(), Path::SharedMemory);
    assert!(child.wait().unwrap().success());
}

/// Kills a process while `wait` waits for it. `order` was sent to it before.
fn kill_while(order: &[u8], wait: impl FnOnce(&Stream) + Send) {
    let (mut child, end) = process();
    let mut stream = &end;
    for _ in 0..50 {
        stream.write_all(b"there").unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
    }
    assert_eq!(end.path(), Path::SharedMemory);
    stream.write_all(order).unwrap();
    thread::scope(|scope| {
        let (sent, received) = channel();
        scope.spawn(|| {
            let sent = sent;
            wait(&end);
            sent.send(()).unwrap();
        });
        thread::sleep(100 * MS);
        child.kill().unwrap();
        child.wait().unwrap();
        let outcome = received.recv_timeout(1000 * MS);
        // If the call has not returned, this ends the thread, so that the test can fail.
        let _ = end.shutdown(Shutdown::Both);
        outcome.expect("the call has returned");
    });
}

#[test]
fn a_reader_learns_that_its_peer_was_killed() {
    kill_while(b"", |mut end| assert_eq!(kind(end.read(&mut [0; 9])), ErrorKind::ConnectionReset));
}

#[test]
fn a_writer_learns_that_its_peer_was_killed() {
    kill_while(b"end", |mut end| {
        assert_eq!(end.read(&mut [0; 9]).unwrap(), 0);
        let error = loop {
            if let Err(error) = end.write(&[0; 100_000]) {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // It ended in order.
        assert_eq!(end.read(&mut [0; 9]).unwrap(), 0);
    });
}
