//! The C library's streams, which do not call the functions here: a connection that they use stays on TCP.

use std::ffi::{c_char, c_int};

use rstream_calls::errno::set_errno;
use rstream_calls::stays_on_tcp;
use rustix::io::Errno;

use crate::real;

/// Why a connection goes back to TCP.
pub(crate) const WHY: &str = "it is used by the C library's streams";

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    if !stays_on_tcp(fd, WHY) {
        set_errno(Errno::NOTSUP);
        return std::ptr::null_mut();
    }
    // SAFETY: the application's arguments.
    unsafe { real::fdopen(fd, mode) }
}
