//! `struct fi_ops_fabric`, in `fid_fabric.ops`: opens domains, passive endpoints and event queues. See
//! [`fi_fabric(3)`](https://ofiwg.github.io/libfabric/main/man/fi_fabric.3.html),
//! [`fi_eq(3)`](https://ofiwg.github.io/libfabric/main/man/fi_eq.3.html) and, for trywait,
//! [`fi_poll(3)`](https://ofiwg.github.io/libfabric/main/man/fi_poll.3.html).

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::Arc;

use super::domain::open;
use super::{Fid, Slot};
use crate::abi::info::InfoRef;
use crate::abi::object::{AnyFid, NewDomain, NewEventQueue, NewPassiveEndpoint};
use crate::abi::{Errno, Result, ffi_boundary, sys};

/// Operations of a fabric.
pub trait FabricOps: Fid {
    /// `fi_domain`.
    ///
    /// # Errors
    /// `-FI_EINVAL` for an info that is not of this fabric.
    fn domain(self: &Arc<Self>, info: InfoRef<'_>) -> Result<NewDomain> {
        let _ = info;
        Err(Errno::ENOSYS)
    }

    /// `fi_passive_ep`.
    ///
    /// # Errors
    /// `-FI_EINVAL` for an info that is not of this fabric.
    fn passive_ep(self: &Arc<Self>, info: InfoRef<'_>) -> Result<NewPassiveEndpoint> {
        let _ = info;
        Err(Errno::ENOSYS)
    }

    /// `fi_eq_open`.
    ///
    /// # Errors
    /// `-FI_ENOSYS` for an unsupported wait object, `-FI_EBADFLAGS`.
    fn eq_open(self: &Arc<Self>, attributes: EqAttr) -> Result<NewEventQueue> {
        let _ = attributes;
        Err(Errno::ENOSYS)
    }

    /// `fi_trywait`: whether the application may wait for the wait objects of all `fids`.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if one of them is ready, `-FI_EINVAL` for an object without a wait object.
    fn trywait(&self, fids: &[AnyFid]) -> Result<()> {
        let _ = fids;
        Err(Errno::ENOSYS)
    }
}

/// `struct fi_eq_attr`: attributes of the requested event queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EqAttr {
    /// Minimum number of events that the queue holds; 0 leaves it to the provider.
    pub size: usize,
    /// Flags: `FI_WRITE`, `FI_AFFINITY`.
    pub flags: u64,
    /// An `enum fi_wait_obj`.
    pub wait_obj: sys::fi_wait_obj,
    /// The processor to interrupt; valid with `FI_AFFINITY`.
    pub signaling_vector: i32,
}

/// The op table.
pub(in crate::abi) const fn table<T: FabricOps>() -> *const sys::fi_ops_fabric {
    const {
        &sys::fi_ops_fabric {
            size: size_of::<sys::fi_ops_fabric>(),
            domain: Some(domain::<T>),
            passive_ep: Some(passive_ep::<T>),
            eq_open: Some(eq_open::<T>),
            wait_open: Slot::UNSUPPORTED,
            trywait: Some(trywait::<T>),
            domain2: Slot::UNSUPPORTED,
        }
    }
}

unsafe extern "C" fn domain<T: FabricOps>(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    out: *mut *mut sys::fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called through the table of a fabric of this type (`ffi_boundary::call`), which checks that
    // `fabric` is not null; `info` and `out` are as `fi_domain(3)` says.
    unsafe {
        ffi_boundary::call::<sys::fid_fabric, T, _, _, _>(fabric, |value, ()| {
            open(out, context, || {
                let mut domain = value.domain(InfoRef::from_raw(info).ok_or(Errno::EINVAL)?)?;
                domain.state().api_version = api_version(fabric);
                Ok(domain)
            })
        })
    }
}

/// The API version that the application requested.
///
/// # Safety
/// `fabric` is a live fabric of this provider.
unsafe fn api_version(fabric: *const sys::fid_fabric) -> u32 {
    // SAFETY: live by the requirement of this function. libfabric writes the field only before the
    // application has the pointer.
    unsafe { (*fabric).api_version }
}

unsafe extern "C" fn passive_ep<T: FabricOps>(
    fabric: *mut sys::fid_fabric,
    info: *mut sys::fi_info,
    out: *mut *mut sys::fid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called through the table of a fabric of this type (`ffi_boundary::call`); `info` and `out`
    // are as `fi_passive_ep(3)` says.
    unsafe {
        ffi_boundary::call::<sys::fid_fabric, T, _, _, _>(fabric, |fabric, ()| {
            open(out, context, || fabric.passive_ep(InfoRef::from_raw(info).ok_or(Errno::EINVAL)?))
        })
    }
}

unsafe extern "C" fn eq_open<T: FabricOps>(
    fabric: *mut sys::fid_fabric,
    attributes: *mut sys::fi_eq_attr,
    out: *mut *mut sys::fid_eq,
    context: *mut c_void,
) -> c_int {
    let body = |value: &Arc<T>, (): &()| {
        // SAFETY: `attributes` is null, or valid during the call by `fi_eq_open(3)`.
        let attributes = unsafe { attributes.as_ref() }.ok_or(Errno::EINVAL)?;
        let attributes = EqAttr {
            size: attributes.size,
            flags: attributes.flags,
            wait_obj: attributes.wait_obj,
            signaling_vector: attributes.signaling_vector,
        };
        let make = || {
            let mut queue = value.eq_open(attributes)?;
            // SAFETY: `ffi_boundary::call` checked that `fabric` is not null, and it is a live fabric of this
            // provider.
            queue.state().api_version = unsafe { api_version(fabric) };
            Ok(queue)
        };
        // SAFETY: `out` is null, or writable by `fi_eq_open(3)`.
        unsafe { open(out, context, make) }
    };
    // SAFETY: called through the table of a fabric of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_fabric, T, _, _, _>(fabric, body) }
}

unsafe extern "C" fn trywait<T: FabricOps>(
    fabric: *mut sys::fid_fabric,
    fids: *mut *mut sys::fid,
    count: c_int,
) -> c_int {
    let body = |value: &Arc<T>, (): &()| {
        let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
        if count == 0 {
            return value.trywait(&[]);
        }
        if fids.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: not null, and `count` fids by `fi_trywait(3)`, unchanged during the call; `AnyFid` is a
        // transparent `struct fid *`.
        value.trywait(unsafe { slice::from_raw_parts(fids.cast::<AnyFid>(), count) })
    };
    // SAFETY: called through the table of a fabric of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_fabric, T, _, _, _>(fabric, body) }
}
