//! The calls that connect, copy and close descriptors, and set and ask what belongs to them.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::net::Shutdown;
use std::sync::Arc;

use libc::{size_t, sockaddr, socklen_t, ssize_t};
use rstream_sockets::statistics::{close_left, is_left, left};
use rstream_sockets::{Delays, Role};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::errno::{errno, keep, set_errno};
use crate::table::{self, Item};
use crate::{connection, poll, process, real, receive, send, set, sleep};

/// The descriptor is about to be closed: what it meant ends, unless another descriptor means it too. A `close`
/// that succeeds leaves the last call's error as it is.
fn leave(fd: c_int) {
    keep(|| leave_any(fd));
}

fn leave_any(fd: c_int) {
    end_left(fd);
    if table::get(fd).is_none() || !process::is_own() {
        return;
    }
    if let Some(item) = forget(fd)
        && let Some(connection) = item.connection()
    {
        connection.leave_sets();
        let socket = connection.socket(fd);
        if connection.stream.close(&socket, || is_reset(fd)) {
            reset(fd);
        }
    }
}

/// The descriptor means nothing from now on. Returns what it meant, unless another descriptor means it too.
pub(crate) fn forget(fd: c_int) -> Option<Arc<Item>> {
    let item = table::put(fd, None)?;
    // What uses it by itself goes on by a copy, if there is one, which has a reference of its own.
    if Arc::strong_count(&item) > 1
        && let Some((copy, _)) = table::all().find(|(_, other)| Arc::ptr_eq(other, &item))
    {
        item.set_descriptor(copy);
        return None;
    }
    Some(item)
}

/// Whether the application has asked for a reset (`SO_LINGER` with no time).
fn is_reset(fd: c_int) -> bool {
    let mut linger = libc::linger { l_onoff: 0, l_linger: 0 };
    let mut length = size_of::<libc::linger>() as socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `linger`, which has as many.
    let answer = unsafe {
        let (value, length) = ((&raw mut linger).cast(), &raw mut length);
        real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value, length)
    };
    answer == 0 && linger.l_onoff != 0 && linger.l_linger == 0
}

/// Has the kernel reset the connection when it is closed, as it does for unread bytes of its own.
pub(crate) fn reset(fd: c_int) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let length = size_of::<libc::linger>() as socklen_t;
    // SAFETY: `linger` is valid and has so many bytes.
    unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), length) };
}

/// A connection that stayed on TCP, and was not followed any more, has ended.
fn end_left(fd: c_int) {
    if is_left(fd) && process::is_own() {
        close_left(fd);
    }
}

/// The descriptor is new. What it may have meant before was closed unseen.
pub fn made(fd: c_int) -> c_int {
    end_left(fd);
    if fd >= 0 && table::get(fd).is_some() && process::is_own() {
        let ended = forget(fd);
        ended.as_ref().and_then(|item| item.connection()).into_iter().for_each(Connection::leave_sets);
    }
    fd
}

/// A copy means what the original means.
fn copied(fd: c_int, copy: c_int) -> c_int {
    if copy >= 0 && process::is_own() {
        drop(table::put(copy, table::get(fd)));
    }
    copy
}

/// `close`.
pub unsafe fn close(fd: c_int) -> c_int {
    leave(fd);
    // SAFETY: no pointers.
    unsafe { real::close(fd) }
}

/// `close_range`.
pub unsafe fn close_range(first: u32, last: u32, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 && process::is_own() {
        let is_in = |fd: c_int| u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd));
        table::all().map(|(fd, _)| fd).chain(left()).filter(|&fd| is_in(fd)).for_each(leave);
    }
    // SAFETY: no pointers.
    unsafe { real::close_range(first, last, flags) }
}

/// `closefrom`.
pub unsafe fn closefrom(first: c_int) {
    // SAFETY: no pointers.
    unsafe { close_range(first.max(0).cast_unsigned(), u32::MAX, 0) };
}

/// `dup`.
pub unsafe fn dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    copied(fd, unsafe { real::dup(fd) })
}

/// Whether a connection is to become a standard descriptor, and cannot go back to TCP: the C library's streams
/// write there, past this library.
fn is_refused(fd: c_int, new: c_int) -> bool {
    let is_refused = fd != new
        && (0..3).contains(&new)
        && process::is_own()
        && !connection::stays_on_tcp(fd, "it is used by the C library's streams");
    if is_refused {
        set_errno(Errno::OPNOTSUPP);
    }
    is_refused
}

/// `dup2`.
pub unsafe fn dup2(fd: c_int, new: c_int) -> c_int {
    if is_refused(fd, new) {
        return -1;
    }
    if fd != new && is_open(fd) {
        leave(new);
    }
    // SAFETY: no pointers.
    let copy = unsafe { real::dup2(fd, new) };
    if fd == new { copy } else { copied(fd, copy) }
}

/// `dup3`.
pub unsafe fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
    if is_refused(fd, new) {
        return -1;
    }
    if fd != new && flags & !libc::O_CLOEXEC == 0 && is_open(fd) {
        leave(new);
    }
    // SAFETY: no pointers.
    copied(fd, unsafe { real::dup3(fd, new, flags) })
}

fn is_open(fd: c_int) -> bool {
    // SAFETY: no pointers.
    unsafe { real::fcntl(fd, libc::F_GETFD, 0) >= 0 }
}

/// `fcntl`. It takes one more argument or none, of the size of a pointer: functions that do are called alike.
pub unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the application's arguments.
    let answer = unsafe { real::fcntl(fd, command, argument) };
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, answer),
        _ => answer,
    }
}

/// `connect`.
pub unsafe fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the application's arguments.
    let connected = unsafe { real::connect(fd, address, length) };
    let is_under_way = connected == 0 || errno() == Errno::INPROGRESS;
    // SAFETY: the kernel has taken the address, so that its family can be read.
    let is_inet = |address: *const sockaddr| unsafe {
        !address.is_null() && matches!(c_int::from((*address).sa_family), libc::AF_INET | libc::AF_INET6)
    };
    // SAFETY: as above.
    if connected == 0 && unsafe { c_int::from((*address).sa_family) } == libc::AF_UNSPEC {
        // It is none any more.
        keep(|| drop(table::put(fd, None)));
    }
    // A second call asks how the first went.
    if is_under_way && is_inet(address) && table::get(fd).is_none() && process::is_own() {
        keep(|| {
            connection::add(fd, Role::Active);
            set::introduce(fd);
        });
    }
    connected
}

/// `accept`.
pub unsafe fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the application's arguments.
    unsafe { accept4(fd, address, length, 0) }
}

/// `accept4`.
pub unsafe fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    // SAFETY: the application's arguments.
    let accepted = made(unsafe { real::accept4(fd, address, length, flags) });
    if accepted >= 0 && process::is_own() {
        connection::add(accepted, Role::Passive);
    }
    accepted
}

/// `shutdown`.
pub unsafe fn shutdown(fd: c_int, how: c_int) -> c_int {
    let item = table::get(fd);
    if let Some(connection) = item.as_ref().and_then(|item| item.connection()) {
        let shut = |how| connection.stream.shut(&connection.socket(fd), how);
        let outcome = match how {
            libc::SHUT_RD => shut(Shutdown::Read),
            libc::SHUT_WR => shut(Shutdown::Write),
            libc::SHUT_RDWR => shut(Shutdown::Both),
            // The kernel refuses it.
            _ => Ok(true),
        };
        match outcome {
            Ok(true) => {}
            Ok(false) => return 0,
            Err(error) => {
                set_errno(error);
                return -1;
            }
        }
    }
    // SAFETY: no pointers.
    unsafe { real::shutdown(fd, how) }
}

/// Options that only the kernel can serve: a connection that uses one stays on TCP.
const ONLY_TCP: [(c_int, c_int); 12] = [
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP_NEW),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS_NEW),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING_NEW),
    (libc::IPPROTO_TCP, libc::TCP_ULP),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
];

/// `setsockopt`.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    let item = table::get(fd);
    if let Some(connection) = item.as_ref().and_then(|item| item.connection()) {
        if ONLY_TCP.contains(&(level, name)) && !connection.stay_on_tcp(fd, "an option needs TCP") {
            set_errno(Errno::OPNOTSUPP);
            return -1;
        }
        if length as usize >= size_of::<c_int>()
            && !value.is_null()
            && let Some(mut delays) = connection.stream.delays()
            && let Some(delay) = delay(&mut delays, level, name)
        {
            // SAFETY: so many bytes are readable, as the application says.
            *delay = unsafe { value.cast::<c_int>().read_unaligned() } != 0;
            connection.stream.set_delays(delays);
            return 0;
        }
    }
    // SAFETY: the application's arguments.
    unsafe { real::setsockopt(fd, level, name, value, length) }
}

/// What an option says of how the kernel delays what is sent.
fn delay(delays: &mut Delays, level: c_int, name: c_int) -> Option<&mut bool> {
    match (level, name) {
        (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(&mut delays.no_delay),
        (libc::IPPROTO_TCP, libc::TCP_CORK) => Some(&mut delays.cork),
        _ => None,
    }
}

/// What an option of a connection is, of which the kernel has told this.
fn known_option(connection: &Connection, level: c_int, name: c_int, told: c_int) -> c_int {
    if (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR) {
        // What the kernel has said to this library already comes first.
        if told != 0 {
            connection.stream.note_told(Errno::from_raw_os_error(told));
        }
        return connection.stream.take_error().map_or(told, Errno::raw_os_error);
    }
    let delays = connection.stream.delays();
    delays.and_then(|mut delays| Some(c_int::from(*delay(&mut delays, level, name)?))).unwrap_or(told)
}

/// `getsockopt`.
pub unsafe fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the application's arguments.
    let answer = unsafe { real::getsockopt(fd, level, name, value, length) };
    if answer == 0
        && let Some(item) = table::get(fd)
        && let Some(connection) = item.connection()
        // SAFETY: the kernel has written the length, and a number if there is room for it.
        && unsafe { *length } as usize == size_of::<c_int>()
    {
        let value = value.cast::<c_int>();
        // SAFETY: as above.
        unsafe { value.write_unaligned(known_option(connection, level, name, value.read_unaligned())) };
    }
    answer
}

/// Takes the error of a connection that no call has reported yet.
pub(crate) fn pending_error(fd: c_int) -> Option<Errno> {
    let mut error = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    // SAFETY: at most `length` bytes are written to `error`, which has as many.
    unsafe { getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut length) };
    (error != 0).then(|| Errno::from_raw_os_error(error))
}

/// `ioctl`.
pub unsafe fn ioctl(fd: c_int, request: libc::Ioctl, argument: usize) -> c_int {
    let unread = table::with_connection(fd, |connection| {
        let asks = request == libc::FIONREAD;
        let unread = asks.then(|| connection.stream.unread(&connection.socket(fd)))?;
        connection.note_use();
        unread
    });
    match unread {
        Some(bytes) if argument != 0 => {
            // SAFETY: the request's argument is the address of an integer.
            unsafe { *(argument as *mut c_int) = c_int::try_from(bytes).unwrap_or(c_int::MAX) };
            0
        }
        // SAFETY: the application's arguments.
        _ => unsafe { real::ioctl(fd, request, argument) },
    }
}

/// `splice`.
pub unsafe fn splice(
    from: c_int,
    from_offset: *mut i64,
    to: c_int,
    to_offset: *mut i64,
    length: size_t,
    flags: u32,
) -> ssize_t {
    const PIECE: usize = 64 << 10;
    let upgraded = |fd| {
        let item = table::get(fd);
        item.as_ref()
            .and_then(|item| item.connection())
            .is_some_and(|connection| !connection.stream.stay(&connection.socket(fd), "splice"))
    };
    if length == 0 || !upgraded(from) && !upgraded(to) {
        // SAFETY: the application's arguments.
        return unsafe { real::splice(from, from_offset, to, to_offset, length, flags) };
    }
    let mut piece = ManuallyDrop::new(vec![0_u8; PIECE.min(length)]);
    let is_waiting = flags & libc::SPLICE_F_NONBLOCK == 0 && (upgraded(from) || sleep::is_blocking(to));
    let wait = if is_waiting { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: the buffer has so many bytes.
    let moved = unsafe {
        match upgraded(from) {
            // What a pipe has no room for stays unread.
            true => {
                let there =
                    receive::recv(from, piece.as_mut_ptr().cast(), piece.len(), wait | libc::MSG_PEEK);
                if there <= 0 {
                    there
                } else {
                    let written = send::write(to, piece.as_ptr().cast(), there as usize);
                    if written > 0 {
                        receive::recv(from, piece.as_mut_ptr().cast(), written as usize, 0);
                    }
                    written
                }
            }
            false if !(has_room(to) || is_waiting && await_room(to)) => {
                if errno() != Errno::INTR {
                    set_errno(Errno::AGAIN);
                }
                -1
            }
            false => {
                // What is taken from a pipe cannot be put back.
                let most = if is_waiting { piece.len() } else { room(to).min(piece.len()) };
                let got = libc::read(from, piece.as_mut_ptr().cast(), most);
                if got <= 0 { got } else { send::send_all(to, &piece[..got as usize]) }
            }
        }
    };
    drop(ManuallyDrop::into_inner(piece));
    moved
}

/// The least that an upgraded connection with room takes at once.
fn room(fd: c_int) -> usize {
    let item = table::get(fd);
    item.as_ref().and_then(|item| item.connection()).map_or(usize::MAX, |connection| connection.stream.room())
}

/// Whether an upgraded connection takes a piece at once.
fn has_room(fd: c_int) -> bool {
    let item = table::get(fd);
    item.as_ref().and_then(|item| item.connection()).is_none_or(|connection| {
        let ready = connection.stream.look(&connection.socket(fd), false, true);
        // The call itself says what is wrong.
        ready.is_ok_and(|ready| ready.output != Some(false))
    })
}

/// Waits for that, as long as a call that sends would.
fn await_room(fd: c_int) -> bool {
    let limit = sleep::time_limit(fd, libc::SO_SNDTIMEO);
    let mut polled = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
    set_errno(Errno::AGAIN);
    poll::wait(&mut polled, limit, std::ptr::null()) > 0
}
