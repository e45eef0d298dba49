//! An RDMA device in memory, for tests of everything above the verbs core.
//!
//! A [`Fabric`] is an isolated network; the [`Device`]s made from one reach each other by the
//! socket addresses that their listeners take, and nothing else does. Queue pairs keep the
//! promises of reliable connected ones, and a [`Config`] chooses among the ways in which real
//! devices differ, so that a consumer meets them all without hardware: no inline data, padded
//! connection data, wake-ups that must be asked for, a wire that takes one message at a time.
//!
//! Three rules hold throughout:
//! - **The owner moves its own memory.** What a peer sends waits in a link until the side that
//!   it is for drives its queue pair; payload is read and placed only there, so that no two threads
//!   touch a [`Memory`](rdma_verbs::Memory) at a time.
//! - **Calls alone decide.** Used from one thread, what happens depends on the order of calls only.
//!   The clock is read for one purpose: the time-out of a connection that nobody answers.
//! - **One lock order**: fabric, listener, link, notifier. Whoever holds one takes only later ones.
//!
//! The device is strict where the verbs contract is vague, so that what works here works elsewhere:
//! a request keeps its place in the queue until a completion that covers it was polled, keys and
//! addresses differ for every region and between local and remote use, and nothing can be posted
//! once either side has ended the connection.

mod completion_queue;
mod config;
mod fabric;
mod link;
mod listener;
mod notifier;
mod queue_pair;
mod region;

use std::net::SocketAddr;

pub use completion_queue::CompletionQueue;
pub use config::Config;
pub use fabric::Fabric;
pub use listener::{ConnectionRequest, Listener};
pub use region::{MemoryRegion, ProtectionDomain};

use rdma_verbs::{self as verbs, ConnectOptions, DeviceAttributes, Error, EventTarget, Result};

/// A device of a [`Fabric`]; cheap to clone.
#[derive(Debug, Clone)]
pub struct Device {
    fabric: Fabric,
    config: Config,
}

impl Device {
    fn new(fabric: Fabric, config: Config) -> Self {
        Self { fabric, config }
    }
}

impl verbs::Device for Device {
    const CANCELLATION_POINTS: bool = false;

    type Pd = ProtectionDomain;
    type Mr = MemoryRegion;
    type Cq = CompletionQueue;
    type Listener = Listener;
    type Request = ConnectionRequest;

    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = DeviceAttributes::new("sim", self.config.transport);
        attributes.immediate = if self.config.immediate { 32 } else { 0 };
        attributes.max_send_depth = self.config.max_send_depth;
        attributes.max_recv_depth = self.config.max_recv_depth;
        attributes.max_private_data = self.config.max_private_data;
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
}
