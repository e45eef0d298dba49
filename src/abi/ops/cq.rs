//! `struct fi_ops_cq`, in `fid_cq.ops`: reading completions. See
//! [`fi_cq(3)`](https://ofiwg.github.io/libfabric/main/man/fi_cq.3.html).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use super::{Fid, timeout};
use crate::abi::buffer::{bytes_mut, copy_text};
use crate::abi::completion::{CompletionError, CompletionsOut, CqState, EntryFormat};
use crate::abi::{Errno, Result, ffi_boundary, sys};

/// Operations of a completion queue.
pub trait CqOps: Fid {
    /// `fi_cq_read`, `fi_cq_readfrom`: writes the next completions to `out`, which may have no room.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if there is no completion, `-FI_EAVAIL` if the next one is an error.
    fn read(&self, out: &mut CompletionsOut<'_>) -> Result<()>;

    /// `fi_cq_sread`, `fi_cq_sreadfrom`: as [`CqOps::read`], but waits up to `timeout`, or forever without a
    /// `timeout`, until there are `threshold` completions (at least 1) or an error.
    ///
    /// # Errors
    /// As for [`CqOps::read`]; `-FI_EAGAIN` after `timeout` or a [signal](CqOps::signal).
    fn sread(&self, out: &mut CompletionsOut<'_>, threshold: usize, timeout: Option<Duration>) -> Result<()> {
        let _ = (out, threshold, timeout);
        Err(Errno::ENOSYS)
    }

    /// `fi_cq_readerr`: takes the next error.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if the next completion is not an error.
    fn readerr(&self) -> Result<CompletionError>;

    /// `fi_cq_signal`: ends the waiting of [`CqOps::sread`] in other threads.
    ///
    /// # Errors
    /// `-FI_ENOSYS` if the queue has no wait object.
    fn signal(&self) -> Result<()> {
        Err(Errno::ENOSYS)
    }

    /// `fi_cq_strerror`: the text of a [`CompletionError::prov_errno`].
    fn strerror(&self, prov_errno: i32) -> &'static CStr;
}

/// `struct fi_cq_attr`: attributes of the requested completion queue. The FFI boundary itself writes entries
/// in the requested format, and knows whether a read that waits has a threshold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CqAttr {
    /// Minimum number of completions that the queue holds; 0 leaves it to the provider.
    pub size: usize,
    /// Flags: `FI_AFFINITY`.
    pub flags: u64,
    /// An `enum fi_wait_obj`.
    pub wait_obj: sys::fi_wait_obj,
}

impl CqAttr {
    /// Reads the attributes, and what the FFI boundary stores of them. A null pointer stands for zeros.
    ///
    /// # Errors
    /// `-FI_EINVAL` for an unknown format or wait condition.
    ///
    /// # Safety
    /// If not null, `raw` is valid by `fi_cq_open(3)`.
    pub(in crate::abi) unsafe fn read(raw: *const sys::fi_cq_attr) -> Result<(Self, CqState)> {
        // SAFETY: null, or valid by the requirement of this function. No version has appended fields.
        let Some(raw) = (unsafe { raw.as_ref() }) else { return Ok(Default::default()) };
        let has_threshold = match raw.wait_cond {
            sys::FI_CQ_COND_NONE => false,
            sys::FI_CQ_COND_THRESHOLD => true,
            // Ignored without a wait object.
            _ if raw.wait_obj == sys::FI_WAIT_NONE => false,
            _ => return Err(Errno::EINVAL),
        };
        let format = EntryFormat::new(raw.format)?;
        let attributes = Self { size: raw.size, flags: raw.flags, wait_obj: raw.wait_obj };
        Ok((attributes, CqState { format, has_threshold, ..CqState::default() }))
    }
}

/// The op table.
pub(in crate::abi) const fn table<T: CqOps>() -> *const sys::fi_ops_cq {
    const {
        &sys::fi_ops_cq {
            size: size_of::<sys::fi_ops_cq>(),
            read: Some(read::<T>),
            readfrom: Some(readfrom::<T>),
            readerr: Some(readerr::<T>),
            sread: Some(sread::<T>),
            sreadfrom: Some(sreadfrom::<T>),
            signal: Some(signal::<T>),
            strerror: Some(strerror::<T>),
        }
    }
}

unsafe extern "C" fn read<T: CqOps>(queue: *mut sys::fid_cq, buffer: *mut c_void, count: usize) -> isize {
    // SAFETY: the requirements of `readfrom` are those of this slot and a null pointer.
    unsafe { readfrom::<T>(queue, buffer, count, ptr::null_mut()) }
}

// Not inlined into `read`, so that the call through the boundary is inlined here, where it has its only caller.
#[inline(never)]
unsafe extern "C" fn readfrom<T: CqOps>(
    queue: *mut sys::fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut sys::fi_addr_t,
) -> isize {
    let body = |queue: &Arc<T>, state: &CqState| {
        // SAFETY: null, or room for `count` entries and addresses, by `fi_cq_readfrom(3)`.
        unsafe { fill(buffer, count, sources, state, |out| queue.read(out)) }
    };
    // SAFETY: called through the table of a completion queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::data_call::<sys::fid_cq, T, _, _, _>(queue, body) }
}

unsafe extern "C" fn sread<T: CqOps>(
    queue: *mut sys::fid_cq,
    buffer: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the requirements of `sreadfrom` are those of this slot and a null pointer.
    unsafe { sreadfrom::<T>(queue, buffer, count, ptr::null_mut(), condition, timeout) }
}

unsafe extern "C" fn sreadfrom<T: CqOps>(
    queue: *mut sys::fid_cq,
    buffer: *mut c_void,
    count: usize,
    sources: *mut sys::fi_addr_t,
    condition: *const c_void,
    milliseconds: c_int,
) -> isize {
    let body = |queue: &Arc<T>, state: &CqState| {
        // The threshold is passed in place of the pointer. More than `count` could not be read.
        let threshold = if state.has_threshold { condition.addr().min(count).max(1) } else { 1 };
        // SAFETY: null, or room for `count` entries and addresses, by `fi_cq_sreadfrom(3)`.
        unsafe {
            fill(buffer, count, sources, state, |out| queue.sread(out, threshold, timeout(milliseconds)))
        }
    };
    // SAFETY: called through the table of a completion queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_cq, T, _, _, _>(queue, body) }
}

/// Runs `read` with the caller's buffer for `count` entries, and returns how many it wrote. Their source
/// addresses, if the caller asks for them, are not available: an endpoint has one peer.
///
/// # Errors
/// `-FI_EINVAL` for a null buffer with a nonzero `count`, or a `count` that no buffer could have.
///
/// # Safety
/// If not null, `buffer` has room for `count` entries and `sources` for as many addresses, and no other code
/// uses them during the call.
#[inline]
unsafe fn fill(
    buffer: *mut c_void,
    count: usize,
    sources: *mut sys::fi_addr_t,
    state: &CqState,
    read: impl FnOnce(&mut CompletionsOut<'_>) -> Result<()>,
) -> Result<usize> {
    let length = count.checked_mul(state.format.length()).ok_or(Errno::EINVAL)?;
    // SAFETY: null, or `length` bytes, writable and exclusive by the requirement of this function.
    let mut out = CompletionsOut::new(state.format, unsafe { bytes_mut(buffer, length) }?);
    read(&mut out)?;
    if !sources.is_null() {
        for at in 0..out.count() {
            // SAFETY: `at` is less than `count`: there was room for that many entries only. The array has
            // `count` addresses by the requirement of this function.
            unsafe { sources.add(at).write(sys::FI_ADDR_NOTAVAIL) };
        }
    }
    Ok(out.count())
}

unsafe extern "C" fn readerr<T: CqOps>(
    queue: *mut sys::fid_cq,
    entry: *mut sys::fi_cq_err_entry,
    flags: u64,
) -> isize {
    let body = |queue: &Arc<T>, state: &CqState| {
        if entry.is_null() {
            return Err(Errno::EINVAL);
        }
        if flags != 0 {
            return Err(Errno::EBADFLAGS);
        }
        let error = queue.readerr()?;
        // SAFETY: not null, and a structure of the application's API version by `fi_cq_readerr(3)`.
        unsafe { state.deliver(entry, &error) };
        Ok(1)
    };
    // SAFETY: called through the table of a completion queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_cq, T, _, usize, _>(queue, body) }
}

unsafe extern "C" fn signal<T: CqOps>(queue: *mut sys::fid_cq) -> c_int {
    // SAFETY: called through the table of a completion queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_cq, T, _, (), _>(queue, |queue, _| queue.signal()) }
}

unsafe extern "C" fn strerror<T: CqOps>(
    queue: *mut sys::fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    let body = |queue: &Arc<T>, _: &CqState| {
        // SAFETY: `buffer` is null or `length` bytes by `fi_cq_strerror(3)`.
        Ok(unsafe { copy_text(queue.strerror(prov_errno), buffer, length) })
    };
    // SAFETY: called through the table of a completion queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_cq, T, _, _, _>(queue, body) }
}
