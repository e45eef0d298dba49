//! The application's calls.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};
use rustix::io::Errno;

use super::entry::{EXCLUSIVE, Entry};
use super::{Set, key};
use crate::errno::set_errno;
use crate::inside::Inside;
use crate::poll::duration;
use crate::real;
use crate::table::{self, Item};

/// The sets of this process: those that watch a descriptor before it is connected are found here.
static SETS: Mutex<Vec<Weak<Item>>> = Mutex::new(Vec::new());

/// Watches a set that was made just now.
fn add(fd: c_int) {
    let set = Arc::new(Item::Set(Set::new(fd)));
    let _inside = Inside::enter();
    let mut sets = SETS.lock().unwrap_or_else(PoisonError::into_inner);
    sets.retain(|set| set.strong_count() > 0);
    sets.push(Arc::downgrade(&set));
    table::put(fd, Some(set));
}

/// A descriptor has become a connection: sets may watch it already.
pub(crate) fn introduce(fd: c_int) {
    let Some(item) = table::get(fd) else { return };
    let Some(connection) = item.connection() else { return };
    let _inside = Inside::enter();
    let sets = SETS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for set_item in sets.iter().filter_map(Weak::upgrade) {
        let Some(set) = set_item.set() else { continue };
        let mut state = set.lock();
        let Some((asked, data)) = state.strangers.remove(&fd) else { continue };
        set.use_for_connections();
        let mut event = epoll_event { events: asked, u64: key(fd) };
        // SAFETY: `event` is valid. It fails if the descriptor is another by now.
        if unsafe { real::epoll_ctl(set.descriptor(), libc::EPOLL_CTL_MOD, fd, &raw mut event) } == 0 {
            state.entries.insert(fd, Entry::new(Arc::clone(&item), asked, data));
            drop(state);
            connection.watch(&set_item, fd);
        }
    }
}

impl Set {
    /// A change of a descriptor that is no connection, or not yet.
    fn watch_stranger(
        &self,
        operation: c_int,
        fd: c_int,
        asked: Option<(u32, u64)>,
        call: impl Fn() -> c_int,
    ) -> c_int {
        let changed = call();
        if changed == 0 {
            let mut state = self.lock();
            match asked.filter(|_| operation != libc::EPOLL_CTL_DEL) {
                Some((asked, data)) if asked & EXCLUSIVE == 0 => {
                    _ = state.strangers.insert(fd, (asked, data))
                }
                _ => _ = state.strangers.remove(&fd),
            }
        }
        changed
    }
}

/// `epoll_ctl`.
pub unsafe fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    // SAFETY: the application's arguments, here and below.
    let call = || unsafe { real::epoll_ctl(set, operation, fd, event) };
    // SAFETY: as above; only a deletion may have none.
    let asked = unsafe { event.as_ref() }.map(|event| (event.events, event.u64));
    let set_item = table::get(set);
    let Some((set_item, known)) = set_item.as_ref().and_then(|item| Some((item, item.set()?))) else {
        return call();
    };
    let Some(item) = table::get(fd) else { return known.watch_stranger(operation, fd, asked, call) };
    let connection = match &*item {
        Item::Connection(connection) => connection,
        Item::Set(inner) => {
            if operation == libc::EPOLL_CTL_ADD {
                inner.nest();
            }
            return call();
        }
    };
    let keyed = |asked: u32| {
        let mut event = epoll_event { events: asked, u64: key(fd) };
        // SAFETY: `event` is valid.
        unsafe { real::epoll_ctl(set, operation, fd, &raw mut event) }
    };
    let mut state = known.lock();
    let adopted = state.entries.get_mut(&fd).filter(|entry| entry.is_adopted);
    match (operation, asked) {
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, None) => call(),
        // The kernel knows all it has to.
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some((asked, data)))
            if adopted
                .as_ref()
                .is_some_and(|entry| entry.is_parked == (operation == libc::EPOLL_CTL_ADD)) =>
        {
            state.change(set, fd, asked, data);
            known.wake_for(state, fd);
            0
        }
        (libc::EPOLL_CTL_DEL, _) if adopted.as_ref().is_some_and(|entry| !entry.is_parked) => {
            adopted.into_iter().for_each(|entry| entry.is_parked = true);
            0
        }
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, _) if adopted.is_some() => {
            let is_parked = adopted.is_some_and(|entry| entry.is_parked);
            set_errno(if is_parked { Errno::NOENT } else { Errno::EXIST });
            -1
        }
        (libc::EPOLL_CTL_MOD, Some((asked, data))) if state.entries.contains_key(&fd) => {
            let changed = keyed(asked);
            if changed == 0
                && let Some(entry) = state.entries.get_mut(&fd)
            {
                (entry.asked, entry.data, entry.is_off) = (asked, data, false);
            }
            changed
        }
        (libc::EPOLL_CTL_ADD, Some((asked, data))) if asked & EXCLUSIVE == 0 => {
            known.use_for_connections();
            let added = keyed(asked);
            if added == 0 {
                state.entries.insert(fd, Entry::new(Arc::clone(&item), asked, data));
                drop(state);
                connection.watch(set_item, fd);
                connection.note_use();
            }
            added
        }
        (libc::EPOLL_CTL_DEL, _) => {
            let deleted = call();
            if deleted == 0 {
                state.remove(fd);
                drop(state);
                connection.unwatch(set_item, fd);
            }
            deleted
        }
        _ => call(),
    }
}

/// # Safety
/// As `epoll_pwait`.
unsafe fn wait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: Option<Duration>,
    mask: *const sigset_t,
    call: impl Fn() -> c_int,
) -> c_int {
    // Without a destructor: a cancellation may unwind through this frame.
    let item = table::get(set).map(Arc::into_raw);
    // SAFETY: this frame has a reference, until the end.
    let known = item.and_then(|item| unsafe { &*item }.set());
    let returned = match known.filter(|_| most > 0 && !events.is_null()) {
        None => call(),
        Some(known) => {
            // SAFETY: the application promises so many places; what lies there is only written.
            let events = unsafe { std::slice::from_raw_parts_mut(events.cast(), most as usize) };
            known.wait(events, timeout, mask)
        }
    };
    // SAFETY: the reference from above.
    drop(item.map(|item| unsafe { Arc::from_raw(item) }));
    returned
}

fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

/// `epoll_wait`.
pub unsafe fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int {
    // SAFETY: the application's arguments.
    unsafe { epoll_pwait(set, events, most, timeout, std::ptr::null()) }
}

/// `epoll_pwait`.
pub unsafe fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the application's arguments.
    let call = || unsafe { real::epoll_pwait(set, events, most, timeout, mask) };
    // SAFETY: as above.
    unsafe { wait(set, events, most, milliseconds(timeout), mask, call) }
}

/// `epoll_pwait2`.
pub unsafe fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the application's arguments.
    let call = || unsafe { real::epoll_pwait2(set, events, most, timeout, mask) };
    // SAFETY: the application's time, or none.
    match unsafe { timeout.as_ref() }.map(duration).transpose() {
        // SAFETY: the application's arguments.
        Ok(limit) => unsafe { wait(set, events, most, limit, mask, call) },
        Err(_) => call(),
    }
}

/// `epoll_create`.
pub unsafe fn epoll_create(size: c_int) -> c_int {
    // SAFETY: no pointers.
    made(unsafe { real::epoll_create(size) })
}

/// `epoll_create1`.
pub unsafe fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    made(unsafe { real::epoll_create1(flags) })
}

fn made(fd: c_int) -> c_int {
    if fd >= 0 {
        add(fd);
    }
    fd
}
