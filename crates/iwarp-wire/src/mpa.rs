//! MPA (RFC 5044, with the enhanced connection set-up of RFC 6581): the request and reply frames
//! that open a connection, and the framing of what follows.
//!
//! A frame of data (FPDU) is a 16-bit length, the ULPDU of that length, zero to three bytes of
//! padding up to a multiple of four, and a CRC32c over all of that. The CRC field is there even
//! where its use was not agreed; then it is zero and nobody looks at it. Markers are never used.

use core::fmt;

/// Bytes of a request or reply before its private data.
pub const FRAME_HEADER: usize = 20;
/// Most bytes of private data in a frame [RFC 5044 7.1.1-16].
pub const MAX_PRIVATE_DATA: usize = 512;
/// Bytes of [`Enhanced`] at the start of the private data of revision 2.
pub const ENHANCED: usize = 4;
/// Newest revision that is spoken here.
pub const MAX_REVISION: u8 = 2;

/// Bytes of an FPDU before the ULPDU.
pub const FPDU_LENGTH_FIELD: usize = 2;
/// Longest ULPDU that the length field can tell, and that is accepted.
pub const MAX_ULPDU: usize = 0xffff;
/// Longest ULPDU that may be sent [RFC 5041 3-1] [RFC 5044 3-2, 3-4, 3-5, 4.5-4, 4.5-5].
pub const MAX_MULPDU: usize = 64_768;
/// Bytes of the CRC field.
pub const CRC: usize = 4;
/// Most bytes of padding and CRC.
pub const MAX_TRAILER: usize = 3 + CRC;

const KEY: usize = 16;
const REQUEST_KEY: &[u8; KEY] = b"MPA ID Req Frame";
const REPLY_KEY: &[u8; KEY] = b"MPA ID Rep Frame";

const MARKERS: u8 = 0x80;
const CRC_WANTED: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED_SET: u8 = 0x10;

/// Which of the two frames that open a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// From the active side.
    Request,
    /// From the passive side.
    Reply,
}

impl FrameKind {
    /// What a frame of this kind begins with [RFC 5044 7.1.1-1, 7.1.1-3].
    fn key(self) -> &'static [u8; KEY] {
        match self {
            Self::Request => REQUEST_KEY,
            Self::Reply => REPLY_KEY,
        }
    }
}

/// The fixed part of a request or reply (RFC 5044 7.1.1, RFC 6581 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Request or reply.
    pub kind: FrameKind,
    /// The sender wants markers in what it receives.
    pub markers: bool,
    /// The sender wants CRCs in both directions.
    pub crc: bool,
    /// A reply that refuses; meaningless in a request.
    pub reject: bool,
    /// The private data begins with [`Enhanced`].
    pub enhanced: bool,
    /// MPA revision.
    pub revision: u8,
    /// Bytes of private data that follow, [`Enhanced`] included.
    pub private_data: u16,
}

/// Why bytes are not a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The first bytes are not the key, which tells MPA from anything else.
    Key {
        /// What was expected.
        kind: FrameKind,
        /// First byte that differs.
        at: usize,
        /// Its value.
        found: u8,
    },
    /// More private data than the protocol allows.
    PrivateData {
        /// Bytes announced.
        length: u16,
    },
    /// A revision that is not spoken here.
    Revision {
        /// Revision announced.
        found: u8,
    },
    /// Revision 2 parameters announced, and no room for them.
    Enhanced {
        /// Bytes announced.
        length: u16,
    },
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { kind, at, found } => {
                write!(f, "byte {at} is {found:#04x}, not an MPA {kind:?} frame")
            }
            Self::PrivateData { length } => {
                write!(f, "{length} bytes of private data are more than the {MAX_PRIVATE_DATA} of MPA")
            }
            Self::Revision { found } => write!(f, "MPA revision {found} instead of 1 to {MAX_REVISION}"),
            Self::Enhanced { length } => {
                write!(f, "{length} bytes of private data cannot hold the {ENHANCED} of revision 2")
            }
        }
    }
}

impl core::error::Error for FrameError {}

impl Frame {
    /// Reads a frame's fixed part [RFC 5044 3-7, 7.1.1-11, 7.1.1-13, 7.1.1-15, 7.1.2-17, 7.1.2-20]
    /// [RFC 6581 6-1].
    ///
    /// # Errors
    /// [`FrameError`] says which field is impossible.
    pub fn parse(bytes: &[u8; FRAME_HEADER], kind: FrameKind) -> Result<Self, FrameError> {
        Self::check_key(bytes, kind)?;
        let [.., flags, revision, high, low] = *bytes;
        let frame = Self {
            kind,
            markers: flags & MARKERS != 0,
            crc: flags & CRC_WANTED != 0,
            reject: flags & REJECT != 0,
            enhanced: flags & ENHANCED_SET != 0 && revision >= 2,
            revision,
            private_data: u16::from_be_bytes([high, low]),
        };
        if !(1..=MAX_REVISION).contains(&revision) {
            return Err(FrameError::Revision { found: revision });
        }
        if usize::from(frame.private_data) > MAX_PRIVATE_DATA {
            return Err(FrameError::PrivateData { length: frame.private_data });
        }
        if frame.enhanced && !frame.reject && usize::from(frame.private_data) < ENHANCED {
            return Err(FrameError::Enhanced { length: frame.private_data });
        }
        Ok(frame)
    }

    /// Compares the start of a frame, as far as it is there, with the key: garbage is known as
    /// such without waiting for a whole frame of it [RFC 5044 7.1.1-2, 7.1.1-4, 7.1.2-13, 7.1.2-15].
    ///
    /// # Errors
    /// [`FrameError::Key`] for the first byte that differs.
    pub fn check_key(bytes: &[u8], kind: FrameKind) -> Result<(), FrameError> {
        match bytes.iter().zip(kind.key()).position(|(found, expected)| found != expected) {
            Some(at) => Err(FrameError::Key { kind, at, found: bytes[at] }),
            None => Ok(()),
        }
    }

    /// Writes the fixed part [RFC 5044 7.1.1-10] [RFC 6581 6-1].
    pub fn emit(&self, bytes: &mut [u8; FRAME_HEADER]) {
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        bytes[..KEY].copy_from_slice(self.kind.key());
        bytes[KEY] = flag(self.markers, MARKERS)
            | flag(self.crc, CRC_WANTED)
            | flag(self.reject, REJECT)
            | flag(self.enhanced, ENHANCED_SET);
        bytes[KEY + 1] = self.revision;
        bytes[KEY + 2..].copy_from_slice(&self.private_data.to_be_bytes());
    }
}

/// The parameters of revision 2 at the start of the private data [RFC 6581 9-1].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enhanced {
    /// Peer-to-peer model: the active side sends a ready-to-receive message first (flag A).
    pub peer_to_peer: bool,
    /// Ready-to-receive by an empty FPDU (flag B).
    pub rtr_send: bool,
    /// Ready-to-receive by an RDMA Write of no bytes (flag C).
    pub rtr_write: bool,
    /// Ready-to-receive by an RDMA Read of no bytes (flag D).
    pub rtr_read: bool,
    /// RDMA Reads that the sender serves at a time, 14 bits.
    pub ird: u16,
    /// RDMA Reads that the sender wants outstanding, 14 bits.
    pub ord: u16,
}

impl Enhanced {
    /// The value of [`Enhanced::ird`] and [`Enhanced::ord`] that states nothing, and the largest.
    pub const UNSTATED: u16 = 0x3fff;
    const HIGH: u16 = 0x8000;
    const LOW: u16 = 0x4000;

    /// Reads the parameters; every value is one.
    #[must_use]
    pub fn parse(bytes: [u8; ENHANCED]) -> Self {
        let [a, b, c, d] = bytes;
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            peer_to_peer: first & Self::HIGH != 0,
            rtr_send: first & Self::LOW != 0,
            rtr_write: second & Self::HIGH != 0,
            rtr_read: second & Self::LOW != 0,
            ird: first & Self::UNSTATED,
            ord: second & Self::UNSTATED,
        }
    }

    /// Writes the parameters.
    #[must_use]
    pub fn emit(&self) -> [u8; ENHANCED] {
        let flag = |set: bool, bit: u16| if set { bit } else { 0 };
        let first =
            flag(self.peer_to_peer, Self::HIGH) | flag(self.rtr_send, Self::LOW) | self.ird & Self::UNSTATED;
        let second =
            flag(self.rtr_write, Self::HIGH) | flag(self.rtr_read, Self::LOW) | self.ord & Self::UNSTATED;
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }
}

/// Bytes of padding after a ULPDU of `ulpdu` bytes.
#[must_use]
#[inline]
pub const fn padding(ulpdu: usize) -> usize {
    (FPDU_LENGTH_FIELD + ulpdu).wrapping_neg() & 3
}

/// Bytes of the whole FPDU around a ULPDU of `ulpdu` bytes [RFC 5044 4.1-1].
#[must_use]
#[inline]
pub const fn fpdu(ulpdu: usize) -> usize {
    FPDU_LENGTH_FIELD + ulpdu + padding(ulpdu) + CRC
}

/// The CRC field for a CRC32c: least significant byte first, as iSCSI sends it (RFC 3720 B.4)
/// [RFC 5044 4.4-9].
#[must_use]
#[inline]
pub const fn crc_field(crc: u32) -> [u8; CRC] {
    crc.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: FrameKind, flags: u8, revision: u8, length: u16) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        bytes[..16].copy_from_slice(kind.key());
        bytes[16] = flags;
        bytes[17] = revision;
        bytes[18..].copy_from_slice(&length.to_be_bytes());
        bytes
    }

    #[test]
    fn frames_read_and_write_alike() {
        for kind in [FrameKind::Request, FrameKind::Reply] {
            for flags in (0..=0xf0).step_by(0x10) {
                for (revision, length) in [(1, 0), (1, 512), (2, 4), (2, 512)] {
                    let bytes = frame(kind, flags, revision, length);
                    let parsed = Frame::parse(&bytes, kind).unwrap();
                    assert_eq!(parsed.markers, flags & 0x80 != 0);
                    assert_eq!(parsed.crc, flags & 0x40 != 0);
                    assert_eq!(parsed.reject, flags & 0x20 != 0);
                    assert_eq!(parsed.enhanced, flags & 0x10 != 0 && revision == 2);
                    assert_eq!(parsed.private_data, length);
                    let mut again = [0xff; FRAME_HEADER];
                    parsed.emit(&mut again);
                    let meant = if revision == 1 { flags & 0xe0 } else { flags };
                    assert_eq!(again, frame(kind, meant, revision, length));
                }
            }
        }
    }

    /// [RFC 5044 7.1.1-1, 7.1.1-3]
    #[test]
    fn keys_are_as_published() {
        for (kind, key) in
            [(FrameKind::Request, b"MPA ID Req Frame"), (FrameKind::Reply, b"MPA ID Rep Frame")]
        {
            let mut bytes = frame(kind, 0, 1, 0);
            Frame::parse(&bytes, kind).unwrap().emit(&mut bytes);
            assert_eq!(bytes[..16], *key);
        }
    }

    /// [RFC 5044 7.1.1-10, 7.1.1-11] [RFC 6581 6-1]
    #[test]
    fn reserved_bits_are_zero_and_not_checked() {
        for (revision, reserved) in [(1, 0x1f), (2, 0x0f)] {
            let bytes = frame(FrameKind::Request, 0xc0 | reserved, revision, 4);
            let parsed = Frame::parse(&bytes, FrameKind::Request).unwrap();
            assert!(parsed.markers && parsed.crc && !parsed.enhanced);
            let mut again = [0xff; FRAME_HEADER];
            parsed.emit(&mut again);
            assert_eq!(again, frame(FrameKind::Request, 0xc0, revision, 4));
        }
    }

    /// [RFC 5044 3-7, 7.1.1-16, 7.1.2-15, 7.1.2-17, 7.1.2-20] [RFC 6581 6-4]
    #[test]
    fn impossible_frames_are_named() {
        let request = FrameKind::Request;
        let parse = |flags, revision, length| Frame::parse(&frame(request, flags, revision, length), request);
        assert_eq!(parse(0, 0, 0), Err(FrameError::Revision { found: 0 }));
        assert_eq!(parse(0, 3, 0), Err(FrameError::Revision { found: 3 }));
        assert_eq!(parse(0, 1, 513), Err(FrameError::PrivateData { length: 513 }));
        assert_eq!(parse(0x10, 2, 3), Err(FrameError::Enhanced { length: 3 }));
        let reply = frame(FrameKind::Reply, 0, 1, 0);
        assert_eq!(Frame::parse(&reply, request), Err(FrameError::Key { kind: request, at: 9, found: b'p' }));
    }

    #[test]
    fn garbage_shows_at_its_first_byte() {
        let good = frame(FrameKind::Request, 0, 1, 0);
        for length in 0..=FRAME_HEADER {
            Frame::check_key(&good[..length], FrameKind::Request).unwrap();
        }
        for at in 0..16 {
            let mut bad = good;
            bad[at] ^= 0x20;
            let error = FrameError::Key { kind: FrameKind::Request, at, found: bad[at] };
            assert_eq!(Frame::check_key(&bad[..=at], FrameKind::Request), Err(error));
            assert_eq!(Frame::check_key(&bad[..at], FrameKind::Request), Ok(()));
        }
    }

    /// [RFC 6581 9-1]
    #[test]
    fn enhanced_parameters_follow_the_layout() {
        let all = Enhanced {
            peer_to_peer: true,
            rtr_send: false,
            rtr_write: true,
            rtr_read: false,
            ird: 0x0102,
            ord: 0x3fff,
        };
        assert_eq!(all.emit(), [0x81, 0x02, 0xbf, 0xff]);
        for bytes in [[0, 0, 0, 0], [0x40, 1, 0x40, 2], [0xff; 4], [0x80, 5, 0x80, 6]] {
            assert_eq!(Enhanced::parse(bytes).emit(), bytes);
        }
    }

    /// [RFC 5044 4.1-1]
    #[test]
    fn padding_reaches_a_multiple_of_four() {
        for ulpdu in 0..=MAX_ULPDU {
            assert!(padding(ulpdu) < 4);
            assert_eq!(fpdu(ulpdu) % 4, 0);
        }
        assert_eq!((padding(0), padding(1), padding(2), padding(3), padding(14)), (2, 1, 0, 3, 0));
    }

    /// [RFC 5044 4.4-1, 4.4-9, 4.4-10]
    #[test]
    fn crc_matches_the_published_vectors() {
        // RFC 5044 figure 5: a marker, and a Send of 24 zeros.
        let mut sent = [0; 48];
        (sent[5], sent[6], sent[7], sent[19]) = (0x2a, 0x41, 0x43, 1);
        assert_eq!(crc_field(crc32c::crc32c(&sent)), [0x52, 0x23, 0x99, 0x83]);
        // RFC 3720 B.4: 32 bytes of zeros, of ones, ascending.
        assert_eq!(crc_field(crc32c::crc32c(&[0; 32])), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc_field(crc32c::crc32c(&[0xff; 32])), [0x43, 0xab, 0xa8, 0x62]);
        let ascending: [u8; 32] = core::array::from_fn(|index| index as u8);
        assert_eq!(crc_field(crc32c::crc32c(&ascending)), [0x4e, 0x79, 0xdd, 0x46]);
    }
}
