//! Random calls on both ends of a connection, of which the rules of TCP sockets determine what they return.
//! Either end is of this crate or of `std`: two of the latter show that the model is right.

mod common;

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use common::{End, Random, check, pair, values};

/// Bytes under way that a connection holds in any case.
const HELD: u64 = 32 << 10;

const SEEDS: u64 = if cfg!(debug_assertions) { 40 } else { 1000 };

/// One end, and what its application knows.
struct App {
    end: End,
    wrote: u64,
    read: u64,
    has_ended: bool,
}

impl App {
    fn new(end: End) -> Self {
        end.set_nodelay(true);
        Self { end, wrote: 0, read: 0, has_ended: false }
    }
}

/// What the seeds have done.
#[derive(Default)]
struct Seen {
    upgraded: u32,
    full: u32,
    timed_out: u32,
    ended: u32,
}

fn ends(random: &Random) -> [End; 2] {
    let after = || [0, 1, 3, 8, 20][random.below(5)];
    let [one, other] = match random.below(10) {
        kind @ 0..=2 => {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let other = listener.accept().unwrap().0;
            let net = |socket| End::Net(rstream_net::TcpStream::from_std(socket).unwrap());
            match kind {
                0 => [End::Std(one), End::Std(other)],
                1 => [net(one), End::Std(other)],
                _ => [End::Std(one), net(other)],
            }
        }
        _ => pair([after(), after()]).map(End::Net),
    };
    if random.below(2) == 0 { [one, other] } else { [other, one] }
}

fn is_blocked(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

fn write(app: &mut App, peer: &App, length: usize, random: &Random, seen: &mut Seen) {
    let bytes = values(app.wrote, length);
    let is_held = app.wrote - peer.read + length as u64 <= HELD;
    let is_nonblocking = !is_held || random.below(3) == 0;
    app.end.set_nonblocking(is_nonblocking);
    let wrote = if random.below(4) == 0 {
        let (first, rest) = bytes.split_at(random.below(length + 1));
        let (second, third) = rest.split_at(random.below(rest.len() + 1));
        app.end.write_vectored(&[IoSlice::new(first), IoSlice::new(second), IoSlice::new(third)])
    } else {
        app.end.write(&bytes)
    };
    app.end.set_nonblocking(false);
    match wrote {
        // `writev` of nothing does nothing.
        Ok(0) if length == 0 => {}
        _ if app.has_ended => assert_eq!(wrote.unwrap_err().kind(), io::ErrorKind::BrokenPipe),
        Ok(wrote) => {
            assert!(wrote == length || !is_held && wrote <= length, "{wrote} of {length} bytes");
            assert!(wrote > 0 || length == 0);
            app.wrote += wrote as u64;
        }
        Err(error) => {
            assert!(is_blocked(&error) && !is_held, "{error}");
            seen.full += 1;
        }
    }
}

fn read(app: &mut App, peer: &App, length: usize, random: &Random, seen: &mut Seen) {
    let there = peer.wrote - app.read;
    let waits = there == 0 && !peer.has_ended;
    // The kernel waits for bytes even if it is to give none.
    let length = length.max(waits.into());
    let is_peek = random.below(5) == 0;
    let timeout = Duration::from_millis(2);
    match waits {
        true if random.below(40) == 0 => app.end.set_read_timeout(Some(timeout)),
        true => app.end.set_nonblocking(true),
        false => {}
    }
    let mut bytes = vec![0; length];
    let start = Instant::now();
    let got = match random.below(4) {
        _ if is_peek => app.end.peek(&mut bytes),
        0 => {
            let (first, second) = bytes.split_at_mut(random.below(length + 1));
            app.end.read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(second)])
        }
        _ => app.end.read(&mut bytes),
    };
    if waits {
        let error = got.expect_err("there is nothing to read");
        assert!(is_blocked(&error), "{error}");
        // The kernel's clock for time-outs may be some milliseconds coarse, and never early.
        seen.timed_out += u32::from(start.elapsed() >= timeout);
        app.end.set_nonblocking(false);
        app.end.set_read_timeout(None);
        return;
    }
    let got = got.unwrap();
    assert!(got <= length && got as u64 <= there);
    assert!(got > 0 || length == 0 || there == 0, "an end, {there} bytes before it");
    check(app.read, &bytes[..got]);
    app.read += if is_peek { 0 } else { got as u64 };
}

fn run(seed: u64, seen: &mut Seen) {
    let random = Random::new(seed);
    let longest = [4, 100, 5000, 300_000][random.below(4)];
    let [one, other] = ends(&random).map(App::new);
    let mut apps = [one, other];
    for _ in 0..20 + random.below(200) {
        let [one, other] = &mut apps;
        let (app, peer) = if random.below(2) == 0 { (one, other) } else { (other, one) };
        let length = random.below(longest);
        match random.below(64) {
            0 if random.below(4) == 0 => end(app),
            1 => {
                // With Nagle's algorithm reads wait long.
                app.end.set_nodelay(false);
                assert!(!app.end.nodelay());
                app.end.set_nodelay(true);
                assert!(app.end.nodelay());
            }
            // The original is dropped.
            2 => app.end = app.end.try_clone(),
            3..=30 => read(app, peer, length, &random, seen),
            _ => write(app, peer, length, &random, seen),
        }
    }
    seen.upgraded += u32::from(apps.iter().all(|app| app.end.is_upgraded()));
    finish(apps, &random, seen);
}

/// Ends both outputs in some order, reads all that is there, and closes.
fn finish(apps: [App; 2], random: &Random, seen: &mut Seen) {
    let mut apps = apps;
    if random.below(2) == 0 {
        apps.reverse();
    }
    let reads_first = random.below(2) == 0;
    for turn in 0..2 {
        let [one, other] = &mut apps;
        let (app, peer) = if turn == 0 { (one, other) } else { (other, one) };
        if reads_first && !peer.has_ended {
            drain(app, peer);
        }
        end(app);
    }
    let [mut one, mut other] = apps;
    drain(&mut one, &other);
    assert_eq!(one.end.read(&mut [0; 9]).unwrap(), 0);
    if random.below(2) == 0 {
        drop(one.end);
        let wrote = one.wrote;
        one = App { end: other.end.try_clone(), wrote, read: 0, has_ended: true };
    }
    drain(&mut other, &one);
    assert_eq!(other.end.read(&mut [0; 9]).unwrap(), 0);
    seen.ended += 1;
}

fn end(app: &mut App) {
    if !app.has_ended {
        app.end.shutdown(Shutdown::Write).unwrap();
        app.has_ended = true;
    }
}

fn drain(app: &mut App, peer: &App) {
    let mut bytes = vec![0; 100_000];
    while app.read < peer.wrote {
        let got = app.end.read(&mut bytes).unwrap();
        assert!(got > 0, "{} bytes are missing", peer.wrote - app.read);
        check(app.read, &bytes[..got]);
        app.read += got as u64;
    }
}

#[test]
fn calls_return_what_those_of_tcp_return() {
    let one = std::env::var("RSTREAM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let (first, last) = one.map_or((0, SEEDS), |seed: u64| (seed, seed + 1));
    let mut seen = Seen::default();
    for seed in first..last {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut seen)));
        if let Err(panic) = run {
            eprintln!("RSTREAM_TEST_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    if one.is_none() {
        let Seen { upgraded, full, timed_out, ended } = seen;
        assert!(
            u64::from(upgraded.min(10 * full).min(10 * timed_out)) > SEEDS / 3 && u64::from(ended) == SEEDS,
            "{upgraded} {full} {timed_out}"
        );
    }
}
