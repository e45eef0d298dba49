//! The event queue: connection events of all endpoints and passive endpoints that are bound to it, behind one
//! descriptor.
//!
//! The queue's [`WaitSet`] holds the descriptors of the connections, each with the token of its endpoint. So
//! reading the queue finds the endpoints that have events, however many are bound. A timer in the set expires
//! at the earliest deadline. A signal in the set is on while events are queued. A call that reads an event
//! which it queued itself does not signal in between.
//!
//! Lock order: an endpoint's lock before the queue's. Endpoints are driven without the queue's lock.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::abi::{
    AnyFid, Control, EqOps, Errno, ErrorEvent, ErrorOut, Event, EventOut, Fid, FidHandle, Result,
};
use rdma_verbs::{EventTarget, Interest, Signal, Timer, Token, WaitSet};

use super::children::Child;
use super::error::errno_of;
use super::{reason, wait};

/// An endpoint or passive endpoint that is bound to an event queue.
pub(super) trait Source: Send + Sync {
    /// Drives the connection and queues its events. Before it releases its own lock, it sets the time at
    /// which it is to be driven again even without an event ([`Binding::set_deadline`]): of two threads that
    /// drive it, the later one decides.
    fn drive(&self);
}

/// An open event queue.
pub(super) struct EventQueue {
    wait: Arc<WaitSet>,
    /// On while events are queued.
    ready_signal: Signal,
    timer: Timer,
    queue: Mutex<Queue>,
    membership: Mutex<Option<Child>>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    errors: VecDeque<ErrorEvent>,
    sources: HashMap<Token, Bound>,
    /// The deadlines of all sources, earliest first.
    deadlines: BTreeSet<(Instant, Token)>,
    /// The time that the timer was last set to. An expired timer is readable until it is set again.
    armed: Option<Instant>,
    /// Number of calls that are driving sources. The last one to end updates the signal.
    driving: usize,
}

struct Bound {
    source: Weak<dyn Source>,
    deadline: Option<Instant>,
}

/// A source in an event queue. Dropping it removes the source and its events.
pub(super) struct Binding {
    queue: Arc<EventQueue>,
    token: Token,
    /// The object that the source's events are about.
    fid: FidHandle,
}

impl EventQueue {
    /// An empty queue.
    pub(super) fn open(membership: Child) -> Result<Self> {
        let wait = Arc::new(WaitSet::new().map_err(errno_of)?);
        let timer = Timer::new().map_err(errno_of)?;
        wait.add(timer.as_fd(), wait.token(), Interest::Read).map_err(errno_of)?;
        let membership = Mutex::new(Some(membership));
        let ready_signal = wait.signal(wait.token());
        Ok(Self { wait, ready_signal, timer, queue: Mutex::default(), membership })
    }

    /// Drives every source that has an event or whose deadline has passed, then runs `look` on the queue.
    fn drive<R>(&self, then: impl FnOnce(&mut Queue) -> R) -> R {
        let mut ready = Vec::new();
        if let Err(error) = self.wait.wait(Some(Duration::ZERO), &mut ready) {
            log::warn!(target: "eq", "event queue: {error}");
        }
        self.drive_ready(&mut ready, then)
    }

    /// For `fi_trywait`: whether an event can be read.
    pub(super) fn must_not_wait(&self) -> bool {
        self.drive(|queue| queue.has_event()) || self.wait.settle()
    }

    fn drive_ready<R>(&self, ready: &mut Vec<Token>, then: impl FnOnce(&mut Queue) -> R) -> R {
        let driving = Driving::begin(self);
        ready.extend(self.queue.lock().expired(Instant::now()));
        ready.sort_unstable();
        ready.dedup();
        // The endpoints that were bound last come first: the queue reports that one is connected before it
        // reports the next request of its peer.
        for token in ready.drain(..).rev() {
            let source = self.queue.lock().source(token);
            if let Some(source) = source {
                source.drive();
            }
        }
        driving.end(then)
    }

    /// Sets the timer to the earliest deadline, or stops it.
    fn arm_timer(&self) {
        let mut queue = self.queue.lock();
        let earliest = queue.deadlines.first().map(|&(at, _)| at);
        if queue.armed == earliest {
            return;
        }
        queue.armed = earliest;
        if let Err(error) = self.timer.set(earliest) {
            log::warn!(target: "eq", "event queue timer: {error}");
        }
    }

    /// Changes the queue, and updates the signal.
    fn change<R>(&self, change: impl FnOnce(&mut Queue) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        if queue.driving == 0 {
            self.ready_signal.set(queue.has_event());
        }
        result
    }
}

/// A call that drives the sources. However it ends, timer and signal are updated afterwards.
struct Driving<'q>(&'q EventQueue);

impl<'q> Driving<'q> {
    fn begin(queue: &'q EventQueue) -> Self {
        queue.queue.lock().driving += 1;
        Self(queue)
    }

    /// Ends the call, and runs `look` on the queue before the signal is updated.
    fn end<R>(self, then: impl FnOnce(&mut Queue) -> R) -> R {
        let queue = self.0;
        std::mem::forget(self);
        queue.arm_timer();
        queue.change(|queue| {
            queue.driving -= 1;
            then(queue)
        })
    }
}

impl Drop for Driving<'_> {
    /// A source panicked.
    fn drop(&mut self) {
        Driving(self.0).end(|_| ());
    }
}

impl Queue {
    /// Whether an event or an error can be read.
    fn has_event(&self) -> bool {
        !self.events.is_empty() || !self.errors.is_empty()
    }

    /// Delivers the oldest event.
    fn take(&mut self, out: &mut EventOut<'_>) -> Result<usize> {
        if self.errors.is_empty() { out.deliver(&mut self.events) } else { Err(Errno::EAVAIL) }
    }

    fn source(&self, token: Token) -> Option<Arc<dyn Source>> {
        self.sources.get(&token).and_then(|bound| bound.source.upgrade())
    }

    fn set_deadline(&mut self, token: Token, deadline: Option<Instant>) {
        let Some(bound) = self.sources.get_mut(&token) else { return };
        let before = std::mem::replace(&mut bound.deadline, deadline);
        if before != deadline {
            before.map(|at| self.deadlines.remove(&(at, token)));
            self.deadlines.extend(deadline.map(|at| (at, token)));
        }
    }

    /// Removes and returns the sources whose deadline has passed.
    fn expired(&mut self, now: Instant) -> Vec<Token> {
        let mut expired = Vec::new();
        while let Some(&(at, token)) = self.deadlines.first()
            && at <= now
        {
            self.set_deadline(token, None);
            expired.push(token);
        }
        expired
    }
}

impl Binding {
    /// `fi_ep_bind`: binds `source`, whose events are about `fid`, to the event queue `queue`. It
    /// can be bound once.
    pub(super) fn make<S: Source + 'static>(
        slot: &mut Option<Self>,
        queue: &AnyFid,
        flags: u64,
        source: &Arc<S>,
        fid: FidHandle,
    ) -> Result<()> {
        let event_queue = queue.downcast::<EventQueue>().ok_or(Errno::EINVAL)?;
        if flags != 0 {
            return Err(Errno::EBADFLAGS);
        }
        if slot.is_some() {
            return Err(Errno::EINVAL);
        }
        let source: Weak<S> = Arc::downgrade(source);
        let token = event_queue.wait.token();
        event_queue.queue.lock().sources.insert(token, Bound { source, deadline: None });
        *slot = Some(Self { queue: event_queue, token, fid });
        Ok(())
    }

    /// The event target of the source's connection.
    pub(super) fn target(&self) -> EventTarget {
        EventTarget { wait: Arc::clone(&self.queue.wait), token: self.token }
    }

    /// The object that the source's events are about.
    pub(super) fn fid(&self) -> FidHandle {
        self.fid
    }

    /// Queues an event of the source.
    pub(super) fn push(&self, event: Event) {
        self.queue.change(|queue| queue.events.push_back(event));
    }

    /// Queues an error of the source.
    pub(super) fn push_error(&self, error: ErrorEvent) {
        self.queue.change(|queue| queue.errors.push_back(error));
    }

    /// Number of the source's events that were not read yet.
    pub(super) fn unread(&self) -> usize {
        self.queue.queue.lock().events.iter().filter(|event| event.fid() == Some(self.fid)).count()
    }

    /// Removes the source's events that were not read yet.
    pub(super) fn take_unread(&self) -> Vec<Event> {
        self.queue.change(|queue| {
            queue.errors.retain(|error| error.fid != self.fid);
            let events = std::mem::take(&mut queue.events).into_iter();
            let (unread, kept): (Vec<_>, Vec<_>) = events.partition(|event| event.fid() == Some(self.fid));
            queue.events = kept.into();
            unread
        })
    }

    /// Sets the time at which the source is to be driven even without an event. It replaces the time set
    /// before.
    pub(super) fn set_deadline(&self, deadline: Option<Instant>) {
        self.queue.queue.lock().set_deadline(self.token, deadline);
        self.queue.arm_timer();
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        self.take_unread();
        let mut queue = self.queue.queue.lock();
        queue.set_deadline(self.token, None);
        queue.sources.remove(&self.token);
        drop(queue);
        self.queue.arm_timer();
    }
}

impl Fid for EventQueue {
    fn close(&self) -> Result<()> {
        if !self.queue.lock().sources.is_empty() {
            return Err(Errno::EBUSY);
        }
        *self.membership.lock() = None;
        Ok(())
    }

    fn control(&self, command: Control<'_>) -> Result<i32> {
        wait::control(command, || Ok(self.wait.as_fd().as_raw_fd()))
    }
}

impl EqOps for EventQueue {
    fn read(&self, out: &mut EventOut<'_>) -> Result<usize> {
        self.drive(|queue| queue.take(out))
    }

    fn sread(&self, out: &mut EventOut<'_>, timeout: Option<Duration>) -> Result<usize> {
        let give_up = timeout.map(|timeout| Instant::now() + timeout);
        let mut ready = Vec::new();
        let mut outcome = self.drive(|queue| queue.take(out));
        while outcome == Err(Errno::EAGAIN) {
            if wait::is_over(give_up) {
                return Err(Errno::EAGAIN);
            }
            wait::sleep(&self.wait, give_up, &mut ready)?;
            outcome = self.drive_ready(&mut ready, |queue| queue.take(out));
        }
        outcome
    }

    fn readerr(&self, out: &mut ErrorOut<'_>) -> Result<usize> {
        self.drive(|queue| out.deliver(&mut queue.errors))
    }

    fn write(&self, number: u32, entry: &[u8]) -> Result<()> {
        self.change(|queue| queue.events.push_back(Event::User { number, entry: entry.to_vec() }));
        Ok(())
    }

    fn strerror(&self, prov_errno: i32) -> &'static CStr {
        reason::text(prov_errno)
    }
}

#[cfg(test)]
mod tests;
