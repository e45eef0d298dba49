//! What the message endpoints of a device can do, from the attributes of the device.

use crate::abi::{MESSAGE_IOV_LIMIT, constants};
#[cfg(doc)]
use rdma_verbs::Device;
use rdma_verbs::{DeviceAttributes, Transport};
use rstream_protocol::hello;

/// Longest `fi_inject` on any device, in bytes.
const INJECT_SIZE: usize = 4096;
/// Longest message, in bytes.
const MAX_MESSAGE: usize = u32::MAX as usize;
/// Bits from 60 on are flags between the parts of libfabric. They ask for nothing here.
pub(super) const OWN_FLAGS: u64 = !0 << 60;
/// Flags of operations that send.
pub(super) const OP_FLAGS: u64 = constants::FI_INJECT
    | constants::FI_COMPLETION
    | constants::FI_INJECT_COMPLETE
    | constants::FI_TRANSMIT_COMPLETE
    | constants::FI_DELIVERY_COMPLETE;
/// Largest depths of queues.
const SIZE_MAX: usize = 1 << 17;
const SHARED_SIZE_MAX: usize = 1 << 16;
/// Maximum number of endpoints of a domain.
const ENDPOINTS: usize = 32_768;
/// Number of unread writes of peers with data from which on a completion queue of this size or less makes further
/// ones wait. They take no receives that would bound them. Few in unit tests, so that these reach it.
const UNREAD_WRITES: usize = if cfg!(test) { 4 } else { 1 << 18 };
/// Entries of a send queue beside those of the application's operations: an operation may be several
/// requests.
pub(super) const SPARE: u32 = 16;

/// See the module. Sizes are in bytes.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Limits {
    /// Longest `fi_inject`.
    pub(super) inject: usize,
    pub(super) max_message: usize,
    /// Largest depths of an endpoint's queues, and of a shared receive context.
    pub(super) tx_size: usize,
    pub(super) rx_size: usize,
    pub(super) shared_size: usize,
    /// Largest depth of a send queue of the device.
    pub(super) send_depth: u32,
    /// Number of completions that may be outstanding in a domain.
    completions: usize,
    /// Pieces of memory of a call.
    pub(super) iovs: usize,
    /// Size of the data of a completion, and of a region's key.
    pub(super) data_size: usize,
    pub(super) key_size: usize,
    /// Size of the application's connection data.
    pub(super) user_data: usize,
    pub(super) protocol: u32,
    /// Whether the device accesses memory by itself ([`Device::LOCAL_KEYS`]). Then local memory has to be
    /// registered, the device draws the keys, addresses are virtual, writes of peers are not counted, and a
    /// write with data takes a receive.
    pub(super) is_direct: bool,
}

impl Limits {
    /// Those of a device; `None` if it has no message endpoints.
    pub(in super::super) fn of(device: &DeviceAttributes, is_direct: bool) -> Option<Self> {
        if device.max_places == 0 {
            return None;
        }
        let send_depth = device.max_send_depth.min(device.max_inline_depth);
        let tx_size = send_depth.saturating_sub(SPARE) as usize;
        Some(Self {
            inject: device.max_inline.min(INJECT_SIZE),
            max_message: usize::try_from(device.max_message).unwrap_or(usize::MAX).min(MAX_MESSAGE),
            tx_size: tx_size.min(SIZE_MAX),
            rx_size: (device.max_recv_depth as usize).min(SIZE_MAX),
            shared_size: (device.max_srq_depth as usize).min(SHARED_SIZE_MAX),
            send_depth,
            completions: device.max_any_depth as usize,
            iovs: device.max_places.min(MESSAGE_IOV_LIMIT),
            data_size: usize::from(device.immediate / 8),
            key_size: if is_direct { size_of::<u32>() } else { size_of::<u64>() },
            user_data: hello::room(device.private_data.least()),
            protocol: match device.transport {
                Transport::InfiniBand => constants::FI_PROTO_RDMA_CM_IB_RC,
                Transport::Iwarp => constants::FI_PROTO_IWARP,
            },
            is_direct,
        })
    }

    /// Number of unread writes of peers with data from which on a completion queue makes further ones wait, if
    /// the application asked for this size.
    pub(super) fn unread_writes(size: usize) -> usize {
        size.max(UNREAD_WRITES)
    }

    /// Number of endpoints of a domain whose queues have these depths; `rx` is 0 with a shared receive
    /// context.
    pub(super) fn endpoints(&self, tx: usize, rx: usize) -> usize {
        // A queue pair may take one completion more than it has entries.
        (self.completions / (tx + SPARE as usize + rx + 1)).min(ENDPOINTS)
    }
}
