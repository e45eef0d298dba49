//! Handles: how C programs name objects.
//!
//! A handle looks like a pointer and is a number, which is never given out twice. Each call looks it up, so a
//! handle that was freed, that is of another kind, or that is no handle at all is an error and nothing else.

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

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

/// All objects that are not freed.
static LIVE: RwLock<BTreeMap<usize, Entry>> = RwLock::new(BTreeMap::new());

/// Gives out a handle. It is odd, so that no pointer to an object of C equals it.
pub(crate) fn insert<T: Object>(value: Arc<T>) -> *mut T::Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    let handle = NEXT.fetch_add(2, Ordering::Relaxed);
    LIVE.write().insert(handle, Entry { value, name: T::NAME, process: std::process::id() });
    ptr::without_provenance_mut(handle)
}

/// The object of a handle.
pub(crate) fn find<T: Object>(handle: *mut T::Handle) -> Result<Arc<T>> {
    match LIVE.read().get(&handle.addr()) {
        Some(entry) => entry.get(),
        None => Err(unknown::<T>(handle)),
    }
}

/// Takes a handle back. Others may still use the object.
pub(crate) fn remove<T: Object>(handle: *mut T::Handle) -> Result<Arc<T>> {
    let mut live = LIVE.write();
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
