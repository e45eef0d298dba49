//! When operations are reported, and what is missing of them.

use std::net::IpAddr;

use super::pieces::Pending;
use super::{ORPHAN, PATIENCE, Requests, WINDOW};
use crate::Operation;
use crate::context::Context;
use crate::finding::Topic;
use crate::operation::Outcome;

impl Requests {
    /// Requests are reported as sent in the order of their numbers, each once it is whole and nothing is
    /// missing before it.
    pub(super) fn report_sent(&mut self, context: &mut Context<'_>) {
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
    pub(super) fn flush(&mut self, end: bool, context: &mut Context<'_>) {
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
    pub(super) fn give_up(&mut self, context: &mut Context<'_>) -> bool {
        let Some(oldest) = self.pending.pop_front() else { return false };
        let text = format!("an operation of {} was reported before its end: too much is open", self.from);
        context.finding(Topic::GaveUp, Some(self.connection), text);
        self.report(oldest, context);
        true
    }

    /// Makes room for what is kept of these operations beyond the bound on memory.
    pub(super) fn pay(&mut self, context: &mut Context<'_>) {
        while context.budget.is_in_debt() && self.give_up(context) {}
    }

    fn report(&mut self, mut pending: Pending, context: &mut Context<'_>) {
        context.budget.give(pending.charge);
        let acknowledged = pending.over.as_ref().is_some_and(|(outcome, ..)| !outcome.failed());
        self.miss(pending.first, context);
        let end = pending.last.map_or_else(
            || pending.first + pending.got.iter().next_back().map_or(1, |range| range.1),
            |last| last + 1,
        );
        self.done = self.done.max(end);
        if self.gap.is_some_and(|(gap, _)| gap < self.done) {
            self.gap = None;
        }
        self.describe_missing(&mut pending, acknowledged, context);
        let Pending { operation, over, sent: was_sent, not_ready, .. } = &mut pending;
        match over.take() {
            Some((outcome, time, _)) => {
                operation.took = (outcome != Outcome::Unknown).then(|| time.saturating_sub(operation.time));
                operation.outcome = outcome;
            }
            None if *not_ready > 0 => operation.outcome = Outcome::NotReady,
            None if !operation.missing.is_empty() => operation.outcome = Outcome::Incomplete,
            None => {}
        }
        if !*was_sent {
            sent(operation, self.responder, context);
        }
        context.ended(operation);
    }

    /// Says which bytes of an operation never came.
    fn describe_missing(&self, pending: &mut Pending, acknowledged: bool, context: &mut Context<'_>) {
        let by_data = pending.is_answered_by_data();
        // A read that was never answered misses nothing that was there.
        if by_data && !acknowledged && pending.answered.total() == 0 {
            return;
        }
        let packets = pending.packets().unwrap_or_else(|| {
            pending.got.iter().next_back().map_or(1, |range| range.1) + u64::from(!by_data)
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
            // A read whose length is cut takes numbers as well.
            let (topic, why) = match self.cut {
                true => (Topic::Cut, "are not known, because headers are cut"),
                false => (Topic::CaptureLoss, "were received and are not in the capture"),
            };
            context.finding(topic, Some(self.connection), format!("{gap} packets of {} {why}", self.from));
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
    pub(in crate::roce) fn finish(&mut self, context: &mut Context<'_>) {
        self.flush(true, context);
        self.forget_early(context);
        for orphan in std::mem::take(&mut self.orphans).into_values() {
            context.budget.give(ORPHAN + orphan.payload.len());
        }
    }
}

/// Reports a request, which takes effect where it says so.
pub(super) fn sent(operation: &Operation, responder: IpAddr, context: &mut Context<'_>) {
    context.sink.sent(operation);
    if let Some(key) = operation.invalidate {
        context.invalidate(responder, key);
    }
}
