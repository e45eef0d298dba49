//! DDP segments and RDMAP messages become operations.
//!
//! Messages of one direction follow each other in the stream, so that at most one write and one send are
//! open, and a response belongs to the oldest request that it fits. A request is over once TCP acknowledged
//! it or, for reads and atomics, once its response is whole. Operations are reported in the order in which
//! they were asked for.

mod early;
mod pending;
mod responses;

use std::fmt::Display;
use std::net::IpAddr;

use iwarp_wire::ddp::{Header, Tagged, Untagged};
use iwarp_wire::rdmap::{AtomicKind, AtomicRequest, AtomicResponse, Opcode, ReadRequest, marks};
use rstream_protocol::Hello;

use self::early::Answer;
use self::pending::{Asked, Half, Payload, Pending, place};
use super::framing::{Fpdu, queue};
use crate::Operation;
use crate::context::Context;
use crate::finding::Topic;
use crate::operation::{Access, Atomic, Connection, Kind, Outcome, Placement, Side};
use crate::ranges::Ranges;

/// Most requests of one direction that have not ended.
const MOST_PENDING: usize = 1 << 14;
/// Requests that are kept for a Terminate that may come about them: TCP acknowledges what RDMAP then refuses.
const LINGER: usize = 16;
/// What a request takes of the budget.
const PENDING: usize = 512;

/// The operations of a connection, both ways.
#[derive(Debug)]
pub(super) struct Operations {
    connection: u32,
    hosts: [IpAddr; 2],
    serves: [Option<u16>; 2],
    /// Whether both ends are message endpoints of rstream, which mark immediate data.
    messages: bool,
    halves: [Half; 2],
}

impl Operations {
    pub(super) fn new(hosts: [IpAddr; 2]) -> Self {
        Self { connection: 0, hosts, serves: [None; 2], messages: false, halves: Default::default() }
    }

    /// The connection has a number, and its handshake was seen as far as it will be.
    pub(super) fn named(&mut self, info: &Connection) {
        (self.connection, self.serves) = (info.id, info.reads);
        let is_hello =
            |data: &Option<Vec<u8>>| data.as_deref().is_some_and(|data| Hello::decode(data).is_some());
        self.messages = info.private_data.iter().all(is_hello);
    }

    /// A frame that `side` sent.
    pub(super) fn fpdu(&mut self, side: Side, fpdu: &Fpdu<'_>, context: &mut Context<'_>) {
        // One that is empty may open a connection (RFC 6581 4.5).
        if fpdu.ulpdu.is_empty() {
            return;
        }
        let header = match Header::parse(fpdu.ulpdu) {
            Ok(header) => header,
            Err(error) => return self.wrong(side, &error, context),
        };
        if !self.halves[side.index()].early.is_empty() {
            self.forget_early(side, fpdu.frames.0, context);
        }
        let payload = Payload::of(fpdu);
        match header {
            Header::Tagged(tagged) => match Opcode::parse(tagged.ulp) {
                Ok(Opcode::ReadResponse) => {
                    self.response(side, Answer::Read(tagged), payload, fpdu, context);
                }
                Ok(Opcode::Write) => self.write(side, &tagged, payload, fpdu, context),
                Ok(opcode) => return self.wrong(side, &format!("{opcode:?} in a tagged segment"), context),
                Err(error) => return self.wrong(side, &error, context),
            },
            Header::Untagged(untagged) => match Opcode::parse(untagged.ulp) {
                Ok(opcode) => self.untagged(side, opcode, &untagged, payload, fpdu, context),
                Err(error) => return self.wrong(side, &error, context),
            },
        }
        let half = &mut self.halves[side.index()];
        (half.passed, half.begun) = (false, true);
        self.flush(side, false, context);
        self.pay(side, context);
    }

    /// A segment that RDMAP does not have.
    fn wrong(&mut self, side: Side, what: &dyn Display, context: &mut Context<'_>) {
        context.finding(Topic::Protocol, Some(self.connection), format!("{what}, from {side}"));
        self.passed(side, Topic::Protocol, context);
    }

    /// Bytes of `side` were passed over, because of this.
    pub(super) fn passed(&mut self, side: Side, why: Topic, context: &mut Context<'_>) {
        self.close_open(side, context);
        let half = &mut self.halves[side.index()];
        (half.passed, half.lossy) = (true, Some(why));
        half.numbers = [None; 4];
    }

    /// The peer of `side` acknowledged its stream up to this offset.
    pub(super) fn acknowledged(&mut self, side: Side, to: u64, context: &mut Context<'_>) {
        let half = &mut self.halves[side.index()];
        if to <= half.acknowledged {
            return;
        }
        half.acknowledged = to;
        let whole = half.pending.len() - usize::from(half.open);
        while half.acked < whole && half.pending[half.acked].end <= to {
            let pending = &mut half.pending[half.acked];
            if pending.asked == Asked::Nothing && pending.over.is_none() {
                pending.over = Some((Outcome::Acked, context.time));
            }
            half.acked += 1;
        }
        self.flush(side, false, context);
    }

    /// Nothing more comes.
    pub(super) fn finish(&mut self, context: &mut Context<'_>) {
        for side in [Side::A, Side::B] {
            self.forget_early(side, u64::MAX, context);
            self.close_open(side, context);
            self.flush(side, true, context);
        }
    }

    fn write(
        &mut self,
        side: Side,
        tagged: &Tagged,
        payload: Payload<'_>,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        let goes_on = self.halves[side.index()].open_last().is_some_and(|open| {
            open.operation.kind == Kind::Write
                && open.operation.target.is_some_and(|target| target.key == tagged.stag)
                && open.base.wrapping_add(open.operation.length) == tagged.offset
        });
        if !goes_on {
            self.interrupt(side, context);
            let host = self.hosts[side.other().index()];
            let (after_loss, connection) = (self.halves[side.index()].passed, self.connection);
            let operation = self.begin(side, Kind::Write, fpdu, context);
            // Of an empty write the key means nothing (RFC 5040 5.1).
            if !(payload.length == 0 && tagged.last) {
                let target = context.target(connection, host, tagged.stag, tagged.offset);
                operation.operation.target = Some(target);
            }
            operation.base = tagged.offset;
            // Segments before this one may be among what was passed over; nothing tells.
            operation.headless = after_loss;
        }
        let connection = self.connection;
        let Some(pending) = self.halves[side.index()].pending.back_mut() else { return };
        let offset = pending.operation.length;
        let memory = pending.operation.target.map(|mut target| {
            target.address = tagged.offset;
            (target, Access::Written)
        });
        let placement =
            Placement { operation: pending.operation.id, connection, from: side, offset, memory, frame: 0 };
        pending.add(payload, fpdu, offset, context.budget);
        place(&placement, payload, fpdu, context);
        self.halves[side.index()].open = !tagged.last;
        if tagged.last {
            self.mark_sent(side, context);
        }
    }

    fn untagged(
        &mut self,
        side: Side,
        opcode: Opcode,
        header: &Untagged,
        payload: Payload<'_>,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        if header.queue != queue(opcode) {
            return self.wrong(side, &format!("{opcode:?} on queue {}", header.queue), context);
        }
        self.check_number(side, header, context);
        let whole = fpdu.gaps.is_empty();
        match opcode {
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => self.send(side, opcode, header, payload, fpdu, context),
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                self.immediate(side, opcode, header, payload.immediate(fpdu), fpdu, context);
            }
            Opcode::ReadRequest => {
                if let Some(request) = payload.bytes.first_chunk().filter(|_| whole).map(ReadRequest::parse) {
                    self.read_request(side, request, fpdu, context);
                } else {
                    // The capture cut the request off.
                    self.interrupt(side, context);
                    self.begin(side, Kind::Read, fpdu, context);
                    self.mark_sent(side, context);
                    self.halves[side.index()].lossy = Some(Topic::Cut);
                }
            }
            Opcode::AtomicRequest => {
                if let Some(request) =
                    payload.bytes.first_chunk().filter(|_| whole).and_then(AtomicRequest::parse)
                {
                    self.atomic_request(side, request, fpdu, context);
                }
            }
            Opcode::AtomicResponse => {
                if let Some(response) =
                    payload.bytes.first_chunk().filter(|_| whole).map(AtomicResponse::parse)
                {
                    self.response(side, Answer::Atomic(response), payload, fpdu, context);
                }
            }
            Opcode::Terminate => self.terminate(side, payload.bytes, fpdu, context),
            Opcode::Write | Opcode::ReadResponse => {}
        }
    }

    fn check_number(&mut self, side: Side, header: &Untagged, context: &mut Context<'_>) {
        let Some(next) = self.halves[side.index()].numbers.get_mut(header.queue as usize) else { return };
        let expected = next.replace(header.sequence.wrapping_add(u32::from(header.last)));
        if let Some(expected) = expected.filter(|expected| *expected != header.sequence) {
            let (queue, found) = (header.queue, header.sequence);
            let text =
                format!("message {found} on queue {queue} from {side}, after which {expected} was due");
            context.finding(Topic::Protocol, Some(self.connection), text);
        }
    }

    fn send(
        &mut self,
        side: Side,
        opcode: Opcode,
        header: &Untagged,
        payload: Payload<'_>,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        let offset = u64::from(header.offset);
        let goes_on = self.halves[side.index()].open_last().is_some_and(|open| {
            open.operation.kind == Kind::Send && open.operation.length == offset && offset > 0
        });
        if !goes_on {
            let (is_open, knows_before) =
                (self.halves[side.index()].open, self.halves[side.index()].is_certain());
            self.interrupt(side, context);
            if offset > 0 && !is_open && knows_before {
                let text = format!("a message of {side} begins at byte {offset}");
                context.finding(Topic::Protocol, Some(self.connection), text);
            }
            let invalidate = opcode.invalidates().then_some(header.ulp_word);
            let is_marked = self.messages && invalidate.is_none() && header.ulp_word == marks::WITH_DATA;
            let operation = self.begin(side, Kind::Send, fpdu, context);
            operation.operation.immediate = payload.immediate(fpdu).filter(|_| is_marked && offset == 0);
            operation.operation.invalidate = invalidate;
            operation.operation.solicited =
                matches!(opcode, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate);
            if offset > 0 {
                // It began among what was passed over.
                operation.operation.missing.push((0, offset));
                operation.operation.length = offset;
            }
        }
        let connection = self.connection;
        let Some(pending) = self.halves[side.index()].pending.back_mut() else { return };
        let placement = Placement {
            operation: pending.operation.id,
            connection,
            from: side,
            offset,
            memory: None,
            frame: 0,
        };
        pending.add(payload, fpdu, offset, context.budget);
        place(&placement, payload, fpdu, context);
        self.halves[side.index()].open = !header.last;
        if header.last {
            self.mark_sent(side, context);
            if let Some(key) = opcode.invalidates().then_some(header.ulp_word) {
                context.invalidate(self.hosts[side.other().index()], key);
            }
        }
    }

    fn immediate(
        &mut self,
        side: Side,
        opcode: Opcode,
        header: &Untagged,
        immediate: Option<u64>,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        self.interrupt(side, context);
        let solicited = opcode == Opcode::ImmediateSolicited;
        let messages = self.messages;
        let is_of_write = !messages || header.ulp_word == marks::OF_WRITE;
        let half = &mut self.halves[side.index()];
        let fits = |last: &&mut Pending| last.takes_immediate(messages) && last.end == fpdu.span.0;
        if let Some(last) = half.pending.back_mut().filter(|last| is_of_write && fits(last)) {
            last.operation.immediate = immediate;
            last.operation.solicited = solicited;
            last.operation.packets += 1;
            last.end = fpdu.span.1;
            last.operation.frames.1 = fpdu.frames.1;
            last.over = None;
            half.acked = half.acked.min(half.pending.len() - 1);
            self.mark_sent(side, context);
            return;
        }
        let operation = self.begin(side, Kind::Immediate, fpdu, context);
        operation.operation.immediate = immediate;
        operation.operation.solicited = solicited;
        operation.operation.packets = 1;
        self.mark_sent(side, context);
    }

    fn read_request(&mut self, side: Side, request: ReadRequest, fpdu: &Fpdu<'_>, context: &mut Context<'_>) {
        self.interrupt(side, context);
        let hosts = self.hosts;
        let connection = self.connection;
        let pending = self.begin(side, Kind::Read, fpdu, context);
        pending.asked = Asked::Read(request);
        pending.operation.length = u64::from(request.length);
        pending.operation.packets = 1;
        if request.length > 0 {
            let (source, sink) = (hosts[side.other().index()], hosts[side.index()]);
            pending.operation.target =
                Some(context.target(connection, source, request.source_stag, request.source_offset));
            pending.operation.sink =
                Some(context.target(connection, sink, request.sink_stag, request.sink_offset));
        }
        self.mark_sent(side, context);
        self.take_early(side, context);
    }

    fn atomic_request(
        &mut self,
        side: Side,
        request: AtomicRequest,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        self.interrupt(side, context);
        let (connection, host) = (self.connection, self.hosts[side.other().index()]);
        let masks = [request.operand_mask, request.compare_mask];
        let (kind, compare, masked) = match request.kind {
            // Nothing is carried beyond the highest bit anyway.
            AtomicKind::FetchAdd => (Kind::FetchAdd, 0, masks[0] << 1 != 0),
            AtomicKind::CompareSwap => (Kind::CompareSwap, request.compare, masks != [u64::MAX; 2]),
        };
        let pending = self.begin(side, kind, fpdu, context);
        pending.asked = Asked::Atomic { id: request.id };
        pending.operation.length = 8;
        pending.operation.packets = 1;
        pending.operation.atomic = Some(Atomic { operand: request.operand, compare, masked, old: None });
        pending.operation.target = Some(context.target(connection, host, request.stag, request.offset));
        self.mark_sent(side, context);
        self.take_early(side, context);
    }

    fn begin(&mut self, side: Side, kind: Kind, fpdu: &Fpdu<'_>, context: &mut Context<'_>) -> &mut Pending {
        if self.halves[side.index()].pending.len() >= MOST_PENDING {
            self.give_up(side, context);
        }
        // The oldest is reported as it stands. Where none is left, others have the whole budget.
        let mut charge = PENDING;
        while !context.budget.take(charge) {
            if !self.give_up(side, context) {
                charge = 0;
            }
        }
        let (id, connection) = (context.operation_id(), self.connection);
        let half = &mut self.halves[side.index()];
        half.pending.push_back(Pending {
            operation: Operation::new(id, connection, side, kind, fpdu.frames, fpdu.time),
            end: fpdu.span.1,
            got: Ranges::default(),
            base: 0,
            asked: Asked::Nothing,
            headless: false,
            charge,
            over: None,
        });
        let last = half.pending.len() - 1;
        &mut half.pending[last]
    }

    /// Ends the oldest request although it is not over.
    fn give_up(&mut self, side: Side, context: &mut Context<'_>) -> bool {
        let half = &mut self.halves[side.index()];
        if half.pending.is_empty() {
            return false;
        }
        if half.pending.len() == 1 && std::mem::take(&mut half.open) {
            // What follows of the message cannot tell where it began.
            (half.passed, half.lossy) = (true, Some(Topic::GaveUp));
        }
        half.report_sent_before(1, context);
        half.report(context);
        let text = format!("an operation of {side} was reported before its end: too much is open");
        context.finding(Topic::GaveUp, Some(self.connection), text);
        true
    }

    /// Makes room for what is kept of this connection's operations beyond the bound on memory.
    fn pay(&mut self, side: Side, context: &mut Context<'_>) {
        while context.budget.is_in_debt()
            && (self.give_up(side, context) || self.give_up(side.other(), context))
        {}
    }

    /// Another message begins, although the open one has not ended.
    fn interrupt(&mut self, side: Side, context: &mut Context<'_>) {
        let half = &self.halves[side.index()];
        if half.open && half.is_certain() {
            let text = format!("{side} breaks a message off before its end");
            context.finding(Topic::Protocol, Some(self.connection), text);
        }
        self.close_open(side, context);
    }

    /// The open message will not go on.
    fn close_open(&mut self, side: Side, context: &mut Context<'_>) {
        let half = &mut self.halves[side.index()];
        if std::mem::take(&mut half.open) {
            if let Some(open) = half.pending.back_mut() {
                // How long it would have been is not known.
                open.over = Some((Outcome::Incomplete, context.time));
            }
            self.mark_sent(side, context);
        }
    }

    fn mark_sent(&mut self, side: Side, context: &mut Context<'_>) {
        let half = &mut self.halves[side.index()];
        let Some(last) = half.pending.back_mut() else { return };
        // A write may still be given an immediate by what follows it, and is reported then.
        if !last.takes_immediate(self.messages) || last.over.is_some() {
            half.report_sent(context);
        }
    }

    /// Reports what is over, oldest first; at the `end` what is not as well.
    fn flush(&mut self, side: Side, end: bool, context: &mut Context<'_>) {
        let half = &mut self.halves[side.index()];
        let count = half.pending.len();
        // Only the last write may still be given an immediate.
        let settled = if end { count } else { count.saturating_sub(1) };
        half.report_sent_before(settled, context);
        let lingers = if end { 0 } else { LINGER };
        while half.pending.len() > lingers && (end || half.sent > 0 && half.pending[0].over.is_some()) {
            half.report(context);
        }
    }
}
