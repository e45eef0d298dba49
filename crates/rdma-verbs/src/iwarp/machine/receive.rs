//! The receiving half of an established connection. It takes the stream in pieces of any size, checks every
//! segment, places its payload, and reports completions.
//!
//! A message consumes its receive when its first segment begins. By the rules for messages, a message without
//! a receive is *stalled*: what was fed after its header is kept until it can be resumed. So is the immediate
//! data of a write while it is held.
//!
//! If CRCs are checked, `verify` withholds an FPDU until its CRC is verified. A segment is checked when its
//! header is complete (`header`), before any byte of it is placed (`destination`). It takes effect when its
//! last byte has arrived (`deliver`): it completes a receive, or is answered. Local and remote memory can be
//! invalidated at any time between the two, so it is looked up again for every piece.

mod deliver;
mod destination;
mod ending;
mod header;
mod terminate;
#[cfg(test)]
mod tests;
mod verify;

use super::reads::Reads;
use super::receives::{Receive, ReceiveSource};
use super::violation::{Fault, Violation};
use super::{Rules, Sink};
use crate::iwarp::region::RegionCache;
use crate::{Buffer, Completion, CompletionKind, CompletionStatus, QpId, RecvRequest, Result};
use destination::Destination;
use header::{HEAD, Partial};
use iwarp_wire::rdmap::{self, Opcode};
use verify::Verifier;

/// See the module.
#[derive(Debug)]
pub(super) struct Receiver {
    qp: QpId,
    rules: Rules,
    receives: ReceiveSource,
    /// What was fed after the header of a stalled message, from `kept_from` on.
    kept: Vec<u8>,
    kept_from: usize,
    /// Messages that were stalled.
    stalls: u64,
    /// Whether immediate data of writes stalls.
    holds_writes: bool,
    /// Whether nothing but a Terminate is taken.
    closed: bool,
    /// Set if CRCs are checked.
    verifier: Option<Verifier>,
    /// Whether an FPDU has been completed. From then on the peer may be sent to.
    opened: bool,
    /// Whether the first FPDU may be an empty write that only opens the connection.
    expects_opening: bool,
    part: Part,
    /// Number of bytes of the current part that are still to come; while stalled, of the input that were not
    /// taken.
    left: usize,
    /// Number of bytes of payload that follow leading immediate data.
    payload_left: u16,
    /// Number of bytes of padding and CRC after the payload.
    trailer: u8,
    effect: Effect,
    destination: Option<Destination>,
    head: Partial<HEAD>,
    body: Partial<{ rdmap::READ_REQUEST }>,
    send_sequence: u32,
    read_sequence: u32,
    /// Number of bytes received of the current message of the send queue.
    message: u32,
    /// Whether [`Receiver::note_uneven`] was called.
    is_uneven: bool,
    /// Its leading immediate data.
    immediate: Option<u64>,
    /// Number of bytes written by the peer since its last message, by the rules for messages of its last write;
    /// `None`: there was no write.
    written: Option<u64>,
    /// Whether the next segment of a write begins a new one that is counted by itself.
    write_ended: bool,
}

/// The part of an FPDU that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Length field and DDP header.
    Head,
    /// None: a message waits for a receive.
    Stalled,
    /// None: the immediate data of a write is held.
    Held,
    /// Payload that the receiver interprets.
    Body,
    /// Immediate data that precedes a payload.
    Immediate,
    /// Payload that is placed.
    Payload,
    /// Padding and CRC.
    Trailer,
    /// None: all further input is dropped.
    Ended,
}

/// The effect of a complete segment.
#[derive(Debug, Clone, Copy)]
enum Effect {
    None,
    Write {
        length: usize,
    },
    /// The last segment of a write, by the rules for messages: its region counts the write.
    LastWrite {
        length: usize,
    },
    Response {
        length: usize,
        last: bool,
    },
    Send {
        opcode: Opcode,
        /// The key that it invalidates, or what [`rdmap::marks`] says.
        word: u32,
        length: usize,
        last: bool,
    },
    /// Immediate data, by the rules of the specifications.
    Immediate,
    /// Immediate data, by the rules for messages. `of_write`: it belongs to a write, and consumes no receive.
    MessageImmediate {
        of_write: bool,
    },
    ReadRequest,
    Terminate,
}

impl Receiver {
    pub(super) fn new(qp: QpId, rules: Rules, receives: ReceiveSource) -> Self {
        Self {
            qp,
            rules,
            receives,
            kept: Vec::new(),
            kept_from: 0,
            stalls: 0,
            holds_writes: false,
            closed: false,
            verifier: None,
            opened: false,
            expects_opening: false,
            part: Part::Head,
            left: 0,
            payload_left: 0,
            trailer: 0,
            effect: Effect::None,
            destination: None,
            head: Partial::new(),
            body: Partial::new(),
            send_sequence: 1,
            read_sequence: 1,
            message: 0,
            is_uneven: false,
            immediate: None,
            written: None,
            write_ended: false,
        }
    }

    pub(super) fn set_crc(&mut self, crc: bool) {
        self.verifier = crc.then(Verifier::default);
    }

    /// Records that the peer has connected to this side, and may open the connection by an empty write.
    pub(super) fn expect_opening(&mut self) {
        self.expects_opening = true;
    }

    pub(super) fn checks_crc(&self) -> bool {
        self.verifier.is_some()
    }

    /// See [`super::Machine::recv_room`].
    pub(super) fn room(&self) -> usize {
        self.receives.own.room()
    }

    /// Posts receives: all of them or none.
    pub(super) fn post(&mut self, requests: &[RecvRequest<'_>], regions: &mut RegionCache) -> Result<()> {
        let regions = (self.rules == Rules::Verbs).then_some(regions);
        self.receives.unshared()?.post(requests, regions)
    }

    /// See [`super::Machine::add_receive`].
    pub(super) fn add(&mut self, request: &RecvRequest<'_>, regions: &mut RegionCache) -> bool {
        let Buffer::Segment(segment) = request.buffer else { return false };
        self.rules == Rules::Verbs
            && regions.find(segment.key).is_some()
            && self.receives.unshared().is_ok_and(|receives| receives.add(request))
    }

    /// See [`super::Machine::cancel_recv`].
    pub(super) fn cancel(&mut self, id: u64) -> bool {
        let is_taken = self.is_in_message();
        self.receives.own.cancel(id, is_taken)
    }

    /// See [`super::Machine::is_for_messages`].
    pub(super) fn is_for_messages(&self) -> bool {
        self.rules == Rules::Messages
    }

    /// See [`super::Machine::is_stalled`].
    pub(super) fn is_stalled(&self) -> bool {
        matches!(self.part, Part::Stalled | Part::Held)
    }

    /// See [`super::Machine::hold_writes`].
    pub(super) fn hold_writes(&mut self, hold: bool) {
        self.holds_writes = hold;
    }

    /// See [`super::Machine::served`].
    pub(super) fn served(&self) -> u64 {
        self.receives.served()
    }

    /// See [`super::Machine::stalls`].
    pub(super) fn stalls(&self) -> u64 {
        self.stalls
    }

    /// Whether an incomplete message has consumed the oldest receive.
    pub(super) fn is_in_message(&self) -> bool {
        let takes_one = matches!(
            self.effect,
            Effect::Send { .. } | Effect::Immediate | Effect::MessageImmediate { of_write: false }
        );
        self.message > 0 || self.part != Part::Head && takes_one
    }

    /// Whether the payload that arrives is that of a send.
    pub(super) fn is_in_send(&self) -> bool {
        self.part == Part::Payload && matches!(self.effect, Effect::Send { .. })
    }

    /// Whether the payload that arrives is that of a response to a read.
    pub(super) fn is_in_response(&self) -> bool {
        self.part == Part::Payload && matches!(self.effect, Effect::Response { .. })
    }

    /// Number of bytes kept after a stalled message.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.kept.len() - self.kept_from
    }

    /// The shared receive that is consumed.
    #[cfg(test)]
    pub(super) fn shared_receive(&self) -> Option<u64> {
        self.receives.shared_receive()
    }

    /// Whether an FPDU has been completed.
    pub(super) fn is_opened(&self) -> bool {
        self.opened
    }

    /// See [`super::Machine::feed`].
    pub(super) fn feed(
        &mut self,
        input: &[u8],
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        self.take(input, reads, regions, sink)?;
        if self.is_stalled() {
            self.keep(&input[input.len() - self.left..])?;
        }
        Ok(())
    }

    /// Takes bytes of the stream: all of them, unless a message stalls.
    fn take(
        &mut self,
        input: &[u8],
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        // Without CRCs, all input is taken as it is [RFC 5044 4.1-4, 4.4-5, 4.4-7, 7.1.1-9].
        let Some(mut verifier) = self.verifier.take() else {
            return self.parse(input, reads, regions, sink);
        };
        let left = if self.is_stalled() {
            Ok(input)
        } else {
            verifier.feed(input, |fpdu| {
                self.parse(fpdu, reads, regions, sink)?;
                if self.is_stalled() {
                    // The verifier passes the whole FPDU again.
                    self.head.clear();
                }
                Ok(!self.is_stalled())
            })
        };
        self.verifier = Some(verifier);
        let left = left?.len();
        if self.is_stalled() {
            self.left = left;
        }
        Ok(())
    }

    /// Keeps what was fed after a stalled message.
    #[cold]
    fn keep(&mut self, input: &[u8]) -> std::result::Result<(), Violation> {
        self.kept.try_reserve_exact(input.len()).map_err(|_| Violation::NoMemory)?;
        self.kept.extend_from_slice(input);
        Ok(())
    }

    /// See [`super::Machine::resume`].
    pub(super) fn resume(
        &mut self,
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        if !self.is_stalled() || self.part == Part::Held && self.holds_writes && !self.closed {
            return Ok(());
        }
        self.part = Part::Head;
        if self.verifier.is_none() {
            self.begin(reads, regions)?;
        }
        let kept = std::mem::take(&mut self.kept);
        self.take(&kept[self.kept_from..], reads, regions, sink)?;
        self.kept_from = 0;
        if self.is_stalled() {
            self.kept_from = kept.len() - self.left;
            self.kept = kept;
        }
        Ok(())
    }

    /// Frees memory that only a burst needed.
    pub(super) fn shrink(&mut self) {
        if let Some(verifier) = &mut self.verifier {
            verifier.shrink();
        }
    }

    /// Parses verified bytes. Takes as many as [`Receiver::take`] does.
    fn parse(
        &mut self,
        mut input: &[u8],
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        while !input.is_empty() {
            match self.part {
                Part::Head => input = self.feed_head(input, reads, regions)?,
                Part::Body => {
                    let piece = self.take_part(&mut input);
                    self.body.add(piece);
                    if self.left == 0 {
                        self.begin_trailer();
                    }
                }
                Part::Payload => {
                    let piece = self.take_part(&mut input);
                    self.store(piece, reads)?;
                    if self.left == 0 {
                        self.begin_trailer();
                    }
                }
                Part::Trailer => {
                    self.take_part(&mut input);
                    if self.left == 0 {
                        self.finish(reads, regions, sink)?;
                    }
                }
                Part::Immediate => {
                    let piece = self.take_part(&mut input);
                    self.take_immediate(piece);
                }
                Part::Stalled | Part::Held => {
                    self.left = input.len();
                    break;
                }
                Part::Ended => break,
            }
        }
        Ok(())
    }

    /// Takes off what `input` has of the current part.
    #[inline]
    fn take_part<'i>(&mut self, input: &mut &'i [u8]) -> &'i [u8] {
        let (piece, rest) = input.split_at(self.left.min(input.len()));
        *input = rest;
        self.left -= piece.len();
        piece
    }

    /// Takes a piece of the immediate data that precedes a payload.
    #[cold]
    fn take_immediate(&mut self, piece: &[u8]) {
        self.body.add(piece);
        if self.left > 0 {
            return;
        }
        self.immediate = self.body.bytes().first_chunk().map(rdmap::parse_immediate);
        self.part = Part::Payload;
        self.left = self.payload_left.into();
        if self.left == 0 {
            self.begin_trailer();
        }
    }

    /// Expects padding and CRC field next, and skips them [RFC 5044 4.1-3, 4.3-10].
    fn begin_trailer(&mut self) {
        self.part = Part::Trailer;
        self.left = self.trailer.into();
    }

    /// Applies the effect of a complete FPDU [RFC 5040 5.5-3, 5.5-7, 5.5-8] [RFC 6581 9.2-3].
    fn finish(
        &mut self,
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        self.part = Part::Head;
        if let (Effect::LastWrite { .. }, Some(Destination::Region(region, _))) =
            (self.effect, &self.destination)
        {
            region.count_write();
        }
        self.destination = None;
        self.take_effect(reads, regions, sink)?;
        self.head.clear();
        self.opened = true;
        Ok(())
    }

    /// Returns the receive of the message that begins or continues, by the rules for messages: if there is
    /// none, the message stalls.
    fn receive(&mut self) -> Option<Receive> {
        if self.receives.own.is_empty() && !self.receives.take_shared(Some(self.qp)) {
            self.stall(Part::Stalled);
        }
        self.receives.own.oldest()
    }

    /// Stalls the message whose header is complete.
    fn stall(&mut self, why: Part) {
        (self.part, self.left) = (why, 0);
        self.stalls += 1;
    }

    /// The same by the rules of the specifications.
    #[inline]
    fn require_receive(&mut self) -> std::result::Result<Receive, Violation> {
        match self.receives.own.oldest() {
            Some(receive) => Ok(receive),
            None => self.require_shared(),
        }
    }

    #[cold]
    fn require_shared(&mut self) -> std::result::Result<Receive, Violation> {
        self.receives.take_shared(None);
        self.receives.own.oldest().ok_or(self.no_receive())
    }

    fn no_receive(&self) -> Violation {
        Violation::NoReceive { sequence: self.send_sequence }
    }
}

/// The completion of a receive into which nothing was received.
fn completion(qp: QpId, receive: &Receive, status: CompletionStatus) -> Completion {
    Completion { qp, id: receive.id, kind: CompletionKind::Recv, status, ..Completion::EMPTY }
}
