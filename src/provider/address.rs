//! The addresses that an `fi_getinfo` call names: resolves names and services, lists interfaces.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use dns_lookup::{AddrInfoHints, SockType, getaddrinfo};
use if_addrs::IfAddr;

use crate::abi::{Errno, Result};

/// An address of this host, and the name of the interface that has it.
#[derive(Debug, Clone)]
pub(super) struct Interface {
    pub(super) name: String,
    /// Port 0.
    pub(super) address: SocketAddr,
    /// The network of the address, as in `192.0.2.0/24`.
    pub(super) network: String,
    /// Whether the address is returned to a caller that names none.
    pub(super) is_listed: bool,
}

/// The addresses of all interfaces that are up. Those of the loopback interface come last. Those of the interface
/// `listed`, or all, are listed.
pub(super) fn interfaces(listed: Option<&str>) -> Result<Vec<Interface>> {
    let mut found: Vec<Interface> = if_addrs::get_if_addrs()?
        .into_iter()
        .filter(if_addrs::Interface::is_oper_up)
        .map(|interface| {
            let address = match interface.ip() {
                IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                    SocketAddrV6::new(ip, 0, 0, interface.index.unwrap_or(0)).into()
                }
                ip => SocketAddr::new(ip, 0),
            };
            Interface {
                address,
                network: network_of(&interface.addr),
                is_listed: listed.is_none_or(|name| name == interface.name),
                name: interface.name,
            }
        })
        .collect();
    found.sort_by_key(|interface| interface.address.ip().is_loopback());
    if let Some(listed) = listed
        && !found.iter().any(|interface| interface.is_listed)
    {
        log::warn!(target: "core", "FI_RSTREAM_IFACE={listed} is no interface that is up");
    }
    Ok(found)
}

fn network_of(address: &IfAddr) -> String {
    match address {
        IfAddr::V4(one) => format!("{}/{}", one.ip & one.netmask, one.prefixlen),
        IfAddr::V6(one) => format!("{}/{}", one.ip & one.netmask, one.prefixlen),
    }
}

/// The addresses for `node` and `service`. Without a node these are the wildcard addresses if the caller
/// wants to listen (`passive`), and otherwise the loopback addresses. With `numeric`, host names are not
/// looked up.
///
/// # Errors
/// `FI_ENODATA` for a name that cannot be resolved.
pub(super) fn resolve(
    node: Option<&str>,
    service: Option<&str>,
    numeric: bool,
    passive: bool,
) -> Result<Vec<SocketAddr>> {
    let port = service.map_or(Ok(0), port_of)?;
    let Some(node) = node else {
        let (v4, v6) = if passive {
            (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED)
        } else {
            (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST)
        };
        return Ok(vec![SocketAddr::new(v4.into(), port), SocketAddr::new(v6.into(), port)]);
    };
    if let Ok(ip) = node.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    if numeric {
        return Err(Errno::ENODATA);
    }
    let mut found: Vec<SocketAddr> = look_up(Some(node), None)?;
    for address in &mut found {
        address.set_port(port);
    }
    Ok(found)
}

/// The address from which this host would reach `remote`, with port 0.
pub(super) fn route_to(remote: SocketAddr) -> Option<SocketAddr> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing. It only looks up the route, which port 0 does not have.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    let port = if remote.port() == 0 { 9 } else { remote.port() };
    let mut target = remote;
    target.set_port(port);
    socket.connect(target).ok()?;
    let mut source = socket.local_addr().ok()?;
    source.set_port(0);
    Some(source)
}

fn port_of(service: &str) -> Result<u16> {
    match service.parse() {
        Ok(port) => Ok(port),
        Err(_) => look_up(None, Some(service))?.first().map(SocketAddr::port).ok_or(Errno::ENODATA),
    }
}

fn look_up(node: Option<&str>, service: Option<&str>) -> Result<Vec<SocketAddr>> {
    let hints = AddrInfoHints { socktype: SockType::Stream.into(), ..AddrInfoHints::default() };
    let found = getaddrinfo(node, service, Some(hints)).map_err(|error| {
        let what = node.or(service).unwrap_or_default();
        log::info!(target: "core", "looking up {what:?}: {:?}", error.kind());
        Errno::ENODATA
    })?;
    let addresses: Vec<SocketAddr> = found.filter_map(|entry| Some(entry.ok()?.sockaddr)).collect();
    if addresses.is_empty() { Err(Errno::ENODATA) } else { Ok(addresses) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_need_no_look_up() {
        let resolved = resolve(Some("127.0.0.1"), Some("7471"), true, false).unwrap();
        assert_eq!(resolved, ["127.0.0.1:7471".parse().unwrap()]);
        assert_eq!(resolve(Some("::1"), None, true, true).unwrap(), ["[::1]:0".parse().unwrap()]);
        assert_eq!(resolve(Some("localhost"), None, true, false), Err(Errno::ENODATA));
    }

    #[test]
    fn no_node_is_wildcard_or_loopback() {
        let wildcard = resolve(None, Some("5"), false, true).unwrap();
        assert!(wildcard.iter().all(|address| address.ip().is_unspecified() && address.port() == 5));
        let loopback = resolve(None, Some("5"), false, false).unwrap();
        assert!(loopback.iter().all(|address| address.ip().is_loopback() && address.port() == 5));
    }

    #[test]
    fn the_route_to_loopback_is_loopback() {
        assert_eq!(route_to("127.0.0.1:0".parse().unwrap()), "127.0.0.1:0".parse().ok());
    }
}
