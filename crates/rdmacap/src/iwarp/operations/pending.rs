//! Requests that have not ended, and how they are reported.

use std::collections::VecDeque;

use iwarp_wire::ddp;
use iwarp_wire::rdmap::{IMMEDIATE, ReadRequest, parse_immediate};

use super::super::framing::Fpdu;
use super::early::Responses;
use crate::Operation;
use crate::context::{Budget, Context};
use crate::finding::Topic;
use crate::operation::{Kind, Outcome, Placement};
use crate::ranges::Ranges;

/// A request that has not ended.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) operation: Operation,
    /// Where in the stream it ended.
    pub(super) end: u64,
    /// Bytes of it that were seen.
    pub(super) got: Ranges,
    /// First tagged offset of a write.
    pub(super) base: u64,
    /// What a read or an atomic asked for.
    pub(super) asked: Asked,
    /// Whether it may have begun before what was seen of it.
    pub(super) headless: bool,
    /// What it takes of the budget.
    pub(super) charge: usize,
    /// What became of it, and when.
    pub(super) over: Option<(Outcome, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Nothing,
    Read(ReadRequest),
    Atomic { id: u32 },
}

/// What a segment carries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Payload<'a> {
    /// What there is of it, with zeros where bytes are missing before others.
    pub(super) bytes: &'a [u8],
    pub(super) length: usize,
    /// Bytes of the ULPDU before it.
    pub(super) header: usize,
}

impl<'a> Payload<'a> {
    /// That of an FPDU that has a header.
    pub(super) fn of(fpdu: &Fpdu<'a>) -> Self {
        let header = ddp::header_length(fpdu.ulpdu[0]);
        let bytes = fpdu.ulpdu.get(header..).unwrap_or(&[]);
        Self { bytes, length: fpdu.length.saturating_sub(header), header }
    }

    /// The immediate data that it begins with, if the capture has them.
    pub(super) fn immediate(&self, fpdu: &Fpdu<'_>) -> Option<u64> {
        let end = self.header + IMMEDIATE;
        let is_there = fpdu.gaps.first().is_none_or(|(from, _)| *from >= end);
        self.bytes.first_chunk().filter(|_| is_there).map(parse_immediate)
    }
}

/// What one side sends.
#[derive(Debug, Default)]
pub(super) struct Half {
    pub(super) pending: VecDeque<Pending>,
    /// How many of them were reported as sent: all of the request was seen, or will not be. The first ones.
    pub(super) sent: usize,
    /// How many of them TCP has acknowledged. The first ones.
    pub(super) acked: usize,
    /// How many of them are known to wait for no data, or no more. The first ones.
    answered: usize,
    /// The tagged message or send whose last segment has not come is the last of `pending`.
    pub(super) open: bool,
    /// Message numbers that come next, by queue.
    pub(super) numbers: [Option<u32>; 4],
    /// Something was passed over since the last frame.
    pub(super) passed: bool,
    /// Something was passed over at some time: why.
    pub(super) lossy: Option<Topic>,
    /// Whether any frame has come.
    pub(super) begun: bool,
    pub(super) acknowledged: u64,
    /// What answers requests that are not known yet.
    pub(super) early: Responses,
    /// More was asked for at a time than the other side serves.
    pub(super) exceeded: bool,
}

impl Half {
    pub(super) fn open_last(&self) -> Option<&Pending> {
        self.pending.back().filter(|_| self.open)
    }

    /// Where the first is that waits for data; if none does, how many there are.
    pub(super) fn first_outstanding(&mut self) -> usize {
        while self.pending.get(self.answered).is_some_and(|pending| !pending.is_outstanding()) {
            self.answered += 1;
        }
        self.answered
    }

    /// Whether all of the stream is known before the frame that is looked at.
    pub(super) fn is_certain(&self) -> bool {
        self.begun && !self.passed
    }

    pub(super) fn report_sent(&mut self, context: &mut Context<'_>) {
        self.report_sent_before(self.pending.len(), context);
    }

    pub(super) fn report_sent_before(&mut self, count: usize, context: &mut Context<'_>) {
        let count = count.min(self.pending.len() - usize::from(self.open));
        while self.sent < count {
            context.sink.sent(&self.pending[self.sent].operation);
            self.sent += 1;
        }
    }

    /// Reports the oldest, which is over or is not but the capture is.
    pub(super) fn report(&mut self, context: &mut Context<'_>) {
        if let Some(oldest) = self.pending.front_mut() {
            report(oldest, context);
            self.pending.pop_front();
            for count in [&mut self.sent, &mut self.acked, &mut self.answered] {
                *count = count.saturating_sub(1);
            }
        }
    }
}

impl Pending {
    /// Whether immediate data right behind it belong to it. Between message endpoints these are marked; else
    /// the empty write that opens a connection has none.
    pub(super) fn takes_immediate(&self, messages: bool) -> bool {
        let Operation { kind, length, immediate, .. } = self.operation;
        kind == Kind::Write && immediate.is_none() && (messages || length > 0)
    }

    /// Whether it waits for data.
    pub(super) fn is_outstanding(&self) -> bool {
        self.asked != Asked::Nothing && self.over.is_none()
    }

    /// Adds a segment at `offset` of the message.
    pub(super) fn add(&mut self, payload: Payload<'_>, fpdu: &Fpdu<'_>, offset: u64, budget: &Budget) {
        let before = self.holes();
        let operation = &mut self.operation;
        operation.packets += 1;
        operation.frames.1 = operation.frames.1.max(fpdu.frames.1);
        let end = offset.saturating_add(payload.length as u64);
        if self.asked == Asked::Nothing {
            operation.length = end;
            self.end = fpdu.span.1;
        }
        self.got.insert(offset, end);
        let header = payload.header;
        for &(from, to) in fpdu.gaps {
            let (from, to) = (from.saturating_sub(header) as u64, to.saturating_sub(header) as u64);
            if fpdu.cut {
                operation.cut += to - from;
            } else if from < to {
                operation.missing.push((offset + from, offset + to));
            }
        }
        let more = self.holes().saturating_sub(before);
        self.charge += more;
        budget.owe(more);
    }

    /// Bytes of memory that say which bytes are there and which are not.
    fn holes(&self) -> usize {
        self.got.weight() + size_of_val(&*self.operation.missing)
    }
}

fn report(pending: &mut Pending, context: &mut Context<'_>) {
    let Pending { operation, got, over, headless, charge, .. } = pending;
    context.budget.give(*charge);
    let end = got.iter().next_back().map_or(0, |(_, end)| end);
    let expected = match over {
        // What would have come behind that was never sent.
        Some((Outcome::Terminated(_), _)) => end,
        None if end == 0 => 0,
        _ => operation.length,
    };
    if !got.contains(0, expected) {
        operation.missing.extend(got.missing(0, expected));
        operation.missing.sort_unstable();
        operation.missing.dedup();
    }
    match over.take() {
        Some((outcome, time)) => {
            operation.outcome = outcome;
            operation.took = Some(time.saturating_sub(operation.time));
        }
        None if !operation.missing.is_empty() => operation.outcome = Outcome::Incomplete,
        None => {}
    }
    if *headless && !operation.outcome.failed() {
        operation.outcome = Outcome::Incomplete;
    }
    context.ended(operation);
}

/// Hands on what there is of a segment's payload.
pub(super) fn place(placement: &Placement, payload: Payload<'_>, fpdu: &Fpdu<'_>, context: &mut Context<'_>) {
    let Payload { bytes: payload, header, .. } = payload;
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
