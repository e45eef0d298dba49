//! The mapping of a segment: the one place of this crate that touches shared memory through raw pointers.
//!
//! Such memory is never a `&[u8]`: what a peer may change under our hands is only ever copied in and out,
//! between bounds that are checked here. Writes of the peer's process are outside this program's memory
//! model; they can change what is copied and nothing else.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::control::Direction;
use crate::segment::Layout;
use crate::{Error, Result};

/// A mapped segment.
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

/// One ring of a mapped segment, and the control of both.
pub(crate) struct Ring {
    /// Keeps the pointers below valid.
    _mapping: Arc<Mapping>,
    direction: NonNull<Direction>,
    opposite: NonNull<Direction>,
    bytes: NonNull<u8>,
    size: usize,
}

/// Maps `file` and returns its two rings, the one that the creator writes first. The file must have the
/// length of `layout`, and must not be able to shrink.
pub(crate) fn map(file: BorrowedFd<'_>, layout: &Layout) -> Result<[Ring; 2]> {
    let (access, length) = (ProtFlags::READ | ProtFlags::WRITE, layout.length());
    // SAFETY: the system chooses a free place, so that the mapping touches no memory in use. The descriptor
    // is open for the call.
    let base = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0) };
    let base = base.map_err(Error::io("mmap"))?;
    let base = NonNull::new(base.cast()).ok_or_else(|| Error::io("mmap")(Errno::NOMEM))?;
    let mapping = Arc::new(Mapping { base, length });
    let ring = |index: usize| {
        let (offset, size) = layout.ring(index);
        // SAFETY: `Layout` puts two `Direction`s at the beginning of the mapping and each ring behind them,
        // all of it within `length`, which is the length of the mapping.
        let (direction, bytes) = unsafe { (base.cast::<Direction>().add(index), base.add(offset)) };
        // SAFETY: as above, for the other of the two.
        let opposite = unsafe { base.cast::<Direction>().add(1 - index) };
        Ring { _mapping: Arc::clone(&mapping), direction, opposite, bytes, size }
    };
    Ok([ring(0), ring(1)])
}

// SAFETY: the mapping may be used and unmapped by any thread, and no reference into it outlives the
// `Mapping`.
unsafe impl Send for Mapping {}
// SAFETY: nothing is done with a `&Mapping`.
unsafe impl Sync for Mapping {}

// SAFETY: the pointers lead into the mapping that the `Ring` keeps, which has no tie to a thread. Bytes are
// touched only through `&mut Ring`, and the two rings of a mapping have none in common.
unsafe impl Send for Ring {}
// SAFETY: through `&Ring` only atomics are reached.
unsafe impl Sync for Ring {}

impl Ring {
    #[inline]
    pub(crate) fn direction(&self) -> &Direction {
        // SAFETY: `direction` is aligned, because a mapping begins at a page, within the mapping (see `map`),
        // which stays as long as `self`, and its file cannot shrink. A `Direction` consists of atomics, valid
        // with any bits; who else writes there, this process or another, does so through atomics, and what a
        // peer that does not writes is some value.
        unsafe { self.direction.as_ref() }
    }

    /// The control of the other ring.
    #[inline]
    pub(crate) fn opposite(&self) -> &Direction {
        // SAFETY: as in `direction`.
        unsafe { self.opposite.as_ref() }
    }

    /// Bytes of the ring.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Copies `bytes` to `offset`, but for what would lie beyond the end of the ring.
    #[inline]
    pub(crate) fn copy_in(&mut self, offset: usize, bytes: &[u8]) {
        let length = bytes.len().min(self.size.saturating_sub(offset));
        if length > 0 {
            // SAFETY: `offset + length <= size`, so the target is within the ring's part of the mapping (see
            // `map`). `bytes` is a Rust slice, which never lies in a mapping of ours, because none is ever
            // made of it. Bytes have no alignment. No other thread touches the bytes of this mapping's ring
            // (`&mut self`).
            unsafe { self.bytes.add(offset).copy_from_nonoverlapping(NonNull::from(bytes).cast(), length) };
        }
    }

    /// Copies what is at `offset` to `bytes`, but for what would lie beyond the end of the ring.
    #[inline]
    pub(crate) fn copy_out(&mut self, offset: usize, bytes: &mut [u8]) {
        let length = bytes.len().min(self.size.saturating_sub(offset));
        if length > 0 {
            // SAFETY: as in `copy_in`; what is read is initialised, since the system gives zeros, and any
            // value is valid.
            unsafe { self.bytes.add(offset).copy_to_nonoverlapping(NonNull::from(bytes).cast(), length) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped; the rings, which lead into it, are gone. What could fail, a
        // wrong range, cannot occur.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}
