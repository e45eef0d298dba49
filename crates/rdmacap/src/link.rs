//! From a frame to what RDMA travels in: a TCP segment, or the packet of InfiniBand's transport in RoCE.

mod tunnel;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use self::tunnel::PROTOCOL_GRE;
use crate::bytes::{u8_at, u16_at, u32_at};

/// UDP port of RoCE v2.
pub const ROCE_PORT: u16 = 4791;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_ROCE: u16 = 0x8915;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// Next header of a global route header in front of InfiniBand's transport.
const PROTOCOL_IBA: u8 = 0x1b;
const GRH: usize = 40;
const LRH: usize = 8;

/// A packet of a protocol that carries RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packet<'a> {
    Tcp(Tcp<'a>),
    Transport(Transport<'a>),
    /// A fragment of an IP packet, which is not put together.
    Fragment,
}

/// A TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tcp<'a> {
    pub(crate) source: (IpAddr, u16),
    pub(crate) destination: (IpAddr, u16),
    pub(crate) sequence: u32,
    pub(crate) acknowledgement: Option<u32>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) reset: bool,
    /// What was captured of the payload.
    pub(crate) payload: &'a [u8],
    /// Length of the payload on the wire.
    pub(crate) length: usize,
}

/// Which encapsulation InfiniBand's transport has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encapsulation {
    /// InfiniBand's own link.
    InfiniBand,
    /// RoCE v1: a global route header in an Ethernet frame.
    RoceV1,
    /// RoCE v2: UDP port 4791.
    RoceV2,
}

/// A packet of InfiniBand's transport, from its base transport header on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Transport<'a> {
    pub(crate) encapsulation: Encapsulation,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// Congestion was experienced on the way.
    pub(crate) congested: bool,
    /// The headers in front that its invariant CRC covers.
    pub(crate) cover: &'a [u8],
    /// What was captured, from the base transport header on.
    pub(crate) bytes: &'a [u8],
    /// Length on the wire, invariant CRC included.
    pub(crate) length: usize,
}

/// How many tunnels may still be inside of each other.
#[derive(Debug, Clone, Copy)]
struct Depth(u8);

impl Depth {
    const MOST: Self = Self(4);

    /// One tunnel further.
    fn inner(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }
}

/// Reads a frame; `None`: nothing that carries RDMA, or cut too early to tell.
pub(crate) fn parse(link: u32, frame: &[u8]) -> Option<Packet<'_>> {
    let depth = Depth::MOST;
    match link {
        0 | 108 => {
            // The address family in the byte order of whoever captured, or in network order.
            let family = u32_at(frame, 0)?;
            match family.min(family.swap_bytes()) {
                2 => ipv4(frame.get(4..)?, depth),
                10 | 24 | 28 | 30 => ipv6(frame.get(4..)?, depth),
                _ => None,
            }
        }
        1 => ethernet(frame, depth),
        12 | 101 | 228 | 229 => match u8_at(frame, 0)? >> 4 {
            4 => ipv4(frame, depth),
            6 => ipv6(frame, depth),
            _ => None,
        },
        113 => network(u16_at(frame, 14)?, frame.get(16..)?, depth),
        197 => erf(frame),
        247 => infiniband(frame),
        276 => network(u16_at(frame, 0)?, frame.get(20..)?, depth),
        _ => None,
    }
}

fn ethernet(frame: &[u8], depth: Depth) -> Option<Packet<'_>> {
    network(u16_at(frame, 12)?, frame.get(14..)?, depth)
}

fn network(mut kind: u16, mut rest: &[u8], depth: Depth) -> Option<Packet<'_>> {
    while let 0x8100 | 0x88a8 | 0x9100 = kind {
        (kind, rest) = (u16_at(rest, 2)?, rest.get(4..)?);
    }
    match kind {
        ETHERTYPE_IPV4 => ipv4(rest, depth),
        ETHERTYPE_IPV6 => ipv6(rest, depth),
        ETHERTYPE_ROCE => grh(Encapsulation::RoceV1, rest),
        _ => None,
    }
}

/// Endace's record: a header of 16 bytes, extension headers, then what its type says.
fn erf(frame: &[u8]) -> Option<Packet<'_>> {
    let mut kind = u8_at(frame, 8)?;
    let mut at = 16;
    let record = kind & 0x7f;
    while kind & 0x80 != 0 {
        kind = u8_at(frame, at)?;
        at += 8;
    }
    match record {
        2 => ethernet(frame.get(at + 2..)?, Depth::MOST),
        21 => infiniband(frame.get(at..)?),
        _ => None,
    }
}

/// A local route header and what it says comes next.
fn infiniband(frame: &[u8]) -> Option<Packet<'_>> {
    let lid = |at| Some(IpAddr::V6(Ipv6Addr::from(u128::from(u16_at(frame, at)?))));
    let next = frame.get(LRH..)?;
    match u8_at(frame, 1)? & 3 {
        3 => grh(Encapsulation::InfiniBand, next),
        2 => {
            // In words, from this header to the invariant CRC.
            let length = usize::from(u16_at(frame, 4)? & 0x07ff) * 4;
            Some(Packet::Transport(Transport {
                encapsulation: Encapsulation::InfiniBand,
                source: lid(6)?,
                destination: lid(2)?,
                congested: false,
                cover: &frame[..LRH],
                bytes: &next[..next.len().min(length.checked_sub(LRH)?)],
                length: length - LRH,
            }))
        }
        _ => None,
    }
}

fn grh(encapsulation: Encapsulation, bytes: &[u8]) -> Option<Packet<'_>> {
    let length = usize::from(u16_at(bytes, 4)?);
    let next = bytes.get(GRH..)?;
    (u8_at(bytes, 6)? == PROTOCOL_IBA).then_some(Packet::Transport(Transport {
        encapsulation,
        source: address6(bytes, 8)?,
        destination: address6(bytes, 24)?,
        congested: false,
        cover: &bytes[..GRH],
        bytes: &next[..next.len().min(length)],
        length,
    }))
}

/// The address of 16 bytes at `at`; one that is made from an IPv4 address counts as that.
fn address6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let field: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
    let address = Ipv6Addr::from(field);
    Some(address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4))
}

fn address4(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let field: [u8; 4] = *bytes.get(at..)?.first_chunk()?;
    Some(IpAddr::V4(Ipv4Addr::from(field)))
}

fn ipv4(bytes: &[u8], depth: Depth) -> Option<Packet<'_>> {
    let fixed = bytes.first_chunk::<20>()?;
    let header = usize::from(fixed[0] & 0x0f) * 4;
    let total = usize::from(u16_at(fixed, 2)?);
    let protocol = fixed[9];
    let carries = matches!(protocol, PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_GRE);
    if fixed[0] >> 4 != 4 || header < 20 || !carries {
        return None;
    }
    if u16_at(fixed, 6)? & 0x3fff != 0 {
        return Some(Packet::Fragment);
    }
    // Capturing below a device that segments leaves 0 there.
    let total = if total == 0 { bytes.len() } else { total };
    let congested = fixed[1] & 3 == 3;
    let (source, destination) = (address4(fixed, 12)?, address4(fixed, 16)?);
    let packet = Ip { header, total, protocol, source, destination, congested, depth };
    upper(bytes, &packet)
}

fn ipv6(bytes: &[u8], depth: Depth) -> Option<Packet<'_>> {
    if u8_at(bytes, 0)? >> 4 != 6 {
        return None;
    }
    let length = usize::from(u16_at(bytes, 4)?);
    let total = if length == 0 { bytes.len() } else { length + 40 };
    let congested = u8_at(bytes, 1)? >> 4 & 3 == 3;
    let (source, destination) = (address6(bytes, 8)?, address6(bytes, 24)?);
    let (mut protocol, mut header) = (u8_at(bytes, 6)?, 40);
    // Hop-by-hop, routing and destination options, and the header of a fragment that is the whole (RFC 6946).
    while let 0 | 43 | 44 | 60 = protocol {
        let length = if protocol == 44 {
            if u16_at(bytes, header + 2)? & 0xfff9 != 0 {
                return Some(Packet::Fragment);
            }
            8
        } else {
            usize::from(u8_at(bytes, header + 1)?) * 8 + 8
        };
        (protocol, header) = (u8_at(bytes, header)?, header + length);
    }
    match protocol {
        PROTOCOL_TCP | PROTOCOL_UDP | PROTOCOL_GRE => {
            upper(bytes, &Ip { header, total, protocol, source, destination, congested, depth })
        }
        _ => None,
    }
}

/// What the headers of an IP packet say.
struct Ip {
    /// Bytes of the headers, and of the whole packet.
    header: usize,
    total: usize,
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    congested: bool,
    depth: Depth,
}

/// What an IP packet carries.
fn upper<'b>(bytes: &'b [u8], packet: &Ip) -> Option<Packet<'b>> {
    let &Ip { header, total, protocol, source, destination, congested, depth } = packet;
    // Bytes behind the packet pad a short frame.
    let bytes = &bytes[..bytes.len().min(total)];
    let payload = bytes.get(header..)?;
    let length = total.checked_sub(header)?;
    if protocol == PROTOCOL_GRE {
        return tunnel::gre(payload, depth);
    }
    let ports = (u16_at(payload, 0)?, u16_at(payload, 2)?);
    if protocol == PROTOCOL_TCP {
        return tcp(payload, length, (source, ports.0), (destination, ports.1));
    }
    let length = usize::from(u16_at(payload, 4)?).checked_sub(8)?.min(length.checked_sub(8)?);
    let payload = payload.get(8..)?;
    let payload = &payload[..payload.len().min(length)];
    if ports.1 != ROCE_PORT {
        return tunnel::udp(ports.1, payload, depth);
    }
    Some(Packet::Transport(Transport {
        encapsulation: Encapsulation::RoceV2,
        source,
        destination,
        congested,
        cover: bytes.get(..header + 8)?,
        bytes: payload,
        length,
    }))
}

fn tcp(bytes: &[u8], length: usize, source: (IpAddr, u16), destination: (IpAddr, u16)) -> Option<Packet<'_>> {
    let fixed = bytes.first_chunk::<14>()?;
    let header = usize::from(fixed[12] >> 4) * 4;
    let flags = fixed[13];
    let acknowledgement = u32_at(fixed, 8).filter(|_| flags & 0x10 != 0);
    Some(Packet::Tcp(Tcp {
        source,
        destination,
        sequence: u32_at(fixed, 4)?,
        acknowledgement,
        fin: flags & 0x01 != 0,
        syn: flags & 0x02 != 0,
        reset: flags & 0x04 != 0,
        payload: bytes.get(header..).unwrap_or(&[]),
        length: length.checked_sub(header.max(20))?,
    }))
}

/// A number that two captures of one packet have in common: its bytes without what routers change. `None`:
/// a frame that carries no RDMA.
#[must_use]
pub fn digest(record: &crate::file::Record<'_>) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    match parse(record.link, record.bytes)? {
        Packet::Tcp(tcp) => tcp.hash(&mut hasher),
        Packet::Transport(transport) => {
            (transport.source, transport.destination, transport.bytes).hash(&mut hasher);
        }
        Packet::Fragment => return None,
    }
    Some(hasher.finish())
}
