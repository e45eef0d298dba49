//! What this process's descriptors mean to this library: most mean nothing.
//!
//! A lookup takes no lock, because signal handlers read and write too. Whoever looks pins the place for the
//! few instructions in which it takes its own reference; whoever changes the place waits for that.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::connection::Connection;
use crate::set::Set;

/// What a descriptor means.
#[allow(clippy::large_enum_variant, reason = "nearly all are connections")]
pub(crate) enum Item {
    /// A TCP connection that may be upgraded, or is.
    Connection(Connection),
    /// An epoll set.
    Set(Set),
}

impl Item {
    pub(crate) fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Connection(connection) => Some(connection),
            Self::Set(_) => None,
        }
    }

    /// This descriptor is open for it.
    pub(crate) fn set_descriptor(&self, fd: c_int) {
        match self {
            Self::Connection(connection) => connection.set_descriptor(fd),
            Self::Set(set) => set.set_descriptor(fd),
        }
    }

    pub(crate) fn set(&self) -> Option<&Set> {
        match self {
            Self::Set(set) => Some(set),
            Self::Connection(_) => None,
        }
    }
}

struct Place {
    /// Lookups under way.
    pins: AtomicU32,
    item: AtomicPtr<Item>,
}

const PLACES: usize = 1024;
const PAGES: usize = 1024;

type Page = [Place; PLACES];

static PAGE: [AtomicPtr<Page>; PAGES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; PAGES];

/// One more than the highest descriptor that ever meant something.
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// One more than the highest descriptor that may mean something.
pub(crate) fn length() -> usize {
    LENGTH.load(Ordering::Acquire)
}

/// What the descriptor means, if anything.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Arc<Item>> {
    let place = place(fd)?;
    if place.item.load(Ordering::Relaxed).is_null() {
        return None;
    }
    place.pins.fetch_add(1, Ordering::SeqCst);
    let item = place.item.load(Ordering::SeqCst);
    let found = if item.is_null() {
        None
    } else {
        // SAFETY: the pointer came from `Arc::into_raw`, and its reference is dropped only after it was taken
        // from the place and then the place was seen without pins (`put`). The pin was there before the
        // pointer was read, in one order of all these (`SeqCst`).
        Some(unsafe {
            Arc::increment_strong_count(item);
            Arc::from_raw(item)
        })
    };
    place.pins.fetch_sub(1, Ordering::SeqCst);
    found
}

/// Does `act` with the connection that the descriptor means, if it means one. A cancellation may unwind
/// through `act`; then the reference is kept for ever, because such a frame must not have a destructor.
pub(crate) fn with_connection<T>(fd: c_int, act: impl FnOnce(&Connection) -> Option<T>) -> Option<T> {
    let item = ManuallyDrop::new(get(fd)?);
    let returned = item.connection().and_then(act);
    drop(ManuallyDrop::into_inner(item));
    returned
}

/// Gives the descriptor a meaning, or none, and returns the one that it had.
pub(crate) fn put(fd: c_int, item: Option<Arc<Item>>) -> Option<Arc<Item>> {
    let place = if item.is_some() { make_place(fd)? } else { place(fd)? };
    if item.is_some() {
        LENGTH.fetch_max(fd as usize + 1, Ordering::AcqRel);
    }
    let new = item.map_or(std::ptr::null_mut(), |item| Arc::into_raw(item).cast_mut());
    let old = place.item.swap(new, Ordering::SeqCst);
    if old.is_null() {
        return None;
    }
    // A lookup that this very thread's signal handler interrupted never ends its pin: then the reference is
    // kept for ever.
    let is_unpinned = (0..100_000).any(|_| {
        std::hint::spin_loop();
        place.pins.load(Ordering::SeqCst) == 0
    });
    // SAFETY: as in `get`: nobody reads this pointer any more, so its reference can be given back.
    is_unpinned.then(|| unsafe { Arc::from_raw(old) })
}

/// The descriptors that mean something, and what.
pub(crate) fn all() -> impl Iterator<Item = (c_int, Arc<Item>)> {
    (0..length()).filter_map(|fd| Some((fd as c_int, get(fd as c_int)?)))
}

#[inline]
fn place(fd: c_int) -> Option<&'static Place> {
    let fd = usize::try_from(fd).ok()?;
    let page = PAGE.get(fd / PLACES)?.load(Ordering::Acquire);
    // SAFETY: a page, once made, stays for ever.
    unsafe { page.as_ref() }.map(|page| &page[fd % PLACES])
}

fn make_place(fd: c_int) -> Option<&'static Place> {
    if let Some(place) = place(fd) {
        return Some(place);
    }
    let page = PAGE.get(usize::try_from(fd).ok()? / PLACES)?;
    let new = Box::new(
        [const { Place { pins: AtomicU32::new(0), item: AtomicPtr::new(std::ptr::null_mut()) } }; PLACES],
    );
    let new = Box::into_raw(new);
    if page.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: it came from `Box::into_raw` above, and nobody has seen it.
        drop(unsafe { Box::from_raw(new) });
    }
    place(fd)
}
