//! From a TCP stream with holes to the FPDUs of MPA, with and without markers and checksums. Where the
//! beginning or a part of the stream is missing, the framer searches for the next FPDU.
//!
//! Where the boundaries are lost, a place counts as the start of an FPDU if its checksum is right, or if a
//! chain of FPDUs begins there whose headers all make sense.

mod fpdu;
mod held;
mod search;

use iwarp_wire::rdmap::{self, Opcode};
use iwarp_wire::{ddp, mpa};

pub(crate) use self::fpdu::{Event, Fpdu};
use self::fpdu::{frame_length, length_field, ulpdu, with_markers, without_markers};
use self::held::Held;
use crate::context::Budget;
use crate::tcp::Piece;

/// FPDUs in a row that must make sense where no checksum says so.
const CHAIN: usize = 3;
/// Places that may start an FPDU, at a time: more are not plausible.
const MOST_UNDECIDED: usize = 64;
/// How far a stream is searched for an FPDU before it counts as something else.
pub(crate) const SEARCHED: usize = 256 << 10;
/// Bytes that are summed in such a search: bytes can be made of which every fourth seems to start an FPDU.
const EFFORT: usize = 8 * SEARCHED;
/// Bytes that an FPDU must have at its front, to be taken with its end missing.
const FIRST: usize = mpa::FPDU_LENGTH_FIELD + ddp::UNTAGGED;

/// Whether checksums are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksums {
    /// The handshake is not there: the first FPDU shows it.
    Unknown,
    On,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A request or reply comes first.
    Handshake(mpa::FrameKind),
    /// At the start of an FPDU, or in one.
    Framed,
    /// Searching for the start of an FPDU.
    Searching,
    /// Not MPA.
    Foreign,
}

/// The framing of one direction.
#[derive(Debug)]
pub(crate) struct Framer {
    state: State,
    checksums: Checksums,
    /// Offset of the first marker, where markers are in use.
    markers: Option<u64>,
    /// FPDUs begin at this offset modulo 4, if that is known.
    phase: Option<u64>,
    /// Where the first FPDU begins, if the handshake is there.
    first: u64,
    /// Offset of the next byte that comes.
    at: u64,
    /// Bytes of an FPDU that is not whole, or that are searched.
    held: Held,
    /// Searching: places before this one were looked at, and these may start an FPDU.
    scanned: usize,
    undecided: Vec<usize>,
    /// Bytes that were summed in this search.
    effort: usize,
    /// Whether an FPDU was ever found.
    found: bool,
}

impl Framer {
    /// A direction whose first bytes are a request or reply.
    pub(crate) fn with_handshake(kind: mpa::FrameKind) -> Self {
        Self { state: State::Handshake(kind), ..Self::in_mid_stream() }
    }

    /// A direction whose beginning is not there.
    pub(crate) fn in_mid_stream() -> Self {
        Self {
            state: State::Searching,
            checksums: Checksums::Unknown,
            markers: None,
            phase: None,
            first: 0,
            at: 0,
            held: Held::default(),
            scanned: 0,
            undecided: Vec::new(),
            effort: 0,
            found: false,
        }
    }

    /// The handshake says how FPDUs are.
    pub(crate) fn agree(&mut self, checksums: bool, markers: bool) {
        self.checksums = if checksums { Checksums::On } else { Checksums::Off };
        // The first marker is the first thing after the handshake.
        self.markers = markers.then_some(self.first);
    }

    /// Whether the stream is not MPA's, as far as it was seen.
    pub(crate) fn is_foreign(&self) -> bool {
        self.state == State::Foreign
    }

    /// Takes the next piece of the stream.
    pub(crate) fn feed(&mut self, mut piece: Piece<'_>, budget: &Budget, out: &mut dyn FnMut(Event<'_>)) {
        // Mostly this is all.
        if let Piece::Bytes { bytes, cut, frame, time, start } = &mut piece
            && self.is_between()
        {
            let taken = self.direct(bytes, cut, *frame, *time, out);
            if taken == bytes.len() && *cut == 0 {
                return;
            }
            (*bytes, *start) = (&bytes[taken..], *start && taken == 0);
        }
        let held = self.held.weight();
        match piece {
            Piece::Bytes { bytes, mut cut, frame, time, start } => {
                self.take(bytes, &mut cut, frame, time, start, out);
                self.miss(cut, true, out);
            }
            Piece::Lost(length) => self.miss(length, false, out),
        }
        let now = self.held.weight();
        if now > held && !budget.take(now - held) {
            budget.give(held);
            out(Event::GaveUp(self.held.so_far()));
            self.clear();
            self.state = State::Searching;
        } else {
            budget.give(held.saturating_sub(now));
        }
    }

    /// No more comes.
    pub(crate) fn finish(&mut self, budget: &Budget, out: &mut dyn FnMut(Event<'_>)) {
        budget.give(self.held.weight());
        if self.state == State::Searching {
            self.search(true, out);
        }
        if self.state != State::Foreign && !self.held.is_empty() {
            out(Event::Passed(self.held.so_far() as u64));
        }
        self.clear();
        self.state = State::Foreign;
    }

    fn clear(&mut self) {
        self.held.clear();
        self.scanned = 0;
        self.effort = 0;
        self.undecided.clear();
    }

    /// The boundaries are lost, and what is held with them.
    fn lose(&mut self, out: &mut dyn FnMut(Event<'_>)) {
        if !self.held.is_empty() {
            out(Event::Passed(self.held.so_far() as u64));
        }
        self.clear();
        self.state = State::Searching;
    }

    /// Whether FPDUs without markers follow, and none has begun.
    fn is_between(&self) -> bool {
        self.state == State::Framed && self.held.is_empty() && self.markers.is_none()
    }

    /// Takes bytes, and of what the capture `cut` behind them what the last FPDU in them has there.
    fn take(
        &mut self,
        mut bytes: &[u8],
        cut: &mut u64,
        frame: u64,
        time: u64,
        mut start: bool,
        out: &mut dyn FnMut(Event<'_>),
    ) {
        while !bytes.is_empty() {
            match self.state {
                State::Foreign => return,
                State::Searching => {
                    self.hold(bytes, frame, time, start);
                    self.search(false, out);
                    return;
                }
                State::Handshake(kind) => {
                    let needed = self.handshake_length();
                    let take = bytes.len().min(needed - self.held.so_far());
                    self.hold(&bytes[..take], frame, time, start);
                    bytes = &bytes[take..];
                    self.handshake(kind, out);
                }
                State::Framed if self.is_between() => {
                    let taken = self.direct(bytes, cut, frame, time, out);
                    bytes = &bytes[taken..];
                    if taken == 0 && self.state == State::Framed {
                        let needed = frame_length(bytes).unwrap_or(mpa::FPDU_LENGTH_FIELD);
                        let take = bytes.len().min(needed);
                        self.hold(&bytes[..take], frame, time, start);
                        bytes = &bytes[take..];
                        self.held_frame(out);
                    }
                }
                State::Framed => {
                    let needed = self.held_length();
                    let take = bytes.len().min(needed - self.held.so_far());
                    self.hold(&bytes[..take], frame, time, start);
                    bytes = &bytes[take..];
                    self.held_frame(out);
                }
            }
            start = false;
        }
    }

    /// Bytes are missing here, if any.
    fn miss(&mut self, length: u64, cut: bool, out: &mut dyn FnMut(Event<'_>)) {
        if length == 0 {
            return;
        }
        match self.state {
            State::Foreign => self.at += length,
            State::Handshake(kind) => {
                if self.held.bytes.len() < mpa::FRAME_HEADER {
                    // The rest of the stream cannot be read without the fixed part.
                    self.lose(out);
                    self.at += length;
                    return;
                }
                let rest = length.min((self.handshake_length() - self.held.so_far()) as u64);
                self.hold_nothing(rest as usize, cut);
                self.handshake(kind, out);
                self.miss(length - rest, cut, out);
            }
            State::Framed => {
                let needed = self.held_length();
                if self.held.bytes.len() < FIRST.min(needed) || self.markers.is_some() {
                    out(if cut { Event::Cut(length) } else { Event::Passed(length) });
                    self.lose(out);
                    self.at += length;
                    return;
                }
                let rest = length.min((needed - self.held.so_far()) as u64);
                self.hold_nothing(rest as usize, cut);
                self.held_frame(out);
                self.miss(length - rest, cut, out);
            }
            State::Searching => {
                // A chain is followed over what the capture cut, not over what it lost.
                if cut && !self.held.is_empty() && length <= mpa::MAX_ULPDU as u64 {
                    self.hold_nothing(length as usize, true);
                    self.search(false, out);
                } else {
                    out(Event::Passed(length));
                    self.lose(out);
                    self.at += length;
                }
            }
        }
    }

    fn hold(&mut self, bytes: &[u8], frame: u64, time: u64, start: bool) {
        self.held.put(bytes, frame, time, start);
        self.at += bytes.len() as u64;
    }

    fn hold_nothing(&mut self, length: usize, cut: bool) {
        self.held.miss(length, cut);
        self.at += length as u64;
        // Only an FPDU may end with nothing.
        if self.state != State::Framed {
            self.held.fill_tail();
        }
    }

    /// Bytes of the request or reply, as far as what is held tells.
    fn handshake_length(&self) -> usize {
        match self.held.bytes.first_chunk::<{ mpa::FRAME_HEADER }>() {
            Some(header) => {
                let length = usize::from(u16::from_be_bytes([header[18], header[19]]));
                mpa::FRAME_HEADER + length.min(mpa::MAX_PRIVATE_DATA)
            }
            None => mpa::FRAME_HEADER,
        }
    }

    fn handshake(&mut self, kind: mpa::FrameKind, out: &mut dyn FnMut(Event<'_>)) {
        if mpa::Frame::check_key(&self.held.bytes, kind).is_err() {
            self.clear();
            self.state = State::Foreign;
            return;
        }
        if self.held.bytes.len() < mpa::FRAME_HEADER || self.held.so_far() < self.handshake_length() {
            return;
        }
        let Held { bytes, gaps, .. } = std::mem::take(&mut self.held);
        let certain = gaps.first().map_or(bytes.len(), |gap| gap.0);
        self.clear();
        self.phase = Some(self.at % 4);
        self.first = self.at;
        self.state = State::Framed;
        out(Event::Handshake { bytes: &bytes, certain });
    }

    /// Takes FPDUs from the front of `bytes`, without a copy: whole ones, and one whose rest was `cut`.
    fn direct(
        &mut self,
        bytes: &[u8],
        cut: &mut u64,
        frame: u64,
        time: u64,
        out: &mut dyn FnMut(Event<'_>),
    ) -> usize {
        let mut taken = 0;
        while let Some(length) = frame_length(&bytes[taken..]) {
            let rest = &bytes[taken..];
            let there = &rest[..rest.len().min(length)];
            let is_whole = there.len() == length;
            if !is_whole && (there.len() < FIRST || (length - there.len()) as u64 > *cut) {
                break;
            }
            let (ulpdu, frames) = (ulpdu(there), (frame, frame));
            let span = (self.at, self.at + length as u64);
            let gap = [(ulpdu.len(), length_field(there))];
            let gaps = if gap[0].0 < gap[0].1 { &gap[..] } else { &[] };
            let fpdu = Fpdu { ulpdu, length: gap[0].1, gaps, cut: !is_whole, span, frames, time };
            // What is cut and makes no sense has to be held, to be searched.
            let is_one =
                if is_whole { self.makes_sense(there, &fpdu, out) } else { search::makes_sense(&fpdu) };
            if !is_one {
                break;
            }
            self.at = span.1;
            taken += there.len();
            if is_whole {
                self.check(there, there, fpdu, out);
            } else {
                *cut -= (length - there.len()) as u64;
                self.found = true;
                out(Event::Fpdu(fpdu));
            }
        }
        taken
    }

    /// Whether this may be an FPDU: it looks like one, or its checksum says so. Else the boundaries are lost.
    fn makes_sense(&mut self, covered: &[u8], fpdu: &Fpdu<'_>, out: &mut dyn FnMut(Event<'_>)) -> bool {
        let has_sum = || {
            let (covered, field) = covered.split_at(covered.len() - mpa::CRC);
            fpdu.gaps.is_empty() && mpa::crc_field(crc32c::crc32c(covered)) == field
        };
        if search::makes_sense(fpdu) || self.checksums == Checksums::On && has_sum() {
            return true;
        }
        out(Event::Nonsense);
        self.lose(out);
        false
    }

    /// Bytes of the FPDU that begins with what is held, as far as that tells.
    fn held_length(&self) -> usize {
        let begin = self.at - self.held.so_far() as u64;
        match self.markers {
            None => frame_length(&self.held.bytes).unwrap_or(mpa::FPDU_LENGTH_FIELD),
            Some(origin) => {
                let first = with_markers(begin, mpa::FPDU_LENGTH_FIELD, origin);
                match self.held.bytes.get(first - mpa::FPDU_LENGTH_FIELD..first) {
                    Some(&[high, low]) => {
                        with_markers(begin, mpa::fpdu(usize::from(u16::from_be_bytes([high, low]))), origin)
                    }
                    _ => first,
                }
            }
        }
    }

    /// Hands on the FPDU that is held, if it is whole.
    fn held_frame(&mut self, out: &mut dyn FnMut(Event<'_>)) {
        let needed = self.held_length();
        if self.held.so_far() < needed {
            let is_plain = self.markers.is_none() && self.checksums != Checksums::On;
            let begun = self.held.bytes.get(mpa::FPDU_LENGTH_FIELD..).unwrap_or(&[]);
            let is_empty = needed == mpa::fpdu(0);
            if is_plain && !is_empty && search::sense(begun, needed) == Some(false) {
                // Its length means nothing, and what would be its end may be far away.
                out(Event::Nonsense);
                self.state = State::Searching;
                self.held.fill_tail();
                self.search(false, out);
            }
            return;
        }
        let begin = self.at - self.held.so_far() as u64;
        let (cut, (frames, time)) = (self.held.cut, self.held.origin());
        let held = std::mem::take(&mut self.held.bytes);
        let mut gaps = std::mem::take(&mut self.held.gaps);
        let stripped;
        let frame = match self.markers {
            None => &held,
            Some(origin) => {
                stripped = without_markers(&held, begin, origin);
                &stripped
            }
        };
        let (ulpdu, length, is_whole) = (ulpdu(frame), length_field(frame), gaps.is_empty());
        let clip = |place: usize| place.saturating_sub(mpa::FPDU_LENGTH_FIELD).min(length);
        gaps.iter_mut().for_each(|(from, to)| (*from, *to) = (clip(*from), clip(*to)));
        gaps.retain(|(from, to)| from < to);
        let fpdu = Fpdu { ulpdu, length, gaps: &gaps, cut, span: (begin, self.at), frames, time };
        self.clear();
        if !self.makes_sense(&held, &fpdu, out) {
            return;
        }
        if is_whole {
            self.check(&held, frame, fpdu, out);
        } else {
            self.found = true;
            out(Event::Fpdu(fpdu));
        }
        // For the next one.
        (self.held.bytes, self.held.gaps) = (held, gaps);
        self.clear();
    }

    /// Hands on a whole FPDU, if its checksum is right or not in use. `covered` has the markers in it.
    fn check(&mut self, covered: &[u8], frame: &[u8], fpdu: Fpdu<'_>, out: &mut dyn FnMut(Event<'_>)) {
        let found = frame.last_chunk().map_or(0, |field| u32::from_le_bytes(*field));
        if self.checksums == Checksums::Unknown {
            self.checksums = if found == 0 { Checksums::Off } else { Checksums::On };
        }
        if self.checksums == Checksums::On {
            let computed = crc32c::crc32c(&covered[..covered.len() - mpa::CRC]);
            if computed != found {
                out(Event::BadChecksum { found, computed });
                return;
            }
        }
        self.found = true;
        out(Event::Fpdu(fpdu));
    }
}

/// The queue on which untagged messages of an opcode travel.
pub(crate) fn queue(opcode: Opcode) -> u32 {
    match opcode {
        Opcode::ReadRequest | Opcode::AtomicRequest => rdmap::READ_QUEUE,
        Opcode::Terminate => rdmap::TERMINATE_QUEUE,
        Opcode::AtomicResponse => rdmap::ATOMIC_RESPONSE_QUEUE,
        _ => rdmap::SEND_QUEUE,
    }
}
