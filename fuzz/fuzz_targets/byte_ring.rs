//! A peer that shares a segment and writes anything anywhere in it, between the calls of this side and during
//! them.
//!
//! A file that is no segment is refused. No call of this side panics, waits, or touches what is not its own:
//! the peer's ring and the peer's words stay as the peer left them. Until the peer first breaks the protocol,
//! every byte arrives.

#![no_main]

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rstream_ring::{Error, Notifier, Notify, Reader, RingSizes, Segment, Writer, arm};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::SendFlags;

// Offsets in the segment, and in a direction.
const PEERS: u64 = 512;
const RINGS: u64 = 4096;
const WRITTEN: u64 = 0;
const WINDOW: u64 = 32;
const READ: u64 = 128;
const TAKEN: u64 = 144;
/// What the writer of a direction writes, and what its reader does.
const WRITERS_WORDS: usize = 40;
const READERS_WORDS: usize = 24;
/// Bytes of the longest ring here.
const LONGEST: usize = 40_000;

#[derive(Debug, Arbitrary)]
struct Input {
    /// Sizes of the rings.
    output: u16,
    input: u16,
    /// Whether this side makes the segment.
    creates: bool,
    /// What is wrong with the file that the peer hands over.
    file: Option<File>,
    /// What the peer writes when this side looks at the notifier, that is in the midst of calls.
    meanwhile: Vec<Scribble>,
    steps: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
struct File {
    length: u32,
    seals: u8,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
struct Scribble {
    at: u16,
    /// Near what is right, or anything.
    near: bool,
    word: u64,
}

#[derive(Debug, Arbitrary)]
enum Step {
    /// The peer writes, as it should.
    Say { length: u16 },
    /// The peer reads, as it should, and gives back what it has read now or later.
    Hear { length: u16, gives_back: bool },
    /// The peer ends its output.
    End,
    Scribble(Scribble),
    /// The peer overwrites its own ring, which it may at any time.
    Garble { at: u16, word: u64 },
    /// The peer sends so many messages of this length by the notifier.
    Notify { count: u16, length: u8 },
    /// The peer closes its end of the notifier.
    Leave,
    // Calls of this side.
    Write { first: u16, second: u16 },
    Read { first: u16, second: u16 },
    Peek { length: u16 },
    Skip { length: u16 },
    Look,
    Window { window: u16 },
    Arm { input: bool, output: bool, room: u16 },
    EndOutput,
    Close,
}

/// The byte with this number in a stream.
fn byte(number: u64) -> u8 {
    (number % 251) as u8
}

/// The peer: its file, and what it knows.
struct Peer {
    file: OwnedFd,
    sizes: RingSizes,
    /// Directions in which this side writes, and the peer; and their rings.
    directions: [u64; 2],
    rings: [u64; 2],
    socket: Option<OwnedFd>,
    notifier: Notifier,
    meanwhile: RefCell<Vec<Scribble>>,
    state: RefCell<State>,
}

struct State {
    /// Until when it keeps to the protocol; then bytes are anything.
    honest: bool,
    ended: bool,
    said: u64,
    heard: u64,
    /// What it wrote to its ring and its words.
    ring: Vec<u8>,
    writers_words: [u8; WRITERS_WORDS],
    readers_words: [u8; READERS_WORDS],
}

impl Peer {
    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        assert_eq!(rustix::io::pread(&self.file, &mut bytes, at), Ok(N));
        bytes
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.file, bytes, at), Ok(bytes.len()));
    }

    /// Notes what the peer has in its words and its ring.
    fn note(&self) {
        let mut state = self.state.borrow_mut();
        state.writers_words = self.get(self.directions[1]);
        state.readers_words = self.get(self.directions[0] + READ);
        let mut ring = std::mem::take(&mut state.ring);
        assert_eq!(rustix::io::pread(&self.file, &mut ring, self.rings[1]), Ok(ring.len()));
        state.ring = ring;
    }

    /// Nothing of the peer's has changed.
    fn check(&self) {
        let state = self.state.borrow();
        assert_eq!(self.get(self.directions[1]), state.writers_words);
        assert_eq!(self.get(self.directions[0] + READ), state.readers_words);
        let mut ring = vec![0; state.ring.len()];
        assert_eq!(rustix::io::pread(&self.file, &mut ring, self.rings[1]), Ok(ring.len()));
        assert!(ring == state.ring, "the peer's ring has changed");
    }

    fn scribble(&self, scribble: Scribble) {
        let Scribble { at, near, word } = scribble;
        if near {
            let place = [self.directions[1] + WRITTEN, self.directions[0] + READ][usize::from(at % 2)];
            let word = u64::from_ne_bytes(self.get(place)).wrapping_add(word % 64).wrapping_sub(8);
            self.put(place, &word.to_ne_bytes());
        } else {
            self.put(u64::from(at) % (RINGS - 8), &word.to_ne_bytes());
        }
        self.state.borrow_mut().honest = false;
        self.note();
    }

    fn say(&self, length: u16) {
        let mut state = self.state.borrow_mut();
        let size = self.sizes.input as u64;
        let read = u64::from_ne_bytes(self.get(self.directions[1] + READ)) & !(1 << 63);
        if !state.honest || state.ended {
            return;
        }
        let room = size - (state.said - read);
        for _ in 0..room.min(length.into()) {
            self.put(self.rings[1] + state.said % size, &[byte(state.said)]);
            state.said += 1;
        }
        self.put(self.directions[1] + WRITTEN, &state.said.to_ne_bytes());
        drop(state);
        self.note();
    }

    /// Reads from this side's ring.
    fn hear(&self, length: u16, gives_back: bool) {
        let mut state = self.state.borrow_mut();
        let written = u64::from_ne_bytes(self.get(self.directions[0] + WRITTEN)) & !(1 << 63);
        if !state.honest {
            return;
        }
        let (window, first) = match u64::from_ne_bytes(self.get(self.directions[0] + WINDOW)) {
            0 => (self.sizes.output as u64, 0),
            word => (word & ((1 << 29) - 1), word >> 29),
        };
        for _ in 0..(written - state.heard).min(length.into()) {
            assert_eq!(self.get(self.rings[0] + (state.heard - first) % window), [byte(state.heard)]);
            state.heard += 1;
        }
        self.put(self.directions[0] + TAKEN, &state.heard.to_ne_bytes());
        if gives_back {
            self.put(self.directions[0] + READ, &state.heard.to_ne_bytes());
        }
        drop(state);
        self.note();
    }

    fn end(&self) {
        let mut state = self.state.borrow_mut();
        if state.honest {
            self.put(self.directions[1] + WRITTEN, &(state.said | 1 << 63).to_ne_bytes());
            state.ended = true;
            drop(state);
            self.note();
        }
    }

    fn act(&self) {
        if let Some(scribble) = self.meanwhile.borrow_mut().pop() {
            self.scribble(scribble);
        }
    }
}

impl Notify for Peer {
    fn notify(&self) {
        self.notifier.notify();
        self.act();
    }

    fn take(&self) -> bool {
        let taken = self.notifier.take();
        self.act();
        taken
    }
}

/// This side.
struct End {
    output: Writer,
    input: Reader,
    written: u64,
    read: u64,
    window: usize,
    has_ended: bool,
}

impl End {
    fn checked<T: Default>(&self, result: Result<T, Error>, peer: &Peer) -> T {
        match result {
            Ok(value) => value,
            Err(Error::Closed) => {
                assert!(self.has_ended || !peer.state.borrow().honest);
                T::default()
            }
            Err(error) => {
                assert!(!peer.state.borrow().honest, "{error}");
                T::default()
            }
        }
    }

    /// `bytes` were read from this number on.
    fn compare(&self, bytes: &[u8], peer: &Peer) {
        if peer.state.borrow().honest {
            assert!(bytes.iter().zip(self.read..).all(|(found, number)| *found == byte(number)));
        }
    }

    fn step(&mut self, step: &Step, peer: &Peer) {
        match *step {
            Step::Write { first, second } => {
                let bytes: Vec<u8> =
                    (self.written..).take(usize::from(first) + usize::from(second)).map(byte).collect();
                let (one, two) = bytes.split_at(first.into());
                let result = self.output.write(&[IoSlice::new(one), IoSlice::new(two)], peer);
                let taken = self.checked(result, peer);
                assert!(taken <= bytes.len());
                self.written += taken as u64;
            }
            Step::Read { first, second } => {
                let (mut one, mut two) = (vec![0; first.into()], vec![0; second.into()]);
                let result =
                    self.input.read(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)], peer);
                let given = self.checked(result, peer).unwrap_or_default();
                self.compare(&[one, two].concat()[..given], peer);
                self.read += given as u64;
            }
            Step::Peek { length } => {
                let mut buffer = vec![0; length.into()];
                let result = self.input.peek(&mut [IoSliceMut::new(&mut buffer)]);
                let given = self.checked(result, peer).unwrap_or_default();
                self.compare(&buffer[..given], peer);
            }
            Step::Skip { length } => {
                let result = self.input.skip(length.into(), peer);
                self.read += self.checked(result, peer).unwrap_or_default() as u64;
            }
            Step::Look => {
                let (readable, room) = (self.input.readable(), self.output.room());
                let readable = self.checked(readable, peer);
                assert!(readable <= peer.sizes.input && self.checked(room, peer) <= self.window);
                let state = peer.state.borrow();
                assert!(!state.honest || self.read + readable as u64 == state.said, "bytes are missing");
            }
            Step::Window { window } => match self.output.set_window(window.into()) {
                Ok(true) => self.window = window.into(),
                Err(Error::RingSize { .. }) => {
                    assert!(window == 0 || usize::from(window) > peer.sizes.output);
                }
                result => {
                    self.checked(result, peer);
                }
            },
            Step::Arm { input, output, room } => {
                let output = output.then_some((&mut self.output, usize::from(room)));
                arm(peer, input.then_some(&mut self.input), output);
            }
            Step::EndOutput => {
                self.output.end(peer);
                self.has_ended = true;
            }
            Step::Close => self.input.close(peer),
            _ => {}
        }
    }
}

/// What the peer hands over: a file that is a segment, or not.
fn handed_over(file: &File, length: u64, sizes: RingSizes) {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    // Not the one against writing, with which nothing can be mapped.
    let seals = SealFlags::from_bits_truncate(file.seals.into()) & all;
    let long = u64::from(file.length) % (2 * length);
    let memory = rustix::fs::memfd_create("fuzz", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&memory, long).unwrap();
    rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
    assert_eq!(Segment::from_peer(memory, sizes).is_ok(), long == length && seals == all);
}

fuzz_target!(|input: Input| {
    let size = |size: u16| usize::from(size) % LONGEST + 1;
    let sizes = RingSizes { output: size(input.output), input: size(input.input) };
    let swapped = RingSizes { output: sizes.input, input: sizes.output };
    let (ours, theirs) = if input.creates { (sizes, swapped) } else { (swapped, sizes) };
    let created = Segment::create(ours).unwrap();
    let file = created.as_fd().try_clone_to_owned().unwrap();
    let from_peer = Segment::from_peer(file.try_clone().unwrap(), theirs).unwrap();
    let (segment, directions) = if input.creates { (created, [0, PEERS]) } else { (from_peer, [PEERS, 0]) };
    let second = RINGS + ours.output.next_multiple_of(4096) as u64;
    let mut rings = [RINGS, second];
    if !input.creates {
        rings.reverse();
    }
    if let Some(wrong) = &input.file {
        handed_over(wrong, rustix::fs::fstat(&file).unwrap().st_size as u64, sizes);
    }

    let (one, other) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::empty(),
        None,
    )
    .unwrap();
    let state = State {
        honest: true,
        ended: false,
        said: 0,
        heard: 0,
        ring: vec![0; sizes.input],
        writers_words: [0; WRITERS_WORDS],
        readers_words: [0; READERS_WORDS],
    };
    let mut peer = Peer {
        file,
        sizes,
        directions,
        rings,
        socket: Some(other),
        notifier: Notifier::new(one),
        meanwhile: RefCell::new(input.meanwhile),
        state: RefCell::new(state),
    };
    let (output, reader) = segment.map().unwrap();
    let mut end =
        End { output, input: reader, written: 0, read: 0, window: sizes.output, has_ended: false };
    peer.note();
    for step in &input.steps {
        match *step {
            Step::Say { length } => peer.say(length),
            Step::Hear { length, gives_back } => peer.hear(length, gives_back),
            Step::End => peer.end(),
            Step::Scribble(scribble) => peer.scribble(scribble),
            Step::Garble { at, word } => {
                let at = u64::from(at) % sizes.input as u64;
                peer.put(peer.rings[1] + at, &word.to_ne_bytes()[..8.min(sizes.input - at as usize)]);
                peer.state.borrow_mut().honest = false;
                peer.note();
            }
            Step::Notify { count, length } => {
                let Some(socket) = &peer.socket else { continue };
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let bytes = [0; 255];
                let _ = (0..count).try_for_each(|_| {
                    rustix::net::send(socket, &bytes[..length.into()], flags).map(drop)
                });
            }
            Step::Leave => peer.socket = None,
            _ => {
                end.step(step, &peer);
                peer.check();
            }
        }
    }
});
