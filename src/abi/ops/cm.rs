//! `struct fi_ops_cm`, in `fid_ep.cm` and `fid_pep.cm`: addresses and connections. See
//! [`fi_cm(3)`](https://ofiwg.github.io/libfabric/main/man/fi_cm.3.html).

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

use super::{Fid, Slot};
use crate::abi::buffer::bytes;
use crate::abi::object::{AnyFid, FidStruct};
use crate::abi::{Errno, Result, address, ffi_boundary, sys};

/// Connection operations of active and passive endpoints. Each type implements its half.
pub trait CmOps: Fid {
    /// `fi_setname`: the local address to bind.
    ///
    /// # Errors
    /// `-FI_EOPBADSTATE` if it is already bound, `-FI_EADDRINUSE`, `-FI_EADDRNOTAVAIL`.
    fn setname(&self, address: SocketAddr) -> Result<()> {
        let _ = address;
        Err(Errno::ENOSYS)
    }

    /// `fi_getname`: the local address.
    ///
    /// # Errors
    /// `-FI_EOPBADSTATE` if there is none yet.
    fn getname(&self) -> Result<SocketAddr> {
        Err(Errno::ENOSYS)
    }

    /// `fi_getpeer`: the peer's address.
    ///
    /// # Errors
    /// `-FI_ENOTCONN` without a peer.
    fn getpeer(&self) -> Result<SocketAddr> {
        Err(Errno::ENOSYS)
    }

    /// `fi_connect`: starts to connect to `remote`, or, without it, to the address of
    /// the endpoint's info. `param` is the connection data for the peer.
    ///
    /// # Errors
    /// `-FI_EINVAL` if there is no address or too much data, `-FI_EOPBADSTATE`, `-FI_ENOEQ`.
    fn connect(&self, remote: Option<SocketAddr>, param: &[u8]) -> Result<()> {
        let _ = (remote, param);
        Err(Errno::ENOSYS)
    }

    /// `fi_listen`.
    ///
    /// # Errors
    /// `-FI_EOPBADSTATE`, `-FI_ENOEQ`, `-FI_EADDRINUSE`, `-FI_EADDRNOTAVAIL`.
    fn listen(&self) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// `fi_accept`: accepts the request that the endpoint was opened for.
    ///
    /// # Errors
    /// `-FI_EOPBADSTATE`, `-FI_ENOEQ`, `-FI_EINVAL` with too much data.
    fn accept(&self, param: &[u8]) -> Result<()> {
        let _ = param;
        Err(Errno::ENOSYS)
    }

    /// `fi_reject`: rejects the request of `handle`. After success the handle is invalid.
    ///
    /// # Errors
    /// `-FI_EINVAL` if `handle` is no request of this endpoint, or for too much data.
    fn reject(&self, handle: AnyFid, param: &[u8]) -> Result<()> {
        let _ = (handle, param);
        Err(Errno::ENOSYS)
    }

    /// `fi_shutdown`.
    ///
    /// # Errors
    /// `-FI_ENOTCONN`, `-FI_EBADFLAGS`.
    fn shutdown(&self, flags: u64) -> Result<()> {
        let _ = flags;
        Err(Errno::ENOSYS)
    }
}

/// The op table of an endpoint whose C type is `S`.
pub(in crate::abi) const fn table<S: FidStruct, T: CmOps>() -> *const sys::fi_ops_cm {
    const {
        &sys::fi_ops_cm {
            size: size_of::<sys::fi_ops_cm>(),
            setname: Some(setname::<S, T>),
            getname: Some(getname::<S, T>),
            getpeer: Some(getpeer::<S, T>),
            connect: Some(connect::<S, T>),
            listen: Some(listen::<S, T>),
            accept: Some(accept::<S, T>),
            reject: Some(reject::<S, T>),
            shutdown: Some(shutdown::<S, T>),
            join: Slot::UNSUPPORTED,
        }
    }
}

/// [`ffi_boundary::call`] for these slots, which all return 0 or an error as an `int`.
///
/// # Safety
/// As for [`ffi_boundary::call`].
unsafe fn call<S: FidStruct, T: CmOps, P>(fid: *mut P, body: impl FnOnce(&Arc<T>) -> Result<()>) -> c_int {
    // SAFETY: the same requirements as those of this function.
    unsafe { ffi_boundary::call::<S, T, _, _, _>(fid, |endpoint, _| body(endpoint)) }
}

unsafe extern "C" fn setname<S: FidStruct, T: CmOps>(
    fid: *mut sys::fid,
    address: *mut c_void,
    length: usize,
) -> c_int {
    let body = |endpoint: &Arc<T>| {
        // SAFETY: `address` is null or `length` bytes by `fi_setname(3)`.
        let address = unsafe { address::read(address, length) }?;
        endpoint.setname(address.ok_or(Errno::EINVAL)?)
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<S, T, _>(fid, body) }
}

unsafe extern "C" fn getname<S: FidStruct, T: CmOps>(
    fid: *mut sys::fid,
    out: *mut c_void,
    length: *mut usize,
) -> c_int {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `out` and
    // `length` are null or as `fi_getname(3)` says.
    unsafe { call::<S, T, _>(fid, |endpoint| address::write(endpoint.getname()?, out, length)) }
}

unsafe extern "C" fn getpeer<S: FidStruct, T: CmOps>(
    fid: *mut sys::fid_ep,
    out: *mut c_void,
    length: *mut usize,
) -> c_int {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `out` and
    // `length` are null or as `fi_getpeer(3)` says.
    unsafe { call::<S, T, _>(fid, |endpoint| address::write(endpoint.getpeer()?, out, length)) }
}

unsafe extern "C" fn connect<S: FidStruct, T: CmOps>(
    fid: *mut sys::fid_ep,
    remote: *const c_void,
    param: *const c_void,
    length: usize,
) -> c_int {
    let body = |endpoint: &Arc<T>| {
        // SAFETY: `remote` is null or a socket address, `param` null or `length` bytes, by
        // `fi_connect(3)`.
        let (remote, param) = unsafe { (address::read_by_family(remote)?, bytes(param, length)?) };
        endpoint.connect(remote, param)
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<S, T, _>(fid, body) }
}

unsafe extern "C" fn listen<S: FidStruct, T: CmOps>(fid: *mut sys::fid_pep) -> c_int {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<S, T, _>(fid, |endpoint| endpoint.listen()) }
}

unsafe extern "C" fn accept<S: FidStruct, T: CmOps>(
    fid: *mut sys::fid_ep,
    param: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `param` is null
    // or `length` bytes by `fi_accept(3)`.
    unsafe { call::<S, T, _>(fid, |endpoint| endpoint.accept(bytes(param, length)?)) }
}

unsafe extern "C" fn reject<S: FidStruct, T: CmOps>(
    fid: *mut sys::fid_pep,
    handle: *mut sys::fid,
    param: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `param` is null
    // or `length` bytes by `fi_reject(3)`. `handle` is only looked up.
    unsafe { call::<S, T, _>(fid, |endpoint| endpoint.reject(AnyFid(handle), bytes(param, length)?)) }
}

unsafe extern "C" fn shutdown<S: FidStruct, T: CmOps>(fid: *mut sys::fid_ep, flags: u64) -> c_int {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<S, T, _>(fid, |endpoint| endpoint.shutdown(flags)) }
}
