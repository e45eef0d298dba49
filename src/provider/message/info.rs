//! Discovery of message endpoints: compares hints, and creates the info.

use crate::abi::info::{DomainAttr, EpAttr, RxAttr, TxAttr};
use crate::abi::{Info, InfoRef, Result, constants};
use crate::provider::devices::Offered;
use crate::provider::route::Route;

use super::limits::{Limits, OP_FLAGS};

/// Default depth of the queues.
pub(super) const DEFAULT_SIZE: usize = 256;
/// Maximum number of outstanding RDMA Reads of either side of a connection.
pub(super) const READS: u8 = 16;
/// Maximum number of objects of each kind in a domain.
const QUEUES: usize = 256;
const REGIONS: usize = 1 << 20;

const MSG_DIRECTIONS: u64 = constants::FI_SEND | constants::FI_RECV;
const RMA_DIRECTIONS: u64 =
    constants::FI_READ | constants::FI_WRITE | constants::FI_REMOTE_READ | constants::FI_REMOTE_WRITE;
const TX_CAPS: u64 =
    constants::FI_MSG | constants::FI_RMA | constants::FI_SEND | constants::FI_READ | constants::FI_WRITE;
const RX_CAPS: u64 = constants::FI_MSG
    | constants::FI_RMA
    | constants::FI_RECV
    | constants::FI_REMOTE_READ
    | constants::FI_REMOTE_WRITE
    | constants::FI_RMA_EVENT;
const DOMAIN_CAPS: u64 = constants::FI_LOCAL_COMM | constants::FI_REMOTE_COMM;
/// What is offered to hints without capabilities. Tags are not, because messages with tags take longer.
const CAPS: u64 = TX_CAPS | RX_CAPS | DOMAIN_CAPS;
const ALL_CAPS: u64 = CAPS | constants::FI_TAGGED;
const ORDER: u64 = constants::FI_ORDER_RAR
    | constants::FI_ORDER_RAW
    | constants::FI_ORDER_WAW
    | constants::FI_ORDER_RAS
    | constants::FI_ORDER_WAS
    | constants::FI_ORDER_SAW
    | constants::FI_ORDER_SAS
    | constants::FI_ORDER_RMA_RAR
    | constants::FI_ORDER_RMA_RAW
    | constants::FI_ORDER_RMA_WAW;

/// Whether an info asks for message endpoints.
pub(in super::super) fn is_of_messages(info: InfoRef<'_>) -> bool {
    info.ep_attr().is_some_and(|endpoint| endpoint.type_() == constants::FI_EP_MSG)
}

/// Whether the messages of an endpoint as an info describes it have tags.
pub(in super::super) fn has_tags(info: InfoRef<'_>) -> bool {
    info.caps() & constants::FI_TAGGED != 0
}

/// Whether message endpoints of some device may satisfy the hints.
pub(in super::super) fn may_fit(hints: InfoRef<'_>) -> bool {
    let endpoint = hints.ep_attr().map_or(constants::FI_EP_UNSPEC, EpAttr::type_);
    matches!(endpoint, constants::FI_EP_UNSPEC | constants::FI_EP_MSG) && is_subset(hints.caps(), ALL_CAPS)
}

/// Whether endpoints with these limits satisfy the hints, which [may fit](may_fit).
fn fits(limits: &Limits, hints: InfoRef<'_>) -> bool {
    is_subset(hints.caps(), most(limits, hints))
        && describes_endpoint(limits, hints)
        && hints.domain_attr().is_none_or(|domain| {
            fits_domain(limits, domain)
                && domain.cq_data_size() <= data_size(limits, Some(hints))
                && domain.ep_cnt() <= endpoints(limits, Some(hints))
        })
}

/// Whether an endpoint with these limits can be as an info says.
pub(super) fn describes_endpoint(limits: &Limits, info: InfoRef<'_>) -> bool {
    let most = most(limits, info);
    is_subset(info.caps() & constants::FI_TAGGED, most)
        && info.ep_attr().is_none_or(|endpoint| fits_endpoint(limits, endpoint))
        && info.tx_attr().is_none_or(|tx| is_subset(tx.caps(), most) && fits_tx(limits, tx))
        && info.rx_attr().is_none_or(|rx| is_subset(rx.caps(), most) && fits_rx(limits, rx))
}

/// All capabilities of an endpoint as an info asks for it. Tags are asked for by `fi_info.caps` alone.
fn most(limits: &Limits, info: InfoRef<'_>) -> u64 {
    let has_tags = has_tags(info) && !is_shared(Some(info));
    caps(limits, if has_tags { ALL_CAPS } else { CAPS })
}

/// The part of these capabilities that the device has.
fn caps(limits: &Limits, caps: u64) -> u64 {
    if limits.is_direct { caps & !(constants::FI_RMA_EVENT | constants::FI_TAGGED) } else { caps }
}

/// The part of all capabilities that the hints ask for: messages, those with tags, access to remote memory, or several,
/// in all directions if they name none (`fi_getinfo(3)`: only the primary capabilities that were asked for are enabled).
fn asked(hints: Option<InfoRef<'_>>) -> u64 {
    let asked = hints.map_or(0, InfoRef::caps);
    if asked & (constants::FI_MSG | constants::FI_TAGGED | constants::FI_RMA) == 0 {
        return CAPS;
    }
    let part = |primary: u64, directions: u64| match asked & directions {
        _ if asked & primary == 0 => 0,
        0 => primary | directions,
        named => primary | named,
    };
    let events = if asked & constants::FI_RMA == 0 { 0 } else { constants::FI_RMA_EVENT };
    let messages = part(constants::FI_MSG, MSG_DIRECTIONS) | part(constants::FI_TAGGED, MSG_DIRECTIONS);
    messages | part(constants::FI_RMA, RMA_DIRECTIONS) | events | DOMAIN_CAPS
}

fn is_subset(asked: u64, offered: u64) -> bool {
    asked & !offered == 0
}

fn fits_endpoint(limits: &Limits, endpoint: EpAttr<'_>) -> bool {
    (endpoint.protocol() == constants::FI_PROTO_UNSPEC || endpoint.protocol() == limits.protocol)
        && endpoint.protocol_version() <= 1
        && endpoint.max_msg_size() <= limits.max_message
        && endpoint.tx_ctx_cnt() <= 1
        && (endpoint.rx_ctx_cnt() <= 1 || endpoint.rx_ctx_cnt() == constants::FI_SHARED_CONTEXT)
        && endpoint.max_order_war_size() == 0
        && endpoint.auth_key_size() == 0
}

fn fits_tx(limits: &Limits, tx: TxAttr<'_>) -> bool {
    is_subset(tx.op_flags(), OP_FLAGS)
        && is_subset(tx.msg_order(), ORDER)
        && is_subset(tx.comp_order(), constants::FI_ORDER_STRICT)
        && tx.inject_size() <= limits.inject
        && tx.size() <= limits.tx_size
        && tx.iov_limit() <= limits.iovs
        && tx.rma_iov_limit() <= limits.iovs
}

fn fits_rx(limits: &Limits, rx: RxAttr<'_>) -> bool {
    is_subset(rx.op_flags(), constants::FI_COMPLETION)
        && is_subset(rx.msg_order(), ORDER)
        && is_subset(rx.comp_order(), constants::FI_ORDER_STRICT)
        && rx.total_buffered_recv() == 0
        && rx.size() <= limits.rx_size
        && rx.iov_limit() <= limits.iovs
}

fn fits_domain(limits: &Limits, domain: DomainAttr<'_>) -> bool {
    is_subset(domain.caps(), DOMAIN_CAPS)
        && domain.threading() <= constants::FI_THREAD_ENDPOINT
        && matches!(domain.data_progress(), constants::FI_PROGRESS_UNSPEC | constants::FI_PROGRESS_MANUAL)
        && domain.control_progress() <= constants::FI_PROGRESS_MANUAL
        && domain.mr_key_size() <= limits.key_size
        && domain.mr_iov_limit() <= 1
        && domain.cq_cnt() <= QUEUES
        && domain.cntr_cnt() <= QUEUES
        && domain.mr_cnt() <= REGIONS
        && domain.resource_mgmt() <= constants::FI_RM_ENABLED
        && domain.max_err_data() <= limits.user_data
        && domain.auth_key_size() == 0
}

/// The mode of memory registration for these hints; `None` if they lack what the device requires. The two
/// modes of the first API are returned unchanged, because its applications know no others; with `FI_MR_BASIC`
/// the provider draws keys.
fn mr_mode(limits: &Limits, hints: Option<InfoRef<'_>>, version: u32) -> Option<i32> {
    let domain = hints.and_then(InfoRef::domain_attr);
    let asked = domain.map_or(0, DomainAttr::mr_mode);
    let is_first = version < MODE_BITS_SINCE;
    if !limits.is_direct {
        return Some(match asked {
            constants::FI_MR_BASIC | constants::FI_MR_SCALABLE => asked,
            _ if is_first => constants::FI_MR_SCALABLE,
            _ => 0,
        });
    }
    if asked == constants::FI_MR_BASIC || is_first && asked == 0 {
        return has_mode(hints, constants::FI_LOCAL_MR).then_some(constants::FI_MR_BASIC);
    }
    // Without remote access only local memory is registered.
    let is_local = hints.is_some_and(|hints| hints.caps() != 0 && hints.caps() & REMOTE_ACCESS == 0);
    let required = if is_local { constants::FI_MR_LOCAL } else { DIRECT_MODE };
    let may = !is_first && (domain.is_none() || asked & required == required);
    may.then_some(if domain.is_none() { required } else { asked & DIRECT_MODE })
}

/// Capabilities for which peers have to reach memory.
const REMOTE_ACCESS: u64 = constants::FI_RMA | RMA_DIRECTIONS;

/// The requirements of a device that accesses memory by itself.
const DIRECT_MODE: i32 = constants::FI_MR_LOCAL
    | constants::FI_MR_ALLOCATED
    | constants::FI_MR_PROV_KEY
    | constants::FI_MR_VIRT_ADDR;

/// Whether an application satisfies this mode.
fn has_mode(hints: Option<InfoRef<'_>>, mode: u64) -> bool {
    hints.is_none_or(|hints| hints.mode() & mode != 0)
}

/// Bytes of the data of completions. On a device on which a write with data takes a receive, this is for
/// applications that know it.
fn data_size(limits: &Limits, hints: Option<InfoRef<'_>>) -> usize {
    if limits.is_direct && !has_mode(hints, constants::FI_RX_CQ_DATA) { 0 } else { limits.data_size }
}

/// What the application has to do.
fn mode(limits: &Limits, hints: Option<InfoRef<'_>>, mr_mode: i32) -> u64 {
    let has_data = limits.is_direct && data_size(limits, hints) > 0;
    let is_local = limits.is_direct && mr_mode == constants::FI_MR_BASIC;
    let (data, local) = (constants::FI_RX_CQ_DATA, constants::FI_LOCAL_MR);
    (if has_data { data } else { 0 }) | (if is_local { local } else { 0 })
}

/// `FI_VERSION(1, 5)`: from then on the mode consists of bits.
const MODE_BITS_SINCE: u32 = 1 << 16 | 5;

/// The requested size, or the default.
fn size(asked: usize, most: usize) -> usize {
    if asked == 0 { DEFAULT_SIZE.min(most) } else { asked }
}

/// The fields of a tag. The provider treats all bits alike, so they are those that the hints have, or else of one bit.
fn tag_format(hints: Option<InfoRef<'_>>) -> u64 {
    match hints.and_then(InfoRef::ep_attr).map_or(0, EpAttr::mem_tag_format) {
        0 => 0xaaaa_aaaa_aaaa_aaaa,
        asked => asked,
    }
}

/// Whether the hints ask for endpoints with a shared receive context.
fn is_shared(hints: Option<InfoRef<'_>>) -> bool {
    let endpoint = hints.and_then(InfoRef::ep_attr);
    endpoint.is_some_and(|endpoint| endpoint.rx_ctx_cnt() == constants::FI_SHARED_CONTEXT)
}

/// Number of endpoints of a domain, if all have the requested sizes.
fn endpoints(limits: &Limits, hints: Option<InfoRef<'_>>) -> usize {
    let tx = size(hints.and_then(InfoRef::tx_attr).map_or(0, TxAttr::size), limits.tx_size);
    let rx = size(hints.and_then(InfoRef::rx_attr).map_or(0, RxAttr::size), limits.rx_size);
    limits.endpoints(tx, if is_shared(hints) { 0 } else { rx })
}

/// What an application is offered of a device.
pub(in super::super) struct Offer<'a> {
    hints: Option<InfoRef<'a>>,
    limits: Limits,
    mr_mode: i32,
}

impl<'a> Offer<'a> {
    /// `None` if the device has no message endpoints as the hints ask for them.
    pub(in super::super) fn of(version: u32, hints: Option<InfoRef<'a>>, device: &Offered) -> Option<Self> {
        let limits = Limits::of(&device.attributes, device.local_keys)?;
        let mr_mode = mr_mode(&limits, hints, version)?;
        hints.is_none_or(|hints| fits(&limits, hints)).then_some(Self { hints, limits, mr_mode })
    }
}

/// The info of a message endpoint on one route of its device.
pub(in super::super) fn describe(offer: &Offer<'_>, route: &Route, fabric: &str) -> Result<Info> {
    let &Offer { hints, ref limits, mr_mode } = offer;
    let mode = mode(limits, hints, mr_mode);
    let (tx_hints, rx_hints) = (hints.and_then(InfoRef::tx_attr), hints.and_then(InfoRef::rx_attr));
    let caps = caps(limits, asked(hints));
    let mut info = Info::new()?;
    info.set_caps(caps);
    info.set_mode(mode);

    let mut endpoint = info.ep_attr();
    endpoint.set_type(constants::FI_EP_MSG);
    endpoint.set_protocol(limits.protocol);
    endpoint.set_protocol_version(1);
    endpoint.set_max_msg_size(limits.max_message);
    endpoint.set_mem_tag_format(if caps & constants::FI_TAGGED == 0 { 0 } else { tag_format(hints) });
    endpoint.set_max_order_raw_size(usize::MAX);
    endpoint.set_max_order_waw_size(usize::MAX);
    endpoint.set_tx_ctx_cnt(1);
    endpoint.set_rx_ctx_cnt(if is_shared(hints) { constants::FI_SHARED_CONTEXT } else { 1 });

    let mut tx = info.tx_attr();
    tx.set_caps(caps & (TX_CAPS | constants::FI_TAGGED));
    tx.set_op_flags(tx_hints.map_or(0, TxAttr::op_flags));
    tx.set_msg_order(ORDER);
    tx.set_comp_order(constants::FI_ORDER_STRICT);
    tx.set_inject_size(limits.inject);
    tx.set_size(size(tx_hints.map_or(0, TxAttr::size), limits.tx_size));
    tx.set_iov_limit(limits.iovs);
    tx.set_rma_iov_limit(limits.iovs);

    let mut rx = info.rx_attr();
    rx.set_caps(caps & (RX_CAPS | constants::FI_TAGGED));
    rx.set_op_flags(rx_hints.map_or(0, RxAttr::op_flags));
    rx.set_msg_order(ORDER);
    rx.set_comp_order(constants::FI_ORDER_STRICT);
    rx.set_mode(mode & constants::FI_RX_CQ_DATA);
    rx.set_size(size(rx_hints.map_or(0, RxAttr::size), limits.rx_size));
    rx.set_iov_limit(limits.iovs);

    let mut domain = info.domain_attr();
    domain.set_name(&route.domain)?;
    domain.set_caps(DOMAIN_CAPS);
    domain.set_threading(constants::FI_THREAD_SAFE);
    let progress = hints.and_then(InfoRef::domain_attr).map_or(0, DomainAttr::control_progress);
    domain.set_control_progress(match progress {
        constants::FI_PROGRESS_UNSPEC => constants::FI_PROGRESS_MANUAL,
        asked => asked,
    });
    domain.set_data_progress(constants::FI_PROGRESS_MANUAL);
    domain.set_resource_mgmt(constants::FI_RM_ENABLED);
    domain.set_av_type(constants::FI_AV_UNSPEC);
    domain.set_mr_mode(mr_mode);
    domain.set_mr_key_size(limits.key_size);
    domain.set_cq_data_size(data_size(limits, hints));
    domain.set_cq_cnt(QUEUES);
    domain.set_cntr_cnt(QUEUES);
    let endpoints = endpoints(limits, hints);
    domain.set_ep_cnt(endpoints);
    domain.set_tx_ctx_cnt(endpoints);
    domain.set_rx_ctx_cnt(endpoints);
    domain.set_max_ep_tx_ctx(1);
    domain.set_max_ep_rx_ctx(1);
    domain.set_max_ep_srx_ctx(endpoints);
    domain.set_mr_iov_limit(1);
    domain.set_mr_cnt(REGIONS);
    domain.set_max_err_data(limits.user_data);

    info.fabric_attr().set_name(fabric)?;
    // A passive endpoint, whose address an endpoint is to take over.
    if let Some(handle) = hints.and_then(InfoRef::handle) {
        info.set_handle(handle);
    }
    Ok(info)
}
