//! The requests of one side of a queue pair, and what the other side answers.
//!
//! Every packet has a sequence number (PSN). A read takes as many numbers as its response has packets. An
//! operation is a range of numbers: its first packet gives the address, and the number of each later packet
//! gives its offset. A packet therefore has its place although others are missing, if it certainly belongs to
//! the operation before it: the length in the first packet of a write or read tells, or at most one packet is
//! missing in between.
//!
//! An operation is reported when it is over and whole, or [`PATIENCE`] packets after it is over. The capture
//! lost a packet that was acknowledged and never came. The network lost a packet that comes again, or late.
//!
//! | file | part |
//! |---|---|
//! | `requests` | packets of the requester |
//! | `requests/answers` | packets of the responder |
//! | `requests/repeats` | what comes again or late, and why |
//! | `requests/reports` | when operations are reported, and what is missing of them |
//! | `requests/pieces` | what is kept of packets |

mod answers;
mod pieces;
mod repeats;
mod reports;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use self::pieces::{Early, Orphan, Pending, Piece};
use super::packet::{Opcode, Packet};
use crate::Operation;
use crate::context::Context;
use crate::finding::Topic;
use crate::operation::{Access, Atomic, Kind, Placement, Side, Target};
use crate::ranges::Ranges;

/// Packets that may come between the end of an operation and one of its packets that is late.
const PATIENCE: u64 = 64;
/// Most packet numbers that are kept apart at a time. A packet further ahead begins anew.
const WINDOW: u64 = 1 << 16;
/// Most operations of one direction that have not ended.
const MOST_PENDING: usize = 1 << 14;
/// What an operation takes of the budget, and a packet whose operation is not known.
const PENDING: usize = 768;
const ORPHAN: usize = 128;
/// Most responses that are kept for a request that may come.
const MOST_EARLY: usize = 16;
/// Most packets of an operation whose content is remembered by a checksum, to be compared when they come
/// again.
const MOST_SUMS: u64 = 1 << 12;
/// Where numbers begin, so that some can be before the first.
const START: u64 = 1 << 32;

/// Why packets come again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Sequence,
    NotReady,
}

/// The requests of one side.
#[derive(Debug)]
pub(super) struct Requests {
    from: Side,
    responder: IpAddr,
    connection: u32,
    /// Bytes of a full packet, as one had them or as the handshake says; 0: not known.
    pub(super) pmtu: u64,
    /// Whether a full packet was seen.
    pub(super) seen_full: bool,
    /// The number of the next new packet.
    next: Option<u64>,
    /// Numbers before this one are done with.
    done: u64,
    /// Numbers before this one were acknowledged.
    acknowledged: u64,
    pending: VecDeque<Pending>,
    orphans: BTreeMap<u64, Orphan>,
    /// Responses that were captured before their requests.
    early: Vec<(u64, Early)>,
    /// Packets seen, requests and responses.
    packets: u64,
    /// Why packets may come again, since something new came.
    cause: Option<Cause>,
    /// When a number was first passed over.
    gap: Option<(u64, u64)>,
    /// Whether nothing is ever acknowledged (unreliable connection).
    pub(super) unreliable: bool,
    /// Reads and atomics that the responder serves at a time, where known.
    pub(super) serves: Option<u16>,
    /// More was asked for at a time.
    exceeded: bool,
    /// Headers of requests are cut.
    cut: bool,
}

impl Requests {
    pub(super) fn new(from: Side, responder: IpAddr, connection: u32, pmtu: u32, first: Option<u32>) -> Self {
        let next = first.map(|psn| START + u64::from(psn));
        Self {
            from,
            responder,
            connection,
            pmtu: pmtu.into(),
            seen_full: false,
            next,
            done: next.unwrap_or(START),
            acknowledged: 0,
            // Many connections never have more than one.
            pending: VecDeque::with_capacity(1),
            orphans: BTreeMap::new(),
            early: Vec::new(),
            packets: 0,
            cause: None,
            gap: None,
            unreliable: false,
            serves: None,
            exceeded: false,
            cut: false,
        }
    }

    /// The number of a packet in full, by the nearest distance to what comes next.
    fn unwrap(&self, psn: u32, expected: u64) -> u64 {
        let distance = i64::from((psn.wrapping_sub(expected as u32) << 8) as i32 >> 8);
        expected.saturating_add_signed(distance)
    }

    /// A packet of a request.
    pub(super) fn request(&mut self, packet: &Packet<'_>, context: &mut Context<'_>) {
        self.packets += 1;
        let next = *self.next.get_or_insert_with(|| {
            self.done = START + u64::from(packet.psn);
            self.done
        });
        let psn = self.unwrap(packet.psn, next);
        if psn.abs_diff(next) > WINDOW {
            // Another use of the number, or a capture that paused.
            let text = format!("packet number {:#x} of {} is far from {:#x}", psn, self.from, next);
            context.finding(Topic::Partial, Some(self.connection), text);
            self.flush(true, context);
            (self.next, self.done) = (Some(psn), psn);
        }
        let next = self.next.unwrap_or(psn);
        if psn < self.done {
            self.repeated_old(context);
            return;
        }
        if psn > next {
            self.settle_open_read(psn);
        }
        let next = self.next.unwrap_or(next);
        if psn > next && self.gap.is_none() {
            self.gap = Some((next, context.time));
        }
        if packet.is_cut && !std::mem::replace(&mut self.cut, true) {
            let text =
                format!("headers of packets from {} are cut: what they are about is not known", self.from);
            context.finding(Topic::Cut, Some(self.connection), text);
        }
        let is_known = packet.remote.is_some() || packet.atomic.is_some();
        match packet.opcode {
            // Without what names the memory it is a packet like those in the middle.
            Opcode::Write(part) if part.begins() && !is_known => {
                self.go_on(Kind::Write, psn, part.ends(), packet, context);
            }
            Opcode::ReadRequest if !is_known => self.go_on(Kind::Read, psn, true, packet, context),
            Opcode::CompareSwap if !is_known => self.go_on(Kind::CompareSwap, psn, true, packet, context),
            Opcode::FetchAdd if !is_known => self.go_on(Kind::FetchAdd, psn, true, packet, context),
            Opcode::Send(part) if part.begins() => self.begin(Kind::Send, psn, part.ends(), packet, context),
            Opcode::Write(part) if part.begins() => {
                self.begin(Kind::Write, psn, part.ends(), packet, context)
            }
            Opcode::Send(part) => self.go_on(Kind::Send, psn, part.ends(), packet, context),
            Opcode::Write(part) => self.go_on(Kind::Write, psn, part.ends(), packet, context),
            Opcode::ReadRequest => self.read(psn, packet, context),
            Opcode::CompareSwap => self.begin(Kind::CompareSwap, psn, true, packet, context),
            Opcode::FetchAdd => self.begin(Kind::FetchAdd, psn, true, packet, context),
            _ => {}
        }
        self.report_sent(context);
        if self.unreliable {
            self.acknowledge_before(self.next.unwrap_or(psn), context);
        }
        self.flush(false, context);
        self.pay(context);
    }

    /// A packet that is not the last of its message is full: answers whether this one can be.
    fn is_full(&mut self, length: usize, context: &mut Context<'_>) -> bool {
        let is_size = matches!(length, 256 | 512 | 1024 | 2048 | 4096);
        if is_size && !self.seen_full {
            (self.pmtu, self.seen_full) = (length as u64, true);
        }
        let is_full = self.pmtu == length as u64;
        if !is_full {
            let text =
                format!("a packet of {length} bytes is not its message's last, of {} a packet", self.pmtu);
            context.finding(Topic::Protocol, Some(self.connection), text);
        }
        is_full
    }

    /// A read whose response's packets could not be counted took the numbers up to this packet, if that
    /// fits its length.
    fn settle_open_read(&mut self, psn: u64) {
        let Some(last) = self.pending.back_mut() else { return };
        if last.operation.kind != Kind::Read || last.last.is_some() || psn <= last.first {
            return;
        }
        let taken = psn - last.first;
        if (8..=12).any(|bits| last.operation.length.div_ceil(1 << bits) == taken) {
            last.last = Some(psn - 1);
            self.next = Some(psn);
        }
    }

    /// A packet that begins an operation, or is all of it.
    fn begin(&mut self, kind: Kind, psn: u64, ends: bool, packet: &Packet<'_>, context: &mut Context<'_>) {
        if !ends && !self.is_full(packet.length, context) {
            return;
        }
        if let Some(at) = self.at(psn) {
            let there = &self.pending[at];
            if there.first == psn && there.operation.kind == kind && there.headed {
                self.again(at, psn, packet, context);
                return;
            }
        }
        let remote = packet.remote.map(|remote| (remote.key, remote.address));
        let atomic = packet.atomic.map(|atomic| (atomic.key, atomic.address));
        let pending = self.insert(kind, psn, context);
        let Some(at) = pending else { return };
        let target = remote.or(atomic).filter(|_| packet.remote.is_none_or(|remote| remote.length > 0));
        let target =
            target.map(|(key, address)| context.target(self.connection, self.responder, key, address));
        let pmtu = self.pmtu;
        let pending = &mut self.pending[at];
        pending.headed = true;
        pending.operation.target = target;
        if let Some(atomic) = packet.atomic {
            let (operand, compare) = (atomic.operand, atomic.compare);
            pending.operation.atomic = Some(Atomic { operand, compare, masked: false, old: None });
            pending.operation.length = 8;
        }
        if let Some(remote) = packet.remote {
            pending.operation.length = u64::from(remote.length);
            let packets = u64::from(remote.length).div_ceil(pmtu.max(1)).max(1);
            pending.last = (pmtu > 0 && !ends).then(|| psn + packets - 1);
        }
        if ends {
            pending.last = Some(psn);
        }
        self.add(at, psn, &Piece::new(packet, ends, context.frame), context);
        self.advance(psn + 1, context);
        if self.pending[at].is_answered_by_data() {
            self.take_early(at, context);
        } else {
            self.adopt(at, context);
        }
    }

    /// A packet that goes on with an operation.
    fn go_on(&mut self, kind: Kind, psn: u64, ends: bool, packet: &Packet<'_>, context: &mut Context<'_>) {
        if !ends && !self.is_full(packet.length, context) {
            return;
        }
        match self.belongs(kind, psn, ends) {
            Some(at) => {
                let there = &self.pending[at];
                let index = psn - there.first;
                if there.got.contains(index, index + 1) {
                    self.again(at, psn, packet, context);
                    return;
                }
                self.add(at, psn, &Piece::new(packet, ends, context.frame), context);
                self.advance(psn + 1, context);
                self.adopt(at, context);
            }
            None => {
                self.keep(kind, psn, ends, packet, context);
                self.advance(psn + 1, context);
            }
        }
    }

    /// The operation that a packet in the middle or at the end certainly belongs to.
    fn belongs(&self, kind: Kind, psn: u64, ends: bool) -> Option<usize> {
        let at = self.at(psn)?;
        let there = &self.pending[at];
        let by_data = there.is_answered_by_data();
        if there.operation.kind != kind || by_data || !there.headed || !there.contains(psn) || self.pmtu == 0
        {
            return None;
        }
        let index = psn - there.first;
        // A missing packet in between cannot both end that operation and begin another; two can.
        let mut holes = there.got.missing(0, index);
        let few = |hole: Option<(u64, u64)>| hole.is_none_or(|(from, to)| to - from == 1);
        let certain = there.last.is_some() || few(holes.next()) && holes.next().is_none();
        let fits = there.last.is_none_or(|last| ends == (psn == last));
        (certain && fits && index > 0).then_some(at)
    }

    fn read(&mut self, psn: u64, packet: &Packet<'_>, context: &mut Context<'_>) {
        let Some(remote) = packet.remote else { return };
        if let Some(at) = self.at(psn) {
            let there = &mut self.pending[at];
            if there.operation.kind == Kind::Read && there.contains(psn) && there.headed {
                // The whole of it again, or from where the response stopped.
                let skipped = (psn - there.first) * self.pmtu;
                let same = there.operation.target.is_none_or(|target| {
                    target.address.wrapping_add(skipped) == remote.address && target.key == remote.key
                });
                if same && skipped + u64::from(remote.length) == there.operation.length {
                    there.operation.resent += 1;
                    there.operation.frames.1 = context.frame;
                    self.repeated("the read request", context);
                    return;
                }
            }
        }
        let Some(at) = self.insert(Kind::Read, psn, context) else { return };
        let length = u64::from(remote.length);
        let target =
            (length > 0).then(|| context.target(self.connection, self.responder, remote.key, remote.address));
        let pmtu = self.pmtu;
        let pending = &mut self.pending[at];
        pending.headed = true;
        pending.operation.target = target;
        pending.operation.length = length;
        pending.operation.packets += 1;
        pending.last = match (pmtu, length) {
            (_, 0..=256) => Some(psn),
            (0, _) => None,
            _ => Some(psn + length.div_ceil(pmtu) - 1),
        };
        let after = pending.last.unwrap_or(psn) + 1;
        self.advance(after, context);
        self.take_early(at, context);
    }

    /// The operation with the highest first number that is not above `psn`.
    fn at(&self, psn: u64) -> Option<usize> {
        self.pending.partition_point(|pending| pending.first <= psn).checked_sub(1)
    }

    /// A new operation that begins at `psn`; `None`: one is there.
    fn insert(&mut self, kind: Kind, psn: u64, context: &mut Context<'_>) -> Option<usize> {
        if self.pending.len() >= MOST_PENDING {
            self.give_up(context);
        }
        // If nothing is left to give up, other connections have the whole budget.
        let mut charge = PENDING;
        while !context.budget.take(charge) {
            if !self.give_up(context) {
                charge = 0;
            }
        }
        let at = self.pending.partition_point(|pending| pending.first <= psn);
        let before = at.checked_sub(1).map(|before| &self.pending[before]);
        if before.is_some_and(|before| before.first == psn || before.last.is_some_and(|last| last >= psn)) {
            context.budget.give(charge);
            let text = format!("packet {psn:#x} of {} begins an operation inside of another", self.from);
            context.finding(Topic::Protocol, Some(self.connection), text);
            return None;
        }
        let frames = (context.frame, context.frame);
        let operation =
            Operation::new(context.operation_id(), self.connection, self.from, kind, frames, context.time);
        let pending = Pending {
            operation,
            first: psn,
            last: None,
            got: Ranges::default(),
            answered: Ranges::default(),
            sums: Vec::new(),
            headed: false,
            over: None,
            sent: false,
            not_ready: 0,
            charge,
        };
        self.pending.insert(at, pending);
        Some(at)
    }

    /// Takes a packet of a request into the operation that it belongs to.
    fn add(&mut self, at: usize, psn: u64, piece: &Piece<'_>, context: &mut Context<'_>) {
        let (connection, pmtu) = (self.connection, self.pmtu);
        let &Piece { payload, length, ends, frame, .. } = piece;
        let pending = &mut self.pending[at];
        let before = pending.weight();
        let index = psn - pending.first;
        let offset = index * pmtu;
        pending.got.insert(index, index + 1);
        let operation = &mut pending.operation;
        operation.packets += 1;
        operation.frames = (operation.frames.0.min(frame), operation.frames.1.max(frame));
        operation.cut += (length - payload.len()) as u64;
        operation.immediate = operation.immediate.or(piece.immediate);
        operation.invalidate = operation.invalidate.or(piece.invalidate);
        operation.solicited |= piece.solicited;
        if operation.kind == Kind::Send {
            operation.length = operation.length.max(offset + length as u64);
        }
        if ends {
            pending.last = Some(psn);
        }
        // What is cut cannot be compared.
        if index < MOST_SUMS && payload.len() == length {
            if pending.sums.len() as u64 <= index {
                pending.sums.resize(index as usize + 1, 0);
            }
            pending.sums[index as usize] = crc32c::crc32c(payload);
        }
        pending.recharge(before, context.budget);
        let operation = &mut pending.operation;
        if operation.kind == Kind::Write && offset + length as u64 > operation.length {
            let text = format!("a write of {} bytes carries {}", operation.length, offset + length as u64);
            context.finding(Topic::Protocol, Some(connection), text);
            return;
        }
        let memory = operation.target.filter(|_| operation.kind == Kind::Write).map(|target| {
            (Target { address: target.address.wrapping_add(offset), ..target }, Access::Written)
        });
        if memory.is_some() || operation.kind == Kind::Send {
            let placement =
                Placement { operation: operation.id, connection, from: self.from, offset, memory, frame };
            context.bytes(&placement, payload);
        }
    }

    /// Keeps a packet until the operation is known that it belongs to.
    fn keep(&mut self, kind: Kind, psn: u64, ends: bool, packet: &Packet<'_>, context: &mut Context<'_>) {
        if self.orphans.contains_key(&psn) {
            self.repeated("a packet", context);
            return;
        }
        let payload = if context.budget.take(ORPHAN + packet.payload.len()) {
            packet.payload.to_vec()
        } else if self.orphans.len() < PATIENCE as usize && context.budget.take(ORPHAN) {
            Vec::new()
        } else {
            return;
        };
        let orphan = Orphan {
            kind,
            ends,
            immediate: packet.immediate,
            invalidate: packet.invalidate,
            solicited: packet.solicited,
            payload,
            length: packet.length,
            frame: context.frame,
            time: context.time,
        };
        self.orphans.insert(psn, orphan);
    }

    /// Takes the packets that are kept and certainly belong to this operation.
    fn adopt(&mut self, at: usize, context: &mut Context<'_>) {
        let (first, kind) = (self.pending[at].first, self.pending[at].operation.kind);
        while let Some((&psn, orphan)) = self.orphans.range(first..).next() {
            if orphan.kind != kind || self.belongs(kind, psn, orphan.ends) != Some(at) {
                return;
            }
            let Some(orphan) = self.orphans.remove(&psn) else { return };
            context.budget.give(ORPHAN + orphan.payload.len());
            self.add(at, psn, &orphan.piece(), context);
        }
    }
}
