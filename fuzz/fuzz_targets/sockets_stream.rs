//! A TCP connection that has moved to shared memory with a peer that writes anything to the control page and to its
//! ring, at any time, and sends anything by the kernel.
//!
//! No call of this side panics, asks the kernel for ever, or gives more bytes than there can be.

#![no_main]

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rstream_ring::{Connected, Listener, Rendezvous, RingSizes};
use rstream_sockets::{Answer, Counts, Delays, Kernel, Role, Stream, Then, WayBack};
use rustix::io::Errno;

const RING: usize = 512 << 10;
const SIZES: RingSizes = RingSizes { output: RING, input: RING };
/// Fields of a direction of the control page, with their sizes.
const FIELDS: [(u64, usize); 13] = [
    (0, 8),
    (8, 4),
    (16, 8),
    (24, 4),
    (32, 8),
    (40, 4),
    (44, 4),
    (48, 8),
    (128, 8),
    (136, 4),
    (144, 8),
    (256, 4),
    (384, 4),
];
const DIRECTION: u64 = 512;
const BELL: u8 = 7;
/// More calls of the kernel than any call of this side has to make.
const CALLS: u32 = 1000;

#[derive(Debug, Arbitrary)]
struct Input {
    /// Whether this side is the one that connected, which maps the peer's segment.
    connects: bool,
    /// Bytes that the kernel's socket takes.
    room: u16,
    /// What the peer does when this side is in a call of the kernel.
    meanwhile: Vec<Peer>,
    steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Peer {
    /// It changes a field: to something near, or to anything.
    Write {
        field: u8,
        second: bool,
        near: bool,
        word: u64,
    },
    /// It begins to use its ring behind what it has sent by the kernel.
    Begin,
    Garble {
        at: u32,
        word: u64,
    },
    /// It sends by the kernel: bells, or something else.
    Send {
        length: u8,
        byte: Option<u8>,
    },
    EndOutput,
    Reset,
}

#[derive(Debug, Arbitrary)]
enum Step {
    Peer(Peer),
    Receive { first: u16, second: u16, peek: bool, then: u8 },
    Send { length: u16 },
    Look { arm: bool, output: bool },
    Wait { output: bool },
    Settle,
    Disarm,
    Leave,
    Unread,
    TakeError,
    Told { broken: bool },
    EndOutput,
    EndInput { all: bool },
}

/// The kernel's socket, and the peer behind it.
struct Fake {
    /// This process's memory, and where the segment begins in it.
    memory: File,
    segment: u64,
    /// Where the peer writes.
    peers: u64,
    ends: (SocketAddr, SocketAddr),
    input: RefCell<VecDeque<u8>>,
    has_ended: Cell<bool>,
    is_reset: Cell<bool>,
    room: Cell<usize>,
    counts: Cell<Counts>,
    /// What the peer has sent.
    said: Cell<u64>,
    meanwhile: RefCell<Vec<Peer>>,
    calls: Cell<u32>,
}

impl Fake {
    fn word(&self, at: u64, size: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(&mut bytes[..size], self.segment + at).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, self.segment + at).unwrap();
    }

    fn act(&self, peer: Peer) {
        match peer {
            Peer::Write { field, second, near, word } => {
                let (offset, size) = FIELDS[usize::from(field) % FIELDS.len()];
                let at = offset + if second { DIRECTION } else { 0 };
                let word =
                    if near { self.word(at, size).wrapping_add(word % 64).wrapping_sub(8) } else { word };
                self.put(at, &word.to_le_bytes()[..size]);
            }
            Peer::Begin => {
                self.put(self.peers + 16, &self.said.get().to_le_bytes());
                self.put(self.peers + 24, &1_u32.to_le_bytes());
            }
            Peer::Garble { at, word } => {
                self.put(u64::from(at) % (4096 + 2 * RING as u64 - 8), &word.to_le_bytes());
            }
            Peer::Send { length, byte } => {
                let byte = byte.unwrap_or(BELL);
                self.input.borrow_mut().extend(std::iter::repeat_n(byte, length.into()));
                self.said.set(self.said.get() + u64::from(length));
            }
            Peer::EndOutput => self.has_ended.set(true),
            Peer::Reset => self.is_reset.set(true),
        }
    }

    /// To be called in each call of the kernel.
    fn pass(&self) {
        self.calls.set(self.calls.get() + 1);
        assert!(self.calls.get() < CALLS, "a call that does not end");
        let peer = self.meanwhile.borrow_mut().pop();
        peer.into_iter().for_each(|peer| self.act(peer));
    }
}

impl Kernel for Fake {
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        self.pass();
        if self.is_reset.get() {
            return Err(Errno::PIPE);
        }
        let length = bytes.len().min(self.room.get());
        if length == 0 && !bytes.is_empty() {
            return Err(Errno::AGAIN);
        }
        self.room.set(self.room.get() - length);
        let counts = self.counts.get();
        self.counts.set(Counts { sent: counts.sent + length as u64, ..counts });
        Ok(length)
    }

    fn receive(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        self.pass();
        let mut input = self.input.borrow_mut();
        let places = buffers.iter_mut().flat_map(|buffer| buffer.iter_mut());
        let length = places.zip(input.iter()).map(|(place, byte)| *place = *byte).count();
        if length == 0 {
            return match (self.is_reset.get(), self.has_ended.get()) {
                (true, _) => Err(Errno::CONNRESET),
                (_, true) => Ok(0),
                _ => Err(Errno::AGAIN),
            };
        }
        if !peek {
            input.drain(..length);
            let counts = self.counts.get();
            self.counts.set(Counts { taken: counts.taken + length as u64, ..counts });
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
        self.pass();
        (!self.has_ended.get() && !self.is_reset.get()).then_some(self.counts.get())
    }

    fn delay(&self, delays: Delays) -> Result<Delays, Errno> {
        Ok(delays)
    }

    fn end_output(&self) {}

    fn has_input(&self) -> bool {
        self.pass();
        self.has_ended() || !self.input.borrow().is_empty()
    }

    fn has_ended(&self) -> bool {
        self.has_ended.get() || self.is_reset.get()
    }

    fn has_failed(&self) -> bool {
        self.is_reset.get()
    }
}

/// Where the segment of the only connection is in this process.
fn find_segment() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.contains("memfd:rstream-ring")).unwrap();
    u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap()
}

/// A call that sends nothing, which goes on with the meeting.
fn send_nothing(stream: &Stream, kernel: &Fake) {
    if stream.send(kernel, &[]) == Ok(Answer::Kernel) {
        stream.sent(kernel, 0).unwrap();
    }
}

/// Has the sides meet. The peer keeps what it has mapped.
fn meet(stream: &Stream, kernel: &mut Fake, connects: bool) -> Connected {
    let (own, peers) = kernel.ends;
    let peer = if connects {
        send_nothing(stream, kernel);
        Rendezvous::of_connection(own, peers).unwrap().connect((peers, own), SIZES).unwrap()
    } else {
        let mut listener: Listener = Rendezvous::of_connection(peers, own).unwrap().listen().unwrap();
        send_nothing(stream, kernel);
        listener.accept((peers, own), SIZES).unwrap()
    };
    kernel.segment = find_segment();
    // Of calls the same way only every fourth looks.
    (0..4).for_each(|_| send_nothing(stream, kernel));
    assert!(stream.has_rings());
    peer.unwrap()
}

fn receive(stream: &Stream, kernel: &Fake, (first, second): (u16, u16), peek: bool, then: Then) {
    let (mut one, mut two) = (vec![0; first.into()], vec![0; second.into()]);
    let mut buffers = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
    let wanted = usize::from(first) + usize::from(second);
    match stream.receive(kernel, &mut buffers, peek, then) {
        Ok(Answer::Done(length)) => assert!(length <= wanted),
        Ok(Answer::Kernel) => {
            let outcome = kernel.receive(&mut buffers, peek);
            let received = stream.received(kernel, &buffers, outcome, peek);
            assert!(received.is_err() || received.unwrap().is_none_or(|length| length <= wanted));
        }
        Ok(Answer::Wait) | Err(_) => {}
    }
}

fn send(stream: &Stream, kernel: &Fake, length: u16) {
    let bytes = vec![1; length.into()];
    match stream.send(kernel, &[IoSlice::new(&bytes)]) {
        Ok(Answer::Done(sent)) => assert!(sent <= bytes.len()),
        Ok(Answer::Kernel) => {
            let sent = kernel.send(&bytes).unwrap_or(0);
            let _ = stream.sent(kernel, sent);
        }
        Ok(Answer::Wait) | Err(_) => {}
    }
}

/// Ports of this process: each connection has its own, and so a name of its own to meet at.
static NEXT: AtomicU32 = AtomicU32::new(0);

fuzz_target!(|input: Input| {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let own = SocketAddr::from(([127, (number >> 16) as u8, high, low], number as u16));
    let peers = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut kernel = Fake {
        memory: File::options().read(true).write(true).open("/proc/self/mem").unwrap(),
        segment: 0,
        // The side that was accepted brings the segment, and writes in its first direction.
        peers: if input.connects { 0 } else { DIRECTION },
        ends: (own, peers),
        input: RefCell::default(),
        has_ended: Cell::new(false),
        is_reset: Cell::new(false),
        room: Cell::new(input.room.into()),
        counts: Cell::new(Counts { sent: 0, taken: 0 }),
        said: Cell::new(0),
        meanwhile: RefCell::default(),
        calls: Cell::new(0),
    };
    let role = if input.connects { Role::Active } else { Role::Passive };
    let stream = Stream::new(role, 0).unwrap();
    let _peer = meet(&stream, &mut kernel, input.connects);
    kernel.meanwhile = RefCell::new(input.meanwhile);
    let mut way = WayBack::default();
    for step in input.steps {
        kernel.calls.set(0);
        match step {
            Step::Peer(peer) => kernel.act(peer),
            Step::Receive { first, second, peek, then } => {
                let then = [Then::Look, Then::Return, Then::Sleep][usize::from(then) % 3];
                receive(&stream, &kernel, (first, second), peek, then);
            }
            Step::Send { length } => send(&stream, &kernel, length),
            Step::Look { arm, output } => drop(stream.look(&kernel, arm, output)),
            Step::Wait { output } => {
                let _ = stream.wait(stream.turn(), output);
                stream.stop_leading();
            }
            Step::Settle => drop(stream.settle(&kernel)),
            Step::Disarm => stream.disarm(),
            Step::Leave => drop(way.step(&stream, &kernel)),
            Step::Unread => drop(stream.unread(&kernel)),
            Step::TakeError => drop(stream.take_error()),
            Step::Told { broken } => {
                let error = if broken { Errno::CONNRESET } else { Errno::HOSTUNREACH };
                stream.note_error(&kernel, error);
            }
            Step::EndOutput => drop(stream.end_output(&kernel)),
            Step::EndInput { all } => stream.end_input(&kernel, all),
        }
    }
    kernel.calls.set(0);
    stream.close(&kernel, || false);
});
