//! The calls that move bytes.

use std::ffi::{c_int, c_void};

use libc::{iovec, msghdr, off_t, ssize_t};

/// recv. MSG_PEEK with MSG_WAITALL returns what is there. MSG_OOB is EINVAL through shared memory.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_recv(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the header asks the caller for what the C library asks, here and below.
    unsafe { rstream_calls::recv(fd, buffer, length, flags) }
}

/// read.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_read(fd: c_int, buffer: *mut c_void, length: usize) -> ssize_t {
    // SAFETY: as above.
    unsafe { rstream_calls::read(fd, buffer, length) }
}

/// readv.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { rstream_calls::readv(fd, buffers, count) }
}

/// recvmsg. Nothing comes beside bytes that come through shared memory.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { rstream_calls::recvmsg(fd, message, flags) }
}

/// send. With flags other than MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE and MSG_EOR the connection goes back to TCP
/// first, or the call fails with EOPNOTSUPP as rs_detach does.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_send(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { rstream_calls::send(fd, buffer, length, flags) }
}

/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_write(fd: c_int, buffer: *const c_void, length: usize) -> ssize_t {
    // SAFETY: as above.
    unsafe { rstream_calls::write(fd, buffer, length) }
}

/// writev.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { rstream_calls::writev(fd, buffers, count) }
}

/// sendmsg, on any socket. Attached descriptors that go with the message (SCM_RIGHTS) go back to TCP first, or the
/// call fails with EOPNOTSUPP as rs_detach does.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { rstream_calls::sendmsg(fd, message, flags) }
}

/// sendfile, to an attached connection. The bytes of the file are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: usize,
) -> ssize_t {
    // SAFETY: as above.
    unsafe { rstream_calls::sendfile(to, from, offset, count) }
}
