//! The objects that an application may name by pointer: address of the fid to the Rust value.
//!
//! libfabric lets an application pass any `struct fid *` to bind, close, trywait, reject and in
//! `fi_info.handle`. Such a pointer is looked up here before anything behind it is read, so a fid
//! of another provider, of the wrong class, or one that was closed is told from a good one.
//! The calls that move data do not come here: their fid arrives through its own op table.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::sys;

type Entry = Arc<dyn Any + Send + Sync>;

static LIVE: RwLock<BTreeMap<usize, Entry>> = RwLock::new(BTreeMap::new());

/// From now on `fid` names `value`.
pub(super) fn insert(fid: *mut sys::fid, value: Entry) {
    LIVE.write().insert(fid.addr(), value);
}

/// `fid` names nothing any more. Answers whether it did: for one of several callers only.
pub(super) fn remove(fid: *mut sys::fid) -> bool {
    let entry = LIVE.write().remove(&fid.addr());
    // Dropped only here, after the lock was given back: the value may own fids of its own.
    entry.is_some()
}

/// What `fid` names, if it is one of these.
pub(super) fn find<T: Send + Sync + 'static>(fid: *mut sys::fid) -> Option<Arc<T>> {
    let entry = Arc::clone(LIVE.read().get(&fid.addr())?);
    entry.downcast().ok()
}
