//! A device, and what is made on it without a connection: protection domains and memory regions.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::{
    Access, CompletionQueue, ConnectOptions, ConnectionRequest, Error, EventTarget, Listener, Memory, Result,
};

/// What a device can do, constant over its life.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttributes {
    /// Short name of the kind of device, for messages (`"iwarp"`).
    pub name: &'static str,
    /// Whose rules the connection follows.
    pub transport: Transport,
    /// Bits of the immediate data with which writes and sends can be posted and received; 0: none.
    pub immediate: u8,
    /// Most [places](crate::Place) of one request; 0: there are no queue pairs for
    /// [messages](crate::MessageQueues).
    pub max_places: usize,
    /// Bytes of [`Payload::Inline`](crate::Payload::Inline) that any queue pair is granted that asks for them.
    pub max_inline: usize,
    /// Most entries that a queue pair's send queue can have.
    pub max_send_depth: u32,
    /// Most entries that a queue pair's receive queue can have.
    pub max_recv_depth: u32,
    /// Most bytes of private data in a connection request, reply or reject.
    pub max_private_data: usize,
    /// Longest single message, in bytes.
    pub max_message: u64,
}

impl DeviceAttributes {
    /// Those of a device that can do nothing yet: for implementations in other crates, which say the rest
    /// field by field.
    #[must_use]
    pub const fn new(name: &'static str, transport: Transport) -> Self {
        Self {
            name,
            transport,
            immediate: 0,
            max_places: 0,
            max_inline: 0,
            max_send_depth: 0,
            max_recv_depth: 0,
            max_private_data: 0,
            max_message: 0,
        }
    }
}

/// The transport under a device, as far as a consumer can tell the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand or RoCE: writes with immediate are part of the transport.
    InfiniBand,
    /// iWARP (RFC 5040 to 5044): immediate data only between peers that agreed on RFC 7306.
    Iwarp,
}

/// The depth of a completion queue that always has room for the completions of its queue pairs, as far as the device
/// goes.
pub const ANY_DEPTH: u32 = u32::MAX;

/// An RDMA device.
pub trait Device: Send + Sync + 'static {
    /// Groups memory regions and queue pairs that may work together.
    type Pd: ProtectionDomain<Mr = Self::Mr>;
    /// Memory that the device may read or write.
    type Mr: MemoryRegion;
    /// Completions, and the queue pairs that report them.
    type Cq: CompletionQueue<Pd = Self::Pd, Request = Self::Request>;
    /// A passive endpoint.
    type Listener: Listener<Request = Self::Request>;
    /// A connection that a peer asked for.
    type Request: ConnectionRequest;

    /// Whether sending, receiving and looking for completions may come upon a cancellation point of the C
    /// library (`pthreads(7)`). [`Connections::abort`](crate::Connections::abort) always may.
    const CANCELLATION_POINTS: bool;

    /// Whether [places](crate::Place) have to be [within](crate::Place::within) a registered region, but for those of
    /// a send or write of at most [`DeviceAttributes::max_inline`] bytes.
    const LOCAL_KEYS: bool;

    /// What this device can do.
    fn attributes(&self) -> DeviceAttributes;

    /// Makes a protection domain.
    fn alloc_pd(&self) -> Result<Self::Pd>;

    /// Makes a completion queue that holds up to `depth` completions: at least the sum of the
    /// queue depths of its queue pairs. With [`ANY_DEPTH`] it grows with them.
    fn create_cq(&self, depth: u32) -> Result<Self::Cq>;

    /// Listens on `address` (port 0: any free port). `backlog` bounds the connections that are
    /// not asked for by [`Listener::poll`] yet, those in a handshake included.
    fn listen(
        &self,
        address: SocketAddr,
        backlog: u32,
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<Self::Listener>;
}

/// A protection domain: memory regions and queue pairs work together only within one.
pub trait ProtectionDomain: Send + Sync {
    /// The regions made here.
    type Mr: MemoryRegion;

    /// Registers `memory` with the given rights. Local reading is always allowed.
    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<Self::Mr>;

    /// Registers `memory` under keys and addresses that the consumer chooses. A key that it chooses can be guessed by
    /// every peer of the domain's queue pairs, and may be used again at once after its region.
    ///
    /// # Errors
    /// [`Error::KeyTaken`]; [`Error::Unsupported`] where the device chooses.
    fn register_as(&self, memory: Arc<Memory>, access: Access, name: RegionName) -> Result<Self::Mr> {
        let _ = (memory, access, name);
        Err(Error::Unsupported("keys and addresses that the consumer chooses"))
    }
}

/// What a consumer chooses of a region's name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegionName {
    /// Its key, local and remote; `None`: the device draws one.
    pub key: Option<NonZeroU32>,
    /// Address of its first byte.
    pub address: u64,
}

/// Registered memory. The keys die with the value; the memory lives at least as long.
pub trait MemoryRegion: Send + Sync {
    /// Key for local use, in [`Segment`](crate::Segment).
    fn local_key(&self) -> u32;
    /// Key for a peer's use, in [`RemoteAddress`](crate::RemoteAddress): rkey or STag.
    fn remote_key(&self) -> u32;
    /// Address of the region's first byte, for [`Segment`](crate::Segment) and
    /// [`RemoteAddress`](crate::RemoteAddress). A device may count from zero rather than tell peers where
    /// memory lies.
    fn address(&self) -> u64;
    /// The memory itself.
    fn memory(&self) -> &Arc<Memory>;
    /// RDMA writes of peers that were placed in it, as far as the device counts them.
    fn writes(&self) -> u64 {
        0
    }
}
