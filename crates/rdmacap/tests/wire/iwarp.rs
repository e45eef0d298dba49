//! iWARP over TCP made by hand: both streams of a connection, in segments as a network and a capture have
//! them.

use std::ops::Range;

use iwarp_wire::ddp::{self, Tagged, Untagged};
use iwarp_wire::mpa::{self, Enhanced, Frame as Mpa, FrameKind};
use iwarp_wire::rdmap::{AtomicKind, AtomicRequest, AtomicResponse, Opcode, ReadRequest, emit_immediate};
use rdmacap::Kind;

use super::meant::{Meant, random};
use super::{Dice, Frame, ipv4, payload};

const PORTS: [u16; 2] = [40_000, 7174];
const ISNS: [u32; 2] = [0xffff_f000, 77];

/// An operation as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) meant: Meant,
    /// Where its bytes are: the stream, the place of the whole FPDU in it, and what of the operation that
    /// carries.
    pub(crate) fpdus: Vec<(usize, Range<u64>, Range<u64>)>,
}

/// A frame, and which bytes of which stream it carries.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    pub(crate) frame: Frame,
    pub(crate) carries: Option<(usize, Range<u64>)>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) operations: usize,
    pub(crate) checksums: bool,
    pub(crate) markers: bool,
    /// Longest ULPDU.
    pub(crate) mulpdu: usize,
    /// Longest TCP segment; FPDUs begin where segments do, if they fit.
    pub(crate) mss: usize,
    pub(crate) aligned: bool,
}

/// A connection being made.
pub(crate) struct Wire {
    plan: Plan,
    pub(crate) frames: Vec<Segment>,
    pub(crate) time: u64,
    /// Bytes sent so far by each side, and where its first FPDU began.
    sent: [u64; 2],
    begun: [u64; 2],
    /// What is to be sent by a side and has not been put into segments.
    queued: [Vec<u8>; 2],
    numbers: [[u32; 4]; 2],
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 0x10;

impl Wire {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            frames: Vec::new(),
            time: 1_000_000,
            sent: [0; 2],
            begun: [0; 2],
            queued: Default::default(),
            numbers: [[1; 4]; 2],
        }
    }

    fn segment(&mut self, from: usize, flags: u8, offset: u64, bytes: &[u8]) {
        let sequence =
            ISNS[from].wrapping_add(if flags & SYN != 0 { 0 } else { 1 }).wrapping_add(offset as u32);
        let acknowledgement = ISNS[1 - from].wrapping_add(1).wrapping_add(self.sent[1 - from] as u32);
        let mut tcp = PORTS[from].to_be_bytes().to_vec();
        tcp.extend(PORTS[1 - from].to_be_bytes());
        tcp.extend(sequence.to_be_bytes());
        tcp.extend(acknowledgement.to_be_bytes());
        tcp.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.extend(bytes);
        self.time += 1000;
        let frame = ipv4(self.time, from as u8 + 1, 2 - from as u8, 6, &tcp);
        let carries = (!bytes.is_empty()).then(|| (from, offset..offset + bytes.len() as u64));
        self.frames.push(Segment { frame, carries });
    }

    /// The handshake of TCP.
    pub(crate) fn open_tcp(&mut self) {
        self.segment(0, SYN, 0, &[]);
        self.segment(1, SYN | ACK, 0, &[]);
        self.segment(0, ACK, 0, &[]);
    }

    /// Bytes of the stream as they are.
    pub(crate) fn raw(&mut self, from: usize, bytes: &[u8]) {
        self.queued[from].extend_from_slice(bytes);
        self.flush(from);
    }

    /// The handshakes of TCP and MPA.
    pub(crate) fn open(&mut self, private_data: [&[u8]; 2]) {
        self.open_tcp();
        for (from, private_data) in private_data.into_iter().enumerate() {
            self.greet(from, false, None, private_data);
        }
    }

    /// A request or reply of MPA; of revision 2 with how many reads the side serves at a time.
    pub(crate) fn greet(&mut self, from: usize, reject: bool, reads: Option<u16>, private_data: &[u8]) {
        let enhanced = reads.map_or(Vec::new(), |ird| {
            let (peer_to_peer, rtr_send, rtr_write, rtr_read) = (true, false, true, false);
            Enhanced { peer_to_peer, rtr_send, rtr_write, rtr_read, ird, ord: 4 }.emit().to_vec()
        });
        let frame = Mpa {
            kind: if from == 0 { FrameKind::Request } else { FrameKind::Reply },
            markers: self.plan.markers,
            crc: self.plan.checksums,
            reject,
            enhanced: reads.is_some(),
            revision: if reads.is_some() { 2 } else { 1 },
            private_data: (enhanced.len() + private_data.len()) as u16,
        };
        let mut bytes = [0; mpa::FRAME_HEADER];
        frame.emit(&mut bytes);
        self.raw(from, &[&bytes, &*enhanced, private_data].concat());
        self.begun[from] = self.sent[from];
    }

    pub(crate) fn close(&mut self) {
        for from in 0..2 {
            self.flush(from);
            let at = self.sent[from];
            self.segment(from, FIN | ACK, at, &[]);
        }
    }

    pub(crate) fn acknowledge(&mut self, from: usize) {
        self.flush(1 - from);
        let at = self.sent[from];
        self.segment(from, ACK, at, &[]);
    }

    /// Sends what is queued, in segments.
    pub(crate) fn flush(&mut self, from: usize) {
        let queued = std::mem::take(&mut self.queued[from]);
        for chunk in queued.chunks(self.plan.mss) {
            let at = self.sent[from];
            self.segment(from, ACK, at, chunk);
            self.sent[from] += chunk.len() as u64;
        }
    }

    /// Queues an FPDU; answers its place in the stream.
    pub(crate) fn fpdu(&mut self, from: usize, ulpdu: &[u8]) -> Range<u64> {
        let start = self.sent[from] + self.queued[from].len() as u64;
        let mut data = (ulpdu.len() as u16).to_be_bytes().to_vec();
        data.extend(ulpdu);
        data.resize(data.len() + mpa::padding(ulpdu.len()), 0);
        let mut bytes = Vec::new();
        let origin = self.begun[from];
        let marker = |bytes: &mut Vec<u8>| {
            let at = start + bytes.len() as u64 - origin;
            if self.plan.markers && at.is_multiple_of(512) {
                // How far back the length field is; 0 in front of it.
                let back = bytes.len() as u16;
                bytes.extend([0, 0]);
                bytes.extend(back.to_be_bytes());
            }
        };
        for word in data.chunks(4) {
            marker(&mut bytes);
            bytes.extend(word);
        }
        marker(&mut bytes);
        let crc = if self.plan.checksums { crc32c::crc32c(&bytes) } else { 0 };
        bytes.extend(mpa::crc_field(crc));
        let length = bytes.len() as u64;
        self.queued[from].extend(bytes);
        if self.plan.aligned {
            self.flush(from);
        }
        start..start + length
    }

    fn tagged(
        &mut self,
        from: usize,
        opcode: Opcode,
        stag: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Vec<(usize, Range<u64>, Range<u64>)> {
        let room = self.plan.mulpdu - ddp::TAGGED;
        let mut places = Vec::new();
        let mut at = 0;
        loop {
            let chunk = &bytes[at..bytes.len().min(at + room)];
            let last = at + chunk.len() == bytes.len();
            let mut header = [0; ddp::TAGGED];
            Tagged { last, ulp: opcode.control(), stag, offset: offset + at as u64 }.emit(&mut header);
            let place = self.fpdu(from, &[&header, chunk].concat());
            places.push((from, place, at as u64..(at + chunk.len()) as u64));
            at += chunk.len();
            if last {
                return places;
            }
        }
    }

    pub(crate) fn untagged(
        &mut self,
        from: usize,
        opcode: Opcode,
        ulp_word: u32,
        bytes: &[u8],
    ) -> Vec<(usize, Range<u64>, Range<u64>)> {
        let queue = match opcode {
            Opcode::ReadRequest | Opcode::AtomicRequest => 1,
            Opcode::Terminate => 2,
            Opcode::AtomicResponse => 3,
            _ => 0,
        };
        let sequence = self.numbers[from][queue];
        self.numbers[from][queue] += 1;
        let room = self.plan.mulpdu - ddp::UNTAGGED;
        let mut places = Vec::new();
        let mut at = 0;
        loop {
            let chunk = &bytes[at..bytes.len().min(at + room)];
            let last = at + chunk.len() == bytes.len();
            let (queue, offset) = (queue as u32, at as u32);
            let mut header = [0; ddp::UNTAGGED];
            Untagged { last, ulp: opcode.control(), ulp_word, queue, sequence, offset }.emit(&mut header);
            let place = self.fpdu(from, &[&header, chunk].concat());
            places.push((from, place, at as u64..(at + chunk.len()) as u64));
            at += chunk.len();
            if last {
                return places;
            }
        }
    }

    pub(crate) fn write(
        &mut self,
        from: usize,
        stag: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Vec<(usize, Range<u64>, Range<u64>)> {
        self.tagged(from, Opcode::Write, stag, offset, bytes)
    }

    /// A read of `bytes`, request and response.
    pub(crate) fn read(
        &mut self,
        from: usize,
        source: (u32, u64),
        sink: (u32, u64),
        bytes: &[u8],
    ) -> Vec<(usize, Range<u64>, Range<u64>)> {
        let request = ReadRequest {
            sink_stag: sink.0,
            sink_offset: sink.1,
            length: bytes.len() as u32,
            source_stag: source.0,
            source_offset: source.1,
        };
        let mut message = [0; 28];
        request.emit(&mut message);
        self.untagged(from, Opcode::ReadRequest, 0, &message);
        self.flush(from);
        self.tagged(1 - from, Opcode::ReadResponse, sink.0, sink.1, bytes)
    }
}

fn random_operation(dice: &mut Dice, id: u32, plan: &Plan) -> Meant {
    let kinds = [
        Kind::Send,
        Kind::Send,
        Kind::Write,
        Kind::Write,
        Kind::Read,
        Kind::CompareSwap,
        Kind::FetchAdd,
        Kind::Immediate,
    ];
    let most = 4 * plan.mulpdu as u64;
    let length = if dice.once_in(3) { dice.below(64) } else { dice.below(most) } as usize;
    let mut meant = random(dice, id, &kinds, length);
    if meant.kind == Kind::Write && meant.bytes.is_empty() {
        meant.bytes = payload(id, 1);
    }
    // Twice as long as InfiniBand's.
    meant.immediate = meant.immediate.map(|immediate| immediate | u64::from(id) << 40);
    meant
}

/// Sends an operation and its answer.
fn transmit(wire: &mut Wire, dice: &mut Dice, meant: Meant) -> Sent {
    let (id, from, bytes) = (meant.id, meant.from, &meant.bytes);
    let fpdus = match meant.kind {
        Kind::Send => {
            let opcode = Opcode::send(meant.invalidate.is_some(), dice.once_in(2));
            wire.untagged(from, opcode, meant.invalidate.unwrap_or(0), bytes)
        }
        Kind::Write => {
            let fpdus = wire.write(from, meant.key, meant.address, bytes);
            match meant.immediate {
                Some(immediate) => {
                    wire.untagged(from, Opcode::Immediate, 0, &emit_immediate(immediate));
                }
                // So that an immediate that follows is its own.
                None => {
                    wire.untagged(from, Opcode::Send, 0, &[]);
                }
            }
            fpdus
        }
        Kind::Read => {
            let sink = (0x9000 + id, u64::from(id) << 20);
            wire.read(from, (meant.key, meant.address), sink, bytes)
        }
        Kind::CompareSwap | Kind::FetchAdd => {
            let (kind, mask) = match meant.kind {
                Kind::FetchAdd => (AtomicKind::FetchAdd, 0),
                _ => (AtomicKind::CompareSwap, u64::MAX),
            };
            let mut message = [0; 52];
            let Meant { key: stag, address: offset, operand, compare, .. } = meant;
            let (operand_mask, compare_mask) = (mask, mask);
            AtomicRequest { kind, id, stag, offset, operand, operand_mask, compare, compare_mask }
                .emit(&mut message);
            wire.untagged(from, Opcode::AtomicRequest, 0, &message);
            wire.flush(from);
            let original = u64::from_be_bytes(bytes[..].try_into().expect("eight bytes"));
            let mut message = [0; 12];
            AtomicResponse { id, original }.emit(&mut message);
            wire.untagged(1 - from, Opcode::AtomicResponse, 0, &message);
            Vec::new()
        }
        Kind::Immediate => {
            wire.untagged(from, Opcode::Immediate, 0, &emit_immediate(meant.immediate.unwrap_or(0)));
            Vec::new()
        }
    };
    Sent { meant, fpdus }
}

/// Makes a run: the frames, and the operations in the order of their requests. Empty sends are not among
/// these.
pub(crate) fn run(plan: &Plan) -> (Vec<Segment>, Vec<Sent>) {
    let (mut dice, mut wire) = (Dice::new(plan.seed), Wire::new(*plan));
    wire.open([b"private", b""]);
    let mut sent = Vec::new();
    for id in 1..=plan.operations as u32 {
        let meant = random_operation(&mut dice, id, plan);
        sent.push(transmit(&mut wire, &mut dice, meant));
        if dice.once_in(2) {
            wire.acknowledge(dice.below(2) as usize);
        }
    }
    wire.acknowledge(0);
    wire.acknowledge(1);
    wire.close();
    (wire.frames, sent)
}
