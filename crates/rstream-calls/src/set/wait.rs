//! The waits of a set: what its rings have, what the kernel reports, and the sleep between.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{epoll_event, sigset_t};
use rstream_sockets::Naps;
use rstream_sockets::statistics::waits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::entry::{ERR, HUP, IN, ONCE, PRI, RDHUP};
use super::{Asleep, NUDGE, Set, descriptor, is_key, key};
use crate::connection::{self, Connection};
use crate::real;

/// Of the waits, one in so many asks the kernel too if it finds work in rings: other descriptors must not
/// starve.
const FAIR: u32 = 8;

/// The application's places for events.
type Events = [MaybeUninit<epoll_event>];

impl Set {
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
        let has_key = |event: &MaybeUninit<epoll_event>| is_key(unsafe { event.assume_init() }.u64);
        if !reported.iter().any(has_key) {
            return Some(counted);
        }
        let kept = self.translate(events, counted as usize);
        Some(self.collect(events, kept) as c_int).filter(|&total| total > 0)
    }

    pub(super) fn wait(
        &self,
        events: &mut Events,
        timeout: Option<Duration>,
        mask: *const sigset_t,
    ) -> c_int {
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
