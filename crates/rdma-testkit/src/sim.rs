//! An RDMA device in memory, for tests of everything above `rdma-verbs`.
//!
//! A [`Fabric`] is an isolated network. The [`Device`]s of one fabric reach each other by the socket
//! addresses of their listeners. Queue pairs behave like reliable connected ones. A [`Config`] selects the
//! properties in which real devices differ, so that a consumer is tested with all of them without hardware:
//! no inline data, padded private data, a wait set that must be armed, a wire that holds one message.
//!
//! Three rules hold throughout:
//! - **Each side accesses only its own memory.** A peer's frames wait in the link until their receiver drives
//!   its queue pair. Only the receiver places payload, so two threads never access one
//!   [`Memory`](rdma_verbs::Memory) at the same time.
//! - **The order of calls determines everything**, if they come from one thread. The clock is read only for
//!   the time-out of connection attempts.
//! - **One lock order**: fabric, listener, link, notifier. A thread that holds one takes only later ones.
//!
//! Where the contract of `rdma-verbs` allows several behaviours, this device has the strictest one, so that a
//! consumer that works here works on every device. A request occupies its queue until a completion that
//! covers it is polled. Keys and addresses differ for every region, and keys differ between local and remote
//! use. Nothing can be posted once either side has ended the connection.

mod completion_queue;
mod config;
mod fabric;
mod link;
mod listener;
mod notifier;
mod queue_pair;
mod region;

use std::net::SocketAddr;
use std::sync::Arc;

pub use completion_queue::CompletionQueue;
pub use config::Config;
pub use fabric::Fabric;
pub use listener::{ConnectionRequest, Listener};
pub use region::{MemoryRegion, ProtectionDomain};

use rdma_verbs::{
    self as verbs, ConnectOptions, DeviceAttributes, DeviceEvent, DeviceEventSender, DeviceEvents, Error,
    EventTarget, PrivateDataLimits, Result,
};

/// A device of a [`Fabric`]; cheap to clone.
#[derive(Debug, Clone)]
pub struct Device {
    fabric: Fabric,
    config: Config,
    events: Arc<DeviceEventSender>,
}

impl Device {
    fn new(fabric: Fabric, config: Config) -> Self {
        Self { fabric, config, events: Arc::default() }
    }

    /// Reports an event of the device. It has no other effect.
    pub fn report(&self, event: DeviceEvent) {
        self.events.send(event);
    }
}

impl verbs::Device for Device {
    const CANCELLATION_POINTS: bool = false;
    const LOCAL_KEYS: bool = false;

    type Pd = ProtectionDomain;
    type Mr = MemoryRegion;
    type Cq = CompletionQueue;
    type Listener = Listener;
    type Request = ConnectionRequest;

    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = DeviceAttributes::new("sim", self.config.transport);
        attributes.immediate = self.config.immediate;
        attributes.max_places = self.config.max_places;
        attributes.max_inline = self.config.inline;
        attributes.max_inline_depth = self.config.max_send_depth;
        attributes.max_send_depth = self.config.max_send_depth;
        attributes.max_recv_depth = self.config.max_recv_depth;
        attributes.max_srq_depth = self.config.max_srq_depth;
        attributes.max_completions = u32::MAX;
        attributes.max_any_depth = u32::MAX;
        attributes.private_data = PrivateDataLimits::same(self.config.max_private_data);
        attributes.max_message = u64::from(self.config.max_message);
        attributes
    }

    fn alloc_pd(&self) -> Result<ProtectionDomain> {
        Ok(ProtectionDomain::new(self.fabric.clone()))
    }

    fn create_cq(&self, depth: u32) -> Result<CompletionQueue> {
        if depth == 0 {
            return Err(Error::OutOfRange {
                what: "completion queue depth",
                value: 0,
                least: 1,
                most: u64::from(u32::MAX),
            });
        }
        Ok(CompletionQueue::new(self.fabric.clone(), self.config.clone(), depth))
    }

    fn listen(
        &self,
        address: SocketAddr,
        backlog: u32,
        _options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<Listener> {
        Listener::new(&self.fabric, &self.config, address, backlog, events)
    }

    fn events(&self, target: EventTarget) -> Result<DeviceEvents> {
        Ok(self.events.subscribe(&target))
    }
}
