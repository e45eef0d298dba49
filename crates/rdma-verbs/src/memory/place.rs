//! Memory that an owner outside this crate lends to work requests.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::slice;

use super::transfer;
#[cfg(feature = "ibv")]
use crate::Segment;

/// A piece of this process's memory that is lent to a work request.
///
/// The creator vouches for the memory, so posting it is safe. A device that accesses memory by itself needs
/// the local key of a registered region around it ([`crate::Device::LOCAL_KEYS`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    base: NonNull<u8>,
    length: u32,
    /// The local key of the region around it; 0: none.
    key: u32,
}

// SAFETY: it is an address and a length, which are used only under the promise of `Place::new`. It is not
// tied to a thread.
unsafe impl Send for Place {}
// SAFETY: as above; a shared reference gives access to address and length only.
unsafe impl Sync for Place {}

impl Place {
    /// Maximum number of places of a [`Place::receive_spaced`].
    pub(crate) const MOST_SPACED: usize = 8;

    /// The `length` bytes at `base`; `None` if there are bytes and `base` is null.
    ///
    /// # Safety
    /// From now until its request completes, its queue pair or shared receive queue is destroyed, or a
    /// receive is cancelled (or, if it is never posted, until it is last used): the bytes are readable, and
    /// nothing else writes them; those of a receive or a read are also writable, and nothing else reads them.
    #[must_use]
    pub const unsafe fn new(base: *mut u8, length: u32) -> Option<Self> {
        match NonNull::new(base) {
            None if length > 0 => None,
            None => Some(Self { base: NonNull::dangling(), length, key: 0 }),
            Some(base) => Some(Self { base, length, key: 0 }),
        }
    }

    /// The same memory as part of the region with this [local key](crate::MemoryRegion::local_key).
    #[must_use]
    pub const fn within(self, key: u32) -> Self {
        Self { key, ..self }
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

    /// Up to `length` bytes from `offset` on. An offset beyond the end counts as the end.
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> Self {
        let rest = self.from(offset);
        Self { length: rest.length.min(u32::try_from(length).unwrap_or(u32::MAX)), ..rest }
    }

    /// Appends its bytes to `target`.
    pub fn append_to(&self, target: &mut Vec<u8>) {
        target.extend_from_slice(self.bytes());
    }

    /// The bytes from `offset` on. An offset beyond the end counts as the end.
    #[must_use]
    pub fn from(&self, offset: usize) -> Self {
        let offset = offset.min(self.len());
        // SAFETY: the result is at most one byte past the end of the bytes that the caller of `new` promised.
        // A dangling place without bytes moves by 0.
        Self { base: unsafe { self.base.add(offset) }, length: self.length - offset as u32, ..*self }
    }

    /// The segment of the region that it is [within](Place::within). Its key is 0 if it is in none.
    #[cfg(feature = "ibv")]
    pub(crate) fn segment(&self) -> Segment {
        let address = self.base.as_ptr().expose_provenance() as u64;
        Segment { key: self.key, address, length: self.length }
    }

    /// The bytes. Only for a posted request that sends them.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes are readable and nothing writes them while the request is outstanding (`new`),
        // which is when the machine that it was posted to calls this. Bytes have any value and no alignment.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len()) }
    }

    /// Copies the first bytes of `source` in, as many as fit. Returns their number. Only for a posted request
    /// that receives or reads.
    pub fn fill(&self, source: &[u8]) -> usize {
        let count = source.len().min(self.len());
        // SAFETY: `count` bytes are writable and nothing else uses them while the request is outstanding
        // (`new`), so `source` does not overlap them.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), self.base.as_ptr(), count) };
        count
    }

    /// Receives from `socket` as [`Memory::receive`](super::Memory::receive) does, up to `length` bytes. Only
    /// for a posted request that receives or reads.
    pub(crate) fn receive(
        &self,
        socket: BorrowedFd<'_>,
        length: usize,
        rest: &mut [u8],
    ) -> io::Result<usize> {
        let mut pieces = [transfer::target(self.base, length.min(self.len())), transfer::target_of(rest)];
        // SAFETY: this number of bytes is writable, and nothing else uses them while the request is
        // outstanding (`new`); `rest` is an exclusive borrow.
        unsafe { transfer::receive(socket, &mut pieces) }
    }

    /// Receives from `socket` without waiting: into the `places`, and after each `gap` bytes into `rest`, one gap behind
    /// the other. At most [`Place::MOST_SPACED`] places are used, and those for whose gaps `rest` has room. Only for
    /// places of a posted request that receives or reads.
    pub(crate) fn receive_spaced(
        places: impl IntoIterator<Item = Self>,
        gap: usize,
        socket: BorrowedFd<'_>,
        rest: &mut [u8],
    ) -> io::Result<usize> {
        let mut pieces = [transfer::target_of(&mut []); 2 * Self::MOST_SPACED];
        let mut used = 0;
        let gaps = rest.chunks_exact_mut(gap.max(1));
        for (place, gap) in places.into_iter().zip(gaps).take(Self::MOST_SPACED) {
            pieces[used] = transfer::target(place.base, place.len());
            pieces[used + 1] = transfer::target_of(gap);
            used += 2;
        }
        // SAFETY: the bytes of the places are writable, and nothing else uses them while the request is outstanding
        // (`new`); the others are exclusive borrows.
        unsafe { transfer::receive(socket, &mut pieces[..used]) }
    }
}

#[cfg(test)]
impl Place {
    /// Memory that a test never frees.
    pub(crate) fn leaked(length: u32) -> Self {
        /// Keeps it reachable for leak checkers.
        static KEPT: parking_lot::Mutex<Vec<Place>> = parking_lot::Mutex::new(Vec::new());
        let bytes = Box::leak(vec![0_u8; length as usize].into_boxed_slice());
        let place = Self { base: NonNull::from(bytes).cast(), length, key: 0 };
        KEPT.lock().push(place);
        place
    }

    /// The same memory, to register it.
    pub(crate) fn lend(&self) -> std::sync::Arc<super::Memory> {
        // SAFETY: memory of `leaked` stays readable and writable for good, and a test accesses it by copies
        // between the calls of its one thread.
        unsafe { super::Memory::lent(self.base.as_ptr(), self.len()) }
            .expect("it has a length that memory has")
    }
}
