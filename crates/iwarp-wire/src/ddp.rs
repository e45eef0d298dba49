//! DDP (RFC 5041): the header of every segment, tagged (placed by key and offset) or untagged
//! (placed in the receive that its queue has next).

use core::fmt;

/// Bytes of a tagged header.
pub const TAGGED: usize = 14;
/// Bytes of an untagged header.
pub const UNTAGGED: usize = 18;
/// Longest payload of a tagged segment that may be sent.
pub const MAX_TAGGED_PAYLOAD: usize = crate::mpa::MAX_MULPDU - TAGGED;

const TAGGED_FLAG: u8 = 0x80;
const LAST_FLAG: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const VERSION: u8 = 1;

/// Header of a tagged segment [RFC 5041 4.2-1].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tagged {
    /// Last segment of its message.
    pub last: bool,
    /// The byte reserved for the layer above: RDMAP's control.
    pub ulp: u8,
    /// Names the receiver's region.
    pub stag: u32,
    /// Where in the region.
    pub offset: u64,
}

/// Header of an untagged segment [RFC 5041 4.3-1].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Untagged {
    /// Last segment of its message.
    pub last: bool,
    /// The byte reserved for the layer above: RDMAP's control.
    pub ulp: u8,
    /// The word reserved for the layer above: the key to invalidate.
    pub ulp_word: u32,
    /// Queue number.
    pub queue: u32,
    /// Message sequence number on that queue, from 1.
    pub sequence: u32,
    /// Where in the message, in bytes.
    pub offset: u32,
}

/// A segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// See [`Tagged`].
    Tagged(Tagged),
    /// See [`Untagged`].
    Untagged(Untagged),
}

/// Why bytes are not a segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderError {
    /// Fewer bytes than a header.
    Short {
        /// Bytes there.
        length: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// Another version of DDP.
    Version {
        /// Version found.
        found: u8,
        /// Whether in a tagged header.
        tagged: bool,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { length, needed } => {
                write!(f, "a segment of {length} bytes cannot hold its header of {needed}")
            }
            Self::Version { found, .. } => write!(f, "DDP version {found} instead of {VERSION}"),
        }
    }
}

impl core::error::Error for HeaderError {}

/// Bytes of the header that begins with the byte `control`.
#[must_use]
#[inline]
pub const fn header_length(control: u8) -> usize {
    if control & TAGGED_FLAG != 0 { TAGGED } else { UNTAGGED }
}

impl Header {
    /// Reads the header at the start of `bytes`, which may be longer [RFC 5041 4.1-9, 4.1-11, 4.4-1].
    ///
    /// # Errors
    /// [`HeaderError`], with the numbers.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let Some(&control) = bytes.first() else {
            return Err(HeaderError::Short { length: 0, needed: 1 });
        };
        let (tagged, last) = (control & TAGGED_FLAG != 0, control & LAST_FLAG != 0);
        let short = HeaderError::Short { length: bytes.len(), needed: header_length(control) };
        let check_version = || match control & VERSION_MASK {
            VERSION => Ok(()),
            found => Err(HeaderError::Version { found, tagged }),
        };
        if tagged {
            let bytes: &[u8; TAGGED] = bytes.first_chunk().ok_or(short)?;
            check_version()?;
            let (stag, offset) = (word::<2, TAGGED>(bytes), long::<6, TAGGED>(bytes));
            Ok(Self::Tagged(Tagged { last, ulp: bytes[1], stag, offset }))
        } else {
            let bytes: &[u8; UNTAGGED] = bytes.first_chunk().ok_or(short)?;
            check_version()?;
            Ok(Self::Untagged(Untagged {
                last,
                ulp: bytes[1],
                ulp_word: word::<2, UNTAGGED>(bytes),
                queue: word::<6, UNTAGGED>(bytes),
                sequence: word::<10, UNTAGGED>(bytes),
                offset: word::<14, UNTAGGED>(bytes),
            }))
        }
    }
}

impl Tagged {
    /// Writes the header [RFC 5041 4.1-8, 4.1-10].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; TAGGED]) {
        bytes[0] = TAGGED_FLAG | if self.last { LAST_FLAG } else { 0 } | VERSION;
        bytes[1] = self.ulp;
        bytes[2..6].copy_from_slice(&self.stag.to_be_bytes());
        bytes[6..].copy_from_slice(&self.offset.to_be_bytes());
    }
}

impl Untagged {
    /// Writes the header [RFC 5041 4.1-8, 4.1-10].
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; UNTAGGED]) {
        bytes[0] = if self.last { LAST_FLAG } else { 0 } | VERSION;
        bytes[1] = self.ulp;
        bytes[2..6].copy_from_slice(&self.ulp_word.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.queue.to_be_bytes());
        bytes[10..14].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[14..].copy_from_slice(&self.offset.to_be_bytes());
    }
}

/// The big-endian word at `AT`.
#[inline]
pub(super) fn word<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u32 {
    u32::from_be_bytes(field::<AT, 4, N>(bytes))
}

/// The big-endian double word at `AT`.
#[inline]
pub(super) fn long<const AT: usize, const N: usize>(bytes: &[u8; N]) -> u64 {
    u64::from_be_bytes(field::<AT, 8, N>(bytes))
}

/// The bytes of a field at `AT`. One that is not within its header does not compile.
#[inline]
fn field<const AT: usize, const LENGTH: usize, const N: usize>(bytes: &[u8; N]) -> [u8; LENGTH] {
    const { assert!(AT + LENGTH <= N) };
    core::array::from_fn(|at| bytes[AT + at])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAGGED_BYTES: [u8; TAGGED] = [0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
    const UNTAGGED_BYTES: [u8; UNTAGGED] = [0x41, 0x43, 1, 2, 3, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 7];

    /// [RFC 5041 4.1-8, 4.2-1]
    #[test]
    fn tagged_header_follows_the_layout() {
        let header = Tagged { last: true, ulp: 0x40, stag: 0x0102_0304, offset: 0x0506_0708_090a_0b0c };
        assert_eq!(Header::parse(&TAGGED_BYTES), Ok(Header::Tagged(header)));
        let mut bytes = [0xff; TAGGED];
        header.emit(&mut bytes);
        assert_eq!(bytes, TAGGED_BYTES);
    }

    /// [RFC 5041 4.1-8, 4.3-1]
    #[test]
    fn untagged_header_follows_the_layout() {
        let header =
            Untagged { last: true, ulp: 0x43, ulp_word: 0x0102_0304, queue: 5, sequence: 6, offset: 7 };
        assert_eq!(Header::parse(&UNTAGGED_BYTES), Ok(Header::Untagged(header)));
        let mut bytes = [0xff; UNTAGGED];
        header.emit(&mut bytes);
        assert_eq!(bytes, UNTAGGED_BYTES);
    }

    /// [RFC 5041 4.4-1]
    #[test]
    fn every_truncated_header_is_refused() {
        for whole in [&TAGGED_BYTES[..], &UNTAGGED_BYTES[..]] {
            for length in 0..whole.len() {
                let needed = if length == 0 { 1 } else { whole.len() };
                assert_eq!(Header::parse(&whole[..length]), Err(HeaderError::Short { length, needed }));
            }
        }
    }

    /// [RFC 5041 4.1-9]
    #[test]
    fn reserved_bits_are_not_checked() {
        for mut bytes in [TAGGED_BYTES.to_vec(), UNTAGGED_BYTES.to_vec()] {
            let plain = Header::parse(&bytes);
            bytes[0] |= 0x3c;
            assert!(plain.is_ok());
            assert_eq!(Header::parse(&bytes), plain);
        }
    }

    /// [RFC 5041 4.1-11]
    #[test]
    fn other_versions_are_refused() {
        for found in [0, 2, 3] {
            for (mut bytes, tagged) in [(TAGGED_BYTES.to_vec(), true), (UNTAGGED_BYTES.to_vec(), false)] {
                bytes[0] = bytes[0] & !VERSION_MASK | found;
                assert_eq!(Header::parse(&bytes), Err(HeaderError::Version { found, tagged }));
            }
        }
    }
}
