//! Discovery: what `fi_getinfo` answers, and the info of a connection request.
//!
//! What the provider can do is said once, by [`describe`]; hints are held against the same
//! constants. Addresses decide how many infos there are.

use std::ffi::{CStr, CString};
use std::net::{IpAddr, SocketAddr};

use crate::abi::info::{DomainAttr, EpAttr, RxAttr, TxAttr};
use crate::abi::{Errno, IOV_LIMIT, Info, InfoList, InfoRef, Result, constants};
use crate::stream::{self, GUARANTEED_ROOM};
use crate::verbs::{Device, DeviceAttributes};

use super::address::{self, Interface};
use super::config::Config;
use super::options::Options;

/// Name of the fabric of the embedded iWARP device.
pub(super) const IWARP_FABRIC: &CStr = c"iwarp";

/// Longest `fi_inject` in bytes: what a sender can always take once the peer has read everything.
pub(super) const INJECT_SIZE: usize = GUARANTEED_ROOM as usize;

/// Domain name where no single interface is meant.
const ANY_INTERFACE: &str = "any";

const TX_CAPS: u64 = constants::FI_MSG | constants::FI_SEND;
const RX_CAPS: u64 = constants::FI_MSG | constants::FI_RECV;
const DOMAIN_CAPS: u64 = constants::FI_LOCAL_COMM | constants::FI_REMOTE_COMM;
const CAPS: u64 = TX_CAPS | RX_CAPS | DOMAIN_CAPS;
const ORDER: u64 = constants::FI_ORDER_SAS;

/// What an application asks of `fi_getinfo`.
pub(super) struct Query<'a> {
    pub(super) node: Option<&'a str>,
    pub(super) service: Option<&'a str>,
    pub(super) flags: u64,
    pub(super) hints: Option<InfoRef<'a>>,
}

/// What of an info is the application's choice.
struct Choice {
    options: Options,
    force_iwarp: bool,
    addr_format: u32,
    control_progress: u32,
}

/// The ends of a connection as an info names them, and the interface that leads there.
struct Route {
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    domain: String,
}

/// Answers `fi_getinfo`.
pub(super) fn answer(query: &Query<'_>) -> Result<InfoList> {
    let device = Config::embedded_device()?.attributes();
    let choice = Choice::of(query.hints, &device)?;
    let mut list = InfoList::new();
    for route in routes(query)? {
        if fits_format(&route, choice.addr_format) {
            list.push(describe(&choice, &route)?);
        }
    }
    if list.is_empty() { Err(Errno::ENODATA) } else { Ok(list) }
}

/// The info of a connection request, after that of the passive endpoint: it opens an endpoint as it
/// stands.
pub(super) fn for_request(
    passive: &Info,
    local: SocketAddr,
    remote: SocketAddr,
    options: &Options,
) -> Result<Info> {
    let mut info = passive.as_ref().to_owned()?;
    info.tx_attr().set_size(options.send_depth.into());
    info.rx_attr().set_size(options.recv_depth.into());
    info.set_src_addr(Some(local))?;
    info.set_dest_addr(Some(remote))?;
    Ok(info)
}

/// Whether an info asks for iWARP words.
pub(super) fn forces_iwarp(info: InfoRef<'_>) -> bool {
    info.ep_attr().is_some_and(|endpoint| endpoint.protocol() == constants::FI_PROTO_IWARP)
}

impl Choice {
    /// What the hints choose.
    ///
    /// # Errors
    /// `-FI_ENODATA` if stream endpoints cannot be what they ask for.
    fn of(hints: Option<InfoRef<'_>>, device: &DeviceAttributes) -> Result<Self> {
        let mut choice = Self {
            options: Options::default(),
            force_iwarp: false,
            addr_format: constants::FI_FORMAT_UNSPEC,
            control_progress: constants::FI_PROGRESS_UNSPEC,
        };
        let Some(hints) = hints else { return Ok(choice) };
        let fabric = hints.fabric_attr().map_or(Ok(None), |fabric| fabric.name())?;
        let fits = is_subset(hints.caps(), CAPS)
            && fits_address_format(hints.addr_format())
            && hints.ep_attr().is_none_or(fits_endpoint)
            && hints.tx_attr().is_none_or(fits_tx)
            && hints.rx_attr().is_none_or(fits_rx)
            && hints.domain_attr().is_none_or(fits_domain)
            && fabric.is_none_or(|name| name.as_bytes() == IWARP_FABRIC.to_bytes());
        if !fits {
            return Err(Errno::ENODATA);
        }
        choice.options = choice.options.with_depths_of(hints, device).map_err(|_| Errno::ENODATA)?;
        choice.force_iwarp = forces_iwarp(hints);
        choice.addr_format = hints.addr_format();
        if let Some(domain) = hints.domain_attr() {
            choice.control_progress = domain.control_progress();
        }
        Ok(choice)
    }
}

fn is_subset(asked: u64, offered: u64) -> bool {
    asked & !offered == 0
}

fn fits_address_format(format: u32) -> bool {
    matches!(
        format,
        constants::FI_FORMAT_UNSPEC
            | constants::FI_SOCKADDR
            | constants::FI_SOCKADDR_IN
            | constants::FI_SOCKADDR_IN6
            | constants::FI_SOCKADDR_IP
    )
}

fn fits_endpoint(endpoint: EpAttr<'_>) -> bool {
    matches!(endpoint.type_(), constants::FI_EP_UNSPEC | constants::FI_EP_SOCK_STREAM)
        && matches!(
            endpoint.protocol(),
            constants::FI_PROTO_UNSPEC | constants::FI_PROTO_RSTREAM | constants::FI_PROTO_IWARP
        )
        && endpoint.protocol_version() <= u32::from(stream::VERSION)
        && endpoint.tx_ctx_cnt() <= 1
        && endpoint.rx_ctx_cnt() <= 1
        && endpoint.auth_key_size() == 0
}

fn fits_tx(tx: TxAttr<'_>) -> bool {
    is_subset(tx.caps(), CAPS)
        && is_subset(tx.msg_order(), ORDER)
        && tx.inject_size() <= INJECT_SIZE
        && tx.iov_limit() <= IOV_LIMIT
        && tx.rma_iov_limit() == 0
}

fn fits_rx(rx: RxAttr<'_>) -> bool {
    is_subset(rx.caps(), CAPS) && is_subset(rx.msg_order(), ORDER) && rx.iov_limit() <= IOV_LIMIT
}

fn fits_domain(domain: DomainAttr<'_>) -> bool {
    is_subset(domain.caps(), DOMAIN_CAPS)
        && domain.threading() <= constants::FI_THREAD_ENDPOINT
        && matches!(domain.data_progress(), constants::FI_PROGRESS_UNSPEC | constants::FI_PROGRESS_MANUAL)
        && domain.control_progress() <= constants::FI_PROGRESS_MANUAL
        && domain.cq_data_size() == 0
        && domain.auth_key_size() == 0
}

/// The info of a stream endpoint on one route.
fn describe(choice: &Choice, route: &Route) -> Result<Info> {
    let mut info = Info::new()?;
    info.set_caps(CAPS);

    let mut endpoint = info.ep_attr();
    endpoint.set_type(constants::FI_EP_SOCK_STREAM);
    endpoint.set_protocol(if choice.force_iwarp {
        constants::FI_PROTO_IWARP
    } else {
        constants::FI_PROTO_RSTREAM
    });
    endpoint.set_protocol_version(u32::from(stream::VERSION));
    endpoint.set_max_msg_size(usize::MAX);
    endpoint.set_tx_ctx_cnt(1);
    endpoint.set_rx_ctx_cnt(1);

    let mut tx = info.tx_attr();
    tx.set_caps(TX_CAPS);
    tx.set_msg_order(ORDER);
    tx.set_inject_size(INJECT_SIZE);
    tx.set_size(choice.options.send_depth.into());
    tx.set_iov_limit(IOV_LIMIT);

    let mut rx = info.rx_attr();
    rx.set_caps(RX_CAPS);
    rx.set_msg_order(ORDER);
    rx.set_size(choice.options.recv_depth.into());
    rx.set_iov_limit(IOV_LIMIT);

    let mut domain = info.domain_attr();
    domain.set_name(&CString::new(route.domain.as_str()).map_err(|_| Errno::EINVAL)?)?;
    domain.set_caps(DOMAIN_CAPS);
    domain.set_threading(constants::FI_THREAD_SAFE);
    domain.set_control_progress(match choice.control_progress {
        constants::FI_PROGRESS_UNSPEC => constants::FI_PROGRESS_MANUAL,
        asked => asked,
    });
    domain.set_data_progress(constants::FI_PROGRESS_MANUAL);
    domain.set_resource_mgmt(constants::FI_RM_ENABLED);
    domain.set_max_err_data(stream::Offer::USER_DATA_MAX);

    info.fabric_attr().set_name(IWARP_FABRIC)?;

    info.set_addr_format(match (choice.addr_format, route.is_v4()) {
        (constants::FI_FORMAT_UNSPEC, true) => constants::FI_SOCKADDR_IN,
        (constants::FI_FORMAT_UNSPEC, false) => constants::FI_SOCKADDR_IN6,
        (format, _) => format,
    });
    info.set_src_addr(route.source)?;
    info.set_dest_addr(route.destination)?;
    Ok(info)
}

impl Route {
    fn is_v4(&self) -> bool {
        self.source.or(self.destination).is_none_or(|address| address.is_ipv4())
    }
}

/// Whether an address format can hold the addresses of a route.
fn fits_format(route: &Route, format: u32) -> bool {
    match format {
        constants::FI_SOCKADDR_IN => route.is_v4(),
        constants::FI_SOCKADDR_IN6 => !route.is_v4(),
        _ => true,
    }
}

/// The pairs of addresses that a query means.
fn routes(query: &Query<'_>) -> Result<Vec<Route>> {
    let hinted_source = query.hints.map_or(Ok(None), InfoRef::src_addr)?;
    let hinted_destination = query.hints.map_or(Ok(None), InfoRef::dest_addr)?;
    let wanted_domain = match query.hints.and_then(InfoRef::domain_attr) {
        Some(domain) => domain.name()?,
        None => None,
    };
    let passive = query.flags & constants::FI_SOURCE != 0;
    let numeric = query.flags & constants::FI_NUMERICHOST != 0;
    let named = query.node.is_some() || query.service.is_some();
    let resolve = || address::resolve(query.node, query.service, numeric, passive);

    let (sources, destinations) = match (named, passive) {
        (true, true) => (Some(resolve()?), hinted_destination.map(|one| vec![one])),
        (true, false) => (hinted_source.map(|one| vec![one]), Some(resolve()?)),
        (false, _) => (hinted_source.map(|one| vec![one]), hinted_destination.map(|one| vec![one])),
    };
    let interfaces = address::interfaces()?;
    let routes: Vec<Route> = match (sources, destinations) {
        (None, None) => interfaces
            .iter()
            .map(|interface| Route {
                source: Some(interface.address),
                destination: None,
                domain: interface.name.clone(),
            })
            .collect(),
        (Some(sources), None) => {
            sources.into_iter().flat_map(|source| listening(source, &interfaces, wanted_domain)).collect()
        }
        (sources, Some(destinations)) => connecting(sources.as_deref(), &destinations, &interfaces),
    };
    let fits = |route: &Route| wanted_domain.is_none_or(|name| name == route.domain);
    Ok(routes.into_iter().filter(fits).collect())
}

/// Where an info for a passive side listens: at the address named, or, if that is the wildcard
/// and an interface was asked for, at the addresses of the interface.
fn listening(source: SocketAddr, interfaces: &[Interface], wanted: Option<&str>) -> Vec<Route> {
    let route =
        |source: SocketAddr, domain: String| Route { source: Some(source), destination: None, domain };
    if !source.ip().is_unspecified() {
        return vec![route(source, interface_of(source.ip(), interfaces))];
    }
    let Some(wanted) = wanted else { return vec![route(source, ANY_INTERFACE.to_owned())] };
    let same_family = |interface: &&Interface| interface.address.is_ipv4() == source.is_ipv4();
    let of_interface = interfaces.iter().filter(same_family).filter(|interface| interface.name == wanted);
    of_interface
        .map(|interface| {
            let mut address = interface.address;
            address.set_port(source.port());
            route(address, interface.name.clone())
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
        let through = |ip: Option<IpAddr>| {
            ip.map_or_else(|| ANY_INTERFACE.to_owned(), |ip| interface_of(ip, interfaces))
        };
        match sources {
            None => {
                let source = address::route_to(destination);
                routes.push(Route {
                    source,
                    destination: Some(destination),
                    domain: through(source.map(|source| source.ip())),
                });
            }
            Some(sources) => {
                let same_family = |source: &&SocketAddr| source.is_ipv4() == destination.is_ipv4();
                routes.extend(sources.iter().filter(same_family).map(|&source| Route {
                    source: Some(source),
                    destination: Some(destination),
                    domain: through((!source.ip().is_unspecified()).then_some(source.ip())),
                }));
            }
        }
    }
    routes
}

/// The name of the interface that has an address.
fn interface_of(ip: IpAddr, interfaces: &[Interface]) -> String {
    let owner = interfaces.iter().find(|interface| interface.address.ip() == ip);
    // Every address of 127.0.0.0/8 is the loopback interface's.
    let loopback =
        || interfaces.iter().find(|interface| ip.is_loopback() && interface.address.ip().is_loopback());
    owner.or_else(loopback).map_or_else(|| ANY_INTERFACE.to_owned(), |interface| interface.name.clone())
}
