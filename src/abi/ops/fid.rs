//! `struct fi_ops`, in `fid.ops` of every object: close, bind, control. See
//! [`fi_fabric(3)`](https://ofiwg.github.io/libfabric/main/man/fi_fabric.3.html) and, for the
//! commands of control, [`fi_control(3)`](https://ofiwg.github.io/libfabric/main/man/fi_control.3.html).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Slot;
use crate::abi::cancel::PutOff;
use crate::abi::object::{AnyFid, FidHandle, FidStruct, Object, POISONED};
use crate::abi::{Errno, Result, border, registry, sys};

/// What every object can do.
pub trait Fid: Send + Sync + 'static {
    /// The object now has an address, by which the application and events name it. Called once,
    /// before any other call.
    fn opened(&self, handle: FidHandle) {
        let _ = handle;
    }

    /// `fi_close`: after success the application no longer has the object, and the border drops the
    /// value; others that hold it keep it. Also called in a child of the process that opened it, where
    /// it must change nothing that both share. Until then the border holds the [`Arc`] more than once,
    /// so its count does not tell whether anyone else needs the object.
    ///
    /// # Errors
    /// `-FI_EBUSY` while something needs the object; it stays open then.
    fn close(&self) -> Result<()>;

    /// `fi_ep_bind` and the like: from now on this object uses `other`.
    ///
    /// # Errors
    /// `-FI_EINVAL` for what cannot be bound, `-FI_EBADFLAGS`.
    fn bind(self: &Arc<Self>, other: &AnyFid, flags: u64) -> Result<()> {
        let _ = (other, flags);
        Err(Errno::ENOSYS)
    }

    /// `fi_control`, `fi_enable`. Answers 0 or, where a command says so, a positive number.
    ///
    /// # Errors
    /// `-FI_ENOSYS` for a command that the object does not know.
    fn control(&self, command: Control<'_>) -> Result<i32> {
        let _ = command;
        Err(Errno::ENOSYS)
    }
}

/// A command of `fi_control`, with its argument.
#[derive(Debug, PartialEq, Eq)]
pub enum Control<'a> {
    /// `FI_GETWAIT` of an object that waits by file descriptor: wants it.
    GetWait(&'a mut c_int),
    /// `FI_GETWAITOBJ`: wants the kind of wait object, an `enum fi_wait_obj`.
    GetWaitObj(&'a mut sys::fi_wait_obj),
    /// `FI_ENABLE`.
    Enable,
    /// `FI_BACKLOG`: how many connection requests may wait.
    Backlog(c_int),
    /// Any other; its argument is not looked at.
    Other(c_int),
}

/// The table of an object that is a `S` to C.
pub(in crate::abi) const fn table<S: FidStruct, T: Fid>() -> *const sys::fi_ops {
    const { &ops::<S, T>() }
}

/// What stands in it.
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

/// The table of a fid that is only a name; all of it answers `-FI_ENOSYS`.
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
    // One of several callers has the claim. The others do not read the object, which may be gone.
    let Some(claim) = registry::claim::<T>(fid) else { return -Errno::EINVAL.number() };
    let object = fid.cast::<Object<S, T>>();
    let _put_off = PutOff::begin();
    // SAFETY: the registry knows `fid`, so it is an object that was not closed, and this shim is in
    // the table of objects of this very type. Only who has the claim frees it.
    let usable_in = unsafe { (*object).usable_in.load(Ordering::Relaxed) };
    // A poisoned value cannot be trusted to close in good order; it can only be let go.
    if usable_in != POISONED {
        // SAFETY: as above.
        let answer: c_int = unsafe { border::enter(object, |value, _| value.close()) };
        if answer < 0 {
            return answer;
        }
    }
    border::call_free(|| {
        claim.remove();
        // SAFETY: made by `Box::into_raw` in `New::hand_out`. Only who has the claim frees it, and
        // the registry no longer knows it, so nobody gets another claim.
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
    // SAFETY: called through the table of an object of this type (`border::call`).
    unsafe { border::call::<S, T, _, _, _>(fid, body) }
}

unsafe extern "C" fn control<S: FidStruct, T: Fid>(
    fid: *mut sys::fid,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    let body = |value: &Arc<T>, _: &S::State| {
        // SAFETY: `fi_control(3)` names the type of the argument of each command.
        let command = unsafe { decode(command, argument) }?;
        value.control(command)
    };
    // SAFETY: called through the table of an object of this type (`border::call`).
    unsafe { border::call::<S, T, _, _, _>(fid, body) }
}

/// A command with its argument.
///
/// # Safety
/// If not null, `argument` points to what the command's manual says.
unsafe fn decode<'a>(command: c_int, argument: *mut c_void) -> Result<Control<'a>> {
    let Ok(number) = u32::try_from(command) else { return Ok(Control::Other(command)) };
    Ok(match number {
        sys::FI_ENABLE => Control::Enable,
        sys::FI_GETWAIT => {
            // SAFETY: null, or an `int` by the caller's promise, exclusively ours for the call.
            let descriptor = unsafe { argument.cast::<c_int>().as_mut() };
            Control::GetWait(descriptor.ok_or(Errno::EINVAL)?)
        }
        sys::FI_GETWAITOBJ => {
            // SAFETY: null, or an `enum fi_wait_obj` by the caller's promise, exclusively ours for
            // the call.
            let kind = unsafe { argument.cast::<sys::fi_wait_obj>().as_mut() };
            Control::GetWaitObj(kind.ok_or(Errno::EINVAL)?)
        }
        sys::FI_BACKLOG => {
            // SAFETY: null, or an `int` by the caller's promise.
            let backlog = unsafe { argument.cast::<c_int>().as_ref() };
            Control::Backlog(*backlog.ok_or(Errno::EINVAL)?)
        }
        _ => Control::Other(command),
    })
}
