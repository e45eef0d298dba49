//! A sleep on a word of memory that `pthread_cancel` ends, as it ends the C library's calls that wait. The C
//! library has none.

use std::ffi::{c_int, c_long, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32};
use std::time::Duration;

use libc::timespec;
use rustix::io::Errno;

use crate::errno::errno;
use crate::real::address;

type SystemCall = unsafe extern "C-unwind" fn(c_long, ...) -> c_long;

/// `PTHREAD_CANCEL_ASYNCHRONOUS`: a cancellation acts at once, at any instruction.
const ASYNCHRONOUS: c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int;
}

/// Sleeps as long as `word` has this value, until it is woken, and at most so long.
///
/// # Errors
/// [`Errno::INTR`]: a signal has ended the sleep.
pub(crate) fn wait(word: &AtomicU32, value: u32, most: Duration) -> Result<(), Errno> {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: the C library's function of this name has this type; `address` has not returned null.
    let call = unsafe { std::mem::transmute::<*mut c_void, SystemCall>(address(c"syscall", &NEXT)) };
    let most = timespec {
        tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: most.subsec_nanos().into(),
    };
    // SAFETY: word and time are valid for the call, and nothing is written to them.
    match unsafe { sleep(call, word.as_ptr(), value, &raw const most) } {
        -1 if errno() == Errno::INTR => Err(Errno::INTR),
        _ => Ok(()),
    }
}

/// The call, while which the thread can be cancelled at any instruction, as it can in the C library's own
/// calls. A frame of its own, which has no destructor: unwinding it needs no more than to know where its
/// caller is.
#[inline(never)]
unsafe fn sleep(call: SystemCall, word: *const u32, value: u32, most: *const timespec) -> c_long {
    let mut kind = 0;
    // SAFETY: the caller's; `kind` is valid.
    unsafe {
        pthread_setcanceltype(ASYNCHRONOUS, &raw mut kind);
        let returned = call(libc::SYS_futex, word, libc::FUTEX_WAIT, value, most, ptr::null::<u32>(), 0);
        pthread_setcanceltype(kind, &raw mut kind);
        returned
    }
}
