//! The calls that send.

use std::ffi::{c_int, c_void};
use std::io::IoSlice;
use std::mem::ManuallyDrop;

use libc::{iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};
use rstream_sockets::Answer;
use rustix::io::Errno;

use crate::connection::Connection;
use crate::errno::{bytes, errno, keep, outcome, set_errno};
use crate::guard::guard;
use crate::sleep::{Deadline, Waiter};
use crate::{real, sleep, table};

/// Flags that this library understands. A call with others goes to the kernel.
const KNOWN: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;
/// Buffers of one call, as in the kernel.
const MOST: usize = 1024;

/// Sends on a connection that is watched. `call` is the application's own call.
fn send_on(
    connection: &Connection,
    fd: c_int,
    slices: &mut [IoSlice<'_>],
    flags: c_int,
    call: impl Fn() -> ssize_t,
) -> Result<usize, Errno> {
    let (stream, socket) = (&connection.stream, connection.socket(fd));
    let wanted: usize = slices.iter().map(|slice| slice.len()).sum();
    let mut done = 0;
    let mut rest: &mut [IoSlice<'_>] = slices;
    let (mut waits, mut deadline) = (None, Deadline::default());
    loop {
        let turn = stream.turn();
        let step = match guard(|| stream.send(&socket, rest)) {
            // What is left goes the way of the whole: the application's call may have begun in the ring.
            Ok(Answer::Kernel) => {
                let outcome = outcome(if done == 0 { call() } else { real_send(fd, rest, flags) });
                guard(|| stream.sent(&socket, *outcome.as_ref().unwrap_or(&0)))?;
                if outcome.as_ref().is_ok_and(|&length| done + length < wanted)
                    || outcome == Err(Errno::AGAIN)
                {
                    connection.note_full();
                }
                return match outcome {
                    Ok(length) => Ok(done + length),
                    Err(error) if done > 0 => {
                        keep_error(connection, error);
                        Ok(done)
                    }
                    Err(error) => Err(error),
                };
            }
            Ok(Answer::Done(length)) => Ok(length),
            Ok(Answer::Wait) => {
                connection.note_full();
                if flags & libc::MSG_DONTWAIT != 0 || !*waits.get_or_insert_with(|| sleep::is_blocking(fd)) {
                    Err(Errno::AGAIN)
                } else {
                    let look = || stream.look(&socket, false, true).ok()?.output.filter(|&ready| ready);
                    if connection.patience.look(connection.spin, stream.looks(), look).is_some() {
                        continue;
                    }
                    let waiter = Waiter { output: true, has_part: done > 0 };
                    match sleep::sleep(connection, fd, turn, waiter, &mut deadline) {
                        Ok(()) => continue,
                        Err(error) => Err(error),
                    }
                }
            }
            Err(error) => Err(error),
        };
        match step {
            Ok(length) => {
                done += length;
                // A call that may not wait gets done what it can; one that may is done when all is.
                if done == wanted {
                    return Ok(done);
                }
                IoSlice::advance_slices(&mut rest, length);
            }
            Err(error) if done > 0 => {
                keep_error(connection, error);
                return Ok(done);
            }
            Err(error) => {
                if error == Errno::PIPE && flags & libc::MSG_NOSIGNAL == 0 {
                    // SAFETY: the call has no pointers. It is what the kernel does.
                    unsafe { libc::raise(libc::SIGPIPE) };
                }
                return Err(error);
            }
        }
    }
}

/// [`rstream_sockets::Stream::keep_error`].
fn keep_error(connection: &Connection, error: Errno) {
    // A fault there is that of the next call.
    let _ = guard(|| {
        connection.stream.keep_error(error);
        Ok(())
    });
}

fn real_send(fd: c_int, slices: &[IoSlice<'_>], flags: c_int) -> ssize_t {
    // SAFETY: zeros are a message without address, pieces and control data.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = slices.as_ptr().cast::<iovec>().cast_mut();
    message.msg_iovlen = slices.len().min(MOST);
    // SAFETY: `IoSlice` is laid out as `iovec`, and the pieces live through the call.
    unsafe { real::sendmsg(fd, &raw const message, flags) }
}

/// Sends, if the descriptor is a connection that is watched.
///
/// # Safety
/// The buffers are readable, as the application promises to the function that it called.
unsafe fn intercept(
    fd: c_int,
    slices: &mut [IoSlice<'_>],
    flags: c_int,
    call: impl Fn() -> ssize_t,
) -> Option<ssize_t> {
    table::with_connection(fd, |connection| {
        let sent = match flags & !KNOWN {
            0 => send_on(connection, fd, slices, flags, call),
            // An urgent byte, and others: the connection stays on TCP.
            _ if connection.stay_on_tcp(fd, "it is used by calls with special flags") => return None,
            _ => Err(Errno::OPNOTSUPP),
        };
        connection.end_call(fd);
        Some(bytes(sent))
    })
}

/// What is to be sent. `None`: there is no such memory, which the kernel says best.
unsafe fn slice<'a>(address: *const c_void, length: size_t) -> Option<IoSlice<'a>> {
    if length == 0 {
        return Some(IoSlice::new(&[]));
    }
    // SAFETY: the application promises the function it called that so many bytes are readable.
    let bytes =
        || unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length.min(isize::MAX as usize)) };
    (!address.is_null()).then(|| IoSlice::new(bytes()))
}

/// As [`slice`]. `None` also for more pieces than the kernel takes, and if the first piece is not there.
unsafe fn slices<'a>(places: *const iovec, count: usize) -> Option<Vec<IoSlice<'a>>> {
    if count > MOST || count > 0 && places.is_null() {
        return None;
    }
    let place = |at| {
        // SAFETY: the application promises so many entries, and what each says.
        unsafe {
            let place = *places.add(at);
            slice(place.iov_base, place.iov_len)
        }
    };
    // As the kernel does, as far as there is memory.
    let slices: Vec<_> = (0..count).map_while(place).collect();
    (slices.len() == count || slices.iter().any(|slice| !slice.is_empty())).then_some(slices)
}

/// `write`.
pub unsafe fn write(fd: c_int, address: *const c_void, length: size_t) -> ssize_t {
    // SAFETY: the application's promises, here and below.
    unsafe {
        let call = || real::write(fd, address, length);
        let Some(slice) = slice(address, length) else { return call() };
        intercept(fd, &mut [slice], 0, call).unwrap_or_else(call)
    }
}

/// `send`.
pub unsafe fn send(fd: c_int, address: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        let call = || real::send(fd, address, length, flags);
        let Some(slice) = slice(address, length) else { return call() };
        intercept(fd, &mut [slice], flags, call).unwrap_or_else(call)
    }
}

/// `sendto`.
pub unsafe fn sendto(
    fd: c_int,
    address: *const c_void,
    length: size_t,
    flags: c_int,
    to: *const sockaddr,
    room: socklen_t,
) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        let call = || real::sendto(fd, address, length, flags, to, room);
        let Some(slice) = slice(address, length) else { return call() };
        intercept(fd, &mut [slice], flags, call).unwrap_or_else(call)
    }
}

/// `writev`.
pub unsafe fn writev(fd: c_int, places: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        let call = || real::writev(fd, places, count);
        if table::get(fd).is_none() || is_too_many(count) {
            return call();
        }
        let Some(slices) = slices(places, usize::try_from(count).unwrap_or(0)) else { return call() };
        let mut slices = ManuallyDrop::new(slices);
        let sent = intercept(fd, &mut slices, 0, call);
        drop(ManuallyDrop::into_inner(slices));
        sent.unwrap_or_else(call)
    }
}

/// `sendmsg`.
pub unsafe fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        let call = || real::sendmsg(fd, message, flags);
        if !message.is_null() && (*message).msg_controllen > 0 && !hands_over(&*message) {
            set_errno(Errno::OPNOTSUPP);
            return -1;
        }
        if table::get(fd).is_none() || message.is_null() {
            return call();
        }
        let Some(slices) = slices((*message).msg_iov, (*message).msg_iovlen) else { return call() };
        let mut slices = ManuallyDrop::new(slices);
        let sent = intercept(fd, &mut slices, flags, call);
        drop(ManuallyDrop::into_inner(slices));
        sent.unwrap_or_else(call)
    }
}

/// What the kernel refuses.
pub(crate) fn is_too_many(count: c_int) -> bool {
    usize::try_from(count).map_or(true, |count| count > MOST)
}

/// Whether the descriptors that go with a message can go to another process: a connection that does stays on
/// TCP, or goes back to it.
unsafe fn hands_over(message: &msghdr) -> bool {
    let mut all = true;
    // SAFETY: the application's message; the macros of the C library stay within it.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = header.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = found.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(header).cast::<c_int>();
                for at in 0..bytes / size_of::<c_int>() {
                    let fd = fds.add(at).read_unaligned();
                    let item = table::get(fd);
                    let connection = item.as_ref().and_then(|item| item.connection());
                    all &= connection
                        .is_none_or(|found| found.stay_on_tcp(fd, "it was handed to another process"));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    all
}

/// Sends a part of a file: what a read of it gives, a piece at a time.
unsafe fn send_file(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: no pointers.
    if unsafe { libc::lseek(from, 0, libc::SEEK_CUR) } < 0 {
        // The kernel takes none of a socket or a pipe, and here what was read could not be put back.
        if errno() == Errno::SPIPE {
            set_errno(Errno::INVAL);
        }
        return -1;
    }
    const PIECE: usize = 64 << 10;
    let mut piece = ManuallyDrop::new(vec![0_u8; PIECE.min(count)]);
    let mut done = 0;
    let returned = loop {
        let wanted = piece.len().min(count - done);
        // SAFETY: the buffer has so many bytes; `offset` is null or the application's.
        let got = unsafe {
            match offset.is_null() {
                true => libc::read(from, piece.as_mut_ptr().cast(), wanted),
                false => libc::pread(from, piece.as_mut_ptr().cast(), wanted, *offset),
            }
        };
        let Ok(got) = usize::try_from(got) else { break if done > 0 { done as ssize_t } else { -1 } };
        if got == 0 {
            break done as ssize_t;
        }
        // SAFETY: as above.
        let sent = unsafe { write(to, piece.as_ptr().cast(), got) };
        let kept = usize::try_from(sent).unwrap_or(0);
        // SAFETY: as above; what was read and not sent is read again.
        unsafe {
            if !offset.is_null() {
                *offset += kept as off_t;
            } else if kept < got {
                keep(|| libc::lseek(from, -((got - kept) as off_t), libc::SEEK_CUR));
            }
        }
        done += kept;
        if kept < got || done == count {
            break if done > 0 { done as ssize_t } else { sent };
        }
    };
    drop(ManuallyDrop::into_inner(piece));
    returned
}

/// `sendfile`.
pub unsafe fn sendfile(to: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    // SAFETY: as above.
    unsafe {
        let call = || real::sendfile(to, from, offset, count);
        counted(to, count, call).unwrap_or_else(|| send_file(to, from, offset, count))
    }
}

/// Sends all of `bytes`, also where a call does not wait: they cannot be put back where they came from.
pub(crate) fn send_all(fd: c_int, bytes: &[u8]) -> ssize_t {
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: the buffer has so many bytes.
        let sent = unsafe { write(fd, bytes[done..].as_ptr().cast(), bytes.len() - done) };
        match usize::try_from(sent) {
            Ok(sent) => done += sent,
            Err(_) if errno() == Errno::AGAIN => std::thread::yield_now(),
            Err(_) => return if done > 0 { done as ssize_t } else { -1 },
        }
    }
    done as ssize_t
}

/// A call of the kernel that sends `count` bytes and has no buffer here. `None`: the connection is upgraded.
fn counted(fd: c_int, count: size_t, call: impl Fn() -> ssize_t) -> Option<ssize_t> {
    let item = ManuallyDrop::new(table::get(fd));
    let sent = match item.as_ref().and_then(|item| item.connection()) {
        None => Some(call()),
        Some(connection) => match connection.stream.send(&connection.socket(fd), &[]) {
            Ok(Answer::Kernel) => {
                let sent = call();
                let length = usize::try_from(sent).unwrap_or(0);
                keep(|| {
                    let _ = connection.stream.sent(&connection.socket(fd), length);
                    if length < count {
                        connection.note_full();
                    }
                    connection.note_use();
                });
                Some(sent)
            }
            _ => None,
        },
    };
    drop(ManuallyDrop::into_inner(item));
    sent
}
