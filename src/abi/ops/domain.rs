//! `struct fi_ops_domain`, in `fid_domain.ops`: opens endpoints, shared receive contexts, completion queues
//! and counters. Address vectors serve endpoints without connections. See
//! [`fi_domain(3)`](https://ofiwg.github.io/libfabric/main/man/fi_domain.3.html) and
//! [`fi_endpoint(3)`](https://ofiwg.github.io/libfabric/main/man/fi_endpoint.3.html).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::{CntrAttr, CqAttr, Fid, PayloadPlaces, Registration, Slot};
use crate::abi::info::{InfoRef, RxAttr};
use crate::abi::object::{
    DomainState, FidStruct, New, NewCompletionQueue, NewCounter, NewEndpoint, NewMemoryRegion,
    NewSharedReceive,
};
use crate::abi::{Errno, Result, ffi_boundary, sys};

/// Operations of a domain.
pub trait DomainOps: Fid {
    /// `fi_endpoint`.
    ///
    /// # Errors
    /// `-FI_EINVAL` for an info of another domain.
    fn endpoint(self: &Arc<Self>, info: InfoRef<'_>) -> Result<NewEndpoint> {
        let _ = info;
        Err(Errno::ENOSYS)
    }

    /// `fi_srx_context`. Without `attributes`, the defaults apply.
    ///
    /// # Errors
    /// `-FI_EINVAL` for attributes beyond those of the domain.
    fn srx_context(self: &Arc<Self>, attributes: Option<RxAttr<'_>>) -> Result<NewSharedReceive> {
        let _ = attributes;
        Err(Errno::ENOSYS)
    }

    /// `fi_cq_open`.
    ///
    /// # Errors
    /// `-FI_ENOSYS` for an unsupported wait object, `-FI_EBADFLAGS`.
    fn cq_open(self: &Arc<Self>, attributes: CqAttr) -> Result<NewCompletionQueue> {
        let _ = attributes;
        Err(Errno::ENOSYS)
    }

    /// `fi_cntr_open`.
    ///
    /// # Errors
    /// `-FI_ENOSYS` for unsupported events or an unsupported wait object, `-FI_EBADFLAGS`.
    fn cntr_open(self: &Arc<Self>, attributes: CntrAttr) -> Result<NewCounter> {
        let _ = attributes;
        Err(Errno::ENOSYS)
    }

    /// `fi_mr_reg`, `fi_mr_regv`, `fi_mr_regattr`.
    ///
    /// # Errors
    /// `-FI_ENOKEY` if the requested key is in use, `-FI_EKEYREJECTED` if it is invalid, `-FI_EINVAL`,
    /// `-FI_EBADFLAGS`, `-FI_ENOMEM`.
    fn register(self: &Arc<Self>, registration: Registration<'_>) -> Result<NewMemoryRegion> {
        let _ = registration;
        Err(Errno::ENOSYS)
    }

    /// `fi_set_ops` of `ofi_rxm`: payload of endpoints and shared receive contexts that are opened from now on goes where
    /// it tells.
    ///
    /// # Errors
    /// `-FI_ENOSYS`: it does not.
    fn place_payloads(&self, places: PayloadPlaces) -> Result<()> {
        let _ = places;
        Err(Errno::ENOSYS)
    }
}

/// The op table.
pub(in crate::abi) const fn table<T: DomainOps>() -> *const sys::fi_ops_domain {
    const {
        &sys::fi_ops_domain {
            size: size_of::<sys::fi_ops_domain>(),
            av_open: Slot::UNSUPPORTED,
            cq_open: Some(cq_open::<T>),
            endpoint: Some(endpoint::<T>),
            scalable_ep: Slot::UNSUPPORTED,
            cntr_open: Some(cntr_open::<T>),
            poll_open: Slot::UNSUPPORTED,
            stx_ctx: Slot::UNSUPPORTED,
            srx_ctx: Some(srx_ctx::<T>),
            query_atomic: Slot::UNSUPPORTED,
            query_collective: Slot::UNSUPPORTED,
            endpoint2: Slot::UNSUPPORTED,
        }
    }
}

unsafe extern "C" fn endpoint<T: DomainOps>(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    out: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called through the table of a domain of this type (`ffi_boundary::call`); `info` and `out`
    // are as `fi_endpoint(3)` says.
    unsafe {
        ffi_boundary::call::<sys::fid_domain, T, _, _, _>(domain, |domain, _| {
            open(out, context, || domain.endpoint(InfoRef::from_raw(info).ok_or(Errno::EINVAL)?))
        })
    }
}

unsafe extern "C" fn srx_ctx<T: DomainOps>(
    domain: *mut sys::fid_domain,
    attributes: *mut sys::fi_rx_attr,
    out: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called through the table of a domain of this type (`ffi_boundary::call`); `attributes` and
    // `out` are as `fi_srx_context(3)` says.
    unsafe {
        ffi_boundary::call::<sys::fid_domain, T, _, _, _>(domain, |domain, _| {
            open(out, context, || domain.srx_context(RxAttr::of(attributes)))
        })
    }
}

unsafe extern "C" fn cq_open<T: DomainOps>(
    domain: *mut sys::fid_domain,
    attributes: *mut sys::fi_cq_attr,
    out: *mut *mut sys::fid_cq,
    context: *mut c_void,
) -> c_int {
    let body = |domain: &Arc<T>, state: &DomainState| {
        // SAFETY: null, or valid during the call by `fi_cq_open(3)`.
        let (attributes, mut queue_state) = unsafe { CqAttr::read(attributes) }?;
        queue_state.errors.api_version = state.api_version;
        let make = || {
            let mut queue = domain.cq_open(attributes)?;
            *queue.state() = queue_state;
            Ok(queue)
        };
        // SAFETY: `out` is null, or writable by `fi_cq_open(3)`.
        unsafe { open(out, context, make) }
    };
    // SAFETY: called through the table of a domain of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_domain, T, _, _, _>(domain, body) }
}

unsafe extern "C" fn cntr_open<T: DomainOps>(
    domain: *mut sys::fid_domain,
    attributes: *mut sys::fi_cntr_attr,
    out: *mut *mut sys::fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: called through the table of a domain of this type (`ffi_boundary::call`); `attributes` and
    // `out` are as `fi_cntr_open(3)` says.
    unsafe {
        ffi_boundary::call::<sys::fid_domain, T, _, _, _>(domain, |domain, _| {
            open(out, context, || domain.cntr_open(CntrAttr::read(attributes)))
        })
    }
}

/// Creates an object and passes it to the application through `out`, which is checked first.
///
/// # Safety
/// If not null, `out` is writable.
pub(in crate::abi) unsafe fn open<S: FidStruct>(
    out: *mut *mut S,
    context: *mut c_void,
    make: impl FnOnce() -> Result<New<S>>,
) -> Result<()> {
    if out.is_null() {
        return Err(Errno::EINVAL);
    }
    let object = make()?.hand_out(context);
    // SAFETY: not null, and writable by the requirement of this function.
    unsafe { *out = object };
    Ok(())
}
