//! The devices of this machine, and one type for all of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::{
    Access, Completion, CompletionQueue, ConnectOptions, ConnectionEvent, ConnectionRequest, Connections,
    Device, DeviceAttributes, DeviceEvents, EventTarget, Listener, Memory, MemoryRegion, MessageQueues,
    PeerAccesses, ProtectionDomain, QpCapabilities, QpId, QueuePairs, RecvQueue, RecvRequest, RegionName,
    Result, SendRequest, SrqId, WaitSet, iwarp,
};
#[cfg(feature = "ibv")]
use crate::{Error, ibv};

/// A device of this machine, which can be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceInfo {
    /// A device of rdma-core, by the kernel's name.
    #[cfg(feature = "ibv")]
    Ibv(String),
    /// The embedded device.
    Embedded,
}

/// The devices of this machine: those of rdma-core first, with the feature `ibv`, and last the embedded one,
/// which every machine has.
#[must_use]
pub fn devices() -> Vec<DeviceInfo> {
    #[cfg(feature = "ibv")]
    let adapters = ibv::Device::names().into_iter().map(DeviceInfo::Ibv);
    #[cfg(not(feature = "ibv"))]
    let adapters = std::iter::empty();
    adapters.chain([DeviceInfo::Embedded]).collect()
}

impl DeviceInfo {
    /// The kernel's name of it, or `iwarp`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            #[cfg(feature = "ibv")]
            Self::Ibv(name) => name,
            Self::Embedded => "iwarp",
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if it is gone, or if the system refuses. None for the embedded device.
    pub fn open(&self) -> Result<AnyDevice> {
        match self {
            #[cfg(feature = "ibv")]
            Self::Ibv(name) => ibv::Device::open(name).map(AnyDevice::Ibv),
            Self::Embedded => Ok(AnyDevice::Embedded(iwarp::Device::default())),
        }
    }
}

/// Declares a type that is one of the devices' types.
macro_rules! any {
    ($(#[$doc:meta])* $name:ident, $ibv:ty, $embedded:ty) => {
        $(#[$doc])*
        #[allow(clippy::large_enum_variant, reason = "there are few of them, and they are not moved often")]
        #[non_exhaustive]
        pub enum $name {
            /// Of a device of rdma-core.
            #[cfg(feature = "ibv")]
            Ibv($ibv),
            /// Of the embedded device.
            Embedded($embedded),
        }
    };
}

/// Evaluates an expression with the value that one of these types has.
macro_rules! each {
    ($any:expr, $name:ident, $value:ident => $body:expr) => {
        match $any {
            #[cfg(feature = "ibv")]
            $name::Ibv($value) => $body,
            $name::Embedded($value) => $body,
        }
    };
}

/// Evaluates an expression with the value that one of these types has, and wraps its outcome in another one.
macro_rules! wrap {
    ($any:expr, $name:ident, $value:ident => $body:expr, $into:ident) => {
        match $any {
            #[cfg(feature = "ibv")]
            $name::Ibv($value) => $into::Ibv($body),
            $name::Embedded($value) => $into::Embedded($body),
        }
    };
}

any! {
    /// A device of this machine: one of rdma-core, or the embedded one.
    #[derive(Clone)]
    AnyDevice, ibv::Device, iwarp::Device
}
any! {
    /// A protection domain of [`AnyDevice`].
    AnyPd, ibv::Pd, iwarp::ProtectionDomain
}
any! {
    /// A memory region of [`AnyDevice`].
    AnyRegion, ibv::Region, iwarp::MemoryRegion
}
any! {
    /// A completion queue of [`AnyDevice`].
    AnyCq, ibv::Cq, iwarp::CompletionQueue
}
any! {
    /// A listener of [`AnyDevice`].
    AnyListener, ibv::Listener, iwarp::Listener
}
any! {
    /// A connection request of [`AnyDevice`].
    AnyRequest, ibv::Request, iwarp::ConnectionRequest
}

impl From<iwarp::Device> for AnyDevice {
    fn from(device: iwarp::Device) -> Self {
        Self::Embedded(device)
    }
}

#[cfg(feature = "ibv")]
impl From<ibv::Device> for AnyDevice {
    fn from(device: ibv::Device) -> Self {
        Self::Ibv(device)
    }
}

impl Device for AnyDevice {
    type Pd = AnyPd;
    type Mr = AnyRegion;
    type Cq = AnyCq;
    type Listener = AnyListener;
    type Request = AnyRequest;

    // What holds for one of them.
    const CANCELLATION_POINTS: bool = cfg!(feature = "ibv");
    const LOCAL_KEYS: bool = cfg!(feature = "ibv");

    fn attributes(&self) -> DeviceAttributes {
        each!(self, Self, device => device.attributes())
    }

    fn alloc_pd(&self) -> Result<AnyPd> {
        Ok(wrap!(self, Self, device => device.alloc_pd()?, AnyPd))
    }

    fn create_cq(&self, depth: u32) -> Result<AnyCq> {
        Ok(wrap!(self, Self, device => device.create_cq(depth)?, AnyCq))
    }

    fn listen(
        &self,
        address: SocketAddr,
        backlog: u32,
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<AnyListener> {
        Ok(wrap!(self, Self, device => device.listen(address, backlog, options, events)?, AnyListener))
    }

    fn events(&self, target: EventTarget) -> Result<DeviceEvents> {
        each!(self, Self, device => device.events(target))
    }
}

impl ProtectionDomain for AnyPd {
    type Mr = AnyRegion;

    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<AnyRegion> {
        Ok(wrap!(self, Self, pd => pd.register(memory, access)?, AnyRegion))
    }

    fn register_as(&self, memory: Arc<Memory>, access: Access, name: RegionName) -> Result<AnyRegion> {
        Ok(wrap!(self, Self, pd => pd.register_as(memory, access, name)?, AnyRegion))
    }
}

impl MemoryRegion for AnyRegion {
    fn local_key(&self) -> u32 {
        each!(self, Self, region => region.local_key())
    }

    fn remote_key(&self) -> u32 {
        each!(self, Self, region => region.remote_key())
    }

    fn address(&self) -> u64 {
        each!(self, Self, region => region.address())
    }

    fn memory(&self) -> &Arc<Memory> {
        each!(self, Self, region => region.memory())
    }

    fn writes(&self) -> u64 {
        each!(self, Self, region => region.writes())
    }
}

/// The error for objects of two devices in one call.
#[cfg(feature = "ibv")]
const MIXED: Error = Error::Unsupported("objects of another device");

impl QueuePairs for AnyCq {
    type Pd = AnyPd;

    fn create_qp(&mut self, pd: &AnyPd, wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)> {
        match (self, pd) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(cq), AnyPd::Ibv(pd)) => cq.create_qp(pd, wanted),
            (Self::Embedded(cq), AnyPd::Embedded(pd)) => cq.create_qp(pd, wanted),
            #[cfg(feature = "ibv")]
            _ => Err(MIXED),
        }
    }

    fn destroy_qp(&mut self, qp: QpId) {
        each!(self, Self, cq => cq.destroy_qp(qp));
    }

    #[inline]
    fn post_recv(&mut self, qp: QpId, requests: &[RecvRequest<'_>]) -> Result<()> {
        each!(self, Self, cq => cq.post_recv(qp, requests))
    }

    #[inline]
    fn post_send(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        each!(self, Self, cq => cq.post_send(qp, requests, more))
    }
}

impl MessageQueues for AnyCq {
    fn create_message_qp(
        &mut self,
        pd: &AnyPd,
        wanted: QpCapabilities,
        shared: Option<SrqId>,
    ) -> Result<(QpId, QpCapabilities)> {
        match (self, pd) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(cq), AnyPd::Ibv(pd)) => cq.create_message_qp(pd, wanted, shared),
            (Self::Embedded(cq), AnyPd::Embedded(pd)) => cq.create_message_qp(pd, wanted, shared),
            #[cfg(feature = "ibv")]
            _ => Err(MIXED),
        }
    }

    fn create_shared_qp(
        &mut self,
        pd: &AnyPd,
        wanted: QpCapabilities,
        srq: SrqId,
    ) -> Result<(QpId, QpCapabilities)> {
        match (self, pd) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(cq), AnyPd::Ibv(pd)) => cq.create_shared_qp(pd, wanted, srq),
            (Self::Embedded(cq), AnyPd::Embedded(pd)) => cq.create_shared_qp(pd, wanted, srq),
            #[cfg(feature = "ibv")]
            _ => Err(MIXED),
        }
    }

    fn create_srq(&mut self, pd: &AnyPd, depth: u32) -> Result<SrqId> {
        match (self, pd) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(cq), AnyPd::Ibv(pd)) => cq.create_srq(pd, depth),
            (Self::Embedded(cq), AnyPd::Embedded(pd)) => cq.create_srq(pd, depth),
            #[cfg(feature = "ibv")]
            _ => Err(MIXED),
        }
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        each!(self, Self, cq => cq.destroy_srq(srq))
    }

    fn post_srq_recv(&mut self, srq: SrqId, requests: &[RecvRequest<'_>]) -> Result<()> {
        each!(self, Self, cq => cq.post_srq_recv(srq, requests))
    }

    fn cancel_recv(&mut self, queue: RecvQueue, id: u64) -> bool {
        each!(self, Self, cq => cq.cancel_recv(queue, id))
    }

    fn send_room(&self, qp: QpId) -> Option<usize> {
        each!(self, Self, cq => cq.send_room(qp))
    }

    fn has_sends(&self, qp: QpId) -> bool {
        each!(self, Self, cq => cq.has_sends(qp))
    }

    fn give_up(&mut self, qp: QpId) -> bool {
        each!(self, Self, cq => cq.give_up(qp))
    }

    fn end_events(&mut self, qp: QpId) {
        each!(self, Self, cq => cq.end_events(qp));
    }

    fn post_corked(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        each!(self, Self, cq => cq.post_corked(qp, requests, more))
    }

    fn uncork(&mut self) {
        each!(self, Self, cq => cq.uncork());
    }

    fn has_ended(&self, qp: QpId) -> bool {
        each!(self, Self, cq => cq.has_ended(qp))
    }

    fn peer_ended(&self, qp: QpId) -> bool {
        each!(self, Self, cq => cq.peer_ended(qp))
    }

    fn awaits_peer(&self, qp: QpId) -> bool {
        each!(self, Self, cq => cq.awaits_peer(qp))
    }

    fn hold_writes(&mut self, qp: QpId, hold: bool) {
        each!(self, Self, cq => cq.hold_writes(qp, hold));
    }

    fn count_accesses(&mut self, qp: QpId) -> Option<Arc<PeerAccesses>> {
        each!(self, Self, cq => cq.count_accesses(qp))
    }

    fn stalls(&mut self, qp: QpId) -> u64 {
        each!(self, Self, cq => cq.stalls(qp))
    }
}

impl Connections for AnyCq {
    type Request = AnyRequest;

    fn connect(
        &mut self,
        qp: QpId,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        each!(self, Self, cq => cq.connect(qp, remote, local, private_data, options, events))
    }

    fn accept(
        &mut self,
        qp: QpId,
        request: AnyRequest,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        match (self, request) {
            #[cfg(feature = "ibv")]
            (Self::Ibv(cq), AnyRequest::Ibv(request)) => {
                cq.accept(qp, request, private_data, options, events)
            }
            (Self::Embedded(cq), AnyRequest::Embedded(request)) => {
                cq.accept(qp, request, private_data, options, events)
            }
            #[cfg(feature = "ibv")]
            _ => Err(MIXED),
        }
    }

    fn disconnect(&mut self, qp: QpId) {
        each!(self, Self, cq => cq.disconnect(qp));
    }

    fn abort(&mut self, qp: QpId) {
        each!(self, Self, cq => cq.abort(qp));
    }

    fn flushed(&mut self, qp: QpId) -> bool {
        each!(self, Self, cq => cq.flushed(qp))
    }

    fn poll_event(&mut self, qp: QpId) -> Option<ConnectionEvent> {
        each!(self, Self, cq => cq.poll_event(qp))
    }

    fn deadline(&self, qp: QpId) -> Option<Instant> {
        each!(self, Self, cq => cq.deadline(qp))
    }

    fn local_address(&self, qp: QpId) -> Option<SocketAddr> {
        each!(self, Self, cq => cq.local_address(qp))
    }

    fn peer_address(&self, qp: QpId) -> Option<SocketAddr> {
        each!(self, Self, cq => cq.peer_address(qp))
    }
}

impl CompletionQueue for AnyCq {
    #[inline]
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        each!(self, Self, cq => cq.poll(out))
    }

    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()> {
        each!(self, Self, cq => cq.attach(wait))
    }

    fn arm(&mut self) -> Result<bool> {
        each!(self, Self, cq => cq.arm())
    }

    fn arm_for_others(&mut self) {
        each!(self, Self, cq => cq.arm_for_others());
    }

    fn watch(&mut self, qp: QpId, wait: &Arc<WaitSet>) -> Result<bool> {
        each!(self, Self, cq => cq.watch(qp, wait))
    }

    fn unwatch(&mut self, qp: QpId, wait: &Arc<WaitSet>) -> bool {
        each!(self, Self, cq => cq.unwatch(qp, wait))
    }

    fn take_waiting(&mut self, out: &mut [Completion]) -> usize {
        each!(self, Self, cq => cq.take_waiting(out))
    }
}

impl Listener for AnyListener {
    type Request = AnyRequest;

    fn local_address(&self) -> SocketAddr {
        each!(self, Self, listener => listener.local_address())
    }

    fn poll(&mut self) -> Option<AnyRequest> {
        Some(wrap!(self, Self, listener => listener.poll()?, AnyRequest))
    }

    fn deadline(&self) -> Option<Instant> {
        each!(self, Self, listener => listener.deadline())
    }
}

impl ConnectionRequest for AnyRequest {
    fn private_data(&self) -> &[u8] {
        each!(self, Self, request => request.private_data())
    }

    fn peer_address(&self) -> SocketAddr {
        each!(self, Self, request => request.peer_address())
    }

    fn local_address(&self) -> SocketAddr {
        each!(self, Self, request => request.local_address())
    }

    fn has_left(&self) -> bool {
        each!(self, Self, request => request.has_left())
    }

    fn reject(self, private_data: &[u8]) {
        each!(self, Self, request => request.reject(private_data));
    }
}
