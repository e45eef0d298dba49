//! The domain: an opened device.

use std::any::TypeId;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::abi::info::{DomainAttr, RxAttr};
use crate::abi::{
    CntrAttr, CqAttr, DomainOps, Errno, Fid, InfoRef, NewCompletionQueue, NewCounter, NewEndpoint,
    NewMemoryRegion, NewSharedReceive, PayloadPlaces, Registration, Result,
};
use rdma_verbs::process::Maker;
use rdma_verbs::{Device, iwarp};
use rstream_session::Linger;

use super::children::{Child, Children};
use super::config::Config;
use super::endpoint::Endpoint;
use super::fabric::Fabric;
use super::message::{
    self, completion_queue::CompletionQueue, counter::Counter, engine::Engine, region::Naming,
    region::Region, shared_receive::SharedReceive,
};

/// An open domain. Each stream endpoint has its own protection domain, so the keys that one peer knows give
/// no other peer access. Message endpoints share one, because a memory region of libfabric belongs to the
/// domain.
pub(super) struct Domain<D: Device> {
    device: D,
    /// The engine of message endpoints, created on first use.
    engine: Mutex<Option<Arc<Engine<D>>>>,
    naming: Naming,
    /// Keeps the fabric open.
    _fabric: Arc<Fabric<D>>,
    children: Children,
    maker: Maker,
    membership: Mutex<Option<Child>>,
}

impl<D: Device> Domain<D> {
    /// Opens the domain of `fabric` that `info` names.
    pub(super) fn open(fabric: Arc<Fabric<D>>, info: InfoRef<'_>) -> Result<Arc<Self>> {
        let device = fabric.device(info)?;
        let membership = Mutex::new(Some(fabric.children().join()));
        let children = Children::default();
        let naming = Naming::of(info.domain_attr().map_or(0, DomainAttr::mr_mode), D::LOCAL_KEYS);
        let engine = Mutex::new(None);
        if Self::shares_memory() && !message::info::is_of_messages(info) {
            // It takes milliseconds in a process of several threads. So not when a connection is waited for.
            rstream_session::prepare();
        }
        Ok(Arc::new(Self {
            device,
            engine,
            naming,
            _fabric: fabric,
            children,
            maker: Maker::this_process(),
            membership,
        }))
    }

    /// Whether streams may share memory with peers on this host. A process that chose an RDMA device stays on
    /// it.
    pub(super) fn shares_memory() -> bool {
        Config::get().shared_memory && Self::is_embedded()
    }

    /// Whether the device is the embedded one.
    fn is_embedded() -> bool {
        TypeId::of::<D>() == TypeId::of::<iwarp::Device>()
    }

    /// The engine of its message endpoints.
    pub(super) fn engine(&self) -> Result<Arc<Engine<D>>> {
        let mut engine = self.engine.lock();
        if engine.is_none() {
            *engine = Some(Arc::new(Engine::new(&self.device)?));
        }
        engine.clone().ok_or(Errno::EIO)
    }

    /// Waits, as long as [`Linger`] allows, for output of closed message endpoints.
    fn linger(&self) {
        let Some(engine) = self.engine.lock().take() else { return };
        let mut linger = Linger::since(Instant::now(), Config::get().linger);
        while engine.lock().is_lingering() {
            if !linger.wait() {
                break;
            }
        }
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
        if self.maker.is_this_process() {
            self.linger();
        }
        *self.membership.lock() = None;
        Ok(())
    }
}

impl<D: Device> DomainOps for Domain<D> {
    fn endpoint(self: &Arc<Self>, info: InfoRef<'_>) -> Result<NewEndpoint> {
        if message::info::is_of_messages(info) {
            let endpoint = message::endpoint::Endpoint::open(self, info)?;
            let sends_tags = endpoint.sends_tags();
            return Ok(NewEndpoint::message_endpoint(endpoint, sends_tags));
        }
        Ok(NewEndpoint::stream_endpoint(Endpoint::open(Arc::clone(self), info)?))
    }

    fn srx_context(self: &Arc<Self>, attributes: Option<RxAttr<'_>>) -> Result<NewSharedReceive> {
        let shared = SharedReceive::open(self.engine()?, attributes, self.children.join())?;
        Ok(NewSharedReceive::shared_receive(shared))
    }

    fn cq_open(self: &Arc<Self>, attributes: CqAttr) -> Result<NewCompletionQueue> {
        let queue = CompletionQueue::open(self.engine()?, attributes, self.children.join())?;
        Ok(NewCompletionQueue::completion_queue(queue))
    }

    fn cntr_open(self: &Arc<Self>, attributes: CntrAttr) -> Result<NewCounter> {
        Ok(NewCounter::counter(Counter::open(self.engine()?, attributes, self.children.join())?))
    }

    fn place_payloads(&self, places: PayloadPlaces) -> Result<()> {
        // An RDMA device takes receives in registered memory only.
        if !Self::is_embedded() || !message::rxm::bounds_messages() {
            return Err(Errno::ENOSYS);
        }
        self.engine()?.lock().payload_places = Some(places);
        Ok(())
    }

    fn register(self: &Arc<Self>, registration: Registration<'_>) -> Result<NewMemoryRegion> {
        Region::register(self.engine()?, self.naming, &registration, self.children.join())
    }
}
