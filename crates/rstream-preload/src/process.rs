//! How the process begins and ends.

use std::ffi::c_int;

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Runs at `exit`.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn begin() {
    rstream_calls::begin();
}

extern "C" fn end() {
    rstream_calls::end();
}

/// As [`end`], for processes that leave without it.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    end();
    // SAFETY: no pointers. It does not return.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    std::process::abort()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: no pointers.
    unsafe { _exit(status) }
}
