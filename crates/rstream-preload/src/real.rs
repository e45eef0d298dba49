//! The functions that only this library stands in front of; [`rstream_calls`] has the others.

use std::ffi::{c_char, c_int};

use libc::{mode_t, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};

rstream_calls::real! {
    creat(path: *const c_char, mode: mode_t) -> c_int;
    eventfd(count: u32, flags: c_int) -> c_int;
    execv(path: *const c_char, arguments: *const *const c_char) -> c_int;
    execve(
        path: *const c_char, arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int;
    execvp(name: *const c_char, arguments: *const *const c_char) -> c_int;
    execvpe(
        name: *const c_char, arguments: *const *const c_char, environment: *const *const c_char
    ) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fexecve(fd: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int;
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
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    socketpair(domain: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int;
    system(command: *const c_char) -> c_int;
}
