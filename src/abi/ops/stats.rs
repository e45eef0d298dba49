//! `struct rstream_endpoint_ops` of `rstream.h`, which `fi_open_ops` returns on an active
//! endpoint of either type: the statistics of its connection.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::{Fid, fid};
use crate::abi::buffer::text;
use crate::abi::header::{RSTREAM_ENDPOINT_OPS, rstream_endpoint_ops, rstream_stats};
use crate::abi::{Errno, Result, ffi_boundary, sys};

/// Statistics of an active endpoint.
pub trait StatsOps: Fid {
    /// The current statistics.
    ///
    /// # Errors
    /// If the statistics cannot be read.
    fn stats(&self) -> Result<rstream_stats> {
        Err(Errno::ENOSYS)
    }
}

/// The `struct fi_ops` of an active endpoint: the table of every object, plus `fi_open_ops`.
pub(in crate::abi) const fn fid_table<T: StatsOps>() -> *const sys::fi_ops {
    const { &sys::fi_ops { ops_open: Some(ops_open::<T>), ..fid::ops::<sys::fid_ep, T>() } }
}

/// The table that `fi_open_ops` returns.
const fn table<T: StatsOps>() -> *const rstream_endpoint_ops {
    const { &rstream_endpoint_ops { size: size_of::<rstream_endpoint_ops>(), stats: Some(stats::<T>) } }
}

unsafe extern "C" fn ops_open<T: StatsOps>(
    fid: *mut sys::fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    let body = |_: &Arc<T>, (): &()| {
        // SAFETY: null, or NUL-terminated and unchanged during the call, by `fi_open_ops(3)`.
        let name = unsafe { text(name) }?.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or writable and exclusive during the call, by `fi_open_ops(3)`.
        let ops = unsafe { ops.as_mut() }.ok_or(Errno::EINVAL)?;
        if flags != 0 {
            return Err(Errno::EBADFLAGS);
        }
        if name != RSTREAM_ENDPOINT_OPS {
            return Err(Errno::ENOSYS);
        }
        *ops = table::<T>().cast_mut().cast();
        Ok(())
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_ep, T, _, _, _>(fid, body) }
}

unsafe extern "C" fn stats<T: StatsOps>(
    fid: *mut sys::fid_ep,
    out: *mut rstream_stats,
    size: usize,
) -> c_int {
    let body = |endpoint: &Arc<T>, (): &()| {
        if out.is_null() {
            return Err(Errno::EINVAL);
        }
        let stats = endpoint.stats()?;
        let known = size_of::<rstream_stats>().min(size);
        // SAFETY: `out` has `size` writable bytes by the documentation of the slot. `known` bytes are copied
        // from a value of at least that size, and the rest is zeroed. The structure consists of integers
        // without padding, and the local value does not overlap the caller's memory.
        unsafe {
            ptr::copy_nonoverlapping(ptr::from_ref(&stats).cast::<u8>(), out.cast(), known);
            out.cast::<u8>().add(known).write_bytes(0, size - known);
        }
        Ok(())
    };
    // SAFETY: the documentation of the slot requires the endpoint that returned the table, still open.
    unsafe { ffi_boundary::call::<sys::fid_ep, T, _, _, _>(fid, body) }
}
