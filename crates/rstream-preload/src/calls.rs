//! The calls that [`rstream_calls`] makes, under the C library's names.

use std::ffi::{c_int, c_uint, c_void};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec, timeval,
};

/// A name, what is behind it, and its type.
macro_rules! calls {
    ($($name:ident = $call:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: the application's arguments.
            unsafe { rstream_calls::$call($($argument),*) }
        }
    )*};
}

// Offsets have 64 bits here: names that say so mean the same.
calls! {
    accept = accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    accept4 = accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    close = close(fd: c_int) -> c_int;
    close_range = close_range(first: u32, last: u32, flags: c_int) -> c_int;
    closefrom = closefrom(first: c_int);
    connect = connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    dup = dup(fd: c_int) -> c_int;
    dup2 = dup2(fd: c_int, new: c_int) -> c_int;
    dup3 = dup3(fd: c_int, new: c_int, flags: c_int) -> c_int;
    epoll_create = epoll_create(size: c_int) -> c_int;
    epoll_create1 = epoll_create1(flags: c_int) -> c_int;
    epoll_ctl = epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait = epoll_pwait(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t
    ) -> c_int;
    epoll_pwait2 = epoll_pwait2(
        set: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    epoll_wait = epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    fcntl = fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fcntl64 = fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    getsockopt = getsockopt(
        fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t
    ) -> c_int;
    ioctl = ioctl(fd: c_int, request: libc::Ioctl, argument: usize) -> c_int;
    poll = poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll = ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    preadv2 = preadv2(fd: c_int, places: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    preadv64v2 = preadv2(fd: c_int, places: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pselect = pselect(
        count: c_int, readable: *mut fd_set, writable: *mut fd_set, other: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    pwritev2 = pwritev2(fd: c_int, places: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    pwritev64v2 = pwritev2(fd: c_int, places: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    read = read(fd: c_int, address: *mut c_void, length: size_t) -> ssize_t;
    readv = readv(fd: c_int, places: *const iovec, count: c_int) -> ssize_t;
    recv = recv(fd: c_int, address: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    recvfrom = recvfrom(
        fd: c_int, address: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, room: *mut socklen_t
    ) -> ssize_t;
    recvmmsg = recvmmsg(
        fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec
    ) -> c_int;
    recvmsg = recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    select = select(
        count: c_int, readable: *mut fd_set, writable: *mut fd_set, other: *mut fd_set, timeout: *mut timeval
    ) -> c_int;
    send = send(fd: c_int, address: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    sendfile = sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendfile64 = sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    sendmmsg = sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendmsg = sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendto = sendto(
        fd: c_int, address: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, room: socklen_t
    ) -> ssize_t;
    setsockopt = setsockopt(
        fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t
    ) -> c_int;
    shutdown = shutdown(fd: c_int, how: c_int) -> c_int;
    splice = splice(
        from: c_int, from_offset: *mut i64, to: c_int, to_offset: *mut i64, length: size_t, flags: u32
    ) -> ssize_t;
    write = write(fd: c_int, address: *const c_void, length: size_t) -> ssize_t;
    writev = writev(fd: c_int, places: *const iovec, count: c_int) -> ssize_t;
}
