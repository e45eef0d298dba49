//! `struct fi_ops_msg`, in `fid_ep.msg`: moving bytes. See
//! [`fi_msg(3)`](https://ofiwg.github.io/libfabric/main/man/fi_msg.3.html) and, for byte streams,
//! the section SOCKET ENDPOINTS of
//! [`fi_endpoint(3)`](https://ofiwg.github.io/libfabric/main/man/fi_endpoint.3.html).
//!
//! The path of every byte: vectors are decoded on the stack, and nothing is allocated, locked or
//! looked up. Descriptors, addresses and contexts are for other kinds of endpoint and not read.

use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut};
use std::slice;
use std::sync::Arc;

use libc::iovec;

use super::{Fid, Slot};
use crate::abi::buffer::{bytes, bytes_mut};
use crate::abi::{Errno, Result, border, sys};

/// Most pieces that a vectored call takes: `fi_tx_attr.iov_limit` and `fi_rx_attr.iov_limit`.
pub const IOV_LIMIT: usize = 8;

/// What an active endpoint can do with bytes. No call waits for the peer, but for the moment that it may take to
/// answer.
pub trait MsgOps: Fid {
    /// Whether a call may come upon a cancellation point of the C library. Where it may not, it is spared
    /// the price of putting cancellation off; rare ones do so themselves ([`crate::abi::put_off`]).
    const CANCELLATION_POINTS: bool;

    /// `fi_send`, `fi_sendv`, `fi_sendmsg`: takes bytes and answers how many. At most
    /// [`IOV_LIMIT`] pieces, whose lengths together are at most `isize::MAX`.
    ///
    /// # Errors
    /// `-FI_EAGAIN` when nothing can be taken now, else what ended the connection.
    fn send(&self, data: &[IoSlice<'_>], flags: u64) -> Result<usize> {
        let _ = (data, flags);
        Err(Errno::ENOSYS)
    }

    /// `fi_inject`: takes all of it, and answers how many bytes that are, or nothing.
    ///
    /// # Errors
    /// As for [`MsgOps::send`], and `-FI_EMSGSIZE`.
    fn inject(&self, data: &[u8]) -> Result<usize> {
        let _ = data;
        Err(Errno::ENOSYS)
    }

    /// `fi_recv`, `fi_recvv`, `fi_recvmsg`: gives bytes and answers how many, 0 at the end of the
    /// stream. `fi_recvmsg` without a vector comes as no pieces. Limits as for [`MsgOps::send`].
    ///
    /// # Errors
    /// `-FI_EAGAIN` when there is nothing now, else what ended the connection.
    fn recv(&self, data: &mut [IoSliceMut<'_>], flags: u64) -> Result<usize> {
        let _ = (data, flags);
        Err(Errno::ENOSYS)
    }
}

/// The table.
pub(in crate::abi) const fn table<T: MsgOps>() -> *const sys::fi_ops_msg {
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

/// [`border::call`] for these slots, which all answer a number of bytes.
///
/// # Safety
/// As for [`border::call`].
#[inline]
unsafe fn call<T: MsgOps>(fid: *mut sys::fid_ep, body: impl FnOnce(&T) -> Result<usize>) -> isize {
    let body = |endpoint: &Arc<T>, (): &()| body(endpoint);
    // SAFETY: the caller's promise.
    unsafe {
        if T::CANCELLATION_POINTS {
            border::call::<sys::fid_ep, T, _, _, _>(fid, body)
        } else {
            border::call_at_once::<sys::fid_ep, T, _, _, _>(fid, body)
        }
    }
}

unsafe extern "C" fn recv<T: MsgOps>(
    fid: *mut sys::fid_ep,
    buffer: *mut c_void,
    length: usize,
    _descriptor: *mut c_void,
    _source: sys::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`border::call`); `buffer` is
    // null or `length` bytes that are ours for the call, by `fi_recv(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.recv(&mut [IoSliceMut::new(bytes_mut(buffer, length)?)], 0)) }
}

unsafe extern "C" fn recvv<T: MsgOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    _source: sys::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`border::call`); `pieces` is
    // null or `count` vectors that are ours for the call, by `fi_recvv(3)`.
    unsafe { call::<T>(fid, |endpoint| receive(endpoint, pieces, count, 0)) }
}

unsafe extern "C" fn recvmsg<T: MsgOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg,
    flags: u64,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: null, or as `fi_recvmsg(3)` says.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or `iov_count` vectors that are ours for the call.
        unsafe { receive(endpoint, message.msg_iov, message.iov_count, flags) }
    };
    // SAFETY: called through the table of an endpoint of this type (`border::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn send<T: MsgOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    _descriptor: *mut c_void,
    _destination: sys::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`border::call`); `buffer` is
    // null or `length` bytes by `fi_send(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.send(&[IoSlice::new(bytes(buffer, length)?)], 0)) }
}

unsafe extern "C" fn sendv<T: MsgOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    _descriptors: *mut *mut c_void,
    count: usize,
    _destination: sys::fi_addr_t,
    _context: *mut c_void,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`border::call`); `pieces` is
    // null or `count` vectors by `fi_sendv(3)`.
    unsafe { call::<T>(fid, |endpoint| transmit(endpoint, pieces, count, 0)) }
}

unsafe extern "C" fn sendmsg<T: MsgOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg,
    flags: u64,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: null, or as `fi_sendmsg(3)` says.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or `iov_count` vectors.
        unsafe { transmit(endpoint, message.msg_iov, message.iov_count, flags) }
    };
    // SAFETY: called through the table of an endpoint of this type (`border::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn inject<T: MsgOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    _destination: sys::fi_addr_t,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`border::call`); `buffer` is
    // null or `length` bytes by `fi_inject(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.inject(bytes(buffer, length)?)) }
}

/// Sends from a vector.
///
/// # Safety
/// `pieces` is null or points to `count` vectors, each null or that many bytes.
#[inline]
unsafe fn transmit<T: MsgOps>(endpoint: &T, pieces: *const iovec, count: usize, flags: u64) -> Result<usize> {
    // SAFETY: the caller's promise.
    let pieces = unsafe { vector(pieces, count) }?;
    let mut slices = [IoSlice::new(&[]); IOV_LIMIT];
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        // SAFETY: the caller's promise.
        *slice = IoSlice::new(unsafe { bytes(piece.iov_base, piece.iov_len) }?);
    }
    endpoint.send(&slices[..pieces.len()], flags)
}

/// Receives into a vector.
///
/// # Safety
/// `pieces` is null or points to `count` vectors, each null or that many bytes that may be written
/// and that nobody else uses during the call.
#[inline]
unsafe fn receive<T: MsgOps>(endpoint: &T, pieces: *const iovec, count: usize, flags: u64) -> Result<usize> {
    // SAFETY: the caller's promise.
    let pieces = unsafe { vector(pieces, count) }?;
    let mut slices: [IoSliceMut<'_>; IOV_LIMIT] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        // SAFETY: the caller's promise.
        *slice = IoSliceMut::new(unsafe { bytes_mut(piece.iov_base, piece.iov_len) }?);
    }
    endpoint.recv(&mut slices[..pieces.len()], flags)
}

/// The pieces of a vectored call, whose number and total length are in bounds.
///
/// # Safety
/// `pieces` is null or points to `count` vectors.
#[inline]
unsafe fn vector<'a>(pieces: *const iovec, count: usize) -> Result<&'a [iovec]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pieces.is_null() || count > IOV_LIMIT {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, and `count` of them by the caller's promise.
    let pieces = unsafe { slice::from_raw_parts(pieces, count) };
    let total = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.iov_len));
    match total {
        Some(total) if total <= isize::MAX as usize => Ok(pieces),
        _ => Err(Errno::EINVAL),
    }
}
