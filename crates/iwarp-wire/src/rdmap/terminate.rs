//! Terminate (RFC 5040 4.8): the error that ends a connection, and what it repeats of the segment in error.

use core::fmt;

use super::{READ_REQUEST, TERMINATE};
use crate::{ddp, mpa};

/// What a Terminate says (RFC 5040 4.8): the layer that found an error, its type and code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 MPA and below.
    pub layer: u8,
    /// Kind of error within the layer, 4 bits.
    pub kind: u8,
    /// Code within the kind.
    pub code: u8,
}

/// What a Terminate repeats of the segment that it is about (RFC 5040 4.8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct About<'b> {
    /// The FPDU's length field and the whole DDP header; empty: the Terminate is about no segment.
    pub head: &'b [u8],
    /// The [`ReadRequest`](super::ReadRequest) in it, if it is one; not without a head.
    pub request: Option<&'b [u8; READ_REQUEST]>,
}

impl<'b> About<'b> {
    /// Reads what a Terminate repeats, as far as it is there; its bits may be mirrored, see
    /// [`Terminate::parse`].
    #[must_use]
    pub fn parse(terminate: &'b [u8]) -> Self {
        let Some((fixed, rest)) = terminate.split_first_chunk::<TERMINATE>() else { return Self::default() };
        let announced = if is_mirrored(fixed) { fixed[2].reverse_bits() } else { fixed[2] };
        if announced & HEAD_REPEATED != HEAD_REPEATED {
            return Self::default();
        }
        let header = rest.get(mpa::FPDU_LENGTH_FIELD).copied().map_or(0, ddp::header_length);
        let Some((head, rest)) = rest.split_at_checked(mpa::FPDU_LENGTH_FIELD + header) else {
            return Self::default();
        };
        let request = if announced & REQUEST_REPEATED == 0 { None } else { rest.first_chunk() };
        Self { head, request }
    }
}

/// DDP segment length and DDP header are repeated: bits M and D of a Terminate's header control.
const HEAD_REPEATED: u8 = 0xc0;
/// The RDMAP header is repeated: bit R.
const REQUEST_REPEATED: u8 = 0x20;

impl Terminate {
    const fn new(layer: u8, kind: u8, code: u8) -> Self {
        Self { layer, kind, code }
    }

    /// This side gives up for a reason of its own.
    pub const LOCAL_CATASTROPHIC: Self = Self::new(0, 0, 0);
    /// Read: no such key.
    pub const READ_STAG: Self = Self::new(0, 1, 0);
    /// Read: outside the region.
    pub const READ_BOUNDS: Self = Self::new(0, 1, 1);
    /// The region does not grant the right.
    pub const ACCESS: Self = Self::new(0, 1, 2);
    /// Read: offset and length exceed 64 bits.
    pub const READ_WRAP: Self = Self::new(0, 1, 4);
    /// The key cannot be invalidated.
    pub const INVALIDATE: Self = Self::new(0, 1, 9);
    /// Another version of RDMAP.
    pub const RDMAP_VERSION: Self = Self::new(0, 2, 5);
    /// Unknown or unexpected opcode.
    pub const OPCODE: Self = Self::new(0, 2, 6);
    /// RDMAP message that makes no sense.
    pub const RDMAP_UNSPECIFIED: Self = Self::new(0, 2, 0xff);
    /// Tagged: no such key.
    pub const TAGGED_STAG: Self = Self::new(1, 1, 0);
    /// Tagged: outside the region.
    pub const TAGGED_BOUNDS: Self = Self::new(1, 1, 1);
    /// Tagged: offset and length exceed 64 bits.
    pub const TAGGED_WRAP: Self = Self::new(1, 1, 3);
    /// Tagged: another version of DDP.
    pub const TAGGED_VERSION: Self = Self::new(1, 1, 4);
    /// Untagged: no such queue.
    pub const QUEUE: Self = Self::new(1, 2, 1);
    /// Untagged: no buffer for the message.
    pub const NO_BUFFER: Self = Self::new(1, 2, 2);
    /// Untagged: sequence number out of order.
    pub const SEQUENCE: Self = Self::new(1, 2, 3);
    /// Untagged: offset in the message out of order.
    pub const MESSAGE_OFFSET: Self = Self::new(1, 2, 4);
    /// Untagged: message longer than its buffer.
    pub const TOO_LONG: Self = Self::new(1, 2, 5);
    /// Untagged: another version of DDP.
    pub const UNTAGGED_VERSION: Self = Self::new(1, 2, 6);
    /// MPA: CRC mismatch.
    pub const CRC: Self = Self::new(2, 0, 2);
    /// MPA: impossible length field.
    pub const FPDU_LENGTH: Self = Self::new(2, 0, 3);
    /// MPA: the other side wants more reads than this side serves (RFC 6581 8).
    pub const IRD: Self = Self::new(2, 0, 6);
    /// MPA: no ready-to-receive message that both know (RFC 6581 8).
    pub const RTR: Self = Self::new(2, 0, 7);

    /// Reads the fixed part; copies of headers that may follow are not looked at [RFC 5040 4.8-7].
    ///
    /// Linux's siw counts the bits of a byte from the wrong end on machines with little-endian bit fields:
    /// layer and type change places, and the bits that announce copies stand where the RFC has zeros, which
    /// shows it.
    #[must_use]
    pub fn parse(bytes: &[u8; TERMINATE]) -> Self {
        let (high, low) = (bytes[0] >> 4, bytes[0] & 0x0f);
        let (layer, kind) = if is_mirrored(bytes) { (low, high) } else { (high, low) };
        Self::new(layer, kind, bytes[1])
    }

    /// Writes the message. Answers the bytes written: [`TERMINATE`], and what is repeated
    /// [RFC 5040 4.8-1, 4.8-2, 4.8-6, 4.8-8, 4.8-9, 4.8-10].
    pub fn emit(&self, about: &About<'_>, bytes: &mut [u8]) -> usize {
        let head = if about.head.is_empty() { 0 } else { HEAD_REPEATED };
        let request = about.request.map_or(0, |_| REQUEST_REPEATED);
        let fixed = [self.layer << 4 | self.kind & 0x0f, self.code, head | request, 0];
        let copies = about.head.iter().chain(about.request.into_iter().flatten());
        let written = fixed.iter().chain(copies).zip(bytes).map(|(source, place)| *place = *source);
        written.count()
    }

    /// Whether it is about a segment of the peer's: neither a local catastrophic error is, nor one of MPA,
    /// which delivers no segment then [RFC 5040 7.1-2] [RFC 7306 8.1-1].
    #[must_use]
    pub const fn is_about_segment(&self) -> bool {
        !matches!((self.layer, self.kind), (0, 0) | (2.., _))
    }

    /// Whether RDMAP found the error. Only then is a Read Request repeated: DDP does not know what it
    /// carries.
    #[must_use]
    pub const fn is_of_rdmap(&self) -> bool {
        self.layer == 0
    }

    /// Whether the peer refused access to its memory.
    #[must_use]
    pub const fn is_protection(&self) -> bool {
        matches!((self.layer, self.kind), (0 | 1, 1))
    }

    /// Whether it can be about a Write, rather than a read.
    #[must_use]
    pub const fn may_be_of_write(&self) -> bool {
        self.layer == 1 || matches!(*self, Self::ACCESS)
    }

    /// What it means, in words.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        match *self {
            Self::LOCAL_CATASTROPHIC => "local catastrophic error",
            Self::READ_STAG | Self::TAGGED_STAG => "invalid STag",
            Self::READ_BOUNDS | Self::TAGGED_BOUNDS => "base or bounds violation",
            Self::ACCESS => "access rights violation",
            Self::READ_WRAP | Self::TAGGED_WRAP => "offset wraps",
            Self::INVALIDATE => "STag cannot be invalidated",
            Self::RDMAP_VERSION => "wrong RDMAP version",
            Self::OPCODE => "unexpected opcode",
            Self::TAGGED_VERSION | Self::UNTAGGED_VERSION => "wrong DDP version",
            Self::QUEUE => "invalid queue number",
            Self::NO_BUFFER => "no buffer available",
            Self::SEQUENCE => "sequence number out of range",
            Self::MESSAGE_OFFSET => "invalid message offset",
            Self::TOO_LONG => "message too long for its buffer",
            Self::CRC => "CRC mismatch",
            Self::FPDU_LENGTH => "invalid FPDU length",
            Self::IRD => "insufficient IRD",
            Self::RTR => "no matching RTR",
            _ => "other error",
        }
    }
}

/// Whether the bits of a Terminate's header control stand where the RFC has zeros.
fn is_mirrored(bytes: &[u8; TERMINATE]) -> bool {
    bytes[2] & 0xe0 == 0 && bytes[2] & 0x07 != 0
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, kind, code } = self;
        write!(f, "{} (layer {layer}, type {kind}, code {code})", self.meaning())
    }
}
