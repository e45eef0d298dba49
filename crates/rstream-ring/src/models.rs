//! The protocol under loom, which runs each model in every order that the memory model allows.
//!
//! Loom watches the bytes as well: it reports one that is read before it was written, or written before it
//! was read, by the order that the protocol gives and not by chance.

use std::io::{IoSlice, IoSliceMut};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::control::Direction;
use crate::sync::PREPARED;
use crate::{Notify, Reader, Writer, arm};

/// A ring in memory of this process.
pub(crate) struct Ring(Arc<Memory>);

struct Memory {
    direction: Direction,
    opposite: Direction,
    bytes: Vec<Byte>,
}

struct Byte(UnsafeCell<u8>);

// SAFETY: loom ends a model in which accesses to an `UnsafeCell` race.
unsafe impl Sync for Byte {}

impl Ring {
    pub(crate) fn direction(&self) -> &Direction {
        &self.0.direction
    }

    pub(crate) fn opposite(&self) -> &Direction {
        &self.0.opposite
    }

    pub(crate) fn size(&self) -> usize {
        self.0.bytes.len()
    }

    pub(crate) fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        for (place, byte) in self.0.bytes[offset..].iter().zip(bytes) {
            // SAFETY: the pointer is valid within the closure, and loom watches for races.
            place.0.with_mut(|place| unsafe { *place = *byte });
        }
    }

    pub(crate) fn copy_out(&mut self, offset: usize, bytes: &mut [u8]) {
        for (place, byte) in self.0.bytes[offset..].iter().zip(bytes) {
            // SAFETY: as in `copy_in`.
            *byte = place.0.with(|place| unsafe { *place });
        }
    }
}

pub(crate) fn ring(size: usize) -> (Writer, Reader) {
    let bytes = (0..size).map(|_| Byte(UnsafeCell::new(0))).collect();
    let memory = Arc::new(Memory { direction: Direction::default(), opposite: Direction::default(), bytes });
    (Writer::new(Ring(Arc::clone(&memory))), Reader::new(Ring(memory)))
}

/// In place of a notifier: nobody sleeps at the other end.
pub(crate) struct Nobody;

impl Notify for Nobody {
    fn notify(&self) {}

    fn take(&self) -> bool {
        false
    }
}

/// An end of a notifier: a count for each side, which makes that side readable while it is not 0.
#[derive(Clone)]
struct Counter {
    own: Arc<AtomicU32>,
    other: Arc<AtomicU32>,
}

impl Counter {
    fn pair() -> (Self, Self) {
        let (own, other) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        (Self { own: Arc::clone(&own), other: Arc::clone(&other) }, Self { own: other, other: own })
    }

    fn is_readable(&self) -> bool {
        self.own.load(Ordering::Acquire) > 0
    }
}

impl Notify for Counter {
    fn notify(&self) {
        self.other.fetch_add(1, Ordering::AcqRel);
    }

    fn take(&self) -> bool {
        // Only this side takes.
        let taken = self.is_readable();
        if taken {
            self.own.fetch_sub(1, Ordering::AcqRel);
        }
        taken
    }
}

/// Writes the bytes that come next, their numbers from 1 on, and answers how many.
fn write(writer: &mut Writer, next: &mut u8, length: u8, notifier: &Counter) -> u8 {
    let bytes: Vec<u8> = (*next..*next + length).map(|number| number + 1).collect();
    let taken = writer.write(&[IoSlice::new(&bytes)], notifier).unwrap() as u8;
    *next += taken;
    taken
}

/// Reads what there is, at most `length` bytes, and checks that these are the ones that come next. Returns
/// how many.
fn read(reader: &mut Reader, next: &mut u8, length: usize, notifier: &Counter) -> u8 {
    let mut bytes = vec![0; length];
    let given = reader.read(&mut [IoSliceMut::new(&mut bytes)], notifier).unwrap().unwrap_or(0);
    for byte in &bytes[..given] {
        *next += 1;
        assert_eq!(byte, next);
    }
    given as u8
}

/// More bytes than the ring has, in calls of more than a part: each is read whole, once and in order, and
/// none is overwritten unread.
#[test]
fn bytes_are_neither_lost_nor_torn() {
    const COUNT: u8 = 3;
    loom::model(|| {
        let (mut writer, mut reader) = ring(2);
        let (ours, theirs) = Counter::pair();
        let writing = thread::spawn(move || {
            let mut next = 0;
            while next < COUNT {
                let length = (COUNT - next).min(3);
                if write(&mut writer, &mut next, length, &theirs) == 0 {
                    thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < COUNT {
            if read(&mut reader, &mut next, 2, &ours) == 0 {
                thread::yield_now();
            }
        }
        writing.join().unwrap();
        assert_eq!(read(&mut reader, &mut next, 2, &ours), 0);
    });
}

/// The end comes after the last byte.
#[test]
fn the_end_is_behind_all_bytes() {
    loom::model(|| {
        let (mut writer, mut reader) = ring(2);
        let (ours, theirs) = Counter::pair();
        let writing = thread::spawn(move || {
            let mut next = 0;
            write(&mut writer, &mut next, 1, &theirs);
            writer.end(&theirs);
        });
        let mut next = 0;
        while !reader.has_ended() {
            if read(&mut reader, &mut next, 2, &ours) == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(next, 1);
        writing.join().unwrap();
    });
}

/// The window changes when the ring is empty, and both sides agree where each byte lies.
#[test]
fn the_window_changes_between_bytes() {
    loom::model(|| {
        let (mut writer, mut reader) = ring(4);
        let (ours, theirs) = Counter::pair();
        writer.set_window(2).unwrap();
        let writing = thread::spawn(move || {
            let mut next = 0;
            write(&mut writer, &mut next, 2, &theirs);
            while !writer.set_window(3).unwrap() {
                thread::yield_now();
            }
            assert_eq!(write(&mut writer, &mut next, 2, &theirs), 2);
        });
        let mut next = 0;
        while next < 4 {
            if read(&mut reader, &mut next, 1, &ours) == 0 {
                thread::yield_now();
            }
        }
        writing.join().unwrap();
    });
}

/// As [`loom::model`], for models of many steps: with at most so many switches between threads that need not
/// be.
pub(crate) fn bounded_model(switches: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(model);
}

/// A reader that sleeps and is woken, also late, while a writer writes and ends: it is never asleep with a
/// byte or the end for which no notification came, and once it has read all, each notification that is left
/// ends one sleep. In prepared processes it polls at times, and the writer makes a light fence.
#[test]
fn sleeping_readers_are_notified_and_then_sleep() {
    const COUNT: u8 = 2;
    for prepared in [false, true] {
        PREPARED.set(prepared);
        bounded_model(5, || {
            let (mut writer, mut reader) = ring(4);
            let (ours, theirs) = Counter::pair();
            let writing = thread::spawn(move || {
                let mut next = 0;
                while next < COUNT {
                    write(&mut writer, &mut next, 1, &theirs);
                }
            });
            // As an application: what is there, then sleep; a wake-up, or a timer, while the writer may be
            // anywhere.
            let mut next = 0;
            for _ in 0..2 {
                while read(&mut reader, &mut next, 1, &ours) > 0 {}
                while arm(&ours, Some(&mut reader), None) {
                    read(&mut reader, &mut next, 1, &ours);
                }
            }
            writing.join().unwrap();
            assert!(reader.readable().unwrap() == 0 || ours.is_readable(), "asleep with bytes");
            for _ in 0..COUNT {
                if ours.is_readable() {
                    while read(&mut reader, &mut next, 1, &ours) > 0 {}
                    assert!(!arm(&ours, Some(&mut reader), None));
                }
            }
            assert_eq!(next, COUNT);
            assert!(!ours.is_readable(), "awake for ever");
        });
    }
}

/// A reader that sleeps is notified of the end alone.
#[test]
fn sleeping_readers_are_notified_of_the_end() {
    loom::model(|| {
        let (mut writer, mut reader) = ring(1);
        let (ours, theirs) = Counter::pair();
        let writing = thread::spawn(move || writer.end(&theirs));
        let ended = arm(&ours, Some(&mut reader), None);
        writing.join().unwrap();
        assert!(ended || ours.is_readable());
    });
}

/// A writer that sleeps on a full ring is notified when there is room, or when the reader has closed.
#[test]
fn sleeping_writers_are_notified() {
    for closes in [false, true] {
        loom::model(move || {
            let (mut writer, mut reader) = ring(2);
            let (ours, theirs) = Counter::pair();
            let mut next = 0;
            assert_eq!(write(&mut writer, &mut next, 2, &ours), 2);
            let reading = thread::spawn(move || {
                if closes {
                    reader.close(&theirs);
                } else {
                    let mut next = 0;
                    read(&mut reader, &mut next, 1, &theirs);
                    read(&mut reader, &mut next, 1, &theirs);
                }
            });
            let wanted = if closes { 1 } else { 2 };
            while !arm(&ours, None, Some((&mut writer, wanted))) {
                // Asleep until there is a notification.
                while !ours.is_readable() {
                    thread::yield_now();
                }
            }
            if !closes {
                assert_eq!(write(&mut writer, &mut next, 2, &ours), 2);
            }
            reading.join().unwrap();
        });
    }
}

/// A side that sleeps for both directions at once misses neither, although one notification may be taken for
/// the other.
#[test]
fn both_directions_share_a_notifier() {
    bounded_model(5, || {
        let (mut output, mut peers_input) = ring(1);
        let (mut peers_output, mut input) = ring(1);
        let (ours, theirs) = Counter::pair();
        assert_eq!(write(&mut output, &mut 0, 1, &ours), 1);
        let peer = thread::spawn(move || {
            read(&mut peers_input, &mut 0, 1, &theirs);
            write(&mut peers_output, &mut 0, 1, &theirs);
        });
        let (mut next, mut has_room) = (0, false);
        // Twice as an application whose timer may end a sleep at any time, and then as one that sleeps.
        let look = |input: &mut Reader, output: &mut Writer, next: &mut u8, has_room: &mut bool| {
            let ready = arm(&ours, Some(input), (!*has_room).then_some((output, 1)));
            read(input, next, 1, &ours);
            *has_room = output.has_room(1).unwrap();
            ready
        };
        for _ in 0..2 {
            look(&mut input, &mut output, &mut next, &mut has_room);
        }
        peer.join().unwrap();
        while next == 0 || !has_room {
            assert!(look(&mut input, &mut output, &mut next, &mut has_room) || ours.is_readable());
        }
    });
}
