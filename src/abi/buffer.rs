//! Memory that a C caller passes: bytes to read, bytes to fill, texts.

use std::ffi::{CStr, c_char, c_void};
use std::slice;

use super::{Errno, Result};

/// Bytes that the caller passes to be read.
///
/// # Errors
/// `-FI_EINVAL` for a null pointer with a length, or a length that memory cannot have.
///
/// # Safety
/// If not null, `data` points to `length` bytes that may be read while the result is used.
#[inline]
pub(super) unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8]> {
    if length == 0 {
        return Ok(&[]);
    }
    if data.is_null() || length > isize::MAX as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, of a possible length, readable by the caller's promise; bytes have no
    // alignment.
    Ok(unsafe { slice::from_raw_parts(data.cast(), length) })
}

/// Bytes that the caller passes to be filled.
///
/// # Errors
/// As for [`bytes`].
///
/// # Safety
/// If not null, `data` points to `length` bytes that may be written, and that nobody else uses
/// while the result is used.
#[inline]
pub(super) unsafe fn bytes_mut<'a>(data: *mut c_void, length: usize) -> Result<&'a mut [u8]> {
    if length == 0 {
        return Ok(&mut []);
    }
    if data.is_null() || length > isize::MAX as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, of a possible length, writable and exclusive by the caller's promise; bytes
    // have no alignment. They may never have been written: whoever gets them only writes, and of
    // memory that comes from C this program's compiler knows no content.
    Ok(unsafe { slice::from_raw_parts_mut(data.cast(), length) })
}

/// A text that the caller passes; `None` for a null pointer.
///
/// # Errors
/// `-FI_EINVAL` for what is not UTF-8.
///
/// # Safety
/// If not null, `text` is NUL-terminated and stays unchanged while the result is used.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null and NUL-terminated by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Errno::EINVAL)
}
