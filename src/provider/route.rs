//! The pairs of addresses to which an `fi_getinfo` call refers, and the interface of each.

use std::net::{IpAddr, SocketAddr};

use crate::abi::{InfoRef, Result, constants};

use super::address::{self, Interface};
use super::devices::Offered;
use super::info::Query;

/// Domain name for all interfaces.
const ANY_INTERFACE: &str = "any";

/// The addresses of both ends of a connection for an info, and the local interface.
pub(super) struct Route {
    pub(super) source: Option<SocketAddr>,
    pub(super) destination: Option<SocketAddr>,
    pub(super) domain: String,
    /// The network of the local interface.
    pub(super) network: Option<String>,
}

impl Route {
    fn new(
        source: Option<SocketAddr>,
        destination: Option<SocketAddr>,
        interface: Option<&Interface>,
    ) -> Self {
        Self {
            source,
            destination,
            domain: interface.map_or(ANY_INTERFACE, |interface| &interface.name).to_owned(),
            network: interface.map(|interface| interface.network.clone()),
        }
    }

    /// Whether its addresses are IPv4 addresses.
    pub(super) fn is_v4(&self) -> bool {
        self.source.or(self.destination).is_none_or(|address| address.is_ipv4())
    }
}

/// The addresses of both ends that the query names, for every device.
pub(super) struct Ends<'a> {
    /// `None`: not named.
    sources: Option<Vec<SocketAddr>>,
    destinations: Option<Vec<SocketAddr>>,
    domain: Option<&'a str>,
}

impl<'a> Ends<'a> {
    /// Resolves the names of a query.
    pub(super) fn of(query: &Query<'a>) -> Result<Self> {
        let one = |address: Option<SocketAddr>| address.map(|one| vec![one]);
        let source = one(query.hints.map_or(Ok(None), InfoRef::src_addr)?);
        let destination = one(query.hints.map_or(Ok(None), InfoRef::dest_addr)?);
        let passive = query.flags & constants::FI_SOURCE != 0;
        let numeric = query.flags & constants::FI_NUMERICHOST != 0;
        let named = query.node.is_some() || query.service.is_some();
        let resolve = || address::resolve(query.node, query.service, numeric, passive).map(Some);

        let (sources, destinations) = match (named, passive) {
            (true, true) => (resolve()?, destination),
            (true, false) => (source, resolve()?),
            (false, _) => (source, destination),
        };
        let domain = query.hints.and_then(InfoRef::domain_attr).map_or(Ok(None), |domain| domain.name())?;
        Ok(Self { sources, destinations, domain })
    }

    /// The routes on a device.
    pub(super) fn routes(&self, device: &Offered) -> Vec<Route> {
        let interfaces = &device.interfaces;
        let mut routes: Vec<Route> = match (&self.sources, &self.destinations) {
            (None, None) => interfaces
                .iter()
                .filter(|interface| interface.is_listed)
                .map(|interface| Route::new(Some(interface.address), None, Some(interface)))
                .collect(),
            (Some(sources), None) => {
                let wanted = device.domain.as_deref().or(self.domain);
                sources.iter().flat_map(|&source| listening(source, interfaces, wanted)).collect()
            }
            (sources, Some(destinations)) => connecting(sources.as_deref(), destinations, interfaces),
        };
        let wanted = [self.domain, device.domain.as_deref()];
        routes.retain(|route| wanted.into_iter().flatten().all(|name| name == route.domain));
        routes
    }
}

/// The addresses at which a passive side listens: the address named or, if that is the wildcard and an
/// interface was requested, the addresses of the interface.
fn listening(source: SocketAddr, interfaces: &[Interface], wanted: Option<&str>) -> Vec<Route> {
    if !source.ip().is_unspecified() {
        return vec![Route::new(Some(source), None, interface_of(source.ip(), interfaces))];
    }
    let Some(wanted) = wanted else { return vec![Route::new(Some(source), None, None)] };
    let same_family = |interface: &&Interface| interface.address.is_ipv4() == source.is_ipv4();
    let of_interface = interfaces.iter().filter(same_family).filter(|interface| interface.name == wanted);
    of_interface
        .map(|interface| {
            let mut address = interface.address;
            address.set_port(source.port());
            Route::new(Some(address), None, Some(interface))
        })
        .collect()
}

/// One route for each destination and each source of its family.
fn connecting(
    sources: Option<&[SocketAddr]>,
    destinations: &[SocketAddr],
    interfaces: &[Interface],
) -> Vec<Route> {
    let mut routes = Vec::new();
    for &destination in destinations {
        let from = |source: Option<SocketAddr>| {
            let interface = source.and_then(|source| interface_of(source.ip(), interfaces));
            Route::new(source, Some(destination), interface)
        };
        match sources {
            None => routes.push(from(address::route_to(destination))),
            Some(sources) => {
                let same_family = |source: &&SocketAddr| source.is_ipv4() == destination.is_ipv4();
                routes.extend(sources.iter().filter(same_family).map(|&source| from(Some(source))));
            }
        }
    }
    routes
}

/// The interface with this address.
fn interface_of(ip: IpAddr, interfaces: &[Interface]) -> Option<&Interface> {
    let owner = interfaces.iter().find(|interface| interface.address.ip() == ip);
    // All of 127.0.0.0/8 belongs to the loopback interface.
    let loopback =
        || interfaces.iter().find(|interface| ip.is_loopback() && interface.address.ip().is_loopback());
    owner.or_else(loopback)
}
