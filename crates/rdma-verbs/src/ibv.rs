//! RDMA devices through rdma-core: InfiniBand, RoCE and iWARP, in hardware or as the kernel's soft RoCE and
//! soft iWARP.
//!
//! `rdma-sys` supplies the types and the inline post and poll calls. The functions that rdma-core's libraries
//! export are looked up at run time (`library`): a host without RDMA devices does not need rdma-core. One
//! Rust value owns each object of the libraries and holds the objects that it depends on, so ownership
//! determines the order of destruction.
//!
//! This device deviates from what the [traits](super) promise:
//!
//! - The device checks local segments. A wrong one fails its request and breaks the connection; the post
//!   succeeds.
//! - Every end of a connection is reported as [`ConnectionEvent::Disconnected`](super::ConnectionEvent): an
//!   orderly end, an abort, or the end of the peer's process. Both directions end at once.
//! - Soft iWARP completes sends and writes before the reads that precede them.
//! - A failed request has the status that the device reports. Soft iWARP reports
//!   [`LocalOperation`](super::CompletionStatus::LocalOperation) for a wrong local segment; soft RoCE reports
//!   it for a wrong local key and for a message that is longer than its receive. Soft iWARP does not report a
//!   read that the peer refuses.
//! - `post_send` ignores `more`: it posts every request at once.
//! - Queue pairs for [messages](super::MessageQueues) exist on InfiniBand and RoCE only. Receives cannot be
//!   cancelled. A receive of a shared queue that its message leaves unfinished becomes the newest one again.

mod cm;
mod completion_queue;
mod connection;
mod device;
mod library;
mod listener;
mod liveness;
mod memory;
mod outstanding;
mod post;
mod queue_pair;
mod shared_queue;
mod siw;

use std::net::SocketAddr;
use std::sync::Arc;

use super::{ConnectOptions, DeviceAttributes, DeviceEvents, EventTarget, Result};

pub use completion_queue::Cq;
pub use listener::{Listener, Request};
pub use memory::{Pd, Region};

/// An RDMA device.
#[derive(Clone)]
pub struct Device(Arc<device::Context>);

impl Device {
    /// The kernel's names of this host's devices. Empty without rdma-core.
    #[must_use]
    pub fn names() -> Vec<String> {
        device::names()
    }

    /// The name of the device that this address belongs to, if there is one.
    #[must_use]
    pub fn name_of(address: SocketAddr) -> Option<String> {
        device::name_by_address(address)
    }

    /// Opens a device.
    ///
    /// # Errors
    /// [`super::Error::Io`] if no device has this name, or if the system refuses.
    pub fn open(name: &str) -> Result<Self> {
        device::Context::open(name).map(Self)
    }
}

impl super::Device for Device {
    const CANCELLATION_POINTS: bool = true;
    const LOCAL_KEYS: bool = true;

    type Pd = Pd;
    type Mr = Region;
    type Cq = Cq;
    type Listener = Listener;
    type Request = Request;

    fn attributes(&self) -> DeviceAttributes {
        self.0.attributes()
    }

    fn alloc_pd(&self) -> Result<Pd> {
        Pd::alloc(&self.0)
    }

    fn create_cq(&self, depth: u32) -> Result<Cq> {
        Cq::create(&self.0, depth)
    }

    fn listen(
        &self,
        address: SocketAddr,
        backlog: u32,
        _options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<Listener> {
        Listener::open(&self.0, address, backlog, &events)
    }

    fn events(&self, target: EventTarget) -> Result<DeviceEvents> {
        self.0.events(&target)
    }
}
