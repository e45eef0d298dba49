//! Responses whose requests are not known yet: where a stream is searched for FPDUs, those that ask are found
//! later than those that answer.

use iwarp_wire::ddp::Tagged;
use iwarp_wire::rdmap::AtomicResponse;

use super::super::framing::{Fpdu, SEARCHED};
use super::{Operations, Payload};
use crate::context::Context;
use crate::finding::Topic;
use crate::operation::Side;

/// What a response takes beside its bytes.
const EARLY: usize = 256;

/// What answers a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    Read(Tagged),
    Atomic(AtomicResponse),
}

/// An FPDU of a response, and when it was captured.
#[derive(Debug)]
struct Early {
    answer: Answer,
    ulpdu: Vec<u8>,
    length: usize,
    gaps: Vec<(usize, usize)>,
    cut: bool,
    span: (u64, u64),
    frames: (u64, u64),
    time: u64,
    ended: u64,
}

impl Early {
    fn fpdu(&self) -> Fpdu<'_> {
        let &Self { ref ulpdu, length, ref gaps, cut, span, frames, time, .. } = self;
        Fpdu { ulpdu, length, gaps, cut, span, frames, time }
    }

    /// Bytes of memory.
    fn weight(&self) -> usize {
        EARLY + self.ulpdu.len() + size_of_val(&*self.gaps)
    }
}

/// Such responses to the requests of one side, in the order of the wire.
#[derive(Debug, Default)]
pub(super) struct Responses {
    kept: Vec<Early>,
    weight: usize,
}

impl Responses {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl Operations {
    /// A response of `side`.
    pub(super) fn response(
        &mut self,
        side: Side,
        answer: Answer,
        payload: Payload<'_>,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) {
        if !self.answer(side, answer, payload, fpdu, context) && !self.keep(side, answer, fpdu, context) {
            let half = &self.halves[side.other().index()];
            // The request may be what the capture lacks.
            let late = (!half.begun).then_some(Topic::CaptureLoss);
            self.unasked(
                side,
                answer,
                payload.length,
                half.lossy.or(late).unwrap_or(Topic::Protocol),
                context,
            );
        }
    }

    /// Answers whether the request is known, which then has its response.
    fn answer(
        &mut self,
        side: Side,
        answer: Answer,
        payload: Payload<'_>,
        fpdu: &Fpdu<'_>,
        context: &mut Context<'_>,
    ) -> bool {
        match answer {
            Answer::Read(tagged) => self.read_response(side, &tagged, payload, fpdu, context),
            Answer::Atomic(response) => self.atomic_response(side, response, fpdu, context),
        }
    }

    /// Keeps a response if its request may yet be found: answers whether it is kept.
    fn keep(&mut self, side: Side, answer: Answer, fpdu: &Fpdu<'_>, context: &Context<'_>) -> bool {
        let half = &mut self.halves[side.other().index()];
        if half.is_certain() {
            return false;
        }
        let &Fpdu { ulpdu, length, gaps, cut, span, frames, time } = fpdu;
        let (ulpdu, gaps, ended) = (ulpdu.to_vec(), gaps.to_vec(), context.time);
        let early = Early { answer, ulpdu, length, gaps, cut, span, frames, time, ended };
        let takes = early.weight();
        if half.early.weight + takes > SEARCHED || !context.budget.take(takes) {
            return false;
        }
        half.early.weight += takes;
        half.early.kept.push(early);
        true
    }

    /// A request of `side` is known now: takes what answers it.
    pub(super) fn take_early(&mut self, side: Side, context: &mut Context<'_>) {
        let now = (context.frame, context.time);
        for early in std::mem::take(&mut self.halves[side.index()].early.kept) {
            let fpdu = early.fpdu();
            (context.frame, context.time) = (early.frames.1, early.ended);
            if self.answer(side.other(), early.answer, Payload::of(&fpdu), &fpdu, context) {
                self.halves[side.index()].early.weight -= early.weight();
                context.budget.give(early.weight());
            } else {
                self.halves[side.index()].early.kept.push(early);
            }
        }
        (context.frame, context.time) = now;
    }

    /// What `side` sends is known up to this frame: no request comes any more for responses before it.
    pub(super) fn forget_early(&mut self, side: Side, frame: u64, context: &mut Context<'_>) {
        let now = context.frame;
        let half = &mut self.halves[side.index()];
        let topic = half.lossy.unwrap_or(Topic::CaptureLoss);
        let known = half.early.kept.partition_point(|early| early.frames.1 < frame);
        for early in half.early.kept.drain(..known).collect::<Vec<_>>() {
            self.halves[side.index()].early.weight -= early.weight();
            context.budget.give(early.weight());
            context.frame = early.frames.1;
            self.unasked(side.other(), early.answer, Payload::of(&early.fpdu()).length, topic, context);
        }
        context.frame = now;
    }

    fn unasked(&self, side: Side, answer: Answer, length: usize, topic: Topic, context: &mut Context<'_>) {
        let Answer::Read(tagged) = answer else { return };
        let text = format!(
            "no read in the capture asked for the response of {length} bytes from {side} into {:#x} at {:#x}",
            tagged.stag, tagged.offset
        );
        context.finding(topic, Some(self.connection), text);
    }
}
