//! The same packets behind other links and in tunnels: frames of Ethernet with IPv4 are the source.

use super::{Frame, ipv4};

/// A way to carry an IP packet, or the frame with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carrier {
    Ethernet,
    Vlan,
    /// Two tags.
    Vlans,
    /// BSD's loopback device, with the family in the order of a machine or of the network.
    Null,
    Loop,
    Raw,
    RawIpv4,
    Sll,
    Sll2,
    Erf,
    ErfExtended,
    Vxlan,
    Geneve,
    GreIp,
    GreFrame,
    Erspan1,
    Erspan2,
    Erspan3,
    /// In a tag, in VXLAN, in GRE.
    Nested,
}

pub(crate) const ALL: [Carrier; 19] = [
    Carrier::Ethernet,
    Carrier::Vlan,
    Carrier::Vlans,
    Carrier::Null,
    Carrier::Loop,
    Carrier::Raw,
    Carrier::RawIpv4,
    Carrier::Sll,
    Carrier::Sll2,
    Carrier::Erf,
    Carrier::ErfExtended,
    Carrier::Vxlan,
    Carrier::Geneve,
    Carrier::GreIp,
    Carrier::GreFrame,
    Carrier::Erspan1,
    Carrier::Erspan2,
    Carrier::Erspan3,
    Carrier::Nested,
];

const UDP: u8 = 17;
const GRE: u8 = 47;

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let length = (8 + payload.len() as u16).to_be_bytes();
    [&[0xc0, 0], &port.to_be_bytes()[..], &length, &[0, 0], payload].concat()
}

/// The link type and the bytes of a frame that is carried so.
pub(crate) fn carry(how: Carrier, frame: &[u8]) -> (u32, Vec<u8>) {
    let (addresses, packet) = (&frame[..12], &frame[14..]);
    let outer = |protocol, payload: &[u8]| (1, ipv4(0, 8, 9, protocol, payload).bytes);
    let gre = |header: &[u8], payload: &[u8]| outer(GRE, &[header, payload].concat());
    match how {
        Carrier::Ethernet => (1, frame.to_vec()),
        Carrier::Vlan => (1, [addresses, &[0x81, 0, 0x20, 7], &frame[12..]].concat()),
        Carrier::Vlans => (1, [addresses, &[0x88, 0xa8, 0, 3, 0x81, 0, 0, 7], &frame[12..]].concat()),
        Carrier::Null => (0, [&[2, 0, 0, 0], packet].concat()),
        Carrier::Loop => (108, [&[0, 0, 0, 2], packet].concat()),
        Carrier::Raw => (101, packet.to_vec()),
        Carrier::RawIpv4 => (228, packet.to_vec()),
        Carrier::Sll => (113, [&[0, 4, 0, 1, 0, 6], &[7; 8][..], &[8, 0], packet].concat()),
        Carrier::Sll2 => (276, [&[8, 0][..], &[0; 18], packet].concat()),
        Carrier::Erf => (197, [&[0; 8][..], &[2, 4], &[0; 6], &[0, 0], frame].concat()),
        Carrier::ErfExtended => (
            197,
            [&[0; 8][..], &[0x82, 4], &[0; 6], &[0x83], &[1; 7], &[3], &[1; 7], &[0, 0], frame].concat(),
        ),
        Carrier::Vxlan => outer(UDP, &udp(4789, &[&[8, 0, 0, 0, 0, 0, 7, 0], frame].concat())),
        Carrier::Geneve => {
            let header = [1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 4];
            outer(UDP, &udp(6081, &[&header, frame].concat()))
        }
        Carrier::GreIp => gre(&[0, 0, 8, 0], packet),
        // With checksum and key.
        Carrier::GreFrame => gre(&[0xa0, 0, 0x65, 0x58, 1, 2, 0, 0, 9, 9, 9, 9], frame),
        Carrier::Erspan1 => gre(&[0, 0, 0x88, 0xbe], frame),
        // With a number.
        Carrier::Erspan2 => gre(&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 5, 0x10, 7, 0, 1, 0, 0, 0, 2], frame),
        // The last bit says that eight bytes more follow.
        Carrier::Erspan3 => {
            let header = [0x20, 7, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1];
            gre(&[&[0x10, 0, 0x22, 0xeb, 0, 0, 0, 5], &header[..], &[0; 8]].concat(), frame)
        }
        Carrier::Nested => {
            let (_, tagged) = carry(Carrier::Vlan, frame);
            let (_, tunnelled) = carry(Carrier::Vxlan, &tagged);
            carry(Carrier::GreFrame, &tunnelled)
        }
    }
}

/// What carries InfiniBand's transport, but for UDP over IPv4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fabric {
    RoceV2Ipv6,
    RoceV1,
    /// InfiniBand's link, without and with a global route header.
    Local,
    Global,
    /// The same in a record of ERF.
    Erf,
}

pub(crate) const FABRICS: [Fabric; 5] =
    [Fabric::RoceV2Ipv6, Fabric::RoceV1, Fabric::Local, Fabric::Global, Fabric::Erf];

/// An IPv6 header, or a global route header, which has the same form.
fn ipv6(from: u8, to: u8, next: u8, length: usize) -> Vec<u8> {
    let address = |host| [&[0xfd, 2][..], &[0; 13], &[host]].concat();
    let length = (length as u16).to_be_bytes();
    [&[0x60, 0x0a, 0xbc, 0xde][..], &length, &[next, 64], &address(from), &address(to)].concat()
}

/// The invariant CRC behind headers of which some fields count as ones.
fn icrc(cover: &[u8], masked: &[usize], transport: &[u8]) -> [u8; 4] {
    let mut bytes = [&[0xff; 8], cover, transport].concat();
    masked.iter().for_each(|at| bytes[8 + at] = 0xff);
    bytes[8 + cover.len() + 4] = 0xff;
    // The class of an IPv6 header is in two bytes, of which one has the version as well.
    bytes[8] |= 0x0f;
    crc32fast::hash(&bytes).to_le_bytes()
}

/// The link type and the bytes of a frame of RoCE v2 over IPv4 on another fabric.
pub(crate) fn on_fabric(fabric: Fabric, frame: &[u8]) -> (u32, Vec<u8>) {
    const HEADERS: usize = 14 + 20 + 8;
    let (from, to) = (frame[29], frame[33]);
    let transport = &frame[HEADERS..frame.len() - 4];
    let length = transport.len() + 4;
    let local = |kind: u8, length: usize| {
        let words = ((8 + length) / 4) as u16;
        let lids = |host| u16::from(host).to_be_bytes();
        [&[0x00, kind][..], &lids(to), &words.to_be_bytes(), &lids(from)].concat()
    };
    let route = ipv6(from, to, 0x1b, length);
    match fabric {
        Fabric::RoceV2Ipv6 => {
            let udp = [&frame[34..38], &((8 + length) as u16).to_be_bytes(), &[0x12, 0x34]].concat();
            let cover = [ipv6(from, to, UDP, 8 + length), udp].concat();
            let crc = icrc(&cover, &[1, 2, 3, 7, 46, 47], transport);
            (1, [&frame[..12], &[0x86, 0xdd], &cover, transport, &crc].concat())
        }
        Fabric::RoceV1 => {
            let crc = icrc(&route, &[1, 2, 3, 7], transport);
            (1, [&frame[..12], &[0x89, 0x15], &route, transport, &crc].concat())
        }
        // Behind it the variant CRC of the link.
        Fabric::Local => (247, [&*local(2, length), transport, &[0; 4], &[0; 2]].concat()),
        Fabric::Global => (247, [&*local(3, 40 + length), &*route, transport, &[0; 4], &[0; 2]].concat()),
        Fabric::Erf => {
            let (_, inner) = on_fabric(Fabric::Local, frame);
            (197, [&[0; 8][..], &[21, 4], &[0; 6], &*inner].concat())
        }
    }
}

/// A frame of iWARP over IPv6.
pub(crate) fn iwarp_ipv6(frame: &Frame) -> Vec<u8> {
    let (from, to, tcp) = (frame.bytes[29], frame.bytes[33], &frame.bytes[34..]);
    [&frame.bytes[..12], &[0x86, 0xdd], &ipv6(from, to, 6, tcp.len()), tcp].concat()
}
