//! Output that exceeds a segment of the loopback device by little, as two segments of equal length.
//!
//! By one call the first segment would be as long as it may be, and leave little for the second. A peer that waits for
//! the message then copies it after this side has; of two halves, it copies the first while this side copies the second.

use std::ops::Range;

use crate::memory::{Source, parts};

/// Lengths of such output, in bytes. A segment has 65 463 to 65 483 bytes, by the headers of IP and TCP. Output of 64 KiB
/// with the headers of iWARP is in the range.
pub(super) const HALVED: Range<usize> = 65_464..72 * 1024;
/// Maximum number of pieces of memory.
const PIECES: usize = 8;

/// The first and the second half of `pieces`, if they are such output. Unused pieces are empty.
pub(super) fn halves<'m>(pieces: &[Source<'m>]) -> Option<[[Source<'m>; PIECES]; 2]> {
    let length = pieces.iter().map(Source::len).sum();
    if !HALVED.contains(&length) || pieces.len() > PIECES {
        return None;
    }
    let half = length / 2;
    Some([0..half, half..length].map(|range| {
        let mut found = [Source::default(); PIECES];
        for (place, part) in found.iter_mut().zip(parts(pieces, range)) {
            *place = part;
        }
        found
    }))
}
