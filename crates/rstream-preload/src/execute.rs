//! The calls that start another program, in this process or in a new one.
//!
//! The new program would read bells from a connection that is upgraded. So one that is handed over as
//! standard input, output or error goes back to TCP before; if that is not possible the call fails. Others
//! that stay open are usually forgotten ones, which the new program does not know.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{null, null_mut};

use libc::{pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rstream_calls::errno::set_errno;
use rstream_calls::{cookie, socket_stays_on_tcp, stays_on_tcp};
use rustix::fs::Access;
use rustix::io::Errno;

use crate::real;

/// Why a connection goes back to TCP.
const WHY: &str = "it was handed to another program";

/// Has the connections among the standard descriptors go back to TCP. Returns whether one does not. They are
/// known by the kernel's number for them: a child of `vfork` copies and closes descriptors without a note
/// here.
///
/// `program`: the path of its file, or null if it is not known.
///
/// # Safety
/// A path must be a string that ends with a zero.
pub(crate) unsafe fn is_refused(program: *const c_char) -> bool {
    let standard: Vec<_> = (0..3).filter_map(|fd| Some((fd, cookie(fd)?))).collect();
    // Who looks for a program tries one folder after the other.
    // SAFETY: the caller's promise.
    if !standard.is_empty() && !program.is_null() && is_missing(unsafe { CStr::from_ptr(program) }) {
        return false;
    }
    !standard.iter().all(|&(fd, cookie)| socket_stays_on_tcp(cookie, fd, WHY))
}

fn is_missing(path: &CStr) -> bool {
    let found = rustix::fs::access(path, Access::EXISTS);
    matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
}

/// Each returns the first value if it is refused. The second is the path of the program, if it is known.
macro_rules! executes {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $refused:expr, $program:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the application's path.
            if unsafe { is_refused($program) } {
                set_errno(Errno::OPNOTSUPP);
                return $refused;
            }
            // SAFETY: the application's arguments.
            unsafe { real::$name($($argument),*) }
        }
    )*};
}

type Strings = *const *const c_char;

executes! {
    execv(path: *const c_char, arguments: Strings) -> c_int, -1, path;
    execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int, -1, path;
    execvp(name: *const c_char, arguments: Strings) -> c_int, -1, null();
    execvpe(name: *const c_char, arguments: Strings, environment: Strings) -> c_int, -1, null();
    fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int, -1, null();
    popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE, null_mut(), null();
    posix_spawn(
        process: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: Strings, environment: Strings
    ) -> c_int, libc::EOPNOTSUPP, null();
    posix_spawnp(
        process: *mut pid_t, name: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, arguments: Strings, environment: Strings
    ) -> c_int, libc::EOPNOTSUPP, null();
    system(command: *const c_char) -> c_int, -1, null();
}

/// The new program will have a connection as a standard descriptor.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    if (0..3).contains(&new) && !stays_on_tcp(fd, WHY) {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the application's arguments.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, new) }
}
