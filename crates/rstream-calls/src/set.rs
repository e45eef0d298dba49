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

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t};
use rstream_sockets::statistics::waits;
use rstream_sockets::{Naps, Patience};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

pub(crate) use calls::introduce;
pub use calls::{epoll_create, epoll_create1, epoll_ctl, epoll_pwait, epoll_pwait2, epoll_wait};
use entry::{ERR, HUP, IN, ONCE, PRI, RDHUP};
use state::State;

use crate::connection::{self, Connection};
use crate::inside::Inside;
use crate::real;

/// Of the waits, one in so many asks the kernel too if it finds work in rings: other descriptors must not
/// starve.
const FAIR: u32 = 8;
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

/// The application's places for events.
type Events = [MaybeUninit<epoll_event>];

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

    /// Reports what was touched and is ready, to places from `count` on. Returns how many there are then.
    fn collect(&self, events: &mut Events, mut count: usize) -> usize {
        let mut state = self.lock();
        let state = &mut *state;
        let mut back = Vec::new();
        for at in 0..state.touched.len() {
            if count == events.len() {
                // The others come first next time.
                state.touched.rotate_left(at);
                break;
            }
            let fd = state.touched[at];
            let Some(entry) = state.entries.get_mut(&fd) else { continue };
            // The kernel reports it from now on.
            if !entry.has_rings() {
                back.push(fd);
                continue;
            }
            let found = entry.find();
            if found != 0 {
                events[count].write(epoll_event { events: found, u64: entry.data });
                count += 1;
            }
        }
        back.into_iter().for_each(|fd| state.release(self.descriptor(), fd));
        count
    }

    /// Takes what the kernel has reported of adopted connections, and leaves the other events at the
    /// beginning. Returns how many these are.
    fn translate(&self, events: &mut Events, count: usize) -> usize {
        let mut state = self.lock();
        let (mut kept, mut rung) = (0, Vec::new());
        for at in 0..count {
            // SAFETY: the kernel has written so many.
            let event = unsafe { events[at].assume_init() };
            let (flags, data) = (event.events, event.u64);
            if data == key(NUDGE) {
                if let Some(Some(nudge)) = self.nudge.get() {
                    let _ = rustix::io::read(nudge, &mut [0; 8]);
                }
                continue;
            }
            let Some(entry) = descriptor(data).and_then(|fd| state.entries.get_mut(&fd)) else {
                // Of a connection that was closed by this process, but not by another.
                if descriptor(data).is_none() {
                    events[kept].write(event);
                    kept += 1;
                }
                continue;
            };
            // What was found may be a bell of a peer that has begun.
            if !(entry.is_adopted || flags & IN != 0 && entry.is_upgraded_now()) {
                entry.is_off = entry.asked & ONCE != 0;
                events[kept].write(epoll_event { events: flags, u64: entry.data });
                kept += 1;
                continue;
            }
            let fd = (data - key(0)) as c_int;
            rung.push(Arc::clone(&entry.item));
            entry.ends |= flags & (ERR | HUP | RDHUP | PRI);
            entry.rang = true;
            state.touch(self.descriptor(), fd);
        }
        drop(state);
        for item in &rung {
            item.connection().into_iter().for_each(Connection::settle);
        }
        kept
    }

    /// A connection is about to be added.
    fn use_for_connections(&self) {
        self.is_used.store(true, Ordering::SeqCst);
    }

    /// The wait of a set that has had no connection, in one call of the kernel. `None`: it has one meanwhile, and
    /// that ended the wait.
    fn wait_unused(
        &self,
        events: &mut Events,
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> Option<c_int> {
        let counted = {
            // In this order: whoever adds a connection sees the sleeper, or is seen.
            let _asleep = Asleep::new(self);
            if self.is_used.load(Ordering::SeqCst) {
                return None;
            }
            self.call_kernel(events, timeout, mask)
        };
        let reported = &events[..usize::try_from(counted).unwrap_or(0)];
        // SAFETY: the kernel has written so many.
        let is_ours =
            |event: &MaybeUninit<epoll_event>| descriptor(unsafe { event.assume_init() }.u64).is_some();
        if !reported.iter().any(is_ours) {
            return Some(counted);
        }
        let kept = self.translate(events, counted as usize);
        Some(self.collect(events, kept) as c_int).filter(|&total| total > 0)
    }

    fn wait(&self, events: &mut Events, timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        if !self.is_used.load(Ordering::Relaxed)
            && let Some(counted) = self.wait_unused(events, timeout, mask)
        {
            return counted;
        }
        let mut naps = Naps::default();
        loop {
            // In its turn the kernel has a place, however much the rings have.
            let is_kernels_turn = self.is_kernels_turn();
            let places = events.len() - usize::from(is_kernels_turn);
            let found = self.collect(&mut events[..places], 0);
            if found > 0 && !is_kernels_turn {
                return found as c_int;
            }
            if found > 0 || places == 0 || timeout == Some(Duration::ZERO) {
                let total = self.add_kernels(events, found, mask);
                if total != 0 || timeout == Some(Duration::ZERO) {
                    return total;
                }
            }
            let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if self.looks_in_vain(left()) {
                let counted = {
                    let _asleep = Asleep::new(self);
                    if connection::tell_missed() || self.cool() {
                        continue;
                    }
                    let nap = self.lock().has_stuck.then(|| naps.length());
                    waits().count_sleep();
                    self.call_kernel(events, left().into_iter().chain(nap).min(), mask)
                };
                if counted < 0 {
                    return counted;
                }
                if !self.has_sleeper() {
                    self.rewarm();
                }
                let kept = self.translate(events, counted as usize);
                let total = self.collect(events, kept);
                if total > 0 || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return total as c_int;
                }
            }
        }
    }

    fn is_kernels_turn(&self) -> bool {
        self.waits.fetch_add(1, Ordering::Relaxed) % FAIR == FAIR - 1
    }

    /// Adds what the kernel has to what was found, without a sleep. If bells took all places of other events, it is
    /// asked again.
    fn add_kernels(&self, events: &mut Events, found: usize, mask: *const sigset_t) -> c_int {
        const ASKED: usize = 8;
        let places = events.len() - found;
        let mut kept = 0;
        for _ in 0..ASKED {
            let counted = self.call_kernel(&mut events[found..], Some(Duration::ZERO), mask);
            if counted < 0 {
                return if found > 0 { found as c_int } else { counted };
            }
            kept = self.translate(&mut events[found..], counted as usize);
            if kept > 0 || (counted as usize) < places {
                break;
            }
        }
        // What was found is reported once.
        let total = if found > 0 { found + kept } else { self.collect(events, kept) };
        total as c_int
    }

    /// Looks for a while before a sleep, if that has paid. Returns whether there was nothing.
    fn looks_in_vain(&self, left: Option<Duration>) -> bool {
        let spin = self.lock().spin();
        let most = left.map_or(spin, |left| left.min(spin));
        most.is_zero()
            || self.kernel_has_news()
            || self.patience.look(most, waits(), || self.has_news().then_some(())).is_none()
    }

    /// Whether a touched connection can be reported.
    fn has_news(&self) -> bool {
        let state = self.lock();
        state.touched.iter().any(|fd| state.entries.get(fd).is_some_and(|entry| entry.is_ready(false)))
    }

    /// Whether the kernel's set has something.
    fn kernel_has_news(&self) -> bool {
        // SAFETY: the application's set, which it waits for now.
        let set = unsafe { BorrowedFd::borrow_raw(self.descriptor()) };
        let mut polled = [PollFd::from_borrowed_fd(set, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
    }

    fn call_kernel(&self, events: &mut Events, timeout: Option<Duration>, mask: *const sigset_t) -> c_int {
        let milliseconds = timeout.map_or(-1, |timeout| {
            c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
        });
        let most = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
        // SAFETY: so many places; the mask is the application's.
        unsafe { real::epoll_pwait(self.descriptor(), events.as_mut_ptr().cast(), most, milliseconds, mask) }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        let counted = *self.sleepers.get_mut() + u32::from(*self.is_nested.get_mut());
        SLEEPERS.fetch_sub(counted, Ordering::SeqCst);
    }
}
