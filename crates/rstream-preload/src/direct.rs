//! `syscall`, by which programs ask the kernel past the C library's other functions. libuv, and with it Node.js
//! and uvloop, closes descriptors so, and makes an `io_uring`.
//!
//! What goes through an `io_uring` is not seen here: neither the bytes of connections nor changes of epoll sets.
//! So none can be made. Programs that ask by this function can do without one, because systems and containers
//! may forbid it.

use std::arch::asm;
use std::ffi::{c_int, c_long};

use rstream_calls::errno::set_errno;
use rstream_calls::{close, is_off};
use rustix::io::Errno;

/// Results that are errors, with the sign changed.
const ERRORS: std::ops::Range<c_long> = -4095..0;

/// It takes any number of arguments: in the registers of six more, or five and the stack, whatever is there.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    match number {
        // SAFETY: the application's argument.
        libc::SYS_close => unsafe { close(a as c_int) }.into(),
        libc::SYS_io_uring_setup if !is_off() => {
            set_errno(Errno::PERM);
            -1
        }
        _ => {
            // SAFETY: the application's call.
            let result = unsafe { ask([number, a, b, c, d, e, f]) };
            if ERRORS.contains(&result) {
                set_errno(Errno::from_raw_os_error(-result as c_int));
                return -1;
            }
            result
        }
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn ask([number, a, b, c, d, e, f]: [c_long; 7]) -> c_long {
    let result;
    // SAFETY: the caller's call; the kernel changes these registers only.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn ask([number, a, b, c, d, e, f]: [c_long; 7]) -> c_long {
    let result;
    // SAFETY: the caller's call; the kernel changes this register only.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d,
            in("x4") e, in("x5") f, options(nostack));
    }
    result
}
