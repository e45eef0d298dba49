//! What the tests of content send, and how they compare it.

use super::Side;
use crate::job::Tally;

/// What is compared each way, if there is time for it.
pub(super) const VERIFIED_BYTES: u64 = 32 << 20;

/// Bytes that do not repeat (xorshift).
pub(super) struct Content(u64);

impl Content {
    /// Each side has content of its own.
    pub(super) fn of(side: Side) -> Self {
        Self(match side {
            Side::Active => 0x9e37_79b9_7f4a_7c15,
            Side::Passive => 0x6a09_e667_f3bc_c908,
        })
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            *byte = (self.0 >> 32) as u8;
        }
    }
}

/// FNV-1a: cheap, and every byte and its place count.
pub(super) struct Checksum(pub(super) Tally);

impl Checksum {
    pub(super) fn new() -> Self {
        Self(Tally { bytes: 0, checksum: 0xcbf2_9ce4_8422_2325 })
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.bytes += bytes.len() as u64;
        for byte in bytes {
            self.0.checksum = (self.0.checksum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_depends_on_content_and_order_but_not_on_pieces() {
        let of = |pieces: &[&[u8]]| {
            let mut sum = Checksum::new();
            pieces.iter().for_each(|piece| sum.add(piece));
            sum.0
        };
        assert_eq!(of(&[b"abcd"]), of(&[b"a", b"", b"bcd"]));
        assert_ne!(of(&[b"abcd"]), of(&[b"abdc"]));
        assert_ne!(of(&[b"abcd"]), of(&[b"abc"]));
        assert_eq!(of(&[b"a"]).checksum, 0xaf63_dc4c_8601_ec8c, "as published for FNV-1a");
    }
}
