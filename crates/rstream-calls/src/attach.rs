//! Connections that the program names itself, one by one.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rstream_sockets::statistics::Path;
use rstream_sockets::{Role, Socket};
use rustix::io::Errno;
use rustix::net::getpeername;
use rustix::net::sockopt::socket_cookie;

use crate::connection::{cookie, insert};
use crate::table::{self, Item};
use crate::{descriptor, set, settings};

/// Watches a connection by this descriptor, as if it had been connected or accepted just now. One that has
/// carried bytes, or that the rules forbid, stays on TCP. Attaching it once more changes nothing.
///
/// # Errors
/// [`Errno::BADF`], [`Errno::NOTSOCK`]; [`Errno::PROTONOSUPPORT`] if it is none of TCP; [`Errno::NOTCONN`] if it
/// is none of a connection; what the system says if it has no memory.
pub fn attach(fd: c_int) -> Result<(), Errno> {
    if known(fd)?.is_some() {
        return Ok(());
    }
    descriptor::made(fd);
    let socket = borrow(fd)?;
    if !Socket::new(socket, false).is_tcp() {
        return Err(Errno::PROTONOSUPPORT);
    }
    let role = Socket::role_of_unused(socket);
    if role.is_none() {
        getpeername(socket)?;
    }
    let chosen = settings::choose(fd, role.unwrap_or(Role::Passive));
    let why = match (role, chosen) {
        (None, _) => Some("it was used before"),
        (_, None) => Some("the rules keep it on TCP"),
        _ => None,
    };
    let item = insert(fd, role.unwrap_or(Role::Passive), &chosen.unwrap_or_default(), true)?;
    if let (Some(connection), Some(why)) = (item.connection(), why) {
        connection.stream.stay(&connection.socket(fd), why);
    }
    set::introduce(fd);
    Ok(())
}

/// Has the kernel serve the connection from now on, and forgets it. It is used on by the kernel's own calls.
///
/// # Errors
/// [`Errno::BADF`], [`Errno::NOTSOCK`]; [`Errno::INVAL`] if it is not attached; [`Errno::OPNOTSUPP`] if the peer
/// has not answered in time, or has too much to read: then it stays attached.
pub fn detach(fd: c_int) -> Result<(), Errno> {
    let item = known(fd)?.ok_or(Errno::INVAL)?;
    let connection = item.connection().ok_or(Errno::INVAL)?;
    if !connection.stay_on_tcp(fd, "it was detached") {
        return Err(Errno::OPNOTSUPP);
    }
    connection.leave_sets_to_kernel(fd);
    descriptor::forget(fd);
    Ok(())
}

/// How the connection's bytes travel. `None`: through shared memory. Else the reason why by TCP.
///
/// # Errors
/// [`Errno::BADF`], [`Errno::NOTSOCK`]; [`Errno::INVAL`] if it is not attached.
pub fn path(fd: c_int) -> Result<Option<&'static str>, Errno> {
    let item = known(fd)?.ok_or(Errno::INVAL)?;
    let connection = item.connection().ok_or(Errno::INVAL)?;
    Ok(match connection.stream.path() {
        Path::SharedMemory => None,
        Path::Undecided("") => Some("not yet"),
        Path::Undecided(why) | Path::Tcp(why) => Some(why),
    })
}

/// Forgets a connection whose descriptor was closed unseen, and may be another file's by now.
pub fn forget_if_closed(fd: c_int) {
    let item = table::get(fd);
    if item.and_then(|item| Some(item.connection()?.cookie)).is_some_and(|known| cookie(fd) != Some(known)) {
        descriptor::made(fd);
    }
}

/// The connection that the descriptor means, unless it is another socket's by now.
fn known(fd: c_int) -> Result<Option<Arc<Item>>, Errno> {
    let cookie = socket_cookie(borrow(fd)?)?;
    let item = table::get(fd);
    Ok(item.filter(|item| item.connection().is_some_and(|connection| connection.cookie == cookie)))
}

/// The kernel says if it is not open.
fn borrow<'a>(fd: c_int) -> Result<BorrowedFd<'a>, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: a number that is not negative, and that calls of the kernel check.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}
