//! The calls that make other descriptors: what their numbers may have meant before was closed unseen.

use std::ffi::{c_char, c_int};

use libc::mode_t;
use rstream_calls::made;

use crate::real;

macro_rules! makers {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the application's arguments.
            made(unsafe { real::$name($($argument),*) })
        }
    )*};
}

makers! {
    socket(domain: c_int, kind: c_int, protocol: c_int);
    eventfd(count: u32, flags: c_int);
    creat(path: *const c_char, mode: mode_t);
    open(path: *const c_char, flags: c_int, mode: usize);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: usize);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn open64(path: *const c_char, flags: c_int, mode: usize) -> c_int {
    // SAFETY: the application's arguments. Offsets have 64 bits here.
    unsafe { open(path, flags, mode) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: usize) -> c_int {
    // SAFETY: as above.
    unsafe { openat(folder, path, flags, mode) }
}

unsafe fn made_both(made_both: c_int, ends: *mut c_int) -> c_int {
    if made_both == 0 {
        // SAFETY: the kernel has written two numbers.
        unsafe {
            made(*ends);
            made(*ends.add(1));
        }
    }
    made_both
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    ends: *mut c_int,
) -> c_int {
    // SAFETY: the application's arguments.
    unsafe { made_both(real::socketpair(domain, kind, protocol, ends), ends) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pipe(ends: *mut c_int) -> c_int {
    // SAFETY: the application's arguments.
    unsafe { made_both(real::pipe(ends), ends) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pipe2(ends: *mut c_int, flags: c_int) -> c_int {
    // SAFETY: the application's arguments.
    unsafe { made_both(real::pipe2(ends, flags), ends) }
}
