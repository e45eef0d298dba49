//! Headers of segments: collects each, and checks it before any payload is taken.

use std::sync::Arc;

use super::{Destination, Effect, Part, Receiver};
use crate::Access;
use crate::iwarp::machine::reads::Reads;
use crate::iwarp::machine::violation::{Fault, Purpose, Violation};
use crate::iwarp::machine::{MAX_MESSAGE, Rules};
use crate::iwarp::region::{Region, RegionCache};
use iwarp_wire::ddp::{self, Header, Tagged, Untagged};
use iwarp_wire::mpa;
use iwarp_wire::rdmap::{self, Opcode, marks};

impl Receiver {
    /// Takes bytes of length field and header. Begins the segment when they are complete [RFC 5041 3-4, 3-6]
    /// [RFC 5044 3-6, 4.3-9, 4.3-10, 5.1-3, 5.2-1, 6-2, 6-4].
    pub(super) fn feed_head<'i>(
        &mut self,
        input: &'i [u8],
        reads: &Reads,
        regions: &mut RegionCache,
    ) -> std::result::Result<&'i [u8], Fault> {
        if self.head.bytes().is_empty()
            && let Some(first) = input.first_chunk()
        {
            // Usually the whole header is there.
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

    /// Checks the segment whose header is complete, and decides what to do with its payload
    /// [RFC 5040 3.1-1, 7.2-1] [RFC 5041 4.1-1, 4.1-2] [RFC 7306 8.2-1].
    pub(super) fn begin(
        &mut self,
        reads: &Reads,
        regions: &mut RegionCache,
    ) -> std::result::Result<(), Violation> {
        let (ulpdu, header) = split_head(self.head.bytes());
        self.effect = Effect::None;
        self.left = 0;
        // At most `mpa::MAX_TRAILER`.
        self.trailer = (mpa::padding(ulpdu) + mpa::CRC) as u8;
        if ulpdu > 0 {
            let parsed = Header::parse(header)?;
            let payload = ulpdu - header.len();
            self.left = payload;
            match parsed {
                _ if self.closed && !is_terminate(&parsed) => self.part = Part::Payload,
                Header::Tagged(header) => self.begin_tagged(&header, payload, reads, regions)?,
                Header::Untagged(header) => self.begin_untagged(&header, payload, regions)?,
            }
        }
        if self.left == 0 && !self.is_stalled() {
            self.begin_trailer();
        }
        Ok(())
    }

    /// Begins a tagged segment: a Write or a Read Response [RFC 5040 7.2-2] [RFC 5041 4.2-3, 5.2-9, 5.2-10].
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
                let is_counted = last && self.rules == Rules::Messages;
                self.effect =
                    if is_counted { Effect::LastWrite { length } } else { Effect::Write { length } };
                Access::REMOTE_WRITE
            }
            Opcode::ReadResponse => {
                reads.check_response(stag, offset, length, last)?;
                self.effect = Effect::Response { length, last };
                Access::LOCAL_WRITE
            }
            opcode => return Err(Violation::Opcode { opcode, tagged: true }),
        };
        self.part = Part::Payload;
        if length == 0 {
            return Ok(());
        }
        if needed == Access::LOCAL_WRITE && reads.has_places() {
            self.destination = Some(Destination::Read(offset));
            return Ok(());
        }
        let (region, offset) = checked_region(Purpose::Write, stag, needed, offset, length as u64, regions)?;
        self.destination = Some(Destination::Region(Arc::clone(region), offset));
        Ok(())
    }

    /// Begins an untagged segment: any other message [RFC 5040 7.2-2, 7.2-6] [RFC 5041 4.3-3]
    /// [RFC 7306 6.3-7, 8.2-2].
    fn begin_untagged(
        &mut self,
        header: &Untagged,
        length: usize,
        regions: &mut RegionCache,
    ) -> std::result::Result<(), Violation> {
        let opcode = Opcode::parse(header.ulp)?;
        match opcode {
            Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate => {
                check_order(opcode, header, rdmap::SEND_QUEUE, self.send_sequence, self.message)?;
                match self.rules {
                    Rules::Verbs => self.begin_send(opcode, header, length, regions)?,
                    Rules::Messages => self.begin_message(opcode, header, length)?,
                }
            }
            Opcode::Immediate | Opcode::ImmediateSolicited => {
                check_order(opcode, header, rdmap::SEND_QUEUE, self.send_sequence, 0)?;
                check_whole(opcode, header, length, rdmap::IMMEDIATE)?;
                if self.message > 0 {
                    return Err(Violation::MessageOffset { found: 0, expected: self.message });
                }
                match self.rules {
                    Rules::Verbs => {
                        self.require_receive()?;
                        self.begin_body(Effect::Immediate);
                    }
                    Rules::Messages => self.begin_message_immediate(header.ulp_word),
                }
            }
            Opcode::ReadRequest => {
                check_order(opcode, header, rdmap::READ_QUEUE, self.read_sequence, 0)?;
                check_whole(opcode, header, length, rdmap::READ_REQUEST)?;
                self.begin_body(Effect::ReadRequest);
            }
            Opcode::Terminate => {
                check_order(opcode, header, rdmap::TERMINATE_QUEUE, 1, 0)?;
                check_whole(opcode, header, length, length.max(rdmap::TERMINATE))?;
                self.begin_body(Effect::Terminate);
            }
            Opcode::Write | Opcode::ReadResponse | Opcode::AtomicRequest | Opcode::AtomicResponse => {
                return Err(Violation::Opcode { opcode, tagged: false });
            }
        }
        Ok(())
    }

    /// Begins a message whose payload the receiver interprets [RFC 5040 5.4-3, 5.4-4].
    fn begin_body(&mut self, effect: Effect) {
        self.effect = effect;
        self.body.clear();
        self.part = Part::Body;
    }

    /// Begins a segment of a Send, if it fits the oldest receive
    /// [RFC 5041 4.3-3, 7.1-2, 7.1-3, 7.1-4, 7.1-6].
    #[inline(never)]
    fn begin_send(
        &mut self,
        opcode: Opcode,
        header: &Untagged,
        length: usize,
        regions: &mut RegionCache,
    ) -> std::result::Result<(), Violation> {
        let receive = self.require_receive()?;
        let end = u64::from(header.offset) + length as u64;
        if end > u64::from(receive.length) {
            return Err(Violation::TooLong { length: end, room: receive.length });
        }
        self.part = Part::Payload;
        self.effect = Effect::Send { opcode, word: header.ulp_word, length, last: header.last };
        if length == 0 {
            return Ok(());
        }
        if let Some(key) = receive.key {
            let region = regions.find(key.get()).ok_or(Violation::LocalKey(key.get()))?;
            // It is within the region: that was checked when the receive was posted, or by who posted it.
            let offset = region.offset(receive.address) + u64::from(header.offset);
            self.destination = Some(Destination::Region(Arc::clone(region), offset));
        } else if receive.places() > 0 {
            self.destination = Some(Destination::Receive(header.offset.into()));
        }
        Ok(())
    }

    /// Begins immediate data without payload, by the rules for messages.
    fn begin_message_immediate(&mut self, word: u32) {
        let of_write = word == marks::OF_WRITE;
        if of_write && self.holds_writes {
            self.stall(Part::Held);
        } else if of_write || self.receive().is_some() {
            self.begin_body(Effect::MessageImmediate { of_write });
        }
    }

    /// Begins a segment of a Send by the rules for messages: it may begin with immediate data, and exceed its
    /// receive.
    #[inline(never)]
    fn begin_message(
        &mut self,
        opcode: Opcode,
        header: &Untagged,
        length: usize,
    ) -> std::result::Result<(), Violation> {
        let end = u64::from(header.offset) + length as u64;
        if end > MAX_MESSAGE {
            return Err(Violation::TooLong { length: end, room: u32::MAX });
        }
        let Some(receive) = self.receive() else { return Ok(()) };
        self.part = Part::Payload;
        self.effect = Effect::Send { opcode, word: header.ulp_word, length, last: header.last };
        let mut offset = u64::from(header.offset);
        if self.immediate.is_some() {
            // Leading immediate data is not part of the payload.
            offset = offset.saturating_sub(rdmap::IMMEDIATE as u64);
        }
        if receive.places() > 0 {
            self.destination = Some(Destination::Receive(offset));
        }
        if self.message == 0 && header.ulp_word == marks::WITH_DATA && !opcode.invalidates() {
            let Some(behind) = length.checked_sub(rdmap::IMMEDIATE) else {
                let (opcode, expected) = (Opcode::Send, rdmap::IMMEDIATE);
                return Err(Violation::Length { opcode, found: length, expected });
            };
            self.body.clear();
            self.part = Part::Immediate;
            // A segment has less than 64 KiB.
            (self.left, self.payload_left) = (rdmap::IMMEDIATE, behind as u16);
        }
        Ok(())
    }
}

fn is_terminate(header: &Header) -> bool {
    matches!(header, Header::Untagged(header) if Opcode::parse(header.ulp) == Ok(Opcode::Terminate))
}

/// Checks that a segment is the next one of its queue and its message [RFC 5040 5.3-3]
/// [RFC 5041 5.3-3, 5.3-4, 7.1-1, 7.1-3, 7.1-5] [RFC 7306 6.3-3].
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

/// Checks that a message has `expected` bytes in one segment.
fn check_whole(
    opcode: Opcode,
    header: &Untagged,
    length: usize,
    expected: usize,
) -> std::result::Result<(), Violation> {
    if length != expected || !header.last {
        return Err(Violation::Length { opcode, found: length, expected });
    }
    Ok(())
}

/// The region that a peer refers to, and the offset in its memory, if the access is within its rights and
/// bounds [RFC 5040 7.2-7, 7.2-8] [RFC 5041 4.2-5, 7.1-8, 8.3-4].
#[inline]
pub(super) fn checked_region(
    purpose: Purpose,
    stag: u32,
    needed: Access,
    offset: u64,
    length: u64,
    regions: &mut RegionCache,
) -> std::result::Result<(&Arc<Region>, u64), Violation> {
    let region = regions.find(stag).ok_or(Violation::Stag { purpose, stag })?;
    match region.check(needed, offset, length) {
        Ok(offset) => Ok((region, offset)),
        Err(fault) => Err(Violation::Region { purpose, stag, offset, length, fault }),
    }
}

/// Length of the longest header with its length field.
pub(super) const HEAD: usize = mpa::FPDU_LENGTH_FIELD + ddp::UNTAGGED;

/// Bytes that are collected until they are complete.
#[derive(Debug)]
pub(super) struct Partial<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Partial<N> {
    /// No bytes.
    pub(super) fn new() -> Self {
        Self { bytes: [0; N], filled: 0 }
    }

    /// The bytes so far.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// Removes all bytes.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    /// Sets all bytes at once. The first `count` of them are valid.
    #[inline]
    pub(super) fn set(&mut self, bytes: [u8; N], count: usize) {
        self.bytes = bytes;
        self.filled = count.min(N);
    }

    /// Adds bytes. Those that do not fit are ignored.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(N - self.filled);
        self.bytes[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
        self.filled += count;
    }
}

/// Number of bytes of length field and header that are needed, as far as `head` shows: the length field, then
/// the first byte, which shows the kind of header, then the header, or as much of it as the FPDU has.
fn wanted_head(head: &[u8]) -> usize {
    let Some((field, header)) = head.split_first_chunk() else { return mpa::FPDU_LENGTH_FIELD };
    let ulpdu = usize::from(u16::from_be_bytes(*field));
    let header = header.first().map_or(1, |&control| ddp::header_length(control));
    mpa::FPDU_LENGTH_FIELD + header.min(ulpdu)
}

/// Splits length field and header: returns the length of the ULPDU, and the header so far.
pub(super) fn split_head(head: &[u8]) -> (usize, &[u8]) {
    match head.split_first_chunk() {
        Some((field, header)) => (usize::from(u16::from_be_bytes(*field)), header),
        None => (0, &[]),
    }
}
