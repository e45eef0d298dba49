//! Data that comes in the send of its word.

use super::super::{SHORT_DATA_MOST, Violation};
use super::{Arrival, Features, Setup, Stream, WordFormat, setup};

/// A stream whose peer may send short data along with its word.
fn agreed() -> Stream {
    let features = Features::END_OF_STREAM | Features::SHORT_DATA;
    Stream::new(Setup { features, local_ring: 100, ..setup(WordFormat::Iwarp) }).expect("works")
}

fn arrival(length: u32) -> Arrival {
    Arrival::WordWithData { word: WordFormat::Iwarp.data_word(length), length }
}

#[test]
fn only_short_data_may_join_its_word_where_that_was_agreed() {
    let with = |words, features| Stream::new(Setup { features, ..setup(words) }).expect("works");
    let cases = [
        (WordFormat::Iwarp, Features::SHORT_DATA, SHORT_DATA_MOST, true),
        (WordFormat::Iwarp, Features::SHORT_DATA, SHORT_DATA_MOST + 1, false),
        (WordFormat::Iwarp, Features::END_OF_STREAM, 1, false),
        (WordFormat::Immediate, Features::all(), 1, false),
    ];
    for (words, features, length, joins) in cases {
        let message = with(words, features).next_write(length as usize).expect("there is room");
        assert_eq!((message.length, message.may_join_word), (length, joins), "{words:?} {features:?}");
    }
}

#[test]
fn it_lands_where_a_write_would() {
    let mut stream = agreed();
    let steps = [(30, 0, true), (20, 30, false), (50, 50, true), (10, 0, true)];
    for (length, landing, joined) in steps {
        assert_eq!(stream.landing(), landing);
        let written = Arrival::Word(WordFormat::Iwarp.data_word(length));
        stream.on_arrival(if joined { arrival(length) } else { written }).expect("allowed");
        let span = stream.span(0, usize::MAX);
        assert_eq!((span.offset, span.length), (landing, length));
        stream.consume(length as usize);
        while stream.next_control().is_some() {}
    }
    assert_eq!(stream.traffic().data_received, 4);
}

#[test]
fn what_a_write_may_not_do_it_may_not() {
    let word = WordFormat::Iwarp.data_word(7);
    let control = 7 << 20;
    let rows = [
        (vec![arrival(101)], Violation::BeyondWindow { length: 101, window: 100 }),
        (vec![arrival(60), arrival(41)], Violation::BeyondWindow { length: 41, window: 40 }),
        (vec![arrival(0)], Violation::EmptyData),
        (vec![Arrival::WordWithData { word, length: 8 }], Violation::NotItsData { word, length: 8 }),
        (
            vec![Arrival::WordWithData { word: control, length: 7 }],
            Violation::NotItsData { word: control, length: 7 },
        ),
    ];
    for (arrivals, violation) in rows {
        let mut stream = agreed();
        let (last, before) = arrivals.split_last().expect("one at least");
        before.iter().for_each(|arrival| stream.on_arrival(*arrival).expect("allowed"));
        assert_eq!(stream.on_arrival(*last), Err(violation));
        assert!(stream.is_over());
    }
}

#[test]
fn it_is_refused_where_it_was_not_agreed() {
    for words in [WordFormat::Iwarp, WordFormat::Immediate] {
        let mut stream = Stream::new(setup(words)).expect("works");
        let Arrival::WordWithData { word, .. } = arrival(7) else { unreachable!() };
        assert_eq!(stream.on_arrival(arrival(7)), Err(Violation::WrongForm { word }));
    }
}
