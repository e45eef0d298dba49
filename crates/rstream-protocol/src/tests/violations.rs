//! What a peer may not do, and that it changes nothing but the connection's fate.

use super::super::words::{CLOSE_BIT, END_BIT};
use super::super::{Arrival, RecvState, Setup, Stream, Violation, WordFormat};
use super::setup;

const fn write(length: u32) -> Arrival {
    Arrival::Write { immediate: 0, length }
}

const fn control(immediate: u32) -> Arrival {
    Arrival::Control { immediate }
}

/// Before the last arrival everything is allowed; the last one is refused as said.
fn assert_refused(words: WordFormat, arrivals: &[Arrival], violation: Violation) {
    let sizes = Setup { local_ring: 100, local_receives: 8, ..setup(words) };
    let mut stream = Stream::new(sizes).expect("works");
    // Something is outstanding: 30 bytes and one receive.
    stream.next_write(30).expect("there is room");
    let (last, before) = arrivals.split_last().expect("one at least");
    for arrival in before {
        stream.on_arrival(*arrival).expect("allowed");
    }
    let readable = stream.readable();
    assert_eq!(stream.on_arrival(*last), Err(violation), "{arrivals:?}");
    assert_eq!(stream.readable(), readable, "nothing is taken over");
    assert!(stream.is_over());
    let ended = before.iter().any(
        |arrival| matches!(arrival, Arrival::Control { immediate } if immediate & (END_BIT | CLOSE_BIT) != 0),
    );
    let state = if ended { RecvState::Ended } else { RecvState::Reset };
    assert_eq!(stream.receive_end(), state);
}

#[test]
fn violations_of_immediates() {
    let rows: &[(&[Arrival], Violation)] = &[
        (&[write(0)], Violation::EmptyData),
        (&[write(101)], Violation::BeyondWindow { length: 101, window: 100 }),
        (&[write(60), write(41)], Violation::BeyondWindow { length: 41, window: 40 }),
        (&[write(60), write(40), write(1)], Violation::BeyondWindow { length: 1, window: 0 }),
        (&[write(u32::MAX)], Violation::BeyondWindow { length: u32::MAX, window: 100 }),
        (&[Arrival::Write { immediate: 1, length: 1 }], Violation::UnknownBits { word: 1, unknown: 1 }),
        (&[control(0)], Violation::EmptyControl),
        (&[control(31)], Violation::ExcessBytes { freed: 31, outstanding: 30 }),
        (&[control(30), control(1)], Violation::ExcessBytes { freed: 1, outstanding: 0 }),
        (&[control(2 << 20)], Violation::ExcessReceives { freed: 2, outstanding: 1 }),
        (&[control(1 << 20 | 30), control(1 << 20)], Violation::ExcessReceives { freed: 1, outstanding: 0 }),
        (&[control(1 << 31)], Violation::UnknownBits { word: 1 << 31, unknown: 1 << 31 }),
        (&[Arrival::Word(1)], Violation::WrongForm { word: 1 }),
        (&[control(END_BIT), control(END_BIT)], Violation::EndedTwice { word: END_BIT }),
        (&[control(CLOSE_BIT), control(CLOSE_BIT)], Violation::EndedTwice { word: CLOSE_BIT }),
        (&[control(CLOSE_BIT), control(END_BIT)], Violation::EndedTwice { word: END_BIT }),
        (&[control(END_BIT), write(1)], Violation::DataAfterEnd { length: 1 }),
        (&[control(CLOSE_BIT), write(1)], Violation::DataAfterEnd { length: 1 }),
        (&[write(1); 9], Violation::NoReceive { posted: 8 }),
    ];
    for (arrivals, violation) in rows {
        assert_refused(WordFormat::Immediate, arrivals, *violation);
    }
}

#[test]
fn violations_of_words() {
    let data = |length: u32| Arrival::Word(0x8000_0000 | length);
    let rows: &[(&[Arrival], Violation)] = &[
        (&[data(0)], Violation::EmptyData),
        (&[data(101)], Violation::BeyondWindow { length: 101, window: 100 }),
        (&[data(1 << 20)], Violation::UnknownBits { word: 0x8010_0000, unknown: 1 << 20 }),
        (&[Arrival::Word(0)], Violation::EmptyControl),
        (&[Arrival::Word(31)], Violation::ExcessBytes { freed: 31, outstanding: 30 }),
        (&[write(1)], Violation::WrongForm { word: 0 }),
        (&[control(7)], Violation::WrongForm { word: 7 }),
        (&[data(1); 9], Violation::NoReceive { posted: 8 }),
    ];
    for (arrivals, violation) in rows {
        assert_refused(WordFormat::Iwarp, arrivals, *violation);
    }
}

#[test]
fn a_message_over_the_end_of_the_ring_is_refused() {
    let mut stream = Stream::new(Setup { local_ring: 100, ..setup(WordFormat::Immediate) }).expect("works");
    stream.on_arrival(write(90)).expect("allowed");
    stream.consume(90);
    stream.next_control().expect("room is returned");
    let violation = Violation::OverWrap { length: 11, index: 90, ring: 100 };
    assert_eq!(stream.on_arrival(write(11)), Err(violation));
    assert!(violation.to_string().contains("11 bytes at 90") && violation.to_string().contains("100"));
}

#[test]
fn receives_count_until_a_word_returns_them() {
    let mut stream = Stream::new(Setup { local_receives: 8, ..setup(WordFormat::Immediate) }).expect("works");
    for _ in 0..8 {
        stream.on_arrival(write(1)).expect("allowed");
    }
    let word = stream.next_control().expect("an update is due").word;
    assert_eq!(word, 8 << 20);
    stream.on_arrival(write(1)).expect("allowed again");
}

#[test]
fn bits_of_endings_are_unknown_to_a_base_peer() {
    let base = Setup { features: super::Features::empty(), ..setup(WordFormat::Immediate) };
    for word in [END_BIT, CLOSE_BIT] {
        let mut stream = Stream::new(base).expect("works");
        let violation = Violation::UnknownBits { word, unknown: word };
        assert_eq!(stream.on_arrival(control(word)), Err(violation));
    }
}
