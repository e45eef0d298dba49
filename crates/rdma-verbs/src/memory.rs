//! Memory that a peer may read or write. Only this module of the crate accesses payload through raw pointers.
//!
//! Such memory is never a `&[u8]`, because a peer may change it at any time (the typed layer's buffers, which
//! have no rights for peers, are the exception). It is only copied in and out,
//! within bounds that are checked here, by copies that tolerate races (`copy`), or by the system to and from a
//! socket (`transfer`). Everything that moves payload is in this module.

mod copy;
mod place;
mod transfer;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

pub use place::Place;
pub use transfer::{Source, append_range, can_be_read, parts, send};

use super::{Error, Result};

/// Alignment of memory from the heap: the allocator provides it at no extra cost.
const ALIGNMENT: usize = 16;
/// Memory of at least this size is mapped as pages that cost nothing until they are used: most connections
/// use little of their rings. The heap would zero all of it.
const MAPPED_LEAST: usize = 16 * 1024;
/// Size of the pages of [`Memory::huge`].
const HUGE_PAGE: usize = 2 << 20;

/// A piece of memory with a fixed length, shared by [`Arc`].
///
/// | made by | what it is |
/// |---|---|
/// | [`Memory::zeroed`] | allocated |
/// | [`Memory::from_boxed`] | a value of the program, which need not be copied |
/// | [`Memory::huge`] | huge pages: fewer entries in the tables of a device |
/// | [`Memory::of_file`] | a file's mapping: what peers write is in the file |
/// | [`Memory::lent`] | any other memory, under the rules of that unsafe call |
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
    /// A boxed slice.
    Boxed,
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

// SAFETY: it is mapped or allocated memory without a tie to a thread, bytes of a box, or lent under the rules
// of `Memory::lent`.
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
        let mapping = if size >= MAPPED_LEAST { map(size, libc::MAP_PRIVATE, None).ok() } else { None };
        // SAFETY: `layout` has a size above zero, because the function `layout` refuses 0.
        let base = mapping.or_else(|| NonNull::new(unsafe { alloc_zeroed(layout) }));
        let base = base.ok_or_else(|| Error::io("allocate memory")(rustix::io::Errno::NOMEM))?;
        let origin = if mapping.is_some() { Origin::Mapping } else { Origin::Heap };
        Ok(Self::at(base, layout, origin))
    }

    /// The bytes of a box.
    #[must_use]
    pub fn from_boxed(bytes: Box<[u8]>) -> Arc<Self> {
        let layout = Layout::for_value(&*bytes);
        // A box has an address, also without bytes.
        let base = NonNull::from(Box::leak(bytes)).cast();
        Self::at(base, layout, Origin::Boxed)
    }

    /// Maps zeros in huge pages of 2 MiB. The size is rounded up to whole pages.
    ///
    /// # Errors
    /// As [`Memory::zeroed`]; [`Error::Io`] also if the system has not reserved so many huge pages.
    pub fn huge(size: usize) -> Result<Arc<Self>> {
        let layout = layout(size.checked_next_multiple_of(HUGE_PAGE).unwrap_or(usize::MAX))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB;
        let base = map(layout.size(), flags, None).map_err(Error::io("map huge pages"))?;
        Ok(Self::at(base, layout, Origin::Mapping))
    }

    /// Maps a piece of a file, which has to be open for reading and writing: what is written here is in the
    /// file, and what the file's other users write is here. `offset` is a multiple of the page size. If the
    /// file becomes shorter, an access to what it has lost ends the process (`SIGBUS`).
    ///
    /// # Errors
    /// As [`Memory::zeroed`]; [`Error::OutOfRange`] also for bytes that the file does not have; [`Error::Io`]
    /// for a file that cannot be mapped so.
    pub fn of_file(file: impl AsFd, offset: u64, size: usize) -> Result<Arc<Self>> {
        let layout = layout(size)?;
        let found = rustix::fs::fstat(&file).map_err(Error::io("look for the size of a file"))?;
        let has = u64::try_from(found.st_size).unwrap_or(0);
        let value = offset.saturating_add(size as u64);
        if value > has {
            return Err(Error::OutOfRange { what: "end in a file", value, least: 1, most: has });
        }
        let base = map(size, libc::MAP_SHARED, Some((file.as_fd(), offset)));
        Ok(Self::at(base.map_err(Error::io("map a file"))?, layout, Origin::Mapping))
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

    /// Length in bytes; 0 only for memory that was lent or boxed.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "who lends memory knows how much")]
    pub fn len(&self) -> usize {
        self.layout.size()
    }

    /// Returns its address: for a device that reads and writes it by itself, under this module's rule, or for
    /// an owner that keeps everything else from the bytes while it uses references to them.
    #[must_use]
    pub fn address(&self) -> NonNull<u8> {
        self.base
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// [`OutOfBounds`] if it does not fit; nothing is copied then.
    #[inline]
    pub fn write(&self, offset: u64, source: &[u8]) -> std::result::Result<(), OutOfBounds> {
        let target = self.range(offset, source.len())?;
        // SAFETY: `target` begins `source.len()` bytes within our mapping or allocation (checked by `range`).
        // A `&[u8]` never overlaps it: who makes a reference of `address` keeps this call from its bytes.
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
        // SAFETY: `source` begins `length` bytes within our mapping or allocation (checked by `range`). A
        // `&mut [u8]` never overlaps it: who makes a reference of `address` keeps this call from its bytes.
        // Any value of a byte is valid.
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
        let mut pieces = [transfer::target(place, length), transfer::target_of(rest)];
        // SAFETY: `place` begins `length` bytes within our mapping or allocation (checked by `range`); `rest` is an
        // exclusive borrow.
        unsafe { transfer::receive(socket, &mut pieces) }
    }

    /// The `length` bytes at `offset`, to send them.
    ///
    /// # Errors
    /// [`OutOfBounds`] if there are not that many.
    pub fn source(&self, offset: u64, length: usize) -> std::result::Result<Source<'_>, OutOfBounds> {
        let base = self.range(offset, length)?;
        // SAFETY: `base` begins `length` bytes within our mapping or allocation (checked by `range`).
        Ok(unsafe { Source::new(base.as_ptr(), length) })
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
            Origin::Boxed => {
                let bytes = NonNull::slice_from_raw_parts(self.base, self.len());
                // SAFETY: `from_boxed` leaked a box of exactly these bytes, and only this frees it.
                drop(unsafe { Box::from_raw(bytes.as_ptr()) });
            }
            Origin::Lent => {}
        }
    }
}

/// The layout of `size` bytes.
fn layout(size: usize) -> Result<Layout> {
    let (what, value, most) = ("memory size", size as u64, isize::MAX as u64);
    let layout = Layout::from_size_align(size, ALIGNMENT).ok().filter(|layout| layout.size() > 0);
    layout.ok_or(Error::OutOfRange { what, value, least: 1, most })
}

/// Maps `size` bytes (at least one) as pages of their own: of a file from an offset on, or zeros.
fn map(
    size: usize,
    flags: libc::c_int,
    file: Option<(BorrowedFd<'_>, u64)>,
) -> std::result::Result<NonNull<u8>, io::Error> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let (flags, file, offset) = match file {
        Some((file, offset)) => (flags, file.as_raw_fd(), offset),
        None => (flags | libc::MAP_ANONYMOUS, -1, 0),
    };
    let offset = offset.try_into().map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    // SAFETY: a new mapping at a place that the system chooses touches no memory that is in use. The
    // descriptor is open for the call, if there is one.
    let place = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, file, offset) };
    if place == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(place.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
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

    #[test]
    fn a_source_stays_within_bounds() {
        let memory = Memory::zeroed(8).unwrap();
        memory.write(0, b"abcdefgh").unwrap();
        for (offset, length) in [(5, 4), (9, 0), (u64::MAX, 1)] {
            let error = OutOfBounds { offset, length, size: 8 };
            assert_eq!(memory.source(offset, length).unwrap_err(), error);
        }
    }

    #[test]
    fn a_range_of_sources_is_copied_unless_it_cannot_be_read() {
        let memory = Memory::zeroed(8).unwrap();
        memory.write(0, b"abcdefgh").unwrap();
        let sources = [memory.source(2, 5).unwrap(), Source::default(), Source::from(&b"12"[..])];
        let mut found = b"x".to_vec();
        for range in [0..7, 3..usize::MAX, 1..3, 4..6, 7..9, 9..usize::MAX] {
            assert!(append_range(&sources, range, &mut found));
        }
        assert_eq!(found, b"xcdefg12fg12deg1");
        assert!(append_range(&[], 0..1, &mut found));
        if cfg!(miri) {
            return;
        }
        // A page without rights behind one with rights.
        let pages = map(8192, libc::MAP_PRIVATE, None).unwrap();
        // SAFETY: the second page of the mapping, to which nothing refers.
        assert_eq!(unsafe { libc::mprotect(pages.as_ptr().add(4096).cast(), 4096, libc::PROT_NONE) }, 0);
        // SAFETY: the system checks what it reads, and nothing else reads it.
        let half = unsafe { Source::new(pages.as_ptr(), 8192) };
        assert!(!append_range(&[half], 4000..4100, &mut found));
        assert_eq!(found.len(), 16);
        assert!(append_range(&[half], 4000..4096, &mut found));
        assert_eq!(found[16..], [0; 96]);
        // SAFETY: the mapping, which is used no more.
        assert_eq!(unsafe { libc::munmap(pages.as_ptr().cast(), 8192) }, 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn what_only_sockets_read_is_copied() {
        use std::os::fd::{FromRawFd as _, OwnedFd};
        // A socket takes less at once.
        const SIZE: usize = 1 << 20;
        // SAFETY: the call accesses no memory.
        let secret = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
        if secret < 0 {
            println!("skipped what_only_sockets_read_is_copied: {}", io::Error::last_os_error());
            return;
        }
        // SAFETY: a new descriptor, which nothing else closes.
        let secret = unsafe { OwnedFd::from_raw_fd(secret as i32) };
        rustix::fs::ftruncate(&secret, SIZE as u64).unwrap();
        let memory = Memory::of_file(&secret, 0, SIZE).unwrap();
        let bytes: Vec<u8> = (0..SIZE).map(|at| (at * 31 + at / 251) as u8).collect();
        memory.write(0, &bytes).unwrap();
        let sources = [memory.source(0, 700_000).unwrap(), memory.source(700_000, SIZE - 700_000).unwrap()];
        for range in [0..SIZE, 1..SIZE - 1, 699_999..700_001] {
            let mut found = Vec::new();
            assert!(append_range(&sources, range.clone(), &mut found));
            assert!(found == bytes[range]);
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
        assert!(Memory::huge(0).is_err());
        assert!(Memory::huge(usize::MAX).is_err());
    }

    #[test]
    fn a_box_is_used_where_it_is() {
        let bytes: Box<[u8]> = Box::from(*b"boxed bytes");
        let place = bytes.as_ptr();
        let memory = Memory::from_boxed(bytes);
        assert_eq!(memory.address().as_ptr().cast_const(), place);
        memory.write(6, b"BYTES").unwrap();
        let mut found = [0; 11];
        memory.read(0, &mut found).unwrap();
        assert_eq!(&found, b"boxed BYTES");
        assert_eq!(Memory::from_boxed(Box::default()).len(), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn a_file_has_what_is_written() {
        use std::os::unix::fs::FileExt as _;
        // A multiple of every size of page.
        let page = 1 << 16;
        let file = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(file);
        file.set_len(page + 100).unwrap();
        let memory = Memory::of_file(&file, page, 100).unwrap();
        memory.write(90, b"to the end").unwrap();
        let mut found = [0; 10];
        file.read_exact_at(&mut found, page + 90).unwrap();
        assert_eq!(&found, b"to the end");
        file.write_all_at(b"back", page).unwrap();
        memory.read(0, &mut found[..4]).unwrap();
        assert_eq!(&found[..4], b"back");
        drop(file);
        memory.read(90, &mut found).unwrap();
        assert_eq!(&found, b"to the end", "the mapping keeps it");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri maps no files")]
    fn what_cannot_be_mapped_is_refused() {
        let file = rustix::fs::memfd_create("memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = std::fs::File::from(file);
        file.set_len(5000).unwrap();
        let refused = |offset, size| Memory::of_file(&file, offset, size).unwrap_err().to_string();
        assert_eq!(refused(0, 5001), "end in a file of 5001 is outside 1 to 5000");
        assert_eq!(refused(u64::MAX, 1), format!("end in a file of {} is outside 1 to 5000", u64::MAX));
        assert!(refused(1, 10).starts_with("map a file: Invalid argument"));
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        let error = Memory::of_file(&read_only, 0, 10).unwrap_err().to_string();
        assert!(error.starts_with("map a file: Permission denied"), "{error}");
    }
}
