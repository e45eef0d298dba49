//! The border: every call of C code passes through here into Rust, and every answer back.
//!
//! [`call`] recovers the value behind a fid, runs the body, and turns its outcome into what the
//! slot's C signature returns. [`protect`] holds the only `catch_unwind`: a panic in a call is
//! logged, poisons the object, and answers `-FI_EIO`, as do all later calls on that object. In a child
//! of the process that made an object, every call on it answers `-FI_EOPBADSTATE`. Either can still be
//! closed.

use std::any::Any;
use std::ffi::{c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cancel::PutOff;
use super::object::{FidStruct, Object, POISONED};
use super::{Errno, Result, fork};

/// What a slot returns to C, made from what its body answers.
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

/// A call panicked. It has been logged.
pub(super) struct Panicked;

/// Runs `body` so that no panic of it reaches C.
#[inline]
pub(super) fn protect<V>(body: impl FnOnce() -> V) -> std::result::Result<V, Panicked> {
    // What `body` borrows may be half changed after a panic; `call` sees to it that it is not used
    // again.
    catch_unwind(AssertUnwindSafe(body)).map_err(report)
}

/// Runs the body of a call that is on no object.
pub(super) fn call_free<V, R: Reply<V>>(body: impl FnOnce() -> Result<V>) -> R {
    let _put_off = PutOff::begin();
    R::reply(protect(body).unwrap_or(Err(Errno::EIO)))
}

/// Runs the body of a call on the object behind `fid`.
///
/// # Safety
/// `fid` is null, or points to a live `Object<S, T>`, which nobody closes during the call: C code
/// got here through the op table of such an object, and `fi_close(3)` forbids the rest.
pub(super) unsafe fn call<S, T, P, V, R>(fid: *mut P, body: impl FnOnce(&Arc<T>, &S::State) -> Result<V>) -> R
where
    S: FidStruct,
    R: Reply<V>,
{
    let _put_off = PutOff::begin();
    // SAFETY: the caller's promise.
    unsafe { call_at_once::<S, T, P, V, R>(fid, body) }
}

/// [`call`] for a body that comes upon no cancellation point: it spares putting cancellation off.
///
/// # Safety
/// As for [`call`].
#[inline]
pub(super) unsafe fn call_at_once<S, T, P, V, R>(
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
    // SAFETY: `object` is live for the call (see above), and C code does not know the field.
    let usable_in = unsafe { (*object).usable_in.load(Ordering::Relaxed) };
    if usable_in != fork::generation() {
        return R::reply(Err(if usable_in == POISONED { Errno::EIO } else { Errno::EOPBADSTATE }));
    }
    // SAFETY: the caller's promise.
    unsafe { enter::<S, T, V, R>(object, body) }
}

/// Runs the body of a call on an object in whatever state it is.
///
/// # Safety
/// `object` is live, and nobody else closes it during the call.
#[inline]
pub(super) unsafe fn enter<S: FidStruct, T, V, R: Reply<V>>(
    object: *mut Object<S, T>,
    body: impl FnOnce(&Arc<T>, &S::State) -> Result<V>,
) -> R {
    // SAFETY: `object` is live for the call (see above). The references are to fields that C code
    // does not know and that change only as `Sync` types do.
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
                // Dropping a value of another type could panic again.
                std::mem::forget(payload);
                "no message".to_owned()
            },
            |text| *text,
        ),
    };
    log::error!(target: "core", "a call failed inside the provider (a bug, please report it): {text}");
    Panicked
}
