//! Rings and spans.

use super::super::ring::{Position, Ring};
use super::super::{Setup, Span, WordFormat};
use super::{Link, setup};

#[test]
fn positions_wrap() {
    // Size, index, length, index after.
    for (size, index, length, after) in [
        (1, 0, 0, 0),
        (1, 0, 1, 0),
        (3, 0, 2, 2),
        (3, 2, 1, 0),
        (3, 2, 3, 2),
        (10, 7, 5, 2),
        (u32::MAX, u32::MAX - 1, 1, 0),
        (u32::MAX, u32::MAX - 1, u32::MAX, u32::MAX - 1),
        (u32::MAX, 0, u32::MAX - 1, u32::MAX - 1),
    ] {
        let start = Position { offset: 1 << 40, index };
        let end = start.after(length, size);
        assert_eq!(end, Position { offset: (1 << 40) + u64::from(length), index: after }, "{size} {index}");
    }
}

#[test]
fn a_ring_counts_room_and_the_way_to_its_end() {
    let mut ring = Ring::new(10);
    assert_eq!((ring.room(), ring.until_wrap(), ring.in_use()), (10, 10, 0));
    assert_eq!(ring.take(7).index, 0);
    assert_eq!((ring.room(), ring.until_wrap(), ring.in_use()), (3, 3, 7));
    ring.free(5);
    assert_eq!((ring.room(), ring.until_wrap(), ring.in_use()), (8, 3, 2));
    assert_eq!(ring.take(3).index, 7);
    assert_eq!((ring.room(), ring.until_wrap(), ring.in_use()), (5, 10, 5));
    assert_eq!(ring.take(5).index, 0);
    assert_eq!((ring.room(), ring.until_wrap(), ring.in_use()), (0, 5, 10));
    ring.free(10);
    assert_eq!((ring.room(), ring.freed(), ring.next().offset), (10, 15, 15));
}

#[test]
fn spans_cover_what_is_readable() {
    let mut link = Link::new(Setup { local_ring: 1000, ..setup(WordFormat::Immediate) });
    assert_eq!(link.write(1, 900), 900);
    assert_eq!(link.read(0, 900), 900);
    assert_eq!(link.write(1, 300), 300);
    // 100 bytes to the end of the ring of 1000, 200 at its start.
    for (skip, at_most, offset, length) in [
        (0, usize::MAX, 900, 100),
        (0, 7, 900, 7),
        (0, 0, 900, 0),
        (99, 10, 999, 1),
        (100, usize::MAX, 0, 200),
        (150, usize::MAX, 50, 150),
        (299, usize::MAX, 199, 1),
        (300, usize::MAX, 200, 0),
        (usize::MAX, usize::MAX, 200, 0),
    ] {
        assert_eq!(link.sides[0].span(skip, at_most), Span { offset, length }, "skip {skip}");
    }
    link.sides[0].consume(usize::MAX);
    assert_eq!(link.sides[0].readable(), 0, "more than there is counts as all");
    assert_eq!(link.sides[0].span(0, 1), Span { offset: 200, length: 0 });
}

#[test]
fn a_write_never_crosses_an_end() {
    let mut link = Link::new(Setup { peer_ring: 1000, send_ring: 700, ..setup(WordFormat::Immediate) });
    assert_eq!(link.write(0, 600), 600);
    assert_eq!(link.read(1, 600), 600);
    assert_eq!(link.sides[0].sendable(), Ok(700));
    let stream = &mut link.sides[0];
    let pieces: Vec<_> = core::iter::from_fn(|| stream.next_write(usize::MAX))
        .map(|message| (message.remote_offset, message.local_offset, message.length))
        .collect();
    assert_eq!(pieces, [(600, 600, 100), (700, 0, 300), (0, 300, 300)]);
    assert_eq!(stream.sendable(), Ok(0));
}
