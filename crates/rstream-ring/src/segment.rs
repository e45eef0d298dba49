//! The memory that two processes share: an anonymous file of fixed size.
//!
//! ```text
//! control page │ ring that the creator writes │ ring that the peer writes
//! ```
//!
//! Each part begins at a multiple of 4096. The file is sealed against any change of its size before anybody
//! maps it, and lies in memory that the system gives when it is first used, so that no access to it can fail
//! later.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::memory;
use crate::{Error, Reader, Result, Writer};

/// Seals of a segment.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// `f_type` of memory without huge pages, and so with the borders that mappings have here.
const TMPFS: i64 = 0x0102_1994;
/// What the parts of a segment are aligned to: the control page's size.
const ALIGNMENT: usize = 4096;

/// Bytes of the two rings, as one side sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSizes {
    /// Of the ring that this side writes.
    pub output: usize,
    /// Of the ring that this side reads.
    pub input: usize,
}

/// A segment that can be mapped, and handed over to the peer by its file.
#[derive(Debug)]
pub struct Segment {
    file: OwnedFd,
    layout: Layout,
    side: Side,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Creator,
    Peer,
}

/// What lies where in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Bytes of the ring that the creator writes, and of the other.
    rings: [usize; 2],
}

impl Segment {
    /// Bytes of the longest ring: a peer's wish costs this process no more.
    pub const LONGEST_RING: usize = 256 << 20;

    /// Makes a segment of zeros.
    ///
    /// # Errors
    /// [`Error::RingSize`]; [`Error::UncertainMemory`]; [`Error::Io`] with what the system says, also if the
    /// process may not make so long a file (`RLIMIT_FSIZE`).
    pub fn create(sizes: RingSizes) -> Result<Self> {
        let layout = Layout::new([sizes.output, sizes.input])?;
        check_memory()?;
        let length = layout.length() as u64;
        // The system ends a process that tries to make a longer file than it may.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| length > most) {
            return Err(Error::io("ftruncate")(Errno::FBIG));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("rstream-ring", flags).map_err(Error::io("memfd_create"))?;
        rustix::fs::ftruncate(&file, length).map_err(Error::io("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(Error::io("F_ADD_SEALS"))?;
        Ok(Self { file, layout, side: Side::Creator })
    }

    /// The segment in a file that came from the peer who created it. `sizes` are this side's, as both agreed.
    ///
    /// # Errors
    /// [`Error::NoSegment`] unless the file is memory whose size is right and cannot change;
    /// [`Error::RingSize`]; [`Error::UncertainMemory`].
    pub fn from_peer(file: OwnedFd, sizes: RingSizes) -> Result<Self> {
        let layout = Layout::new([sizes.input, sizes.output])?;
        check_memory()?;
        // Only files in memory have seals: no other file system is asked for anything.
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| Error::NoSegment("it has no seals"))?;
        if !seals.contains(SEALS) {
            return Err(Error::NoSegment("its size can change"));
        }
        // Huge pages have seals too, and raise a signal where none is left.
        if rustix::fs::fstatfs(&file).map_err(Error::io("fstatfs"))?.f_type as i64 != TMPFS {
            return Err(Error::NoSegment("its pages are of another kind"));
        }
        let length = rustix::fs::fstat(&file).map_err(Error::io("fstat"))?.st_size;
        if usize::try_from(length) != Ok(layout.length()) {
            return Err(Error::NoSegment("it has another size"));
        }
        Ok(Self { file, layout, side: Side::Peer })
    }

    /// Maps the segment. The file is not needed any more afterwards.
    ///
    /// # Errors
    /// [`Error::Io`] with what the system says.
    pub fn map(&self) -> Result<(Writer, Reader)> {
        let [first, second] = memory::map(self.file.as_fd(), &self.layout)?;
        let (output, input) = match self.side {
            Side::Creator => (first, second),
            Side::Peer => (second, first),
        };
        Ok((Writer::new(output), Reader::new(input)))
    }
}

impl AsFd for Segment {
    /// The file, to be handed over.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Layout {
    fn new(rings: [usize; 2]) -> Result<Self> {
        let most = Segment::LONGEST_RING;
        match rings.into_iter().find(|size| !(1..=most).contains(size)) {
            Some(size) => Err(Error::RingSize { size, most }),
            None => Ok(Self { rings }),
        }
    }

    /// Bytes of the file.
    pub(crate) fn length(&self) -> usize {
        let (offset, size) = self.ring(1);
        offset + size.next_multiple_of(ALIGNMENT)
    }

    /// Offset and size of the ring that the creator (0) or its peer (1) writes.
    pub(crate) fn ring(&self, index: usize) -> (usize, usize) {
        let offset =
            self.rings[..index].iter().fold(ALIGNMENT, |end, size| end + size.next_multiple_of(ALIGNMENT));
        (offset, self.rings[index])
    }
}

/// The pages of a file in memory are committed when they are first used. A system that commits no more than
/// it has may refuse one then, and end the process that used it.
fn check_memory() -> Result<()> {
    const STRICT: &str = "2";
    match std::fs::read_to_string("/proc/sys/vm/overcommit_memory") {
        Ok(mode) if mode.trim() != STRICT => Ok(()),
        _ => Err(Error::UncertainMemory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Direction;

    const SIZES: RingSizes = RingSizes { output: 20_000, input: 70_000 };

    fn swapped(sizes: RingSizes) -> RingSizes {
        RingSizes { output: sizes.input, input: sizes.output }
    }

    fn file(length: usize, flags: MemfdFlags, seals: SealFlags) -> OwnedFd {
        let file = rustix::fs::memfd_create("test", flags).unwrap();
        rustix::fs::ftruncate(&file, length as u64).unwrap();
        let _ = rustix::fs::fcntl_add_seals(&file, seals);
        file
    }

    #[test]
    fn the_layout_is_as_published() {
        let layout = Layout::new([1, 4097]).unwrap();
        assert_eq!((layout.ring(0), layout.ring(1), layout.length()), ((4096, 1), (8192, 4097), 16384));
        assert!(2 * size_of::<Direction>() <= ALIGNMENT);
    }

    #[test]
    fn a_file_whose_size_could_change_is_refused() {
        let (sealing, length) = (MemfdFlags::ALLOW_SEALING, Layout::new([1, 1]).unwrap().length());
        let sizes = RingSizes { output: 1, input: 1 };
        let refused = |file: OwnedFd, why| {
            assert_eq!(Segment::from_peer(file, sizes).unwrap_err(), Error::NoSegment(why));
        };
        assert!(Segment::from_peer(file(length, sealing, SEALS), sizes).is_ok());
        refused(file(length - 1, sealing, SEALS), "it has another size");
        refused(file(length + 4096, sealing, SEALS), "it has another size");
        refused(file(length, sealing, SealFlags::GROW | SealFlags::SEAL), "its size can change");
        refused(file(length, sealing, SealFlags::GROW | SealFlags::SHRINK), "its size can change");
        refused(file(length, MemfdFlags::empty(), SEALS), "its size can change");
        refused(std::fs::File::open("/proc/self/exe").unwrap().into(), "it has no seals");
        refused(std::io::pipe().unwrap().0.into(), "it has no seals");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_not_mapped() {
        let layout = Layout::new([20_000, 70_000]).unwrap();
        let file = file(layout.length(), MemfdFlags::ALLOW_SEALING, SEALS | SealFlags::WRITE);
        let segment = Segment::from_peer(file, swapped(SIZES)).unwrap();
        assert!(matches!(segment.map(), Err(Error::Io { what: "mmap", .. })));
    }

    #[test]
    fn a_file_of_huge_pages_is_refused() {
        let sizes = RingSizes { output: (2 << 20) - 4096, input: 2 << 20 };
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // It needs no huge page, only a system that knows them.
        let Ok(file) = rustix::fs::memfd_create("test", flags) else { return };
        rustix::fs::ftruncate(&file, 4 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
        let refused = Segment::from_peer(file, sizes);
        assert_eq!(refused.unwrap_err(), Error::NoSegment("its pages are of another kind"));
    }

    #[test]
    fn rings_have_bounds() {
        let most = Segment::LONGEST_RING;
        assert!(Segment::create(RingSizes { output: most, input: most }).is_ok());
        for size in [0, most + 1, usize::MAX] {
            for sizes in [RingSizes { output: size, input: 1 }, RingSizes { output: 1, input: size }] {
                let error = Error::RingSize { size, most };
                assert_eq!(Segment::create(sizes).unwrap_err(), error);
                let right = Segment::create(SIZES).unwrap().file;
                assert_eq!(Segment::from_peer(right, sizes).unwrap_err(), error);
            }
        }
    }
}
