//! Bytes that no network sends: they are read to their end, without a panic and within the bound on memory.

mod wire;

use rdmacap::advertised::Advertisements;
use rdmacap::file::{Decoder, FileError, Record, Step};
use rdmacap::rpc::{Exchange, Rpc, RpcSink};
use rdmacap::rstream::{StreamSink, Streams};
use rdmacap::{Config, Figures, Operation, Session, Sink, Topic};
use wire::fixture::{ALL, frames, frames_of};
use wire::iwarp::{Plan, run};
use wire::{Dice, Frame, Seen, ipv4, read, read_with};

struct Nothing;

impl Sink for Nothing {}

/// Figures of all operations.
#[derive(Default)]
struct Sums(Figures);

impl Sink for Sums {
    fn ended(&mut self, operation: &Operation) {
        self.0.add(operation);
        let [median, longest] = [0.5, 1.0].map(|part| self.0.latency(part));
        assert!(median <= longest && self.0.rate().is_none_or(|rate| rate >= 0.0));
    }
}

impl StreamSink for Nothing {}
impl RpcSink for Nothing {
    fn exchange(&mut self, _exchange: &Exchange) {}
}

fn read_all_ways(frames: &[Frame], link: u32) {
    let memory = 1 << 16;
    let sinks: [&mut dyn Sink; 4] = [
        &mut Sums::default(),
        &mut Streams::new(Nothing, memory),
        &mut Rpc::new(Nothing, memory),
        &mut Advertisements::new(memory),
    ];
    for sink in sinks {
        let mut session = Session::new(Config { memory, ..Config::default() });
        for frame in frames {
            let Frame { time, ref bytes, original_length } = *frame;
            session.feed(&Record { time, link, original_length, bytes }, sink);
        }
        session.finish(sink);
    }
}

#[test]
fn changed_bytes_are_read_to_the_end() {
    let mut dice = Dice::new(1);
    for name in ALL {
        let all = frames(name);
        for _ in 0..12 {
            let mut changed = all.clone();
            for _ in 0..1 + dice.below(20) {
                let frame = &mut changed[dice.below(all.len() as u64) as usize];
                let at = dice.below(frame.bytes.len() as u64) as usize;
                frame.bytes[at] = dice.next() as u8;
                // Times lie as well: they run backwards, and for centuries.
                frame.time = if dice.once_in(2) { dice.next() >> dice.below(64) } else { frame.time };
            }
            read_all_ways(&changed, 1);
        }
    }
}

#[test]
fn any_bytes_behind_any_link_are_read_to_the_end() {
    let mut dice = Dice::new(2);
    for link in [0, 1, 12, 101, 108, 113, 147, 197, 228, 229, 247, 276] {
        for _ in 0..200 {
            let length = dice.below(200) as usize;
            let mut bytes: Vec<u8> = (0..length).map(|_| dice.next() as u8).collect();
            // Often enough something that goes further.
            if dice.once_in(2) && length > 60 {
                bytes[12..14].copy_from_slice(&[8, 0]);
                bytes[14] = 0x45;
                bytes[23] = if dice.once_in(2) { 6 } else { 17 };
                bytes[20..22].fill(0);
                bytes[36..38].copy_from_slice(&4791_u16.to_be_bytes());
            }
            read_all_ways(&[Frame { time: 0, original_length: length as u32, bytes }], link);
        }
    }
}

#[test]
fn every_prefix_of_a_file_is_a_file_or_says_what_it_needs() {
    let file = std::fs::read(wire::fixture::path("siw-terminate")).expect("a file");
    for length in 0..file.len() {
        let (mut decoder, mut at) = (Decoder::new(), 0);
        while let Step::Took(taken, _) = decoder.step(&file[at..length]).expect("a capture so far") {
            at += taken;
        }
        assert!(at <= length);
    }
}

#[test]
fn both_formats_and_both_orders_of_bytes_are_read() {
    let all = frames("rxe-headers");
    let little = wire::pcap(&all);
    assert_eq!(frames_of(&little), all);
    // The header's fields and each record's four are words or half words.
    let mut big = little.clone();
    big[..4].reverse();
    big[4..6].reverse();
    big[6..8].reverse();
    for at in [8, 12, 16, 20] {
        big[at..at + 4].reverse();
    }
    let mut at = 24;
    for frame in &all {
        for field in 0..4 {
            big[at + 4 * field..at + 4 * field + 4].reverse();
        }
        at += 16 + frame.bytes.len();
    }
    assert_eq!(frames_of(&big), all);
}

#[test]
fn lengths_that_lie_are_refused() {
    let mut file = wire::pcap(&frames("rxe-headers"));
    file[24 + 8..24 + 12].fill(0xff);
    let mut decoder = Decoder::new();
    assert_eq!(decoder.step(&file), Ok(Step::Took(24, None)));
    assert_eq!(decoder.step(&file[24..]), Err(FileError::Length { length: 0xffff_ffff + 16 }));
    assert_eq!(Decoder::new().step(b"not a capture"), Err(FileError::Magic(0x20746f6e)));
    // A block shorter than itself, and a packet longer than its block.
    let section: Vec<u8> = [0x0a0d_0d0a_u32, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    for block in [vec![6_u32, 8, 8], vec![6, 36, 0, 0, 0, 100, 100, 0, 36], vec![1, 16, 1, 16]] {
        let rest: Vec<u8> = block.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut decoder = Decoder::new();
        assert_eq!(decoder.step(&section), Ok(Step::Took(0, None)));
        assert_eq!(decoder.step(&section), Ok(Step::Took(28, None)));
        assert!(decoder.step(&rest).is_err(), "{block:?}");
    }
}

#[test]
fn half_open_connections_are_given_up() {
    let config = Config { connections: 1000, ..Config::default() };
    let (mut session, mut seen) = (Session::new(config), Seen::default());
    let mut feed = |bytes: Vec<u8>, time: u64| {
        let original_length = bytes.len() as u32;
        session.feed(&Record { time, link: 1, original_length, bytes: &bytes }, &mut seen);
    };
    for at in 0..200_000_u64 {
        // A request of MPA that nobody answers, from another port and host each time.
        let mut tcp = (at as u16).to_be_bytes().to_vec();
        tcp.extend(7174_u16.to_be_bytes());
        tcp.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0, 0, 0, 0, 0, 0]);
        let mut frame = ipv4(at, 1, 2, 6, &tcp).bytes;
        frame[27..30].copy_from_slice(&(at as u32).to_be_bytes()[1..]);
        feed(frame.clone(), at);
        frame[14 + 20 + 13] = 0x10;
        frame[14 + 20 + 7] = 1;
        frame.extend(b"MPA ID Req Frame");
        frame[17] += 16;
        feed(frame, at);
    }
    session.finish(&mut seen);
    assert!(seen.has(Topic::GaveUp));
    assert!(seen.connections.is_empty());
}

#[test]
fn what_waits_for_others_is_bounded() {
    let plan = Plan {
        seed: 1,
        operations: 400,
        checksums: false,
        markers: false,
        mulpdu: 60_000,
        mss: 1448,
        aligned: true,
    };
    let (segments, _) = run(&plan);
    // One segment is missing and nothing is acknowledged: all the rest would wait for it.
    let mut frames: Vec<Frame> = segments
        .iter()
        .filter(|segment| segment.carries.is_some())
        .map(|segment| segment.frame.clone())
        .collect();
    frames.remove(8);
    let seen = read_with(Config { memory: 1 << 18, ..Config::default() }, &frames);
    assert!(seen.operations.len() > 100, "{}", seen.operations.len());
    // With memory enough the same, and more of it.
    assert!(read(&frames).operations.len() >= seen.operations.len());
}
