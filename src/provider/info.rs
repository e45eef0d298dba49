//! Discovery: the infos that `fi_getinfo` returns, and the info of a connection request.
//!
//! [`describe`] states what the provider can do, and hints are compared with the same constants. The
//! addresses decide how many infos there are.

use std::net::SocketAddr;

use crate::abi::info::{DomainAttr, EpAttr, RxAttr, TxAttr};
use crate::abi::{Errno, IOV_LIMIT, Info, InfoList, InfoRef, Result, constants};
use rdma_verbs::DeviceAttributes;
use rstream_protocol::{self as stream, GUARANTEED_ROOM};
use rstream_session::{MAX_PIECES, Sizes};

use super::devices::{self, Offered};
use super::message;
use super::options;
use super::route::{Ends, Route};

/// Longest `fi_inject` in bytes: a send of this length always finds room once the peer has read everything.
pub(super) const INJECT_SIZE: usize = GUARANTEED_ROOM as usize;

const _: () = assert!(IOV_LIMIT == MAX_PIECES, "a call's pieces fit in one request");

const TX_CAPS: u64 = constants::FI_MSG | constants::FI_SEND;
const RX_CAPS: u64 = constants::FI_MSG | constants::FI_RECV;
const DOMAIN_CAPS: u64 = constants::FI_LOCAL_COMM | constants::FI_REMOTE_COMM;
const CAPS: u64 = TX_CAPS | RX_CAPS | DOMAIN_CAPS;
const ORDER: u64 = constants::FI_ORDER_SAS;

/// The arguments of `fi_getinfo`.
pub(super) struct Query<'a> {
    /// The API version that the application asks for.
    pub(super) version: u32,
    pub(super) node: Option<&'a str>,
    pub(super) service: Option<&'a str>,
    pub(super) flags: u64,
    pub(super) hints: Option<InfoRef<'a>>,
}

/// The parts of an info that the application chooses.
struct Choice {
    sizes: Sizes,
    force_iwarp: bool,
    control_progress: u32,
}

/// Implements `fi_getinfo`.
pub(super) fn getinfo(query: &Query<'_>) -> Result<InfoList> {
    // Opening devices takes time, so requests that need none return first.
    let hints = query.hints;
    let is_known_format = hints.is_none_or(|hints| fits_address_format(hints.addr_format()));
    let (streams, messages) = (hints.is_none_or(fits), hints.is_none_or(message::info::may_fit));
    if !is_known_format || !streams && !messages {
        return Err(Errno::ENODATA);
    }
    let fabric = query.hints.and_then(InfoRef::fabric_attr).map_or(Ok(None), |fabric| fabric.name())?;
    let ends = Ends::of(query)?;
    let mut list = InfoList::new();
    let devices = devices::offered(fabric)?;
    let is_named = |name: &str| fabric.is_none_or(|fabric| fabric == name);
    for device in devices.iter().filter(|device| streams && is_named(device.fabric)) {
        let Some(choice) = Choice::of(hints, &device.attributes)? else { continue };
        for route in ends.routes(device) {
            add(&mut list, hints, &route, || describe(&choice, device, &route))?;
        }
    }
    for device in devices.iter().filter(|_| messages) {
        let Some(offer) = message::info::Offer::of(query.version, hints, device) else { continue };
        for route in ends.routes(device) {
            let name = device.fabric_of_messages(fabric, route.network.as_deref());
            if is_named(&name) {
                add(&mut list, hints, &route, || message::info::describe(&offer, &route, &name))?;
            }
        }
    }
    if list.is_empty() { Err(Errno::ENODATA) } else { Ok(list) }
}

/// Adds the info of a route, if the application's address format can hold its addresses. `describe` creates
/// the info without addresses.
fn add(
    list: &mut InfoList,
    hints: Option<InfoRef<'_>>,
    route: &Route,
    describe: impl FnOnce() -> Result<Info>,
) -> Result<()> {
    let format = hints.map_or(constants::FI_FORMAT_UNSPEC, InfoRef::addr_format);
    if !fits_format(route, format) {
        return Ok(());
    }
    let mut info = describe()?;
    info.set_addr_format(match (format, route.is_v4()) {
        (constants::FI_FORMAT_UNSPEC, true) => constants::FI_SOCKADDR_IN,
        (constants::FI_FORMAT_UNSPEC, false) => constants::FI_SOCKADDR_IN6,
        (format, _) => format,
    });
    info.set_src_addr(route.source)?;
    info.set_dest_addr(route.destination)?;
    list.push(info);
    Ok(())
}

/// The info of a connection request, made from that of the passive endpoint. It opens an endpoint as it is.
pub(super) fn for_request(
    passive: &Info,
    local: SocketAddr,
    remote: SocketAddr,
    stream: Option<&Sizes>,
) -> Result<Info> {
    let mut info = passive.as_ref().to_owned()?;
    if let Some(sizes) = stream {
        info.tx_attr().set_size(sizes.send_depth.into());
        info.rx_attr().set_size(sizes.recv_depth.into());
    }
    info.set_src_addr(Some(local))?;
    info.set_dest_addr(Some(remote))?;
    Ok(info)
}

/// Whether an info asks for control words in the format of iWARP.
pub(super) fn forces_iwarp(info: InfoRef<'_>) -> bool {
    info.ep_attr().is_some_and(|endpoint| endpoint.protocol() == constants::FI_PROTO_IWARP)
}

impl Choice {
    /// The choice that the hints make. `None` if the device's queues cannot have the sizes that they ask for.
    fn of(hints: Option<InfoRef<'_>>, device: &DeviceAttributes) -> Result<Option<Self>> {
        let mut choice = Self {
            sizes: Sizes::DEFAULT,
            force_iwarp: false,
            control_progress: constants::FI_PROGRESS_UNSPEC,
        };
        let Some(hints) = hints else { return Ok(Some(choice)) };
        let Ok(sizes) = options::with_depths_of(choice.sizes, hints, device) else { return Ok(None) };
        choice.sizes = sizes;
        choice.force_iwarp = forces_iwarp(hints);
        if let Some(domain) = hints.domain_attr() {
            choice.control_progress = domain.control_progress();
        }
        Ok(Some(choice))
    }
}

/// Whether any stream endpoint can satisfy the hints.
fn fits(hints: InfoRef<'_>) -> bool {
    is_subset(hints.caps(), CAPS) && describes_endpoint(hints) && hints.domain_attr().is_none_or(fits_domain)
}

/// Whether a stream endpoint can be as an info says.
pub(super) fn describes_endpoint(info: InfoRef<'_>) -> bool {
    info.ep_attr().is_none_or(fits_endpoint)
        && info.tx_attr().is_none_or(fits_tx)
        && info.rx_attr().is_none_or(fits_rx)
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

/// The info of a stream endpoint of a device on one route.
fn describe(choice: &Choice, device: &Offered, route: &Route) -> Result<Info> {
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
    tx.set_size(choice.sizes.send_depth.into());
    tx.set_iov_limit(IOV_LIMIT);

    let mut rx = info.rx_attr();
    rx.set_caps(RX_CAPS);
    rx.set_msg_order(ORDER);
    rx.set_size(choice.sizes.recv_depth.into());
    rx.set_iov_limit(IOV_LIMIT);

    let mut domain = info.domain_attr();
    domain.set_name(&route.domain)?;
    domain.set_caps(DOMAIN_CAPS);
    domain.set_threading(constants::FI_THREAD_SAFE);
    domain.set_control_progress(match choice.control_progress {
        constants::FI_PROGRESS_UNSPEC => constants::FI_PROGRESS_MANUAL,
        asked => asked,
    });
    domain.set_data_progress(constants::FI_PROGRESS_MANUAL);
    domain.set_resource_mgmt(constants::FI_RM_ENABLED);
    domain.set_max_err_data(stream::Offer::USER_DATA_MAX);

    info.fabric_attr().set_name(device.fabric)?;
    Ok(info)
}

/// Whether an address format can hold the addresses of a route.
fn fits_format(route: &Route, format: u32) -> bool {
    match format {
        constants::FI_SOCKADDR_IN => route.is_v4(),
        constants::FI_SOCKADDR_IN6 => !route.is_v4(),
        _ => true,
    }
}
