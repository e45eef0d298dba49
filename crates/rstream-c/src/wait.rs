//! The calls that wait for several descriptors.

use std::ffi::c_int;

use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::process::is_preloaded;

/// poll, for any descriptors, attached or not. `timeout`: in milliseconds; below 0 there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the header asks the caller for what the C library asks, here and below.
    unsafe { rstream_calls::poll(fds, count, timeout) }
}

/// ppoll.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as above.
    unsafe { rstream_calls::ppoll(fds, count, timeout, mask) }
}

/// select. `timeout` gets what is left of it.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_select(
    count: c_int,
    readable: *mut fd_set,
    writable: *mut fd_set,
    other: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as above.
    unsafe { rstream_calls::select(count, readable, writable, other, timeout) }
}

/// epoll_create1. The set is for the functions here only, and is closed by rs_close. It takes any descriptors, also
/// before they are attached, and other sets.
#[unsafe(no_mangle)]
pub extern "C" fn rs_epoll_create1(flags: c_int) -> c_int {
    match is_preloaded() {
        // SAFETY: no pointers.
        true => unsafe { libc::epoll_create1(flags) },
        // SAFETY: as above.
        false => unsafe { rstream_calls::epoll_create1(flags) },
    }
}

/// epoll_ctl, by level and by edge, with EPOLLONESHOT. EPOLLEXCLUSIVE is not for attached descriptors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rs_epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: as above.
    unsafe { rstream_calls::epoll_ctl(set, operation, fd, event) }
}

/// epoll_wait. `timeout`: in milliseconds; below 0 there is none. An edge may be reported once more than the kernel
/// does.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe { rstream_calls::epoll_wait(set, events, most, timeout) }
}

/// epoll_pwait.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rs_epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: as above.
    unsafe { rstream_calls::epoll_pwait(set, events, most, timeout, mask) }
}
