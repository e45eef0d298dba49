//! Memory that a C caller passes: input bytes, output bytes, arrays, texts, and places for operations that
//! outlast the call.

use std::ffi::{CStr, c_char, c_void};
use std::ops::Deref;
use std::{ptr, slice};

use libc::iovec;

use super::{Errno, Fid, Place, Result};

/// Maximum number of pieces of a vectored call on a message endpoint: of local memory, of remote memory, and
/// of a memory region.
pub const MESSAGE_IOV_LIMIT: usize = 4;

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

/// An array argument of a call.
///
/// # Errors
/// `-FI_EINVAL` for a null or misaligned pointer with a nonzero `count`, or a `count` above `limit`.
///
/// # Safety
/// If not null, `first` points to `count` elements, unchanged for `'a`. `limit` of them are at most
/// `isize::MAX` bytes.
#[inline]
pub(super) unsafe fn array<'a, T>(first: *const T, count: usize, limit: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || !first.is_aligned() || count > limit {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not null, aligned, and `count` elements of a total length that a slice can have, by the
    // requirement of this function.
    Ok(unsafe { slice::from_raw_parts(first, count) })
}

/// The memory of a message or of remote access, of at most `MOST` pieces. Those without bytes are left out.
pub(super) struct Places<const MOST: usize> {
    places: [Place; MOST],
    count: usize,
}

impl Places<1> {
    /// The `length` bytes at `base`, within the region of `descriptor` if `T` needs it.
    ///
    /// # Errors
    /// `-FI_EINVAL` for a null pointer with a nonzero length, `-FI_EMSGSIZE` for a length above `u32::MAX`.
    ///
    /// # Safety
    /// As for [`Places::vector`].
    #[inline]
    pub(super) unsafe fn single<T: Fid>(
        base: *const c_void,
        length: usize,
        descriptor: *mut c_void,
    ) -> Result<Self> {
        let piece = iovec { iov_base: base.cast_mut(), iov_len: length };
        // SAFETY: the requirement of this function, and one vector and descriptor that live through the call.
        unsafe { Self::of::<T, false>(&raw const piece, &raw const descriptor, 1) }
    }

    /// [`Places::single`] for a receive.
    ///
    /// # Errors
    /// As for [`Places::single`], but for null pointers.
    ///
    /// # Safety
    /// As for [`Places::vector`].
    #[inline]
    pub(super) unsafe fn single_receive<T: Fid>(
        base: *mut c_void,
        length: usize,
        descriptor: *mut c_void,
    ) -> Result<Self> {
        let piece = iovec { iov_base: base, iov_len: length };
        // SAFETY: the requirement of this function, and one vector and descriptor that live through the call.
        unsafe { Self::of::<T, true>(&raw const piece, &raw const descriptor, 1) }
    }
}

impl Places<MESSAGE_IOV_LIMIT> {
    /// The pieces of a vectored call, within the regions of `descriptors` if `T` needs them.
    ///
    /// # Errors
    /// As for [`array()`] with [`MESSAGE_IOV_LIMIT`], and for [`Places::single`].
    ///
    /// # Safety
    /// If not null, `pieces` points to `count` vectors, and if `T` needs descriptors and `descriptors` is
    /// not null, it points to as many. Each vector is null, or has its length in bytes: from now on until
    /// the operation of the call completes (or, with `FI_INJECT`, until the call returns), they are
    /// readable and no other code writes them; those of a receive or a read are writable, and no other code
    /// reads them.
    #[inline]
    pub(super) unsafe fn vector<T: Fid>(
        pieces: *const iovec,
        descriptors: *const *mut c_void,
        count: usize,
    ) -> Result<Self> {
        // SAFETY: the same requirement as that of this function.
        unsafe { Self::of::<T, false>(pieces, descriptors, count) }
    }

    /// The pieces of a receive. Null pointers are left out as well, whatever their length: there are programs
    /// that post such receives for messages without bytes.
    ///
    /// # Errors
    /// As for [`Places::vector`], but for null pointers.
    ///
    /// # Safety
    /// As for [`Places::vector`].
    #[inline]
    pub(super) unsafe fn receive<T: Fid>(
        pieces: *const iovec,
        descriptors: *const *mut c_void,
        count: usize,
    ) -> Result<Self> {
        // SAFETY: the same requirement as that of this function.
        unsafe { Self::of::<T, true>(pieces, descriptors, count) }
    }
}

impl<const MOST: usize> Places<MOST> {
    /// [`Places::vector`], or [`Places::receive`] if `SKIPS_NULL`.
    ///
    /// # Safety
    /// As for [`Places::vector`].
    #[inline]
    unsafe fn of<T: Fid, const SKIPS_NULL: bool>(
        pieces: *const iovec,
        descriptors: *const *mut c_void,
        count: usize,
    ) -> Result<Self> {
        // SAFETY: null or `count` vectors by the requirement of this function; the limit is a few.
        let pieces = unsafe { array(pieces, count, MOST) }?;
        let descriptors = if T::DESCRIPTORS && !descriptors.is_null() {
            // SAFETY: not null, so it points to `count` descriptors by the requirement of this function.
            unsafe { array(descriptors, count, MOST) }?
        } else {
            &[]
        };
        // SAFETY: there are no bytes.
        let empty = unsafe { Place::new(ptr::null_mut(), 0) }.ok_or(Errno::EINVAL)?;
        let mut places = Self { places: [empty; MOST], count: 0 };
        let is_left_out = |piece: &iovec| piece.iov_len == 0 || SKIPS_NULL && piece.iov_base.is_null();
        for (at, piece) in pieces.iter().enumerate().filter(|(_, piece)| !is_left_out(piece)) {
            let length = u32::try_from(piece.iov_len).map_err(|_| Errno::EMSGSIZE)?;
            // SAFETY: null or as the requirement of this function says, which is that of `Place::new` while
            // the provider uses the place as `MessageOps` allows.
            let place = unsafe { Place::new(piece.iov_base.cast(), length) }.ok_or(Errno::EINVAL)?;
            // The descriptor of a region is its local key.
            let key = descriptors.get(at).map_or(0, |descriptor| descriptor.addr() as u32);
            places.places[places.count] = place.within(key);
            places.count += 1;
        }
        Ok(places)
    }
}

impl<const MOST: usize> Deref for Places<MOST> {
    type Target = [Place];

    #[inline]
    fn deref(&self) -> &[Place] {
        &self.places[..self.count]
    }
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

/// Copies `text` to the caller's buffer of `length` bytes, cut and NUL-terminated, and returns the buffer.
/// Without a buffer, returns the text itself.
///
/// # Safety
/// If not null, `buffer` is writable for `length` bytes.
pub(super) unsafe fn copy_text(text: &'static CStr, buffer: *mut c_char, length: usize) -> *const c_char {
    let Some(room) = length.checked_sub(1).filter(|_| !buffer.is_null()) else { return text.as_ptr() };
    let count = room.min(text.count_bytes());
    // SAFETY: `buffer` is not null and has `length` bytes by the requirement of this function. The writes are
    // `count` bytes and a NUL, at most `length`. The text is static and does not overlap the buffer.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), buffer, count);
        buffer.add(count).write(0);
    }
    buffer.cast_const()
}
