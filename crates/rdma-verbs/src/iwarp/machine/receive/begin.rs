//! The beginning of a segment: its header is whole, and is checked before a byte of payload is taken.

use std::sync::Arc;

use super::{Effect, Part, Place, Receiver};
use crate::Access;
use crate::iwarp::machine::partial::split_head;
use crate::iwarp::machine::reads::Reads;
use crate::iwarp::machine::violation::{Purpose, Violation};
use crate::iwarp::region::{Region, RegionCache};
use iwarp_wire::ddp::{Header, Tagged, Untagged};
use iwarp_wire::rdmap::{self, Opcode};

impl Receiver {
    /// Checks the segment whose header is whole and decides what to do with its payload
    /// [RFC 5040 3.1-1, 7.2-1] [RFC 5041 4.1-1, 4.1-2] [RFC 7306 8.2-1].
    pub(super) fn begin(
        &mut self,
        reads: &Reads,
        regions: &mut RegionCache,
    ) -> std::result::Result<(), Violation> {
        let (ulpdu, header) = split_head(self.head.bytes());
        self.effect = Effect::None;
        self.left = 0;
        if ulpdu > 0 {
            let parsed = Header::parse(header)?;
            let payload = ulpdu - header.len();
            match parsed {
                Header::Tagged(header) => self.begin_tagged(&header, payload, reads, regions)?,
                Header::Untagged(header) => self.begin_untagged(&header, payload, regions)?,
            }
            self.left = payload;
        }
        if self.left == 0 {
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
            let region = named(purpose, stag, needed, offset, length as u64, regions).cloned()?;
            self.place = Some(Place { region, offset });
        }
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
            Opcode::Write | Opcode::ReadResponse | Opcode::AtomicRequest | Opcode::AtomicResponse => {
                return Err(Violation::Opcode { opcode, tagged: false });
            }
        };
        let begun = if queue == rdmap::SEND_QUEUE { self.message } else { 0 };
        check_order(opcode, header, queue, sequence, begun)?;
        if let Some(expected) = whole {
            if length != expected || !header.last {
                return Err(Violation::Length { opcode, found: length, expected });
            }
            return self.begin_body(opcode);
        }
        self.begin_send(opcode, header, length, regions)
    }

    /// A message whose payload is looked at here [RFC 5040 5.4-3, 5.4-4].
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

    /// Begins a segment of a Send, if the oldest receive has room for it
    /// [RFC 5041 4.3-3, 7.1-2, 7.1-3, 7.1-4, 7.1-6].
    fn begin_send(
        &mut self,
        opcode: Opcode,
        header: &Untagged,
        length: usize,
        regions: &mut RegionCache,
    ) -> std::result::Result<(), Violation> {
        let receive = self.oldest_receive()?;
        let end = u64::from(header.offset) + length as u64;
        if end > u64::from(receive.length) {
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
}

/// Checks that a segment is the next of its queue and its message [RFC 5040 5.3-3]
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

/// The region that a peer named, if it has the right and the bytes [RFC 5040 7.2-7, 7.2-8]
/// [RFC 5041 4.2-5, 7.1-8, 8.3-4].
pub(super) fn named(
    purpose: Purpose,
    stag: u32,
    needed: Access,
    offset: u64,
    length: u64,
    regions: &mut RegionCache,
) -> std::result::Result<&Arc<Region>, Violation> {
    let region = regions.find(stag).ok_or(Violation::Stag { purpose, stag })?;
    match region.check(needed, offset, length) {
        Ok(()) => Ok(region),
        Err(fault) => Err(Violation::Region { purpose, stag, offset, length, fault }),
    }
}
