//! rstream's protocol over generated packets: streams are read back, and each breach is told in its words.

mod wire;

use iwarp_wire::rdmap::Opcode;
use rdmacap::file::Record;
use rdmacap::rstream::{Agreed, StreamSink, Streams, Told};
use rdmacap::{Config, Finding, Session, Side, Topic};
use rstream_protocol::{Extension, Features, Offer, WordFormat};
use wire::Frame;
use wire::iwarp::{Plan, Wire};

const PLAN: Plan =
    Plan { seed: 0, operations: 0, checksums: true, markers: false, mulpdu: 1400, mss: 1448, aligned: true };
const RING: u32 = 256;
/// Key of the rings; each side's is at its own address.
const KEY: u32 = 0x77;
const ADDRESSES: [u64; 2] = [0x10_0000, 0x20_0000];

#[derive(Default)]
struct Found {
    agreed: Option<Agreed>,
    streams: [Vec<u8>; 2],
    told: [Told; 2],
    findings: Vec<Finding>,
}

impl StreamSink for Found {
    fn opened(&mut self, _connection: u32, agreed: &Agreed) {
        self.agreed = Some(*agreed);
    }

    fn data(&mut self, _connection: u32, from: Side, offset: u64, bytes: &[u8]) {
        assert_eq!(offset, self.streams[from as usize].len() as u64);
        self.streams[from as usize].extend_from_slice(bytes);
    }

    fn told(&mut self, _connection: u32, from: Side, told: &Told) {
        self.told[from as usize] = *told;
    }

    fn finding(&mut self, finding: &Finding) {
        self.findings.push(finding.clone());
    }
}

/// A connection with iWARP words, on which `talk` happens.
fn read(talk: impl FnOnce(&mut Wire)) -> Found {
    let offers = ADDRESSES.map(|ring_address| {
        let features = Features::END_OF_STREAM | Features::SHORT_DATA;
        let extension = Extension { features, user_data: b"", rendezvous: b"" };
        let offer = Offer {
            ring_address,
            ring_key: KEY.into(),
            ring_size: RING,
            receives: 4,
            extension: Some(extension),
        };
        offer.encode().expect("an offer")
    });
    let mut wire = Wire::new(PLAN);
    wire.open([&offers[0], &offers[1]]);
    talk(&mut wire);
    wire.acknowledge(0);
    wire.acknowledge(1);
    wire.close();
    let mut streams = Streams::new(Found::default(), 1 << 20);
    let mut session = Session::new(Config::default());
    for segment in wire.frames {
        let Frame { time, bytes, original_length } = segment.frame;
        session.feed(&Record { time, link: 1, original_length, bytes: &bytes }, &mut streams);
    }
    session.finish(&mut streams);
    streams.sink
}

/// A data message: a write into the other side's ring, and its word.
fn data(wire: &mut Wire, from: usize, index: u64, bytes: &[u8]) {
    wire.write(from, KEY, ADDRESSES[1 - from] + index, bytes);
    word(wire, from, 1 << 31 | bytes.len() as u32);
}

fn word(wire: &mut Wire, from: usize, word: u32) {
    wire.untagged(from, Opcode::Send, 0, &word.to_le_bytes());
}

/// A control word: bytes and receives freed.
fn freed(bytes: u32, receives: u32) -> u32 {
    bytes | receives << 20
}

const END: u32 = 1 << 29;
const CLOSE: u32 = 1 << 30;

#[test]
fn both_streams_are_read_back() {
    let found = read(|wire| {
        data(wire, 0, 0, &[1; 200]);
        word(wire, 1, freed(200, 1));
        // The rest of the ring, and its beginning.
        data(wire, 0, 200, &[2; 56]);
        data(wire, 0, 0, &[3; 10]);
        // Short data behind its word.
        wire.untagged(1, Opcode::Send, 0, &[&(1_u32 << 31 | 5).to_le_bytes()[..], b"short"].concat());
        word(wire, 0, END | freed(5, 2));
        word(wire, 1, CLOSE | freed(66, 3));
    });
    assert_eq!(found.findings, []);
    assert_eq!(found.agreed.expect("both offers").words, WordFormat::Iwarp);
    assert_eq!(found.streams[0], [vec![1; 200], vec![2; 56], vec![3; 10]].concat());
    assert_eq!(found.streams[1], b"short");
    assert_eq!(found.told[0], Told { bytes: 266, messages: 3, updates: 1, end: true, close: false });
    assert!(found.told[1].close);
}

#[test]
fn each_breach_is_told_in_the_words_of_the_protocol() {
    type Talk = fn(&mut Wire);
    let cases: [(Talk, &str); 10] = [
        (|wire| word(wire, 0, 0), "an empty control word"),
        (|wire| word(wire, 1, 1 << 31 | 1 << 25), "unknown bits"),
        (|wire| word(wire, 0, freed(1, 0)), "1 bytes freed with 0 outstanding"),
        (|wire| word(wire, 0, freed(0, 1)), "1 receives returned with 0 outstanding"),
        (
            |wire| (0..5).for_each(|at| data(wire, 0, 4 * at, &[1; 4])),
            "without a receive: all 4 granted are used",
        ),
        (|wire| data(wire, 0, 0, &[1; 300]), "300 bytes with 256 bytes granted"),
        (
            |wire| {
                data(wire, 0, 0, &[1; 200]);
                word(wire, 1, freed(200, 1));
                data(wire, 0, 200, &[1; 100]);
            },
            "100 bytes at 200 crosses the end of a ring of 256",
        ),
        (
            |wire| {
                word(wire, 0, END);
                data(wire, 0, 0, &[1; 4]);
            },
            "4 bytes after the end",
        ),
        (
            |wire| {
                word(wire, 0, END);
                word(wire, 0, END);
            },
            "ends what had ended before",
        ),
        (
            |wire| {
                wire.untagged(0, Opcode::Send, 0, &[5, 0, 0, 0x80, 1, 2, 3]);
            },
            "3 bytes behind word 0x80000005",
        ),
    ];
    for (talk, text) in cases {
        let found = read(talk);
        assert_eq!(found.findings.len(), 1, "{text}: {:?}", found.findings);
        assert_eq!(found.findings[0].topic, Topic::UpperLayer);
        assert!(found.findings[0].text.contains(text), "{text}: {}", found.findings[0].text);
    }
}
