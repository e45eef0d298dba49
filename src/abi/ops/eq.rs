//! `struct fi_ops_eq`, in `fid_eq.ops`: reading events. See
//! [`fi_eq(3)`](https://ofiwg.github.io/libfabric/main/man/fi_eq.3.html).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use super::{Fid, timeout};
use crate::abi::buffer::{bytes, bytes_mut, copy_text};
use crate::abi::err_data::ErrorState;
use crate::abi::event::{ErrorOut, EventOut};
use crate::abi::{Errno, Result, ffi_boundary, sys};

/// Operations of an event queue.
pub trait EqOps: Fid {
    /// `fi_eq_read`: writes the next event to `out` ([`EventOut::deliver`]) and returns its length.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if there is no event, `-FI_EAVAIL` if an error is queued, `-FI_ETOOSMALL`.
    fn read(&self, out: &mut EventOut<'_>) -> Result<usize>;

    /// `fi_eq_sread`: as [`EqOps::read`], but waits up to `timeout` for an event, or forever without a
    /// `timeout`.
    ///
    /// # Errors
    /// As for [`EqOps::read`]; `-FI_EAGAIN` after `timeout`.
    fn sread(&self, out: &mut EventOut<'_>, timeout: Option<Duration>) -> Result<usize> {
        let _ = (out, timeout);
        Err(Errno::ENOSYS)
    }

    /// `fi_eq_readerr`: writes the next error to `out` ([`ErrorOut::deliver`]) and returns its
    /// length.
    ///
    /// # Errors
    /// `-FI_EAGAIN` if there is no error.
    fn readerr(&self, out: &mut ErrorOut<'_>) -> Result<usize>;

    /// `fi_eq_write`: queues an event of the application ([`crate::abi::Event::User`]), whose number and
    /// entry it reads back unchanged. The entry has at most [`USER_EVENT_LIMIT`] bytes.
    ///
    /// # Errors
    /// `-FI_ENOSYS` if the application cannot write to the queue.
    fn write(&self, number: u32, entry: &[u8]) -> Result<()> {
        let _ = (number, entry);
        Err(Errno::ENOSYS)
    }

    /// `fi_eq_strerror`: the text of a [`crate::abi::ErrorEvent::prov_errno`].
    fn strerror(&self, prov_errno: i32) -> &'static CStr;
}

/// Longest entry of an application's event: that of a connection event with data.
pub const USER_EVENT_LIMIT: usize = size_of::<sys::fi_eq_cm_entry>() + 256;

/// The op table.
pub(in crate::abi) const fn table<T: EqOps>() -> *const sys::fi_ops_eq {
    const {
        &sys::fi_ops_eq {
            size: size_of::<sys::fi_ops_eq>(),
            read: Some(read::<T>),
            readerr: Some(readerr::<T>),
            write: Some(write::<T>),
            sread: Some(sread::<T>),
            strerror: Some(strerror::<T>),
        }
    }
}

unsafe extern "C" fn read<T: EqOps>(
    queue: *mut sys::fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    let body = |queue: &Arc<T>, _: &ErrorState| {
        // SAFETY: null or writable, and not used by other code during the call, by `fi_eq_read(3)`.
        let mut out = unsafe { event_out(event, buffer, length, flags) }?;
        queue.read(&mut out)
    };
    // SAFETY: called through the table of an event queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_eq, T, _, _, _>(queue, body) }
}

unsafe extern "C" fn sread<T: EqOps>(
    queue: *mut sys::fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    milliseconds: c_int,
    flags: u64,
) -> isize {
    let body = |queue: &Arc<T>, _: &ErrorState| {
        // SAFETY: null or writable, and not used by other code during the call, by `fi_eq_sread(3)`.
        let mut out = unsafe { event_out(event, buffer, length, flags) }?;
        queue.sread(&mut out, timeout(milliseconds))
    };
    // SAFETY: called through the table of an event queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_eq, T, _, _, _>(queue, body) }
}

/// The output buffer of a read.
///
/// # Errors
/// `-FI_EINVAL` for a null pointer (a null buffer is allowed with a length of 0, which is too
/// short for an entry), `-FI_EBADFLAGS`.
///
/// # Safety
/// If not null, `event` is writable, `buffer` is writable for `length` bytes, and no other code uses
/// them for `'a`.
unsafe fn event_out<'a>(
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> Result<EventOut<'a>> {
    // SAFETY: null, or writable and exclusive by the requirement of this function.
    let event = unsafe { event.as_mut() }.ok_or(Errno::EINVAL)?;
    // SAFETY: null, or `length` bytes, writable and exclusive by the requirement of this function.
    let buffer = unsafe { bytes_mut(buffer, length) }?;
    EventOut::new(event, buffer, flags)
}

unsafe extern "C" fn readerr<T: EqOps>(
    queue: *mut sys::fid_eq,
    entry: *mut sys::fi_eq_err_entry,
    flags: u64,
) -> isize {
    let body = |queue: &Arc<T>, state: &ErrorState| {
        // SAFETY: `entry` is null, or a structure of the application's API version by `fi_eq_readerr(3)`.
        let mut out = unsafe { ErrorOut::from_raw(entry, state, flags) }?;
        queue.readerr(&mut out)
    };
    // SAFETY: called through the table of an event queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_eq, T, _, _, _>(queue, body) }
}

unsafe extern "C" fn write<T: EqOps>(
    queue: *mut sys::fid_eq,
    number: u32,
    entry: *const c_void,
    length: usize,
    flags: u64,
) -> isize {
    let body = |queue: &Arc<T>, _: &ErrorState| {
        if flags != 0 {
            return Err(Errno::EBADFLAGS);
        }
        if length > USER_EVENT_LIMIT {
            return Err(Errno::EINVAL);
        }
        // SAFETY: null or `length` bytes by `fi_eq_write(3)`.
        queue.write(number, unsafe { bytes(entry, length) }?)?;
        Ok(length)
    };
    // SAFETY: called through the table of an event queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_eq, T, _, _, _>(queue, body) }
}

unsafe extern "C" fn strerror<T: EqOps>(
    queue: *mut sys::fid_eq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    let body = |queue: &Arc<T>, _: &ErrorState| {
        // SAFETY: `buffer` is null or `length` bytes by `fi_eq_strerror(3)`.
        Ok(unsafe { copy_text(queue.strerror(prov_errno), buffer, length) })
    };
    // SAFETY: called through the table of an event queue of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<sys::fid_eq, T, _, _, _>(queue, body) }
}
