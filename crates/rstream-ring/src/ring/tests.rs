use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use super::reader::POLLS;
use super::*;
use crate::control::DONE;
use crate::notifier::Notify;
use crate::{Error, Result, RingSizes, Segment, arm};

/// Counts notifications, for both sides.
#[derive(Default)]
struct Counter(Cell<usize>);

impl Notify for Counter {
    fn notify(&self) {
        self.0.set(self.0.get() + 1);
    }

    fn take(&self) -> bool {
        let before = self.0.get();
        self.0.set(before.saturating_sub(1));
        before > 0
    }
}

/// One direction, and the file in which a hostile peer writes.
struct Fixture {
    writer: Writer,
    reader: Reader,
    notifier: Counter,
    segment: Segment,
}

/// Offsets in the segment, of the direction in which its creator writes.
const WRITTEN: u64 = 0;
const WINDOW: u64 = 32;
const READ: u64 = 128;

impl Fixture {
    fn new(size: usize) -> Self {
        let segment = Segment::create(RingSizes { output: size, input: 1 }).unwrap();
        let file = segment.as_fd().try_clone_to_owned().unwrap();
        let peers = Segment::from_peer(file, RingSizes { output: 1, input: size }).unwrap();
        let (writer, reader) = (segment.map().unwrap().0, peers.map().unwrap().1);
        Self { writer, reader, notifier: Counter::default(), segment }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.writer.write(&[IoSlice::new(bytes)], &self.notifier)
    }

    /// What a read with a buffer of `length` bytes gives.
    fn read(&mut self, length: usize) -> Result<Option<Vec<u8>>> {
        let mut buffer = vec![0; length];
        let given = self.reader.read(&mut [IoSliceMut::new(&mut buffer)], &self.notifier)?;
        Ok(given.map(|given| buffer[..given].to_vec()))
    }

    fn scribble(&self, offset: u64, word: u64) {
        assert_eq!(rustix::io::pwrite(self.segment.as_fd(), &word.to_ne_bytes(), offset), Ok(8));
    }
}

#[test]
fn calls_are_partial_and_go_around() {
    let mut ring = Fixture::new(10);
    let (mut next, mut wanted) = (0_u8, 0_u8);
    for round in 0..200 {
        let bytes: Vec<u8> = (0..7).map(|at| next.wrapping_add(at)).collect();
        let (first, second) = bytes.split_at(round % 7);
        let slices = [IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(second)];
        next = next.wrapping_add(ring.writer.write(&slices, &ring.notifier).unwrap() as u8);
        for byte in ring.read(1 + round % 9).unwrap().unwrap() {
            assert_eq!(byte, wanted);
            wanted = wanted.wrapping_add(1);
        }
    }
    let left = ring.reader.readable().unwrap();
    assert_eq!(left, usize::from(next.wrapping_sub(wanted)));
    assert_eq!(ring.write(&[0; 20]), Ok(10 - left));
    assert_eq!((ring.write(&[0]), ring.writer.room()), (Ok(0), Ok(0)), "a full ring takes nothing");
}

#[test]
fn a_ring_has_exactly_its_size() {
    for size in [1, 2, 4095, 4096, 4097, 100_003] {
        let mut ring = Fixture::new(size);
        let bytes: Vec<u8> = (0..=size).map(|number| (number % 253) as u8).collect();
        assert_eq!(ring.write(&bytes), Ok(size));
        assert_eq!(ring.read(size + 1), Ok(Some(bytes[..size].to_vec())));
        assert_eq!(ring.read(1), Ok(None));
        assert_eq!(ring.writer.room(), Ok(size));
    }
}

#[test]
fn peeking_takes_nothing_and_skipping_copies_nothing() {
    let mut ring = Fixture::new(8);
    let peek = |ring: &mut Fixture, lengths: [usize; 2]| {
        let (mut one, mut two) = (vec![0; lengths[0]], vec![0; lengths[1]]);
        let given = ring.reader.peek(&mut [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)]).unwrap();
        given.map(|given| [one, two].concat()[..given].to_vec())
    };
    assert_eq!(peek(&mut ring, [1, 1]), None);
    ring.write(b"12345").unwrap();
    ring.read(5).unwrap();
    ring.write(b"abcd").unwrap();
    assert_eq!(peek(&mut ring, [1, 1]).unwrap(), b"ab");
    ring.write(b"efgh").unwrap();
    assert_eq!(peek(&mut ring, [3, 3]).unwrap(), b"abcdef", "it looks for what it lacks");
    assert_eq!(peek(&mut ring, [5, 5]).unwrap(), b"abcdefgh");
    assert_eq!(ring.reader.skip(2, &ring.notifier), Ok(Some(2)));
    assert_eq!(ring.read(3).unwrap().unwrap(), b"cde");
    assert_eq!(ring.reader.skip(9, &ring.notifier), Ok(Some(3)));
    assert_eq!((ring.reader.skip(9, &ring.notifier), peek(&mut ring, [1, 1])), (Ok(None), None));
    ring.writer.end(&ring.notifier);
    assert_eq!((ring.reader.skip(9, &ring.notifier), peek(&mut ring, [1, 1])), (Ok(Some(0)), Some(vec![])));
}

#[test]
fn the_end_comes_after_the_last_byte() {
    let mut ring = Fixture::new(8);
    ring.write(b"last").unwrap();
    ring.writer.end(&ring.notifier);
    assert_eq!((ring.write(b"more"), ring.writer.room()), (Err(Error::Closed), Err(Error::Closed)));
    assert!(ring.reader.readable() == Ok(4) && !ring.reader.has_ended());
    assert_eq!(ring.read(8).unwrap().unwrap(), b"last");
    assert!(ring.reader.has_ended());
    assert_eq!(ring.read(8), Ok(Some(vec![])));
    assert!(arm(&ring.notifier, Some(&mut ring.reader), None), "the end is something to read");
}

#[test]
fn a_reader_that_closes_stops_the_writer() {
    let mut ring = Fixture::new(8);
    ring.write(b"unread").unwrap();
    assert!(!arm(&ring.notifier, None, Some((&mut ring.writer, 3))));
    ring.reader.close(&ring.notifier);
    assert_eq!(ring.notifier.0.get(), 1);
    assert_eq!(ring.write(b"more"), Err(Error::Closed));
    ring.read(8).unwrap();
    assert_eq!(ring.writer.room(), Err(Error::Closed), "it stays closed");
}

#[test]
fn room_comes_back_by_the_quarter_or_from_an_empty_ring() {
    let mut ring = Fixture::new(400);
    ring.write(&[0; 400]).unwrap();
    ring.read(99).unwrap();
    assert_eq!(ring.writer.room(), Ok(0));
    ring.read(1).unwrap();
    assert_eq!(ring.writer.room(), Ok(100));
    ring.read(201).unwrap();
    ring.read(99).unwrap();
    assert_eq!(ring.writer.room(), Ok(301));
    assert_eq!((ring.read(1), ring.writer.room()), (Ok(None), Ok(400)));
}

#[test]
fn who_sleeps_is_notified_once() {
    let mut ring = Fixture::new(400);
    ring.write(&[0; 4]).unwrap();
    assert_eq!(ring.notifier.0.get(), 0, "nobody sleeps");
    assert!(arm(&ring.notifier, Some(&mut ring.reader), None), "there is something");
    ring.read(4).unwrap();
    assert!(!arm(&ring.notifier, Some(&mut ring.reader), None));
    ring.write(&[0; 4]).unwrap();
    ring.write(&[0; 396]).unwrap();
    assert_eq!(ring.notifier.0.get(), 1);
    assert!(!arm(&ring.notifier, None, Some((&mut ring.writer, 1))));
    assert_eq!(ring.notifier.0.get(), 0, "who sleeps again has taken it");
    ring.read(100).unwrap();
    ring.read(100).unwrap();
    assert_eq!(ring.notifier.0.get(), 1);
    assert!(arm(&ring.notifier, None, Some((&mut ring.writer, 200))));
    assert!(!arm(&ring.notifier, None, Some((&mut ring.writer, 201))));
}

#[test]
fn a_reader_that_polled_is_notified_when_it_sleeps() {
    assert!(crate::prepare());
    let mut ring = Fixture::new(400);
    for _ in 0..=POLLS {
        assert!(!ring.reader.state().polling);
        ring.write(&[0]).unwrap();
        if ring.reader.readable() == Ok(1) && ring.reader.at.finds == POLLS {
            break;
        }
        ring.read(1).unwrap();
    }
    assert!(ring.reader.state().polling);
    ring.read(1).unwrap();
    assert!(!arm(&ring.notifier, Some(&mut ring.reader), None));
    assert!(!ring.reader.state().polling);
    ring.write(&[0]).unwrap();
    assert_eq!(ring.notifier.0.get(), 1);
}

#[test]
fn large_calls_are_published_in_parts() {
    let mut ring = Fixture::new(8 * PART);
    assert!(!arm(&ring.notifier, Some(&mut ring.reader), None));
    struct Watch<'a>(&'a Segment, Cell<u64>);
    impl Notify for Watch<'_> {
        fn notify(&self) {
            let mut written = [0; 8];
            rustix::io::pread(self.0, &mut written, WRITTEN).unwrap();
            self.1.set(u64::from_ne_bytes(written));
        }

        fn take(&self) -> bool {
            false
        }
    }
    let watch = Watch(&ring.segment, Cell::new(0));
    assert_eq!(ring.writer.write(&[IoSlice::new(&vec![0; 3 * PART])], &watch), Ok(3 * PART));
    assert_eq!(watch.1.get(), PART as u64, "the reader is woken for the first part");
}

#[test]
fn where_a_stream_begins_is_known_before_its_first_byte() {
    let mut ring = Fixture::new(100);
    assert_eq!(ring.reader.begins_at(), None);
    ring.writer.begin(12345);
    assert_eq!((ring.reader.begins_at(), ring.reader.readable()), (Some(12345), Ok(0)));
    ring.write(&[1; 3]).unwrap();
    ring.read(3).unwrap();
    assert_eq!((ring.reader.arrived(), ring.reader.knows_end()), (3, false));
    ring.write(&[1; 2]).unwrap();
    ring.writer.end(&ring.notifier);
    assert_eq!(ring.reader.readable(), Ok(2));
    assert!(ring.reader.knows_end() && !ring.reader.has_ended());
}

#[test]
fn any_window_can_be_had_when_the_ring_is_empty() {
    let mut ring = Fixture::new(100);
    for window in [0, 101] {
        assert_eq!(ring.writer.set_window(window), Err(Error::RingSize { size: window, most: 100 }));
    }
    assert_eq!(ring.writer.set_window(10), Ok(true));
    for (next, taken) in [(30, 10), (100, 30), (7, 100), (8, 7)] {
        assert_eq!(ring.write(&[next; 200]), Ok(taken));
        // It is full, so that what is written next lies before what is read next.
        assert_eq!(ring.writer.set_window(next.into()), Ok(false));
        ring.read(3).unwrap();
        assert_eq!(ring.writer.set_window(next.into()), Ok(false));
        assert_eq!(ring.read(200), Ok(Some(vec![next; taken - 3])));
        assert_eq!(ring.writer.set_window(next.into()), Ok(true));
    }
    let mut behind = [0; 92];
    rustix::io::pread(ring.segment.as_fd(), &mut behind, 4096 + 8).unwrap();
    assert_eq!(behind, [7; 92], "what lies behind the window is as it was");
}

#[test]
fn a_ring_that_was_read_is_empty_before_its_room_is_given_back() {
    let mut ring = Fixture::new(400);
    for length in [99, 98, 97, 1] {
        ring.write(&vec![length; length.into()]).unwrap();
        ring.read(length.into()).unwrap();
        assert_ne!(ring.writer.room(), Ok(400));
        assert_eq!(ring.writer.set_window(200), Ok(true));
        assert_eq!(ring.write(&[1; 300]), Ok(200));
        assert_eq!(ring.read(300), Ok(Some(vec![1; 200])));
        ring.writer.set_window(400).unwrap();
    }
}

#[test]
fn the_window_grows_behind_unread_bytes() {
    let mut ring = Fixture::new(100);
    ring.writer.set_window(10).unwrap();
    assert_eq!(ring.write(&[1; 6]), Ok(6));
    ring.read(2).unwrap();
    assert!(ring.writer.fits(3) && !ring.writer.fits(4));
    assert_eq!((ring.writer.room(), ring.writer.most_room(usize::MAX)), (Ok(4), Ok(94)));
    assert_eq!(ring.writer.set_window(20), Ok(true));
    assert_eq!(ring.writer.set_window(10), Ok(false), "it does not shrink over unread bytes");
    assert_eq!(ring.write(&[2; 30]), Ok(14));
    assert_eq!(ring.writer.most_room(usize::MAX), Ok(0));
    assert_eq!(ring.writer.set_window(40), Ok(false), "the next byte would lie before unread ones");
    assert_eq!(ring.read(4), Ok(Some(vec![1; 4])));
    assert_eq!(ring.read(100), Ok(Some(vec![2; 14])));
    assert_eq!(ring.read(1), Ok(None));
    assert_eq!(ring.write(&[3; 5]), Ok(5));
    assert_eq!(ring.writer.set_window(40), Ok(true));
    assert_eq!(ring.write(&[4; 50]), Ok(35));
    assert_eq!(ring.read(100), Ok(Some([vec![3; 5], vec![4; 35]].concat())));
}

#[test]
fn a_copy_goes_on_where_the_other_stands() {
    let mut ring = Fixture::new(50);
    let file = || ring.segment.as_fd().try_clone_to_owned().unwrap();
    let peers = Segment::from_peer(file(), RingSizes { output: 1, input: 50 }).unwrap();
    let (mut writer, mut reader) = (ring.segment.map().unwrap().0, peers.map().unwrap().1);
    ring.writer.set_window(37).unwrap();
    ring.write(&[1; 30]).unwrap();
    ring.read(20).unwrap();
    writer.resume(ring.writer.state());
    reader.resume(ring.reader.state());
    (ring.writer, ring.reader) = (writer, reader);
    assert_eq!(ring.write(&[2; 50]), Ok(27));
    assert_eq!((ring.read(50), ring.read(50)), (Ok(Some(vec![1; 10])), Ok(Some(vec![2; 27]))));
}

#[test]
fn a_peer_says_that_it_has_mapped() {
    let segment = Segment::create(RingSizes { output: 1, input: 1 }).unwrap();
    let (writer, _) = segment.map().unwrap();
    assert!(!writer.is_mapped_by_peer());
    let file = segment.as_fd().try_clone_to_owned().unwrap();
    let _mapped = Segment::from_peer(file, RingSizes { output: 1, input: 1 }).unwrap().map().unwrap();
    assert!(writer.is_mapped_by_peer());
}

#[test]
fn counts_that_cannot_be_are_errors() {
    let mut ring = Fixture::new(100);
    ring.write(&[0; 100]).unwrap();
    for said in [101, 1 << 62, DONE - 1, u64::MAX] {
        ring.scribble(READ, said);
        let error = Error::Position { what: "bytes read", said: said & !DONE, least: 0, most: 100 };
        assert_eq!((ring.write(&[0]), ring.writer.room()), (Err(error), Err(error)));
        assert!(arm(&ring.notifier, None, Some((&mut ring.writer, 1))), "an error is to be told");
    }
    ring.scribble(READ, 50);
    assert_eq!(ring.write(&[0; 10]), Ok(10));
    ring.scribble(READ, 49);
    assert_eq!(ring.write(&[0; 50]), Ok(40), "what is known to be room stays");

    for said in [59, 161, DONE - 1, 0] {
        let mut ring = Fixture::new(100);
        ring.write(&[0; 60]).unwrap();
        ring.read(40).unwrap();
        ring.scribble(WRITTEN, said);
        assert_eq!(ring.reader.readable(), Ok(20));
        assert_eq!(ring.read(PART + 20), Ok(Some(vec![0; 20])), "bytes before the error");
        let error = Error::Position { what: "bytes written", said, least: 60, most: 160 };
        assert_eq!((ring.read(1), ring.reader.readable()), (Err(error), Err(error)));
        let (peeked, skipped) = (ring.reader.peek(&mut []), ring.reader.skip(1, &ring.notifier));
        assert_eq!((peeked, skipped), (Ok(Some(0)), Err(error)));
        assert!(arm(&ring.notifier, Some(&mut ring.reader), None), "an error is to be told");
    }
}

#[test]
fn a_window_beyond_the_ring_is_an_error() {
    let mut ring = Fixture::new(100);
    ring.scribble(WINDOW, 101);
    ring.write(&[0; 1]).unwrap();
    assert_eq!(
        ring.read(1),
        Err(Error::Position { what: "bytes of window", said: 101, least: 1, most: 100 })
    );
}

#[test]
fn bytes_before_a_refused_window_are_where_they_were() {
    let mut ring = Fixture::new(100);
    let bytes: Vec<u8> = (0..60).collect();
    ring.write(&bytes).unwrap();
    assert_eq!(ring.reader.readable(), Ok(60));
    ring.scribble(WINDOW, 10);
    ring.scribble(WRITTEN, 71);
    assert_eq!(ring.reader.peek(&mut [IoSliceMut::new(&mut [0; 100])]), Ok(Some(60)));
    assert_eq!(ring.read(100), Ok(Some(bytes)));
    let error = Error::Position { what: "bytes written", said: 71, least: 60, most: 70 };
    assert_eq!(ring.read(1), Err(error));
}
