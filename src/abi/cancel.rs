//! Cancellation of threads (`pthread_cancel`). It unwinds the stack from within calls of the C library, which
//! Rust does not survive. So it is put off while a call is inside the provider, and acts at the next
//! cancellation point of the application.

use std::ffi::c_int;
use std::ptr;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of Linux's C libraries.
const DISABLE: c_int = 1;

/// While it lives, the thread is not cancelled.
pub(super) struct PutOff {
    before: c_int,
}

impl PutOff {
    pub(super) fn begin() -> Self {
        let mut before = 0;
        // SAFETY: `before` may be written. The state is a known one, so the call succeeds.
        unsafe { pthread_setcancelstate(DISABLE, &raw mut before) };
        Self { before }
    }
}

impl Drop for PutOff {
    fn drop(&mut self) {
        // SAFETY: a state that the C library gave; nobody wants the one before.
        unsafe { pthread_setcancelstate(self.before, ptr::null_mut()) };
    }
}

/// Runs a part of a data call that may come upon a cancellation point, which data calls otherwise do not
/// ([`super::MsgOps::CANCELLATION_POINTS`]).
pub fn put_off<R>(body: impl FnOnce() -> R) -> R {
    let _put_off = PutOff::begin();
    body()
}
