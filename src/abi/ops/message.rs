//! `struct fi_ops_msg`, in `fid_ep.msg` of a message endpoint and of a shared receive context: messages, each
//! with a completion. See [`fi_msg(3)`](https://ofiwg.github.io/libfabric/main/man/fi_msg.3.html).
//!
//! Every message takes this path: the shims decode vectors on the stack, and do not allocate, lock or look
//! anything up. They ignore addresses: an endpoint has one peer.

use std::ffi::c_void;

use libc::iovec;

use super::Fid;
use crate::abi::buffer::{Places, bytes};
use crate::abi::completion::UserContext;
use crate::abi::{Errno, Place, Result, ffi_boundary, sys};

/// Data operations of a message endpoint. A shared receive context implements [`MessageOps::post_recv`] only.
///
/// The application vouches for the memory of a [`Place`] until it can read the completion of the operation,
/// or closes the endpoint. So the provider posts a place for the operation that it came with and for no
/// other, and the work request is done before the application can read the completion. With `FI_INJECT` in
/// effect, the application vouches until the call returns: the provider reads the bytes before that.
pub trait MessageOps: Fid {
    /// `fi_recv`, `fi_recvv`, `fi_recvmsg`: posts a receive.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if the queue is full, `-FI_EBADFLAGS`, `-FI_EOPBADSTATE`.
    fn post_recv(&self, receive: MessageReceive<'_>) -> Result<()> {
        let _ = receive;
        Err(Errno::ENOSYS)
    }

    /// `fi_send`, `fi_sendv`, `fi_sendmsg`, `fi_senddata`: posts a send.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if the queue is full, `-FI_EMSGSIZE`, `-FI_EBADFLAGS`, `-FI_ENOTCONN`.
    fn post_send(&self, send: MessageSend<'_>) -> Result<()> {
        let _ = send;
        Err(Errno::ENOSYS)
    }

    /// `fi_inject`, `fi_injectdata`: sends a copy of `message`, without a completion.
    ///
    /// # Errors
    /// As for [`MessageOps::post_send`].
    fn inject(&self, message: &[u8], data: Option<u64>) -> Result<()> {
        let _ = (message, data);
        Err(Errno::ENOSYS)
    }
}

/// A receive to post.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageReceive<'a> {
    /// Where the message goes: at most [`crate::abi::MESSAGE_IOV_LIMIT`] places, none of them empty.
    pub buffers: &'a [Place],
    /// Flags of the call. `None` if it has none: those of `fi_rx_attr.op_flags` apply.
    pub flags: Option<u64>,
    /// For the completion.
    pub context: UserContext,
}

/// A message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageSend<'a> {
    /// The message: at most [`crate::abi::MESSAGE_IOV_LIMIT`] places, none of them empty.
    pub buffers: &'a [Place],
    /// Data for the completion of the peer.
    pub data: Option<u64>,
    /// Flags of the call. `None` if it has none: those of `fi_tx_attr.op_flags` apply.
    pub flags: Option<u64>,
    /// For the completion.
    pub context: UserContext,
}

/// The op table.
pub(in crate::abi) const fn table<T: MessageOps>() -> *const sys::fi_ops_msg {
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
            senddata: Some(senddata::<T>),
            injectdata: Some(injectdata::<T>),
        }
    }
}

/// [`ffi_boundary::data_call`] for these slots, which all return 0 or an error.
///
/// # Safety
/// As for [`ffi_boundary::call`].
#[inline]
unsafe fn call<T: MessageOps>(fid: *mut sys::fid_ep, body: impl FnOnce(&T) -> Result<()>) -> isize {
    // SAFETY: the same requirements as those of this function.
    unsafe { ffi_boundary::data_call::<sys::fid_ep, T, _, _, _>(fid, |endpoint, ()| body(endpoint)) }
}

/// The data of a call with these flags.
#[inline]
pub(super) fn remote_data(flags: u64, data: u64) -> Option<u64> {
    (flags & sys::FI_REMOTE_CQ_DATA != 0).then_some(data)
}

unsafe extern "C" fn recv<T: MessageOps>(
    fid: *mut sys::fid_ep,
    buffer: *mut c_void,
    length: usize,
    descriptor: *mut c_void,
    _source: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes that no other code uses until the completion, by
        // `fi_recv(3)`.
        let buffers = &unsafe { Places::single_receive::<T>(buffer, length, descriptor) }?;
        endpoint.post_recv(MessageReceive { buffers, flags: None, context: UserContext(context) })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn recvv<T: MessageOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    _source: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `pieces` is null or `count` vectors, whose bytes no other code uses until the completion,
        // by `fi_recvv(3)`.
        let buffers = &unsafe { Places::receive::<T>(pieces, descriptors, count) }?;
        endpoint.post_recv(MessageReceive { buffers, flags: None, context: UserContext(context) })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn recvmsg<T: MessageOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg,
    flags: u64,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: null, or valid during the call by `fi_recvmsg(3)`.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or `iov_count` vectors, whose bytes no other code uses until the completion.
        let buffers = &unsafe { Places::receive::<T>(message.msg_iov, message.desc, message.iov_count) }?;
        let context = UserContext(message.context);
        endpoint.post_recv(MessageReceive { buffers, flags: Some(flags), context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn send<T: MessageOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    _destination: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes that no other code writes until the completion, by
        // `fi_send(3)`.
        let buffers = &unsafe { Places::single::<T>(buffer, length, descriptor) }?;
        let context = UserContext(context);
        endpoint.post_send(MessageSend { buffers, data: None, flags: None, context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn sendv<T: MessageOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    _destination: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `pieces` is null or `count` vectors, whose bytes no other code writes until the completion,
        // by `fi_sendv(3)`.
        let buffers = &unsafe { Places::vector::<T>(pieces, descriptors, count) }?;
        let context = UserContext(context);
        endpoint.post_send(MessageSend { buffers, data: None, flags: None, context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn sendmsg<T: MessageOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg,
    flags: u64,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: null, or valid during the call by `fi_sendmsg(3)`.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or `iov_count` vectors, whose bytes no other code writes until the completion.
        let buffers = &unsafe { Places::vector::<T>(message.msg_iov, message.desc, message.iov_count) }?;
        let (data, context) = (remote_data(flags, message.data), UserContext(message.context));
        endpoint.post_send(MessageSend { buffers, data, flags: Some(flags), context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn inject<T: MessageOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    _destination: sys::fi_addr_t,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `buffer` is null
    // or `length` bytes by `fi_inject(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.inject(bytes(buffer, length)?, None)) }
}

unsafe extern "C" fn senddata<T: MessageOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    data: u64,
    _destination: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes that no other code writes until the completion, by
        // `fi_senddata(3)`.
        let buffers = &unsafe { Places::single::<T>(buffer, length, descriptor) }?;
        let context = UserContext(context);
        endpoint.post_send(MessageSend { buffers, data: Some(data), flags: None, context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn injectdata<T: MessageOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    _destination: sys::fi_addr_t,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `buffer` is null
    // or `length` bytes by `fi_injectdata(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.inject(bytes(buffer, length)?, Some(data))) }
}
