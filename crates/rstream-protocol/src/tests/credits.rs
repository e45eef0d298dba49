//! Credits and send-queue entries: thresholds, reserves, tickets.

use super::super::credits::{RecvCredits, SendCredits};
use super::super::slots::Slots;
use super::super::words::Control;
use super::super::{Features, Setup, SetupError, Stream, Violation, WordFormat};
use super::setup;

/// How many receives must be owed before an update is due.
fn threshold(posted: u16, peer_posted: u16) -> u16 {
    let mut credits = RecvCredits::new(posted, peer_posted);
    let mut owed = 0;
    while !credits.due() {
        credits.arrived();
        owed += 1;
    }
    owed
}

#[test]
fn updates_are_due_at_half_or_what_a_word_can_say() {
    for (posted, peer_posted, expected) in [
        (3, 3, 2),
        (3, 4, 1),
        (4, 3, 2),
        (5, 5, 2),
        (384, 384, 192),
        (1022, 3, 511),
        (1024, 3, 511),
        (u16::MAX, u16::MAX, 511),
    ] {
        assert_eq!(threshold(posted, peer_posted), expected, "{posted} posted, {peer_posted} at the peer");
    }
}

/// The inequalities that the argument in `credits.rs` rests on, for all numbers that matter.
#[test]
fn thresholds_keep_the_exchange_alive_and_finite() {
    for a in 3..1100 {
        for b in 3..40 {
            let (here, there) = (threshold(a, b), threshold(b, a));
            assert!(here * there >= 2, "{a} and {b}: updates would answer each other for ever");
            let kept = a - SendCredits::new(a).data_messages();
            assert!(a - kept >= here, "{a} and {b}: a sender would wait for an update that is not due");
            // A base peer always keeps two.
            assert!(a - 2 >= here || (a, b) == (3, 3), "{a} and {b}: a base peer would wait");
        }
    }
}

#[test]
fn the_reserve_is_for_control_and_the_last_credit_for_returns() {
    for (posted, data) in [(3, 2), (4, 3), (5, 3), (384, 382), (u16::MAX, u16::MAX - 2)] {
        let mut credits = SendCredits::new(posted);
        assert_eq!(credits.data_messages(), data);
        (0..data).for_each(|_| credits.spend());
        assert_eq!(credits.data_messages(), 0);
        while credits.allow_control(false) {
            credits.spend();
        }
        assert!(credits.allow_control(true), "one is left");
        credits.spend();
        assert!(!credits.allow_control(true));
        let excess = Violation::ExcessReceives { freed: posted.saturating_add(1), outstanding: posted };
        if posted < u16::MAX {
            assert_eq!(credits.check_refund(posted + 1), Err(excess));
        }
        credits.refund(posted);
        assert_eq!(credits.data_messages(), data);
    }
}

#[test]
fn close_may_take_the_last_credit_and_end_may_not() {
    for words in [WordFormat::Immediate, WordFormat::Iwarp] {
        let mut stream = Stream::new(Setup { peer_receives: 3, ..setup(words) }).expect("works");
        assert_eq!(core::iter::from_fn(|| stream.next_write(1)).count(), 2);
        stream.shut_send();
        assert_eq!(stream.next_control(), None);
        stream.close();
        let word = stream.next_control().expect("nothing is returned, but nothing follows").word;
        assert_eq!(
            Control::decode(word, true),
            Ok(Control { end: true, close: true, bytes: 0, receives: 0 })
        );
        assert!(stream.outgoing_done());
    }
}

#[test]
fn more_than_a_word_can_say_goes_in_several() {
    let mut credits = RecvCredits::new(2000, 16);
    (0..1300).for_each(|_| credits.arrived());
    let mut words = vec![];
    while credits.due() {
        words.push(credits.returnable());
        credits.returned(credits.returnable());
    }
    assert_eq!(words, [511, 511]);
    assert_eq!(credits.returnable(), 278);
}

#[test]
fn control_has_entries_that_data_does_not_get() {
    let mut slots = Slots::new(4, 1 << 20);
    assert_eq!(slots.free_for_data(), 4);
    let last = (1..=4).map(|n| slots.post(1, 10, n * 10)).last().expect("four");
    assert_eq!(slots.free_for_data(), 0);
    for _ in 0..2 {
        assert!(slots.free_for_control());
        slots.post(1, 0, 40);
    }
    assert!(!slots.free_for_control());
    assert!(slots.complete(last.id));
    assert_eq!(Slots::staged(last.id), 40);
    assert_eq!(slots.free_for_data(), 2);
    assert!(!slots.complete(last.id), "done before");
    assert!(!slots.complete(last.id + (3 << 32)), "never posted");
}

#[test]
fn completions_are_asked_for_a_quarter_at_a_time() {
    let asked = |for_data, ring, bytes: u32| {
        let mut slots = Slots::new(for_data, ring);
        (1..=12).filter(|n| slots.post(1, bytes, n * u64::from(bytes)).signaled).collect::<Vec<_>>()
    };
    assert_eq!(asked(16, 1 << 20, 1), [4, 8, 12], "by entries");
    assert_eq!(asked(1000, 1 << 20, 1 << 17), [2, 4, 6, 8, 10, 12], "by bytes");
    assert_eq!(asked(16, 1024, 1), (1..=12).collect::<Vec<_>>(), "a small ring needs each");
    assert_eq!(asked(12, 1224, 100), [2, 4, 6, 8, 10, 12], "all above the promised room");
}

#[test]
fn ids_survive_the_wrap_of_their_counts() {
    let mut slots = Slots::new(1 << 31, u32::MAX);
    let mut end = 0_u64;
    for _ in 0..8 {
        end += u64::from(u32::MAX);
        let ticket = slots.post(1 << 31, u32::MAX, end);
        assert!(ticket.signaled);
        assert_eq!(slots.free_for_data(), 0);
        assert!(slots.complete(ticket.id));
        assert_eq!(Slots::staged(ticket.id), end as u32);
        assert_eq!(slots.free_for_data(), 1 << 31);
    }
}

#[test]
fn a_completion_that_was_never_asked_for_changes_nothing() {
    let sizes = Setup { send_ring: 1000, send_depth: 1, ..setup(WordFormat::Immediate) };
    let mut stream = Stream::new(sizes).expect("works");
    let id = stream.next_write(usize::MAX).expect("room").ticket.id;
    for forged in [0, 1, id + (1 << 32), id.wrapping_sub(1 << 32), id + 1, u64::MAX] {
        stream.on_sent(forged);
        assert_eq!(stream.sendable(), Ok(0), "{forged:#x}");
    }
    stream.on_sent(id);
    assert_eq!(stream.sendable(), Ok(1000));
}

#[test]
fn an_iwarp_message_takes_two_entries() {
    let sizes = Setup { send_depth: 5, ..setup(WordFormat::Iwarp) };
    assert_eq!(sizes.send_queue_depth(), 7);
    let mut stream = Stream::new(sizes).expect("works");
    let messages = core::iter::from_fn(|| stream.next_write(1)).count();
    assert_eq!(messages, 2);
    let sizes = Setup { send_depth: 5, ..setup(WordFormat::Immediate) };
    let mut stream = Stream::new(sizes).expect("works");
    assert_eq!(core::iter::from_fn(|| stream.next_write(1)).count(), 5);
}

#[test]
fn setups_that_cannot_work_are_refused_with_their_numbers() {
    let good = setup(WordFormat::Iwarp);
    let base = Features::empty();
    for (sizes, error) in [
        (Setup { local_ring: 0, ..good }, SetupError::Empty { what: "local ring" }),
        (Setup { peer_ring: 0, ..good }, SetupError::Empty { what: "peer's ring" }),
        (Setup { send_ring: 0, ..good }, SetupError::Empty { what: "send ring" }),
        (Setup { max_message: 0, ..good }, SetupError::Empty { what: "longest message" }),
        (Setup { local_receives: 2, ..good }, SetupError::TooFewReceives { local: 2, peer: 16 }),
        (Setup { peer_receives: 0, ..good }, SetupError::TooFewReceives { local: 16, peer: 0 }),
        (
            Setup { local_receives: 3, peer_receives: 3, features: base, ..good },
            SetupError::NoSpareReceive { local: 3, peer: 3 },
        ),
        (Setup { send_depth: 1, ..good }, SetupError::SendDepth { depth: 1, least: 2, most: u32::MAX - 2 }),
        (
            Setup { send_depth: u32::MAX, ..good },
            SetupError::SendDepth { depth: u32::MAX, least: 2, most: u32::MAX - 2 },
        ),
    ] {
        assert_eq!(Stream::new(sizes).map(drop), Err(error));
    }
    for sizes in [
        Setup { local_receives: 3, peer_receives: 3, ..good },
        Setup { local_receives: 3, peer_receives: 4, features: base, ..good },
        Setup { local_receives: u16::MAX, peer_receives: u16::MAX, ..good },
        Setup { local_ring: 1, peer_ring: 1, send_ring: 1, max_message: 1, ..good },
        Setup { local_ring: u32::MAX, peer_ring: u32::MAX, send_ring: u32::MAX, ..good },
    ] {
        assert!(Stream::new(sizes).is_ok());
    }
}

#[test]
fn a_stream_is_small() {
    assert!(size_of::<Stream>() <= 256, "{} bytes", size_of::<Stream>());
}
