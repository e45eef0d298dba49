//! The functions behind those here: the C library's, or whatever stands in front of it.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

/// Declares functions of the C library, by their names and types.
#[macro_export]
macro_rules! real {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As the function of the C library.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static NEXT: ::std::sync::atomic::AtomicPtr<::std::ffi::c_void> =
                ::std::sync::atomic::AtomicPtr::new(::std::ptr::null_mut());
            let name = concat!(stringify!($name), "\0").as_bytes();
            // SAFETY: `concat!` ends the name with a zero.
            let name = unsafe { ::std::ffi::CStr::from_bytes_with_nul_unchecked(name) };
            let found = $crate::real::address(name, &NEXT);
            type Next = unsafe extern "C-unwind" fn($($type),*) -> $result;
            // SAFETY: the C library's function of this name has this type; `address` has not returned null.
            let next = unsafe { ::std::mem::transmute::<*mut ::std::ffi::c_void, Next>(found) };
            $crate::jitter();
            // SAFETY: the caller's.
            let result = unsafe { next($($argument),*) };
            $crate::jitter();
            result
        }
    )*};
}

/// Where they are looked for: behind this library, which may have functions of the same names.
static PLACE: AtomicPtr<c_void> = AtomicPtr::new(libc::RTLD_NEXT);

/// To be called before [`begin`](crate::begin) by a library that has no functions of these names: those are
/// called that the program itself would call.
pub fn use_programs() {
    PLACE.store(libc::RTLD_DEFAULT, Ordering::Relaxed);
}

/// The function that has this name, kept in `known`.
#[inline]
pub fn address(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let found = known.load(Ordering::Relaxed);
    if found.is_null() { find(name, known) } else { found }
}

#[cold]
fn find(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(PLACE.load(Ordering::Relaxed), name.as_ptr()) };
    if found.is_null() {
        // Nothing of this process can work without the C library.
        std::process::abort();
    }
    known.store(found, Ordering::Relaxed);
    found
}

real! {
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: u32, last: u32, flags: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, new: c_int) -> c_int;
    dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    ioctl(fd: c_int, request: libc::Ioctl, argument: usize) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    preadv2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pselect(
        count: c_int, readable: *mut fd_set, writable: *mut fd_set, other: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    pwritev2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    read(fd: c_int, buffer: *mut c_void, length: size_t) -> ssize_t;
    readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    recvfrom(
        fd: c_int, buffer: *mut c_void, length: size_t, flags: c_int, address: *mut sockaddr, room: *mut socklen_t
    ) -> ssize_t;
    recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    select(
        count: c_int, readable: *mut fd_set, writable: *mut fd_set, other: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    send(fd: c_int, buffer: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendto(
        fd: c_int, buffer: *const c_void, length: size_t, flags: c_int, address: *const sockaddr, room: socklen_t
    ) -> ssize_t;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    splice(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, length: size_t, flags: u32
    ) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t;
}
