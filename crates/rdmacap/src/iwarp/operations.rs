//! DDP segments and RDMAP messages become operations.
//!
//! Messages of one direction follow each other in the stream, so that at most one write and one send are
//! open, and a response belongs to the oldest request that it fits. A request is over once TCP acknowledged
//! it or, for reads and atomics, once its response is whole. Operations are reported in the order in which
//! they were asked for.

use std::collections::VecDeque;
use std::net::IpAddr;

use iwarp_wire::ddp::{self, Header, Tagged, Untagged};
use iwarp_wire::mpa;
use iwarp_wire::rdmap::{
    About, AtomicKind, AtomicRequest, AtomicResponse, Opcode, ReadRequest, Terminate, parse_immediate,
};

use super::framing::{Fpdu, queue};
use crate::Operation;
use crate::context::Context;
use crate::operation::{Access, Atomic, Kind, Outcome, Placement, Side, Topic};
use crate::ranges::Ranges;

/// Most requests of one direction that have not ended.
const MOST_PENDING: usize = 1 << 16;
/// Requests that are kept for a Terminate that may come about them: TCP acknowledges what RDMAP then refuses.
const LINGER: usize = 16;
/// What a request takes of the budget.
const PENDING: usize = 512;

/// A request that has not ended.
#[derive(Debug)]
struct Pending {
    operation: Operation,
    /// Whether all of the request was seen, or will not be.
    sent: bool,
    /// Where in the stream it ended.
    end: u64,
    /// Bytes of it that were seen.
    got: Ranges,
    /// First tagged offset of a write.
    base: u64,
    /// What a read or an atomic asked for.
    asked: Asked,
    /// Whether it may have begun before what was seen of it.
    headless: bool,
    /// What it takes of the budget.
    charge: usize,
    /// What became of it, and when.
    over: Option<(Outcome, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Read(ReadRequest),
    Atomic { id: u32 },
}

/// What one side sends.
#[derive(Debug, Default)]
struct Half {
    pending: VecDeque<Pending>,
    /// The tagged message or send whose last segment has not come is the last of `pending`.
    open: bool,
    /// Message numbers that come next, by queue.
    numbers: [Option<u32>; 4],
    /// Something was passed over since the last frame.
    passed: bool,
    /// Something was passed over at some time.
    lossy: bool,
    /// Whether any frame has come.
    begun: bool,
    acknowledged: u64,
}

/// The operations of a connection, both ways.
#[derive(Debug)]
pub(super) struct Operations {
    connection: u32,
    hosts: [IpAddr; 2],
    halves: [Half; 2],
}

impl Operations {
    pub(super) fn new(hosts: [IpAddr; 2]) -> Self {
        Self { connection: 0, hosts, halves: Default::default() }
    }

    /// The connection's number.
    pub(super) fn named(&mut self, connection: u32) {
        self.connection = connection;
    }

    /// A frame that `side` sent.
    pub(super) fn fpdu(&mut self, side: Side, fpdu: &Fpdu<'_>, context: &mut Context<'_>) {
        let Ok(header) = Header::parse(fpdu.ulpdu) else { return };
        let payload = fpdu.ulpdu.get(ddp::header_length(fpdu.ulpdu[0])..).unwrap_or(&[]);
        match header {
            Header::Tagged(tagged) => match Opcode::parse(tagged.ulp) {
                Ok(Opcode::ReadResponse) => self.read_response(side, &tagged, payload, fpdu, context),
                _ => self.write(side, &tagged, payload, fpdu, context),
            },
            Header::Untagged(untagged) => {
                if let Ok(opcode) = Opcode::parse(untagged.ulp) {
                    self.untagged(side, opcode, &untagged, payload, fpdu, context);
                }
            }
        }
        let half = &mut self.halves[side.index()];
        (half.passed, half.begun) = (false, true);
        self.flush(side, false, context);
    }

    /// Bytes of `side` were passed over.
    pub(super) fn passed(&mut self, side: Side, context: &mut Context<'_>) {
        self.close_open(side, context);
        let half = &mut self.halves[side.index()];
        (half.passed, half.lossy) = (true, true);
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
        for pending in half.pending.range_mut(..whole).rev() {
            if pending.over.is_some() && pending.asked == Asked::Nothing {
                break;
            }
            if pending.end <= to && pending.asked == Asked::Nothing {
                pending.over = Some((Outcome::Acked, context.time));
            }
        }
        self.flush(side, false, context);
    }

    /// Nothing more comes.
    pub(super) fn finish(&mut self, context: &mut Context<'_>) {
        for side in [Side::A, Side::B] {
            self.close_open(side, context);
            self.flush(side, true, context);
        }
    }

    // ---- requests ---------------------------------------------------------------------------

    fn write(
        &mut self,
        side: Side,
        tagged: &Tagged,
        payload: &[u8],
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        let goes_on = self.halves[side.index()].open_last().is_some_and(|open| {
            open.operation.kind == Kind::Write
                && open.operation.target.is_some_and(|target| target.key == tagged.stag)
                && open.base.wrapping_add(open.operation.length) == tagged.offset
        });
        if !goes_on {
            self.close_open(side, context);
            let host = self.hosts[side.other().index()];
            let (after_loss, connection) = (self.halves[side.index()].passed, self.connection);
            let operation = self.begin(side, Kind::Write, fpdu, context);
            // Of an empty write the key means nothing (RFC 5040 5.1).
            if !(payload.is_empty() && tagged.last) {
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
        pending.add(payload, fpdu, offset);
        place(&placement, payload, fpdu, ddp::TAGGED, context);
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
        payload: &[u8],
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        if header.queue != queue(opcode) {
            let text = format!("{opcode:?} on queue {} from {side}", header.queue);
            context.finding(Topic::Protocol, Some(self.connection), text);
            return;
        }
        self.check_number(side, header, context);
        let whole = fpdu.gaps.is_empty();
        match opcode {
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => self.send(side, opcode, header, payload, fpdu, context),
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                let immediate = payload.first_chunk().filter(|_| whole).map(parse_immediate);
                self.immediate(side, opcode == Opcode::ImmediateSolicited, immediate, fpdu, context);
            }
            Opcode::ReadRequest => {
                if let Some(request) = payload.first_chunk().filter(|_| whole).map(ReadRequest::parse) {
                    self.read_request(side, request, fpdu, context);
                } else {
                    // The capture cut the request off.
                    self.close_open(side, context);
                    self.begin(side, Kind::Read, fpdu, context);
                    self.mark_sent(side, context);
                    self.halves[side.index()].lossy = true;
                }
            }
            Opcode::AtomicRequest => {
                if let Some(request) = payload.first_chunk().filter(|_| whole).and_then(AtomicRequest::parse)
                {
                    self.atomic_request(side, request, fpdu, context);
                }
            }
            Opcode::AtomicResponse => {
                if let Some(response) = payload.first_chunk().filter(|_| whole).map(AtomicResponse::parse) {
                    self.atomic_response(side, response, fpdu, context);
                }
            }
            Opcode::Terminate => self.terminate(side, payload, fpdu, context),
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
        payload: &[u8],
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        let offset = u64::from(header.offset);
        let goes_on = self.halves[side.index()].open_last().is_some_and(|open| {
            open.operation.kind == Kind::Send && open.operation.length == offset && offset > 0
        });
        if !goes_on {
            self.close_open(side, context);
            let operation = self.begin(side, Kind::Send, fpdu, context);
            operation.operation.invalidate = opcode.invalidates().then_some(header.ulp_word);
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
        pending.add(payload, fpdu, offset);
        place(&placement, payload, fpdu, ddp::UNTAGGED, context);
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
        solicited: bool,
        immediate: Option<u32>,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        self.close_open(side, context);
        // Immediate data right behind a write belongs to that write, but not to the empty one that opens a
        // connection.
        let last = self.halves[side.index()].pending.back_mut().filter(|last| {
            last.operation.kind == Kind::Write && last.operation.length > 0 && last.end == fpdu.span.0
        });
        if let Some(last) = last.filter(|last| last.operation.immediate.is_none()) {
            last.operation.immediate = immediate;
            last.operation.solicited = solicited;
            last.operation.packets += 1;
            last.end = fpdu.span.1;
            last.operation.frames.1 = fpdu.frames.1;
            last.over = None;
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
        self.close_open(side, context);
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
    }

    fn atomic_request(
        &mut self,
        side: Side,
        request: AtomicRequest,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        self.close_open(side, context);
        let (connection, host) = (self.connection, self.hosts[side.other().index()]);
        let (kind, compare) = match request.kind {
            AtomicKind::FetchAdd => (Kind::FetchAdd, 0),
            AtomicKind::CompareSwap => (Kind::CompareSwap, request.compare),
        };
        let pending = self.begin(side, kind, fpdu, context);
        pending.asked = Asked::Atomic { id: request.id };
        pending.operation.length = 8;
        pending.operation.packets = 1;
        pending.operation.atomic = Some(Atomic { operand: request.operand, compare, old: None });
        pending.operation.target = Some(context.target(connection, host, request.stag, request.offset));
        self.mark_sent(side, context);
    }

    // ---- responses --------------------------------------------------------------------------

    fn read_response(
        &mut self,
        side: Side,
        tagged: &Tagged,
        payload: &[u8],
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        let (requester, connection) = (side.other(), self.connection);
        let half = &mut self.halves[requester.index()];
        let fits = |pending: &Pending| match pending.asked {
            Asked::Read(request) if pending.over.is_none() => {
                let offset = tagged.offset.wrapping_sub(request.sink_offset);
                let end = offset.checked_add(payload.len() as u64);
                let inside = end.is_some_and(|end| end <= u64::from(request.length));
                (request.sink_stag == tagged.stag && inside || request.length == 0 && payload.is_empty())
                    .then_some(offset)
            }
            _ => None,
        };
        let found = half.pending.iter().enumerate().find_map(|(at, pending)| Some((at, fits(pending)?)));
        let Some((at, offset)) = found else {
            let text = format!(
                "no read in the capture asked for the response of {} bytes from {side} into {:#x} at {:#x}",
                payload.len(),
                tagged.stag,
                tagged.offset
            );
            // The request may be what the capture lacks.
            let explained = half.lossy || !half.begun;
            let topic = if explained { Topic::CaptureLoss } else { Topic::Protocol };
            context.finding(topic, Some(connection), text);
            return;
        };
        // Responses come in the order of the requests: what comes no more was not captured.
        for earlier in half.pending.iter_mut().take(at) {
            if earlier.asked != Asked::Nothing && earlier.over.is_none() {
                earlier.over = Some((Outcome::Implied, context.time));
            }
        }
        let pending = &mut half.pending[at];
        let offset = if payload.is_empty() { 0 } else { offset };
        let operation = &mut pending.operation;
        let mut placement = Placement {
            operation: operation.id,
            connection,
            from: requester,
            offset,
            memory: None,
            frame: 0,
        };
        let at = |target: Option<crate::Target>, access| {
            target.map(|target| {
                (crate::Target { address: target.address.wrapping_add(offset), ..target }, access)
            })
        };
        let (source, sink) = (at(operation.target, Access::Read), at(operation.sink, Access::Filled));
        pending.add(payload, fpdu, offset);
        if tagged.last {
            pending.over = Some((Outcome::Answered, context.time));
        }
        placement.memory = source;
        place(&placement, payload, fpdu, ddp::TAGGED, context);
        if sink.is_some() {
            placement.memory = sink;
            place(&placement, payload, fpdu, ddp::TAGGED, context);
        }
        self.flush(requester, false, context);
    }

    fn atomic_response(
        &mut self,
        side: Side,
        response: AtomicResponse,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        let (requester, connection) = (side.other(), self.connection);
        let asked = Asked::Atomic { id: response.id };
        let half = &mut self.halves[requester.index()];
        let found = half.pending.iter_mut().find(|pending| pending.asked == asked && pending.over.is_none());
        let Some(pending) = found else { return };
        pending.over = Some((Outcome::Answered, context.time));
        pending.got.insert(0, 8);
        pending.operation.frames.1 = fpdu.frames.1;
        pending.operation.packets += 1;
        if let Some(atomic) = &mut pending.operation.atomic {
            atomic.old = Some(response.original);
        }
        let placement = Placement {
            operation: pending.operation.id,
            connection,
            from: requester,
            offset: 0,
            memory: pending.operation.target.map(|target| (target, Access::Found)),
            frame: fpdu.frames.1,
        };
        context.bytes(&placement, &response.original.to_be_bytes());
        self.flush(requester, false, context);
    }

    fn terminate(&mut self, side: Side, payload: &[u8], fpdu: &Fpdu<'_>, context: &mut Context<'_>) {
        let Some(terminate) = payload.first_chunk().map(Terminate::parse) else { return };
        let about = About::parse(payload);
        let quoted = about.head.get(mpa::FPDU_LENGTH_FIELD..).and_then(|head| Header::parse(head).ok());
        let request = about.request.map(ReadRequest::parse);
        let is_it = |pending: &&mut Pending| {
            let target = pending.operation.target;
            match (quoted, pending.asked) {
                (Some(Header::Tagged(tagged)), Asked::Nothing) => target.is_some_and(|target| {
                    let at = tagged.offset.wrapping_sub(target.address);
                    target.key == tagged.stag && at < pending.operation.length
                }),
                (Some(Header::Untagged(_)), Asked::Read(asked)) => {
                    request.is_none_or(|quoted| quoted == asked)
                }
                (Some(Header::Untagged(quoted)), Asked::Nothing) => {
                    pending.operation.kind == Kind::Send && quoted.queue == 0
                }
                _ => false,
            }
        };
        let half = &mut self.halves[side.other().index()];
        let text = terminate.to_string();
        let mut failed = String::new();
        if let Some(pending) = half.pending.iter_mut().rev().find(is_it) {
            pending.over = Some((Outcome::Terminated(terminate.meaning().to_owned()), context.time));
            pending.operation.frames.1 = fpdu.frames.1;
            failed = format!(
                ", about the {} of frame {}",
                pending.operation.kind.name(),
                pending.operation.frames.0
            );
        }
        let text = format!("{side} terminated the connection: {text}{failed}");
        context.finding(Topic::Terminate, Some(self.connection), text);
    }

    // ---- what requests have in common -------------------------------------------------------

    fn begin(&mut self, side: Side, kind: Kind, fpdu: &Fpdu<'_>, context: &mut Context<'_>) -> &mut Pending {
        let operation =
            Operation::new(context.operation_id(), self.connection, side, kind, fpdu.frames, fpdu.time);
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
        let half = &mut self.halves[side.index()];
        half.pending.push_back(Pending {
            operation,
            sent: false,
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
        let Some(oldest) = self.halves[side.index()].pending.pop_front() else { return false };
        if !oldest.sent {
            context.sink.sent(&oldest.operation);
        }
        report(oldest, context);
        true
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
        let waits = last.operation.kind == Kind::Write
            && last.operation.length > 0
            && last.operation.immediate.is_none()
            && last.over.is_none();
        if !waits {
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
        while let Some(oldest) = half.pending.front() {
            let waits = oldest.over.is_none() || !oldest.sent || half.pending.len() <= LINGER;
            if waits && !end {
                break;
            }
            if let Some(oldest) = half.pending.pop_front() {
                report(oldest, context);
            }
        }
    }
}

impl Half {
    fn open_last(&self) -> Option<&Pending> {
        self.pending.back().filter(|_| self.open)
    }

    fn report_sent(&mut self, context: &mut Context<'_>) {
        self.report_sent_before(self.pending.len(), context);
    }

    fn report_sent_before(&mut self, count: usize, context: &mut Context<'_>) {
        // Those at the end are the ones that may not have been reported.
        let from = self.pending.iter().rposition(|pending| pending.sent).map_or(0, |at| at + 1);
        let open = usize::from(self.open);
        for pending in self.pending.range_mut(from..count.min(self.pending.len() - open).max(from)) {
            pending.sent = true;
            context.sink.sent(&pending.operation);
        }
    }
}

impl Pending {
    /// Adds a segment at `offset` of the message.
    fn add(&mut self, payload: &[u8], fpdu: &Fpdu<'_>, offset: u64) {
        let operation = &mut self.operation;
        operation.packets += 1;
        operation.frames.1 = operation.frames.1.max(fpdu.frames.1);
        let end = offset.saturating_add(payload.len() as u64);
        if self.asked == Asked::Nothing {
            operation.length = end;
            self.end = fpdu.span.1;
        }
        self.got.insert(offset, end);
        let header = fpdu.ulpdu.len() - payload.len();
        for &(from, to) in fpdu.gaps {
            let (from, to) = (from.saturating_sub(header) as u64, to.saturating_sub(header) as u64);
            if fpdu.cut {
                operation.cut += to - from;
            } else if from < to {
                operation.missing.push((offset + from, offset + to));
            }
        }
    }
}

/// Reports an operation that is over, or is not but the capture is.
fn report(pending: Pending, context: &mut Context<'_>) {
    let Pending { mut operation, got, over, headless, charge, .. } = pending;
    context.budget.give(charge);
    let whole = got.contains(0, operation.length);
    let seen_nothing = matches!(over, None | Some((Outcome::Terminated(_), _)));
    let never_answered = seen_nothing && got.total() == 0;
    if !whole && !never_answered {
        operation.missing.extend(got.missing(0, operation.length));
        operation.missing.sort_unstable();
        operation.missing.dedup();
    }
    match over {
        Some((outcome, time)) => {
            operation.outcome = outcome;
            operation.took = Some(time.saturating_sub(operation.time));
        }
        None if !operation.missing.is_empty() => operation.outcome = Outcome::Incomplete,
        None => {}
    }
    if headless && !operation.outcome.failed() {
        operation.outcome = Outcome::Incomplete;
    }
    context.ended(&operation);
}

/// Hands on what there is of a segment's payload; `header` bytes of the ULPDU are before it.
fn place(placement: &Placement, payload: &[u8], fpdu: &Fpdu<'_>, header: usize, context: &mut Context<'_>) {
    let mut at = 0;
    let ends = fpdu.gaps.iter().map(|&(from, to)| (from.saturating_sub(header), to.saturating_sub(header)));
    for (from, to) in ends.chain([(payload.len(), payload.len())]) {
        if let Some(bytes) = payload.get(at..from) {
            let mut placement = Placement { frame: fpdu.frames.1, ..*placement };
            placement.offset += at as u64;
            if let Some((target, _)) = &mut placement.memory {
                target.address = target.address.wrapping_add(at as u64);
            }
            context.bytes(&placement, bytes);
        }
        at = to;
    }
}
