//! Cancellation of threads (`pthread_cancel`). It unwinds the stack from inside calls of the C library, and
//! Rust aborts the process when such an unwinding reaches it. So cancellation is deferred while a call is
//! inside the provider. It takes effect at the next cancellation point of the application.

use std::ffi::c_int;
use std::ptr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` in the C libraries of Linux.
const DISABLE: c_int = 1;

/// Defers cancellation of the thread for its lifetime.
pub(super) struct Deferral {
    before: c_int,
}

impl Deferral {
    pub(super) fn begin() -> Self {
        let mut before = 0;
        // SAFETY: `before` is writable, and the state is a valid one.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for Deferral {
    fn drop(&mut self) {
        // SAFETY: the C library returned this state, and the pointer for the previous one may be null.
        unsafe { pthread_setcancelstate(self.before, ptr::null_mut()) };
    }
}

/// Whether no other thread can cancel this one, because the process has only one. A thread that has cancelled itself
/// is not found. glibc tells the number of threads since 2.32; with an older or another C library the answer is no.
#[inline]
pub(super) fn is_only_thread() -> bool {
    static MANY: AtomicU8 = AtomicU8::new(0);
    static ONLY: LazyLock<&AtomicU8> = LazyLock::new(|| {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
        // SAFETY: null, or glibc's variable of this name (`sys/single_threaded.h`), which is a `char` and stays. It
        // changes only while there is one thread, in that thread.
        unsafe { found.cast::<AtomicU8>().as_ref() }.unwrap_or(&MANY)
    });
    ONLY.load(Ordering::Relaxed) != 0
}

/// Runs a part of a data call that may contain a cancellation point. Data calls of some devices have none
/// otherwise ([`super::Fid::CANCELLATION_POINTS`]), and do not defer cancellation as a whole.
pub fn defer_cancellation<R>(body: impl FnOnce() -> R) -> R {
    let _deferral = Deferral::begin();
    body()
}

/// Whether the cancellation of this thread is deferred.
#[cfg(test)]
pub(super) fn is_deferred() -> bool {
    Deferral::begin().before == DISABLE
}
