//! The functions that this library stands in front of: the next ones of their names, usually the C library's.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
    timeval,
};

macro_rules! real {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As the function of the C library.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            // SAFETY: `concat!` ends the name with a zero.
            let name = unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) };
            let found = address(name, &NEXT);
            // SAFETY: the C library's function of this name has this type; `address` has not returned null.
            let next: unsafe extern "C-unwind" fn($($type),*) -> $result = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller's.
            unsafe { next($($argument),*) }
        }
    )*};
}

/// The function of the C library that has this name, kept in `known`.
#[inline]
pub(crate) fn address(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    let found = known.load(Ordering::Relaxed);
    if found.is_null() { find(name, known) } else { found }
}

#[cold]
fn find(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
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
    creat(path: *const c_char, mode: mode_t) -> c_int;
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
    eventfd(count: u32, flags: c_int) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execve(
        path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int;
    execvp(name: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(
        name: *const c_char, arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    ioctl(fd: c_int, request: libc::Ioctl, argument: usize) -> c_int;
    open(path: *const c_char, flags: c_int, mode: usize) -> c_int;
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: usize) -> c_int;
    pipe(ends: *mut c_int) -> c_int;
    pipe2(ends: *mut c_int, flags: c_int) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
    posix_spawn(
        process: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, new: c_int) -> c_int;
    posix_spawnp(
        process: *mut pid_t, name: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int;
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
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    splice(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, length: size_t, flags: u32
    ) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, length: size_t) -> ssize_t;
    system(command: *const c_char) -> c_int;
    writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t;
}
