//! `struct fi_ops`, in `fid.ops` of every object: close, bind, control. See
//! [`fi_fabric(3)`](https://ofiwg.github.io/libfabric/main/man/fi_fabric.3.html) and, for the
//! commands of control, [`fi_control(3)`](https://ofiwg.github.io/libfabric/main/man/fi_control.3.html).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Slot;
use crate::abi::cancel::Deferral;
use crate::abi::object::{AnyFid, FidHandle, FidStruct, Object, POISONED};
use crate::abi::{Errno, Result, ffi_boundary, registry, sys};

/// Operations of every object.
pub trait Fid: Send + Sync + 'static {
    /// Whether a data call (sending, receiving, remote access, a read that does not wait) may reach a
    /// cancellation point of the C library. If not, these calls save the cost of deferring cancellation, and
    /// the rare paths that do reach one defer it themselves ([`crate::abi::defer_cancellation`]).
    const CANCELLATION_POINTS: bool = true;

    /// Whether its data calls need the descriptors of local memory. Otherwise these are not looked at.
    const DESCRIPTORS: bool = false;

    /// Passes the object its handle, by which the application and events refer to it. Called once,
    /// before any other call.
    fn opened(&self, handle: FidHandle) {
        let _ = handle;
    }

    /// `fi_close`: after success the application no longer has the object, and the FFI boundary drops its
    /// references to the value; other references stay valid. Also called in a child of the process that
    /// opened the object, where it must not change state that both share. Until then the FFI boundary
    /// holds several references, so the count of the [`Arc`] does not tell whether the object is in use.
    ///
    /// # Errors
    /// `-FI_EBUSY` while the object is in use; it stays open then.
    fn close(&self) -> Result<()>;

    /// `fi_ep_bind` and the other bind calls: this object uses `other` from now on.
    ///
    /// # Errors
    /// `-FI_EINVAL` for an object that cannot be bound, `-FI_EBADFLAGS`.
    fn bind(self: &Arc<Self>, other: &AnyFid, flags: u64) -> Result<()> {
        let _ = (other, flags);
        Err(Errno::ENOSYS)
    }

    /// `fi_control`, `fi_enable`. Returns 0 or, for commands defined so, a positive number.
    ///
    /// # Errors
    /// `-FI_ENOSYS` for a command that the object does not support.
    fn control(&self, command: Control<'_>) -> Result<i32> {
        let _ = command;
        Err(Errno::ENOSYS)
    }
}

/// A command of `fi_control`, with its argument.
#[derive(Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// `FI_GETWAIT`: where to write the file descriptor of the object.
    GetWait(&'a mut c_int),
    /// `FI_GETWAITOBJ`: where to write the kind of wait object, an `enum fi_wait_obj`.
    GetWaitObj(&'a mut sys::fi_wait_obj),
    /// `FI_ENABLE`.
    Enable,
    /// `FI_BACKLOG`: how many connection requests may be queued.
    Backlog(c_int),
    /// Any other command; its argument is not read.
    Other(c_int),
}

/// The op table of an object whose C type is `S`.
pub(in crate::abi) const fn table<S: FidStruct, T: Fid>() -> *const sys::fi_ops {
    const { &ops::<S, T>() }
}

/// The content of the table.
pub(super) const fn ops<S: FidStruct, T: Fid>() -> sys::fi_ops {
    sys::fi_ops {
        size: size_of::<sys::fi_ops>(),
        close: Some(close::<S, T>),
        bind: Some(bind::<S, T>),
        control: Some(control::<S, T>),
        ops_open: Slot::UNSUPPORTED,
        tostr: Slot::UNSUPPORTED,
        ops_set: Slot::UNSUPPORTED,
    }
}

/// The op table of a fid that is only a handle. Every slot returns `-FI_ENOSYS`.
pub(in crate::abi) const fn unsupported() -> *const sys::fi_ops {
    const TABLE: &sys::fi_ops = &sys::fi_ops {
        size: size_of::<sys::fi_ops>(),
        close: Slot::UNSUPPORTED,
        bind: Slot::UNSUPPORTED,
        control: Slot::UNSUPPORTED,
        ops_open: Slot::UNSUPPORTED,
        tostr: Slot::UNSUPPORTED,
        ops_set: Slot::UNSUPPORTED,
    };
    TABLE
}

unsafe extern "C" fn close<S: FidStruct, T: Fid>(fid: *mut sys::fid) -> c_int {
    // Only one of several concurrent callers gets the claim. The others do not read the object, which may
    // be freed already.
    let Some(claim) = registry::claim::<T>(fid) else { return -Errno::EINVAL.number() };
    let object = fid.cast::<Object<S, T>>();
    let _deferral = Deferral::begin();
    // SAFETY: `fid` is in the registry, so its object is not closed, and this shim is in the table of
    // objects of exactly this type. Only the holder of the claim frees the object.
    let usable_in = unsafe { (*object).usable_in.load(Ordering::Relaxed) };
    // The value of a poisoned object may be inconsistent: it is dropped without being closed.
    if usable_in != POISONED {
        // SAFETY: as above.
        let result: c_int = unsafe { ffi_boundary::enter(object, |value, _| value.close()) };
        if result < 0 {
            return result;
        }
    }
    ffi_boundary::call_free(|| {
        claim.remove();
        // SAFETY: the pointer comes from `Box::into_raw` in `New::hand_out`. Only the holder of the claim
        // frees it, and it is no longer in the registry, so there is no other claim.
        drop(unsafe { Box::from_raw(object) });
        Ok(())
    })
}

unsafe extern "C" fn bind<S: FidStruct, T: Fid>(
    fid: *mut sys::fid,
    other: *mut sys::fid,
    flags: u64,
) -> c_int {
    let body = |value: &Arc<T>, _: &S::State| {
        if other.is_null() {
            return Err(Errno::EINVAL);
        }
        value.bind(&AnyFid(other), flags)
    };
    // SAFETY: called through the table of an object of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<S, T, _, _, _>(fid, body) }
}

unsafe extern "C" fn control<S: FidStruct, T: Fid>(
    fid: *mut sys::fid,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    let body = |value: &Arc<T>, _: &S::State| {
        // SAFETY: null, or a pointer to the type that `fi_control(3)` gives for the command.
        let command = unsafe { decode(command, argument) }?;
        value.control(command)
    };
    // SAFETY: called through the table of an object of this type (`ffi_boundary::call`).
    unsafe { ffi_boundary::call::<S, T, _, _, _>(fid, body) }
}

/// Decodes a command and its argument.
///
/// # Safety
/// If not null, `argument` points to a value of the type that the manual gives for the command, which no
/// other code uses for `'a`.
unsafe fn decode<'a>(command: c_int, argument: *mut c_void) -> Result<Control<'a>> {
    let Ok(number) = u32::try_from(command) else { return Ok(Control::Other(command)) };
    Ok(match number {
        sys::FI_ENABLE => Control::Enable,
        sys::FI_GETWAIT => {
            // SAFETY: null, or an exclusive `int` by the requirement of this function.
            let descriptor = unsafe { argument.cast::<c_int>().as_mut() };
            Control::GetWait(descriptor.ok_or(Errno::EINVAL)?)
        }
        sys::FI_GETWAITOBJ => {
            // SAFETY: null, or an exclusive `enum fi_wait_obj` by the requirement of this function.
            let kind = unsafe { argument.cast::<sys::fi_wait_obj>().as_mut() };
            Control::GetWaitObj(kind.ok_or(Errno::EINVAL)?)
        }
        sys::FI_BACKLOG => {
            // SAFETY: null, or an `int` by the requirement of this function.
            let backlog = unsafe { argument.cast::<c_int>().as_ref() };
            Control::Backlog(*backlog.ok_or(Errno::EINVAL)?)
        }
        _ => Control::Other(command),
    })
}
