//! What calls read from the caller's memory and write to it.
//!
//! The header promises for every pointer argument: unless a comment says otherwise, it is NULL, which is an
//! error, or points to what its type and the length beside it say, valid for the call and used by nothing
//! else meanwhile. The functions here check what can be checked of that.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::slice;

use crate::error::{Error, Result};

/// Bytes to read. NULL is allowed for none.
///
/// # Safety
/// The module's promise, for as long as the result is used.
pub(super) unsafe fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8]> {
    // SAFETY: bytes have no alignment; the rest is the caller's promise.
    unsafe { list(data.cast(), length) }
}

/// Values to read. NULL is allowed for none.
///
/// # Safety
/// The module's promise, for as long as the result is used. `T` has no invalid values.
pub(super) unsafe fn list<'a, T>(first: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check_list(first, count)?;
    // SAFETY: the pointer is aligned and not NULL, and the size is valid, as was checked. That there are so
    // many values, which nothing changes, is the caller's promise.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}

/// A value to read.
///
/// # Safety
/// As [`list`], for one.
pub(super) unsafe fn value<T: Copy>(pointer: *const T) -> Result<T> {
    check(pointer)?;
    // SAFETY: the pointer is aligned and not NULL; that it is valid is the caller's promise.
    Ok(unsafe { pointer.read() })
}

/// A text to read.
///
/// # Safety
/// It is NULL, or ends with a zero byte, and does not change while the result is used.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: it is not NULL; the rest is the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Error::new(libc::EINVAL, "a text is not in UTF-8"))
}

/// A text that has to be there.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn required_text<'a>(pointer: *const c_char) -> Result<&'a str> {
    // SAFETY: the requirement of this function.
    unsafe { text(pointer) }?.ok_or_else(null)
}

/// A place for a value.
pub(super) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// The module's promise, for as long as the result is used.
    pub(super) unsafe fn new(place: *mut T) -> Result<Self> {
        check(place)?;
        NonNull::new(place).map(Self).ok_or_else(null)
    }

    pub(super) fn set(self, value: T) {
        // SAFETY: the place is aligned and not NULL; that it is writable is the promise of `new`. What was
        // there is nothing to drop: it is the caller's.
        unsafe { self.0.write(value) };
    }
}

/// Places for values.
pub(super) struct Places<T> {
    first: NonNull<T>,
    count: usize,
}

impl<T> Places<T> {
    /// # Safety
    /// The module's promise, for as long as the result is used.
    pub(super) unsafe fn new(first: *mut T, count: usize) -> Result<Self> {
        check_list(first, count)?;
        Ok(Self { first: NonNull::new(first).ok_or_else(null)?, count })
    }

    /// Sets one of them, if there are so many.
    pub(super) fn set(&self, at: usize, value: T) {
        if at < self.count {
            // SAFETY: there are `count` places, aligned and not NULL; that they are writable is the promise
            // of `new`. What was there is nothing to drop.
            unsafe { self.first.add(at).write(value) };
        }
    }
}

/// A place for bytes.
pub(super) struct Room {
    place: *mut u8,
    size: usize,
}

impl Room {
    /// # Safety
    /// The module's promise, for as long as the result is used. NULL is allowed for none.
    pub(super) unsafe fn new(place: *mut c_void, size: usize) -> Result<Self> {
        if size > 0 {
            check(place)?;
        }
        Ok(Self { place: place.cast(), size })
    }

    /// Copies the first of these bytes, as many as there is room for.
    pub(super) fn fill(self, bytes: &[u8]) {
        let count = bytes.len().min(self.size);
        if count > 0 {
            // SAFETY: `count` bytes are writable, and used by nothing else, so by no slice: the promise of
            // `new`.
            unsafe { self.place.copy_from_nonoverlapping(bytes.as_ptr(), count) };
        }
    }
}

fn check<T>(pointer: *const T) -> Result<()> {
    if pointer.is_null() {
        return Err(null());
    }
    if !pointer.is_aligned() {
        return Err(Error::new(libc::EINVAL, "a pointer is not aligned"));
    }
    Ok(())
}

fn check_list<T>(first: *const T, count: usize) -> Result<()> {
    check(first)?;
    match count.checked_mul(size_of::<T>()) {
        Some(size) if size <= isize::MAX as usize => Ok(()),
        _ => Err(Error::new(libc::EINVAL, format!("{count} are more than memory holds"))),
    }
}

fn null() -> Error {
    Error::new(libc::EINVAL, "an argument is NULL that must not be")
}
