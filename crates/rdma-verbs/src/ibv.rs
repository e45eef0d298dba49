//! RDMA devices through rdma-core: InfiniBand, RoCE and iWARP, hardware or the kernel's own.
//!
//! Types and the inline post and poll calls are those of `rdma-sys`; every function that
//! rdma-core's libraries export is looked up at run time (`library`), so that nothing has to be
//! installed where there is no such device. A value owns each object of the libraries and keeps
//! what the object needs, so that the order of destruction is a matter of ownership.
//!
//! Where the device cannot keep what [`verbs`](super) promises:
//!
//! - Local segments are checked by the device: a wrong one fails its request and breaks the
//!   connection, rather than being refused.
//! - The end of a connection is told as [`ConnectionEvent::Disconnected`](super::ConnectionEvent),
//!   whether it was orderly, cut, or the end of a process, and both directions end at once.
//! - Soft iWARP reports sends and writes that follow a read before the read.
//! - A failed request has the status that the device gives it. Soft iWARP reports a wrong local segment as
//!   [`LocalOperation`](super::CompletionStatus::LocalOperation), soft RoCE a wrong local key and a message that is
//!   longer than its receive. Soft iWARP does not report a read that the peer refuses.
//! - Requests are never held back.

mod cm;
mod completion_queue;
mod connection;
mod deferred;
mod device;
mod library;
mod listener;
mod liveness;
mod memory;
mod post;
mod queue_pair;
mod ring;
mod siw;

use std::net::SocketAddr;
use std::sync::Arc;

use super::{ConnectOptions, DeviceAttributes, EventTarget, Result};

pub use completion_queue::Cq;
pub use listener::{Listener, Request};
pub use memory::{Pd, Region};

/// An RDMA device.
#[derive(Clone)]
pub struct Device(Arc<device::Context>);

impl Device {
    /// The names of this host's devices, as the kernel calls them. None without rdma-core.
    #[must_use]
    pub fn names() -> Vec<String> {
        device::names()
    }

    /// The name of the device that has this address, if one does.
    #[must_use]
    pub fn name_of(address: SocketAddr) -> Option<String> {
        device::owner_of(address)
    }

    /// Opens a device.
    ///
    /// # Errors
    /// [`super::Error::Io`] if there is none of this name, or what the system says.
    pub fn open(name: &str) -> Result<Self> {
        device::Context::open(name).map(Self)
    }
}

impl super::Device for Device {
    const CANCELLATION_POINTS: bool = true;

    type Pd = Pd;
    type Mr = Region;
    type Cq = Cq;
    type Listener = Listener;
    type Request = Request;

    fn attributes(&self) -> DeviceAttributes {
        self.0.attributes.clone()
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
}
