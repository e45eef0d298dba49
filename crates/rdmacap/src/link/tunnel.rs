//! Tunnels: frames and packets inside of packets, as mirror ports of switches and overlay networks have them.

use super::{Depth, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Packet, ethernet, network};
use crate::bytes::{u8_at, u16_at};

pub(super) const PROTOCOL_GRE: u8 = 47;
/// UDP ports of VXLAN (RFC 7348) and of Geneve (RFC 8926).
const VXLAN: u16 = 4789;
const GENEVE: u16 = 6081;
/// What GRE carries: a frame, or a frame of a mirror port behind ERSPAN's header of version II or III.
const FRAME: u16 = 0x6558;
const ERSPAN_2: u16 = 0x88be;
const ERSPAN_3: u16 = 0x22eb;

/// What GRE carries (RFC 2784, RFC 2890).
pub(super) fn gre(bytes: &[u8], depth: Depth) -> Option<Packet<'_>> {
    let (flags, kind) = (u16_at(bytes, 0)?, u16_at(bytes, 2)?);
    // Another version, or source routing.
    if flags & 0x4007 != 0 {
        return None;
    }
    // Checksum, key and sequence number.
    let fields = (flags & 0xb000).count_ones() as usize;
    let rest = bytes.get(4 + 4 * fields..)?;
    let is_numbered = flags & 0x1000 != 0;
    match kind {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => network(kind, rest, depth.inner()?),
        FRAME => ethernet(rest, depth.inner()?),
        // Version I has no header, and no number.
        ERSPAN_2 => ethernet(rest.get(if is_numbered { 8 } else { 0 }..)?, depth.inner()?),
        ERSPAN_3 => {
            let platform = if u8_at(rest, 11)? & 1 == 1 { 8 } else { 0 };
            ethernet(rest.get(12 + platform..)?, depth.inner()?)
        }
        _ => None,
    }
}

/// What a UDP datagram to this port carries, if it is a tunnel's.
pub(super) fn udp(port: u16, payload: &[u8], depth: Depth) -> Option<Packet<'_>> {
    match port {
        // A network identifier has to be there.
        VXLAN if u8_at(payload, 0)? == 0x08 => ethernet(payload.get(8..)?, depth.inner()?),
        GENEVE if u16_at(payload, 2)? == FRAME => {
            let options = usize::from(u8_at(payload, 0)? & 0x3f) * 4;
            ethernet(payload.get(8 + options..)?, depth.inner()?)
        }
        _ => None,
    }
}
