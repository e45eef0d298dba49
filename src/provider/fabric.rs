//! The fabric: devices of one kind, chosen by name, and the event queues of their endpoints.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::abi::{
    AnyFid, EqAttr, Errno, FabricOps, Fid, InfoRef, NewDomain, NewEventQueue, NewPassiveEndpoint, Result,
    constants,
};
use rdma_verbs::Device;

use super::children::Children;
use super::domain::Domain;
use super::endpoint::Endpoint;
use super::event_queue::EventQueue;
use super::message::completion_queue::CompletionQueue;
use super::message::counter::Counter;
use super::passive_endpoint::PassiveEndpoint;
use super::request::Requests;

/// An open fabric.
pub(super) struct Fabric<D: Device> {
    /// Opens the device of a domain, by the domain's name.
    open: fn(&str) -> Result<D>,
    children: Children,
    /// Connection requests that the application knows, of passive endpoints that are closed.
    pub(super) orphans: Mutex<Requests<D>>,
}

impl<D: Device> Fabric<D> {
    /// A fabric whose devices `open` opens by the names of their domains.
    pub(super) fn new(open: fn(&str) -> Result<D>) -> Arc<Self> {
        Arc::new(Self { open, children: Children::default(), orphans: Mutex::default() })
    }

    /// The device of the domain that an info names.
    pub(super) fn device(&self, info: InfoRef<'_>) -> Result<D> {
        let name = info.domain_attr().map_or(Ok(None), |domain| domain.name())?;
        (self.open)(name.unwrap_or_default())
    }

    /// Its open children.
    pub(super) fn children(&self) -> &Children {
        &self.children
    }
}

impl<D: Device> Fid for Fabric<D> {
    fn close(&self) -> Result<()> {
        self.children.require_none()?;
        self.orphans.lock().abandon_after(Duration::ZERO);
        Ok(())
    }
}

impl<D: Device> FabricOps for Fabric<D> {
    fn domain(self: &Arc<Self>, info: InfoRef<'_>) -> Result<NewDomain> {
        Ok(NewDomain::domain(Domain::open(Arc::clone(self), info)?))
    }

    fn passive_ep(self: &Arc<Self>, info: InfoRef<'_>) -> Result<NewPassiveEndpoint> {
        Ok(NewPassiveEndpoint::passive_endpoint(PassiveEndpoint::open(Arc::clone(self), info)?))
    }

    fn eq_open(self: &Arc<Self>, attr: EqAttr) -> Result<NewEventQueue> {
        match attr.wait_obj {
            constants::FI_WAIT_NONE | constants::FI_WAIT_UNSPEC | constants::FI_WAIT_FD => {}
            _ => return Err(Errno::ENOSYS),
        }
        Ok(NewEventQueue::event_queue(Arc::new(EventQueue::open(self.children.join())?)))
    }

    fn trywait(&self, fids: &[AnyFid]) -> Result<()> {
        let mut wait = true;
        for fid in fids {
            let busy = if let Some(endpoint) = fid.downcast::<Endpoint<D>>() {
                endpoint.must_not_wait()?
            } else if let Some(queue) = fid.downcast::<EventQueue>() {
                queue.must_not_wait()
            } else if let Some(queue) = fid.downcast::<CompletionQueue<D>>() {
                queue.must_not_wait()
            } else if let Some(counter) = fid.downcast::<Counter<D>>() {
                counter.must_not_wait()
            } else {
                return Err(Errno::EINVAL);
            };
            wait &= !busy;
        }
        if wait { Ok(()) } else { Err(Errno::EAGAIN) }
    }
}
