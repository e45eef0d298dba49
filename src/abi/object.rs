//! Objects that an application holds by pointer: a C fid struct first, the Rust value behind it.
//!
//! An object is made by one of the constructors of [`New`], named for what they make; it is boxed,
//! and its address is the C pointer. It lives until `fi_close` succeeds; the value lives as long as
//! anyone has it ([`Arc`]). Where C code passes a pointer that it merely found, [`AnyFid`] asks the
//! registry of live objects before anything behind the pointer is read.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use super::ops::{self, CmOps, DomainOps, EndpointOps, EqOps, FabricOps, Fid, MsgOps, StatsOps};
use super::{fork, registry, sys};

/// A C fid struct: begins with `struct fid`.
///
/// # Safety
/// `Self` must be `repr(C)` with a `struct fid` as its first field.
pub unsafe trait FidStruct: Sized + 'static {
    /// What the border keeps beside the value of such an object.
    type State: Default + Send + Sync;
}

/// What the border keeps of an event queue.
#[derive(Default)]
pub struct EqState {
    /// The API version that the application asked for, as libfabric noted it in the fabric.
    pub(super) api_version: u32,
    /// What the `err_data` of the error read last points to: valid until the next is read.
    pub(super) err_data: Mutex<Vec<u8>>,
}

// SAFETY: declared in `fabric.h`, `fi_domain.h`, `fi_endpoint.h` and `fi_eq.h` with `struct fid fid`
// first; the generated types are `repr(C)`.
unsafe impl FidStruct for sys::fid_fabric {
    type State = ();
}
// SAFETY: as above.
unsafe impl FidStruct for sys::fid_domain {
    type State = ();
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
    type State = EqState;
}

/// A call panicked: what the value holds may be half changed.
pub(super) const POISONED: u32 = 0;

/// What lies behind a C pointer of ours.
#[repr(C)]
pub(super) struct Object<S: FidStruct, T> {
    /// First, so that a pointer to it is a pointer to the object. C code writes into it
    /// (`fid.context`, `fid_fabric.api_version`), so nobody ever has a reference to it.
    fid: UnsafeCell<S>,
    /// The generation of the process that made it ([`fork::generation`]), or [`POISONED`].
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

/// Lets go of the Rust type of an object on its way to the application.
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
        // SAFETY: `object` was just a box, and begins with a `struct fid` (`FidStruct`, `repr(C)`).
        // Nobody else knows the address yet.
        unsafe { (*fid).context = context };
        value.opened(FidHandle { fid, context });
        registry::insert(fid, value);
        object.cast()
    }
}

/// A new object on its way to the application: what an opening call answers. Dropped instead, it
/// takes the value with it.
pub struct New<S: FidStruct>(Box<dyn HandOut<S>>);

/// Answer of [`super::Provider::fabric`].
pub type NewFabric = New<sys::fid_fabric>;
/// Answer of [`FabricOps::domain`].
pub type NewDomain = New<sys::fid_domain>;
/// Answer of [`DomainOps::endpoint`].
pub type NewEndpoint = New<sys::fid_ep>;
/// Answer of [`FabricOps::passive_ep`].
pub type NewPassiveEndpoint = New<sys::fid_pep>;
/// Answer of [`FabricOps::eq_open`].
pub type NewEventQueue = New<sys::fid_eq>;

/// The `struct fid` of a new object. Class numbers are small, so the cast loses nothing.
pub(super) fn new_fid<S: FidStruct, T: Fid>(class: u32) -> sys::fid {
    sys::fid { fclass: class as usize, context: ptr::null_mut(), ops: ops::fid::table::<S, T>().cast_mut() }
}

impl New<sys::fid_fabric> {
    /// A fabric.
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
    /// A domain.
    pub fn domain<T: DomainOps>(value: Arc<T>) -> Self {
        let fid = sys::fid_domain {
            fid: new_fid::<sys::fid_domain, T>(sys::FI_CLASS_DOMAIN),
            ops: ops::domain::table::<T>().cast_mut(),
            mr: ops::mr::table().cast_mut(),
        };
        Self(Object::boxed(fid, value))
    }
}

impl New<sys::fid_ep> {
    /// An active endpoint.
    pub fn endpoint<T: EndpointOps + CmOps + MsgOps + StatsOps>(value: Arc<T>) -> Self {
        let fid = sys::fid_ep {
            fid: sys::fid {
                ops: ops::stats::fid_table::<T>().cast_mut(),
                ..new_fid::<sys::fid_ep, T>(sys::FI_CLASS_EP)
            },
            ops: ops::endpoint::table::<sys::fid_ep, T>().cast_mut(),
            cm: ops::cm::table::<sys::fid_ep, T>().cast_mut(),
            msg: ops::msg::table::<T>().cast_mut(),
            rma: ops::rma::table().cast_mut(),
            tagged: ops::tagged::table().cast_mut(),
            atomic: ops::atomic::table().cast_mut(),
            collective: ops::collective::table().cast_mut(),
        };
        Self(Object::boxed(fid, value))
    }
}

impl New<sys::fid_pep> {
    /// A passive endpoint.
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
    /// An event queue.
    pub fn event_queue<T: EqOps>(value: Arc<T>) -> Self {
        let fid = sys::fid_eq {
            fid: new_fid::<sys::fid_eq, T>(sys::FI_CLASS_EQ),
            ops: ops::eq::table::<T>().cast_mut(),
        };
        Self(Object::boxed(fid, value))
    }
}

impl<S: FidStruct> New<S> {
    /// What the border keeps beside the value.
    pub(super) fn state(&mut self) -> &mut S::State {
        self.0.state()
    }

    /// Makes it the application's: answers the pointer that `fi_close` takes back.
    pub(super) fn hand_out(self, context: *mut c_void) -> *mut S {
        self.0.hand_out(context)
    }
}

/// What an object needs to know of itself to be named in events: its fid, and the context that the
/// application gave when it opened it. Names nothing any more once the object is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FidHandle {
    pub(super) fid: *mut sys::fid,
    pub(super) context: *mut c_void,
}

#[cfg(test)]
impl FidHandle {
    /// One that names nothing.
    pub fn of_nothing() -> Self {
        Self { fid: ptr::null_mut(), context: ptr::null_mut() }
    }
}

// SAFETY: two addresses that are given back to C and never followed from here.
unsafe impl Send for FidHandle {}
// SAFETY: as above.
unsafe impl Sync for FidHandle {}

/// A fid that C code passed: of any class and any provider, closed already, or nonsense.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct AnyFid(pub(super) *mut sys::fid);

impl AnyFid {
    /// The value, if this is a live object of ours whose value is a `T`.
    #[must_use]
    pub fn downcast<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        registry::find(self.0)
    }

    /// Whether this names the object that got `handle`.
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

/// A connection request that an application may name: a fid of class `FI_CLASS_CONNREQ`, which
/// goes out as `fi_info.handle` ([`super::Info::set_handle`]) and comes back in `fi_endpoint` and
/// `fi_reject` ([`AnyFid::downcast`]).
///
/// It is not the application's to close: whoever has this value decides how long the request can be
/// named. Dropping it makes the pointer one that names nothing.
#[derive(Debug)]
pub struct ConnectionHandle(NonNull<sys::fid>);

// SAFETY: owns a boxed `struct fid`, of which only the address is used here and whose fields are
// not written after it was made; it has no tie to a thread.
unsafe impl Send for ConnectionHandle {}
// SAFETY: as above; through a shared reference only the address can be had.
unsafe impl Sync for ConnectionHandle {}

impl ConnectionHandle {
    /// Makes `value` something that an application can name.
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

    /// The fid, as C code passes it.
    #[must_use]
    pub fn as_fid(&self) -> AnyFid {
        AnyFid(self.0.as_ptr())
    }
}

impl Drop for ConnectionHandle {
    fn drop(&mut self) {
        registry::remove(self.0.as_ptr());
        // SAFETY: leaked from a box in `new` and freed only here. Nothing follows the address any
        // more: C code passes it on unread, and the registry no longer knows it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
