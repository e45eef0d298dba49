//! The effects of complete segments.

use std::sync::Arc;

use super::header::checked_region;
use super::{Effect, Receiver, completion};
use crate::iwarp::machine::Sink;
use crate::iwarp::machine::reads::{Reads, Served};
use crate::iwarp::machine::receives::Receive;
use crate::iwarp::machine::violation::{Fault, Purpose, Violation};
use crate::iwarp::region::RegionCache;
use crate::{Access, Completion, CompletionKind, CompletionStatus};
use iwarp_wire::rdmap::{self, Opcode, ReadRequest, Terminate};

impl Receiver {
    /// Applies the effect of a complete segment [RFC 5040 5.1-2, 5.2.1-3, 5.2.1-4, 5.5-1]
    /// [RFC 5041 4.1-7, 4.3-8, 5.4-1].
    pub(super) fn take_effect(
        &mut self,
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        match self.effect {
            Effect::None => {}
            // The empty write that opens the connection is not a write of the application.
            Effect::Write { length: 0 } | Effect::LastWrite { length: 0 }
                if self.expects_opening && !self.opened => {}
            Effect::Write { length } | Effect::LastWrite { length } => {
                let before = self.written.filter(|_| !self.write_ended).unwrap_or(0);
                self.written = Some(before.saturating_add(length as u64));
                self.write_ended = matches!(self.effect, Effect::LastWrite { .. });
                if self.write_ended {
                    reads.count_write();
                }
            }
            Effect::Response { length, last } => reads.placed(length, last),
            Effect::Send { opcode, word, length, last } => {
                // It cannot overflow: the length of a message was checked when the segment began.
                self.message += length as u32;
                if last {
                    self.deliver_send(opcode, word, regions, sink)?;
                    self.is_uneven = false;
                    self.send_sequence = self.send_sequence.wrapping_add(1);
                }
            }
            Effect::Immediate => {
                let word = self.body.bytes().first_chunk().map_or(0, rdmap::parse_immediate);
                self.deliver_immediate(word, sink)?;
                self.send_sequence = self.send_sequence.wrapping_add(1);
            }
            Effect::MessageImmediate { of_write } => self.deliver_message_immediate(of_write, sink)?,
            Effect::ReadRequest => {
                if let Some(bytes) = self.body.bytes().first_chunk() {
                    reads.serve(read_to_serve(&ReadRequest::parse(bytes), regions)?)?;
                    self.read_sequence = self.read_sequence.wrapping_add(1);
                }
            }
            Effect::Terminate => {
                if let Some(bytes) = self.body.bytes().first_chunk() {
                    return Err(Fault::Terminated(Terminate::parse(bytes)));
                }
            }
        }
        Ok(())
    }

    /// Invalidates the key that a Send names, and completes its receive
    /// [RFC 5040 4.1-2, 4.1-10, 5.3-8, 5.3-9, 7.2-4] [RFC 5041 5.4-2, 5.4-3].
    #[inline(never)]
    fn deliver_send(
        &mut self,
        opcode: Opcode,
        stag: u32,
        regions: &RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Violation> {
        let invalidated = opcode.invalidates().then_some(stag);
        if opcode.invalidates() && !regions.invalidate(stag) {
            return Err(Violation::Invalidate(stag));
        }
        let receive = self.complete_receive()?;
        let immediate = self.immediate.take();
        let leading = if immediate.is_some() { rdmap::IMMEDIATE as u32 } else { 0 };
        let length = std::mem::take(&mut self.message) - leading;
        let status =
            if length > receive.length { CompletionStatus::Truncated } else { CompletionStatus::Success };
        let completion = completion(self.qp, &receive, status);
        sink.push(Completion { length, immediate, invalidated, ..completion });
        Ok(())
    }

    /// Delivers immediate data by the rules for messages: with a receive or, if it belongs to a write,
    /// without one.
    #[inline(never)]
    fn deliver_message_immediate(
        &mut self,
        of_write: bool,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Violation> {
        let completion = if of_write {
            let length = u32::try_from(self.written.take().unwrap_or(0)).unwrap_or(u32::MAX);
            let (qp, kind, status) = (self.qp, CompletionKind::RecvWrite, CompletionStatus::Success);
            Completion { qp, id: Completion::NO_RECEIVE, kind, status, length, ..Completion::EMPTY }
        } else {
            completion(self.qp, &self.complete_receive()?, CompletionStatus::Success)
        };
        let immediate = self.body.bytes().first_chunk().map(rdmap::parse_immediate);
        sink.push(Completion { immediate, ..completion });
        self.send_sequence = self.send_sequence.wrapping_add(1);
        Ok(())
    }

    /// Completes a receive with immediate data [RFC 7306 4.1-4].
    fn deliver_immediate(&mut self, word: u64, sink: &mut impl Sink) -> std::result::Result<(), Violation> {
        let written = self.written;
        let receive = self.complete_receive()?;
        let completion = completion(self.qp, &receive, CompletionStatus::Success);
        let completion = match written {
            Some(written) => {
                let length = u32::try_from(written).unwrap_or(u32::MAX);
                Completion { kind: CompletionKind::RecvWrite, length, ..completion }
            }
            None => completion,
        };
        sink.push(Completion { immediate: Some(word), ..completion });
        Ok(())
    }

    /// Removes the receive of a complete message [RFC 5040 5.3-2, 5.3-6] [RFC 7306 6.3-2].
    #[inline]
    fn complete_receive(&mut self) -> std::result::Result<Receive, Violation> {
        let Some(receive) = self.receives.own.oldest() else { return Err(self.no_receive()) };
        self.receives.own.remove_oldest();
        self.written = None;
        Ok(receive)
    }
}

/// The read that `request` requests. A read of no bytes uses no region [RFC 5040 5.2.1-10, 5.2.1-11].
fn read_to_serve(request: &ReadRequest, regions: &mut RegionCache) -> std::result::Result<Served, Violation> {
    let &ReadRequest { sink_stag, sink_offset, length: left, source_stag, source_offset } = request;
    let length = u64::from(left);
    let (source, source_offset) = if left == 0 {
        (None, 0)
    } else {
        let (region, offset) =
            checked_region(Purpose::Read, source_stag, Access::REMOTE_READ, source_offset, length, regions)?;
        (Some(Arc::clone(region)), offset)
    };
    Ok(Served { sink_stag, sink_offset, source, source_offset, left, started: false })
}
