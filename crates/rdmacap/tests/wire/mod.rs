//! Frames made by hand: what tests feed a session with, and what the session says.
#![allow(dead_code, reason = "each test uses some of it")]

pub(crate) mod fixture;
pub(crate) mod infiniband;
pub(crate) mod iwarp;
pub(crate) mod links;
pub(crate) mod meant;

use std::collections::HashMap;

use rdmacap::file::Record;
use rdmacap::{Config, Connection, Finding, Operation, Placement, Ranges, Region, Session, Sink, Topic};

/// Numbers from a seed.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    /// Whether one of `times` cases is this.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A captured frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) time: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) original_length: u32,
}

impl Frame {
    pub(crate) fn cut(&self, snaplen: usize) -> Self {
        let bytes = self.bytes[..self.bytes.len().min(snaplen)].to_vec();
        Self { bytes, ..*self }
    }
}

/// A frame of an Ethernet link with this IPv4 packet's payload.
pub(crate) fn ipv4(time: u64, from: u8, to: u8, protocol: u8, payload: &[u8]) -> Frame {
    let mut bytes = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0];
    let total = (20 + payload.len()) as u16;
    bytes.extend([0x45, 0]);
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 1, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
    let sum: u32 =
        bytes[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    bytes[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    bytes.extend(payload);
    Frame { time, original_length: bytes.len() as u32, bytes }
}

/// A pcap file.
pub(crate) fn pcap(frames: &[Frame]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(0xa1b2_3c4d_u32.to_le_bytes());
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
    for frame in frames {
        for field in [
            (frame.time / 1_000_000_000) as u32,
            (frame.time % 1_000_000_000) as u32,
            frame.bytes.len() as u32,
            frame.original_length,
        ] {
            file.extend(field.to_le_bytes());
        }
        file.extend(&frame.bytes);
    }
    file
}

/// Everything that a session said.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) connections: Vec<Connection>,
    pub(crate) sent: Vec<u64>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) regions: Vec<Region>,
    pub(crate) closed: Vec<u32>,
    /// Bytes of each operation, and which of them are there.
    pub(crate) contents: HashMap<u64, (Vec<u8>, Ranges)>,
    pub(crate) placements: Vec<Placement>,
}

impl Seen {
    pub(crate) fn has(&self, topic: Topic) -> bool {
        self.findings.iter().any(|finding| finding.topic == topic)
    }

    /// Which bytes of an operation are there.
    pub(crate) fn there(&self, operation: u64) -> Ranges {
        self.contents.get(&operation).map(|content| content.1.clone()).unwrap_or_default()
    }

    /// The bytes of an operation, all of which are there.
    pub(crate) fn content(&self, operation: u64, length: u64) -> Option<&[u8]> {
        if length == 0 {
            return Some(&[]);
        }
        let (bytes, there) = self.contents.get(&operation)?;
        there.contains(0, length).then_some(bytes)
    }

    /// Whether the bytes that are there are those of `meant`.
    pub(crate) fn agrees(&self, operation: u64, meant: &[u8]) -> bool {
        self.contents.get(&operation).is_none_or(|(bytes, there)| {
            there.iter().all(|(start, end)| {
                let range = start as usize..end as usize;
                meant.get(range.clone()) == Some(&bytes[range])
            })
        })
    }

    /// Whose bytes these are: a whole word of them says so.
    pub(crate) fn owner(&self, operation: u64) -> Option<u32> {
        let (bytes, there) = self.contents.get(&operation)?;
        there.iter().find_map(|(start, end)| {
            let word = start.next_multiple_of(8);
            (word + 8 <= end)
                .then(|| u32::from_be_bytes(*bytes[word as usize..].first_chunk().expect("a word")))
        })
    }
}

impl Sink for Seen {
    fn connection(&mut self, connection: &Connection) {
        self.connections.push(connection.clone());
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        self.placements.push(*placement);
        // What a read fills is the same bytes once more.
        if placement.memory.is_some_and(|(_, access)| access == rdmacap::Access::Filled) {
            return;
        }
        let (known, there) = self.contents.entry(placement.operation).or_default();
        let (start, end) = (placement.offset, placement.offset + bytes.len() as u64);
        assert!(there.insert(start, end), "a byte comes once");
        known.resize(known.len().max(end as usize), 0);
        known[start as usize..end as usize].copy_from_slice(bytes);
    }

    fn sent(&mut self, operation: &Operation) {
        assert!(!self.sent.contains(&operation.id), "sent once");
        self.sent.push(operation.id);
    }

    fn ended(&mut self, operation: &Operation) {
        assert!(self.sent.contains(&operation.id), "sent before it ended");
        assert!(self.operations.iter().all(|known| known.id != operation.id), "ended once");
        self.operations.push(operation.clone());
    }

    fn region(&mut self, region: &Region) {
        self.regions.push(*region);
    }

    fn finding(&mut self, finding: &Finding) {
        self.findings.push(finding.clone());
    }

    fn closed(&mut self, connection: u32) {
        self.closed.push(connection);
    }
}

/// Has a session read these frames.
pub(crate) fn read(frames: &[Frame]) -> Seen {
    read_with(Config::default(), frames)
}

pub(crate) fn read_with(config: Config, frames: &[Frame]) -> Seen {
    let mut seen = Seen::default();
    let mut session = Session::new(config);
    for frame in frames {
        let Frame { time, ref bytes, original_length } = *frame;
        session.feed(&Record { time, link: 1, original_length, bytes }, &mut seen);
    }
    session.finish(&mut seen);
    assert_eq!(seen.sent.len(), seen.operations.len());
    seen
}

/// The payload of an operation: words that say whose they are and where.
pub(crate) fn payload(operation: u32, length: usize) -> Vec<u8> {
    let words = (0..).flat_map(|word: u32| (u64::from(operation) << 32 | u64::from(word)).to_be_bytes());
    words.take(length).collect()
}
