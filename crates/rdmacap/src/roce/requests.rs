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

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use super::packet::{Opcode, Packet, Syndrome};
use crate::Operation;
use crate::context::Context;
use crate::operation::{Access, Atomic, Kind, Outcome, Placement, Side, Target, Topic};
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
/// Gaps that are open for less, without a NAK, are reordering rather than loss. In nanoseconds.
const REORDERING: u64 = 1_000_000;
/// Where numbers begin, so that some can be before the first.
const START: u64 = 1 << 32;

/// An operation that has not been reported.
#[derive(Debug)]
struct Pending {
    operation: Operation,
    /// Its first packet number.
    first: u64,
    /// Its last, where known.
    last: Option<u64>,
    /// Packets of the request that were seen, from 0.
    got: Ranges,
    /// Packets of the response that were seen.
    answered: Ranges,
    /// Checksums of the payloads of the request's packets.
    sums: Vec<u32>,
    /// Whether the packet that begins it was seen.
    headed: bool,
    /// What became of it, when, and after how many packets.
    over: Option<(Outcome, u64, u64)>,
    sent: bool,
    /// Times that the receiver was not ready for it.
    not_ready: u32,
    charge: usize,
}

impl Pending {
    fn packets(&self) -> Option<u64> {
        self.last.map(|last| last - self.first + 1)
    }

    fn is_answered_by_data(&self) -> bool {
        matches!(self.operation.kind, Kind::Read | Kind::CompareSwap | Kind::FetchAdd)
    }

    /// Whether all packets of the request were seen. A read's is one packet, however many numbers it takes.
    fn is_whole(&self) -> bool {
        if self.is_answered_by_data() {
            return self.headed;
        }
        self.headed && self.packets().is_some_and(|packets| self.got.contains(0, packets))
    }

    /// Whether all packets of the response were seen as well.
    fn is_complete(&self) -> bool {
        let answered = || self.packets().is_some_and(|packets| self.answered.contains(0, packets));
        self.is_whole() && (!self.is_answered_by_data() || answered())
    }

    fn contains(&self, psn: u64) -> bool {
        psn >= self.first && self.last.is_none_or(|last| psn <= last)
    }
}

/// A packet in the middle or at the end of an operation that is not known yet.
#[derive(Debug)]
struct Orphan {
    kind: Kind,
    ends: bool,
    immediate: Option<u32>,
    invalidate: Option<u32>,
    solicited: bool,
    payload: Vec<u8>,
    length: usize,
    frame: u64,
    time: u64,
}

impl Orphan {
    fn piece(&self) -> Piece<'_> {
        let &Self { ends, immediate, invalidate, solicited, ref payload, length, frame, .. } = self;
        Piece { ends, immediate, invalidate, solicited, payload, length, frame }
    }
}

/// A response whose request has not come.
#[derive(Debug)]
struct Early {
    ends: bool,
    original: Option<u64>,
    payload: Vec<u8>,
    length: usize,
    frame: u64,
    time: u64,
}

/// A response of the other side.
#[derive(Debug, Clone, Copy)]
struct Response<'a> {
    /// Whether it is the last of its read's.
    ends: bool,
    /// What an atomic found; `None`: it is a read's.
    original: Option<u64>,
    payload: &'a [u8],
    length: usize,
}

/// What a packet adds to its operation.
#[derive(Debug, Clone, Copy)]
struct Piece<'a> {
    ends: bool,
    immediate: Option<u32>,
    invalidate: Option<u32>,
    solicited: bool,
    payload: &'a [u8],
    length: usize,
    frame: u64,
}

impl<'a> Piece<'a> {
    fn new(packet: &Packet<'a>, ends: bool, frame: u64) -> Self {
        let &Packet { immediate, invalidate, solicited, payload, length, .. } = packet;
        Self { ends, immediate, invalidate, solicited, payload, length, frame }
    }
}

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
    /// Bytes of a full packet; 0: not known.
    pub(super) pmtu: u64,
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
}

impl Requests {
    pub(super) fn new(from: Side, responder: IpAddr, connection: u32, pmtu: u32, first: Option<u32>) -> Self {
        let next = first.map(|psn| START + u64::from(psn));
        Self {
            from,
            responder,
            connection,
            pmtu: pmtu.into(),
            next,
            done: next.unwrap_or(START),
            acknowledged: 0,
            pending: VecDeque::new(),
            orphans: BTreeMap::new(),
            early: Vec::new(),
            packets: 0,
            cause: None,
            gap: None,
            unreliable: false,
        }
    }

    /// The number of a packet in full, by the nearest distance to what comes next.
    fn unwrap(&self, psn: u32, expected: u64) -> u64 {
        let distance = i64::from((psn.wrapping_sub(expected as u32) << 8) as i32 >> 8);
        expected.saturating_add_signed(distance)
    }

    // ---- requests ---------------------------------------------------------------------------

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
        match packet.opcode {
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
    }

    /// A packet that is not the last of its message is full.
    fn learn_pmtu(&mut self, ends: bool, length: usize) {
        if self.pmtu == 0 && !ends && matches!(length, 256 | 512 | 1024 | 2048 | 4096) {
            self.pmtu = length as u64;
        }
    }

    /// A read whose response's packets could not be counted took the numbers up to this packet, if that
    /// fits its length.
    fn settle_open_read(&mut self, psn: u64) {
        let Some(last) = self.pending.back_mut() else { return };
        if last.operation.kind != Kind::Read || last.last.is_some() || psn <= last.first {
            return;
        }
        let taken = psn - last.first;
        let fits = (8..=12).map(|bits| 1 << bits).find(|pmtu| last.operation.length.div_ceil(*pmtu) == taken);
        if let Some(pmtu) = fits {
            self.pmtu = pmtu;
            last.last = Some(psn - 1);
            self.next = Some(psn);
        }
    }

    /// A packet that begins an operation, or is all of it.
    fn begin(&mut self, kind: Kind, psn: u64, ends: bool, packet: &Packet<'_>, context: &mut Context<'_>) {
        self.learn_pmtu(ends, packet.length);
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
            pending.operation.atomic =
                Some(Atomic { operand: atomic.operand, compare: atomic.compare, old: None });
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
        self.learn_pmtu(ends, packet.length);
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
        if there.operation.kind != kind || !there.headed || !there.contains(psn) || self.pmtu == 0 {
            return None;
        }
        let index = psn - there.first;
        // A missing packet in between cannot both end that operation and begin another; two can.
        let mut holes = there.got.missing(0, index);
        let missing: u64 = holes.by_ref().map(|(from, to)| to - from).sum();
        let certain = there.last.is_some() || missing <= 1;
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
        if index < MOST_SUMS {
            if pending.sums.len() as u64 <= index {
                pending.sums.resize(index as usize + 1, 0);
            }
            pending.sums[index as usize] = crc32c::crc32c(payload);
        }
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

    /// New packets go up to `psn`; what was passed over is a gap, and something that fills one is late.
    fn advance(&mut self, psn: u64, context: &mut Context<'_>) {
        let next = self.next.unwrap_or(psn);
        if psn > next {
            if self.gap.is_none() {
                self.cause = None;
            }
            self.next = Some(psn);
            return;
        }
        if let Some((_, since)) = self.gap.take() {
            let waited = context.time.saturating_sub(since);
            if self.cause == Some(Cause::Sequence) || waited >= REORDERING {
                let text = format!("a packet from {} came {} us late", self.from, waited / 1000);
                context.finding(Topic::NetworkLoss, Some(self.connection), text);
            }
        }
    }

    /// A packet of an operation that was seen.
    fn again(&mut self, at: usize, psn: u64, packet: &Packet<'_>, context: &mut Context<'_>) {
        let pending = &mut self.pending[at];
        pending.operation.resent += 1;
        pending.operation.frames.1 = context.frame;
        let index = (psn - pending.first) as usize;
        let whole = packet.payload.len() == packet.length;
        let differs = pending.sums.get(index).is_some_and(|sum| *sum != crc32c::crc32c(packet.payload));
        if whole && differs && pending.operation.cut == 0 {
            let text = format!("packet {:#08x} of {} came again with other bytes", packet.psn, self.from);
            context.finding(Topic::Differs, Some(self.connection), text);
        }
        self.repeated("a packet", context);
    }

    fn repeated_old(&mut self, context: &mut Context<'_>) {
        self.repeated("a packet that was acknowledged", context);
    }

    fn repeated(&mut self, what: &str, context: &mut Context<'_>) {
        let (topic, why) = match self.cause {
            Some(Cause::Sequence) => (Topic::NetworkLoss, "after a NAK for a missing packet"),
            Some(Cause::NotReady) => (Topic::NotReady, "after the receiver was not ready"),
            None => (Topic::NetworkLoss, "without a NAK: a timeout, or a copy that the network made"),
        };
        let text = format!("{} sent {what} again, {why}", self.from);
        context.finding(topic, Some(self.connection), text);
    }

    // ---- answers ----------------------------------------------------------------------------

    /// A packet of the responder.
    pub(super) fn answer(&mut self, packet: &Packet<'_>, context: &mut Context<'_>) {
        self.packets += 1;
        // Nothing was asked for yet: this number may be the first that is.
        let next = self.next.unwrap_or(START + u64::from(packet.psn));
        let psn = self.unwrap(packet.psn, next);
        match packet.opcode {
            Opcode::Acknowledge => self.acknowledgement(psn, packet, context),
            Opcode::Other(_) => {}
            opcode => {
                let response = Response {
                    ends: matches!(opcode, Opcode::ReadResponse(part) if part.ends()),
                    original: packet.original,
                    payload: packet.payload,
                    length: packet.length,
                };
                if !self.respond(psn, &response, context) {
                    self.keep_response(psn, &response, context);
                }
            }
        }
        self.flush(false, context);
    }

    /// A response; answers whether its request is there.
    fn respond(&mut self, psn: u64, response: &Response<'_>, context: &mut Context<'_>) -> bool {
        match response.original {
            Some(original) => self.atomic_response(psn, original, context),
            None => self.read_response(psn, response, context),
        }
    }

    /// Keeps a response in case its request is only captured later.
    fn keep_response(&mut self, psn: u64, response: &Response<'_>, context: &mut Context<'_>) {
        if psn < self.done {
            return;
        }
        if self.early.len() == MOST_EARLY || !context.budget.take(ORPHAN + response.payload.len()) {
            self.forget_early(context);
            return;
        }
        let &Response { ends, original, payload, length } = response;
        let (payload, frame, time) = (payload.to_vec(), context.frame, context.time);
        self.early.push((psn, Early { ends, original, payload, length, frame, time }));
    }

    /// Takes the responses that came before this request.
    fn take_early(&mut self, at: usize, context: &mut Context<'_>) {
        let now = (context.frame, context.time);
        let (first, last) = (self.pending[at].first, self.pending[at].last);
        let mut inside = |(psn, _): &mut (u64, Early)| *psn >= first && last.is_none_or(|last| *psn <= last);
        let taken: Vec<(u64, Early)> = self.early.extract_if(.., &mut inside).collect();
        for (psn, early) in taken {
            context.budget.give(ORPHAN + early.payload.len());
            (context.frame, context.time) = (early.frame, early.time);
            let Early { ends, original, ref payload, length, .. } = early;
            self.respond(psn, &Response { ends, original, payload, length }, context);
        }
        (context.frame, context.time) = now;
    }

    /// The requests of early responses will not come.
    fn forget_early(&mut self, context: &mut Context<'_>) {
        for (_, early) in std::mem::take(&mut self.early) {
            context.budget.give(ORPHAN + early.payload.len());
            let text = format!("a response to {} whose request is not in the capture", self.from);
            context.finding(Topic::Partial, Some(self.connection), text);
        }
    }

    fn acknowledgement(&mut self, psn: u64, packet: &Packet<'_>, context: &mut Context<'_>) {
        let now = (context.time, self.packets);
        match packet.syndrome {
            Some(Syndrome::Ack) => {
                // The requester has sent these packets, although the capture does not have them.
                if psn >= self.next.unwrap_or(psn) && psn < self.next.unwrap_or(psn) + WINDOW {
                    self.next = Some(psn + 1);
                }
                self.acknowledge_before(psn + 1, context);
                if let Some(pending) = self.at(psn).map(|at| &mut self.pending[at])
                    && pending.over == Some((Outcome::Implied, now.0, now.1))
                    && !pending.is_answered_by_data()
                {
                    pending.over = Some((Outcome::Acked, now.0, now.1));
                    pending.operation.frames.1 = pending.operation.frames.1.max(context.frame);
                }
            }
            Some(Syndrome::NotReady(_)) => {
                self.acknowledge_before(psn, context);
                self.cause = Some(Cause::NotReady);
                if let Some(pending) = self.at(psn).map(|at| &mut self.pending[at]) {
                    pending.not_ready += 1;
                }
                let text = format!("{} was not ready for packet {:#08x}", self.from.other(), packet.psn);
                context.finding(Topic::NotReady, Some(self.connection), text);
            }
            Some(Syndrome::Sequence) => {
                self.acknowledge_before(psn, context);
                self.cause = Some(Cause::Sequence);
                let text = format!("{} has not seen packet {:#08x}", self.from.other(), packet.psn);
                context.finding(Topic::NetworkLoss, Some(self.connection), text);
            }
            Some(Syndrome::Refused(reason)) => {
                self.acknowledge_before(psn, context);
                let found = self.at(psn).map(|at| &mut self.pending[at]).filter(|found| found.contains(psn));
                let about = found.map_or(String::new(), |pending| {
                    pending.over = Some((Outcome::Nak(reason), now.0, now.1));
                    pending.operation.frames.1 = context.frame;
                    format!(" the {} of frame {}", pending.operation.kind.name(), pending.operation.frames.0)
                });
                let text = format!("{} refused{about}: {reason}", self.from.other());
                context.finding(Topic::Refused, Some(self.connection), text);
            }
            Some(Syndrome::Reserved) | None => {}
        }
    }

    /// All operations that end before `psn` are over, if only because a later one is.
    fn acknowledge_before(&mut self, psn: u64, context: &mut Context<'_>) {
        let now = (context.time, self.packets);
        let outcome = if self.unreliable { Outcome::Unknown } else { Outcome::Implied };
        self.acknowledged = self.acknowledged.max(psn);
        let mut follower = u64::MAX;
        for pending in self.pending.iter_mut().rev() {
            // An operation without its last packet ends before the next one begins.
            let end = pending.last.map_or(follower, |last| last + 1);
            follower = pending.first;
            if end > psn {
                continue;
            }
            if pending.over.is_some() {
                break;
            }
            pending.over = Some((outcome.clone(), now.0, now.1));
        }
    }

    fn read_response(&mut self, psn: u64, response: &Response<'_>, context: &mut Context<'_>) -> bool {
        let (connection, packets) = (self.connection, self.packets);
        let &Response { ends, payload, length, .. } = response;
        self.learn_pmtu(ends, length);
        let pmtu = self.pmtu;
        let found = self.at(psn).map(|at| &mut self.pending[at]);
        let found =
            found.filter(|found| found.operation.kind == Kind::Read && found.contains(psn) && found.headed);
        let Some(pending) = found else { return false };
        if pmtu == 0 && psn > pending.first {
            // The place of this packet is not known.
            return true;
        }
        if pending.last.is_none() && pmtu > 0 {
            pending.last = Some(pending.first + pending.operation.length.div_ceil(pmtu).max(1) - 1);
        }
        let index = psn - pending.first;
        let last = pending.last;
        let offset = index * pmtu;
        if offset + length as u64 > pending.operation.length {
            let text = format!("a read of {} bytes is answered by more", pending.operation.length);
            context.finding(Topic::Protocol, Some(connection), text);
            return true;
        }
        if pending.answered.contains(index, index + 1) {
            pending.operation.resent += 1;
            self.repeated("a read response", context);
            return true;
        }
        pending.answered.insert(index, index + 1);
        let operation = &mut pending.operation;
        operation.packets += 1;
        operation.frames.1 = operation.frames.1.max(context.frame);
        operation.cut += (length - payload.len()) as u64;
        let (first, id) = (pending.first, operation.id);
        let memory = operation
            .target
            .map(|target| (Target { address: target.address.wrapping_add(offset), ..target }, Access::Read));
        if pending.packets().is_some_and(|packets| pending.answered.contains(0, packets)) {
            pending.over = Some((Outcome::Answered, context.time, packets));
        }
        if let Some(after) = last.map(|last| last + 1).filter(|after| *after > self.next.unwrap_or(0)) {
            self.next = Some(after);
        }
        let (from, frame) = (self.from, context.frame);
        context.bytes(&Placement { operation: id, connection, from, offset, memory, frame }, payload);
        self.acknowledge_before(first, context);
        true
    }

    fn atomic_response(&mut self, psn: u64, original: u64, context: &mut Context<'_>) -> bool {
        let (connection, packets) = (self.connection, self.packets);
        let found = self.at(psn).map(|at| &mut self.pending[at]).filter(|found| {
            found.first == psn && matches!(found.operation.kind, Kind::CompareSwap | Kind::FetchAdd)
        });
        let Some(pending) = found else { return false };
        if pending.answered.contains(0, 1) {
            pending.operation.resent += 1;
            self.repeated("an atomic response", context);
            return true;
        }
        pending.answered.insert(0, 1);
        pending.over = Some((Outcome::Answered, context.time, packets));
        let operation = &mut pending.operation;
        operation.packets += 1;
        operation.frames.1 = operation.frames.1.max(context.frame);
        if let Some(atomic) = &mut operation.atomic {
            atomic.old = Some(original);
        }
        let (id, from, frame) = (operation.id, self.from, context.frame);
        let memory = operation.target.map(|target| (target, Access::Found));
        let placement = Placement { operation: id, connection, from, offset: 0, memory, frame };
        context.bytes(&placement, &original.to_be_bytes());
        self.acknowledge_before(psn, context);
        true
    }

    // ---- reports ----------------------------------------------------------------------------

    /// Requests are reported as sent in the order of their numbers, each once it is whole and nothing is
    /// missing before it.
    fn report_sent(&mut self, context: &mut Context<'_>) {
        let from = self.pending.partition_point(|pending| pending.sent);
        let before = from.checked_sub(1).and_then(|before| self.pending[before].last);
        let mut expected = before.map_or(self.done, |last| last + 1);
        for pending in self.pending.range_mut(from..) {
            if pending.first != expected || !pending.is_whole() {
                break;
            }
            let Some(last) = pending.last else { break };
            expected = last + 1;
            pending.sent = true;
            sent(&pending.operation, self.responder, context);
        }
    }

    /// Reports what is over, in the order of the numbers; at the `end` all.
    fn flush(&mut self, end: bool, context: &mut Context<'_>) {
        while let Some(oldest) = self.pending.front() {
            let waited = oldest.over.as_ref().is_some_and(|(_, _, at)| self.packets - at >= PATIENCE);
            let settled = oldest.over.is_some() && oldest.is_complete() && oldest.first == self.done;
            let failed = oldest.over.as_ref().is_some_and(|(outcome, ..)| outcome.failed());
            let newest = oldest.last.unwrap_or(oldest.first);
            let crowded = self.next.is_some_and(|next| next.saturating_sub(newest) > WINDOW);
            if !(settled || waited || failed && oldest.first == self.done || crowded || end) {
                break;
            }
            if let Some(oldest) = self.pending.pop_front() {
                self.report(oldest, context);
            }
        }
        if end {
            self.gap = None;
        }
        if end || self.pending.is_empty() && self.orphans.len() as u64 > PATIENCE {
            self.miss(self.next.unwrap_or(self.done), context);
        }
    }

    /// Reports the oldest although it is not over.
    fn give_up(&mut self, context: &mut Context<'_>) -> bool {
        let Some(oldest) = self.pending.pop_front() else { return false };
        let text = format!("an operation of {} was reported before its end: too many are open", self.from);
        context.finding(Topic::GaveUp, Some(self.connection), text);
        self.report(oldest, context);
        true
    }

    fn report(&mut self, mut pending: Pending, context: &mut Context<'_>) {
        context.budget.give(pending.charge);
        let acknowledged = pending.over.as_ref().is_some_and(|(outcome, ..)| !outcome.failed());
        self.miss(pending.first, context);
        let end = pending.last.map_or_else(
            || pending.first + pending.got.as_slice().last().map_or(1, |range| range.1),
            |last| last + 1,
        );
        self.done = self.done.max(end);
        if self.gap.is_some_and(|(gap, _)| gap < self.done) {
            self.gap = None;
        }
        self.describe_missing(&mut pending, acknowledged, context);
        let Pending { mut operation, over, sent: was_sent, not_ready, .. } = pending;
        match over {
            Some((outcome, time, _)) => {
                operation.took = (outcome != Outcome::Unknown).then(|| time.saturating_sub(operation.time));
                operation.outcome = outcome;
            }
            None if not_ready > 0 => operation.outcome = Outcome::NotReady,
            None if !operation.missing.is_empty() => operation.outcome = Outcome::Incomplete,
            None => {}
        }
        if !was_sent {
            sent(&operation, self.responder, context);
        }
        context.ended(&operation);
    }

    /// Says which bytes of an operation never came.
    fn describe_missing(&self, pending: &mut Pending, acknowledged: bool, context: &mut Context<'_>) {
        let by_data = pending.is_answered_by_data();
        // A read that was never answered misses nothing that was there.
        if by_data && !acknowledged && pending.answered.total() == 0 {
            return;
        }
        let packets = pending.packets().unwrap_or_else(|| {
            pending.got.as_slice().last().map_or(1, |range| range.1) + u64::from(!by_data)
        });
        let seen = if by_data { &pending.answered } else { &pending.got };
        let (pmtu, length) = (self.pmtu.max(1), pending.operation.length);
        let mut lost = 0;
        for (from, to) in seen.missing(0, packets) {
            lost += to - from;
            let end =
                if pending.last.is_some() { (to * pmtu).min(length.max(from * pmtu)) } else { to * pmtu };
            if from * pmtu < end {
                pending.operation.missing.push((from * pmtu, end));
            }
        }
        if lost > 0 && acknowledged {
            let text = format!(
                "{lost} packets of the {} of frame {} were received and are not in the capture",
                pending.operation.kind.name(),
                pending.operation.frames.0
            );
            context.finding(Topic::CaptureLoss, Some(self.connection), text);
        }
    }

    /// Numbers up to `to` will not come any more: reports what is kept of them, and what is missing.
    fn miss(&mut self, to: u64, context: &mut Context<'_>) {
        let mut gap = 0;
        let mut at = self.done;
        while at < to {
            let orphan = self.orphans.range(at..to).next().map(|(psn, _)| *psn);
            gap += orphan.unwrap_or(to).min(self.acknowledged).saturating_sub(at);
            at = orphan.map_or(to, |psn| self.report_orphans(psn, to, context));
        }
        self.done = self.done.max(to);
        if gap > 0 {
            let text = format!("{gap} packets of {} were received and are not in the capture", self.from);
            context.finding(Topic::CaptureLoss, Some(self.connection), text);
        }
    }

    /// Reports packets in a row, whose operation has lost its beginning, as what is left of it. Answers the
    /// number after them.
    fn report_orphans(&mut self, first: u64, to: u64, context: &mut Context<'_>) -> u64 {
        let mut operation: Option<Operation> = None;
        let mut at = first;
        while at < to {
            let Some(orphan) = self.orphans.remove(&at) else { break };
            context.budget.give(ORPHAN + orphan.payload.len());
            at += 1;
            let id = if operation.is_none() { context.operation_id() } else { 0 };
            let known = operation.get_or_insert_with(|| {
                let frames = (orphan.frame, orphan.frame);
                Operation::new(id, self.connection, self.from, orphan.kind, frames, orphan.time)
            });
            known.packets += 1;
            known.frames.1 = known.frames.1.max(orphan.frame);
            known.length += orphan.length as u64;
            known.immediate = known.immediate.or(orphan.immediate);
            known.invalidate = known.invalidate.or(orphan.invalidate);
            known.outcome = Outcome::Incomplete;
            if orphan.ends || self.orphans.get(&at).is_none_or(|next| next.kind != orphan.kind) {
                break;
            }
        }
        if let Some(mut operation) = operation {
            // None of its bytes has a place.
            operation.missing.extend((operation.length > 0).then_some((0, operation.length)));
            context.sink.sent(&operation);
            context.ended(&operation);
        }
        at
    }

    /// Nothing more comes.
    pub(super) fn finish(&mut self, context: &mut Context<'_>) {
        self.flush(true, context);
        self.forget_early(context);
        for orphan in std::mem::take(&mut self.orphans).into_values() {
            context.budget.give(ORPHAN + orphan.payload.len());
        }
    }
}

/// Reports a request, which takes effect where it says so.
fn sent(operation: &Operation, responder: IpAddr, context: &mut Context<'_>) {
    context.sink.sent(operation);
    if let Some(key) = operation.invalidate {
        context.invalidate(responder, key);
    }
}
