//! The objects that an application may name by pointer: address of the fid to the Rust value.
//!
//! libfabric lets an application pass any `struct fid *` to bind, close, trywait, reject and in
//! `fi_info.handle`. Such a pointer is looked up here before anything behind it is read, so a fid
//! of another provider, of the wrong class, or one that was closed is told from a good one.
//! The calls that move data do not come here: their fid arrives through its own op table.

use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::sys;

type Value = Arc<dyn Any + Send + Sync>;

struct Entry {
    value: Value,
    /// Somebody closes it.
    claimed: bool,
}

type Live = BTreeMap<usize, Entry>;

/// Not of `parking_lot`, which keeps the threads that wait for any lock in one table: a thread of the parent may
/// have held that up when the process forked.
static LIVE: RwLock<Live> = RwLock::new(Live::new());

fn read() -> RwLockReadGuard<'static, Live> {
    // Nothing panics with the lock held.
    LIVE.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Live> {
    // As above.
    LIVE.write().unwrap_or_else(PoisonError::into_inner)
}

/// From now on `fid` names `value`.
pub(super) fn insert(fid: *mut sys::fid, value: Value) {
    write().insert(fid.addr(), Entry { value, claimed: false });
}

/// `fid` names nothing any more.
pub(super) fn remove(fid: *mut sys::fid) {
    let entry = write().remove(&fid.addr());
    // Dropped only here, after the lock was given back: the value may own fids of its own.
    drop(entry);
}

/// What `fid` names, if it is one of these.
pub(super) fn find<T: Send + Sync + 'static>(fid: *mut sys::fid) -> Option<Arc<T>> {
    let value = Arc::clone(&read().get(&fid.addr())?.value);
    value.downcast().ok()
}

/// The right to close what a fid names. One caller at a time has it; dropped, it leaves the object open.
pub(super) struct Claim(*mut sys::fid);

/// Claims what `fid` names, if it is a `T` that nobody else closes.
pub(super) fn claim<T: Send + Sync + 'static>(fid: *mut sys::fid) -> Option<Claim> {
    let mut live = write();
    let entry = live.get_mut(&fid.addr()).filter(|entry| !entry.claimed && entry.value.is::<T>())?;
    entry.claimed = true;
    Some(Claim(fid))
}

thread_local! {
    /// The lock of a thread that has frozen the registry.
    static FROZEN: Cell<Option<RwLockWriteGuard<'static, Live>>> = const { Cell::new(None) };
}

/// Waits until nobody is in the registry, and lets nobody in until the same thread calls [`thaw`].
pub(super) fn freeze() {
    let lock = write();
    // A thread that ends keeps none.
    let _ = FROZEN.try_with(|frozen| frozen.set(Some(lock)));
}

/// Ends what [`freeze`] began.
pub(super) fn thaw() {
    let _ = FROZEN.try_with(Cell::take);
}

impl Claim {
    /// The fid names nothing any more.
    pub(super) fn remove(self) {
        remove(self.0);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // After `remove` there is no entry.
        if let Some(entry) = write().get_mut(&self.0.addr()) {
            entry.claimed = false;
        }
    }
}
