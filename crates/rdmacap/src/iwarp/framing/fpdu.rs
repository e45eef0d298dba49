//! FPDUs: what is told of them, and where their fields are, with and without markers.

use iwarp_wire::mpa;

/// Distance of MPA's markers, and their length (RFC 5044 4.3).
const MARKER_DISTANCE: u64 = 512;
const MARKER: u64 = 4;

/// An FPDU of data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fpdu<'a> {
    /// Its ULPDU, with zeros where bytes are missing. What is missing at its end is not there.
    pub(crate) ulpdu: &'a [u8],
    /// Length of the ULPDU.
    pub(crate) length: usize,
    /// Where in the ULPDU bytes are missing.
    pub(crate) gaps: &'a [(usize, usize)],
    /// Whether the missing bytes were all cut off by the capture, rather than lost.
    pub(crate) cut: bool,
    /// Stream offsets of its start and its end.
    pub(crate) span: (u64, u64),
    /// First and last frame of the capture that carried it, and the time of the first.
    pub(crate) frames: (u64, u64),
    pub(crate) time: u64,
}

/// What the framing found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    /// A request or reply: what there is of it, zeros where bytes are missing, and how much of that is
    /// certain.
    Handshake { bytes: &'a [u8], certain: usize },
    /// An FPDU whose checksum is right or not in use.
    Fpdu(Fpdu<'a>),
    /// An FPDU whose checksum is wrong.
    BadChecksum { found: u32, computed: u32 },
    /// So many bytes were passed over, because they could not be framed.
    Passed(u64),
    /// The same, because the capture cut them: in a segment with several FPDUs the rest is not known.
    Cut(u64),
    /// No FPDU where one should begin: what follows is searched for the next.
    Nonsense,
    /// So many bytes were passed over, because there is no memory for them.
    GaveUp(usize),
}

pub(super) fn length_field(frame: &[u8]) -> usize {
    frame.first_chunk().map_or(0, |field| usize::from(u16::from_be_bytes(*field)))
}

/// Bytes of the FPDU that `bytes` begin with, if its length field is there.
pub(super) fn frame_length(bytes: &[u8]) -> Option<usize> {
    (bytes.len() >= mpa::FPDU_LENGTH_FIELD).then(|| mpa::fpdu(length_field(bytes)))
}

/// The ULPDU of an FPDU without markers, or what there is of it.
pub(super) fn ulpdu(frame: &[u8]) -> &[u8] {
    let there = frame.get(mpa::FPDU_LENGTH_FIELD..).unwrap_or(&[]);
    &there[..there.len().min(length_field(frame))]
}

/// Bytes on the wire of `length` bytes from stream offset `begin` on, with the markers among and before them.
pub(super) fn with_markers(begin: u64, length: usize, origin: u64) -> usize {
    let (mut at, mut left) = (begin, length as u64);
    while left > 0 {
        let phase = at.wrapping_sub(origin) % MARKER_DISTANCE;
        if phase == 0 {
            at += MARKER;
            continue;
        }
        let step = left.min(MARKER_DISTANCE - phase);
        at += step;
        left -= step;
    }
    (at - begin) as usize
}

pub(super) fn without_markers(bytes: &[u8], begin: u64, origin: u64) -> Vec<u8> {
    let is_data = |index: &usize| (begin + *index as u64).wrapping_sub(origin) % MARKER_DISTANCE >= MARKER;
    (0..bytes.len()).filter(is_data).map(|index| bytes[index]).collect()
}
