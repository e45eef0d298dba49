//! FPDUs with a CRC: each is collected and verified before any of its content is used.

use iwarp_wire::mpa;

use crate::iwarp::machine::stream::KEPT;
use crate::iwarp::machine::violation::{Fault, Violation};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Verifier {
    /// The incomplete FPDU, or the one that was not taken.
    part: Vec<u8>,
}

impl Verifier {
    /// Whether no FPDU is incomplete.
    pub(super) fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    /// Frees memory, if no FPDU is incomplete and the memory is large.
    pub(super) fn shrink(&mut self) {
        if self.part.is_empty() && self.part.capacity() > KEPT {
            self.part = Vec::new();
        }
    }

    /// Takes bytes of the stream, and passes each complete and correct FPDU to `take`. If `take` returns that
    /// it did not take the FPDU, it gets that FPDU again in the next call. Returns the bytes that are left
    /// then [RFC 5044 3-6, 4.4-11, 6-1, 6-5, 8-5].
    pub(super) fn feed<'i>(
        &mut self,
        mut left: &'i [u8],
        mut take: impl FnMut(&[u8]) -> Result<bool, Fault>,
    ) -> Result<&'i [u8], Fault> {
        loop {
            let is_whole = length(&self.part) == Some(self.part.len());
            if is_whole {
                check(&self.part)?;
                if !take(&self.part)? {
                    break;
                }
                self.part.clear();
            }
            if left.is_empty() {
                break;
            }
            if self.part.is_empty()
                && let Some((fpdu, rest)) = length(left).and_then(|length| left.split_at_checked(length))
            {
                check(fpdu)?;
                if !take(fpdu)? {
                    break;
                }
                left = rest;
                continue;
            }
            let wanted = length(&self.part).unwrap_or(mpa::FPDU_LENGTH_FIELD);
            let (piece, rest) = left.split_at((wanted - self.part.len()).min(left.len()));
            self.part.try_reserve(wanted - self.part.len()).map_err(|_| Violation::NoMemory)?;
            self.part.extend_from_slice(piece);
            left = rest;
        }
        Ok(left)
    }
}

/// Length of the FPDU that begins with `bytes`, if its length field is complete.
fn length(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|field| mpa::fpdu(u16::from_be_bytes(*field).into()))
}

/// Compares the CRC at the end of an FPDU with that of the bytes before it [RFC 5041 3-5, 7-1]
/// [RFC 5044 4.4-1, 4.4-12, 6-3, 8-2].
fn check(fpdu: &[u8]) -> Result<(), Violation> {
    let Some((bytes, field)) = fpdu.split_last_chunk() else { return Ok(()) };
    let (found, expected) = (u32::from_le_bytes(*field), crc32c::crc32c(bytes));
    if found == expected { Ok(()) } else { Err(Violation::Crc { found, expected }) }
}
