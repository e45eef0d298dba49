//! Where FPDUs begin in a stream of which a part is missing: a checksum that fits, or several FPDUs in a row
//! that make sense.

use iwarp_wire::ddp::{self, Header};
use iwarp_wire::mpa;
use iwarp_wire::rdmap::Opcode;

use super::held::Held;
use super::{
    CHAIN, Checksums, EFFORT, Event, Fpdu, Framer, MOST_UNDECIDED, SEARCHED, State, frame_length,
    length_field, queue,
};

impl Framer {
    /// Looks for the start of an FPDU in what is held; `last`: nothing more comes.
    pub(super) fn search(&mut self, last: bool, out: &mut dyn FnMut(Event<'_>)) {
        let begin = self.at - self.held.bytes.len() as u64;
        let mut again = std::mem::take(&mut self.undecided);
        let new = self.scanned..self.held.bytes.len();
        let phase = self.phase;
        let fits = |place: &usize| phase.is_none_or(|phase| (begin + *place as u64) % 4 == phase);
        for place in again.drain(..).chain(new.filter(fits)) {
            match self.chain(place, last) {
                Verdict::Frame => return self.lock(place, out),
                Verdict::Undecided if self.undecided.len() < MOST_UNDECIDED => self.undecided.push(place),
                _ => {}
            }
        }
        self.scanned = self.held.bytes.len();
        if self.held.bytes.len() > SEARCHED {
            if !self.found && self.phase.is_none() {
                self.clear();
                self.state = State::Foreign;
                return;
            }
            out(Event::Passed(self.held.bytes.len() as u64));
            self.clear();
        }
    }

    /// FPDUs begin at this place of what is held: goes on from there.
    fn lock(&mut self, place: usize, out: &mut dyn FnMut(Event<'_>)) {
        if place > 0 {
            out(Event::Passed(place as u64));
        }
        let Held { bytes: held, gaps, starts, sources, .. } = std::mem::take(&mut self.held);
        self.clear();
        self.at -= (held.len() - place) as u64;
        self.phase = Some(self.at % 4);
        self.state = State::Framed;
        // The same pieces again, in which an FPDU now begins.
        let mut at = place;
        while at < held.len() {
            let gap = gaps.get(gaps.partition_point(|gap| gap.1 <= at));
            if let Some(gap) = gap.filter(|gap| gap.0 <= at) {
                self.miss((gap.1 - at) as u64, true, out);
                at = gap.1;
                continue;
            }
            let after = sources.partition_point(|source| source.0 <= at);
            let (_, frame, time) = after.checked_sub(1).map(|source| sources[source]).unwrap_or_default();
            let ends = gap.map(|gap| gap.0).into_iter().chain(sources.get(after).map(|source| source.0));
            let end = ends.min().unwrap_or(held.len());
            self.take(&held[at..end], &mut 0, frame, time, starts.binary_search(&at).is_ok(), out);
            at = end;
        }
    }

    /// Whether an FPDU begins at this place.
    fn chain(&mut self, place: usize, last: bool) -> Verdict {
        let (mut at, mut count) = (place, 0);
        let starts_segment = self.held.starts.binary_search(&place).is_ok();
        loop {
            if at >= self.held.bytes.len() {
                let fits = last && at == self.held.bytes.len() && count > 0;
                return if fits { Verdict::Frame } else { Verdict::Undecided };
            }
            let rest = &self.held.bytes[at..];
            let gap = self.held.gaps.get(self.held.gaps.partition_point(|gap| gap.1 <= at));
            let known = gap.map_or(rest.len(), |gap| gap.0.saturating_sub(at));
            if let Some(gap) = gap.filter(|_| known == 0) {
                // Several frames in one segment, of which only the first was captured: the next segment has
                // to begin with one as well.
                if count == 0 || !starts_segment {
                    return Verdict::No;
                }
                at = gap.1;
                continue;
            }
            let Some(length) = frame_length(&rest[..known]) else { return Verdict::Undecided };
            let visible = known.min(length - mpa::CRC);
            match sense(&rest[mpa::FPDU_LENGTH_FIELD..visible.max(mpa::FPDU_LENGTH_FIELD)], length) {
                Some(true) => {}
                Some(false) => return Verdict::No,
                None => return if gap.is_some() { Verdict::No } else { Verdict::Undecided },
            }
            if let Some(frame) = rest[..known].get(..length) {
                let (covered, field) = frame.split_at(length - mpa::CRC);
                let padding = mpa::padding(length_field(frame));
                let field = field.first_chunk().map_or(0, |field| u32::from_le_bytes(*field));
                let in_use = match self.checksums {
                    Checksums::Unknown => field != 0,
                    Checksums::On => true,
                    Checksums::Off => false,
                };
                if in_use {
                    self.effort += covered.len();
                    let fits = self.effort <= EFFORT && crc32c::crc32c(covered) == field;
                    return if fits { Verdict::Frame } else { Verdict::No };
                }
                if covered[covered.len() - padding..].iter().any(|byte| *byte != 0) {
                    return Verdict::No;
                }
            }
            count += 1;
            at += length;
            if count == CHAIN && at <= self.held.bytes.len() {
                return Verdict::Frame;
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Frame,
    No,
    /// More bytes would tell.
    Undecided,
}

/// Whether a ULPDU begins as a segment of DDP and RDMAP does, or is the empty one that may open a connection
/// (RFC 6581 4.5).
pub(super) fn makes_sense(fpdu: &Fpdu<'_>) -> bool {
    fpdu.length == 0 || sense(fpdu.ulpdu, mpa::fpdu(fpdu.length)) == Some(true)
}

/// The same of what is there of the ULPDU in an FPDU of `length` bytes; `None`: too little is there.
pub(super) fn sense(ulpdu: &[u8], length: usize) -> Option<bool> {
    let &control = ulpdu.first()?;
    let header = ddp::header_length(control);
    if length < mpa::fpdu(header) {
        return Some(false);
    }
    let known = ulpdu.get(..header)?;
    let Ok(header) = Header::parse(known) else { return Some(false) };
    // Four bits of DDP's control and two of RDMAP's are reserved.
    if control & 0x3c != 0 || known[1] & 0x30 != 0 {
        return Some(false);
    }
    Some(match header {
        Header::Tagged(tagged) => {
            matches!(Opcode::parse(tagged.ulp), Ok(Opcode::Write | Opcode::ReadResponse))
        }
        Header::Untagged(untagged) => match Opcode::parse(untagged.ulp) {
            Ok(Opcode::Write | Opcode::ReadResponse) | Err(_) => false,
            Ok(opcode) => untagged.queue == queue(opcode) && untagged.sequence != 0,
        },
    })
}
