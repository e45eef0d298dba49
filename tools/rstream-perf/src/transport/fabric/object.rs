//! What libfabric opens, owned: closed when dropped, and its errors as text.

use std::ffi::CStr;
use std::ptr::{self, NonNull};

use anyhow::{Context, Result, bail};

use super::sys;

/// A structure that begins with a `struct fid`.
///
/// # Safety
///
/// A pointer to it must be one to a `fid` as well.
pub(super) unsafe trait Fid {}

// SAFETY: by the headers, `struct fid` is the first member of each.
unsafe impl Fid for sys::fid_fabric {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_domain {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_eq {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_pep {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_ep {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_cq {}
// SAFETY: as above.
unsafe impl Fid for sys::fid_mr {}

/// An open object. Whoever holds one also holds what it was opened from, so that it is closed first.
pub(super) struct Object<T: Fid>(NonNull<T>);

// SAFETY: the domain is opened for FI_THREAD_SAFE, so that any thread may use, and close, what belongs to it.
unsafe impl<T: Fid> Send for Object<T> {}
// SAFETY: as above.
unsafe impl<T: Fid> Sync for Object<T> {}

impl<T: Fid> Object<T> {
    /// What `open` leaves behind its argument, if it answers 0.
    ///
    /// # Safety
    ///
    /// `open` must store a pointer to an open object that nobody else closes.
    pub(super) unsafe fn open(call: &'static str, open: impl FnOnce(*mut *mut T) -> i32) -> Result<Self> {
        let mut object = ptr::null_mut();
        check(call, open(&raw mut object))?;
        Ok(Self(NonNull::new(object).with_context(|| format!("{call} gave nothing"))?))
    }

    #[inline]
    pub(super) fn pointer(&self) -> *mut T {
        self.0.as_ptr()
    }

    #[inline]
    pub(super) fn fid(&self) -> *mut sys::fid {
        self.pointer().cast()
    }

    /// The descriptor to wait on.
    pub(super) fn descriptor(&self) -> Result<i32> {
        let mut descriptor = -1_i32;
        // SAFETY: the object is open; FI_GETWAIT stores a descriptor, an `int`, behind its argument.
        check("FI_GETWAIT", unsafe {
            sys::fi_control(self.fid(), sys::FI_GETWAIT as i32, (&raw mut descriptor).cast())
        })?;
        Ok(descriptor)
    }

    /// Sets an option of an endpoint, before it is enabled.
    pub(super) fn set(&self, option: u32, value: usize) -> Result<()> {
        let length = size_of_val(&value);
        // SAFETY: the object is open, and the value has the length that is told; it is copied.
        check("fi_setopt", unsafe {
            sys::fi_setopt(
                self.fid(),
                sys::FI_OPT_ENDPOINT as i32,
                option as i32,
                (&raw const value).cast(),
                length,
            )
        })
    }
}

impl<T: Fid> Drop for Object<T> {
    fn drop(&mut self) {
        // SAFETY: open, and closed only here.
        let answer = unsafe { sys::fi_close(self.fid()) };
        if answer != 0 {
            eprintln!("rstream-perf: fi_close: {}", error_text(answer));
        }
    }
}

/// An info list, freed when dropped.
pub(super) struct Info(NonNull<sys::fi_info>);

// SAFETY: an info is memory of the heap that nobody changes, and has no tie to a thread.
unsafe impl Send for Info {}
// SAFETY: as above.
unsafe impl Sync for Info {}

impl Info {
    /// Takes over what libfabric gave.
    ///
    /// # Safety
    ///
    /// `info` must be null or an info that nobody else frees, whole as `fi_allocinfo` and `fi_getinfo` make
    /// it.
    pub(super) unsafe fn own(info: *mut sys::fi_info) -> Result<Self> {
        Ok(Self(NonNull::new(info).context("libfabric gave no info")?))
    }

    pub(super) fn pointer(&self) -> *mut sys::fi_info {
        self.0.as_ptr()
    }
}

impl Drop for Info {
    fn drop(&mut self) {
        // SAFETY: from libfabric, and freed only here.
        unsafe { sys::fi_freeinfo(self.pointer()) }
    }
}

/// What a call answered that should have answered 0.
pub(super) fn check(call: &'static str, answer: i32) -> Result<()> {
    if answer != 0 {
        bail!("{call}: {}", error_text(answer));
    }
    Ok(())
}

/// The text of an error, which calls answer as a negative number.
pub(super) fn error_text(answer: i32) -> String {
    // SAFETY: libfabric answers a string that is never freed, for any number.
    let text = unsafe { CStr::from_ptr(sys::fi_strerror(-answer)) };
    text.to_string_lossy().into_owned()
}
