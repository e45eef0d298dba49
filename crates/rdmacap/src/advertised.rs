//! Where keys come from: a host that lets others use its memory says so in a send or in the private data of a
//! connection, and there the key stands beside the address, in whatever protocol.
//!
//! [`Advertisements`] is a [`Sink`] that keeps the latest messages of all hosts. Where a region is used for
//! the first time, it looks for the key in them.

mod message;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use crate::assemble::Assembler;
use crate::operation::{Connection, Kind, Operation, Placement, Sink, Target};

/// Where a key was advertised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// The frame with the end of the message; of private data that of the request for the connection.
    pub frame: u64,
    /// Whether the message is the private data of a connection.
    pub private_data: bool,
    /// Where in the message the key is.
    pub byte: usize,
    /// What the message is, where its form tells.
    pub message: Option<String>,
}

/// Bytes of a message that are searched, and most bytes and messages that are for a region.
const LONGEST: usize = 4 << 10;
const SEARCHED: usize = 64 << 10;
const MOST_MESSAGES: usize = 1 << 10;
/// What a message takes beside its bytes, and a region.
const MESSAGE: usize = 96;
const REGION: usize = 160;
/// Smallest key that is told from other numbers.
const SMALLEST_KEY: u32 = 0x100;
/// How far behind the address that was advertised the one that is used may be.
const FARTHEST: u64 = 1 << 31;

/// What a host said.
#[derive(Debug)]
struct Said {
    host: IpAddr,
    connection: u32,
    frame: u64,
    private_data: bool,
    bytes: Vec<u8>,
}

/// Finds where the regions of a capture were advertised.
#[derive(Debug)]
pub struct Advertisements {
    hosts: HashMap<u32, [IpAddr; 2]>,
    contents: Assembler,
    said: VecDeque<Said>,
    /// Bytes that `said` may still take.
    left: usize,
    /// What was found for the latest regions, in two generations.
    found: [HashMap<u32, Option<Advertised>>; 2],
    most: usize,
}

impl Advertisements {
    /// Holds at most `memory` bytes.
    #[must_use]
    pub fn new(memory: usize) -> Self {
        Self {
            hosts: HashMap::new(),
            contents: Assembler::new(memory / 2),
            said: VecDeque::new(),
            left: memory / 4,
            found: Default::default(),
            most: memory / 4 / REGION / 2,
        }
    }

    /// Where the key of a region was advertised, from the view of the operation that used it first.
    #[must_use]
    pub fn of(&self, region: u32) -> Option<&Advertised> {
        self.found.iter().find_map(|found| found.get(&region)?.as_ref())
    }

    fn say(&mut self, host: IpAddr, connection: u32, frame: u64, private_data: bool, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(LONGEST)];
        while self.left < MESSAGE + bytes.len() {
            let Some(oldest) = self.said.pop_front() else { return };
            self.left += MESSAGE + oldest.bytes.len();
        }
        self.left -= MESSAGE + bytes.len();
        self.said.push_back(Said { host, connection, frame, private_data, bytes: bytes.to_vec() });
    }

    /// Looks for a key in the latest messages of its owner, those of the same connection first.
    fn search(&self, connection: u32, owner: IpAddr, target: &Target) -> Option<Advertised> {
        let mut left = SEARCHED;
        let mut latest = |same: bool| {
            let theirs = |said: &&Said| said.host == owner && (said.connection == connection) == same;
            self.said.iter().rev().take(MOST_MESSAGES).filter(theirs).find_map(|said| {
                left = left.checked_sub(said.bytes.len())?;
                let byte = find(&said.bytes, target)?;
                let &Said { frame, private_data, .. } = said;
                let message = message::name(&said.bytes, byte, target.key);
                Some(Advertised { frame, private_data, byte, message })
            })
        };
        (target.key >= SMALLEST_KEY).then(|| latest(true).or_else(|| latest(false)))?
    }
}

impl Sink for Advertisements {
    fn connection(&mut self, connection: &Connection) {
        let hosts = connection.ends.map(|end| end.host);
        self.hosts.insert(connection.id, hosts);
        for (host, data) in hosts.into_iter().zip(&connection.private_data) {
            if let Some(data) = data {
                self.say(host, connection.id, connection.frame, true, data);
            }
        }
    }

    fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        if placement.memory.is_none() && placement.offset < LONGEST as u64 {
            self.contents.bytes(placement, bytes);
        }
    }

    fn sent(&mut self, operation: &Operation) {
        let Some(hosts) = self.hosts.get(&operation.connection).copied() else { return };
        let &Operation { connection, from, .. } = operation;
        if operation.kind == Kind::Send {
            let content = self.contents.take(operation.id);
            self.say(hosts[from as usize], connection, operation.frames.1, false, content.start());
        }
        let Some(target) = operation.target else { return };
        if self.found.iter().any(|found| found.contains_key(&target.region)) {
            return;
        }
        let found = self.search(connection, hosts[from.other() as usize], &target);
        if self.found[0].len() >= self.most {
            self.found[1] = std::mem::take(&mut self.found[0]);
        }
        self.found[0].insert(target.region, found);
    }

    fn ended(&mut self, operation: &Operation) {
        self.contents.take(operation.id);
    }

    fn closed(&mut self, connection: u32) {
        self.hosts.remove(&connection);
    }
}

/// Where in a message a key stands beside an address that the target may be behind.
fn find(bytes: &[u8], target: &Target) -> Option<usize> {
    let orders = [target.key.to_be_bytes(), target.key.to_le_bytes()];
    let is_address = |at: usize, big: bool| {
        let Some(field) = bytes.get(at..).and_then(|rest| rest.first_chunk().copied()) else { return false };
        let address = if big { u64::from_be_bytes(field) } else { u64::from_le_bytes(field) };
        // Addresses from 0 on are those of a region that counts from its start.
        let is_offset = address >> 12 == 0;
        target.address.wrapping_sub(address) < FARTHEST && (!is_offset || target.address < FARTHEST)
    };
    bytes.windows(4).enumerate().find_map(|(key, field)| {
        let big = orders.iter().position(|order| order == field)? == 0;
        // In front of the key, perhaps with a length of three or four bytes in between; or behind it.
        let before = [8, 11, 12].into_iter().filter_map(|before| key.checked_sub(before));
        let behind = [4, 8].map(|behind| key + behind);
        before.chain(behind).any(|at| is_address(at, big)).then_some(key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_beside_its_address() {
        let target = |address| Target { key: 0x0011_2233, address, region: 1 };
        let address = 0x7f00_1234_5678_u64;
        let (big, little) = (0x0011_2233_u32.to_be_bytes(), 0x0011_2233_u32.to_le_bytes());
        let (high, low) = (address.to_be_bytes(), address.to_le_bytes());
        for (bytes, at) in [
            // rping; SMB Direct; NVMe; iSER; RPC-over-RDMA.
            ([&high[..], &big, &[0, 0, 7, 0]].concat(), 8),
            ([&[9], &low[..], &little, &[0, 7]].concat(), 9),
            ([&[1], &low[..], &[0, 2, 0], &little, &[0x40]].concat(), 12),
            ([&[0x18, 0, 0, 0], &big[..], &high].concat(), 4),
            ([&big[..], &[0, 0, 1, 0], &high].concat(), 0),
        ] {
            for behind in [0, 1, 1 << 20] {
                assert_eq!(find(&bytes, &target(address + behind)), Some(at), "{bytes:x?}");
            }
            // Before what was advertised, far behind it, and of another key.
            assert_eq!(find(&bytes, &target(address - 1)), None);
            assert_eq!(find(&bytes, &target(address + FARTHEST)), None);
            assert_eq!(find(&bytes, &Target { key: 0x0011_2234, ..target(address) }), None);
            for length in 0..12 {
                assert_eq!(find(&bytes[..length], &target(address)), None);
            }
        }
        // Addresses that count from the region's start, and a key of the other order.
        assert_eq!(find(&[&[0; 8], &big[..]].concat(), &target(5)), Some(8));
        assert_eq!(find(&[&[0; 8], &big[..]].concat(), &target(address)), None);
        assert_eq!(find(&[&high[..], &little].concat(), &target(address)), None);
    }
}
