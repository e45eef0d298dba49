//! Which descriptors are attached, and the ends of these.

use std::ffi::{c_char, c_int};

use rstream_calls::errno::set_errno;
use rustix::io::Errno;

use crate::process::is_preloaded;

/// What a function returns that has no count.
fn returned(outcome: Result<c_int, Errno>) -> c_int {
    outcome.unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}

/// Under the preload library no connection is attached here.
fn or_preloaded<T>(outcome: Result<T, Errno>, instead: T) -> Result<T, Errno> {
    match outcome {
        Err(Errno::INVAL) if is_preloaded() => Ok(instead),
        other => other,
    }
}

/// Attaches a TCP connection. It must not have carried bytes, so call this right after connect or accept, and
/// before another thread uses the descriptor; connect of a non-blocking socket may still be under way. One that
/// has carried bytes, or that a rule forbids, stays on TCP, as rs_path says. Attaching it again changes nothing.
///
/// Returns 0; or -1 with EBADF, ENOTSOCK, EPROTONOSUPPORT (no socket of TCP), ENOTCONN (not connected, or
/// listening), ENOMEM, EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn rs_attach(fd: c_int) -> c_int {
    returned(match is_preloaded() {
        true => Ok(0),
        false => rstream_calls::attach(fd).map(|()| 0),
    })
}

/// Takes the connection back to TCP, in the middle of its stream, and detaches the descriptor: from now on it is
/// used by the C library's functions. It loses no byte. Epoll sets that have it keep it. It waits for the peer,
/// which has to make a call meanwhile, for 1 s, and for 2 s if the peer has begun to answer.
///
/// Returns 0; or -1 with EBADF, ENOTSOCK, EINVAL (not attached), EOPNOTSUPP (the peer has not answered, or has
/// more than 64 KiB to read: the descriptor stays attached).
#[unsafe(no_mangle)]
pub extern "C" fn rs_detach(fd: c_int) -> c_int {
    returned(or_preloaded(rstream_calls::detach(fd), ()).map(|()| 0))
}

/// How the bytes of an attached connection travel.
///
/// `text`: gets "shared memory", or the reason why they go by TCP, such as "not yet" or "the peer does not use
/// rstream". `size`: its room in bytes; a longer text is cut, and always ends with a zero. NULL and 0: no text.
/// Returns 1 for shared memory, 0 for TCP; or -1 with EBADF, ENOTSOCK, EINVAL (not attached), EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rs_path(fd: c_int, text: *mut c_char, size: usize) -> c_int {
    returned(or_preloaded(rstream_calls::path(fd), Some("left to rstream-run")).and_then(|why| {
        if text.is_null() && size > 0 {
            return Err(Errno::FAULT);
        }
        let shown = why.unwrap_or("shared memory").as_bytes();
        if let Some(most) = size.checked_sub(1) {
            let length = shown.len().min(most);
            // SAFETY: the place is not NULL, and the header asks for `size` bytes there, which nothing else uses.
            unsafe {
                text.cast::<u8>().copy_from_nonoverlapping(shown.as_ptr(), length);
                text.add(length).write(0);
            }
        }
        Ok(why.is_none().into())
    }))
}

/// close. The peer learns what it learns of a TCP connection: the end, or a reset if bytes were left unread or
/// SO_LINGER asks for one.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn rs_close(fd: c_int) -> c_int {
    rstream_calls::forget_if_closed(fd);
    // SAFETY: no pointers.
    unsafe { rstream_calls::close(fd) }
}

/// dup. The copy is attached as the descriptor is.
#[unsafe(no_mangle)]
pub extern "C" fn rs_dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { rstream_calls::dup(fd) }
}

/// shutdown. Once the connection goes through shared memory, SHUT_WR tells the peer there; the kernel's socket
/// stays open in both directions until rs_close.
#[unsafe(no_mangle)]
pub extern "C" fn rs_shutdown(fd: c_int, how: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { rstream_calls::shutdown(fd, how) }
}
