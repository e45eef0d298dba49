//! The variants that are called where the compiler knows how much room there is.

use std::ffi::{c_int, c_void};

use libc::{nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec};

/// As the C library: the program is ended rather than memory overwritten.
fn check(length: size_t, room: size_t) {
    if length > room {
        std::process::abort();
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    address: *mut c_void,
    length: size_t,
    room: size_t,
) -> ssize_t {
    check(length, room);
    // SAFETY: the application's arguments, here and below.
    unsafe { rstream_calls::read(fd, address, length) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    address: *mut c_void,
    length: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    check(length, room);
    // SAFETY: as above.
    unsafe { rstream_calls::recv(fd, address, length, flags) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    address: *mut c_void,
    length: size_t,
    size: size_t,
    flags: c_int,
    from: *mut sockaddr,
    room: *mut socklen_t,
) -> ssize_t {
    check(length, size);
    // SAFETY: as above.
    unsafe { rstream_calls::recvfrom(fd, address, length, flags, from, room) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: usize,
) -> c_int {
    check(count as usize, room / size_of::<pollfd>());
    // SAFETY: as above.
    unsafe { rstream_calls::poll(fds, count, timeout) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: usize,
) -> c_int {
    check(count as usize, room / size_of::<pollfd>());
    // SAFETY: as above.
    unsafe { rstream_calls::ppoll(fds, count, timeout, mask) }
}
