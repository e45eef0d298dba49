//! Rings and queues beyond what one word can say. Only counts: no memory is behind these rings.

use super::super::words::BYTES_MASK;
use super::super::{Features, Setup, WordFormat};
use super::{Link, setup};

/// Moves `total` bytes through a link whose reader takes everything at once.
fn stream_through(link: &mut Link, total: u64) {
    let mut sent = 0;
    while sent < total {
        let count = link.write(0, usize::MAX);
        assert!(count > 0, "stuck after {sent} bytes");
        assert_eq!(link.read(1, usize::MAX), count);
        sent += count as u64;
    }
}

#[test]
fn the_largest_rings_and_queues_work() {
    for words in [WordFormat::Immediate, WordFormat::Iwarp] {
        for features in [Features::empty(), Features::END_OF_STREAM] {
            for ring in [BYTES_MASK, 1 << 20, (1 << 20) + 1, 3 << 20, u32::MAX] {
                let mut link = Link::new(Setup {
                    local_ring: ring,
                    peer_ring: ring,
                    send_ring: ring,
                    local_receives: u16::MAX,
                    peer_receives: u16::MAX,
                    send_depth: 1 << 17,
                    max_message: u32::MAX,
                    words,
                    features,
                });
                stream_through(&mut link, u64::from(ring) * 3);
            }
        }
    }
}

#[test]
fn what_exceeds_a_word_goes_in_several() {
    let ring = 3 << 20;
    let sizes = Setup { local_ring: ring, peer_ring: ring, send_ring: ring, ..setup(WordFormat::Immediate) };
    let mut link = Link::new(Setup { max_message: ring, ..sizes });
    assert_eq!(link.write(0, usize::MAX), ring as usize);
    assert_eq!(link.read(1, usize::MAX), ring as usize);
    let freed: Vec<_> = link.controls[1].iter().map(|word| word & BYTES_MASK).collect();
    assert_eq!(freed, [BYTES_MASK, BYTES_MASK, BYTES_MASK]);
    // The 3 bytes that are left are below the threshold.
    assert_eq!(link.sides[0].sendable(), Ok(ring as usize - 3));
}

#[test]
fn one_word_says_it_where_that_is_possible() {
    let ring = 3 << 20;
    let sizes = Setup { local_ring: ring, peer_ring: ring, send_ring: ring, ..setup(WordFormat::Immediate) };
    let mut link = Link::new(Setup { max_message: ring, ..sizes });
    assert_eq!(link.write(0, usize::MAX), ring as usize);
    assert_eq!(link.read(1, BYTES_MASK as usize - 1), BYTES_MASK as usize - 1);
    assert_eq!(link.controls[1], [], "half the ring is more than a word can say");
    assert_eq!(link.read(1, 1), 1);
    assert_eq!(link.controls[1], [BYTES_MASK | 1 << 20]);
}

#[test]
fn iwarp_messages_stay_below_a_mebibyte() {
    let ring = 5 << 20;
    let sizes = Setup { local_ring: ring, peer_ring: ring, send_ring: ring, ..setup(WordFormat::Iwarp) };
    let mut link = Link::new(Setup { max_message: ring, send_depth: 32, ..sizes });
    assert_eq!(link.sides[0].sendable(), Ok(ring as usize));
    let stream = &mut link.sides[0];
    let lengths: Vec<_> =
        core::iter::from_fn(|| stream.next_write(usize::MAX)).map(|message| message.length).collect();
    assert_eq!(lengths, [BYTES_MASK, BYTES_MASK, BYTES_MASK, BYTES_MASK, BYTES_MASK, 5]);
}

#[test]
fn few_messages_limit_what_is_sendable() {
    let sizes = Setup { max_message: 10, peer_receives: 5, ..setup(WordFormat::Immediate) };
    let link = Link::new(sizes);
    assert_eq!(link.sides[0].sendable(), Ok(30), "three messages of 10 bytes");
}
