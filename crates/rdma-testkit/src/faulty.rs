//! Any device, with seeded faults: what the contract of [`rdma_verbs`] allows and real devices rarely do.
//!
//! A [`Faulty`] device wraps another one. Its [`Plan`] determines how often it holds completions back,
//! refuses posts, wakes its caller without reason, grants less than requested, and breaks or ends
//! connections. The contract allows all of this, so a consumer that follows the contract continues to work.
//! Each completion queue has its own random generator: one seed and one order of its calls give one sequence
//! of events, however many threads there are. A device whose plan has no faults behaves like the wrapped one.

mod completion_queue;
mod plan;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use completion_queue::CompletionQueue;
pub use plan::Plan;

use crate::random::Random;
use rdma_verbs::{ConnectOptions, Device, DeviceAttributes, DeviceEvents, EventTarget, Result};

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
    const LOCAL_KEYS: bool = D::LOCAL_KEYS;

    type Pd = D::Pd;
    type Mr = D::Mr;
    type Cq = CompletionQueue<D::Cq>;
    type Listener = D::Listener;
    type Request = D::Request;

    fn attributes(&self) -> DeviceAttributes {
        let mut attributes = self.device.attributes();
        if self.plan.small_inline > 0 {
            // No number of bytes is granted with certainty.
            attributes.max_inline = 0;
        }
        attributes
    }

    fn alloc_pd(&self) -> Result<D::Pd> {
        self.device.alloc_pd()
    }

    fn create_cq(&self, depth: u32) -> Result<Self::Cq> {
        let queue = self.queues.fetch_add(1, Ordering::Relaxed);
        let random = Random::new(self.plan.seed, queue);
        Ok(CompletionQueue::new(self.device.create_cq(depth)?, self.plan.clone(), random))
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

    fn events(&self, target: EventTarget) -> Result<DeviceEvents> {
        self.device.events(target)
    }
}
