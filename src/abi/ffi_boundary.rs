//! The FFI boundary: every call from C enters Rust here, and every result returns to C here.
//!
//! [`call`] recovers the value behind a fid, runs the body, and converts its outcome to the return type of
//! the slot. [`protect`] has the only `catch_unwind`. A panic in a call is logged and poisons the object:
//! this call and all later calls on the object return `-FI_EIO`. In a child of the process that created an
//! object, every call on it returns `-FI_EOPBADSTATE`. In both cases the object can still be closed.

use std::any::Any;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cancel::{Deferral, is_only_thread};
use super::object::{FidStruct, Object, POISONED};
use super::ops::Fid;
use super::{Errno, Result, fork};

/// The return type of a slot, made from the outcome of its body.
pub(super) trait Reply<V> {
    fn reply(outcome: Result<V>) -> Self;
}

impl Reply<usize> for isize {
    fn reply(outcome: Result<usize>) -> Self {
        match outcome {
            Ok(count) => isize::try_from(count).unwrap_or(isize::MAX),
            Err(errno) => -(errno.number() as isize),
        }
    }
}

impl Reply<()> for isize {
    fn reply(outcome: Result<()>) -> Self {
        Self::reply(outcome.map(|()| 0))
    }
}

/// For the slots that cannot return an error.
impl Reply<Self> for u64 {
    fn reply(outcome: Result<Self>) -> Self {
        outcome.unwrap_or(0)
    }
}

impl Reply<()> for c_int {
    fn reply(outcome: Result<()>) -> Self {
        Self::reply(outcome.map(|()| 0))
    }
}

impl Reply<c_int> for c_int {
    fn reply(outcome: Result<c_int>) -> Self {
        outcome.unwrap_or_else(|errno| -errno.number())
    }
}

impl Reply<Self> for *const c_char {
    fn reply(outcome: Result<Self>) -> Self {
        outcome.unwrap_or(ptr::null())
    }
}

impl Reply<()> for () {
    fn reply(_: Result<()>) {}
}

/// A call panicked, and the panic has been logged.
pub(super) struct Panicked;

/// Runs `body` and stops a panic before it reaches C.
#[inline]
pub(super) fn protect<V>(body: impl FnOnce() -> V) -> std::result::Result<V, Panicked> {
    // After a panic, the values that `body` borrows may be inconsistent. `enter` poisons their object.
    catch_unwind(AssertUnwindSafe(body)).map_err(report)
}

/// Runs the body of a call that has no object.
pub(super) fn call_free<V, R: Reply<V>>(body: impl FnOnce() -> Result<V>) -> R {
    let _deferral = Deferral::begin();
    R::reply(protect(body).unwrap_or(Err(Errno::EIO)))
}

/// Runs the body of a call on the object behind `fid`.
///
/// # Safety
/// `fid` is null, or points to a live `Object<S, T>` that is not closed during the call. C code
/// reaches this function through the op table of such an object, and `fi_close(3)` forbids a
/// concurrent close.
pub(super) unsafe fn call<S, T, P, V, R>(fid: *mut P, body: impl FnOnce(&Arc<T>, &S::State) -> Result<V>) -> R
where
    S: FidStruct,
    R: Reply<V>,
{
    let _deferral = Deferral::begin();
    // SAFETY: the same requirements as those of this function.
    unsafe { call_without_deferral::<S, T, P, V, R>(fid, body) }
}

/// [`call`] for a data call, which defers cancellation only if it may reach a cancellation point
/// ([`Fid::CANCELLATION_POINTS`]).
///
/// # Safety
/// As for [`call`].
#[inline]
pub(super) unsafe fn data_call<S, T, P, V, R>(
    fid: *mut P,
    body: impl FnOnce(&Arc<T>, &S::State) -> Result<V>,
) -> R
where
    S: FidStruct,
    T: Fid,
    R: Reply<V>,
{
    let _deferral = (T::CANCELLATION_POINTS && !is_only_thread()).then(Deferral::begin);
    // SAFETY: the same requirements as those of this function.
    unsafe { call_without_deferral::<S, T, P, V, R>(fid, body) }
}

/// [`call`] in a thread whose cancellation is deferred already, or need not be.
///
/// # Safety
/// As for [`call`].
#[inline]
unsafe fn call_without_deferral<S, T, P, V, R>(
    fid: *mut P,
    body: impl FnOnce(&Arc<T>, &S::State) -> Result<V>,
) -> R
where
    S: FidStruct,
    R: Reply<V>,
{
    if fid.is_null() {
        return R::reply(Err(Errno::EINVAL));
    }
    let object = fid.cast::<Object<S, T>>();
    // SAFETY: `object` is live for the call (see above), and C code does not access the field.
    let usable_in = unsafe { (*object).usable_in.load(Ordering::Relaxed) };
    if usable_in != fork::generation() {
        return R::reply(Err(if usable_in == POISONED { Errno::EIO } else { Errno::EOPBADSTATE }));
    }
    // SAFETY: `object` is live and not closed during the call, by the requirements of this function.
    unsafe { enter::<S, T, V, R>(object, body) }
}

/// Runs the body of a call on an object in any state.
///
/// # Safety
/// `object` is live, and no other thread closes it during the call.
#[inline]
pub(super) unsafe fn enter<S: FidStruct, T, V, R: Reply<V>>(
    object: *mut Object<S, T>,
    body: impl FnOnce(&Arc<T>, &S::State) -> Result<V>,
) -> R {
    // SAFETY: `object` is live for the call (see above). The references are to fields that C code
    // does not access and that are of `Sync` types.
    let (usable_in, state, value) = unsafe { (&(*object).usable_in, &(*object).state, &(*object).value) };
    let outcome = protect(|| body(value, state)).unwrap_or_else(|Panicked| {
        usable_in.store(POISONED, Ordering::Relaxed);
        Err(Errno::EIO)
    });
    R::reply(outcome)
}

/// Logs a panic.
#[cold]
fn report(payload: Box<dyn Any + Send>) -> Panicked {
    let text = match payload.downcast::<&str>() {
        Ok(text) => (*text).to_owned(),
        Err(payload) => payload.downcast::<String>().map_or_else(
            |payload| {
                // Dropping a payload of another type could panic again.
                std::mem::forget(payload);
                "no message".to_owned()
            },
            |text| *text,
        ),
    };
    log::error!(target: "core", "panic inside the provider (a bug, please report it): {text}");
    Panicked
}
