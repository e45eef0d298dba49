//! Epoll sets.
//!
//! The kernel's set holds the application's descriptors, as it asked. When a connection is upgraded, the set
//! *adopts* it: the kernel reports its bells and its end, each once, and what the application asked for is
//! answered here. Connections that may be upgraded have a key of this library as their data in the kernel,
//! which is replaced by the application's when an event is reported.
//!
//! A connection that was used since the last sleep is *touched*: each wait looks at its rings, and its peer
//! rings no bell. Before a sleep the touched ones are armed, and looked at once more. After the sleep those
//! that were used lately are *warm*: they are touched again, so that one bell wakes the set and not one each.
//! The others are cold until a bell brings them back. So a wait that finds work makes no call of the kernel,
//! and none does work for connections on which nothing happens.

mod calls;
mod entry;
mod state;
mod wait;

use std::ffi::c_int;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use libc::epoll_event;
use rstream_sockets::Patience;
use rustix::event::{EventfdFlags, eventfd};

pub(crate) use calls::introduce;
pub use calls::{epoll_create, epoll_create1, epoll_ctl, epoll_pwait, epoll_pwait2, epoll_wait};
use entry::IN;
use state::State;

use crate::connection::Connection;
use crate::inside::Inside;
use crate::real;

/// Sleeps after which a connection on which nothing has happened is cold.
const IDLE: u8 = 4;
/// Most connections that are warm.
const WARM: usize = 128;

/// Threads of this process that sleep in a set, and sets that are nested.
static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// The address of a descriptor's place here is its key: no data of the application is such an address.
/// Nothing is ever stored here.
static KEYS: [AtomicU8; KEY_COUNT + 1] = [const { AtomicU8::new(0) }; KEY_COUNT + 1];
const KEY_COUNT: usize = 1 << 20;
/// The place of nudges, which is no descriptor's.
const NUDGE: c_int = KEY_COUNT as c_int;

fn key(fd: c_int) -> u64 {
    (&raw const KEYS) as u64 + fd as u64
}

/// The descriptor whose key this is.
fn descriptor(data: u64) -> Option<c_int> {
    let offset = data.wrapping_sub((&raw const KEYS) as u64);
    (offset < KEY_COUNT as u64).then_some(offset as c_int)
}

/// Whether this is a key of this library, and not the application's data.
fn is_key(data: u64) -> bool {
    descriptor(data).is_some() || data == key(NUDGE)
}

/// An epoll set of the application.
pub(crate) struct Set {
    /// One of its descriptors.
    fd: AtomicI32,
    state: Mutex<State>,
    /// Whether it has had a connection: until then the kernel knows all that there is to know.
    is_used: AtomicBool,
    /// Threads that sleep in it.
    sleepers: AtomicU32,
    /// Whether another set has it, which may be waited for in any way.
    is_nested: AtomicBool,
    /// Wakes them when what they wait for was found by another thread.
    nudge: OnceLock<Option<OwnedFd>>,
    patience: Patience,
    /// Waits so far.
    waits: AtomicU32,
}

/// Whether any thread of this process sleeps in a set.
pub(crate) fn has_sleepers() -> bool {
    SLEEPERS.load(Ordering::SeqCst) > 0
}

/// In a process that was forked, with all its sets.
pub(crate) fn forget_sleepers<'a>(sets: impl Iterator<Item = &'a Set>) {
    SLEEPERS.store(sets.map(Set::forget_sleepers).sum(), Ordering::SeqCst);
}

/// A thread is about to sleep in a set, or does. Whoever uses one of its connections meanwhile arms it, and
/// wakes the thread if there is something for it.
pub(crate) struct Asleep<'a>(&'a Set);

impl<'a> Asleep<'a> {
    pub(crate) fn new(set: &'a Set) -> Self {
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        SLEEPERS.fetch_add(1, Ordering::SeqCst);
        Self(set)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        SLEEPERS.fetch_sub(1, Ordering::SeqCst);
        self.0.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The state of a set, locked.
struct Locked<'a>(MutexGuard<'a, State>, #[allow(dead_code, reason = "it acts when it is dropped")] Inside);

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Set {
    fn new(fd: c_int) -> Self {
        Self {
            fd: AtomicI32::new(fd),
            state: Mutex::default(),
            is_used: AtomicBool::new(false),
            sleepers: AtomicU32::new(0),
            is_nested: AtomicBool::new(false),
            nudge: OnceLock::new(),
            patience: Patience::new(),
            waits: AtomicU32::new(0),
        }
    }

    fn descriptor(&self) -> c_int {
        self.fd.load(Ordering::Acquire)
    }

    /// This descriptor is open for it.
    pub(crate) fn set_descriptor(&self, fd: c_int) {
        self.fd.store(fd, Ordering::Release);
    }

    fn lock(&self) -> Locked<'_> {
        // In this order: a signal may come in between.
        let inside = Inside::enter();
        Locked(self.state.lock().unwrap_or_else(PoisonError::into_inner), inside)
    }

    /// A connection is about to be added.
    fn use_for_connections(&self) {
        self.is_used.store(true, Ordering::SeqCst);
    }

    /// A connection was used: it is looked at in the next wait, or now if a thread sleeps.
    pub(crate) fn touch(&self, fd: c_int) {
        let mut state = self.lock();
        state.touch(self.descriptor(), fd);
        self.wake_for(state, fd);
    }

    /// Wakes a thread that sleeps if there is something for it.
    fn wake_for(&self, state: Locked<'_>, fd: c_int) {
        if self.has_sleeper() && state.entries.get(&fd).is_some_and(|entry| entry.is_ready(true)) {
            drop(state);
            self.nudge();
        }
    }

    /// The descriptor was closed.
    pub(crate) fn forget(&self, fd: c_int) {
        self.lock().remove(fd);
    }

    /// The descriptor is none of a connection any more: the kernel reports what the application asked for.
    pub(crate) fn leave_to_kernel(&self, fd: c_int) {
        self.lock().leave_to_kernel(self.descriptor(), fd);
    }

    /// Wakes whoever sleeps in it.
    fn nudge(&self) {
        let nudge = self.nudge.get_or_init(|| {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
            let fd = rstream_ring::move_up(fd);
            let mut event = epoll_event { events: IN, u64: key(NUDGE) };
            // SAFETY: `event` is valid.
            unsafe {
                real::epoll_ctl(self.descriptor(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &raw mut event)
            };
            Some(fd)
        });
        if let Some(nudge) = nudge {
            let _ = rustix::io::write(nudge, &1_u64.to_ne_bytes());
        }
    }

    /// Before a sleep of any kind: arms what was touched. Returns whether something can be reported.
    pub(crate) fn cool(&self) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        let touched = std::mem::take(&mut state.touched);
        state.has_stuck = false;
        let mut is_ready = false;
        for fd in touched {
            let Some(entry) = state.entries.get_mut(&fd) else { continue };
            if !entry.has_rings() {
                state.release(self.descriptor(), fd);
                continue;
            }
            // In this order: whoever uses it after the look touches it again.
            if let Some(connection) = entry.item.connection() {
                connection.cool();
            }
            let is_found = entry.is_ready(true);
            let is_stuck = !is_found && entry.is_stuck();
            let stays = is_found || is_stuck;
            entry.is_touched = stays;
            is_ready |= is_found;
            state.has_stuck |= is_stuck;
            if stays {
                state.touched.push(fd);
            } else if entry.idle < IDLE && state.warm.len() < WARM {
                state.warm.push(fd);
            }
        }
        is_ready
    }

    /// Before a sleep on the set itself: as [`Set::cool`]. Bells that nobody needs any more would wake it.
    pub(crate) fn cool_quiet(&self) -> bool {
        let touched: Vec<_> = {
            let state = self.lock();
            let entry = |fd: &c_int| Some(Arc::clone(&state.entries.get(fd)?.item));
            state.touched.iter().filter_map(entry).collect()
        };
        for item in &touched {
            item.connection().into_iter().for_each(Connection::settle);
        }
        self.cool()
    }

    /// After a sleep: looks at those that were used lately, which need not ring any more.
    fn rewarm(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        for fd in std::mem::take(&mut state.warm) {
            let Some(entry) = state.entries.get_mut(&fd).filter(|entry| !entry.is_touched) else { continue };
            if let Some(connection) = entry.item.connection() {
                connection.warm();
            }
            (entry.is_touched, entry.idle) = (true, entry.idle + 1);
            state.touched.push(fd);
        }
    }

    /// Another set has it: it has to become readable when there is something. That it is taken out again
    /// makes no difference but that it does so for nothing.
    fn nest(&self) {
        if !self.is_nested.swap(true, Ordering::SeqCst) {
            SLEEPERS.fetch_add(1, Ordering::SeqCst);
        }
        if self.cool_quiet() {
            self.nudge();
        }
    }

    /// Whether somebody may sleep, whom only a bell or a nudge wakes.
    fn has_sleeper(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0 || self.is_nested.load(Ordering::SeqCst)
    }

    /// In a process that was forked: the threads that slept are the other's. Returns how much this set counts
    /// among [`SLEEPERS`].
    fn forget_sleepers(&self) -> u32 {
        self.sleepers.store(0, Ordering::SeqCst);
        self.is_nested.load(Ordering::SeqCst).into()
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        let counted = *self.sleepers.get_mut() + u32::from(*self.is_nested.get_mut());
        SLEEPERS.fetch_sub(counted, Ordering::SeqCst);
    }
}
