//! Tests of the machine with recorded bytes in all splits, and of two machines joined by queues.

mod endings;
mod joined;
mod messages;
mod refusals;
mod spaced;
mod splits;
mod wire;

use std::io::IoSlice;

use iwarp_wire::mpa;

use super::*;
use crate::iwarp::region::MemoryRegion;
use crate::memory::Source;
use crate::{
    Access, Buffer, Memory, MemoryRegion as _, Operation, Payload, ProtectionDomain as _, RemoteAddress,
    Segment,
};

const SIZE: usize = 64 * 1024;
const CAPABILITIES: QpCapabilities = QpCapabilities {
    send_depth: 32,
    recv_depth: 32,
    inline: 16 * 1024,
    initiator_depth: 2,
    responder_resources: 2,
};

/// A wire that takes at most `room` bytes and stores them.
#[derive(Debug, Default)]
struct Pipe {
    bytes: Vec<u8>,
    room: usize,
    dead: bool,
    /// What is sent from memory cannot be read.
    unreadable: bool,
    calls: usize,
}

impl Pipe {
    fn endless() -> Self {
        Self { room: usize::MAX, ..Self::default() }
    }
}

impl Wire for Pipe {
    fn transmit(&mut self, pieces: &[IoSlice<'_>], _more: bool) -> Taken {
        if self.dead {
            return Taken::Dead;
        }
        self.calls += 1;
        let mut taken = 0;
        for piece in pieces {
            let count = piece.len().min(self.room);
            self.bytes.extend_from_slice(&piece[..count]);
            self.room -= count;
            taken += count;
        }
        Taken::Bytes(taken)
    }

    fn transmit_from_memory(&mut self, pieces: &[Source<'_>]) -> Taken {
        if self.unreadable {
            return Taken::Unreadable;
        }
        self.transmit(&[IoSlice::new(&copies(pieces).unwrap())], false)
    }
}

/// A machine with a region that its peer may use and one for its own buffers.
struct End {
    machine: Machine,
    domain: ProtectionDomain,
    ring: Option<MemoryRegion>,
    own: Option<MemoryRegion>,
    /// A region that the peer may invalidate.
    spare: MemoryRegion,
    pipe: Pipe,
    completions: Vec<Completion>,
    scratch: Vec<u8>,
    fault: Option<Fault>,
}

impl End {
    fn new(side: Side, crc: bool) -> Self {
        let domain = ProtectionDomain::default();
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let ring = domain.register(Memory::zeroed(SIZE).unwrap(), remote).unwrap();
        let own = domain.register(Memory::zeroed(SIZE).unwrap(), Access::LOCAL_WRITE).unwrap();
        let spare = domain.register(Memory::zeroed(1).unwrap(), remote).unwrap();
        let mut end = Self {
            spare,
            machine: Machine::new(QpId(5), &domain, CAPABILITIES, 4000),
            domain,
            ring: Some(ring),
            own: Some(own),
            pipe: Pipe::endless(),
            completions: Vec::new(),
            scratch: vec![0; SCRATCH],
            fault: None,
        };
        end.restart(side, crc);
        end
    }

    /// The same with a machine for messages.
    fn for_messages(side: Side, crc: bool) -> Self {
        let mut end = Self::new(side, crc);
        end.machine = Machine::for_messages(QpId(5), &end.domain, CAPABILITIES, 4000, None);
        end.establish(side, crc);
        end
    }

    /// A new machine of the same kind over the same memory.
    fn restart(&mut self, side: Side, crc: bool) {
        self.machine = match self.machine.is_for_messages() {
            true => Machine::for_messages(QpId(5), &self.domain, CAPABILITIES, 4000, None),
            false => Machine::new(QpId(5), &self.domain, CAPABILITIES, 4000),
        };
        self.establish(side, crc);
        self.completions.clear();
        self.pipe.bytes.clear();
        self.fault = None;
        for region in [&self.ring, &self.own].into_iter().flatten() {
            region.memory().write(0, &vec![0; SIZE]).unwrap();
        }
    }

    fn establish(&mut self, side: Side, crc: bool) {
        self.machine.establish(&Agreement {
            crc,
            initiator_depth: 2,
            responder_resources: 2,
            side,
            rtr: false,
        });
    }

    fn own(&self) -> &MemoryRegion {
        self.own.as_ref().unwrap()
    }

    fn ring(&self) -> &MemoryRegion {
        self.ring.as_ref().unwrap()
    }

    fn segment(&self, address: u64, length: u32) -> Segment {
        Segment { key: self.own().local_key(), address, length }
    }

    fn remote(&self, address: u64) -> RemoteAddress {
        RemoteAddress { key: self.ring().remote_key(), address }
    }

    /// Posts receives of `length` bytes each, one behind the other in the own region; without bytes, if the machine
    /// is for messages.
    fn receives(&mut self, count: u64, length: u32) {
        for id in 0..count {
            let buffer = match self.machine.is_for_messages() {
                true => Buffer::Empty,
                false => Buffer::Segment(self.segment(id * u64::from(length), length)),
            };
            self.machine.post_recv(&[RecvRequest { id, buffer }]).unwrap();
        }
    }

    fn post(&mut self, id: u64, operation: Operation, payload: Payload<'_>) -> Result<()> {
        let request = SendRequest { id, signaled: true, operation, payload };
        let mut port = Port { wire: &mut self.pipe, sink: &mut self.completions, scratch: &mut self.scratch };
        self.machine.post_send(&[request], false, &mut port)
    }

    /// See [`Machine::send_at_once`].
    fn send_at_once(&mut self, id: u64, operation: Operation, payload: Payload<'_>) -> bool {
        let request = SendRequest { id, signaled: true, operation, payload };
        let mut port = Port { wire: &mut self.pipe, sink: &mut self.completions, scratch: &mut self.scratch };
        self.machine.send_at_once(&request, &mut port)
    }

    fn post_bytes(&mut self, id: u64, operation: Operation, bytes: &[u8]) {
        self.post(id, operation, Payload::Inline(&[IoSlice::new(bytes)])).unwrap();
    }

    fn pump(&mut self) {
        let mut port = Port { wire: &mut self.pipe, sink: &mut self.completions, scratch: &mut self.scratch };
        if let Err(violation) = self.machine.pump(&mut port) {
            self.fault = Some(violation.into());
        }
    }

    /// Takes input as from a socket: payload straight into its place where it has one.
    fn take(&mut self, mut bytes: &[u8], straight: bool) {
        while !bytes.is_empty() && self.fault.is_none() {
            let placed = match self.machine.target() {
                Some(place) if straight => place.fill(bytes),
                _ => 0,
            };
            self.machine.placed(placed);
            bytes = &bytes[placed..];
            // A socket returns only a part of the stream after a placed payload.
            let (now, later) = bytes.split_at(bytes.len().min(if straight { 100 } else { bytes.len() }));
            if let Err(fault) = self.machine.feed(now, &mut self.completions) {
                self.fault = Some(fault);
            }
            bytes = later;
        }
        if self.fault.is_none() {
            self.pump();
        }
    }

    fn ring_bytes(&self) -> Vec<u8> {
        contents(self.ring().memory())
    }

    fn own_bytes(&self) -> Vec<u8> {
        contents(self.own().memory())
    }
}

fn contents(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

/// An FPDU with this ULPDU and a correct CRC.
fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(ulpdu);
    bytes.resize(bytes.len() + mpa::padding(ulpdu.len()), 0);
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&mpa::crc_field(crc));
    bytes
}

/// The ULPDUs of a stream of complete FPDUs.
fn ulpdus(mut stream: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some((field, rest)) = stream.split_first_chunk() {
        let (ulpdu, rest) = rest.split_at(u16::from_be_bytes(*field).into());
        found.push(ulpdu);
        stream = &rest[mpa::padding(ulpdu.len()) + mpa::CRC..];
    }
    found
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (seed..seed + length).map(|index| (index * 31 + index / 251) as u8).collect()
}

fn send(immediate: Option<u64>, invalidate: Option<u32>, solicited: bool) -> Operation {
    Operation::Send { immediate, invalidate, solicited }
}

const PLAIN: Operation = Operation::Send { immediate: None, invalidate: None, solicited: false };
