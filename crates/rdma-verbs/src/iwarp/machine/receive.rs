//! The receiving half of an established connection: takes the stream in pieces of any size, checks
//! every segment, places its payload and reports what is complete.
//!
//! Where CRCs are checked, `verify` holds an FPDU back until its CRC is right. A segment is checked when its
//! header is there, before a byte of it is placed, and takes effect (a completion, a response) when its last
//! byte is there. Local and remote memory can die at any time between the two, so it is asked for again with
//! every piece. What a header may say is in `begin`, what a whole segment does in `effect`, what comes by
//! shared memory in `shared`.

mod begin;
mod effect;
mod shared;
mod verify;

use std::sync::Arc;

use super::partial::{HEAD, Partial, split_head, wanted_head};
use super::reads::Reads;
use super::receives::{Receive, Receives};
use super::violation::{Fault, Purpose, Violation};
use super::{Placement, Sink};
use crate::iwarp::region::{Region, RegionCache};
use crate::{CompletionStatus, QpId, RecvRequest, Result};
use iwarp_wire::ddp::Header;
use iwarp_wire::mpa;
use iwarp_wire::rdmap::{self, About, Opcode, Terminate};
use verify::Verifier;

/// See the module.
#[derive(Debug)]
pub(super) struct Receiver {
    receives: Receives,
    /// There if CRCs are checked.
    verifier: Option<Verifier>,
    /// Whether an FPDU is complete: the peer receives from then on.
    opened: bool,
    part: Part,
    /// Bytes of the current part that are still to come.
    left: usize,
    effect: Effect,
    place: Option<Place>,
    head: Partial<HEAD>,
    body: Partial<{ rdmap::READ_REQUEST }>,
    send_sequence: u32,
    read_sequence: u32,
    /// Bytes of the message of the send queue that is under way.
    message: u32,
    /// Bytes written by the peer since it last took a receive; `None`: no write came.
    written: Option<u64>,
}

/// Which part of an FPDU comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Length field and DDP header.
    Head,
    /// Payload that is looked at here.
    Body,
    /// Payload that goes to a region.
    Payload,
    /// Padding and CRC.
    Trailer,
}

/// What a segment does when it is complete.
#[derive(Debug, Clone, Copy)]
enum Effect {
    None,
    Write { length: usize },
    Response { length: usize, last: bool },
    Send { opcode: Opcode, invalidate: u32, length: usize, last: bool },
    Immediate,
    ReadRequest,
    Terminate,
}

/// Where payload goes.
#[derive(Debug)]
struct Place {
    region: Arc<Region>,
    offset: u64,
}

impl Receiver {
    pub(super) fn new(qp: QpId, depth: u32) -> Self {
        Self {
            receives: Receives::new(qp, depth),
            verifier: None,
            opened: false,
            part: Part::Head,
            left: 0,
            effect: Effect::None,
            place: None,
            head: Partial::new(),
            body: Partial::new(),
            send_sequence: 1,
            read_sequence: 1,
            message: 0,
            written: None,
        }
    }

    pub(super) fn set_crc(&mut self, crc: bool) {
        self.verifier = crc.then(Verifier::default);
    }

    pub(super) fn checks_crc(&self) -> bool {
        self.verifier.is_some()
    }

    /// See [`super::Machine::recv_room`].
    pub(super) fn room(&self) -> usize {
        self.receives.room()
    }

    /// Posts receives, all or none.
    pub(super) fn post(&mut self, requests: &[RecvRequest], regions: &mut RegionCache) -> Result<()> {
        self.receives.post(requests, regions)
    }

    /// Whether the stream may end here: between two FPDUs and two messages.
    pub(super) fn is_between_messages(&self) -> bool {
        let verified = self.verifier.as_ref().is_none_or(Verifier::is_empty);
        verified && self.part == Part::Head && self.head.bytes().is_empty() && self.message == 0
    }

    /// Whether an FPDU is complete.
    pub(super) fn is_opened(&self) -> bool {
        self.opened
    }

    /// What `terminate` repeats of the segment under way. A header that DDP does not understand is not one
    /// [RFC 5040 4.8-4, 4.8-5, 4.8-8, 4.8-9, 4.8-10, 7.1-3, 7.1-4] [RFC 5041 7.1-15] [RFC 7306 8.1-2].
    pub(super) fn about(&self, terminate: &Terminate) -> About<'_> {
        let head = self.head.bytes();
        if !terminate.is_about_segment() || Header::parse(split_head(head).1).is_err() {
            return About::default();
        }
        let is_request = matches!(self.effect, Effect::ReadRequest) && terminate.is_of_rdmap();
        About { head, request: self.body.bytes().first_chunk().filter(|_| is_request) }
    }

    /// See [`super::Machine::target`].
    pub(super) fn target(&self) -> Option<Placement<'_>> {
        let place = self.place.as_ref()?;
        // A key that has died has no place [RFC 5040 8.1.1-6] [RFC 5041 8.3.1-6].
        if self.part != Part::Payload || !place.region.is_alive() {
            return None;
        }
        Some(Placement { memory: place.region.memory(), offset: place.offset, length: self.left })
    }

    /// See [`super::Machine::placed`].
    pub(super) fn placed(&mut self, count: usize) {
        if self.part != Part::Payload || count == 0 {
            return;
        }
        let count = count.min(self.left);
        if let Some(place) = &mut self.place {
            place.offset += count as u64;
        }
        self.left -= count;
        if self.left == 0 {
            self.begin_trailer();
        }
    }

    /// See [`super::Machine::feed`].
    pub(super) fn feed(
        &mut self,
        input: &[u8],
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        // Without CRCs all that comes is believed [RFC 5044 4.1-4, 4.4-5, 4.4-7, 7.1.1-9].
        let Some(mut verifier) = self.verifier.take() else {
            return self.believe(input, reads, regions, sink);
        };
        let fed = verifier.feed(input, |fpdu| self.believe(fpdu, reads, regions, sink));
        self.verifier = Some(verifier);
        fed
    }

    /// Gives memory back that only a burst needed.
    pub(super) fn relax(&mut self) {
        if let Some(verifier) = &mut self.verifier {
            verifier.relax();
        }
    }

    /// Takes bytes that are as the peer sent them.
    fn believe(
        &mut self,
        mut input: &[u8],
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        while !input.is_empty() {
            let (piece, rest) = match self.part {
                Part::Head => {
                    input = self.feed_head(input, reads, regions)?;
                    continue;
                }
                Part::Body | Part::Payload | Part::Trailer => input.split_at(self.left.min(input.len())),
            };
            input = rest;
            self.left -= piece.len();
            match self.part {
                Part::Head => {}
                Part::Body => self.body.add(piece),
                Part::Payload => self.store(piece)?,
                Part::Trailer => {}
            }
            if self.left == 0 {
                if self.part == Part::Trailer {
                    self.finish(reads, regions, sink)?;
                } else {
                    self.begin_trailer();
                }
            }
        }
        Ok(())
    }

    /// Completes every receive as [`CompletionStatus::Flushed`], the oldest as `first`.
    pub(super) fn flush(&mut self, first: CompletionStatus, sink: &mut impl Sink) {
        self.receives.flush(first, sink);
        self.place = None;
    }

    /// Takes bytes of length field and header; begins the segment when they are whole [RFC 5041 3-4, 3-6]
    /// [RFC 5044 3-6, 4.3-9, 4.3-10, 5.1-3, 5.2-1, 6-2, 6-4].
    fn feed_head<'i>(
        &mut self,
        input: &'i [u8],
        reads: &Reads,
        regions: &mut RegionCache,
    ) -> std::result::Result<&'i [u8], Fault> {
        if self.head.bytes().is_empty()
            && let Some(first) = input.first_chunk()
        {
            // Usually all of it is there.
            let length = wanted_head(first);
            self.head.set(*first, length);
            self.begin(reads, regions)?;
            return Ok(&input[length..]);
        }
        let wanted = wanted_head(self.head.bytes());
        let (piece, rest) = input.split_at((wanted - self.head.bytes().len()).min(input.len()));
        self.head.add(piece);
        if self.head.bytes().len() < wanted || wanted_head(self.head.bytes()) > wanted {
            return Ok(rest);
        }
        self.begin(reads, regions)?;
        Ok(rest)
    }

    /// Padding and CRC field come next, and are passed over [RFC 5044 4.1-3, 4.3-10].
    fn begin_trailer(&mut self) {
        let (ulpdu, _) = split_head(self.head.bytes());
        self.part = Part::Trailer;
        self.left = mpa::padding(ulpdu) + mpa::CRC;
    }

    /// Puts a piece of payload in its place [RFC 5040 8.1.1-6] [RFC 5041 5.2-4, 8.3.1-6].
    fn store(&mut self, piece: &[u8]) -> std::result::Result<(), Violation> {
        let Some(place) = &mut self.place else { return Ok(()) };
        let stag = place.region.stag();
        let dead = match self.effect {
            Effect::Send { .. } => Violation::LocalKey(stag),
            _ => Violation::Stag { purpose: Purpose::Write, stag },
        };
        if !place.region.is_alive() || place.region.memory().write(place.offset, piece).is_err() {
            return Err(dead);
        }
        place.offset += piece.len() as u64;
        Ok(())
    }

    /// The FPDU is whole: lets it take effect [RFC 5040 5.5-3, 5.5-7, 5.5-8] [RFC 6581 9.2-3].
    fn finish(
        &mut self,
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        self.part = Part::Head;
        self.place = None;
        self.take_effect(reads, regions, sink)?;
        self.head.clear();
        self.opened = true;
        Ok(())
    }

    fn oldest_receive(&self) -> std::result::Result<Receive, Violation> {
        self.receives.oldest().ok_or(Violation::NoReceive { sequence: self.send_sequence })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::region::ProtectionDomain;
    use iwarp_wire::ddp::{UNTAGGED, Untagged};

    /// [RFC 5041 4.3-8]
    #[test]
    fn numbers_of_messages_wrap_to_zero() {
        let mut receiver = Receiver::new(QpId(0), 4);
        (receiver.send_sequence, receiver.read_sequence) = (u32::MAX, u32::MAX);
        let mut regions = RegionCache::new(ProtectionDomain::default());
        receiver.post(&[RecvRequest { id: 0, buffer: None }; 4], &mut regions).unwrap();
        let mut reads = Reads::default();
        reads.responder_resources = 4;
        let mut completions = Vec::new();
        let mut feed = |opcode: Opcode, queue, sequence, payload: &[u8]| {
            let header =
                Untagged { last: true, ulp: opcode.control(), ulp_word: 0, queue, sequence, offset: 0 };
            let mut bytes = [0; UNTAGGED];
            header.emit(&mut bytes);
            let length = ((UNTAGGED + payload.len()) as u16).to_be_bytes();
            let fpdu = [&length[..], &bytes, payload, &[0; mpa::CRC]].concat();
            receiver.feed(&fpdu, &mut reads, &mut regions, &mut completions)
        };
        for sequence in [u32::MAX, 0, 1] {
            feed(Opcode::Send, rdmap::SEND_QUEUE, sequence, b"").unwrap();
            feed(Opcode::ReadRequest, rdmap::READ_QUEUE, sequence, &[0; rdmap::READ_REQUEST]).unwrap();
        }
        assert!(feed(Opcode::Send, rdmap::SEND_QUEUE, u32::MAX, b"").is_err());
        assert_eq!(completions.len(), 3);
    }
}
