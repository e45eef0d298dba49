//! A list of operations on two joined machines, one of which may also get bytes from nowhere.
//!
//! While nothing wrong has been put in, neither machine may find fault with the other, messages
//! arrive in order, and bytes lie where they were written. After something wrong a machine may stop
//! with a fault, and goes on to be asked for everything that a socket part would ask for.

#![no_main]

use std::io::IoSlice;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rstream_fi::verbs::iwarp::machine::{Agreement, Fault, Machine, Port, SCRATCH, Side, Taken, Wire};
use rstream_fi::verbs::iwarp::{MemoryRegion, ProtectionDomain};
use rstream_fi::verbs::{
    Access, Completion, CompletionStatus, Memory, MemoryRegion as _, Operation, Payload, ProtectionDomain as _,
    QpCapabilities, QpNumber, RecvRequest, RemoteAddress, Segment, SendRequest,
};

const SIZE: usize = 8192;

#[derive(Debug, Arbitrary)]
struct Input {
    crc: bool,
    /// Most payload of a segment.
    segment: u8,
    operations: Vec<Step>,
}

#[derive(Debug, Arbitrary)]
struct Step {
    /// Which of the two machines.
    second: bool,
    action: Action,
}

#[derive(Debug, Arbitrary)]
enum Action {
    Receive { length: u16 },
    Write { address: u16, length: u16, immediate: Option<u32>, streamed: bool, more: bool },
    Send { length: u16, immediate: Option<u32>, give_up: bool, streamed: bool, more: bool },
    Read { address: u16, length: u16 },
    /// Lets the wire take so many bytes more.
    Room { bytes: u16 },
    /// Brings so many bytes to the machine, straight to their place or not.
    Carry { bytes: u16, straight: bool },
    /// Brings bytes from nowhere.
    Inject { bytes: Vec<u8> },
    /// The same as FPDUs around them, with a key that is good.
    Frame { header: [u8; 18], tagged: bool, payload: Vec<u8> },
    /// Drops the region that the peer may use.
    Deregister,
    Die,
}

#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    room: usize,
    dead: bool,
}

impl Wire for Pipe {
    fn transmit(&mut self, pieces: &[IoSlice<'_>], _more: bool) -> Taken {
        if self.dead {
            return Taken::Dead;
        }
        let mut taken = 0;
        for piece in pieces {
            let count = piece.len().min(self.room);
            self.bytes.extend_from_slice(&piece[..count]);
            self.room -= count;
            taken += count;
        }
        Taken::Bytes(taken)
    }
}

struct End {
    machine: Machine,
    ring: Option<MemoryRegion>,
    own: MemoryRegion,
    pipe: Pipe,
    completions: Vec<Completion>,
    posted: usize,
    fault: Option<Fault>,
}

impl End {
    fn new(side: Side, input: &Input) -> Self {
        let domain = ProtectionDomain::default();
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let capabilities = QpCapabilities {
            send_depth: 8,
            recv_depth: 8,
            inline: 4096,
            initiator_depth: 2,
            responder_resources: 2,
        };
        let mut machine =
            Machine::new(QpNumber(1), &domain, capabilities, usize::from(input.segment) * 16 + 1);
        machine.establish(&Agreement { crc: input.crc, initiator_depth: 2, responder_resources: 2, side, rtr: false });
        Self {
            machine,
            ring: Some(domain.register(Memory::zeroed(SIZE).unwrap(), remote).unwrap()),
            own: domain.register(Memory::zeroed(SIZE).unwrap(), Access::LOCAL_WRITE).unwrap(),
            pipe: Pipe::default(),
            completions: Vec::new(),
            posted: 0,
            fault: None,
        }
    }

    fn key(&self) -> u32 {
        self.ring.as_ref().map_or(0, |ring| ring.remote_key())
    }

    fn segment(&self, address: u16, length: u16) -> Segment {
        let address = u64::from(address) % SIZE as u64;
        let length = u32::from(length).min((SIZE as u64 - address) as u32);
        Segment { key: self.own.local_key(), address, length }
    }

    fn post(&mut self, operation: Operation, payload: Payload<'_>, more: bool, scratch: &mut [u8]) {
        let request = SendRequest { id: 1, signaled: true, operation, payload };
        let mut port = Port { wire: &mut self.pipe, sink: &mut self.completions, scratch };
        if self.machine.post_send(&[request], more, &mut port).is_ok() {
            self.posted += 1;
        }
    }

    /// What a socket part does with bytes.
    fn take(&mut self, mut bytes: &[u8], straight: bool, scratch: &mut [u8]) {
        while !bytes.is_empty() && self.fault.is_none() {
            let placed = match self.machine.target() {
                Some(place) if straight => {
                    assert!(place.length > 0);
                    let count = place.length.min(bytes.len());
                    place.memory.write(place.offset, &bytes[..count]).expect("a target within its region");
                    count
                }
                _ => 0,
            };
            self.machine.placed(placed);
            let (now, later) = bytes[placed..].split_at((bytes.len() - placed).min(64));
            self.fault = self.machine.feed(now, &mut self.completions).err();
            bytes = later;
        }
        self.pump(scratch);
    }

    fn pump(&mut self, scratch: &mut [u8]) {
        if self.fault.is_none() {
            let mut port = Port { wire: &mut self.pipe, sink: &mut self.completions, scratch };
            self.fault = self.machine.pump(&mut port).err().map(Fault::from);
        }
    }

    fn finish(&mut self) {
        if let Some(Fault::Violation(violation)) = &self.fault {
            assert!(!violation.to_string().is_empty());
            self.machine.terminate(violation.terminate(), &mut self.pipe);
        }
        let _ = self.machine.is_between_messages();
        self.machine.flush(self.fault.as_ref(), &mut self.completions);
        assert!(self.machine.is_drained());
        self.machine.relax();
    }
}

fuzz_target!(|input: Input| {
    let mut scratch = vec![0; SCRATCH];
    let mut ends = [End::new(Side::Active, &input), End::new(Side::Passive, &input)];
    let mut honest = true;
    let bytes = vec![0xa5; SIZE];
    for step in &input.operations {
        let other_key = ends[usize::from(!step.second)].key();
        let there = std::mem::take(&mut ends[usize::from(!step.second)].pipe.bytes);
        let mut carried = 0;
        let end = &mut ends[usize::from(step.second)];
        match &step.action {
            Action::Receive { length } => {
                let buffer = Some(end.segment(*length, *length));
                let _ = end.machine.post_recv(&[RecvRequest { id: 2, buffer }]);
            }
            Action::Write { address, length, immediate, streamed, more } => {
                // Within the peer's region, or the peer is right to complain.
                honest &= usize::from(*address) + usize::from(*length) <= SIZE && other_key != 0;
                // Immediate data needs a receive that this side cannot know of.
                honest &= immediate.is_none();
                let remote = RemoteAddress { key: other_key, address: u64::from(*address) };
                let operation = Operation::Write { remote, immediate: *immediate };
                post(end, operation, *length, *streamed, *more, &bytes, &mut scratch);
            }
            Action::Send { length, immediate, give_up, streamed, more } => {
                honest = false;
                let invalidate = give_up.then_some(other_key);
                let operation = Operation::Send { immediate: *immediate, invalidate, solicited: *more };
                post(end, operation, *length, *streamed, *more, &bytes, &mut scratch);
            }
            Action::Read { address, length } => {
                honest &= usize::from(*address) + usize::from(*length) <= SIZE && other_key != 0;
                let sink = [end.segment(*address / 2, *length)];
                let remote = RemoteAddress { key: other_key, address: u64::from(*address) };
                end.post(Operation::Read { remote }, Payload::Segments(&sink), false, &mut scratch);
            }
            Action::Room { bytes } => {
                end.pipe.room += usize::from(*bytes);
                end.pump(&mut scratch);
            }
            Action::Carry { bytes, straight } => {
                carried = usize::from(*bytes).min(there.len());
                end.take(&there[..carried], *straight, &mut scratch);
            }
            Action::Inject { bytes } => {
                honest = false;
                end.take(bytes, true, &mut scratch);
            }
            Action::Frame { header, tagged, payload } => {
                honest = false;
                let fpdu = frame(*header, *tagged, payload, end.key());
                end.take(&fpdu, true, &mut scratch);
            }
            Action::Deregister => {
                honest = false;
                end.ring = None;
            }
            Action::Die => {
                honest = false;
                end.pipe.dead = true;
            }
        }
        ends[usize::from(!step.second)].pipe.bytes.splice(..0, there[carried..].iter().copied());
        if honest {
            assert!(ends.iter().all(|end| end.fault.is_none()), "{:?} {:?}", ends[0].fault, ends[1].fault);
        }
    }
    for end in &mut ends {
        end.finish();
        if honest {
            assert!(end.completions.iter().all(|done| done.status != CompletionStatus::LocalError));
        }
    }
});

fn post(
    end: &mut End,
    operation: Operation,
    length: u16,
    streamed: bool,
    more: bool,
    bytes: &[u8],
    scratch: &mut [u8],
) {
    let length = usize::from(length).min(SIZE);
    let slices = [IoSlice::new(&bytes[..length / 3]), IoSlice::new(&bytes[length / 3..length])];
    let segments = [end.segment(0, (length / 2) as u16), end.segment(9, (length - length / 2) as u16)];
    let payload = if streamed { Payload::Segments(&segments) } else { Payload::Inline(&slices) };
    end.post(operation, payload, more, scratch);
}

/// An FPDU whose version bits are right and whose key, if it is tagged, is good.
fn frame(mut header: [u8; 18], tagged: bool, payload: &[u8], key: u32) -> Vec<u8> {
    header[0] = header[0] & 0x40 | u8::from(tagged) << 7 | 1;
    header[1] = header[1] & 0x0f | 0x40;
    if tagged {
        header[2..6].copy_from_slice(&key.to_be_bytes());
        header[6..12].fill(0);
    } else {
        header[6..13].fill(0);
        header[14..17].fill(0);
    }
    let ulpdu = [&header[..if tagged { 14 } else { 18 }], &payload[..payload.len().min(60_000)]].concat();
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(&ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend_from_slice(&[0; 4]);
    bytes
}
