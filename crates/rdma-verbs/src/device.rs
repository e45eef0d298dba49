//! A device, and the objects that need no connection: protection domains and memory regions.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::{
    Access, CompletionQueue, ConnectOptions, ConnectionRequest, DeviceEvents, Error, EventTarget, Listener,
    Memory, Result,
};

/// The capabilities of a device. They are constant over its life.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Short name of the kind of device, for messages (`"iwarp"`).
    pub name: &'static str,
    /// The transport of its connections.
    pub transport: Transport,
    /// Number of bits of immediate data that writes and sends can carry; 0: none.
    pub immediate: u8,
    /// Maximum number of [places](crate::Place) of one request; 0: there are no queue pairs for
    /// [messages](crate::MessageQueues).
    pub max_places: usize,
    /// Number of bytes of [`Payload::Inline`](crate::Payload::Inline) that a queue pair whose send queue has at most
    /// `max_inline_depth` entries is granted if it requests them.
    pub max_inline: usize,
    /// See `max_inline`. Adapters keep the inline bytes in the entries, and may have no room for them in a longer queue.
    pub max_inline_depth: u32,
    /// Maximum number of entries of a send queue.
    pub max_send_depth: u32,
    /// Maximum number of entries of a receive queue.
    pub max_recv_depth: u32,
    /// Maximum number of entries of a [shared receive queue](crate::MessageQueues::create_srq); 0: there are
    /// none.
    pub max_srq_depth: u32,
    /// Maximum number of entries of a completion queue. A queue pair takes as many as its queues have, and
    /// one more at most; a shared receive queue takes as many as it has.
    pub max_completions: u32,
    /// Maximum number of entries of a completion queue of [`ANY_DEPTH`], which may be less than `max_completions` if the
    /// device cannot resize its queues.
    pub max_any_depth: u32,
    /// Maximum number of bytes of private data.
    pub private_data: PrivateDataLimits,
    /// Longest single message, in bytes.
    pub max_message: u64,
    /// Whether an RDMA Read into a region needs [`Access::LOCAL_WRITE`] only. With iWARP adapters the region
    /// needs [`Access::REMOTE_WRITE`] too, because the peer's response is tagged with its remote key.
    pub private_read_sinks: bool,
}

impl DeviceAttributes {
    /// Attributes without any capability. Implementations in other crates set the fields that they need.
    #[must_use]
    pub const fn new(name: &'static str, transport: Transport) -> Self {
        Self {
            name,
            transport,
            immediate: 0,
            max_places: 0,
            max_inline: 0,
            max_inline_depth: 0,
            max_send_depth: 0,
            max_recv_depth: 0,
            max_srq_depth: 0,
            max_completions: 0,
            max_any_depth: 0,
            private_data: PrivateDataLimits::same(0),
            max_message: 0,
            private_read_sinks: true,
        }
    }
}

/// Maximum number of bytes of private data in each kind of message of a connection's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrivateDataLimits {
    /// In a connection request.
    pub request: usize,
    /// In the reply that accepts it.
    pub reply: usize,
    /// In the reject. What is longer is cut.
    pub reject: usize,
}

impl PrivateDataLimits {
    /// The same limit for each kind.
    #[must_use]
    pub const fn same(most: usize) -> Self {
        Self { request: most, reply: most, reject: most }
    }

    /// What fits in each kind.
    #[must_use]
    pub fn least(&self) -> usize {
        self.request.min(self.reply).min(self.reject)
    }
}

/// The transport of a device, as far as it matters to a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand or RoCE: writes with immediate are part of the transport.
    InfiniBand,
    /// iWARP (RFC 5040 to 5044): immediate data only between peers that agreed on RFC 7306.
    Iwarp,
}

/// The depth of a completion queue that always has room for the completions of its queue pairs, within the
/// limits of the device.
pub const ANY_DEPTH: u32 = u32::MAX;

/// An RDMA device.
pub trait Device: Send + Sync + 'static {
    /// A protection domain.
    type Pd: ProtectionDomain<Mr = Self::Mr>;
    /// A registered memory region.
    type Mr: MemoryRegion;
    /// A completion queue with its queue pairs.
    type Cq: CompletionQueue<Pd = Self::Pd, Request = Self::Request>;
    /// A listener.
    type Listener: Listener<Request = Self::Request>;
    /// A connection request of a peer.
    type Request: ConnectionRequest;

    /// Whether calls on a completion queue may meet a cancellation point of the C library (`pthreads(7)`).
    const CANCELLATION_POINTS: bool;

    /// Whether [places](crate::Place) have to be [within](crate::Place::within) a registered region, except
    /// those of a send or write of at most [`DeviceAttributes::max_inline`] bytes.
    const LOCAL_KEYS: bool;

    /// Returns the capabilities of this device.
    fn attributes(&self) -> DeviceAttributes;

    /// Allocates a protection domain.
    fn alloc_pd(&self) -> Result<Self::Pd>;

    /// Creates a completion queue for up to `depth` completions: at least the sum of the queue depths of its
    /// queue pairs. With [`ANY_DEPTH`] it grows with them.
    fn create_cq(&self, depth: u32) -> Result<Self::Cq>;

    /// Listens on `address` (port 0: any free port). `backlog` bounds the connections, including those in a
    /// handshake, that [`Listener::poll`] has not returned yet.
    fn listen(
        &self,
        address: SocketAddr,
        backlog: u32,
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<Self::Listener>;

    /// The events of the device from now on. A device without hardware has none.
    fn events(&self, target: EventTarget) -> Result<DeviceEvents> {
        let _ = target;
        Ok(DeviceEvents::none())
    }
}

/// A protection domain: memory regions and queue pairs work together only within one.
pub trait ProtectionDomain: Send + Sync {
    /// The type of its regions.
    type Mr: MemoryRegion;

    /// Registers `memory` with the given rights. Local reading is always allowed.
    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<Self::Mr>;

    /// Registers `memory` under a key and an address that the consumer chooses. Every peer of the domain's
    /// queue pairs can guess such a key, and it may be used again immediately after its region is dropped. No peer can
    /// invalidate it.
    ///
    /// # Errors
    /// [`Error::KeyTaken`]; [`Error::Unsupported`] if the device chooses keys and addresses.
    fn register_as(&self, memory: Arc<Memory>, access: Access, name: RegionName) -> Result<Self::Mr> {
        let _ = (memory, access, name);
        Err(Error::Unsupported("keys and addresses that the consumer chooses"))
    }
}

/// The part of a region's name that a consumer chooses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionName {
    /// Its local and remote key; `None`: the device draws one.
    pub key: Option<NonZeroU32>,
    /// Address of its first byte.
    pub address: u64,
}

/// Registered memory. Dropping it invalidates its keys. The memory lives at least as long.
pub trait MemoryRegion: Send + Sync {
    /// Key for local use, in [`Segment`](crate::Segment).
    fn local_key(&self) -> u32;
    /// Key for a peer's use, in [`RemoteAddress`](crate::RemoteAddress): rkey or STag.
    fn remote_key(&self) -> u32;
    /// Address of the region's first byte, for [`Segment`](crate::Segment) and
    /// [`RemoteAddress`](crate::RemoteAddress). A device may count from zero so that peers do not learn where
    /// the memory is.
    fn address(&self) -> u64;
    /// The memory itself.
    fn memory(&self) -> &Arc<Memory>;
    /// Number of RDMA Writes of peers that were placed in it, if the device counts them.
    fn writes(&self) -> u64 {
        0
    }
}
