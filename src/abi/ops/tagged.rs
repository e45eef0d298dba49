//! `struct fi_ops_tagged`, in `fid_ep.tagged` of a message endpoint: messages with tags. See
//! [`fi_tagged(3)`](https://ofiwg.github.io/libfabric/main/man/fi_tagged.3.html).
//!
//! The shims do what those of [`super::message`] do.

use std::ffi::c_void;

use libc::iovec;

use super::message::{MessageReceive, MessageSend, remote_data};
use super::{Fid, Slot};
use crate::abi::buffer::{Places, bytes};
use crate::abi::completion::UserContext;
use crate::abi::{Errno, Result, ffi_boundary, sys};

/// Data operations with tags. What [`super::MessageOps`] says about places is true here as well.
pub trait TaggedOps: Fid {
    /// `fi_trecv`, `fi_trecvv`, `fi_trecvmsg`: posts a receive for the oldest message with such a tag, or with `FI_PEEK`
    /// or `FI_CLAIM`, asks for one that has arrived.
    ///
    /// # Errors
    /// As for [`super::MessageOps::post_recv`]; `-FI_EINVAL` for `FI_CLAIM` of what is not claimed, and for `FI_DISCARD`
    /// without one of these two.
    fn post_tagged_recv(&self, tags: Tags, receive: MessageReceive<'_>) -> Result<()> {
        let _ = (tags, receive);
        Err(Errno::ENOSYS)
    }

    /// `fi_tsend`, `fi_tsendv`, `fi_tsendmsg`, `fi_tsenddata`: posts a send.
    ///
    /// # Errors
    /// As for [`super::MessageOps::post_send`].
    fn post_tagged_send(&self, tag: u64, send: MessageSend<'_>) -> Result<()> {
        let _ = (tag, send);
        Err(Errno::ENOSYS)
    }

    /// `fi_tinject`, `fi_tinjectdata`: sends a copy of `message`, without a completion.
    ///
    /// # Errors
    /// As for [`super::MessageOps::post_send`].
    fn tagged_inject(&self, tag: u64, message: &[u8], data: Option<u64>) -> Result<()> {
        let _ = (tag, message, data);
        Err(Errno::ENOSYS)
    }
}

/// The tags that a receive takes: those that agree with `tag` in all bits that `ignore` does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tags {
    /// A tag that it takes.
    pub tag: u64,
    /// Bits that may be otherwise.
    pub ignore: u64,
}

impl Tags {
    /// Whether this tag is among them.
    #[must_use]
    pub fn has(&self, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0
    }
}

/// The op table.
pub(in crate::abi) const fn table<T: TaggedOps>() -> *const sys::fi_ops_tagged {
    const {
        &sys::fi_ops_tagged {
            size: size_of::<sys::fi_ops_tagged>(),
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

/// The table of an endpoint without them. Every slot returns `-FI_ENOSYS`.
pub(in crate::abi) const fn unsupported() -> *const sys::fi_ops_tagged {
    const TABLE: &sys::fi_ops_tagged = &sys::fi_ops_tagged {
        size: size_of::<sys::fi_ops_tagged>(),
        recv: Slot::UNSUPPORTED,
        recvv: Slot::UNSUPPORTED,
        recvmsg: Slot::UNSUPPORTED,
        send: Slot::UNSUPPORTED,
        sendv: Slot::UNSUPPORTED,
        sendmsg: Slot::UNSUPPORTED,
        inject: Slot::UNSUPPORTED,
        senddata: Slot::UNSUPPORTED,
        injectdata: Slot::UNSUPPORTED,
    };
    TABLE
}

/// [`ffi_boundary::data_call`] for these slots, which all return 0 or an error.
///
/// # Safety
/// As for [`ffi_boundary::call`].
#[inline]
unsafe fn call<T: TaggedOps>(fid: *mut sys::fid_ep, body: impl FnOnce(&T) -> Result<()>) -> isize {
    // SAFETY: the same requirements as those of this function.
    unsafe { ffi_boundary::data_call::<sys::fid_ep, T, _, _, _>(fid, |endpoint, ()| body(endpoint)) }
}

unsafe extern "C" fn recv<T: TaggedOps>(
    fid: *mut sys::fid_ep,
    buffer: *mut c_void,
    length: usize,
    descriptor: *mut c_void,
    _source: sys::fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes that no other code uses until the completion, by
        // `fi_trecv(3)`.
        let buffers = &unsafe { Places::single_receive::<T>(buffer, length, descriptor) }?;
        let receive = MessageReceive { buffers, flags: None, context: UserContext(context) };
        endpoint.post_tagged_recv(Tags { tag, ignore }, receive)
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn recvv<T: TaggedOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    _source: sys::fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `pieces` is null or `count` vectors, whose bytes no other code uses until the completion,
        // by `fi_trecvv(3)`.
        let buffers = &unsafe { Places::receive::<T>(pieces, descriptors, count) }?;
        let receive = MessageReceive { buffers, flags: None, context: UserContext(context) };
        endpoint.post_tagged_recv(Tags { tag, ignore }, receive)
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn recvmsg<T: TaggedOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg_tagged,
    flags: u64,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: null, or valid during the call by `fi_trecvmsg(3)`.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // Who only looks for a message has none.
        let count = if flags & (sys::FI_PEEK | sys::FI_DISCARD) == 0 { message.iov_count } else { 0 };
        // SAFETY: null, or `iov_count` vectors, whose bytes no other code uses until the completion.
        let buffers = &unsafe { Places::receive::<T>(message.msg_iov, message.desc, count) }?;
        let context = UserContext(message.context);
        let tags = Tags { tag: message.tag, ignore: message.ignore };
        endpoint.post_tagged_recv(tags, MessageReceive { buffers, flags: Some(flags), context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn send<T: TaggedOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    _destination: sys::fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes that no other code writes until the completion, by
        // `fi_tsend(3)`.
        let buffers = &unsafe { Places::single::<T>(buffer, length, descriptor) }?;
        let context = UserContext(context);
        endpoint.post_tagged_send(tag, MessageSend { buffers, data: None, flags: None, context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn sendv<T: TaggedOps>(
    fid: *mut sys::fid_ep,
    pieces: *const iovec,
    descriptors: *mut *mut c_void,
    count: usize,
    _destination: sys::fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `pieces` is null or `count` vectors, whose bytes no other code writes until the completion,
        // by `fi_tsendv(3)`.
        let buffers = &unsafe { Places::vector::<T>(pieces, descriptors, count) }?;
        let context = UserContext(context);
        endpoint.post_tagged_send(tag, MessageSend { buffers, data: None, flags: None, context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn sendmsg<T: TaggedOps>(
    fid: *mut sys::fid_ep,
    message: *const sys::fi_msg_tagged,
    flags: u64,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: null, or valid during the call by `fi_tsendmsg(3)`.
        let message = unsafe { message.as_ref() }.ok_or(Errno::EINVAL)?;
        // SAFETY: null, or `iov_count` vectors, whose bytes no other code writes until the completion.
        let buffers = &unsafe { Places::vector::<T>(message.msg_iov, message.desc, message.iov_count) }?;
        let (data, context) = (remote_data(flags, message.data), UserContext(message.context));
        endpoint.post_tagged_send(message.tag, MessageSend { buffers, data, flags: Some(flags), context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn inject<T: TaggedOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    _destination: sys::fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `buffer` is null
    // or `length` bytes by `fi_tinject(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.tagged_inject(tag, bytes(buffer, length)?, None)) }
}

unsafe extern "C" fn senddata<T: TaggedOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    descriptor: *mut c_void,
    data: u64,
    _destination: sys::fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    let body = |endpoint: &T| {
        // SAFETY: `buffer` is null or `length` bytes that no other code writes until the completion, by
        // `fi_tsenddata(3)`.
        let buffers = &unsafe { Places::single::<T>(buffer, length, descriptor) }?;
        let context = UserContext(context);
        endpoint.post_tagged_send(tag, MessageSend { buffers, data: Some(data), flags: None, context })
    };
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`).
    unsafe { call::<T>(fid, body) }
}

unsafe extern "C" fn injectdata<T: TaggedOps>(
    fid: *mut sys::fid_ep,
    buffer: *const c_void,
    length: usize,
    data: u64,
    _destination: sys::fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: called through the table of an endpoint of this type (`ffi_boundary::call`); `buffer` is null
    // or `length` bytes by `fi_tinjectdata(3)`.
    unsafe { call::<T>(fid, |endpoint| endpoint.tagged_inject(tag, bytes(buffer, length)?, Some(data))) }
}
