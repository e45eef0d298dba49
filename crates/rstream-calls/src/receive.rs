//! The calls that receive.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io::IoSliceMut;
use std::mem::ManuallyDrop;

use libc::{iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rstream_sockets::{Answer, Then};
use rustix::io::Errno;

use crate::connection::Connection;
use crate::errno::{bytes, outcome};
use crate::guard::guard;
use crate::send::is_too_many;
use crate::sleep::{Deadline, Waiter};
use crate::{beside, real, sleep, table};

/// Flags that this library understands. A call with others goes to the kernel.
const KNOWN: c_int =
    libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC;
/// Buffers of one call, as in the kernel.
const MOST: usize = 1024;

/// Receives on a connection that is watched. `call` is the application's own call, with these flags.
fn receive_on(
    connection: &Connection,
    fd: c_int,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
    call: impl Fn(c_int) -> ssize_t,
) -> Result<usize, Errno> {
    let (stream, socket) = (&connection.stream, connection.socket(fd));
    let (peek, all) = (flags & libc::MSG_PEEK != 0, flags & libc::MSG_WAITALL != 0);
    let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let mut done = 0;
    let mut rest: &mut [IoSliceMut<'_>] = buffers;
    let may_wait = flags & libc::MSG_DONTWAIT == 0;
    let mut then = if may_wait { Then::Look } else { Then::Return };
    let mut deadline = Deadline::default();
    loop {
        let turn = stream.turn();
        let step = match guard(|| stream.receive(&socket, rest, peek, then)) {
            Ok(Answer::Kernel) => {
                // The kernel would take bells for the bytes that are missing.
                let some = flags & !libc::MSG_WAITALL;
                let outcome = outcome(if done == 0 { call(some) } else { real_receive(fd, rest, some) });
                let received = guard(|| stream.received(&socket, rest, outcome, peek));
                if may_wait {
                    connection.note_received(fd, outcome);
                }
                match received {
                    Ok(None) => continue,
                    Ok(Some(length)) => Ok(length),
                    Err(error) => Err(error),
                }
            }
            // As in the kernel, a call for no bytes waits until there is one.
            Ok(Answer::Done(_)) if wanted == 0 => {
                let mut byte = [0];
                let byte = &mut [IoSliceMut::new(&mut byte)];
                return receive_on(connection, fd, byte, flags | libc::MSG_PEEK, call).map(|_| 0);
            }
            Ok(Answer::Done(length)) => Ok(length),
            Ok(Answer::Wait) => match then {
                Then::Return => Err(Errno::AGAIN),
                Then::Look if !sleep::is_blocking(fd) => {
                    then = Then::Return;
                    continue;
                }
                Then::Look => {
                    let look = || stream.look(&socket, false, false).ok()?.input.filter(|&ready| ready);
                    if connection.patience.look(connection.spin, stream.looks(), look).is_none() {
                        then = Then::Sleep;
                    }
                    continue;
                }
                Then::Sleep => {
                    let waiter = Waiter { output: false, has_part: done > 0 };
                    match sleep::sleep(connection, fd, turn, waiter, &mut deadline) {
                        Ok(()) => continue,
                        Err(error) => Err(error),
                    }
                }
            },
            Err(error) => Err(error),
        };
        match step {
            Ok(length) => {
                done += length;
                if !all || peek || length == 0 || done == wanted {
                    return Ok(done);
                }
                IoSliceMut::advance_slices(&mut rest, length);
            }
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
    }
}

fn real_receive(fd: c_int, buffers: &mut [IoSliceMut<'_>], flags: c_int) -> ssize_t {
    // SAFETY: zeros are a message without address, pieces and control data.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = buffers.as_mut_ptr().cast::<iovec>();
    message.msg_iovlen = buffers.len().min(MOST);
    // SAFETY: `IoSliceMut` is laid out as `iovec`, and the pieces live through the call.
    unsafe { real::recvmsg(fd, &raw mut message, flags) }
}

/// Receives, if the descriptor is a connection that is watched.
///
/// # Safety
/// The buffers are writable, as the application promises to the function that it called.
unsafe fn intercept(
    fd: c_int,
    buffers: &mut [IoSliceMut<'_>],
    flags: c_int,
    call: impl Fn(c_int) -> ssize_t,
) -> Option<ssize_t> {
    table::with_connection(fd, |connection| {
        let received = match flags & !KNOWN {
            0 => receive_on(connection, fd, buffers, flags, call),
            _ if !connection.stream.has_rings() || flags & libc::MSG_ERRQUEUE != 0 => return None,
            // Bytes that are only to be counted are copied too.
            libc::MSG_TRUNC => receive_on(connection, fd, buffers, flags, call),
            // There is no urgent byte.
            _ => Err(Errno::INVAL),
        };
        connection.end_call(fd);
        Some(bytes(received))
    })
}

/// `MSG_TRUNC`: the bytes are only taken. There need not be a buffer.
unsafe fn discard(fd: c_int, length: size_t, flags: c_int) -> Option<ssize_t> {
    const MOST: usize = 64 << 10;
    if flags & libc::MSG_TRUNC == 0 || flags & libc::MSG_PEEK != 0 || table::get(fd)?.connection().is_none() {
        return None;
    }
    let mut bytes = ManuallyDrop::new(vec![0; length.min(MOST)]);
    // SAFETY: the buffer has so many bytes.
    let taken = unsafe { recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags & !libc::MSG_TRUNC) };
    drop(ManuallyDrop::into_inner(bytes));
    Some(taken)
}

/// The application's buffer. `None`: there is no such memory.
unsafe fn buffer<'a>(address: *mut c_void, length: size_t) -> Option<IoSliceMut<'a>> {
    if length == 0 {
        return Some(IoSliceMut::new(&mut []));
    }
    // SAFETY: the application promises the function it called that so many bytes are writable.
    let bytes =
        || unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), length.min(isize::MAX as usize)) };
    (!address.is_null()).then(|| IoSliceMut::new(bytes()))
}

/// The application's buffers, as [`buffer`].
unsafe fn buffers<'a>(places: *const iovec, count: usize) -> Option<Vec<IoSliceMut<'a>>> {
    if count > 0 && places.is_null() {
        return None;
    }
    let place = |at| {
        // SAFETY: the application promises so many entries, and what each says.
        unsafe {
            let place = *places.add(at);
            buffer(place.iov_base, place.iov_len)
        }
    };
    (0..count).map(place).collect()
}

/// A call without the memory that it needs. The kernel refuses it, but of an upgraded connection it would
/// wait for a bell before.
fn refuse(fd: c_int, call: impl Fn() -> ssize_t) -> ssize_t {
    let upgraded = |connection: &Connection| connection.stream.has_rings().then_some(());
    match table::with_connection(fd, upgraded) {
        Some(()) => bytes(Err(Errno::FAULT)),
        None => call(),
    }
}

/// `read`.
pub unsafe fn read(fd: c_int, address: *mut c_void, length: size_t) -> ssize_t {
    // SAFETY: the application's promises, here and below.
    unsafe {
        let call = |_| real::read(fd, address, length);
        // Of no bytes it does not wait, other than `recv`.
        if length == 0 {
            return call(0);
        }
        let Some(buffer) = buffer(address, length) else { return refuse(fd, || call(0)) };
        intercept(fd, &mut [buffer], 0, call).unwrap_or_else(|| call(0))
    }
}

/// `recv`.
pub unsafe fn recv(fd: c_int, address: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        if let Some(dropped) = discard(fd, length, flags) {
            return dropped;
        }
        let call = |flags| real::recv(fd, address, length, flags);
        let Some(buffer) = buffer(address, length) else { return refuse(fd, || call(flags)) };
        intercept(fd, &mut [buffer], flags, call).unwrap_or_else(|| call(flags))
    }
}

/// `recvfrom`.
pub unsafe fn recvfrom(
    fd: c_int,
    address: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    room: *mut socklen_t,
) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        if let Some(dropped) = discard(fd, length, flags) {
            return dropped;
        }
        let call = |flags| real::recvfrom(fd, address, length, flags, from, room);
        let Some(buffer) = buffer(address, length) else { return refuse(fd, || call(flags)) };
        match intercept(fd, &mut [buffer], flags, call) {
            None => call(flags),
            Some(received) => {
                // A connected socket names no sender.
                if received >= 0 && !from.is_null() && !room.is_null() {
                    *room = 0;
                }
                received
            }
        }
    }
}

/// `readv`.
pub unsafe fn readv(fd: c_int, places: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        let call = |_| real::readv(fd, places, count);
        if table::get(fd).is_none() || is_too_many(count) {
            return call(0);
        }
        let buffers = buffers(places, usize::try_from(count).unwrap_or(0));
        let Some(buffers) = buffers else { return refuse(fd, || call(0)) };
        let mut buffers = ManuallyDrop::new(buffers);
        let is_empty = buffers.iter().all(|buffer| buffer.is_empty());
        let received = if is_empty { None } else { intercept(fd, &mut buffers, 0, call) };
        drop(ManuallyDrop::into_inner(buffers));
        received.unwrap_or_else(|| call(0))
    }
}

/// `recvmsg`.
pub unsafe fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        if table::get(fd).is_none() || message.is_null() || (*message).msg_iovlen > MOST {
            return real::recvmsg(fd, message, flags);
        }
        let (room_for_name, room_for_control) = ((*message).msg_namelen, (*message).msg_controllen);
        let is_kernels = Cell::new(false);
        let call = |flags| {
            // As it was before an earlier call.
            ((*message).msg_namelen, (*message).msg_controllen) = (room_for_name, room_for_control);
            let received = real::recvmsg(fd, message, flags);
            is_kernels.set(received >= 0);
            received
        };
        let buffers = buffers((*message).msg_iov, (*message).msg_iovlen);
        let Some(buffers) = buffers else { return refuse(fd, || call(flags)) };
        let mut buffers = ManuallyDrop::new(buffers);
        let received = intercept(fd, &mut buffers, flags, call);
        drop(ManuallyDrop::into_inner(buffers));
        match received {
            None => call(flags),
            Some(received) => {
                if received >= 0 {
                    if !is_kernels.get() {
                        ((*message).msg_namelen, (*message).msg_controllen, (*message).msg_flags) = (0, 0, 0);
                    }
                    beside::write(fd, &mut *message, room_for_control, is_kernels.get());
                }
                received
            }
        }
    }
}
