//! Packets of InfiniBand's transport: base and extended headers (InfiniBand Architecture, volume 1, chapter
//! 9), and the invariant CRC (7.8.1, and RoCE's annexes for what it covers).

use crate::bytes::{u8_at, u16_at, u24_at, u32_at, u64_at};
use crate::link::{Encapsulation, Transport};

/// Bytes of the base header.
pub(crate) const BTH: usize = 12;
const ICRC: usize = 4;

/// The transport that an opcode belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// Reliable connection; extended reliable connection as well.
    Reliable,
    /// Unreliable connection.
    Unreliable,
    /// Unreliable datagram.
    Datagram,
    /// A congestion notification of RoCE v2.
    Congestion,
}

/// Which packet of its message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    First,
    Middle,
    Last,
    Only,
}

impl Part {
    pub(crate) fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    pub(crate) fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What a packet does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    Send(Part),
    Write(Part),
    ReadRequest,
    ReadResponse(Part),
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    /// Not known here.
    Other(u8),
}

/// What an acknowledgement says (9.7.5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Syndrome {
    Ack,
    /// Receiver not ready, and after how many microseconds it may be.
    NotReady(u32),
    /// Packets are missing before this one.
    Sequence,
    /// The request is refused.
    Refused(&'static str),
    Reserved,
}

/// Microseconds that the codes of a receiver that is not ready stand for (9.7.5.2.8).
const NOT_READY: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680,
    10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680, 491_520,
];

impl Syndrome {
    fn parse(byte: u8) -> Self {
        match (byte >> 5 & 3, byte & 0x1f) {
            (0, _) => Self::Ack,
            (1, code) => Self::NotReady(NOT_READY[usize::from(code)]),
            (3, 0) => Self::Sequence,
            (3, 1) => Self::Refused("invalid-request"),
            (3, 2) => Self::Refused("remote-access"),
            (3, 3) => Self::Refused("remote-operational"),
            (3, 4) => Self::Refused("invalid-rd-request"),
            _ => Self::Reserved,
        }
    }
}

/// What a write or read is about: RETH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) length: u32,
}

/// What an atomic is about: AtomicETH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AtomicHeader {
    pub(crate) address: u64,
    pub(crate) key: u32,
    /// Value to swap in or to add.
    pub(crate) operand: u64,
    pub(crate) compare: u64,
}

/// A packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    pub(crate) service: Service,
    pub(crate) opcode: Opcode,
    pub(crate) solicited: bool,
    pub(crate) backward_congestion: bool,
    pub(crate) destination: u32,
    /// The queue pair that sends, which only datagrams name.
    pub(crate) source: Option<u32>,
    pub(crate) psn: u32,
    pub(crate) remote: Option<Remote>,
    pub(crate) atomic: Option<AtomicHeader>,
    pub(crate) syndrome: Option<Syndrome>,
    /// Value that an atomic operation found.
    pub(crate) original: Option<u64>,
    pub(crate) immediate: Option<u64>,
    pub(crate) invalidate: Option<u32>,
    /// Whether not all of its headers were captured.
    pub(crate) is_cut: bool,
    /// What was captured of the payload.
    pub(crate) payload: &'a [u8],
    /// Its length on the wire.
    pub(crate) length: usize,
}

impl Remote {
    fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        let (address, key) = (u64_at(bytes, at)?, u32_at(bytes, at + 8)?);
        Some(Self { address, key, length: u32_at(bytes, at + 12)? })
    }
}

impl AtomicHeader {
    fn parse(bytes: &[u8], at: usize) -> Option<Self> {
        Some(Self {
            address: u64_at(bytes, at)?,
            key: u32_at(bytes, at + 8)?,
            operand: u64_at(bytes, at + 12)?,
            compare: u64_at(bytes, at + 20)?,
        })
    }
}

impl<'a> Packet<'a> {
    /// Reads a packet; `None`: cut before the end of its base header, or another version.
    pub(crate) fn parse(transport: &Transport<'a>) -> Option<Self> {
        let bytes = transport.bytes;
        let (code, flags) = (u8_at(bytes, 0)?, u8_at(bytes, 1)?);
        if flags & 0x0f != 0 {
            return None;
        }
        let (service, operation) = match code >> 5 {
            _ if code == 0x81 => (Service::Congestion, 0x1f),
            0 | 5 => (Service::Reliable, code & 0x1f),
            1 => (Service::Unreliable, code & 0x1f),
            3 => (Service::Datagram, code & 0x1f),
            _ => return None,
        };
        let mut at = BTH;
        // Extended reliable connections name the shared receive queue, datagrams their queue pair.
        at += match code >> 5 {
            5 => 4,
            3 => 8,
            _ => 0,
        };
        let mut packet = Self {
            service,
            opcode: opcode(operation),
            solicited: flags & 0x80 != 0,
            backward_congestion: u8_at(bytes, 4)? & 0x40 != 0,
            destination: u24_at(bytes, 5)?,
            source: if service == Service::Datagram { u24_at(bytes, BTH + 5) } else { None },
            psn: u24_at(bytes, 9)?,
            remote: None,
            atomic: None,
            syndrome: None,
            original: None,
            immediate: None,
            invalidate: None,
            is_cut: false,
            payload: &[],
            length: 0,
        };
        if matches!(operation, 6 | 10 | 11 | 12) {
            packet.remote = Remote::parse(bytes, at);
            at += 16;
        }
        if matches!(operation, 19 | 20) {
            packet.atomic = AtomicHeader::parse(bytes, at);
            at += 28;
        }
        if matches!(operation, 13 | 15..=18) {
            packet.syndrome = u8_at(bytes, at).map(Syndrome::parse);
            at += 4;
        }
        if operation == 18 {
            packet.original = u64_at(bytes, at);
            at += 8;
        }
        if matches!(operation, 3 | 5 | 9 | 11) {
            packet.immediate = u32_at(bytes, at).map(u64::from);
            at += 4;
        }
        if matches!(operation, 22 | 23) {
            packet.invalidate = u32_at(bytes, at);
            at += 4;
        }
        packet.is_cut = bytes.len() < at;
        if service == Service::Congestion {
            return Some(packet);
        }
        let padding = usize::from(flags >> 4 & 3);
        packet.length = transport.length.checked_sub(at + padding + ICRC)?;
        packet.payload = bytes.get(at..).map_or(&[], |rest| &rest[..rest.len().min(packet.length)]);
        Some(packet)
    }

    /// Whether a requester sends it.
    pub(crate) fn is_request(&self) -> bool {
        !matches!(
            self.opcode,
            Opcode::ReadResponse(_) | Opcode::Acknowledge | Opcode::AtomicAcknowledge | Opcode::Other(_)
        )
    }
}

fn opcode(operation: u8) -> Opcode {
    match operation {
        0 => Opcode::Send(Part::First),
        1 => Opcode::Send(Part::Middle),
        2 | 3 | 22 => Opcode::Send(Part::Last),
        4 | 5 | 23 => Opcode::Send(Part::Only),
        6 => Opcode::Write(Part::First),
        7 => Opcode::Write(Part::Middle),
        8 | 9 => Opcode::Write(Part::Last),
        10 | 11 => Opcode::Write(Part::Only),
        12 => Opcode::ReadRequest,
        13 => Opcode::ReadResponse(Part::First),
        14 => Opcode::ReadResponse(Part::Middle),
        15 => Opcode::ReadResponse(Part::Last),
        16 => Opcode::ReadResponse(Part::Only),
        17 => Opcode::Acknowledge,
        18 => Opcode::AtomicAcknowledge,
        19 => Opcode::CompareSwap,
        20 => Opcode::FetchAdd,
        other => Opcode::Other(other),
    }
}

/// The invariant CRC of a whole packet: the one it has and the one it should have. `None`: it is not whole,
/// or its link has other rules.
pub(crate) fn checksums(transport: &Transport<'_>) -> Option<(u32, u32)> {
    if transport.bytes.len() != transport.length || transport.length < BTH + ICRC {
        return None;
    }
    let mut header = [0xff; 8 + 60 + 8 + 40 + BTH];
    let cover = transport.cover;
    let (covered, field) = transport.bytes.split_at(transport.length - ICRC);
    let (base, rest) = covered.split_at(BTH);
    let end = 8 + cover.len() + BTH;
    let (place, base_place) = header.get_mut(8..end)?.split_at_mut(cover.len());
    place.copy_from_slice(cover);
    base_place.copy_from_slice(base);
    base_place[4] = 0xff;
    // Fields that routers may change count as ones. So does the local route header in front, which RoCE does
    // not have.
    match (transport.encapsulation, cover.first()? >> 4) {
        (Encapsulation::InfiniBand, _) => return None,
        (Encapsulation::RoceV2, 4) => {
            let udp = cover.len().checked_sub(8)?;
            place[1] = 0xff;
            place[8] = 0xff;
            place[10..12].fill(0xff);
            place[udp + 6..udp + 8].fill(0xff);
        }
        (Encapsulation::RoceV2, _) => {
            let udp = cover.len().checked_sub(8)?;
            place[0] |= 0x0f;
            place[1..4].fill(0xff);
            place[7] = 0xff;
            place[udp + 6..udp + 8].fill(0xff);
        }
        (Encapsulation::RoceV1, _) => {
            place[0] |= 0x0f;
            place[1..4].fill(0xff);
            place[7] = 0xff;
        }
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..end]);
    crc.update(rest);
    Some((u32::from_le_bytes(*field.first_chunk()?), crc.finalize()))
}

/// Port of a service identifier that librdmacm made, with its port space.
fn service_port(service: u64) -> Option<u16> {
    (service >> 24 == 1).then_some(service as u16)
}

/// A message of the connection manager (chapter 12.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Management<'a> {
    Request {
        local: u32,
        number: u32,
        /// Reads and atomics that the sender serves at a time.
        serves: u8,
        /// Unknown where the capture cut it off, as the private data may be.
        psn: Option<u32>,
        pmtu: u32,
        port: Option<u16>,
        private_data: Option<&'a [u8]>,
    },
    Reply {
        local: u32,
        remote: u32,
        number: u32,
        serves: Option<u8>,
        psn: u32,
        private_data: Option<&'a [u8]>,
    },
    Reject {
        remote: u32,
        reason: u16,
        private_data: Option<&'a [u8]>,
    },
    Disconnect {
        local: u32,
        remote: u32,
    },
}

/// Bytes that librdmacm puts before the private data of a request.
const RDMACM_HEADER: usize = 36;

impl<'a> Management<'a> {
    /// Reads a datagram for queue pair 1; `None`: something else.
    pub(crate) fn parse(packet: &Packet<'a>) -> Option<Self> {
        const HEADER: usize = 24;
        if packet.service != Service::Datagram || packet.destination != 1 {
            return None;
        }
        let mad = packet.payload;
        let class = u8_at(mad, 1)?;
        let (attribute, body) = (u16_at(mad, 16)?, mad.get(HEADER..)?);
        let (local, remote) = (u32_at(body, 0)?, u32_at(body, 4)?);
        let data = |from: usize, length: usize| body.get(from..from + length);
        match (class, attribute) {
            (7, 0x10) => {
                let port = u64_at(body, 8).and_then(service_port);
                let skip = if port.is_some() { RDMACM_HEADER } else { 0 };
                Some(Self::Request {
                    local,
                    number: u24_at(body, 32)?,
                    serves: u8_at(body, 35)?,
                    psn: u24_at(body, 44),
                    pmtu: match u8_at(body, 50).map(|byte| byte >> 4) {
                        Some(code @ 1..=5) => 128 << code,
                        _ => 0,
                    },
                    port,
                    private_data: data(140 + skip, 92 - skip),
                })
            }
            (7, 0x13) => Some(Self::Reply {
                local,
                remote,
                number: u24_at(body, 12)?,
                serves: u8_at(body, 24),
                psn: u24_at(body, 20)?,
                private_data: data(36, 196),
            }),
            (7, 0x12) => {
                Some(Self::Reject { remote, reason: u16_at(body, 10)?, private_data: data(84, 148) })
            }
            (7, 0x15) => Some(Self::Disconnect { local, remote }),
            _ => None,
        }
    }
}
