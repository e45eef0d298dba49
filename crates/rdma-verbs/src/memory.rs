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
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

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
    /// Never null. It changes when the memory moves to a file.
    base: AtomicPtr<u8>,
    /// The mapping from before the last move, or null. It stays mapped: a copy may still be under way in it.
    former: AtomicPtr<u8>,
    layout: Layout,
    origin: Origin,
    /// Whether a device knows its address.
    pinned: AtomicBool,
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

impl Memory {
    /// Memory of at least this size can be moved to a file.
    pub(super) const MOVABLE_LEAST: usize = MAPPED_LEAST;

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

    /// Maps `size` bytes of `file` from `offset` on, a multiple of the page size. The file must have that
    /// many bytes, and must not be able to shrink.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] as for [`Memory::zeroed`], [`Error::Io`] with the error of the system.
    pub(super) fn of_file(file: BorrowedFd<'_>, offset: u64, size: usize) -> Result<Arc<Self>> {
        let layout = layout(size)?;
        Ok(Self::at(map_file(file, offset, size)?, layout, Origin::Mapping))
    }

    fn at(base: NonNull<u8>, layout: Layout, origin: Origin) -> Arc<Self> {
        let base = AtomicPtr::new(base.as_ptr());
        let former = AtomicPtr::default();
        Arc::new(Self { base, former, layout, origin, pinned: AtomicBool::new(false) })
    }

    /// Whether [`Memory::move_to_file`] can move it.
    pub(super) fn is_movable(&self) -> bool {
        self.origin == Origin::Mapping && !self.pinned.load(Ordering::Relaxed)
    }

    /// Moves it to `file`, as in [`Memory::of_file`]: from then on, others who map the file see it. If
    /// `kept`, it keeps its content; otherwise it gets that of the file. A concurrent copy may be lost.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for memory without a mapping of its own, [`Error::BadState`] for memory that was
    /// moved before or that a device knows, [`Error::Io`] with the error of the system. The memory is
    /// unchanged then.
    pub(super) fn move_to_file(&self, file: BorrowedFd<'_>, offset: u64, kept: bool) -> Result<()> {
        let size = self.len();
        if self.origin != Origin::Mapping {
            let (what, value) = ("size of memory to be shared", size as u64);
            return Err(Error::OutOfRange { what, value, least: MAPPED_LEAST as u64, most: u64::MAX });
        }
        if self.pinned.load(Ordering::Relaxed) {
            return Err(Error::BadState { state: "known to a device", what: "moving memory" });
        }
        let before = self.base().as_ptr();
        let null = std::ptr::null_mut();
        // The thread that sets `former` moves the memory.
        if self.former.compare_exchange(null, before, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return Err(Error::BadState { state: "moved already", what: "moving memory" });
        }
        let target =
            map_file(file, offset, size).inspect_err(|_| self.former.store(null, Ordering::Relaxed))?;
        if kept {
            // SAFETY: both are mappings of `size` bytes, and different ones.
            unsafe { copy::copy(before, target.as_ptr(), size) };
        }
        self.base.store(target.as_ptr(), Ordering::Relaxed);
        // SAFETY: `before` was a private mapping of its own of `size` bytes, and remains mapped; only its
        // pages are freed. Concurrent copies find zeros there. No device knows its address.
        unsafe { libc::madvise(before.cast(), size, libc::MADV_DONTNEED) };
        Ok(())
    }

    /// Length in bytes; 0 only for lent memory.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "who lends memory knows how much")]
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Returns its address, which is final from now on: for a device that reads and writes it by itself,
    /// under this module's rule.
    #[cfg(any(test, feature = "ibv"))]
    pub(super) fn pin(&self) -> NonNull<u8> {
        self.pinned.store(true, Ordering::Relaxed);
        self.base()
    }

    #[inline]
    fn base(&self) -> NonNull<u8> {
        // SAFETY: it was created from a `NonNull`, and only pointers of `NonNull`s were stored since.
        unsafe { NonNull::new_unchecked(self.base.load(Ordering::Relaxed)) }
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
            Some(end) if end <= size => Ok(unsafe { self.base().add(start) }),
            _ => Err(error),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        match self.origin {
            Origin::Mapping => {
                let former = *self.former.get_mut();
                // SAFETY: `base` is a mapping of its own of exactly this size, and so is `former` unless it
                // is null. Nothing refers to them any more, and only this unmaps them. Only a wrong range
                // could make it fail.
                unsafe {
                    libc::munmap(self.base().as_ptr().cast(), self.len());
                    if !former.is_null() {
                        libc::munmap(former.cast(), self.len());
                    }
                }
            }
            // SAFETY: `base` came from `alloc_zeroed` with this very layout and is freed only here.
            Origin::Heap => unsafe { dealloc(self.base().as_ptr(), self.layout) },
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

/// Maps `size` bytes of `file` from `offset` on, at an address that the system chooses.
fn map_file(file: BorrowedFd<'_>, offset: u64, size: usize) -> Result<NonNull<u8>> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let refused = |error| Error::Io { what: "mmap", source: error };
    let offset = libc::off_t::try_from(offset).map_err(|error| refused(io::Error::other(error)))?;
    // SAFETY: the descriptor is open for the call; a new mapping at a place that the system chooses touches
    // no memory that is in use.
    let mapped =
        unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, file.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED {
        return Err(refused(io::Error::last_os_error()));
    }
    NonNull::new(mapped.cast()).ok_or_else(|| refused(io::ErrorKind::OutOfMemory.into()))
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
    use std::os::fd::AsFd;

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

    /// A copy that is concurrent with a move accesses no unmapped memory.
    #[test]
    #[cfg_attr(miri, ignore = "files in memory are the system's")]
    fn copies_may_meet_a_move() {
        for _ in 0..50 {
            let size = 4 * Memory::MOVABLE_LEAST;
            let memory = &Memory::zeroed(size).unwrap();
            let file = rustix::fs::memfd_create("move", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, size as u64).unwrap();
            std::thread::scope(|scope| {
                let copying = scope.spawn(move || {
                    let mut bytes = vec![0; size];
                    (0..200).for_each(|_| memory.read(0, &mut bytes).unwrap());
                });
                memory.move_to_file(file.as_fd(), 0, true).unwrap();
                memory.move_to_file(file.as_fd(), 0, true).unwrap_err();
                copying.join().unwrap();
            });
            memory.write(0, b"there").unwrap();
            let mut bytes = [0; 5];
            rustix::io::pread(&file, &mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"there");
        }
    }

    #[test]
    fn no_bytes_is_no_memory() {
        assert!(Memory::zeroed(0).is_err());
        assert!(Memory::zeroed(usize::MAX).is_err());
    }
}
