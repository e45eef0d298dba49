//! Patterns of names and of addresses.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// A name in which `*` stands for any characters and `?` for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Glob(Vec<char>);

impl Glob {
    pub(super) fn new(text: &str) -> Self {
        Self(text.chars().collect())
    }

    /// Whether every name matches, also that of a program which has none.
    pub(super) fn is_all(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|&part| part == '*')
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut from) = (0, 0);
        // Where to go on if what follows the last star does not match.
        let mut again = None;
        loop {
            match (self.0.get(at), name.get(from)) {
                (Some('*'), _) => {
                    again = Some((at, from));
                    at += 1;
                }
                (Some(&part), Some(&found)) if part == '?' || part == found => {
                    (at, from) = (at + 1, from + 1)
                }
                (None, None) => return true,
                _ => match again {
                    Some((star, skipped)) if skipped < name.len() => {
                        again = Some((star, skipped + 1));
                        (at, from) = (star + 1, skipped + 1);
                    }
                    _ => return false,
                },
            }
        }
    }
}

/// Whether a pattern is this very name.
pub(super) fn is_named(pattern: &Glob, name: &str) -> bool {
    !pattern.0.iter().any(|part| matches!(part, '*' | '?')) && pattern.matches(name)
}

/// Addresses and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The first bits of an address, and how many count. `None`: any.
    network: Option<(IpAddr, u32)>,
    /// `None`: any.
    ports: Option<RangeInclusive<u16>>,
}

impl Place {
    pub(super) const ANY: Self = Self { network: None, ports: None };

    /// `*`, `*:80`, `10.1.0.0/16:*`, `127.0.0.1`, `[::1]:8000-8999`, `[fe80::]/10`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let fault = |what: &str| format!("'{text}': {what}");
        let (address, rest) = match text.strip_prefix('[') {
            Some(inner) => {
                let (address, rest) = inner.split_once(']').ok_or_else(|| fault("']' is missing"))?;
                let address: std::net::Ipv6Addr = address.parse().map_err(|_| fault("no IPv6 address"))?;
                (Some(IpAddr::V6(address)), rest)
            }
            None => {
                let (address, rest) = text.split_at(text.find(['/', ':']).unwrap_or(text.len()));
                match address {
                    "*" => (None, rest),
                    _ => {
                        let address: std::net::Ipv4Addr = address.parse().map_err(|_| {
                            fault("no address; IPv6 ones stand in brackets, names are not known")
                        })?;
                        (Some(IpAddr::V4(address)), rest)
                    }
                }
            }
        };
        let (prefix, port) = match rest.split_once(':') {
            Some((prefix, port)) => (prefix, Some(port)),
            None => (rest, None),
        };
        let network = match (address, prefix.strip_prefix('/')) {
            (None, None) if prefix.is_empty() => None,
            (Some(address), None) if prefix.is_empty() => Some((address, bits_of(address))),
            (Some(address), Some(bits)) => {
                let bits = number(bits).filter(|&bits| bits <= bits_of(address));
                Some((address, bits.ok_or_else(|| fault("no length of a prefix"))?))
            }
            _ => return Err(fault("no address")),
        };
        // Addresses are compared as those of IPv4 if they stand for such.
        let network = network.map(|(address, bits)| match (address, address.to_canonical()) {
            (IpAddr::V6(_), short @ IpAddr::V4(_)) if bits >= 96 => (short, bits - 96),
            _ => (address, bits),
        });
        let ports = match port {
            None | Some("*") => None,
            Some(port) => {
                let (first, last) = port.split_once('-').unwrap_or((port, port));
                match (number(first), number(last)) {
                    (Some(first), Some(last)) if first <= last => Some(first..=last),
                    _ => return Err(fault("no port")),
                }
            }
        };
        Ok(Self { network, ports })
    }

    pub(super) fn is_any(&self) -> bool {
        *self == Self::ANY
    }

    pub(super) fn matches(&self, end: SocketAddr) -> bool {
        let is_in = |&(network, bits): &(IpAddr, u32)| match (network, end.ip().to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                is_prefix(network.to_bits().into(), ip.to_bits().into(), 32 - bits.min(32))
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                is_prefix(network.to_bits(), ip.to_bits(), 128 - bits.min(128))
            }
            _ => false,
        };
        self.network.as_ref().is_none_or(is_in)
            && self.ports.as_ref().is_none_or(|ports| ports.contains(&end.port()))
    }
}

fn bits_of(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Whether two numbers are equal but for their last `rest` bits.
fn is_prefix(network: u128, ip: u128, rest: u32) -> bool {
    (network ^ ip).checked_shr(rest).unwrap_or(0) == 0
}

/// A number of digits only.
pub(super) fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}
