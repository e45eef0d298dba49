//! RDMAP (RFC 5040) with the immediate data and atomics of RFC 7306: what the segments of DDP carry.

pub mod marks;
mod terminate;

use core::fmt;

use crate::ddp::{long, word};

pub use terminate::{About, Terminate};

/// Queue of sends and immediate data (RFC 5040 4.1, RFC 7306 6).
pub const SEND_QUEUE: u32 = 0;
/// Queue of Read Requests.
pub const READ_QUEUE: u32 = 1;
/// Queue of Terminate.
pub const TERMINATE_QUEUE: u32 = 2;
/// Queue of Atomic Responses (RFC 7306 5.2).
pub const ATOMIC_RESPONSE_QUEUE: u32 = 3;
/// Bytes of an Immediate Data message.
pub const IMMEDIATE: usize = 8;
/// Bytes of a [`ReadRequest`].
pub const READ_REQUEST: usize = 28;
/// Bytes of an [`AtomicRequest`].
pub const ATOMIC_REQUEST: usize = 52;
/// Bytes of an [`AtomicResponse`].
pub const ATOMIC_RESPONSE: usize = 12;
/// Bytes of a Terminate's fixed part.
pub const TERMINATE: usize = 4;

const VERSION: u8 = 1;

/// What a message is [RFC 5040 4.1-4] [RFC 7306 4.1-2].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
    /// Immediate Data.
    Immediate = 8,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited = 9,
    /// Atomic Request.
    AtomicRequest = 10,
    /// Atomic Response.
    AtomicResponse = 11,
}

/// Why a control byte is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlError {
    /// Another version of RDMAP.
    Version(u8),
    /// An opcode that is not known here.
    Opcode(u8),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(found) => write!(f, "RDMAP version {found} instead of {VERSION}"),
            Self::Opcode(found) => write!(f, "RDMAP opcode {found:#x}, where 0x0 to 0xb are known"),
        }
    }
}

impl core::error::Error for ControlError {}

impl Opcode {
    /// The opcode in the control byte of a segment [RFC 5040 4.1-1, 4.1-6, 4.1-8, 7.2-2, 7.2-3]
    /// [RFC 7306 8.2-2, 8.2-3].
    ///
    /// # Errors
    /// [`ControlError`], with what was found.
    #[inline]
    pub fn parse(control: u8) -> Result<Self, ControlError> {
        if control >> 6 != VERSION {
            return Err(ControlError::Version(control >> 6));
        }
        Ok(match control & 0x0f {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            8 => Self::Immediate,
            9 => Self::ImmediateSolicited,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            other => return Err(ControlError::Opcode(other)),
        })
    }

    /// The control byte of a segment with this opcode [RFC 5040 4.1-1, 4.1-6, 4.1-7] [RFC 7306 4.1-1].
    #[must_use]
    #[inline]
    pub const fn control(self) -> u8 {
        VERSION << 6 | self as u8
    }

    /// The form of Send with these properties.
    #[must_use]
    #[inline]
    pub const fn send(invalidate: bool, solicited: bool) -> Self {
        match (invalidate, solicited) {
            (false, false) => Self::Send,
            (true, false) => Self::SendInvalidate,
            (false, true) => Self::SendSolicited,
            (true, true) => Self::SendSolicitedInvalidate,
        }
    }

    /// Whether it carries a key to invalidate.
    #[must_use]
    pub const fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }
}

/// An RDMA Read Request [RFC 5040 4.4-1, 5.2.1-8].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// The requester's region.
    pub sink_stag: u32,
    /// Where in it the response goes.
    pub sink_offset: u64,
    /// Bytes wanted.
    pub length: u32,
    /// The responder's region.
    pub source_stag: u32,
    /// Where in it the bytes are.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Reads a request.
    #[must_use]
    pub fn parse(bytes: &[u8; READ_REQUEST]) -> Self {
        Self {
            sink_stag: word::<0, READ_REQUEST>(bytes),
            sink_offset: long::<4, READ_REQUEST>(bytes),
            length: word::<12, READ_REQUEST>(bytes),
            source_stag: word::<16, READ_REQUEST>(bytes),
            source_offset: long::<20, READ_REQUEST>(bytes),
        }
    }

    /// Writes a request.
    pub fn emit(&self, bytes: &mut [u8; READ_REQUEST]) {
        bytes[..4].copy_from_slice(&self.sink_stag.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.length.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.source_stag.to_be_bytes());
        bytes[20..].copy_from_slice(&self.source_offset.to_be_bytes());
    }
}

/// What an [`AtomicRequest`] does (RFC 7306 5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtomicKind {
    /// Adds to what is there.
    FetchAdd,
    /// Replaces what is there if it equals a value.
    CompareSwap,
}

/// An Atomic Request (RFC 7306 5.2.1). The masks, which choose the bits that take part, are all ones where
/// the whole double word does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicRequest {
    /// What to do.
    pub kind: AtomicKind,
    /// Repeated in the response.
    pub id: u32,
    /// The responder's region.
    pub stag: u32,
    /// Where in it.
    pub offset: u64,
    /// Value to add or to swap in.
    pub operand: u64,
    /// Bits of it that count; for [`AtomicKind::FetchAdd`] the bits that pass on no carry.
    pub operand_mask: u64,
    /// Value to compare with.
    pub compare: u64,
    /// Bits that are compared.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Reads a request; `None`: another kind of operation.
    #[must_use]
    pub fn parse(bytes: &[u8; ATOMIC_REQUEST]) -> Option<Self> {
        let kind = match word::<0, ATOMIC_REQUEST>(bytes) & 0xf {
            0 => AtomicKind::FetchAdd,
            2 => AtomicKind::CompareSwap,
            _ => return None,
        };
        Some(Self {
            kind,
            id: word::<4, ATOMIC_REQUEST>(bytes),
            stag: word::<8, ATOMIC_REQUEST>(bytes),
            offset: long::<12, ATOMIC_REQUEST>(bytes),
            operand: long::<20, ATOMIC_REQUEST>(bytes),
            operand_mask: long::<28, ATOMIC_REQUEST>(bytes),
            compare: long::<36, ATOMIC_REQUEST>(bytes),
            compare_mask: long::<44, ATOMIC_REQUEST>(bytes),
        })
    }

    /// Writes a request.
    pub fn emit(&self, bytes: &mut [u8; ATOMIC_REQUEST]) {
        let kind: u32 = match self.kind {
            AtomicKind::FetchAdd => 0,
            AtomicKind::CompareSwap => 2,
        };
        let (words, longs) = bytes.split_at_mut(12);
        for (place, value) in words.chunks_exact_mut(4).zip([kind, self.id, self.stag]) {
            place.copy_from_slice(&value.to_be_bytes());
        }
        let values = [self.offset, self.operand, self.operand_mask, self.compare, self.compare_mask];
        for (place, value) in longs.chunks_exact_mut(8).zip(values) {
            place.copy_from_slice(&value.to_be_bytes());
        }
    }
}

/// An Atomic Response (RFC 7306 5.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The request's.
    pub id: u32,
    /// What was there before.
    pub original: u64,
}

impl AtomicResponse {
    /// Reads a response.
    #[must_use]
    pub fn parse(bytes: &[u8; ATOMIC_RESPONSE]) -> Self {
        Self { id: word::<0, ATOMIC_RESPONSE>(bytes), original: long::<4, ATOMIC_RESPONSE>(bytes) }
    }

    /// Writes a response.
    pub fn emit(&self, bytes: &mut [u8; ATOMIC_RESPONSE]) {
        bytes[..4].copy_from_slice(&self.id.to_be_bytes());
        bytes[4..].copy_from_slice(&self.original.to_be_bytes());
    }
}

/// The bytes of an Immediate Data message: the lower word, then the upper one, each in network order, so
/// that data of 32 bits comes first [RFC 7306 6.3-5].
#[must_use]
#[inline]
pub fn emit_immediate(immediate: u64) -> [u8; IMMEDIATE] {
    immediate.rotate_left(32).to_be_bytes()
}

/// The data in an Immediate Data message.
#[must_use]
#[inline]
pub fn parse_immediate(bytes: &[u8; IMMEDIATE]) -> u64 {
    u64::from_be_bytes(*bytes).rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [RFC 5040 4.1-7, 4.1-8]
    #[test]
    fn control_bytes_read_and_write_alike() {
        for control in 0..=u8::MAX {
            match Opcode::parse(control) {
                Ok(opcode) => assert_eq!(opcode.control(), control & 0xcf),
                Err(ControlError::Version(version)) => {
                    assert_eq!(version, control >> 6);
                    assert_ne!(version, 1);
                }
                Err(ControlError::Opcode(opcode)) => {
                    assert_eq!(control >> 6, 1);
                    assert!(opcode > 11 && opcode == control & 0xf);
                }
            }
        }
    }

    /// [RFC 5040 4.1-1]
    #[test]
    fn the_forms_of_send_are_told_apart() {
        for (invalidate, solicited, opcode) in
            [(false, false, 3), (true, false, 4), (false, true, 5), (true, true, 6)]
        {
            let form = Opcode::send(invalidate, solicited);
            assert_eq!(form.control(), 0x40 | opcode);
            assert_eq!(form.invalidates(), invalidate);
        }
    }

    /// [RFC 5040 4.4-1, 5.2.1-8]
    #[test]
    fn read_request_follows_the_layout() {
        let bytes: [u8; READ_REQUEST] = core::array::from_fn(|index| index as u8);
        let request = ReadRequest::parse(&bytes);
        assert_eq!(request.sink_stag, 0x0001_0203);
        assert_eq!(request.sink_offset, 0x0405_0607_0809_0a0b);
        assert_eq!(request.length, 0x0c0d_0e0f);
        assert_eq!(request.source_stag, 0x1011_1213);
        assert_eq!(request.source_offset, 0x1415_1617_1819_1a1b);
        let mut again = [0; READ_REQUEST];
        request.emit(&mut again);
        assert_eq!(again, bytes);
    }

    #[test]
    fn atomics_follow_the_layout() {
        let mut bytes: [u8; ATOMIC_REQUEST] = core::array::from_fn(|index| index as u8);
        bytes[3] = 2;
        let request = AtomicRequest::parse(&bytes).unwrap();
        assert_eq!(
            (request.kind, request.id, request.stag),
            (AtomicKind::CompareSwap, 0x0405_0607, 0x0809_0a0b)
        );
        assert_eq!((request.offset, request.operand), (0x0c0d_0e0f_1011_1213, 0x1415_1617_1819_1a1b));
        assert_eq!((request.operand_mask, request.compare), (0x1c1d_1e1f_2021_2223, 0x2425_2627_2829_2a2b));
        assert_eq!(request.compare_mask, 0x2c2d_2e2f_3031_3233);
        let mut again = [0; ATOMIC_REQUEST];
        request.emit(&mut again);
        assert_eq!((again[..4].to_vec(), &again[4..]), (vec![0, 0, 0, 2], &bytes[4..]));
        bytes[3] = 0;
        assert_eq!(AtomicRequest::parse(&bytes).unwrap().kind, AtomicKind::FetchAdd);
        bytes[3] = 1;
        assert_eq!(AtomicRequest::parse(&bytes), None);
        let bytes: [u8; ATOMIC_RESPONSE] = core::array::from_fn(|index| index as u8);
        let response = AtomicResponse::parse(&bytes);
        assert_eq!(response, AtomicResponse { id: 0x0001_0203, original: 0x0405_0607_0809_0a0b });
        let mut again = [0; ATOMIC_RESPONSE];
        response.emit(&mut again);
        assert_eq!(again, bytes);
    }

    #[test]
    fn what_a_terminate_repeats_is_read_back() {
        let head = [0, 30, 0xc1, 0x40, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let request = [6; READ_REQUEST];
        for about in [
            About::default(),
            About { head: &head, request: None },
            About { head: &head, request: Some(&request) },
        ] {
            let mut bytes = [0; 64];
            let length = Terminate::ACCESS.emit(&about, &mut bytes);
            assert_eq!(About::parse(&bytes[..length]), about);
            for cut in 0..length {
                assert!(about.head.starts_with(About::parse(&bytes[..cut]).head));
            }
            // As siw sends it.
            bytes[2] = bytes[2].reverse_bits();
            assert_eq!(About::parse(&bytes[..length]), about);
        }
    }

    #[test]
    fn immediate_is_in_network_order() {
        assert_eq!(emit_immediate(0x0102_0304), [1, 2, 3, 4, 0, 0, 0, 0]);
        assert_eq!(emit_immediate(0x0506_0708_0102_0304), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(parse_immediate(&[1, 2, 3, 4, 5, 6, 7, 8]), 0x0506_0708_0102_0304);
    }

    /// [RFC 5040 4.8-1, 4.8-2, 4.8-6, 4.8-7]
    #[test]
    fn terminate_reads_and_writes_alike() {
        let terminate = Terminate::TOO_LONG;
        let mut bytes = [0xff; 8];
        assert_eq!(terminate.emit(&About::default(), &mut bytes), 4);
        assert_eq!(bytes[..4], [0x12, 5, 0, 0]);
        assert_eq!(terminate.emit(&About { head: &[7, 8, 9], request: None }, &mut bytes), 7);
        assert_eq!(bytes, [0x12, 5, 0xc0, 0, 7, 8, 9, 0xff]);
        let (request, mut long) = ([6; READ_REQUEST], [0xff; 36]);
        assert_eq!(
            Terminate::ACCESS.emit(&About { head: &[7, 8, 9], request: Some(&request) }, &mut long),
            35
        );
        assert_eq!(long[..7], [0x01, 2, 0xe0, 0, 7, 8, 9]);
        assert_eq!(long[7..], [[6; READ_REQUEST].as_slice(), &[0xff]].concat());
        assert_eq!(long.first_chunk().map(Terminate::parse), Some(Terminate::ACCESS));
        assert_eq!(Terminate::parse(&[0x12, 5, 0xe0, 0]), terminate);
        assert_eq!(Terminate::parse(&[0x12, 5, 0xff, 0xff]), terminate);
        assert_eq!(terminate.to_string(), "message too long for its buffer (layer 1, type 2, code 5)");
        // As siw sends it: layer 0, type 1, all copies.
        assert_eq!(Terminate::parse(&[0x10, 0, 0x07, 0]), Terminate::READ_STAG);
        assert_eq!(Terminate::parse(&[0x01, 0, 0xe0, 0]), Terminate::READ_STAG);
        assert!(Terminate::ACCESS.is_protection() && Terminate::TAGGED_STAG.is_protection());
        assert!(!Terminate::NO_BUFFER.is_protection() && !Terminate::CRC.is_protection());
    }
}
