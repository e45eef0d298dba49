//! Memory that a peer may read or write. Only this module of the crate accesses payload through raw pointers.
//!
//! Such memory is never a `&[u8]`, because a peer may change it at any time. It is only copied in and out,
//! within bounds that are checked here, by copies that tolerate races (`copy`). Everything that moves payload
//! (copies, and the vectored receive that places a segment straight into a region) is in this module.

mod copy;
mod place;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

pub use place::Place;

use super::{Error, Result};

/// Alignment of memory from the heap: the allocator provides it at no extra cost.
const ALIGNMENT: usize = 16;
/// Memory of at least this size is mapped as pages that cost nothing until they are used: most connections
/// use little of their rings. The heap would zero all of it.
const MAPPED_LEAST: usize = 16 * 1024;

/// A piece of memory with a fixed length, shared by [`Arc`]. It is allocated here, or lent by an owner
/// outside this crate.
///
/// Threads, devices and other processes may read and write it at the same time. A copy then finds in each
/// byte what one of them wrote; the copy of a word may be torn. A completion shows when the bytes of a
/// message are in place.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    layout: Layout,
    origin: Origin,
}

/// Where memory comes from, and so how it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The allocator.
    Heap,
    /// A mapping of its own.
    Mapping,
    /// An owner outside this crate.
    Lent,
}

/// An offset and a length that are not within a [`Memory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes at {offset} are not within {size}")]
pub struct OutOfBounds {
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: usize,
    /// Length of the memory.
    pub size: usize,
}

// SAFETY: it is mapped or allocated memory without a tie to a thread, or lent under the rules of
// `Memory::lent`.
unsafe impl Send for Memory {}
// SAFETY: through `&Memory` the bytes are only copied, by copies that tolerate races.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates `size` bytes of zeros.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for a size of 0 or above the maximum of an allocation, [`Error::Io`] if there is
    /// no memory.
    pub fn zeroed(size: usize) -> Result<Arc<Self>> {
        let layout = layout(size)?;
        let mapping = if size >= MAPPED_LEAST { map_zeroed(size) } else { None };
        // SAFETY: `layout` has a size above zero, because the function `layout` refuses 0.
        let base = mapping.or_else(|| NonNull::new(unsafe { alloc_zeroed(layout) }));
        let base = base.ok_or_else(|| Error::io("allocate memory")(rustix::io::Errno::NOMEM))?;
        let origin = if mapping.is_some() { Origin::Mapping } else { Origin::Heap };
        Ok(Self::at(base, layout, origin))
    }

    /// The `length` bytes at `base`, lent to be registered. `None` if there are bytes and `base` is null, if
    /// there are more than `isize::MAX`, or if their addresses wrap around.
    ///
    /// # Safety
    /// For as long as the result lives the bytes are readable, and writable if they are registered with a
    /// right to write. Other code of this process accesses them meanwhile only as it would memory that
    /// another process changes at any time.
    #[must_use]
    pub unsafe fn lent(base: *mut u8, length: usize) -> Option<Arc<Self>> {
        let layout = Layout::from_size_align(length, 1).ok()?;
        base.addr().checked_add(length)?;
        let base = match NonNull::new(base) {
            None if length > 0 => return None,
            base => base.unwrap_or(NonNull::dangling()),
        };
        Some(Self::at(base, layout, Origin::Lent))
    }

    fn at(base: NonNull<u8>, layout: Layout, origin: Origin) -> Arc<Self> {
        Arc::new(Self { base, layout, origin })
    }

    /// Length in bytes; 0 only for lent memory.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "who lends memory knows how much")]
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Returns its address: for a device that reads and writes it by itself, under this module's rule.
    #[cfg(any(test, feature = "ibv"))]
    pub(super) fn address(&self) -> NonNull<u8> {
        self.base
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if it does not fit; nothing is copied then.
    #[inline]
    pub fn write(&self, offset: u64, source: &[u8]) -> std::result::Result<(), OutOfBounds> {
        let target = self.range(offset, source.len())?;
        // SAFETY: `target` begins `source.len()` bytes within our mapping or allocation (checked by `range`),
        // of which no reference is given out, so that a `&[u8]` never overlaps it.
        unsafe { copy::copy(source.as_ptr(), target.as_ptr(), source.len()) };
        Ok(())
    }

    /// Copies `target.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if there are not that many; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: u64, target: &mut [u8]) -> std::result::Result<(), OutOfBounds> {
        let length = target.len();
        let source = self.range(offset, length)?;
        // SAFETY: `source` begins `length` bytes within our mapping or allocation (checked by `range`), of
        // which no reference is given out, so that a `&mut [u8]` never overlaps it. Any value of a byte is
        // valid.
        unsafe { copy::copy(source.as_ptr(), target.as_mut_ptr(), length) };
        Ok(())
    }

    /// Receives from `socket` without waiting: up to `length` bytes straight to `offset`, and further bytes
    /// into `rest`. Returns the number of bytes, 0 at the end of the input.
    ///
    /// # Errors
    /// The error of the system: [`io::ErrorKind::WouldBlock`] if there is no input now. `InvalidInput` if the
    /// place is [`OutOfBounds`].
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        rest: &mut [u8],
    ) -> io::Result<usize> {
        let place =
            self.range(offset, length).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // SAFETY: `place` begins `length` bytes within our mapping or allocation (checked by `range`).
        unsafe { receive(socket, place, length, rest) }
    }

    /// Returns the address of `length` bytes at `offset`.
    #[inline]
    fn range(&self, offset: u64, length: usize) -> std::result::Result<NonNull<u8>, OutOfBounds> {
        let size = self.len();
        let error = OutOfBounds { offset, length, size };
        let start = usize::try_from(offset).map_err(|_| error)?;
        match start.checked_add(length) {
            // SAFETY: `start <= start + length <= size`, so the result stays within the allocation
            // or one byte past its end, and the sum cannot overflow.
            Some(end) if end <= size => Ok(unsafe { self.base.add(start) }),
            _ => Err(error),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.origin {
            Origin::Mapping => {
                // SAFETY: `base` is a mapping of its own of exactly this size. Nothing refers to it any more,
                // and only this unmaps it. Only a wrong range could make it fail.
                unsafe { libc::munmap(self.base.as_ptr().cast(), self.len()) };
            }
            // SAFETY: `base` came from `alloc_zeroed` with this very layout and is freed only here.
            Origin::Heap => unsafe { dealloc(self.base.as_ptr(), self.layout) },
            Origin::Lent => {}
        }
    }
}

/// Receives from `socket` without waiting: up to `length` bytes to `base`, and further bytes into `rest`.
///
/// # Safety
/// The `length` bytes at `base` are writable, and no reference to them is alive.
unsafe fn receive(
    socket: BorrowedFd<'_>,
    base: NonNull<u8>,
    length: usize,
    rest: &mut [u8],
) -> io::Result<usize> {
    let mut pieces = [
        libc::iovec { iov_base: base.as_ptr().cast(), iov_len: length },
        libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
    ];
    // SAFETY: an all-zero `msghdr` is valid: no name, no control data, no pieces.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`). `message` names two pieces that live through
    // the call: the first is writable by the requirement of this function, the second is an exclusive borrow.
    // The kernel writes nowhere else. The C library's `recvmsg` is the same call and a cancellation point
    // besides, from which Rust cannot be unwound.
    let received =
        unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// The layout of `size` bytes.
fn layout(size: usize) -> Result<Layout> {
    let (what, value, most) = ("memory size", size as u64, isize::MAX as u64);
    let layout = Layout::from_size_align(size, ALIGNMENT).ok().filter(|layout| layout.size() > 0);
    layout.ok_or(Error::OutOfRange { what, value, least: 1, most })
}

/// Maps `size` bytes of zeros (at least one) as pages of their own. `None`: the system provides no further
/// mapping.
fn map_zeroed(size: usize) -> Option<NonNull<u8>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at a place that the system chooses touches no memory that is
    // in use.
    let place = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
    if place == libc::MAP_FAILED { None } else { NonNull::new(place.cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_stay_within_bounds() {
        let memory = Memory::zeroed(8).unwrap();
        memory.write(4, b"abcd").unwrap();
        let mut out = [1; 8];
        memory.read(0, &mut out).unwrap();
        assert_eq!(&out, b"\0\0\0\0abcd");
        memory.write(8, b"").unwrap();
        for (offset, length) in [(5, 4), (9, 0), (0, 9), (u64::MAX, 1), (u64::MAX - 1, 4)] {
            let error = OutOfBounds { offset, length, size: 8 };
            assert_eq!(memory.write(offset, &vec![0; length]), Err(error));
            assert_eq!(memory.read(offset, &mut vec![0; length]), Err(error));
        }
    }

    /// Threads copy the same bytes concurrently: each copy has in every byte what one of the writers wrote.
    /// Miri reports no error.
    #[test]
    fn copies_may_race() {
        let rounds = if cfg!(miri) { 20 } else { 2_000 };
        for length in [3, 40, 300] {
            let memory = &Memory::zeroed(length).unwrap();
            std::thread::scope(|scope| {
                for value in [1, 2] {
                    scope.spawn(move || {
                        (0..rounds).for_each(|_| memory.write(0, &vec![value; length]).unwrap())
                    });
                }
                let mut bytes = vec![0; length];
                for _ in 0..rounds {
                    memory.read(0, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|byte| (0..=2).contains(byte)), "{bytes:?}");
                }
            });
        }
    }

    #[test]
    fn no_bytes_is_no_memory() {
        assert!(Memory::zeroed(0).is_err());
        assert!(Memory::zeroed(usize::MAX).is_err());
    }
}
