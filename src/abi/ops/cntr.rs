//! `struct fi_ops_cntr`, in `fid_cntr.ops`: counters of completions. See
//! [`fi_cntr(3)`](https://ofiwg.github.io/libfabric/main/man/fi_cntr.3.html).

use std::ffi::c_int;
use std::time::Duration;

use super::{Fid, timeout};
use crate::abi::{Errno, Result, ffi_boundary, sys};

/// Operations of a counter.
pub trait CntrOps: Fid {
    /// `fi_cntr_read`: the number of completions. If the call fails at the FFI boundary, the caller reads 0.
    fn read(&self) -> u64;

    /// `fi_cntr_readerr`: the number of errors.
    fn readerr(&self) -> u64;

    /// `fi_cntr_add`.
    ///
    /// # Errors
    /// `-FI_ENOSYS` if the application cannot change the counter.
    fn add(&self, value: u64) -> Result<()> {
        let _ = value;
        Err(Errno::ENOSYS)
    }

    /// `fi_cntr_adderr`.
    ///
    /// # Errors
    /// As for [`CntrOps::add`].
    fn adderr(&self, value: u64) -> Result<()> {
        let _ = value;
        Err(Errno::ENOSYS)
    }

    /// `fi_cntr_set`.
    ///
    /// # Errors
    /// As for [`CntrOps::add`].
    fn set(&self, value: u64) -> Result<()> {
        let _ = value;
        Err(Errno::ENOSYS)
    }

    /// `fi_cntr_seterr`.
    ///
    /// # Errors
    /// As for [`CntrOps::add`].
    fn seterr(&self, value: u64) -> Result<()> {
        let _ = value;
        Err(Errno::ENOSYS)
    }

    /// `fi_cntr_wait`: waits up to `timeout`, or forever without one, until there are `threshold`
    /// completions.
    ///
    /// # Errors
    /// `-FI_ETIMEDOUT`, `-FI_EAVAIL` if the number of errors changes.
    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<()> {
        let _ = (threshold, timeout);
        Err(Errno::ENOSYS)
    }
}

/// `struct fi_cntr_attr`: attributes of the requested counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CntrAttr {
    /// An `enum fi_cntr_events`.
    pub events: sys::fi_cntr_events,
    /// An `enum fi_wait_obj`.
    pub wait_obj: sys::fi_wait_obj,
    /// None is defined.
    pub flags: u64,
}

impl CntrAttr {
    /// Reads the attributes. A null pointer stands for zeros.
    ///
    /// # Safety
    /// If not null, `raw` is valid by `fi_cntr_open(3)`.
    pub(in crate::abi) unsafe fn read(raw: *const sys::fi_cntr_attr) -> Self {
        // SAFETY: null, or valid by the requirement of this function. No version has appended fields.
        let raw = unsafe { raw.as_ref() };
        raw.map(|raw| Self { events: raw.events, wait_obj: raw.wait_obj, flags: raw.flags })
            .unwrap_or_default()
    }
}

/// The op table.
pub(in crate::abi) const fn table<T: CntrOps>() -> *const sys::fi_ops_cntr {
    const {
        &sys::fi_ops_cntr {
            size: size_of::<sys::fi_ops_cntr>(),
            read: Some(read::<T>),
            readerr: Some(readerr::<T>),
            add: Some(add::<T>),
            set: Some(set::<T>),
            wait: Some(wait::<T>),
            adderr: Some(adderr::<T>),
            seterr: Some(seterr::<T>),
        }
    }
}

unsafe extern "C" fn read<T: CntrOps>(counter: *mut sys::fid_cntr) -> u64 {
    // SAFETY: called through the table of a counter of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::data_call::<sys::fid_cntr, T, _, _, _>(counter, |counter, ()| Ok(counter.read())) }
}

unsafe extern "C" fn readerr<T: CntrOps>(counter: *mut sys::fid_cntr) -> u64 {
    // SAFETY: called through the table of a counter of this type (`ffi_boundary::call`).
    unsafe {
        ffi_boundary::data_call::<sys::fid_cntr, T, _, _, _>(counter, |counter, ()| Ok(counter.readerr()))
    }
}

/// [`ffi_boundary::call`] for the other slots, which return 0 or an error.
///
/// # Safety
/// As for [`ffi_boundary::call`].
unsafe fn call<T: CntrOps>(counter: *mut sys::fid_cntr, body: impl FnOnce(&T) -> Result<()>) -> c_int {
    // SAFETY: the same requirements as those of this function.
    unsafe { ffi_boundary::call::<sys::fid_cntr, T, _, _, _>(counter, |counter, ()| body(counter)) }
}

unsafe extern "C" fn add<T: CntrOps>(counter: *mut sys::fid_cntr, value: u64) -> c_int {
    // SAFETY: called through the table of a counter of this type (`ffi_boundary::call`).
    unsafe { call::<T>(counter, |counter| counter.add(value)) }
}

unsafe extern "C" fn adderr<T: CntrOps>(counter: *mut sys::fid_cntr, value: u64) -> c_int {
    // SAFETY: called through the table of a counter of this type (`ffi_boundary::call`).
    unsafe { call::<T>(counter, |counter| counter.adderr(value)) }
}

unsafe extern "C" fn set<T: CntrOps>(counter: *mut sys::fid_cntr, value: u64) -> c_int {
    // SAFETY: called through the table of a counter of this type (`ffi_boundary::call`).
    unsafe { call::<T>(counter, |counter| counter.set(value)) }
}

unsafe extern "C" fn seterr<T: CntrOps>(counter: *mut sys::fid_cntr, value: u64) -> c_int {
    // SAFETY: called through the table of a counter of this type (`ffi_boundary::call`).
    unsafe { call::<T>(counter, |counter| counter.seterr(value)) }
}

unsafe extern "C" fn wait<T: CntrOps>(
    counter: *mut sys::fid_cntr,
    threshold: u64,
    milliseconds: c_int,
) -> c_int {
    // SAFETY: called through the table of a counter of this type (`ffi_boundary::call`).
    unsafe { call::<T>(counter, |counter| counter.wait(threshold, timeout(milliseconds))) }
}
