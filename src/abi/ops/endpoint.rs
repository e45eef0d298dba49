//! `struct fi_ops_ep`, in `fid_ep.ops` and `fid_pep.ops`: options, cancellation, room in the queues. See
//! [`fi_endpoint(3)`](https://ofiwg.github.io/libfabric/main/man/fi_endpoint.3.html).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::{Fid, Slot};
use crate::abi::buffer::{bytes, bytes_mut};
use crate::abi::completion::UserContext;
use crate::abi::object::FidStruct;
use crate::abi::option::OptionOut;
use crate::abi::{Errno, Result, ffi_boundary, sys};

/// Operations of active and passive endpoints, and of shared receive contexts.
pub trait EndpointOps: Fid {
    /// `fi_setopt`: `value` has the caller's bytes; [`crate::abi::option::integer`] decodes them.
    ///
    /// # Errors
    /// `-FI_ENOPROTOOPT` for an unknown level or name, `-FI_EINVAL` for an invalid value,
    /// `-FI_EOPBADSTATE` if the option cannot be set any more.
    fn setopt(&self, level: i32, name: i32, value: &[u8]) -> Result<()> {
        let _ = (level, name, value);
        Err(Errno::ENOSYS)
    }

    /// `fi_getopt`.
    ///
    /// # Errors
    /// `-FI_ENOPROTOOPT` for an unknown level or name, and the errors of [`OptionOut`].
    fn getopt(&self, level: i32, name: i32, out: &mut OptionOut<'_>) -> Result<()> {
        let _ = (level, name, out);
        Err(Errno::ENOSYS)
    }

    /// `fi_cancel`: cancels an operation that was posted with `context`.
    ///
    /// # Errors
    /// `-FI_ENOENT` if there is none, or if it cannot be cancelled any more.
    fn cancel(&self, context: UserContext) -> Result<()> {
        let _ = context;
        Err(Errno::ENOSYS)
    }

    /// `fi_tx_size_left`: how many sends and remote accesses can be posted now.
    ///
    /// # Errors
    /// `-FI_EOPBADSTATE` before the endpoint is enabled.
    fn tx_size_left(&self) -> Result<usize> {
        Err(Errno::ENOSYS)
    }

    /// `fi_rx_size_left`: how many receives can be posted now.
    ///
    /// # Errors
    /// As for [`EndpointOps::tx_size_left`].
    fn rx_size_left(&self) -> Result<usize> {
        Err(Errno::ENOSYS)
    }
}

/// The op table of an endpoint whose C type is `S`.
pub(in crate::abi) const fn table<S: FidStruct, T: EndpointOps>() -> *const sys::fi_ops_ep {
    const {
        &sys::fi_ops_ep {
            size: size_of::<sys::fi_ops_ep>(),
            cancel: Some(cancel::<S, T>),
            getopt: Some(getopt::<S, T>),
            setopt: Some(setopt::<S, T>),
            tx_ctx: Slot::UNSUPPORTED,
            rx_ctx: Slot::UNSUPPORTED,
            rx_size_left: Some(rx_size_left::<S, T>),
            tx_size_left: Some(tx_size_left::<S, T>),
        }
    }
}

unsafe extern "C" fn cancel<S: FidStruct, T: EndpointOps>(fid: *mut sys::fid, context: *mut c_void) -> isize {
    let body = |endpoint: &Arc<T>, _: &S::State| endpoint.cancel(UserContext(context));
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<S, T, _, (), _>(fid, body) }
}

unsafe extern "C" fn rx_size_left<S: FidStruct, T: EndpointOps>(fid: *mut sys::fid_ep) -> isize {
    let body = |endpoint: &Arc<T>, _: &S::State| endpoint.rx_size_left();
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<S, T, _, usize, _>(fid, body) }
}

unsafe extern "C" fn tx_size_left<S: FidStruct, T: EndpointOps>(fid: *mut sys::fid_ep) -> isize {
    let body = |endpoint: &Arc<T>, _: &S::State| endpoint.tx_size_left();
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<S, T, _, usize, _>(fid, body) }
}

unsafe extern "C" fn getopt<S: FidStruct, T: EndpointOps>(
    fid: *mut sys::fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    let body = |endpoint: &Arc<T>, _: &S::State| {
        // SAFETY: null, or a `size_t` that no other code uses during the call, by `fi_getopt(3)`.
        let length = unsafe { length.as_mut() }.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or `length` bytes that no other code uses during the call, by `fi_getopt(3)`.
        let value = unsafe { bytes_mut(value, *length) }?;
        endpoint.getopt(level, name, &mut OptionOut::new(value, length))
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<S, T, _, _, _>(fid, body) }
}

unsafe extern "C" fn setopt<S: FidStruct, T: EndpointOps>(
    fid: *mut sys::fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    let body = |endpoint: &Arc<T>, _: &S::State| {
        // SAFETY: `value` is null or `length` bytes by `fi_setopt(3)`.
        endpoint.setopt(level, name, unsafe { bytes(value, length) }?)
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<S, T, _, _, _>(fid, body) }
}
