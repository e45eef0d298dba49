//! A list of operations on two joined machines, one of which may also get bytes from nowhere. Their rules are
//! those of the specifications, or those for messages.
//!
//! While nothing wrong has been put in, neither machine may find fault with the other. After something wrong a machine
//! may stop with a fault, and goes on to be asked for everything that a socket part would ask for. Memory that is lent to
//! requests has its own allocation, so that the address sanitizer sees each byte beyond it.

#![no_main]

use std::collections::VecDeque;
use std::io::IoSlice;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rdma_verbs::iwarp::machine::{Agreement, Fault, Machine, Port, SCRATCH, Side, Taken, Wire};
use rdma_verbs::iwarp::{MemoryRegion, ProtectionDomain};
use rdma_verbs::{
    Access, Buffer, Completion, CompletionStatus, Memory, MemoryRegion as _, Operation, Payload, Place,
    ProtectionDomain as _, QpCapabilities, QpId, RecvRequest, RemoteAddress, Segment, SendRequest,
};

const SIZE: usize = 8192;

#[derive(Debug, Arbitrary)]
struct Input {
    messages: bool,
    crc: bool,
    /// Reads that a machine may have outstanding, and that it serves.
    depth: u8,
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
    Receive {
        length: u16,
    },
    Write {
        address: u16,
        length: u16,
        immediate: Option<u64>,
        streamed: bool,
        more: bool,
    },
    Send {
        length: u16,
        immediate: Option<u64>,
        give_up: bool,
        streamed: bool,
        more: bool,
    },
    Read {
        address: u16,
        length: u16,
    },
    /// Lets the wire take so many bytes more.
    Room {
        bytes: u16,
    },
    /// Brings so many bytes to the machine, straight to their place or not.
    Carry {
        bytes: u16,
        straight: bool,
    },
    /// Brings bytes from nowhere.
    Inject {
        bytes: Vec<u8>,
    },
    /// The same as a segment of a peer that knows a good key.
    Frame(Frame),
    /// Takes the newest receive back.
    Cancel,
    /// Holds writes with immediate data, or lets them pass again.
    Hold {
        writes: bool,
    },
    /// This side ends the connection, and gives up what is outstanding if it has ended it before.
    Close,
    /// No more input comes.
    EndInput,
    /// Drops the region that the peer may use.
    Deregister,
    Die,
}

/// A segment that is right in everything that the input does not make wrong.
#[derive(Debug, Arbitrary)]
struct Frame {
    opcode: u8,
    tagged: bool,
    last: bool,
    queue: u8,
    sequence: u8,
    offset: u16,
    /// The reserved word of an untagged header, or a key.
    word: Option<u16>,
    good_sum: bool,
    payload: Vec<u8>,
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
    /// What is lent to requests, each piece to one.
    lent: Vec<Box<[u8]>>,
    /// Lengths of the posted receives that no message of the other side counts on yet.
    receives: VecDeque<u32>,
    closed: bool,
    fault: Option<Fault>,
}

impl End {
    fn new(side: Side, input: &Input) -> Self {
        let domain = ProtectionDomain::default();
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let depth = input.depth % 4;
        let capabilities = QpCapabilities {
            send_depth: 8,
            recv_depth: 8,
            inline: 4096,
            initiator_depth: depth,
            responder_resources: depth,
        };
        let segment = usize::from(input.segment) * 16 + 1;
        let mut machine = if input.messages {
            Machine::for_messages(QpId(1), &domain, capabilities, segment, None)
        } else {
            Machine::new(QpId(1), &domain, capabilities, segment)
        };
        machine.establish(&Agreement {
            crc: input.crc,
            initiator_depth: depth,
            responder_resources: depth,
            side,
            rtr: false,
        });
        Self {
            machine,
            ring: Some(domain.register(Memory::zeroed(SIZE).unwrap(), remote).unwrap()),
            own: domain.register(Memory::zeroed(SIZE).unwrap(), Access::LOCAL_WRITE).unwrap(),
            pipe: Pipe::default(),
            completions: Vec::new(),
            lent: Vec::new(),
            receives: VecDeque::new(),
            closed: false,
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

    /// Memory of its own for a request, in two pieces.
    fn lend(&mut self, bytes: &[u8]) -> [Place; 2] {
        let mut lent = Box::<[u8]>::from(bytes);
        let (first, second) = lent.split_at_mut(bytes.len() / 3);
        let places = [first, second].map(|piece| {
            // SAFETY: it stays until the end is dropped, the machine first, and nothing else uses it.
            unsafe { Place::new(piece.as_mut_ptr(), piece.len() as u32) }.unwrap()
        });
        self.lent.push(lent);
        places
    }

    /// Answers whether it was posted.
    fn post(&mut self, operation: Operation, payload: Payload<'_>, more: bool, scratch: &mut [u8]) -> bool {
        let request = SendRequest { id: 1, signaled: true, operation, payload };
        let mut port = Port { wire: &mut self.pipe, sink: &mut self.completions, scratch };
        self.machine.post_send(&[request], more, &mut port).is_ok()
    }

    /// What a socket part does with bytes. Answers how many are left because a message waits.
    fn take(&mut self, mut bytes: &[u8], straight: bool, scratch: &mut [u8]) -> usize {
        while !bytes.is_empty() && self.fault.is_none() && !self.machine.is_stalled() {
            if straight && let Some(spaced) = self.machine.spaced_target() {
                let mut gaps = [0; 1024];
                let count = spaced.fill(bytes, &mut gaps);
                assert!(count > 0 && count <= spaced.length());
                self.fault = self.machine.take_spaced(&spaced, &gaps, count, &mut self.completions).err();
                bytes = &bytes[count..];
                continue;
            }
            let placed = match self.machine.target() {
                Some(place) if straight => {
                    assert!(place.length > 0);
                    let count = place.fill(bytes);
                    assert_eq!(count, place.length.min(bytes.len()), "a target within its region");
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
        if self.machine.is_stalled() { bytes.len() } else { 0 }
    }

    fn pump(&mut self, scratch: &mut [u8]) {
        if self.fault.is_none() {
            let mut port = Port { wire: &mut self.pipe, sink: &mut self.completions, scratch };
            self.fault = self.machine.pump(&mut port).err().map(Fault::from);
        }
    }

    /// What a queue pair does when a receive is posted.
    fn resume(&mut self, scratch: &mut [u8]) {
        if self.fault.is_none() {
            self.fault = self.machine.resume(&mut self.completions).err();
            self.pump(scratch);
        }
    }

    fn finish(&mut self) {
        if let Some(Fault::Violation(violation)) = &self.fault {
            assert!(!violation.to_string().is_empty());
            self.machine.terminate(violation.terminate(), &mut self.pipe);
        }
        let _ = self.machine.is_between_messages();
        self.machine.flush(self.fault.as_ref(), &mut self.completions);
        assert_eq!(self.machine.send_staged(&mut self.pipe), self.machine.is_drained());
        self.machine.discard_staged();
        assert!(self.machine.is_drained() && !self.machine.is_stalled());
        self.machine.shrink();
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
        let mut other_receives = std::mem::take(&mut ends[usize::from(!step.second)].receives);
        let mut carried = 0;
        let end = &mut ends[usize::from(step.second)];
        match &step.action {
            Action::Receive { length } => {
                let segment = end.segment(*length, *length);
                let places = end.lend(&bytes[..segment.length as usize]);
                let buffer = if input.messages { Buffer::Places(&places) } else { Buffer::Segment(segment) };
                if end.machine.post_recv(&[RecvRequest { id: 2, buffer }]).is_ok() {
                    end.receives.push_back(segment.length);
                }
                end.resume(&mut scratch);
            }
            Action::Write { address, length, immediate, streamed, more } => {
                // Within the peer's region, or the peer is right to complain.
                honest &= usize::from(*address) + usize::from(*length) <= SIZE && other_key != 0;
                let remote = RemoteAddress { key: other_key, address: u64::from(*address) };
                let operation = Operation::Write { remote, immediate: *immediate };
                let posted =
                    post(end, input.messages, operation, *length, *streamed, *more, &bytes, &mut scratch);
                // Immediate data takes a receive.
                let takes_one = posted && immediate.is_some() && !input.messages;
                honest &= !takes_one || other_receives.pop_front().is_some();
            }
            Action::Send { length, immediate, give_up, streamed, more } => {
                honest &= !give_up;
                let invalidate = give_up.then_some(other_key);
                let operation = Operation::Send { immediate: *immediate, invalidate, solicited: *more };
                let posted =
                    post(end, input.messages, operation, *length, *streamed, *more, &bytes, &mut scratch);
                let length = u32::from(*length).min(SIZE as u32);
                let needs_one = posted && !input.messages;
                honest &= !needs_one || other_receives.pop_front().is_some_and(|room| length <= room);
            }
            Action::Read { address, length } => {
                honest &= usize::from(*address) + usize::from(*length) <= SIZE && other_key != 0;
                let sink = [end.segment(*address / 2, *length)];
                let places = end.lend(&bytes[..usize::from(*length).min(SIZE)]);
                let payload =
                    if input.messages { Payload::Places(&places) } else { Payload::Segments(&sink) };
                let remote = RemoteAddress { key: other_key, address: u64::from(*address) };
                end.post(Operation::Read { remote }, payload, false, &mut scratch);
            }
            Action::Room { bytes } => {
                end.pipe.room += usize::from(*bytes);
                end.pump(&mut scratch);
            }
            Action::Carry { bytes, straight } => {
                carried = usize::from(*bytes).min(there.len());
                carried -= end.take(&there[..carried], *straight, &mut scratch);
            }
            Action::Inject { bytes } => {
                honest = false;
                end.take(bytes, true, &mut scratch);
            }
            Action::Frame(frame) => {
                honest = false;
                let fpdu = frame.fpdu(end.key(), input.crc);
                end.take(&fpdu, true, &mut scratch);
            }
            // What was posted for others is counted on by them.
            Action::Cancel if input.messages => {
                end.machine.cancel_recv(2);
            }
            Action::Cancel => {}
            Action::Hold { writes } => {
                end.machine.hold_writes(*writes && input.messages);
                end.resume(&mut scratch);
            }
            Action::Close => {
                honest = false;
                if std::mem::replace(&mut end.closed, true) && input.messages {
                    end.machine.give_up();
                }
                end.machine.close(&mut end.completions);
                end.resume(&mut scratch);
            }
            Action::EndInput => {
                honest = false;
                end.machine.end_input(&mut end.completions);
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
        let other = &mut ends[usize::from(!step.second)];
        other.pipe.bytes.splice(..0, there[carried..].iter().copied());
        other.receives = other_receives;
        if honest {
            assert!(ends.iter().all(|end| end.fault.is_none()), "{:?} {:?}", ends[0].fault, ends[1].fault);
        }
    }
    for end in &mut ends {
        end.finish();
        if honest {
            assert!(end.completions.iter().all(|done| done.status != CompletionStatus::LocalAccess));
        }
    }
});

fn post(
    end: &mut End,
    messages: bool,
    operation: Operation,
    length: u16,
    streamed: bool,
    more: bool,
    bytes: &[u8],
    scratch: &mut [u8],
) -> bool {
    let length = usize::from(length).min(SIZE);
    let slices = [IoSlice::new(&bytes[..length / 3]), IoSlice::new(&bytes[length / 3..length])];
    let segments = [end.segment(0, (length / 2) as u16), end.segment(9, (length - length / 2) as u16)];
    let places = end.lend(&bytes[..length]);
    let payload = match streamed {
        true if messages => Payload::Places(&places),
        true => Payload::Segments(&segments),
        false => Payload::Inline(&slices),
    };
    end.post(operation, payload, more, scratch)
}

impl Frame {
    /// The segment in its FPDU. `key` stands where a key belongs, in a read request too.
    fn fpdu(&self, key: u32, crc: bool) -> Vec<u8> {
        let key = key.to_be_bytes();
        let mut ulpdu =
            vec![u8::from(self.tagged) << 7 | u8::from(self.last) << 6 | 1, 0x40 | self.opcode % 11];
        ulpdu.extend_from_slice(&self.word.map_or(key, |word| u32::from(word).to_be_bytes()));
        if self.tagged {
            ulpdu.extend_from_slice(&u64::from(self.offset).to_be_bytes());
        } else {
            for word in [u32::from(self.queue % 4), self.sequence.into(), self.offset.into()] {
                ulpdu.extend_from_slice(&word.to_be_bytes());
            }
        }
        let header = ulpdu.len();
        ulpdu.extend_from_slice(&self.payload[..self.payload.len().min(60_000)]);
        // Sink key, sink offset, length, source key, source offset.
        if let Some(source) = ulpdu.get_mut(header + 16..header + 26)
            && !self.tagged
            && self.queue % 4 == 1
        {
            source[..4].copy_from_slice(&key);
            source[4..].fill(0);
        }
        let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
        bytes.extend_from_slice(&ulpdu);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        let sum = if crc && self.good_sum { crc32c::crc32c(&bytes) } else { 0 };
        // In the order of the wire (RFC 5044 section 4.4): lowest byte first.
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }
}
