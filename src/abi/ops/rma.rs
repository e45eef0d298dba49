//! `struct fi_ops_rma`, in `fid_ep.rma`: remote memory access of message endpoints. Other endpoints do not
//! support it. See [`fi_rma(3)`](https://ofiwg.github.io/libfabric/main/man/fi_rma.3.html).
//!
//! As for messages, the shims decode vectors on the stack, and do not allocate, lock or look anything up.

use std::ffi::c_void;

use libc::iovec;

use super::message::remote_data;
use super::{Fid, Slot};
use crate::abi::buffer::{MESSAGE_IOV_LIMIT, Places, array, bytes};
use crate::abi::completion::UserContext;
use crate::abi::{Errno, Place, Result, ffi_boundary, sys};

/// Remote memory access of a message endpoint. What [`super::MessageOps`] says about places is true here as
/// well: those of a read are written, those of a write are read.
pub trait RmaOps: Fid {
    /// `fi_read`, `fi_readv`, `fi_readmsg`: posts a read from the peer's memory.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if the queue is full, `-FI_EMSGSIZE`, `-FI_EBADFLAGS`, `-FI_ENOTCONN`.
    fn read(&self, call: RmaCall<'_>) -> Result<()> {
        let _ = call;
        Err(Errno::ENOSYS)
    }

    /// `fi_write`, `fi_writev`, `fi_writemsg`, `fi_writedata`: posts a write to the peer's memory.
    ///
    /// # Errors
    /// As for [`RmaOps::read`].
    fn write(&self, call: RmaCall<'_>) -> Result<()> {
        let _ = call;
        Err(Errno::ENOSYS)
    }

    /// `fi_inject_write`, `fi_inject_writedata`: writes a copy of `source` to `target`, which has the same
    /// length, without a completion.
    ///
    /// # Errors
    /// As for [`RmaOps::read`].
    fn inject_write(&self, source: &[u8], target: RemotePiece, data: Option<u64>) -> Result<()> {
        let _ = (source, target, data);
        Err(Errno::ENOSYS)
    }
}

/// A read or write to post. The lengths of the local places and of the remote pieces have the same sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RmaCall<'a> {
    /// At most [`MESSAGE_IOV_LIMIT`] places, none of them empty.
    pub local: &'a [Place],
    /// At most [`MESSAGE_IOV_LIMIT`] pieces of the peer's memory.
    pub remote: &'a [RemotePiece],
    /// Data for a completion of the peer. A read has no use for it.
    pub data: Option<u64>,
    /// Flags of the call. `None` if it has none: those of `fi_tx_attr.op_flags` apply.
    pub flags: Option<u64>,
    /// For the completion.
    pub context: UserContext,
}

/// `struct fi_rma_iov`: a piece of the peer's memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RemotePiece {
    /// Its address or offset, as the mode of the peer's memory registration says.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The key of its memory region.
    pub key: u64,
}

/// The op table of a message endpoint.
pub(in crate::abi) const fn table<T: RmaOps>() -> *const sys::fi_ops_rma {
    const {
        &sys::fi_ops_rma {
            size: size_of::<sys::fi_ops_rma>(),
            read: Some(read::<T>),
            readv: Some(readv::<T>),
            readmsg: Some(readmsg::<T>),
            write: Some(write::<T>),
            writev: Some(writev::<T>),
            writemsg: Some(writemsg::<T>),
            inject: Some(inject::<T>),
            writedata: Some(writedata::<T>),
            injectdata: Some(injectdata::<T>),
        }
    }
}

/// The op table of other endpoints. Every slot returns `-FI_ENOSYS`.
pub(in crate::abi) const fn unsupported() -> *const sys::fi_ops_rma {
    const TABLE: &sys::fi_ops_rma = &sys::fi_ops_rma {
        size: size_of::<sys::fi_ops_rma>(),
        read: Slot::UNSUPPORTED,
        readv: Slot::UNSUPPORTED,
        readmsg: Slot::UNSUPPORTED,
        write: Slot::UNSUPPORTED,
        writev: Slot::UNSUPPORTED,
        writemsg: Slot::UNSUPPORTED,
        inject: Slot::UNSUPPORTED,
        writedata: Slot::UNSUPPORTED,
        injectdata: Slot::UNSUPPORTED,
    };
    TABLE
}

/// [`ffi_boundary::data_call`] for these slots, which all return 0 or an error.
///
/// # Safety
/// As for [`ffi_boundary::call`].
#[inline]
unsafe fn call<T: RmaOps>(fid: *mut sys::fid_ep, body: impl FnOnce(&T) -> Result<()>) -> isize {
    // SAFETY: the same requirements as those of this function.
    unsafe { ffi_boundary::data_call::<sys::fid_ep, T, _, _, _>(fid, |endpoint, ()| body(endpoint)) }
}

/// Passes a call with one remote piece, which is as long as the local places, to `post`.
#[inline]
fn with_one(
    local: &[Place],
    (address, key): (u64, u64),
    data: Option<u64>,
    context: *mut c_void,
    post: impl FnOnce(RmaCall<'_>) -> Result<()>,
) -> Result<()> {
    let remote = &[RemotePiece { address, length: total(local), key }];
    post(RmaCall { local, remote, data, flags: None, context: UserContext(context) })
}

/// The length of all places: at most [`MESSAGE_IOV_LIMIT`] of 32 bits.
#[inline]
fn total(places: &[Place]) -> u64 {
    places.iter().map(|place| place.len() as u64).sum()
}

/// Passes a call with a `struct fi_msg_rma` to `post`.
///
/// # Errors
/// `-FI_EINVAL` for a null pointer, too many pieces, or lengths with different sums; the errors of
/// [`Places::vector`].
///
/// # Safety
/// `message` is null, or valid during the call by `fi_rma(3)`. Its vectors are as for [`Places::vector`].
#[inline]
unsafe fn with_message<T: RmaOps>(
    message: *const sys::fi_msg_rma,
    flags: u64,
    post: impl FnOnce(RmaCall<'_>) -> Result<()>,
) -> Result<()> {
    // SAFETY: null, or valid by the requirement of this function.
    let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
    // SAFETY: null, or `iov_count` vectors, by the requirement of this function.
    let local = &unsafe { Places::vector::<T>(message.msg_iov, message.desc, message.iov_count) }?;
    // SAFETY: null, or `rma_iov_count` pieces, by the requirement of this function.
    let pieces = unsafe { array(message.rma_iov, message.rma_iov_count, MESSAGE_IOV_LIMIT) }?;
    let mut remote = [RemotePiece::default(); MESSAGE_IOV_LIMIT];
    for (target, piece) in remote.iter_mut().zip(pieces) {
        *target = RemotePiece { address: piece.addr, length: piece.len as u64, key: piece.key };
    }
    let remote = &remote[..pieces.len()];
    let length = remote.iter().try_fold(0_u64, |sum, piece| sum.checked_add(piece.length));
    if length != Some(total(local)) {
        return Err(Errno::EINVAL);
    }
    let (data, context) = (remote_data(flags, message.data), UserContext(message.context));
    post(RmaCall { local, remote, data, flags: Some(flags), context })
}

unsafe extern "C" fn read<T: RmaOps>(
    fid: *mut sys::fid_ep,
    buffer: *mut c_void,
    length: usize,
    descriptor: *mut c_void,
    _source: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes that no other code uses until the completion, by
        // `fi_read(3)`.
        let local = &unsafe { Places::single::<T>(buffer, length, descriptor) }?;
        with_one(local, (address, key), None, context, |call| endpoint.read(call))
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn readv<T: RmaOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    _source: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `pieces` is null or `count` vectors, whose bytes no other code uses until the completion,
        // by `fi_readv(3)`.
        let local = &unsafe { Places::vector::<T>(pieces, descriptors, count) }?;
        with_one(local, (address, key), None, context, |call| endpoint.read(call))
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn readmsg<T: RmaOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `message` is null
    // or valid by `fi_readmsg(3)`, and no other code uses the bytes of its vectors until the completion.
    unsafe { call::<T>(fid, |endpoint| with_message::<T>(message, flags, |call| endpoint.read(call))) }
}

unsafe extern "C" fn write<T: RmaOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    _destination: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes that no other code writes until the completion, by
        // `fi_write(3)`.
        let local = &unsafe { Places::single::<T>(buffer, length, descriptor) }?;
        with_one(local, (address, key), None, context, |call| endpoint.write(call))
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn writev<T: RmaOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    _destination: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `pieces` is null or `count` vectors, whose bytes no other code writes until the completion,
        // by `fi_writev(3)`.
        let local = &unsafe { Places::vector::<T>(pieces, descriptors, count) }?;
        with_one(local, (address, key), None, context, |call| endpoint.write(call))
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn writemsg<T: RmaOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `message` is null
    // or valid by `fi_writemsg(3)`, and no other code writes the bytes of its vectors until the completion.
    unsafe { call::<T>(fid, |endpoint| with_message::<T>(message, flags, |call| endpoint.write(call))) }
}

unsafe extern "C" fn inject<T: RmaOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    _destination: sys::fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `buffer` is null
    // or `length` bytes by `fi_inject_write(3)`.
    unsafe { call::<T>(fid, |endpoint| inject_to(endpoint, bytes(buffer, length)?, (address, key), None)) }
}

unsafe extern "C" fn writedata<T: RmaOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    data: u64,
    _destination: sys::fi_addr_t,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes that no other code writes until the completion, by
        // `fi_writedata(3)`.
        let local = &unsafe { Places::single::<T>(buffer, length, descriptor) }?;
        with_one(local, (address, key), Some(data), context, |call| endpoint.write(call))
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn injectdata<T: RmaOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    _destination: sys::fi_addr_t,
    address: u64,
    key: u64,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes by `fi_inject_writedata(3)`.
        inject_to(endpoint, unsafe { bytes(buffer, length) }?, (address, key), Some(data))
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

/// Injects a write to a piece as long as `source`.
#[inline]
fn inject_to<T: RmaOps>(
    endpoint: &T,
    source: &[u8],
    (address, key): (u64, u64),
    data: Option<u64>,
) -> Result<()> {
    let target = RemotePiece { address, length: source.len() as u64, key };
    endpoint.inject_write(source, target, data)
}
