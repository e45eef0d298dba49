//! The file, mapped: by the process that makes it, for ever; by a reader, as long as it looks.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use super::layout::{HAS_ENDS, MAGIC, Record, Shared, VERSION};

/// The file's name: what `/proc/PID/fd` shows.
const NAME: &str = "rstream-statistics";
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// `f_type` of memory without huge pages, which raises no signal when a page of it is used.
const TMPFS: i64 = 0x0102_1994;
/// Of its descriptors, one in so many are left to a process.
const SPARE: u64 = 8;

/// Whether a link of `/proc/PID/fd` leads to such a file.
#[must_use]
pub fn is_name_of_file(link: &OsStr) -> bool {
    link.as_bytes().strip_prefix(b"/memfd:").is_some_and(|rest| rest.starts_with(NAME.as_bytes()))
}

/// A mapping that ends when this is dropped.
struct Mapping(NonNull<Shared>);

// SAFETY: what lies in the mapping are atomics; it may be used and unmapped by any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, access: ProtFlags) -> Result<Self, Errno> {
        let length = size_of::<Shared>();
        // SAFETY: the system chooses a free place, so that the mapping touches no memory in use.
        let base = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0) }?;
        NonNull::new(base.cast()).map(Self).ok_or(Errno::NOMEM)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping begins at a page, has the length of a `Shared` and stays as long as `self`; its
        // file has that length and cannot shrink (`SEALS`). A `Shared` consists of atomics, valid with any
        // bits. Where it is mapped for reading, nothing but loads of 64 bits are done with it, which need no
        // writing.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; references into it borrow `self`.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), size_of::<Shared>()) };
    }
}

/// The file of another process, or of this one.
pub struct View(Mapping);

impl View {
    /// Maps a file that was opened for reading.
    ///
    /// # Errors
    /// What the system says; [`Errno::INVAL`] if it is no such file, or one of another version.
    pub fn open(file: impl AsFd) -> Result<Self, Errno> {
        let file = file.as_fd();
        let is_kind = rustix::fs::fcntl_get_seals(file)?.contains(SEALS)
            && rustix::fs::fstatfs(file)?.f_type as i64 == TMPFS
            && rustix::fs::fstat(file)?.st_size == size_of::<Shared>() as i64;
        if !is_kind {
            return Err(Errno::INVAL);
        }
        let mapping = Mapping::new(file, ProtFlags::READ)?;
        let header = &mapping.shared().header;
        let found = (header.magic.load(Ordering::Acquire), header.version.load(Ordering::Relaxed));
        if found == (MAGIC, VERSION) { Ok(Self(mapping)) } else { Err(Errno::INVAL) }
    }

    pub(super) fn shared(&self) -> &Shared {
        self.0.shared()
    }
}

/// This process's file. It is never unmapped: calls of other threads may count at any time.
pub(super) struct Own {
    shared: AtomicPtr<Shared>,
    /// Its descriptor, and the number of the file.
    descriptor: AtomicI32,
    inode: AtomicU64,
}

impl Own {
    pub(super) const fn none() -> Self {
        Self {
            shared: AtomicPtr::new(std::ptr::null_mut()),
            descriptor: AtomicI32::new(-1),
            inode: AtomicU64::new(0),
        }
    }

    pub(super) fn get(&self) -> Option<&'static Shared> {
        // SAFETY: null, or what `make` has mapped for ever. See `Mapping::shared`.
        unsafe { self.shared.load(Ordering::Acquire).as_ref() }
    }

    /// Makes the file. Another thread may be faster: then that one counts.
    pub(super) fn make(&self) -> Result<&'static Shared, Errno> {
        let length = size_of::<Shared>() as u64;
        // The system ends a process that tries to make a longer file than it may.
        if getrlimit(Resource::Fsize).current.is_some_and(|most| length > most) {
            return Err(Errno::FBIG);
        }
        let file = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let number = u64::from(file.as_raw_fd().unsigned_abs());
        if getrlimit(Resource::Nofile).current.is_some_and(|most| number >= most - most / SPARE) {
            return Err(Errno::MFILE);
        }
        rustix::fs::ftruncate(&file, length)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let inode = rustix::fs::fstat(&file)?.st_ino;
        let mapping = Mapping::new(file.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?;
        let header = &mapping.shared().header;
        header.version.store(VERSION, Ordering::Relaxed);
        header.process.store(current(), Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        let new = mapping.0.as_ptr();
        match self.shared.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                std::mem::forget(mapping);
                self.inode.store(inode, Ordering::Relaxed);
                self.descriptor.store(rstream_ring::move_up(file).into_raw_fd(), Ordering::Release);
            }
            Err(_) => drop(mapping),
        }
        self.get().ok_or(Errno::NOMEM)
    }

    /// Its descriptor.
    #[cfg(test)]
    pub(super) fn number(&self) -> i32 {
        self.descriptor.load(Ordering::Acquire)
    }

    /// In a process that was forked: the file is the other's. The mapping stays: what it says is not used any
    /// more, but a call that the fork interrupted may still count there.
    pub(super) fn forget(&self) {
        self.shared.store(std::ptr::null_mut(), Ordering::Release);
        let number = self.descriptor.swap(-1, Ordering::AcqRel);
        if number < 0 {
            return;
        }
        // SAFETY: a number; the kernel says if it is not open.
        let is_own = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(number) })
            .is_ok_and(|status| status.st_ino == self.inode.load(Ordering::Relaxed));
        // The application may have closed it, and have opened another under its number.
        if is_own {
            // SAFETY: it is the one of `make`, which nothing else refers to.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}

/// The number that this process has for itself.
pub(super) fn current() -> u64 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs().into()
}

/// Which record a connection counts in.
pub(super) struct Place(AtomicPtr<Record>);

/// That of connections which have none yet: nobody reads it.
static NOWHERE: Record = Record::new(0);
/// That of connections which get none.
static UNCOUNTED: Record = Record::new(HAS_ENDS);

impl Place {
    pub(super) const fn nowhere() -> Self {
        Self(AtomicPtr::new((&raw const NOWHERE).cast_mut()))
    }

    pub(super) fn is_record(&self) -> bool {
        is_record(self.0.load(Ordering::Relaxed))
    }

    /// The connection gets none.
    pub(super) fn give_up(&self) {
        self.0.store((&raw const UNCOUNTED).cast_mut(), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn record(&self) -> &'static Record {
        // SAFETY: one of the two above, or a record of a file that is mapped for ever (`Own`), of atomics
        // that are valid with any bits: it does not matter in which order another thread sees their values.
        unsafe { &*self.0.load(Ordering::Relaxed) }
    }

    /// Returns whether it had none.
    pub(super) fn set(&self, record: &'static Record) -> bool {
        let (none, new) = ((&raw const NOWHERE).cast_mut(), std::ptr::from_ref(record).cast_mut());
        self.0.compare_exchange(none, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes it away.
    pub(super) fn take(&self) -> Option<&'static Record> {
        let taken = self.0.swap((&raw const NOWHERE).cast_mut(), Ordering::AcqRel);
        // SAFETY: as in `record`.
        is_record(taken).then(|| unsafe { &*taken })
    }
}

fn is_record(record: *const Record) -> bool {
    !std::ptr::eq(record, &raw const NOWHERE) && !std::ptr::eq(record, &raw const UNCOUNTED)
}
