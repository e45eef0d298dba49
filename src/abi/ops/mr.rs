//! `struct fi_ops_mr`, in `fid_domain.mr`: registration of memory. A region itself has the operations of
//! every object ([`super::Fid`]); its key is a field that the application reads. See
//! [`fi_mr(3)`](https://ofiwg.github.io/libfabric/main/man/fi_mr.3.html).

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::Arc;

use libc::iovec;

use super::DomainOps;
use super::domain::open;
use crate::abi::buffer::{MESSAGE_IOV_LIMIT, array};
use crate::abi::object::{DomainState, NewMemoryRegion};
use crate::abi::sys::version;
use crate::abi::{Errno, Memory, Result, ffi_boundary, sys};

/// Memory to register.
///
/// The application vouches for the memory until it closes the region: the provider drops it before
/// [`super::Fid::close`] of the region returns.
#[derive(Debug)]
pub struct Registration<'a> {
    /// The memory, in this order: at least one piece, and at most [`MESSAGE_IOV_LIMIT`].
    pub pieces: &'a [MemoryPiece],
    /// What may be done with it: `FI_SEND`, `FI_RECV`, `FI_READ`, `FI_WRITE`, `FI_REMOTE_READ`,
    /// `FI_REMOTE_WRITE`. Without `FI_RECV`, `FI_READ` and `FI_REMOTE_WRITE`, it may be read only.
    pub access: u64,
    /// Reserved by `fi_mr(3)`.
    pub offset: u64,
    /// The key that the application chooses, unless the provider chooses keys.
    pub requested_key: u64,
    /// Flags of the call.
    pub flags: u64,
}

/// A piece of memory to register.
#[derive(Debug, Clone)]
pub struct MemoryPiece {
    /// Its address in this process.
    pub address: u64,
    /// The memory.
    pub memory: Arc<Memory>,
}

/// The op table.
pub(in crate::abi) const fn table<T: DomainOps>() -> *const sys::fi_ops_mr {
    const {
        &sys::fi_ops_mr {
            size: size_of::<sys::fi_ops_mr>(),
            reg: Some(reg::<T>),
            regv: Some(regv::<T>),
            regattr: Some(regattr::<T>),
        }
    }
}

unsafe extern "C" fn reg<T: DomainOps>(
    domain: *mut sys::fid,
    buffer: *const c_void,
    length: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    out: *mut *mut sys::fid_mr,
    context: *mut c_void,
) -> c_int {
    let body = |domain: &Arc<T>, _: &DomainState| {
        let pieces = [iovec { iov_base: buffer.cast_mut(), iov_len: length }];
        let make = |pieces: &[MemoryPiece]| {
            domain.register(Registration { pieces, access, offset, requested_key, flags })
        };
        // SAFETY: `buffer` is null or memory as `fi_mr_reg(3)` says; `out` is null or writable.
        unsafe { open(out, context, || lend(&pieces, make)) }
    };
    // SAFETY: called through the table of a domain of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_domain, T, _, (), _>(domain, body) }
}

unsafe extern "C" fn regv<T: DomainOps>(
    domain: *mut sys::fid,
    pieces: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    out: *mut *mut sys::fid_mr,
    context: *mut c_void,
) -> c_int {
    let body = |domain: &Arc<T>, _: &DomainState| {
        let make = |pieces: &[MemoryPiece]| {
            domain.register(Registration { pieces, access, offset, requested_key, flags })
        };
        // SAFETY: `pieces` is null or `count` vectors of memory as `fi_mr_regv(3)` says; `out` is null or
        // writable.
        unsafe { open(out, context, || lend(array(pieces, count, MESSAGE_IOV_LIMIT)?, make)) }
    };
    // SAFETY: called through the table of a domain of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_domain, T, _, (), _>(domain, body) }
}

/// Later headers have `mr_iov` in an anonymous union at the same offset.
const _: () = assert!(offset_of!(sys::fi_mr_attr, iov_count) == size_of::<*const iovec>());

unsafe extern "C" fn regattr<T: DomainOps>(
    domain: *mut sys::fid,
    attributes: *const sys::fi_mr_attr,
    flags: u64,
    out: *mut *mut sys::fid_mr,
) -> c_int {
    let body = |domain: &Arc<T>, state: &DomainState| {
        if attributes.is_null() {
            return Err(Errno::EINVAL);
        }
        // Otherwise the vectors are iovecs.
        if flags & sys::FI_MR_DMABUF != 0 {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: not null, and a structure of the application's API version by `fi_mr_regattr(3)`. Every
        // version has the vectors first, and the fields up to `context`.
        let (pieces, count, access, offset, requested_key, context) = unsafe {
            let pieces = attributes.cast::<*const iovec>().read();
            let (count, access, offset) =
                ((*attributes).iov_count, (*attributes).access, (*attributes).offset);
            (pieces, count, access, offset, (*attributes).requested_key, (*attributes).context)
        };
        // SAFETY: as above; these versions have the field.
        if state.api_version >= version(1, 5) && unsafe { (*attributes).auth_key_size } != 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: as above; these versions have the field.
        if state.api_version >= version(1, 10) && unsafe { (*attributes).iface } != sys::FI_HMEM_SYSTEM {
            return Err(Errno::ENOSYS);
        }
        let make = |pieces: &[MemoryPiece]| {
            domain.register(Registration { pieces, access, offset, requested_key, flags })
        };
        // SAFETY: `pieces` is null or `count` vectors of memory as `fi_mr_regattr(3)` says; `out` is null or
        // writable.
        unsafe { open(out, context, || lend(array(pieces, count, MESSAGE_IOV_LIMIT)?, make)) }
    };
    // SAFETY: called through the table of a domain of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_domain, T, _, (), _>(domain, body) }
}

/// Passes the memory of `pieces` to `make`.
///
/// # Errors
/// `-FI_EINVAL` for no piece, or for one that cannot be memory.
///
/// # Safety
/// Each of `pieces` is null or the address of its length in bytes, which the application registers under the
/// terms of `fi_mr(3)`: until it closes the region, the bytes are readable, and writable if the region's
/// access has a right to write.
unsafe fn lend(
    pieces: &[iovec],
    make: impl FnOnce(&[MemoryPiece]) -> Result<NewMemoryRegion>,
) -> Result<NewMemoryRegion> {
    let lend = |piece: &iovec| {
        // SAFETY: the bytes are as `Memory::lent` requires until the region is closed (requirement of this
        // function), and the provider drops the memory then (`Registration`). By `fi_mr(3)` the application
        // shares it with its peers until then.
        let memory = unsafe { Memory::lent(piece.iov_base.cast(), piece.iov_len) };
        Ok(MemoryPiece { address: piece.iov_base.addr() as u64, memory: memory.ok_or(Errno::EINVAL)? })
    };
    match pieces {
        [] => Err(Errno::EINVAL),
        // Most regions have one piece, which needs no list on the heap.
        [piece] => make(&[lend(piece)?]),
        pieces => make(&pieces.iter().map(lend).collect::<Result<Vec<_>>>()?),
    }
}
