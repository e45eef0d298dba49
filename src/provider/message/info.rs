//! What discovery says of message endpoints: what fits hints, and the info.

use std::ffi::CString;

use crate::abi::info::{DomainAttr, EpAttr, RxAttr, TxAttr};
use crate::abi::{Errno, Info, InfoRef, MESSAGE_IOV_LIMIT, Result, constants};
use crate::provider::devices::Offered;
use crate::provider::route::Route;

use super::hello::USER_DATA_MAX;

/// Longest `fi_inject`, and longest message that is copied rather than pointed to, in bytes.
pub(super) const INJECT_SIZE: usize = 4096;
/// Depth of the queues unless the application asks for another.
pub(super) const DEFAULT_SIZE: usize = 256;
/// Largest depths.
const SIZE_MAX: usize = 1 << 17;
pub(super) const SHARED_SIZE_MAX: usize = 1 << 16;
/// RDMA reads of either side that may be under way on a connection.
pub(super) const READS: u8 = 16;
/// Bytes of the data of a completion.
const DATA_SIZE: usize = 8;
/// Bytes of a region's key.
const KEY_SIZE: usize = 8;
/// Objects of a domain.
const QUEUES: usize = 256;
const ENDPOINTS: usize = 32_768;
const REGIONS: usize = 1 << 20;

const TX_CAPS: u64 =
    constants::FI_MSG | constants::FI_RMA | constants::FI_SEND | constants::FI_READ | constants::FI_WRITE;
const RX_CAPS: u64 = constants::FI_MSG
    | constants::FI_RMA
    | constants::FI_RECV
    | constants::FI_REMOTE_READ
    | constants::FI_REMOTE_WRITE
    | constants::FI_RMA_EVENT;
const DOMAIN_CAPS: u64 = constants::FI_LOCAL_COMM | constants::FI_REMOTE_COMM;
const CAPS: u64 = TX_CAPS | RX_CAPS | DOMAIN_CAPS;
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
const OP_FLAGS: u64 = constants::FI_INJECT
    | constants::FI_COMPLETION
    | constants::FI_INJECT_COMPLETE
    | constants::FI_TRANSMIT_COMPLETE
    | constants::FI_DELIVERY_COMPLETE;

/// Whether an info asks for message endpoints.
pub(in super::super) fn is_of_messages(info: InfoRef<'_>) -> bool {
    info.ep_attr().is_some_and(|endpoint| endpoint.type_() == constants::FI_EP_MSG)
}

/// Whether message endpoints can be as the hints ask.
pub(in super::super) fn fits(hints: InfoRef<'_>) -> bool {
    is_subset(hints.caps(), CAPS)
        && hints.ep_attr().is_none_or(fits_endpoint)
        && hints.tx_attr().is_none_or(fits_tx)
        && hints.rx_attr().is_none_or(fits_rx)
        && hints.domain_attr().is_none_or(fits_domain)
}

fn is_subset(asked: u64, offered: u64) -> bool {
    asked & !offered == 0
}

fn fits_endpoint(endpoint: EpAttr<'_>) -> bool {
    matches!(endpoint.type_(), constants::FI_EP_UNSPEC | constants::FI_EP_MSG)
        && matches!(endpoint.protocol(), constants::FI_PROTO_UNSPEC | constants::FI_PROTO_IWARP)
        && endpoint.protocol_version() <= 1
        && endpoint.max_msg_size() <= MAX_MESSAGE
        && endpoint.tx_ctx_cnt() <= 1
        && (endpoint.rx_ctx_cnt() <= 1 || endpoint.rx_ctx_cnt() == constants::FI_SHARED_CONTEXT)
        && endpoint.max_order_war_size() == 0
        && endpoint.auth_key_size() == 0
}

fn fits_tx(tx: TxAttr<'_>) -> bool {
    is_subset(tx.caps(), CAPS)
        && is_subset(tx.op_flags(), OP_FLAGS)
        && is_subset(tx.msg_order(), ORDER)
        && tx.inject_size() <= INJECT_SIZE
        && tx.size() <= SIZE_MAX
        && tx.iov_limit() <= MESSAGE_IOV_LIMIT
        && tx.rma_iov_limit() <= MESSAGE_IOV_LIMIT
}

fn fits_rx(rx: RxAttr<'_>) -> bool {
    is_subset(rx.caps(), CAPS)
        && is_subset(rx.op_flags(), constants::FI_COMPLETION)
        && is_subset(rx.msg_order(), ORDER)
        && rx.total_buffered_recv() == 0
        && rx.size() <= SIZE_MAX
        && rx.iov_limit() <= MESSAGE_IOV_LIMIT
}

fn fits_domain(domain: DomainAttr<'_>) -> bool {
    is_subset(domain.caps(), DOMAIN_CAPS)
        && domain.threading() <= constants::FI_THREAD_ENDPOINT
        && matches!(domain.data_progress(), constants::FI_PROGRESS_UNSPEC | constants::FI_PROGRESS_MANUAL)
        && domain.control_progress() <= constants::FI_PROGRESS_MANUAL
        && domain.cq_data_size() <= DATA_SIZE
        && domain.mr_key_size() <= KEY_SIZE
        && domain.mr_iov_limit() <= 1
        && domain.cq_cnt() <= QUEUES
        && domain.cntr_cnt() <= QUEUES
        && domain.ep_cnt() <= ENDPOINTS
        && domain.mr_cnt() <= REGIONS
        && domain.auth_key_size() == 0
}

/// Longest message, in bytes.
const MAX_MESSAGE: usize = u32::MAX as usize;

/// What is answered to these modes of memory registration: nothing is required. The two modes of the first API are
/// answered as they are, and its applications know no others; with `FI_MR_BASIC` keys are drawn.
fn mr_mode(hints: Option<InfoRef<'_>>, version: u32) -> i32 {
    let asked = hints.and_then(InfoRef::domain_attr).map_or(0, DomainAttr::mr_mode);
    match asked {
        constants::FI_MR_BASIC | constants::FI_MR_SCALABLE => asked,
        _ if version < MODE_BITS_SINCE => constants::FI_MR_SCALABLE,
        _ => 0,
    }
}

/// `FI_VERSION(1, 5)`: from then on the mode consists of bits.
const MODE_BITS_SINCE: u32 = 1 << 16 | 5;

/// The size asked for, or the default.
fn size(asked: usize) -> usize {
    if asked == 0 { DEFAULT_SIZE } else { asked }
}

/// The info of a message endpoint of a device on one route.
pub(in super::super) fn describe(
    version: u32,
    hints: Option<InfoRef<'_>>,
    device: &Offered,
    route: &Route,
) -> Result<Info> {
    let (tx_hints, rx_hints) = (hints.and_then(InfoRef::tx_attr), hints.and_then(InfoRef::rx_attr));
    let mut info = Info::new()?;
    info.set_caps(CAPS);

    let mut endpoint = info.ep_attr();
    endpoint.set_type(constants::FI_EP_MSG);
    endpoint.set_protocol(constants::FI_PROTO_IWARP);
    endpoint.set_protocol_version(1);
    endpoint.set_max_msg_size(MAX_MESSAGE);
    endpoint.set_max_order_raw_size(usize::MAX);
    endpoint.set_max_order_waw_size(usize::MAX);
    endpoint.set_tx_ctx_cnt(1);
    let is_shared = hints
        .and_then(InfoRef::ep_attr)
        .is_some_and(|endpoint| endpoint.rx_ctx_cnt() == constants::FI_SHARED_CONTEXT);
    endpoint.set_rx_ctx_cnt(if is_shared { constants::FI_SHARED_CONTEXT } else { 1 });

    let mut tx = info.tx_attr();
    tx.set_caps(TX_CAPS);
    tx.set_op_flags(tx_hints.map_or(0, TxAttr::op_flags));
    tx.set_msg_order(ORDER);
    tx.set_comp_order(constants::FI_ORDER_STRICT);
    tx.set_inject_size(INJECT_SIZE);
    tx.set_size(size(tx_hints.map_or(0, TxAttr::size)));
    tx.set_iov_limit(MESSAGE_IOV_LIMIT);
    tx.set_rma_iov_limit(MESSAGE_IOV_LIMIT);

    let mut rx = info.rx_attr();
    rx.set_caps(RX_CAPS);
    rx.set_op_flags(rx_hints.map_or(0, RxAttr::op_flags));
    rx.set_msg_order(ORDER);
    rx.set_comp_order(constants::FI_ORDER_STRICT);
    rx.set_size(size(rx_hints.map_or(0, RxAttr::size)));
    rx.set_iov_limit(MESSAGE_IOV_LIMIT);

    let mut domain = info.domain_attr();
    domain.set_name(&CString::new(route.domain.as_str()).map_err(|_| Errno::EINVAL)?)?;
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
    domain.set_mr_mode(mr_mode(hints, version));
    domain.set_mr_key_size(KEY_SIZE);
    domain.set_cq_data_size(DATA_SIZE);
    domain.set_cq_cnt(QUEUES);
    domain.set_cntr_cnt(QUEUES);
    domain.set_ep_cnt(ENDPOINTS);
    domain.set_tx_ctx_cnt(ENDPOINTS);
    domain.set_rx_ctx_cnt(ENDPOINTS);
    domain.set_max_ep_tx_ctx(1);
    domain.set_max_ep_rx_ctx(1);
    domain.set_max_ep_srx_ctx(ENDPOINTS);
    domain.set_mr_iov_limit(1);
    domain.set_mr_cnt(REGIONS);
    domain.set_max_err_data(USER_DATA_MAX);

    info.fabric_attr().set_name(device.fabric)?;
    // A passive endpoint, whose address an endpoint is to take over.
    if let Some(handle) = hints.and_then(InfoRef::handle) {
        info.set_handle(handle);
    }
    Ok(info)
}
