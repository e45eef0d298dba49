//! Any device, with seeded faults: what a real device may do by the contract, and seldom does.
//!
//! A [`Faulty`] device wraps another one and, as its [`Plan`] says, holds completions back, refuses
//! posts, wakes without reason, grants less, and breaks or ends connections. Everything that it does
//! is allowed by [`rdma_verbs`], so a consumer that follows the contract survives it. Each
//! completion queue draws from a generator of its own, so one seed gives one course of events for
//! one order of calls, however many threads there are. Without faults in the plan it is transparent.

mod completion_queue;
mod dice;
mod plan;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use completion_queue::CompletionQueue;
pub use plan::Plan;

use dice::Dice;
use rdma_verbs::{ConnectOptions, Device, DeviceAttributes, EventTarget, Result};

/// A device with faults.
#[derive(Debug, Clone)]
pub struct Faulty<D> {
    device: D,
    plan: Plan,
    queues: Arc<AtomicU64>,
}

impl<D: Device> Faulty<D> {
    /// Wraps `device`.
    #[must_use]
    pub fn new(device: D, plan: Plan) -> Self {
        Self { device, plan, queues: Arc::default() }
    }
}

impl<D: Device> Device for Faulty<D> {
    const CANCELLATION_POINTS: bool = D::CANCELLATION_POINTS;

    type Pd = D::Pd;
    type Mr = D::Mr;
    type Cq = CompletionQueue<D::Cq>;
    type Listener = D::Listener;
    type Request = D::Request;

    fn attributes(&self) -> DeviceAttributes {
        self.device.attributes()
    }

    fn alloc_pd(&self) -> Result<D::Pd> {
        self.device.alloc_pd()
    }

    fn create_cq(&self, depth: u32) -> Result<Self::Cq> {
        let queue = self.queues.fetch_add(1, Ordering::Relaxed);
        let dice = Dice::new(self.plan.seed, queue);
        Ok(CompletionQueue::new(self.device.create_cq(depth)?, self.plan.clone(), dice))
    }

    fn listen(
        &self,
        address: SocketAddr,
        backlog: u32,
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<D::Listener> {
        self.device.listen(address, backlog, options, events)
    }
}
