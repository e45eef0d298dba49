//! Memory that a C caller passes: input bytes, output bytes, texts.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use super::{Errno, Result};

/// Input bytes of a call.
///
/// # Errors
/// `-FI_EINVAL` for a null pointer with a nonzero length, or a length above `isize::MAX`.
///
/// # Safety
/// If not null, `data` points to `length` bytes that are readable and unchanged for `'a`.
#[inline]
pub(super) unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    if data.is_null() || length > isize::MAX as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, of at most `isize::MAX` bytes, and readable by the requirement of this function;
    // bytes need no alignment.
    Ok(unsafe { slice::from_raw_parts(data.cast(), length) })
}

/// Output bytes of a call.
///
/// # Errors
/// As for [`bytes`].
///
/// # Safety
/// If not null, `data` points to `length` bytes that are writable, and that no other code uses, for
/// `'a`.
#[inline]
pub(super) unsafe fn bytes_mut<'a>(data: *mut c_void, length: usize) -> Result<&'a mut [u8]> {
    if length == 0 {
        return Ok(&mut []);
    }
    if data.is_null() || length > isize::MAX as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, of at most `isize::MAX` bytes, writable and exclusive by the requirement of this
    // function; bytes need no alignment. The bytes may be uninitialised in C: users of the slice only
    // write, and the compiler cannot know the content of memory that comes from C.
    Ok(unsafe { slice::from_raw_parts_mut(data.cast(), length) })
}

/// A text argument of a call. `None` for a null pointer.
///
/// # Errors
/// `-FI_EINVAL` if the text is not UTF-8.
///
/// # Safety
/// If not null, `text` is NUL-terminated and unchanged for `'a`.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and NUL-terminated and unchanged by the requirement of this function.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Errno::EINVAL)
}
