//! The memory that two processes share: an anonymous file of fixed size, and the part of it that
//! holds the lanes.
//!
//! ```text
//! control: joined, the active side's lane, the passive side's lane │ active side's region │ passive side's region
//! ```
//!
//! Each part begins on a page. The file is sealed against any change of its size before anybody maps
//! it, and lies in memory that the system gives when it is first used (see `conditions`), so that no access
//! to it can fail later.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::conditions::is_permitted;
use super::lane::{Lane, Line};
use super::sync::{AtomicU32, Ordering};
use crate::{Error, Memory, Result};

/// Seals of a segment.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Longest region: a peer's wish costs this process no more.
const LONGEST: u32 = 256 << 20;

/// Which side of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Active,
    Passive,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Active => Self::Passive,
            Self::Passive => Self::Active,
        }
    }
}

/// A segment: its file, and what lies where.
pub(super) struct Segment {
    file: OwnedFd,
    /// Bytes of the region of the active and of the passive side.
    regions: [u32; 2],
}

/// What both sides read and write through atomics. All zeros are its beginning.
#[repr(C)]
struct Control {
    /// Not 0 once the active side uses the segment.
    joined: Line<AtomicU32>,
    /// What the active side writes, and what the passive side writes.
    lanes: [Lane; 2],
}

/// The control part, mapped.
pub(super) struct Board {
    place: NonNull<Control>,
}

/// A lane on a board; it keeps the board mapped.
pub(super) struct LaneOf {
    board: Arc<Board>,
    /// Who writes it.
    side: Side,
}

impl Segment {
    /// A new segment for regions of these sizes.
    pub(super) fn new(regions: [u32; 2]) -> Result<Self> {
        let longest = regions[0].max(regions[1]);
        if longest > LONGEST {
            let (what, value, most) = ("size of shared memory", longest.into(), LONGEST.into());
            return Err(Error::OutOfRange { what, value, least: 0, most });
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("rstream", flags).map_err(Error::io("memfd_create"))?;
        let segment = Self { file, regions };
        if !is_permitted(segment.size()) {
            return Err(Error::io("ftruncate")(Errno::FBIG));
        }
        rustix::fs::ftruncate(&segment.file, segment.size()).map_err(Error::io("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&segment.file, SEALS).map_err(Error::io("F_ADD_SEALS"))?;
        Ok(segment)
    }

    /// The segment in a file that came from a peer. `None`: it is none, or its size could change.
    pub(super) fn of_peer(file: OwnedFd, regions: [u32; 2]) -> Option<Self> {
        // Only files in memory have seals: no other file system is asked for anything.
        let seals = rustix::fs::fcntl_get_seals(&file).ok()?;
        // Huge pages have seals too, but other borders than `offset` counts on.
        let has_pages = rustix::fs::fstatfs(&file).ok()?.f_type == libc::TMPFS_MAGIC;
        let size = u64::try_from(rustix::fs::fstat(&file).ok()?.st_size).ok()?;
        let segment = Self { file, regions };
        let fits = size == segment.size() && regions.iter().all(|&region| region <= LONGEST);
        (seals.contains(SEALS) && has_pages && fits).then_some(segment)
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Maps the control part.
    pub(super) fn board(&self) -> Result<Arc<Board>> {
        let (protection, length) = (ProtFlags::READ | ProtFlags::WRITE, size_of::<Control>());
        // SAFETY: the system chooses a free place, so that the mapping touches no memory in use; the
        // file is a segment, which is longer than `length`.
        let place = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), length, protection, MapFlags::SHARED, &self.file, 0)
        };
        let place = place.map_err(Error::io("mmap"))?;
        let place = NonNull::new(place.cast()).ok_or_else(|| Error::io("mmap")(Errno::NOMEM))?;
        Ok(Arc::new(Board { place }))
    }

    /// Maps the region of `side`, for writing to it from the other.
    pub(super) fn region(&self, side: Side) -> Result<Arc<Memory>> {
        Memory::of_file(self.file(), self.offset(side), self.regions[side as usize] as usize)
    }

    /// Makes `memory` the region of `side`: what it holds stays if `kept`. As every call that writes to
    /// memory, it excludes all others.
    pub(super) fn adopt(&self, side: Side, memory: &Memory, kept: bool) -> Result<()> {
        memory.move_to_file(self.file(), self.offset(side), kept)
    }

    fn offset(&self, side: Side) -> u64 {
        let control = pages(size_of::<Control>() as u64);
        match side {
            Side::Active => control,
            Side::Passive => control + pages(self.regions[0].into()),
        }
    }

    fn size(&self) -> u64 {
        self.offset(Side::Passive) + pages(self.regions[1].into())
    }
}

/// `bytes` rounded up to whole pages, as long as any system has them: what is not used costs nothing.
fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(64 * 1024)
}

// SAFETY: a `Board` owns its mapping, of which it gives out shared references to atomics only; any
// thread may use and unmap them.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Says that the active side uses the segment.
    pub(super) fn join(&self) {
        self.control().joined.0.store(1, Ordering::Release);
    }

    /// Whether the active side uses the segment.
    pub(super) fn is_joined(&self) -> bool {
        self.control().joined.0.load(Ordering::Acquire) != 0
    }

    /// The lane that `side` writes.
    pub(super) fn lane(self: &Arc<Self>, side: Side) -> LaneOf {
        LaneOf { board: Arc::clone(self), side }
    }

    fn control(&self) -> &Control {
        // SAFETY: `place` is a page's beginning, aligned for anything, of a mapping as long as a
        // `Control` that stays until the `Board` is dropped, and its file cannot shrink. A `Control`
        // consists of atomics, valid with any bits; who else writes there, this process or another,
        // does so through atomics, and what a peer that does not writes is some value.
        unsafe { self.place.as_ref() }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `Segment::board` with this very length; the references into
        // it end with the borrow of this `Board`. What could fail, a wrong range, cannot occur.
        let _ = unsafe { rustix::mm::munmap(self.place.as_ptr().cast(), size_of::<Control>()) };
    }
}

impl Deref for LaneOf {
    type Target = Lane;

    #[inline]
    fn deref(&self) -> &Lane {
        &self.board.control().lanes[self.side as usize]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn regions_are_seen_from_both_sides() {
        let ours = Segment::new([20_000, 70_000]).unwrap();
        let theirs = Segment::of_peer(ours.file.try_clone().unwrap(), [20_000, 70_000]).unwrap();
        for (side, size) in [(Side::Active, 20_000), (Side::Passive, 70_000)] {
            let own = Memory::zeroed(size).unwrap();
            own.write(5, b"before").unwrap();
            ours.adopt(side, &own, true).unwrap();
            let seen = theirs.region(side).unwrap();
            let mut bytes = [0; 6];
            seen.read(5, &mut bytes).unwrap();
            assert_eq!(&bytes, b"before");
            seen.write(size as u64 - 6, b"behind").unwrap();
            own.read(size as u64 - 6, &mut bytes).unwrap();
            assert_eq!(&bytes, b"behind");
            assert!(seen.write(size as u64 - 5, b"behind").is_err());
        }
        assert!(!ours.board().unwrap().is_joined());
        theirs.board().unwrap().join();
        assert!(ours.board().unwrap().is_joined());
    }

    /// `docs/shared-memory.md` says where things are.
    #[test]
    fn the_layout_is_as_published() {
        use std::mem::offset_of;
        assert_eq!(offset_of!(Control, joined), 0);
        assert_eq!(offset_of!(Control, lanes), 128);
        assert_eq!(size_of::<Lane>(), 256 + 16 * 512);
        let segment = Segment::new([1, 1]).unwrap();
        let offsets = [Side::Active, Side::Passive].map(|side| segment.offset(side));
        assert_eq!((offsets, segment.size()), ([1 << 16, 2 << 16], 3 << 16));
    }

    #[test]
    fn what_is_not_kept_is_zeros() {
        let segment = Segment::new([20_000, 20_000]).unwrap();
        let own = Memory::zeroed(20_000).unwrap();
        own.write(0, b"before").unwrap();
        segment.adopt(Side::Active, &own, false).unwrap();
        let mut bytes = [1; 6];
        own.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 6]);
    }

    #[test]
    fn a_file_whose_size_could_change_is_refused() {
        let file = |flags, seals| {
            let file = rustix::fs::memfd_create("test", flags).unwrap();
            let size = Segment { file: file.try_clone().unwrap(), regions: [1, 1] }.size();
            rustix::fs::ftruncate(&file, size).unwrap();
            let _ = rustix::fs::fcntl_add_seals(&file, seals);
            file
        };
        let sealing = MemfdFlags::ALLOW_SEALING;
        assert!(Segment::of_peer(file(sealing, SEALS), [1, 1]).is_some());
        assert!(Segment::of_peer(file(sealing, SEALS), [1, 70_000]).is_none(), "too short");
        assert!(Segment::of_peer(file(sealing, SealFlags::GROW), [1, 1]).is_none());
        assert!(Segment::of_peer(file(MemfdFlags::empty(), SEALS), [1, 1]).is_none());
        let no_memory_file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Segment::of_peer(no_memory_file.into(), [1, 1]).is_none());
    }

    #[test]
    fn a_file_of_huge_pages_is_refused() {
        let regions = [(2 << 20) - (64 << 10), 2 << 20];
        let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        // It needs no huge page, only a system that knows them.
        let Ok(file) = rustix::fs::memfd_create("test", flags) else { return };
        rustix::fs::ftruncate(&file, 4 << 20).unwrap();
        rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
        assert!(Segment::of_peer(file, regions).is_none());
    }

    #[test]
    fn regions_have_a_bound() {
        assert!(Segment::new([LONGEST, LONGEST]).is_ok());
        for regions in [[LONGEST + 1, 1], [1, LONGEST + 1], [u32::MAX, u32::MAX]] {
            assert!(Segment::new(regions).is_err());
            let file = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
            let size = Segment { file: file.try_clone().unwrap(), regions }.size();
            rustix::fs::ftruncate(&file, size).unwrap();
            rustix::fs::fcntl_add_seals(&file, SEALS).unwrap();
            assert!(Segment::of_peer(file, regions).is_none());
        }
    }

    #[test]
    fn memory_of_the_heap_stays_where_it_is() {
        let segment = Segment::new([100, 100]).unwrap();
        assert!(segment.adopt(Side::Active, &Memory::zeroed(100).unwrap(), true).is_err());
    }

    #[test]
    fn memory_that_a_device_knows_stays_where_it_is() {
        let segment = Segment::new([20_000, 20_000]).unwrap();
        let own = Memory::zeroed(20_000).unwrap();
        let place = own.pin();
        assert!(segment.adopt(Side::Active, &own, true).is_err());
        assert_eq!(own.pin(), place);
    }
}
