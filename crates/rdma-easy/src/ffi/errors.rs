//! Texts of errors.

use std::cell::Cell;
use std::ffi::{c_char, c_int};

use crate::error::last_text;

thread_local! {
    /// The text of `rdma_easy_strerror`.
    static TEXT: Cell<[c_char; 128]> = const { Cell::new([0; 128]) };
}

/// Why the last call of this thread failed that did: a text with the numbers that matter, in English. It is
/// empty if none has failed. It is valid until the next call of this thread fails, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_last_error() -> *const c_char {
    last_text()
}

/// What an error number means, whether it is negative or not: the system's text. It is valid until the
/// thread calls this again or ends.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_strerror(error: c_int) -> *const c_char {
    TEXT.try_with(|text| {
        let place = text.as_ptr().cast::<c_char>();
        // SAFETY: the place has 128 bytes, which only this thread uses, and is not freed before the thread
        // ends. The call ends what it writes with a zero byte.
        unsafe { libc::strerror_r(error.saturating_abs(), place, 128) };
        place.cast_const()
    })
    .unwrap_or(c"".as_ptr())
}
