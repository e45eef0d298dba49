//! The calls that move several messages, and those with an offset that is none.

use std::ffi::{c_int, c_uint};

use libc::{iovec, mmsghdr, msghdr, off_t, ssize_t, timespec};

use crate::descriptor::pending_error;
use crate::errno::set_errno;
use crate::send::is_too_many;
use crate::{real, receive, send, table};

fn is_connection(fd: c_int) -> bool {
    table::get(fd).is_some_and(|item| item.connection().is_some())
}

/// One message after the other. `one` moves one, and says how many bytes. `is_last`: it was the last one.
unsafe fn each(
    messages: *mut mmsghdr,
    count: c_uint,
    mut one: impl FnMut(&mut mmsghdr, bool) -> ssize_t,
    is_last: impl Fn(&mmsghdr) -> bool,
) -> c_int {
    let mut done = 0;
    while done < count {
        // SAFETY: the application promises so many messages.
        let message = unsafe { &mut *messages.add(done as usize) };
        let Ok(moved) = u32::try_from(one(message, done == 0)) else {
            return if done > 0 { done.cast_signed() } else { -1 };
        };
        message.msg_len = moved;
        done += 1;
        if is_last(message) {
            break;
        }
    }
    done.cast_signed()
}

/// `recvmmsg`.
pub unsafe fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if !is_connection(fd) {
        // SAFETY: the application's arguments.
        return unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    }
    // An error comes before what was received before it.
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(error) = pending_error(fd)
    {
        set_errno(error);
        return -1;
    }
    let flags = flags & !libc::MSG_WAITFORONE;
    // The kernel looks at the time after each message, so that it is at hand for the second at the earliest.
    // The others are taken if they are there.
    // SAFETY: the application's messages.
    unsafe {
        let one = |message: &mut mmsghdr, first| {
            let flags = if first { flags } else { flags | libc::MSG_DONTWAIT };
            receive::recvmsg(fd, &raw mut message.msg_hdr, flags)
        };
        each(messages, count, one, |_| false)
    }
}

/// `sendmmsg`.
pub unsafe fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
    if !is_connection(fd) {
        // SAFETY: the application's arguments.
        return unsafe { real::sendmmsg(fd, messages, count, flags) };
    }
    // One that is sent in part is the last.
    let is_cut = |message: &mmsghdr| (message.msg_len as usize) < length(&message.msg_hdr);
    // SAFETY: the application's messages.
    unsafe {
        each(messages, count, |message, _| send::sendmsg(fd, &raw const message.msg_hdr, flags), is_cut)
    }
}

/// `preadv2`.
pub unsafe fn preadv2(fd: c_int, places: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
    if offset != -1 || is_too_many(count) || !is_connection(fd) {
        // SAFETY: the application's arguments.
        return unsafe { real::preadv2(fd, places, count, offset, flags) };
    }
    let mut message = message(places, count);
    // SAFETY: as above.
    unsafe { receive::recvmsg(fd, &raw mut message, flags_of(flags)) }
}

/// `pwritev2`.
pub unsafe fn pwritev2(
    fd: c_int,
    places: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    if offset != -1 || is_too_many(count) || !is_connection(fd) {
        // SAFETY: the application's arguments.
        return unsafe { real::pwritev2(fd, places, count, offset, flags) };
    }
    let message = message(places, count);
    // SAFETY: as above.
    unsafe { send::sendmsg(fd, &raw const message, flags_of(flags)) }
}

/// The bytes of a message that was sent.
fn length(message: &msghdr) -> usize {
    // SAFETY: the application promises so many entries, which the call that sent them has read.
    (0..message.msg_iovlen).map(|at| unsafe { (*message.msg_iov.add(at)).iov_len }).sum()
}

/// These places, as a message without anything else.
fn message(places: *const iovec, count: c_int) -> msghdr {
    // SAFETY: zeros are a message without address, pieces and control data.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = places.cast_mut();
    message.msg_iovlen = usize::try_from(count).unwrap_or(0);
    message
}

/// One flag means something to sockets too; the others are for files.
fn flags_of(flags: c_int) -> c_int {
    if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 }
}
