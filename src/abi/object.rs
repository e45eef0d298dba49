//! Objects that an application holds by pointer: a C fid struct, followed by the Rust value.
//!
//! A constructor of [`New`] creates an object in a box, whose address is the C pointer. The object lives
//! until `fi_close` succeeds. The value lives as long as an [`Arc`] refers to it. Where C code passes a
//! pointer as an argument, [`AnyFid`] looks it up in the registry of live objects before reading through it.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::completion::CqState;
use super::err_data::ErrorState;
use super::ops::{
    self, CmOps, CntrOps, CqOps, DomainOps, EndpointOps, EqOps, FabricOps, Fid, MessageOps, RmaOps, StatsOps,
    StreamOps, TaggedOps,
};
use super::{fork, registry, sys};

/// A C fid struct, which begins with `struct fid`.
///
/// # Safety
/// `Self` must be `repr(C)` with a `struct fid` as its first field.
pub unsafe trait FidStruct: Sized + 'static {
    /// State that the FFI boundary stores beside the value of such an object.
    type State: Default + Send + Sync;
}

/// State that the FFI boundary stores for a domain.
#[derive(Default)]
pub struct DomainState {
    /// The API version that the application requested, which libfabric stores in the fabric.
    pub(super) api_version: u32,
}

// SAFETY: declared in `fabric.h`, `fi_domain.h`, `fi_endpoint.h` and `fi_eq.h` with `struct fid fid`
// first; the generated types are `repr(C)`.
unsafe impl FidStruct for sys::fid_fabric {
    type State = ();
}
// SAFETY: as above.
unsafe impl FidStruct for sys::fid_domain {
    type State = DomainState;
}
// SAFETY: as above.
unsafe impl FidStruct for sys::fid_mr {
    type State = ();
}
// SAFETY: as above.
unsafe impl FidStruct for sys::fid_cntr {
    type State = ();
}
// SAFETY: as above.
unsafe impl FidStruct for sys::fid_cq {
    type State = CqState;
}
// SAFETY: as above.
unsafe impl FidStruct for sys::fid_ep {
    type State = ();
}
// SAFETY: as above.
unsafe impl FidStruct for sys::fid_pep {
    type State = ();
}
// SAFETY: as above.
unsafe impl FidStruct for sys::fid_eq {
    type State = ErrorState;
}

/// A call panicked, and the value may be inconsistent.
pub(super) const POISONED: u32 = 0;

/// The memory behind a C pointer that the provider returned.
#[repr(C)]
pub(super) struct Object<S: FidStruct, T> {
    /// The first field, so that a pointer to it is a pointer to the object. C code writes to it
    /// (`fid.context`, `fid_fabric.api_version`), so Rust never holds a reference to it.
    fid: UnsafeCell<S>,
    /// The generation of the process that created the object ([`fork::generation`]), or [`POISONED`].
    pub(super) usable_in: AtomicU32,
    pub(super) state: S::State,
    pub(super) value: Arc<T>,
}

impl<S: FidStruct, T> Object<S, T> {
    pub(super) fn boxed(fid: S, value: Arc<T>) -> Box<Self> {
        let usable_in = AtomicU32::new(fork::generation());
        Box::new(Self { fid: UnsafeCell::new(fid), usable_in, state: S::State::default(), value })
    }
}

/// An object whose value type is erased, before it is passed to the application.
trait HandOut<S: FidStruct> {
    fn state(&mut self) -> &mut S::State;
    fn hand_out(self: Box<Self>, context: *mut c_void) -> *mut S;
}

impl<S: FidStruct, T: Fid> HandOut<S> for Object<S, T> {
    fn state(&mut self) -> &mut S::State {
        &mut self.state
    }

    fn hand_out(self: Box<Self>, context: *mut c_void) -> *mut S {
        let value = Arc::clone(&self.value);
        let object = Box::into_raw(self);
        let fid = object.cast::<sys::fid>();
        // SAFETY: `object` comes from a box and begins with a `struct fid` (`FidStruct`, `repr(C)`).
        // No other thread has the address yet.
        unsafe { (*fid).context = context };
        value.opened(FidHandle { fid, context });
        registry::insert(fid, value);
        object.cast()
    }
}

/// A new object that an opening call returns, before it is passed to the application. Dropping it drops the
/// value.
pub struct New<S: FidStruct>(Box<dyn HandOut<S>>);

/// Result of [`super::Provider::fabric`].
pub type NewFabric = New<sys::fid_fabric>;
/// Result of [`FabricOps::domain`].
pub type NewDomain = New<sys::fid_domain>;
/// Result of [`DomainOps::endpoint`].
pub type NewEndpoint = New<sys::fid_ep>;
/// Result of [`DomainOps::srx_context`].
pub type NewSharedReceive = New<sys::fid_ep>;
/// Result of [`DomainOps::cq_open`].
pub type NewCompletionQueue = New<sys::fid_cq>;
/// Result of [`DomainOps::cntr_open`].
pub type NewCounter = New<sys::fid_cntr>;
/// Result of [`DomainOps::register`].
pub type NewMemoryRegion = New<sys::fid_mr>;
/// Result of [`FabricOps::passive_ep`].
pub type NewPassiveEndpoint = New<sys::fid_pep>;
/// Result of [`FabricOps::eq_open`].
pub type NewEventQueue = New<sys::fid_eq>;

/// The `struct fid` of a new object. Class numbers are small, so the cast is lossless.
pub(super) fn new_fid<S: FidStruct, T: Fid>(class: u32) -> sys::fid {
    sys::fid { fclass: class as usize, context: ptr::null_mut(), ops: ops::fid::table::<S, T>().cast_mut() }
}

/// The `struct fid` of a new active endpoint, which has statistics.
fn endpoint_fid<T: StatsOps>() -> sys::fid {
    let ops = ops::stats::fid_table::<T>().cast_mut();
    sys::fid { ops, ..new_fid::<sys::fid_ep, T>(sys::FI_CLASS_EP) }
}

impl New<sys::fid_fabric> {
    /// Creates a fabric.
    pub fn fabric<T: FabricOps>(value: Arc<T>) -> Self {
        let fid = sys::fid_fabric {
            fid: new_fid::<sys::fid_fabric, T>(sys::FI_CLASS_FABRIC),
            ops: ops::fabric::table::<T>().cast_mut(),
            api_version: 0,
        };
        Self(Object::boxed(fid, value))
    }
}

impl New<sys::fid_domain> {
    /// Creates a domain.
    pub fn domain<T: DomainOps>(value: Arc<T>) -> Self {
        let fid = sys::fid_domain {
            fid: sys::fid {
                ops: ops::payload_places::fid_table::<T>().cast_mut(),
                ..new_fid::<sys::fid_domain, T>(sys::FI_CLASS_DOMAIN)
            },
            ops: ops::domain::table::<T>().cast_mut(),
            mr: ops::mr::table::<T>().cast_mut(),
        };
        Self(Object::boxed(fid, value))
    }
}

impl New<sys::fid_ep> {
    /// Creates an endpoint of a byte stream.
    pub fn stream_endpoint<T: EndpointOps + CmOps + StreamOps + StatsOps>(value: Arc<T>) -> Self {
        let fid = endpoint_fid::<T>();
        let data = (ops::stream::table::<T>(), ops::rma::unsupported(), ops::tagged::unsupported());
        Self::with_data(fid, data, value)
    }

    /// Creates an endpoint of messages, with the calls with tags or without.
    pub fn message_endpoint<T>(value: Arc<T>, tags: bool) -> Self
    where
        T: EndpointOps + CmOps + MessageOps + RmaOps + TaggedOps + StatsOps,
    {
        let fid = endpoint_fid::<T>();
        let tagged = if tags { ops::tagged::table::<T>() } else { ops::tagged::unsupported() };
        Self::with_data(fid, (ops::message::table::<T>(), ops::rma::table::<T>(), tagged), value)
    }

    /// Creates a shared receive context. Of [`CmOps`] it needs nothing, and of [`MessageOps`]
    /// [`post_recv`](MessageOps::post_recv).
    pub fn shared_receive<T: EndpointOps + CmOps + MessageOps>(value: Arc<T>) -> Self {
        let fid = new_fid::<sys::fid_ep, T>(sys::FI_CLASS_SRX_CTX);
        let data = (ops::message::table::<T>(), ops::rma::unsupported(), ops::tagged::unsupported());
        Self::with_data(fid, data, value)
    }

    fn with_data<T: EndpointOps + CmOps>(
        fid: sys::fid,
        (msg, rma, tagged): (*const sys::fi_ops_msg, *const sys::fi_ops_rma, *const sys::fi_ops_tagged),
        value: Arc<T>,
    ) -> Self {
        let fid = sys::fid_ep {
            fid,
            ops: ops::endpoint::table::<sys::fid_ep, T>().cast_mut(),
            cm: ops::cm::table::<sys::fid_ep, T>().cast_mut(),
            msg: msg.cast_mut(),
            rma: rma.cast_mut(),
            tagged: tagged.cast_mut(),
            atomic: ops::atomic::table().cast_mut(),
            collective: ops::collective::table().cast_mut(),
        };
        Self(Object::boxed(fid, value))
    }
}

impl New<sys::fid_cq> {
    /// Creates a completion queue.
    pub fn completion_queue<T: CqOps>(value: Arc<T>) -> Self {
        let fid = sys::fid_cq {
            fid: new_fid::<sys::fid_cq, T>(sys::FI_CLASS_CQ),
            ops: ops::cq::table::<T>().cast_mut(),
        };
        Self(Object::boxed(fid, value))
    }
}

impl New<sys::fid_cntr> {
    /// Creates a counter.
    pub fn counter<T: CntrOps>(value: Arc<T>) -> Self {
        let fid = sys::fid_cntr {
            fid: new_fid::<sys::fid_cntr, T>(sys::FI_CLASS_CNTR),
            ops: ops::cntr::table::<T>().cast_mut(),
        };
        Self(Object::boxed(fid, value))
    }
}

impl New<sys::fid_mr> {
    /// Creates a memory region with the key by which peers name it, and the local key, by which calls name
    /// it as local memory: that is its descriptor.
    pub fn memory_region<T: Fid>(value: Arc<T>, key: u64, local_key: u32) -> Self {
        let fid = new_fid::<sys::fid_mr, T>(sys::FI_CLASS_MR);
        let mem_desc = ptr::without_provenance_mut(local_key as usize);
        Self(Object::boxed(sys::fid_mr { fid, mem_desc, key }, value))
    }
}

impl New<sys::fid_pep> {
    /// Creates a passive endpoint.
    pub fn passive_endpoint<T: EndpointOps + CmOps>(value: Arc<T>) -> Self {
        let fid = sys::fid_pep {
            fid: new_fid::<sys::fid_pep, T>(sys::FI_CLASS_PEP),
            ops: ops::endpoint::table::<sys::fid_pep, T>().cast_mut(),
            cm: ops::cm::table::<sys::fid_pep, T>().cast_mut(),
        };
        Self(Object::boxed(fid, value))
    }
}

impl New<sys::fid_eq> {
    /// Creates an event queue.
    pub fn event_queue<T: EqOps>(value: Arc<T>) -> Self {
        let fid = sys::fid_eq {
            fid: new_fid::<sys::fid_eq, T>(sys::FI_CLASS_EQ),
            ops: ops::eq::table::<T>().cast_mut(),
        };
        Self(Object::boxed(fid, value))
    }
}

impl<S: FidStruct> New<S> {
    /// The state that the FFI boundary stores beside the value.
    pub(super) fn state(&mut self) -> &mut S::State {
        self.0.state()
    }

    /// Passes the object to the application: returns the pointer, which `fi_close` frees.
    pub(crate) fn hand_out(self, context: *mut c_void) -> *mut S {
        self.0.hand_out(context)
    }
}

/// The identity of an object in events: its fid, and the context that the application passed when it
/// opened the object. Invalid after the object is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FidHandle {
    pub(super) fid: *mut sys::fid,
    pub(super) context: *mut c_void,
}

#[cfg(test)]
impl FidHandle {
    /// A handle of no object.
    pub fn of_nothing() -> Self {
        Self { fid: ptr::null_mut(), context: ptr::null_mut() }
    }
}

// SAFETY: two addresses that are passed back to C and never dereferenced here.
unsafe impl Send for FidHandle {}
// SAFETY: as above.
unsafe impl Sync for FidHandle {}

/// A fid that C code passed as an argument. It may be of any class and any provider, closed, or invalid.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct AnyFid(pub(super) *mut sys::fid);

impl AnyFid {
    /// The value, if this is a live object of this provider whose value is a `T`.
    #[must_use]
    pub fn downcast<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        registry::find(self.0)
    }

    /// Whether this is the fid of the object with `handle`.
    #[must_use]
    pub fn is(&self, handle: FidHandle) -> bool {
        self.0 == handle.fid
    }
}

impl std::fmt::Debug for AnyFid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "fid {:p}", self.0)
    }
}

/// The handle of a connection request: a fid of class `FI_CLASS_CONNREQ`. The application receives it as
/// `fi_info.handle` ([`super::Info::set_handle`]) and passes it to `fi_endpoint` and `fi_reject`
/// ([`AnyFid::downcast`]).
///
/// The application cannot close it. The owner of this value decides how long the handle is valid; dropping
/// the value invalidates the handle.
#[derive(Debug)]
pub struct ConnectionHandle(NonNull<sys::fid>);

// SAFETY: owns a boxed `struct fid`. Only its address is used here, its fields do not change after
// its creation, and it is not tied to a thread.
unsafe impl Send for ConnectionHandle {}
// SAFETY: as above; a shared reference gives access to the address only.
unsafe impl Sync for ConnectionHandle {}

impl ConnectionHandle {
    /// Creates a handle for `value`.
    #[must_use]
    pub fn new<T: Send + Sync + 'static>(value: Arc<T>) -> Self {
        let fid = sys::fid {
            fclass: sys::FI_CLASS_CONNREQ as usize,
            context: ptr::null_mut(),
            ops: ops::fid::unsupported().cast_mut(),
        };
        let fid = NonNull::from(Box::leak(Box::new(fid)));
        registry::insert(fid.as_ptr(), value);
        Self(fid)
    }

    /// The fid as C code passes it.
    #[must_use]
    pub fn as_fid(&self) -> AnyFid {
        AnyFid(self.0.as_ptr())
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        registry::remove(self.0.as_ptr());
        // SAFETY: leaked from a box in `new` and freed only here. Nothing dereferences the address any
        // more: C code passes it on without reading, and it is no longer in the registry.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
