//! What comes beside the bytes of an upgraded connection: how many more there are, for programs that ask
//! (`TCP_INQ`), as gRPC does.

use std::ffi::c_int;

use libc::{cmsghdr, msghdr, socklen_t};

use crate::connection::Connection;
use crate::{descriptor, real, table};

/// The type of such a word, which has the option's number.
const TYPE: c_int = libc::TCP_INQ;
const WORD: u32 = size_of::<c_int>() as u32;

/// Writes it into a message that was received. `room`: of its control data. `is_kernels`: the kernel has written
/// what it knows.
///
/// # Safety
/// The message and its control data are writable, as the application promises to the function that it called.
pub(crate) unsafe fn write(fd: c_int, message: &mut msghdr, room: usize, is_kernels: bool) {
    let is_known = |connection: &Connection| is_kernels && !connection.stream.has_rings();
    let unread =
        |connection: &Connection| (!is_known(connection) && is_asked(fd)).then(|| unread(connection, fd));
    let Some(unread) = (room > 0).then(|| table::with_connection(fd, unread)).flatten() else { return };
    // SAFETY: no memory is touched.
    let (length, space) = unsafe { (libc::CMSG_LEN(WORD) as usize, libc::CMSG_SPACE(WORD) as usize) };
    if room < length || message.msg_control.is_null() {
        message.msg_controllen = 0;
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let header = message.msg_control.cast::<cmsghdr>();
    // SAFETY: there is room for the header and a word behind it. Neither need be aligned.
    unsafe {
        header.write_unaligned(cmsghdr { cmsg_len: length, cmsg_level: libc::IPPROTO_TCP, cmsg_type: TYPE });
        libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(unread);
    }
    message.msg_controllen = space.min(room);
}

/// What the application is told.
fn unread(connection: &Connection, fd: c_int) -> c_int {
    let socket = connection.socket(fd);
    let mut unread = 0;
    // SAFETY: the request writes one integer.
    unsafe { descriptor::ioctl(fd, libc::FIONREAD, &raw mut unread as usize) };
    let is_end = || connection.stream.look(&socket, false, false).is_ok_and(|ready| ready.ended);
    // As the kernel: whoever waits until there is more would wait for ever at the end.
    if unread == 0 { c_int::from(is_end()) } else { unread }
}

fn is_asked(fd: c_int) -> bool {
    let (mut asked, mut length): (c_int, _) = (0, WORD as socklen_t);
    // SAFETY: the kernel writes at most `length` bytes to `asked`, which has as many.
    unsafe {
        real::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INQ, (&raw mut asked).cast(), &raw mut length)
    };
    asked != 0
}
