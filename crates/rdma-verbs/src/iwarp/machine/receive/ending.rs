//! The end of the input: what is dropped, and what becomes of receives.

use super::super::Sink;
use super::verify::Verifier;
use super::{Effect, Part, Receiver, completion};
use crate::CompletionStatus;

impl Receiver {
    /// See [`super::super::Machine::close`].
    pub(in super::super) fn close(&mut self, sink: &mut impl Sink) {
        self.flush_receives(CompletionStatus::Flushed, sink);
        self.closed = true;
        if !matches!(self.effect, Effect::Terminate) {
            self.effect = Effect::None;
        }
    }

    /// Whether the stream may end here: between two FPDUs and two messages, or anywhere once nothing more is taken.
    pub(in super::super) fn is_between_messages(&self) -> bool {
        let verified = self.verifier.as_ref().is_none_or(Verifier::is_empty);
        let between =
            verified && self.part == Part::Head && self.head.bytes().is_empty() && self.message == 0;
        between || self.closed || self.part == Part::Ended
    }

    /// Drops all further input, and completes every receive as [`CompletionStatus::Flushed`], except the
    /// oldest, which gets the status `first`.
    pub(in super::super) fn flush(&mut self, first: CompletionStatus, sink: &mut impl Sink) {
        self.flush_receives(first, sink);
        (self.part, self.verifier, self.kept, self.kept_from) = (Part::Ended, None, Vec::new(), 0);
    }

    fn flush_receives(&mut self, first: CompletionStatus, sink: &mut impl Sink) {
        let mut status = first;
        // The next message would find the same memory.
        let is_unusable = first == CompletionStatus::LocalAccess;
        self.receives.drain(is_unusable, |receive| {
            sink.push(completion(self.qp, &receive, status));
            status = CompletionStatus::Flushed;
        });
        self.destination = None;
    }

    /// Drops the rest of a response that arrives.
    pub(in super::super) fn drop_response(&mut self) {
        if self.is_in_response() {
            self.destination = None;
        }
    }

    /// See [`super::super::Machine::release`].
    pub(in super::super) fn release(&mut self) {
        self.receives.release();
    }
}
