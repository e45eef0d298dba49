//! Handles: how C programs name objects.
//!
//! A handle looks like a pointer and is a number, which is never given out twice. Each call looks it up, so a
//! handle that was freed, that is of another kind, or that is no handle at all is an error and nothing else.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{Error, Result};

/// A kind of object.
pub(crate) trait Object: Send + Sync + 'static {
    /// What it is called in texts.
    const NAME: &'static str;
    /// The type of its handles in C.
    type Handle;
}

struct Entry {
    value: Arc<dyn Any + Send + Sync>,
    name: &'static str,
    /// The process that made it. A child has its parent's handles, and must not use what is behind them.
    process: u32,
}

type Live = BTreeMap<usize, Entry>;

/// All objects that are not freed.
///
/// Not a lock of `parking_lot`: it keeps the waiting threads of all locks in one table, which another thread
/// may have locked at the moment of a fork.
static LIVE: RwLock<Live> = RwLock::new(Live::new());

fn read() -> RwLockReadGuard<'static, Live> {
    // No code panics while it holds the lock.
    LIVE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Live> {
    // As above.
    LIVE.write().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The lock guard of the thread that forks.
    static FROZEN: Cell<Option<RwLockWriteGuard<'static, Live>>> = const { Cell::new(None) };
}

/// Locks the handles until the same thread calls [`thaw`].
pub(crate) fn freeze() {
    let lock = write();
    // Fails only in a thread that is ending.
    let _ = FROZEN.try_with(|frozen| frozen.set(Some(lock)));
}

/// Unlocks the handles after [`freeze`].
pub(crate) fn thaw() {
    let _ = FROZEN.try_with(Cell::take);
}

/// Gives out a handle. It is odd, so that no pointer to an object of C equals it.
pub(crate) fn insert<T: Object>(value: Arc<T>) -> *mut T::Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let handle = NEXT.fetch_add(2, Ordering::Relaxed);
    write().insert(handle, Entry { value, name: T::NAME, process: std::process::id() });
    ptr::without_provenance_mut(handle)
}

/// The object of a handle.
pub(crate) fn find<T: Object>(handle: *mut T::Handle) -> Result<Arc<T>> {
    match read().get(&handle.addr()) {
        Some(entry) => entry.get(),
        None => Err(unknown::<T>(handle)),
    }
}

/// Takes a handle back. Others may still use the object.
pub(crate) fn remove<T: Object>(handle: *mut T::Handle) -> Result<Arc<T>> {
    let mut live = write();
    let value = match live.get(&handle.addr()) {
        Some(entry) => entry.get()?,
        None => return Err(unknown::<T>(handle)),
    };
    // The entry's reference is not the last one, so nothing is dropped under the lock.
    live.remove(&handle.addr());
    Ok(value)
}

impl Entry {
    fn get<T: Object>(&self) -> Result<Arc<T>> {
        if self.process != std::process::id() {
            let text =
                format!("the {} belongs to process {}, not to this child of it", self.name, self.process);
            return Err(Error::new(libc::EBADF, text));
        }
        Arc::clone(&self.value)
            .downcast()
            .map_err(|_| Error::new(libc::EBADF, format!("a {} is no {}", self.name, T::NAME)))
    }
}

fn unknown<T: Object>(handle: *mut T::Handle) -> Error {
    match handle.is_null() {
        true => Error::new(libc::EINVAL, format!("no {} is given (NULL)", T::NAME)),
        false => {
            Error::new(libc::EBADF, format!("there is no such {}: it was freed, or never was one", T::NAME))
        }
    }
}
