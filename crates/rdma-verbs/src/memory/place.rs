//! Memory that an owner outside this crate lends to work requests.

use std::ptr::NonNull;

/// A stretch of this process's memory that is lent to a work request without being registered.
///
/// Whoever makes one vouches for the memory, so that posting it is safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    base: NonNull<u8>,
    length: u32,
}

// SAFETY: an address and a length, which are used under the promise of `Place::new` only; it is not tied to a
// thread.
unsafe impl Send for Place {}
// SAFETY: as above; a shared reference gives access to address and length only.
unsafe impl Sync for Place {}

impl Place {
    /// The `length` bytes at `base`; `None` if there are bytes and `base` is null.
    ///
    /// # Safety
    /// From the time at which the place is posted until its request completes, or its queue pair or shared
    /// receive queue is destroyed, or a receive is cancelled: the bytes are readable, and nothing else writes
    /// them; those of a receive or a read are also writable, and nothing else reads them.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, length: u32) -> Option<Self> {
        match NonNull::new(base) {
            None if length > 0 => None,
            None => Some(Self { base: NonNull::dangling(), length }),
            Some(base) => Some(Self { base, length }),
        }
    }

    /// Length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }
}
