//! `struct fi_ops_msg`, in `fid_ep.msg` of a byte stream: moving bytes. See
//! [`fi_msg(3)`](https://ofiwg.github.io/libfabric/main/man/fi_msg.3.html) and, for byte streams,
//! the section SOCKET ENDPOINTS of
//! [`fi_endpoint(3)`](https://ofiwg.github.io/libfabric/main/man/fi_endpoint.3.html).
//!
//! Every byte takes this path: the shims decode vectors on the stack, and do not allocate, lock or
//! look anything up. They ignore descriptors, addresses and contexts, which serve other types of endpoint.

use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut};

use libc::iovec;

use super::{Fid, Slot};
use crate::abi::buffer::{array, bytes, bytes_mut};
use crate::abi::{Errno, Result, ffi_boundary, sys};

/// Maximum number of pieces of a vectored call: `fi_tx_attr.iov_limit` and `fi_rx_attr.iov_limit`.
pub const IOV_LIMIT: usize = 8;

/// Data operations of a byte stream. No call waits for the peer, except for a short adaptive spin.
pub trait StreamOps: Fid {
    /// `fi_send`, `fi_sendv`, `fi_sendmsg`: takes bytes and returns their number. `data` has at most
    /// [`IOV_LIMIT`] pieces, whose total length is at most `isize::MAX`.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if no byte can be taken now, else the error that ended the connection.
    fn send(&self, data: &[IoSlice<'_>], flags: u64) -> Result<usize> {
        let _ = (data, flags);
        Err(Errno::ENOSYS)
    }

    /// `fi_inject`: takes all of `data` and returns its length, or takes nothing.
    ///
    /// # Errors
    /// As for [`StreamOps::send`], and `-FI_EMSGSIZE`.
    fn inject(&self, data: &[u8]) -> Result<usize> {
        let _ = data;
        Err(Errno::ENOSYS)
    }

    /// `fi_recv`, `fi_recvv`, `fi_recvmsg`: writes received bytes to `data` and returns their number, 0 at
    /// the end of the stream. For `fi_recvmsg` without a vector, `data` is empty. Limits as for
    /// [`StreamOps::send`].
    ///
    /// # Errors
    /// `-FI_EAGAIN` if there is no byte now, else the error that ended the connection.
    fn recv(&self, data: &mut [IoSliceMut<'_>], flags: u64) -> Result<usize> {
        let _ = (data, flags);
        Err(Errno::ENOSYS)
    }
}

/// The op table.
pub(in crate::abi) const fn table<T: StreamOps>() -> *const sys::fi_ops_msg {
    const {
        &sys::fi_ops_msg {
            size: size_of::<sys::fi_ops_msg>(),
            recv: Some(recv::<T>),
            recvv: Some(recvv::<T>),
            recvmsg: Some(recvmsg::<T>),
            send: Some(send::<T>),
            sendv: Some(sendv::<T>),
            sendmsg: Some(sendmsg::<T>),
            inject: Some(inject::<T>),
            senddata: Slot::UNSUPPORTED,
            injectdata: Slot::UNSUPPORTED,
        }
    }
}

/// [`ffi_boundary::data_call`] for these slots, which all return a number of bytes.
///
/// # Safety
/// As for [`ffi_boundary::call`].
#[inline]
unsafe fn call<T: StreamOps>(fid: *mut sys::fid_ep, body: impl FnOnce(&T) -> Result<usize>) -> isize {
    // SAFETY: the same requirements as those of this function.
    unsafe { ffi_boundary::data_call::<sys::fid_ep, T, _, _, _>(fid, |endpoint, ()| body(endpoint)) }
}

unsafe extern "C" fn recv<T: StreamOps>(
    fid: *mut sys::fid_ep,
    buffer: *mut c_void,
    length: usize,
    _descriptor: *mut c_void,
    _source: sys::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `buffer` is
    // null or `length` bytes that no other code uses during the call, by `fi_recv(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.recv(&mut [IoSliceMut::new(bytes_mut(buffer, length)?)], 0)) }
}

unsafe extern "C" fn recvv<T: StreamOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    _source: sys::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `pieces` is
    // null or `count` vectors whose bytes no other code uses during the call, by `fi_recvv(3)`.
    unsafe { call::<T>(fid, |endpoint| receive(endpoint, pieces, count, 0)) }
}

unsafe extern "C" fn recvmsg<T: StreamOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg,
    flags: u64,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: null, or valid during the call by `fi_recvmsg(3)`.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or `iov_count` vectors whose bytes no other code uses during the call.
        unsafe { receive(endpoint, message.msg_iov, message.iov_count, flags) }
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn send<T: StreamOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    _descriptor: *mut c_void,
    _destination: sys::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `buffer` is
    // null or `length` bytes by `fi_send(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.send(&[IoSlice::new(bytes(buffer, length)?)], 0)) }
}

unsafe extern "C" fn sendv<T: StreamOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    _destination: sys::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `pieces` is
    // null or `count` vectors by `fi_sendv(3)`.
    unsafe { call::<T>(fid, |endpoint| transmit(endpoint, pieces, count, 0)) }
}

unsafe extern "C" fn sendmsg<T: StreamOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg,
    flags: u64,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: null, or valid during the call by `fi_sendmsg(3)`.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or `iov_count` vectors.
        unsafe { transmit(endpoint, message.msg_iov, message.iov_count, flags) }
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn inject<T: StreamOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    _destination: sys::fi_addr_t,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `buffer` is
    // null or `length` bytes by `fi_inject(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.inject(bytes(buffer, length)?)) }
}

/// Sends from a vector.
///
/// # Safety
/// `pieces` is null or points to `count` vectors. Each vector is null or has its length in readable bytes.
#[inline]
unsafe fn transmit<T: StreamOps>(
    endpoint: &T,
    pieces: *const iovec,
    count: usize,
    flags: u64,
) -> Result<usize> {
    // SAFETY: null or `count` vectors by the requirement of this function.
    let pieces = unsafe { vector(pieces, count) }?;
    let mut slices = [IoSlice::new(&[]); IOV_LIMIT];
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        // SAFETY: null or readable by the requirement of this function.
        *slice = IoSlice::new(unsafe { bytes(piece.iov_base, piece.iov_len) }?);
    }
    endpoint.send(&slices[..pieces.len()], flags)
}

/// Receives into a vector.
///
/// # Safety
/// `pieces` is null or points to `count` vectors. Each vector is null or has its length in writable bytes
/// that no other code uses during the call.
#[inline]
unsafe fn receive<T: StreamOps>(
    endpoint: &T,
    pieces: *const iovec,
    count: usize,
    flags: u64,
) -> Result<usize> {
    // SAFETY: null or `count` vectors by the requirement of this function.
    let pieces = unsafe { vector(pieces, count) }?;
    let mut slices: [IoSliceMut<'_>; IOV_LIMIT] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        // SAFETY: null, or writable and exclusive by the requirement of this function.
        *slice = IoSliceMut::new(unsafe { bytes_mut(piece.iov_base, piece.iov_len) }?);
    }
    endpoint.recv(&mut slices[..pieces.len()], flags)
}

/// The pieces of a vectored call, after a check of their number and total length.
///
/// # Safety
/// `pieces` is null or points to `count` vectors.
#[inline]
unsafe fn vector<'a>(pieces: *const iovec, count: usize) -> Result<&'a [iovec]> {
    // SAFETY: null or `count` vectors by the requirement of this function; the limit is a few.
    let pieces = unsafe { array(pieces, count, IOV_LIMIT) }?;
    let total = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.iov_len));
    match total {
        Some(total) if total <= isize::MAX as usize => Ok(pieces),
        _ => Err(Errno::EINVAL),
    }
}
