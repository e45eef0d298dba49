//! The registry of live objects: a map from the address of a fid to its Rust value.
//!
//! An application may pass any `struct fid *` to bind, close, trywait and reject, and in `fi_info.handle`.
//! Each such pointer is looked up here before it is dereferenced, which detects a fid of another provider, of
//! the wrong class, or of a closed object. Data calls need no lookup: their fid arrives through its own op
//! table.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::sys;

type Value = Arc<dyn Any + Send + Sync>;

struct Entry {
    value: Value,
    /// Whether a thread is closing the object.
    claimed: bool,
}

type Live = BTreeMap<usize, Entry>;

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

/// Adds `fid` with its `value`.
pub(super) fn insert(fid: *mut sys::fid, value: Value) {
    write().insert(fid.addr(), Entry { value, claimed: false });
}

/// Removes `fid`.
pub(super) fn remove(fid: *mut sys::fid) {
    let entry = write().remove(&fid.addr());
    // Dropped after the lock is released: the value may own other fids.
    drop(entry);
}

/// The value of `fid`, if `fid` is live and the value is a `T`.
pub(super) fn find<T: Send + Sync + 'static>(fid: *mut sys::fid) -> Option<Arc<T>> {
    let value = Arc::clone(&read().get(&fid.addr())?.value);
    value.downcast().ok()
}

/// The right to close the object of a fid. One caller at a time has it. Dropping it leaves the object open.
pub(super) struct Claim(*mut sys::fid);

/// Claims the object of `fid`, if its value is a `T` and no other thread is closing it.
pub(super) fn claim<T: Send + Sync + 'static>(fid: *mut sys::fid) -> Option<Claim> {
    let mut live = write();
    let entry = live.get_mut(&fid.addr()).filter(|entry| !entry.claimed && entry.value.is::<T>())?;
    entry.claimed = true;
    Some(Claim(fid))
}

thread_local! {
    /// The lock guard of the thread that has frozen the registry.
    static FROZEN: Cell<Option<RwLockWriteGuard<'static, Live>>> = const { Cell::new(None) };
}

/// Locks the registry until the same thread calls [`thaw`].
pub(super) fn freeze() {
    let lock = write();
    // Fails only in a thread that is ending.
    let _ = FROZEN.try_with(|frozen| frozen.set(Some(lock)));
}

/// Unlocks the registry after [`freeze`].
pub(super) fn thaw() {
    let _ = FROZEN.try_with(Cell::take);
}

impl Claim {
    /// Removes the fid.
    pub(super) fn remove(self) {
        remove(self.0);
        // There is no entry any more.
        std::mem::forget(self);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(entry) = write().get_mut(&self.0.addr()) {
            entry.claimed = false;
        }
    }
}
