//! The receiving half of an established connection: takes the stream in pieces of any size, checks
//! every segment, places its payload and reports what is complete.
//!
//! A segment is checked when its header is there, before a byte of it is placed, and takes effect
//! (a completion, a response) when its last byte and its CRC are there. Local and remote memory
//! can die at any time between the two, so it is asked for again with every piece.

use std::sync::Arc;

use super::partial::{HEAD, Partial, split_head, wanted_head};
use super::reads::{Reads, Served};
use super::receives::{Receive, Receives};
use super::violation::{Fault, Purpose, Violation};
use super::{Placement, Sink};
use crate::verbs::iwarp::ddp::{Header, Tagged, Untagged};
use crate::verbs::iwarp::mpa;
use crate::verbs::iwarp::rdmap::{self, Opcode, ReadRequest, Terminate};
use crate::verbs::iwarp::region::{Region, RegionCache};
use crate::verbs::{Access, Completion, CompletionKind, CompletionStatus, QpNumber, RecvRequest, Result};

/// See the module.
#[derive(Debug)]
pub(super) struct Receiver {
    receives: Receives,
    crc: bool,
    /// Whether an FPDU is complete: the peer receives from then on.
    opened: bool,
    part: Part,
    /// CRC of the FPDU so far.
    sum: u32,
    /// Bytes of the current part that are still to come.
    left: usize,
    effect: Effect,
    place: Option<Place>,
    head: Partial<HEAD>,
    body: Partial<{ rdmap::READ_REQUEST }>,
    trailer: Partial<{ mpa::MAX_TRAILER }>,
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
    pub(super) fn new(qp: QpNumber, depth: u32) -> Self {
        Self {
            receives: Receives::new(qp, depth),
            crc: false,
            opened: false,
            part: Part::Head,
            sum: 0,
            left: 0,
            effect: Effect::None,
            place: None,
            head: Partial::new(),
            body: Partial::new(),
            trailer: Partial::new(),
            send_sequence: 1,
            read_sequence: 1,
            message: 0,
            written: None,
        }
    }

    pub(super) fn set_crc(&mut self, crc: bool) {
        self.crc = crc;
    }

    pub(super) fn checks_crc(&self) -> bool {
        self.crc
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
        self.part == Part::Head && self.head.bytes().is_empty() && self.message == 0
    }

    /// Whether an FPDU is complete.
    pub(super) fn is_opened(&self) -> bool {
        self.opened
    }

    /// Length field and DDP header of the FPDU under way, as far as they are there.
    pub(super) fn header(&self) -> &[u8] {
        self.head.bytes()
    }

    /// See [`super::Machine::target`].
    pub(super) fn target(&self) -> Option<Placement<'_>> {
        let place = self.place.as_ref()?;
        if self.part != Part::Payload || self.crc || !place.region.is_alive() {
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
        mut input: &[u8],
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        while !input.is_empty() {
            let (piece, rest) = match self.part {
                Part::Head => {
                    input = self.feed_head(input, reads, regions, sink)?;
                    continue;
                }
                Part::Body | Part::Payload | Part::Trailer => input.split_at(self.left.min(input.len())),
            };
            input = rest;
            self.left -= piece.len();
            match self.part {
                Part::Head => {}
                Part::Body => {
                    self.body.add(piece);
                    self.digest(piece);
                }
                Part::Payload => {
                    self.store(piece)?;
                    self.digest(piece);
                }
                Part::Trailer if self.crc => self.trailer.add(piece),
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

    /// Completes every receive as flushed.
    pub(super) fn flush(&mut self, sink: &mut impl Sink) {
        self.receives.flush(sink);
        self.place = None;
    }

    /// Takes bytes of length field and header; begins the segment when they are whole.
    fn feed_head<'i>(
        &mut self,
        input: &'i [u8],
        reads: &Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<&'i [u8], Fault> {
        if self.head.bytes().is_empty()
            && let Some(first) = input.first_chunk()
        {
            // Usually all of it is there.
            let length = wanted_head(first);
            self.head.set(*first, length);
            self.begin(reads, regions, sink)?;
            return Ok(&input[length..]);
        }
        let wanted = wanted_head(self.head.bytes());
        let (piece, rest) = input.split_at((wanted - self.head.bytes().len()).min(input.len()));
        self.head.add(piece);
        if self.head.bytes().len() < wanted || wanted_head(self.head.bytes()) > wanted {
            return Ok(rest);
        }
        self.begin(reads, regions, sink)?;
        Ok(rest)
    }

    /// Checks the segment whose header is whole and decides what to do with its payload.
    fn begin(
        &mut self,
        reads: &Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Violation> {
        self.digest_head();
        let (ulpdu, header) = split_head(self.head.bytes());
        self.effect = Effect::None;
        self.left = 0;
        if ulpdu > 0 {
            let parsed = Header::parse(header)?;
            let payload = ulpdu - header.len();
            match parsed {
                Header::Tagged(header) => self.begin_tagged(&header, payload, reads, regions)?,
                Header::Untagged(header) => self.begin_untagged(&header, payload, regions, sink)?,
            }
            self.left = payload;
        }
        if self.left == 0 {
            self.begin_trailer();
        }
        Ok(())
    }

    fn begin_tagged(
        &mut self,
        header: &Tagged,
        length: usize,
        reads: &Reads,
        regions: &mut RegionCache,
    ) -> std::result::Result<(), Violation> {
        let &Tagged { last, ulp, stag, offset } = header;
        let needed = match Opcode::parse(ulp)? {
            Opcode::Write => {
                self.effect = Effect::Write { length };
                Access::REMOTE_WRITE
            }
            Opcode::ReadResponse => {
                reads.expect(stag, offset, length, last)?;
                self.effect = Effect::Response { length, last };
                Access::LOCAL_WRITE
            }
            opcode => return Err(Violation::Opcode { opcode, tagged: true }),
        };
        self.part = Part::Payload;
        if length > 0 {
            let purpose = Purpose::Write;
            let region = named(purpose, stag, needed, offset, length as u64, regions)?;
            self.place = Some(Place { region, offset });
        }
        Ok(())
    }

    fn begin_untagged(
        &mut self,
        header: &Untagged,
        length: usize,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Violation> {
        let opcode = Opcode::parse(header.ulp)?;
        let (queue, sequence, whole) = match opcode {
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => (rdmap::SEND_QUEUE, self.send_sequence, None),
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                (rdmap::SEND_QUEUE, self.send_sequence, Some(rdmap::IMMEDIATE))
            }
            Opcode::ReadRequest => (rdmap::READ_QUEUE, self.read_sequence, Some(rdmap::READ_REQUEST)),
            Opcode::Terminate => (rdmap::TERMINATE_QUEUE, 1, Some(length.max(rdmap::TERMINATE))),
            Opcode::Write | Opcode::ReadResponse => return Err(Violation::Opcode { opcode, tagged: false }),
        };
        let begun = if queue == rdmap::SEND_QUEUE { self.message } else { 0 };
        check_order(opcode, header, queue, sequence, begun)?;
        if let Some(expected) = whole {
            if length != expected || !header.last {
                return Err(Violation::Length { opcode, found: length, expected });
            }
            return self.begin_body(opcode);
        }
        self.begin_send(opcode, header, length, regions, sink)
    }

    /// A message whose payload is looked at here.
    fn begin_body(&mut self, opcode: Opcode) -> std::result::Result<(), Violation> {
        self.effect = match opcode {
            Opcode::ReadRequest => Effect::ReadRequest,
            Opcode::Terminate => Effect::Terminate,
            _ => {
                self.oldest_receive()?;
                Effect::Immediate
            }
        };
        self.body.clear();
        self.part = Part::Body;
        Ok(())
    }

    fn begin_send(
        &mut self,
        opcode: Opcode,
        header: &Untagged,
        length: usize,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Violation> {
        let receive = self.oldest_receive()?;
        let end = u64::from(header.offset) + length as u64;
        if end > u64::from(receive.length) {
            sink.push(self.receives.completion(&receive, CompletionStatus::LocalError));
            self.receives.taken();
            return Err(Violation::TooLong { length: end, room: receive.length });
        }
        self.part = Part::Payload;
        self.effect = Effect::Send { opcode, invalidate: header.ulp_word, length, last: header.last };
        if let (Some(key), true) = (receive.key, length > 0) {
            let region = regions.find(key.get()).ok_or(Violation::LocalKey(key.get()))?;
            // Within the region: the receive was checked when it was posted.
            let offset = receive.address + u64::from(header.offset);
            self.place = Some(Place { region: Arc::clone(region), offset });
        }
        Ok(())
    }

    fn begin_trailer(&mut self) {
        let (ulpdu, _) = split_head(self.head.bytes());
        self.part = Part::Trailer;
        self.trailer.clear();
        self.left = mpa::padding(ulpdu) + mpa::CRC;
    }

    /// Puts a piece of payload in its place.
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

    #[inline]
    fn digest_head(&mut self) {
        if self.crc {
            self.sum = crc32c::crc32c(self.head.bytes());
        }
    }

    #[inline]
    fn digest(&mut self, piece: &[u8]) {
        if self.crc {
            self.sum = crc32c::crc32c_append(self.sum, piece);
        }
    }

    /// The FPDU is whole: checks its CRC and lets it take effect.
    fn finish(
        &mut self,
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        if self.crc {
            self.check_crc()?;
        }
        self.part = Part::Head;
        self.place = None;
        self.take_effect(reads, regions, sink)?;
        self.head.clear();
        self.opened = true;
        Ok(())
    }

    fn check_crc(&self) -> std::result::Result<(), Violation> {
        let trailer = self.trailer.bytes();
        let Some((padding, field)) = trailer.split_last_chunk() else { return Ok(()) };
        let (found, expected) = (u32::from_le_bytes(*field), crc32c::crc32c_append(self.sum, padding));
        if found != expected {
            return Err(Violation::Crc { found, expected });
        }
        Ok(())
    }

    fn take_effect(
        &mut self,
        reads: &mut Reads,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        match self.effect {
            Effect::None => {}
            // An empty write that opens the connection is no write of the peer's program.
            Effect::Write { length: 0 } if !self.opened => {}
            Effect::Write { length } => {
                self.written = Some(self.written.unwrap_or(0).saturating_add(length as u64));
            }
            Effect::Response { length, last } => reads.arrived(length, last),
            Effect::Send { opcode, invalidate, length, last } => {
                // A message fits its receive, which is at most `u32::MAX` bytes.
                self.message += length as u32;
                if last {
                    self.deliver_send(opcode, invalidate, regions, sink)?;
                }
            }
            Effect::Immediate => {
                let word = self.body.bytes().first_chunk().map_or(0, rdmap::parse_immediate);
                self.deliver_immediate(word, sink)?;
            }
            Effect::ReadRequest => {
                if let Some(bytes) = self.body.bytes().first_chunk() {
                    reads.serve(served(&ReadRequest::parse(bytes), regions)?)?;
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

    fn deliver_send(
        &mut self,
        opcode: Opcode,
        stag: u32,
        regions: &RegionCache,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Violation> {
        let receive = self.oldest_receive()?;
        let invalidated = opcode.invalidates().then_some(stag);
        if opcode.invalidates() && !regions.invalidate(stag) {
            return Err(Violation::Invalidate(stag));
        }
        let length = std::mem::take(&mut self.message);
        let completion = self.receives.completion(&receive, CompletionStatus::Success);
        sink.push(Completion { length, invalidated, ..completion });
        self.delivered();
        Ok(())
    }

    fn deliver_immediate(&mut self, word: u32, sink: &mut impl Sink) -> std::result::Result<(), Violation> {
        let receive = self.oldest_receive()?;
        let completion = self.receives.completion(&receive, CompletionStatus::Success);
        let completion = match self.written {
            Some(written) => {
                let length = u32::try_from(written).unwrap_or(u32::MAX);
                Completion { kind: CompletionKind::RecvWrite, length, ..completion }
            }
            None => completion,
        };
        sink.push(Completion { immediate: Some(word), ..completion });
        self.delivered();
        Ok(())
    }

    /// A message has taken the oldest receive.
    fn delivered(&mut self) {
        self.receives.taken();
        self.send_sequence = self.send_sequence.wrapping_add(1);
        self.written = None;
    }

    fn oldest_receive(&self) -> std::result::Result<Receive, Violation> {
        let none = Violation::NoReceive { sequence: self.send_sequence, posted: 0 };
        self.receives.oldest().ok_or(none)
    }
}

fn check_order(
    opcode: Opcode,
    header: &Untagged,
    queue: u32,
    sequence: u32,
    begun: u32,
) -> std::result::Result<(), Violation> {
    if header.queue != queue {
        return Err(Violation::Queue { opcode, found: header.queue, expected: queue });
    }
    if header.sequence != sequence {
        return Err(Violation::Sequence { queue, found: header.sequence, expected: sequence });
    }
    if header.offset != begun {
        return Err(Violation::MessageOffset { found: header.offset, expected: begun });
    }
    Ok(())
}

/// The region that a peer named, if it has the right and the bytes.
fn named(
    purpose: Purpose,
    stag: u32,
    needed: Access,
    offset: u64,
    length: u64,
    regions: &mut RegionCache,
) -> std::result::Result<Arc<Region>, Violation> {
    let region = regions.find(stag).ok_or(Violation::Stag { purpose, stag })?;
    match region.check(needed, offset, length) {
        Ok(()) => Ok(Arc::clone(region)),
        Err(fault) => Err(Violation::Region { purpose, stag, offset, length, fault }),
    }
}

/// The read that `request` asks for. A read of no bytes names no region (RFC 5040 4.4).
fn served(request: &ReadRequest, regions: &mut RegionCache) -> std::result::Result<Served, Violation> {
    let &ReadRequest { sink_stag, sink_offset, length: left, source_stag, source_offset } = request;
    let length = u64::from(left);
    let source = if left == 0 {
        None
    } else {
        Some(named(Purpose::Read, source_stag, Access::REMOTE_READ, source_offset, length, regions)?)
    };
    Ok(Served { sink_stag, sink_offset, source, source_offset, left, started: false })
}
