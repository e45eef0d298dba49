//! Memory that two processes have in common: words, and bytes that are only copied.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, ensure};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapped piece of shared memory, zeros at first.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    length: usize,
    /// Its name for other processes, as long as this one lives.
    file: OwnedFd,
}

// SAFETY: owns its mapping, which has no tie to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    pub(crate) fn create(length: usize) -> Result<Self> {
        let file = memfd_create("rstream-perf", MemfdFlags::CLOEXEC).context("shared memory")?;
        ftruncate(&file, length as u64).context("shared memory")?;
        Self::map(file, length)
    }

    /// Maps what another process created and called by this name.
    pub(crate) fn open(name: &str) -> Result<Self> {
        let file = File::options().read(true).write(true).open(name).context("the other side's memory")?;
        let length = usize::try_from(file.metadata()?.len())?;
        Self::map(file.into(), length)
    }

    /// What another process of the same user opens it by.
    pub(crate) fn name(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    fn map(file: OwnedFd, length: usize) -> Result<Self> {
        ensure!(length > 0, "the other side's memory is empty");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: without a wanted address the kernel puts the new mapping where nothing else is.
        let base = unsafe { mmap(ptr::null_mut(), length, access, MapFlags::SHARED, &file, 0) };
        let base = NonNull::new(base.context("mapping shared memory")?.cast()).context("mapped to null")?;
        Ok(Self { base, length, file })
    }

    /// The word at a multiple of 8.
    #[inline]
    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.length, "no word at {at}");
        // SAFETY: within the mapping and aligned (just checked; mappings begin at a page), initialised by the
        // kernel, and alive as long as `self`, which the answer borrows. Every access to it, here and in the
        // other process, is atomic: bytes are copied elsewhere (see `copy_in`).
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// Copies `data` to `at`. The caller keeps words and bytes apart, and gives a place away and takes it
    /// over by a word with release and acquire.
    #[inline]
    pub(crate) fn copy_in(&self, at: usize, data: &[u8]) {
        assert!(at <= self.length && data.len() <= self.length - at, "no place at {at}");
        // SAFETY: the target is within the mapping (just checked) and writable; `data` is a Rust slice, which
        // never lies in the mapping, because none is ever made of it.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.base.as_ptr().add(at), data.len()) }
    }

    /// Copies what is at `at`, under the same rules.
    #[inline]
    pub(crate) fn copy_out(&self, at: usize, buffer: &mut [u8]) {
        assert!(at <= self.length && buffer.len() <= self.length - at, "nothing at {at}");
        // SAFETY: the source is within the mapping (just checked), and initialised: the kernel gives zeros.
        // `buffer` is a Rust slice, which never lies in the mapping.
        unsafe { ptr::copy_nonoverlapping(self.base.as_ptr().add(at), buffer.as_mut_ptr(), buffer.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` mapped, and every borrow of it has ended. What fails here would leave a
        // mapping behind, which ends with the process.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), self.length) };
    }
}
