//! Cancellation of threads (`pthread_cancel`). It unwinds the stack from inside calls of the C library, and
//! Rust aborts the process when such an unwinding reaches it. So cancellation is deferred while a call is
//! inside the provider. It takes effect at the next cancellation point of the application.

use std::ffi::c_int;
use std::ptr;

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
