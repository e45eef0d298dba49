//! `struct fi_ops_domain`, in `fid_domain.ops`: opens endpoints. Byte streams do not use completion queues,
//! counters and address vectors. See
//! [`fi_domain(3)`](https://ofiwg.github.io/libfabric/main/man/fi_domain.3.html) and
//! [`fi_endpoint(3)`](https://ofiwg.github.io/libfabric/main/man/fi_endpoint.3.html).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::{Fid, Slot};
use crate::abi::info::InfoRef;
use crate::abi::object::{FidStruct, New, NewEndpoint};
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
}

/// The op table.
pub(in crate::abi) const fn table<T: DomainOps>() -> *const sys::fi_ops_domain {
    const {
        &sys::fi_ops_domain {
            size: size_of::<sys::fi_ops_domain>(),
            av_open: Slot::UNSUPPORTED,
            cq_open: Slot::UNSUPPORTED,
            endpoint: Some(endpoint::<T>),
            scalable_ep: Slot::UNSUPPORTED,
            cntr_open: Slot::UNSUPPORTED,
            poll_open: Slot::UNSUPPORTED,
            stx_ctx: Slot::UNSUPPORTED,
            srx_ctx: Slot::UNSUPPORTED,
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
        ffi_boundary::call::<sys::fid_domain, T, _, _, _>(domain, |domain, ()| {
            open(out, context, || domain.endpoint(InfoRef::from_raw(info).ok_or(Errno::EINVAL)?))
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
