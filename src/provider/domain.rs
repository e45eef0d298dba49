//! The domain: an opened device.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{DomainOps, Fid, InfoRef, NewEndpoint, Result};
use rdma_verbs::Device;

use super::children::{Child, Children};
use super::endpoint::Endpoint;
use super::fabric::Fabric;

/// An open domain. Each endpoint has a protection domain of its own, so that the keys that one peer is told
/// give no other peer access.
pub(super) struct Domain<D: Device> {
    device: D,
    /// Keeps the fabric open.
    _fabric: Arc<Fabric<D>>,
    children: Children,
    membership: Mutex<Option<Child>>,
}

impl<D: Device> Domain<D> {
    /// Opens the domain of `fabric` that `info` names.
    pub(super) fn open(fabric: Arc<Fabric<D>>, info: InfoRef<'_>) -> Result<Arc<Self>> {
        let device = fabric.device(info)?;
        let membership = Mutex::new(Some(fabric.children().join()));
        let children = Children::default();
        Ok(Arc::new(Self { device, _fabric: fabric, children, membership }))
    }

    /// The device.
    pub(super) fn device(&self) -> &D {
        &self.device
    }

    /// Its open children.
    pub(super) fn children(&self) -> &Children {
        &self.children
    }
}

impl<D: Device> Fid for Domain<D> {
    fn close(&self) -> Result<()> {
        self.children.require_none()?;
        *self.membership.lock() = None;
        Ok(())
    }
}

impl<D: Device> DomainOps for Domain<D> {
    fn endpoint(self: &Arc<Self>, info: InfoRef<'_>) -> Result<NewEndpoint> {
        Ok(NewEndpoint::stream_endpoint(Endpoint::open(Arc::clone(self), info)?))
    }
}
