//! What is set and asked of a descriptor.

use std::ffi::{c_int, c_ulong, c_void};

use libc::socklen_t;

/// setsockopt. Options that need TCP take the connection back to it (SO_RCVLOWAT above 1, SO_ZEROCOPY,
/// SO_OOBINLINE, SO_TIMESTAMP and its kind, TCP_ULP, TCP_REPAIR, TCP_MD5SIG), or fail with EOPNOTSUPP as
/// rs_detach does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rs_setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    // SAFETY: the header asks the caller for what the C library asks, here and below.
    unsafe { rstream_calls::setsockopt(fd, level, name, value, length) }
}

/// getsockopt. SO_ERROR is also what calls here have found.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rs_getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: as above.
    unsafe { rstream_calls::getsockopt(fd, level, name, value, length) }
}

/// ioctl. FIONREAD counts the bytes that can be received, in an int.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rs_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe { rstream_calls::ioctl(fd, request, argument as usize) }
}
