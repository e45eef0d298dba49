//! The domain: an opened device.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::{DomainOps, Fid, InfoRef, NewEndpoint, Result};
use crate::verbs::Device;

use super::children::{Child, Children};
use super::endpoint::Endpoint;
use super::error::errno_of;
use super::fabric::Fabric;

/// An open domain: endpoints opened in it share a protection domain.
pub(super) struct Domain<D: Device> {
    fabric: Arc<Fabric<D>>,
    pd: D::Pd,
    children: Children,
    membership: Mutex<Option<Child>>,
}

impl<D: Device> Domain<D> {
    /// Opens a domain of `fabric`.
    pub(super) fn open(fabric: Arc<Fabric<D>>) -> Result<Arc<Self>> {
        let pd = fabric.device().alloc_pd().map_err(errno_of)?;
        let membership = Mutex::new(Some(fabric.children().join()));
        let children = Children::default();
        Ok(Arc::new(Self { fabric, pd, children, membership }))
    }

    /// The device.
    pub(super) fn device(&self) -> &D {
        self.fabric.device()
    }

    /// The protection domain of everything opened here.
    pub(super) fn pd(&self) -> &D::Pd {
        &self.pd
    }

    /// What is open in it.
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
        Ok(NewEndpoint::endpoint(Endpoint::open(Arc::clone(self), info)?))
    }
}
