//! Two ends over a simulated kernel: calls in orders that a seed gives, of which each may find its bytes cut
//! anywhere, the upgrade in the middle, the way back, and an end that closes or dies. What is read is what
//! was written.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::io::Errno;

use crate::bell::BELL;
use crate::delays::Delays;
use crate::kernel::{Counts, Kernel};
use crate::stream::{Answer, Role, Stream, Then, Wait};

/// One direction of the simulated connection.
#[derive(Default)]
struct Wire {
    bytes: VecDeque<u8>,
    /// Bytes that it holds.
    room: usize,
    /// What was put in and taken out.
    sent: u64,
    taken: u64,
    ended: bool,
    reset: bool,
}

/// One end of the simulated connection.
struct End {
    output: Rc<RefCell<Wire>>,
    input: Rc<RefCell<Wire>>,
    random: Rc<Random>,
    ends: (SocketAddr, SocketAddr),
    delays: Cell<Delays>,
}

impl End {
    /// The application's own call.
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut wire = self.output.borrow_mut();
        if wire.ended || wire.reset {
            return Err(Errno::PIPE);
        }
        let length = bytes.len().min(wire.room - wire.bytes.len());
        if length == 0 && !bytes.is_empty() {
            return Err(Errno::AGAIN);
        }
        wire.bytes.extend(&bytes[..length]);
        wire.sent += length as u64;
        Ok(length)
    }

    fn is_readable(&self) -> bool {
        let wire = self.input.borrow();
        wire.ended || wire.reset || !wire.bytes.is_empty()
    }
}

impl Kernel for End {
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        End::send(self, bytes)
    }

    fn end_output(&self) {
        self.output.borrow_mut().ended = true;
    }

    fn receive(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        let mut wire = self.input.borrow_mut();
        let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let there = wanted.min(wire.bytes.len());
        if there == 0 {
            return match (wire.reset, wire.ended || wanted == 0) {
                (true, _) => Err(Errno::CONNRESET),
                (_, true) => Ok(0),
                _ => Err(Errno::AGAIN),
            };
        }
        // Segments arrive in parts.
        let length = there.min(1 + self.random.below(there));
        let mut bytes = wire.bytes.iter().copied().take(length);
        buffers
            .iter_mut()
            .flat_map(|buffer| buffer.iter_mut())
            .zip(&mut bytes)
            .for_each(|(to, from)| *to = from);
        if !peek {
            wire.bytes.drain(..length);
            wire.taken += length as u64;
        }
        Ok(length)
    }

    fn obstacle(&self) -> Option<&'static str> {
        None
    }

    fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some(self.ends)
    }

    fn counts(&self) -> Option<Counts> {
        let (output, input) = (self.output.borrow(), self.input.borrow());
        let is_open = !output.ended && !input.ended && !output.reset;
        is_open.then_some(Counts { sent: output.sent, taken: input.taken })
    }

    fn delay(&self, delays: Delays) -> Result<Delays, Errno> {
        Ok(self.delays.replace(delays))
    }

    fn has_input(&self) -> bool {
        self.is_readable()
    }

    fn has_ended(&self) -> bool {
        let input = self.input.borrow();
        input.ended || input.reset
    }

    fn has_failed(&self) -> bool {
        self.output.borrow().reset
    }
}

/// `xorshift64*`.
struct Random(Cell<u64>);

impl Random {
    fn next(&self) -> u64 {
        let mut state = self.0.get();
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.0.set(state);
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

/// An application: what it wrote and read, by count, since byte number `n` of a stream is `value(n)`.
struct App {
    stream: Stream,
    kernel: End,
    wrote: u64,
    read: u64,
    /// It read the end.
    over: bool,
    ended: bool,
    closed: bool,
    /// The buffer of a call of the kernel that has not returned.
    asleep: Option<usize>,
    /// It has nothing to read, and counts on being woken.
    waits: bool,
    /// It has no room to write, and counts on being woken, since this turn.
    blocked: Option<u32>,
    /// It wants to go back to the kernel.
    leaves: bool,
    /// How it wants the kernel to delay what it sends.
    asked: Delays,
}

/// No byte is a bell.
fn value(position: u64) -> u8 {
    let byte = (position.wrapping_mul(0x9e37_79b9) >> 11) as u8;
    if byte == BELL { 8 } else { byte }
}

impl App {
    fn read_bytes(&mut self, bytes: &[u8], take: bool) {
        for (offset, &byte) in bytes.iter().enumerate() {
            assert_eq!(
                byte,
                value(self.read + offset as u64),
                "byte {} of a stream",
                self.read + offset as u64
            );
        }
        self.read += if take { bytes.len() as u64 } else { 0 };
    }

    fn receive(&mut self, length: usize, peek: bool) {
        if self.closed || self.asleep.is_some() {
            return;
        }
        let mut bytes = vec![0; length];
        let (first, second) = bytes.split_at_mut(length / 3);
        let mut buffers = [IoSliceMut::new(first), IoSliceMut::new(second)];
        self.waits = false;
        let then = [Then::Look, Then::Return, Then::Sleep][self.kernel.random.below(3)];
        match self.stream.receive(&self.kernel, &mut buffers, peek, then) {
            Ok(Answer::Done(0)) if length > 0 => self.over = true,
            Ok(Answer::Done(got)) => self.read_bytes(&bytes[..got], !peek),
            // Else it would nap.
            Ok(Answer::Wait) => self.waits = then == Then::Sleep && !self.stream.is_leaving(),
            // It waits with the application's buffer, and whatever happens meanwhile happens.
            Ok(Answer::Kernel) if !peek && length > 0 && self.kernel.random.below(2) == 0 => {
                self.asleep = Some(length);
            }
            Ok(Answer::Kernel) => self.wake(length, peek),
            Err(error) => assert_eq!(error, Errno::CONNRESET),
        }
    }

    /// A call of the kernel returns.
    fn wake(&mut self, length: usize, peek: bool) {
        let mut bytes = vec![0; length];
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let outcome = Kernel::receive(&self.kernel, &mut buffers, peek);
        match self.stream.received(&self.kernel, &buffers, outcome, peek) {
            Ok(Some(0)) if length > 0 => self.over = true,
            Ok(Some(got)) => self.read_bytes(&bytes[..got], !peek),
            Ok(None) => {}
            Err(Errno::AGAIN) => self.waits = true,
            Err(error) => assert_eq!(error, Errno::CONNRESET),
        }
    }

    fn finish_sleep(&mut self) {
        if let Some(length) = self.asleep
            && self.kernel.is_readable()
        {
            self.asleep = None;
            self.wake(length, false);
        }
    }

    fn send(&mut self, length: usize) {
        if self.closed || self.ended {
            return;
        }
        let bytes: Vec<_> = (0..length as u64).map(|offset| value(self.wrote + offset)).collect();
        let (first, second) = bytes.split_at(length / 4);
        let turn = self.stream.turn();
        self.blocked = None;
        match self.stream.send(&self.kernel, &[IoSlice::new(first), IoSlice::new(second)]) {
            Ok(Answer::Done(sent)) => self.wrote += sent as u64,
            Ok(Answer::Kernel) => {
                let sent = self.kernel.send(&bytes);
                self.stream.sent(&self.kernel, sent.unwrap_or(0)).unwrap();
                self.wrote += sent.unwrap_or(0) as u64;
            }
            Ok(Answer::Wait) => {
                let sleeps = self.stream.wait(turn, true) == Ok(Wait::Kernel);
                self.stream.woken();
                self.blocked = sleeps.then(|| self.stream.turn());
            }
            Err(error) => assert!(matches!(error, Errno::PIPE | Errno::CONNRESET), "{error:?}"),
        }
    }

    /// Goes on with leaving the rings, or gives it up.
    fn leave(&mut self, gives_up: bool) {
        if self.closed || !self.stream.has_rings() {
            self.leaves = false;
        } else if self.leaves && gives_up {
            self.leaves = !self.stream.remain() && self.stream.is_leaving();
        } else {
            match self.stream.leave(&self.kernel) {
                Ok(is_back) => self.leaves = !is_back,
                Err(error) => assert_eq!(error, Errno::CONNRESET),
            }
        }
    }

    fn ask(&mut self, delays: Delays) {
        self.asked = delays;
        match self.stream.delays() {
            Some(_) => self.stream.set_delays(delays),
            None => self.kernel.delays.set(delays),
        }
    }

    fn end_output(&mut self) {
        if !self.ended && !self.closed {
            let by_ring = self.stream.end_output(&self.kernel).unwrap();
            self.kernel.output.borrow_mut().ended = !by_ring;
            self.ended = true;
        }
    }

    fn close(&mut self) {
        if self.closed {
            return;
        }
        let reset = self.stream.close(&self.kernel, || false) || !self.kernel.input.borrow().bytes.is_empty();
        let (mut output, mut input) = (self.kernel.output.borrow_mut(), self.kernel.input.borrow_mut());
        output.ended = true;
        output.reset |= reset;
        input.reset |= reset;
        self.closed = true;
    }

    /// As `kill -9`: the kernel alone says it.
    fn die(&mut self) {
        let reset = !self.kernel.input.borrow().bytes.is_empty();
        let (mut output, mut input) = (self.kernel.output.borrow_mut(), self.kernel.input.borrow_mut());
        output.ended = true;
        output.reset |= reset;
        input.reset |= reset;
        self.closed = true;
        self.asleep = None;
    }
}

/// Ports of this test: each connection has its own, and so a name of its own to meet at.
static PORTS: AtomicU16 = AtomicU16::new(1);

const DELAYS: [Delays; 3] =
    [Delays::NONE, Delays { no_delay: false, cork: false }, Delays { no_delay: true, cork: true }];

fn apps(random: &Rc<Random>, after: [u32; 2]) -> [App; 2] {
    let room = [300, 80_000][random.below(2)];
    let wires = [(); 2].map(|()| Rc::new(RefCell::new(Wire { room, ..Wire::default() })));
    let port = PORTS.fetch_add(1, Ordering::Relaxed);
    let asked = [(); 2].map(|()| random.below(3));
    let pid = std::process::id();
    let own = SocketAddr::from(([127, 1, (pid >> 8) as u8, pid as u8], port));
    let peers = SocketAddr::from(([127, 1, (pid >> 8) as u8, pid as u8], 65535));
    [(Role::Active, (own, peers), 0), (Role::Passive, (peers, own), 1)].map(|(role, ends, at)| App {
        stream: Stream::new(role, after[at]).unwrap(),
        kernel: End {
            output: Rc::clone(&wires[at]),
            input: Rc::clone(&wires[1 - at]),
            random: Rc::clone(random),
            ends,
            delays: Cell::new(DELAYS[asked[at]]),
        },
        wrote: 0,
        read: 0,
        over: false,
        ended: false,
        closed: false,
        asleep: None,
        waits: false,
        blocked: None,
        leaves: false,
        asked: DELAYS[asked[at]],
    })
}

/// What one seed did.
#[derive(Default)]
struct Seen {
    upgraded: u32,
    ended: u32,
    died: u32,
    back: u32,
}

fn run(seed: u64, seen: &mut Seen) {
    let random = Rc::new(Random(Cell::new(seed.wrapping_mul(2).wrapping_add(1) << 8)));
    (0..8).for_each(|_| _ = random.next());
    let longest = [4, 60, 2000, 40_000][random.below(4)];
    let mut apps = apps(&random, [random.below(7) as u32, random.below(7) as u32]);
    for _ in 0..20 + random.below(200) {
        let at = random.below(2);
        let length = random.below(longest);
        match random.below(64) {
            0 if random.below(4) == 0 => apps[at].end_output(),
            1 if random.below(8) == 0 => apps[at].close(),
            2 if random.below(8) == 0 => {
                apps[at].die();
                seen.died += 1;
            }
            3..=6 => apps[at].receive(length, true),
            7..=12 => apps[at].finish_sleep(),
            13..=36 => apps[at].receive(length, false),
            37..=38 if apps[at].leaves || random.below(2) == 0 => apps[at].leave(random.below(6) == 0),
            37..=40 if !apps[at].closed => {
                let app = &apps[at];
                let _ = app.stream.look(&app.kernel, random.below(2) == 0, random.below(2) == 0);
            }
            37..=40 => {}
            41 if !apps[at].stream.is_leaving() => apps[at].ask(DELAYS[random.below(3)]),
            _ => apps[at].send(length),
        }
        if apps[at].leaves && random.below(4) == 0 {
            apps[at].leave(false);
        }
        check_sleepers(&apps);
        apps.iter().for_each(check_delays);
    }
    seen.upgraded += u32::from(apps.iter().all(|app| app.stream.has_rings() || app.stream.is_back()));
    finish(&mut apps, &random, seen);
    seen.back += u32::from(apps.iter().all(|app| app.stream.is_back()));
}

/// Whoever has nothing to read and was told to wait is woken by what was sent since.
fn check_sleepers(apps: &[App; 2]) {
    for (at, app) in apps.iter().enumerate() {
        let peer = &apps[1 - at];
        // A peer that has still to send again does so in its next call, for which it does not sleep.
        let is_asleep = (app.waits || app.asleep.is_some()) && !app.closed && !peer.stream.is_leaving();
        if is_asleep && peer.wrote > app.read {
            assert!(
                app.kernel.is_readable(),
                "{} bytes wait, and nothing wakes the reader",
                peer.wrote - app.read
            );
        }
        if app.blocked == Some(app.stream.turn()) && !app.closed && peer.waits && peer.read == app.wrote {
            assert!(app.kernel.is_readable(), "the ring is empty, and nothing wakes the writer");
        }
    }
}

/// The kernel delays what is sent as the application asked for, but for bells.
fn check_delays(app: &App) {
    if app.stream.is_leaving() {
        return;
    }
    let of_kernel = app.kernel.delays.get();
    match app.stream.delays() {
        Some(known) => assert_eq!((known, of_kernel), (app.asked, Delays::NONE)),
        None => assert_eq!(of_kernel, app.asked),
    }
}

/// Reads all that there is.
fn finish(apps: &mut [App; 2], random: &Random, seen: &mut Seen) {
    for app in apps.iter_mut() {
        app.end_output();
    }
    for _ in 0..2000 {
        for app in apps.iter_mut() {
            app.finish_sleep();
            if app.leaves {
                app.leave(random.below(8) == 0);
            }
            app.receive(9000, false);
        }
    }
    let [one, other] = apps;
    for (app, peer) in [(&*one, &*other), (&*other, &*one)] {
        // Bytes that a process has still to send again die with it.
        let is_broken = app.kernel.input.borrow().reset || peer.closed && peer.stream.is_leaving();
        if !app.closed && !is_broken {
            assert_eq!(app.read, peer.wrote, "bytes are missing");
            assert!(app.over, "the end is missing");
            seen.ended += 1;
        }
    }
}

#[test]
fn what_is_read_is_what_was_written() {
    let one = std::env::var("RSTREAM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let (first, last) = one.map_or((0, 10_000), |seed: u64| (seed, seed + 1));
    let mut seen = Seen::default();
    for seed in first..last {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut seen)));
        if let Err(panic) = run {
            eprintln!("RSTREAM_TEST_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    if one.is_none() {
        assert!(seen.upgraded > 4000 && seen.ended > 10_000 && seen.died > 2000 && seen.back > 800);
    }
}
