//! The completion queue (`fi_cq`): entries of its endpoints, read in the order in which they were reported.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::descriptor::Descriptor;
use super::engine::{Engine, Reader, State};
use super::limits::Limits;
use super::operation::{self, Entry};
use super::waiter::Goal;
use crate::abi::{CompletionError, CompletionsOut, Control, CqAttr, CqOps, Errno, Fid, Result, constants};
use crate::provider::children::Child;
use crate::provider::error::errno_of;
use crate::provider::wait;
use rdma_verbs::{Device, MessageQueues as _, Signal, WaitSet};

/// Maximum number of polls for completions that arrive while the wake-up is requested.
const ARMS: usize = 8;

/// The engine's part of a completion queue.
#[derive(Default)]
pub(super) struct Queue {
    entries: VecDeque<Entry>,
    /// Whether a read that waits is to end without entries.
    is_signaled: bool,
    /// Number of reads that wait, and where they sleep.
    readers: usize,
    pub(super) reader_set: Option<ReaderSet>,
    /// That of the wait object; `None`: the queue has none.
    descriptor: Option<Descriptor>,
    /// Whether the wait object holds the engine's set.
    pub(super) is_nested: bool,
    /// Number of uses by endpoints.
    pub(super) users: usize,
    /// Number of entries for writes of peers, and from how many on further ones wait.
    writes: usize,
    most_writes: usize,
    /// Whether such writes of some endpoints wait.
    holds_writes: bool,
}

/// The set on which reads of a queue sleep. Its signal is on while there is something to read.
pub(super) struct ReaderSet {
    signal: Signal,
    /// Its index among the sleepers of the engine.
    pub(super) at: usize,
}

/// A read that waits.
struct Waiting {
    /// Where it sleeps. `None`: it waits for several entries, and the signals of the queue are on from the first one, so
    /// [`Engine::wait_for`] has a set for it.
    set: Option<Arc<WaitSet>>,
}

impl Queue {
    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
    }

    /// Adds the entry of a peer's write. Returns whether further ones have to wait.
    pub(super) fn push_write(&mut self, entry: Entry) -> bool {
        self.push(entry);
        self.writes += 1;
        self.holds_writes |= self.writes >= self.most_writes;
        self.holds_writes
    }

    /// Whether the writes that wait may arrive, once that so many entries are read that not each of the following
    /// ones waits again.
    pub(super) fn lets_writes_pass(&mut self) -> bool {
        let passes = self.holds_writes && self.writes <= self.most_writes / 2;
        self.holds_writes &= !passes;
        passes
    }

    /// The wait object, if the queue has one.
    pub(super) fn wait_set(&self) -> Option<&Arc<WaitSet>> {
        self.descriptor.as_ref().map(Descriptor::wait_set)
    }

    fn is_ready(&self) -> bool {
        self.is_signaled || !self.entries.is_empty()
    }

    /// Updates the signals after a call. Those that nobody looks at stay as they are: each change is a system call.
    pub(super) fn notify(&mut self) {
        let is_ready = self.is_ready();
        if let Some(descriptor) = &mut self.descriptor {
            descriptor.update(is_ready);
        }
        if let Some(readers) = &self.reader_set {
            readers.signal.set(self.readers > 0 && is_ready);
        }
    }

    /// Whether a read that waits for so many entries is to end: also when no more may come before some are read.
    pub(super) fn ends_wait(&self, number: usize) -> bool {
        let is_failure = |entry: &Entry| matches!(entry, Entry::Failure(_));
        let is_enough = self.entries.len() >= number.max(1) || self.holds_writes;
        self.is_signaled || is_enough || self.entries.iter().any(is_failure)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Moves entries to `out`, which may have some, up to the first failure.
    #[inline(always)]
    pub(super) fn take(&mut self, out: &mut CompletionsOut<'_>) -> Result<()> {
        if !self.entries.is_empty() {
            self.move_entries(out);
        }
        let found = out.count() > 0 || self.is_ready();
        if let Some(descriptor) = &mut self.descriptor {
            descriptor.has_read(found);
        }
        if out.count() > 0 {
            return Ok(());
        }
        match self.entries.front() {
            None => Err(Errno::EAGAIN),
            Some(Entry::Failure(_)) => Err(Errno::EAVAIL),
            // There was no room for it.
            Some(Entry::Success(_)) => Ok(()),
        }
    }

    #[inline(never)]
    fn move_entries(&mut self, out: &mut CompletionsOut<'_>) {
        let writes = &mut self.writes;
        let mut passes = |entry: &mut Entry| match entry {
            Entry::Success(completion) if out.push(completion) => {
                *writes -= usize::from(completion.flags & constants::FI_REMOTE_WRITE != 0);
                true
            }
            _ => false,
        };
        while self.entries.pop_front_if(&mut passes).is_some() {}
    }
}

/// An open completion queue.
pub(in super::super) struct CompletionQueue<D: Device> {
    pub(super) engine: Arc<Engine<D>>,
    /// Its index in the engine.
    pub(super) at: usize,
    /// Readable when the queue has to be read, which drives the engine. It holds the signal of the queue, and what
    /// [`Engine::watch`] adds for each endpoint.
    wait: Option<Arc<WaitSet>>,
    membership: Mutex<Option<Child>>,
}

impl<D: Device> CompletionQueue<D> {
    pub(in super::super) fn open(
        engine: Arc<Engine<D>>,
        attributes: CqAttr,
        membership: Child,
    ) -> Result<Arc<Self>> {
        if attributes.flags & !constants::FI_AFFINITY != 0 {
            return Err(Errno::EBADFLAGS);
        }
        let wait = match attributes.wait_obj {
            constants::FI_WAIT_NONE => None,
            constants::FI_WAIT_UNSPEC | constants::FI_WAIT_FD => {
                Some(Arc::new(WaitSet::new().map_err(errno_of)?))
            }
            _ => return Err(Errno::ENOSYS),
        };
        let descriptor = wait.as_ref().map(|wait| Descriptor::new(wait.signal(wait.token())));
        let most_writes = Limits::unread_writes(attributes.size);
        let at = engine.add_queue(Queue { descriptor, most_writes, ..Queue::default() })?;
        Ok(Arc::new(Self { engine, at, wait, membership: Mutex::new(Some(membership)) }))
    }

    /// Counts a use by an endpoint, or the end of one.
    pub(super) fn used(&self, by: isize) {
        let users = &mut self.engine.lock().queues[self.at].users;
        *users = users.saturating_add_signed(by);
    }

    /// For `fi_trywait`: whether there is something to read. Otherwise the descriptor becomes readable for
    /// the next entry. A signal is reported once, unless it is for a read that waits: whoever sleeps on the
    /// descriptor has no other call that would take it.
    pub(in super::super) fn must_not_wait(&self) -> bool {
        let is_ready = self.engine.with(|state| {
            let is_ready = self.is_ready_before_sleep(state);
            let queue = &mut state.queues[self.at];
            queue.is_signaled &= queue.readers > 0;
            if let (false, Some(descriptor)) = (is_ready, &mut queue.descriptor) {
                descriptor.begin_sleep();
            }
            is_ready
        });
        is_ready || self.wait.as_ref().is_some_and(|wait| self.engine.settle(wait))
    }

    /// Reads as soon as the wait for so many entries is over. `waiting` is set when it begins.
    fn read_or_wait(
        &self,
        out: &mut CompletionsOut<'_>,
        threshold: usize,
        give_up: Option<Instant>,
        waiting: &mut Option<Waiting>,
    ) -> Result<()> {
        let mut ready = Vec::new();
        loop {
            let is_late = wait::is_over(give_up);
            let outcome = self.engine.with(|state| {
                let is_busy = self.is_ready_before_sleep(state);
                let queue = &mut state.queues[self.at];
                if queue.ends_wait(threshold) || is_late {
                    queue.is_signaled = false;
                    return state.take(self.at, out).map(|()| None);
                }
                if waiting.is_none() {
                    *waiting = Some(self.begin_wait(state, threshold)?);
                }
                Ok(Some(is_busy))
            });
            match (outcome?, &*waiting) {
                (None, _) => return Ok(()),
                (Some(_), Some(Waiting { set: None })) => {
                    let goal = Goal::Entries { queue: self.at, number: threshold };
                    self.engine.wait_for(goal, give_up)?;
                }
                (Some(false), Some(Waiting { set: Some(set) })) => {
                    ready.clear();
                    wait::sleep(set, give_up, &mut ready)?;
                }
                _ => {}
            }
        }
    }

    /// A read begins to wait.
    fn begin_wait(&self, state: &mut State<D>, threshold: usize) -> Result<Waiting> {
        let mut set = None;
        if threshold <= 1 {
            let readers = match state.queues[self.at].reader_set.take() {
                Some(known) => known,
                None => {
                    let (set, at) = self.engine.sleeper_set(state)?;
                    ReaderSet { signal: set.signal(set.token()), at }
                }
            };
            state.sleepers.begin(readers.at);
            set = Some(Arc::clone(readers.signal.wait_set()));
            state.queues[self.at].reader_set = Some(readers);
        }
        state.queues[self.at].readers += 1;
        Ok(Waiting { set })
    }

    fn end_wait(&self, state: &mut State<D>, waiting: &Waiting) {
        let queue = &mut state.queues[self.at];
        queue.readers -= 1;
        if let (Some(readers), Some(_)) = (&queue.reader_set, &waiting.set) {
            state.sleepers.end(readers.at);
        }
    }

    /// If there is nothing to read, drives the engine, and requests a wake-up if nothing arrived. Returns whether there
    /// is something to read, or whether the device never came to rest.
    fn is_ready_before_sleep(&self, state: &mut State<D>) -> bool {
        if state.queues[self.at].is_ready() {
            state.cq.uncork();
            return true;
        }
        for _ in 0..ARMS {
            let has_more = state.drive();
            if state.queues[self.at].is_ready() {
                return true;
            }
            if !has_more && !state.arm() {
                return false;
            }
        }
        true
    }
}

impl<D: Device> CqOps for CompletionQueue<D> {
    fn read(&self, out: &mut CompletionsOut<'_>) -> Result<()> {
        self.engine.with(|state| {
            // A call without room is made for the progress.
            if state.queues[self.at].is_empty() || !out.has_room() {
                state.drive_for(Some(Reader { queue: self.at, out }));
            } else {
                // What is reported as sent does not wait any more.
                state.cq.uncork();
            }
            state.take(self.at, out)
        })
    }

    fn sread(&self, out: &mut CompletionsOut<'_>, threshold: usize, timeout: Option<Duration>) -> Result<()> {
        if self.wait.is_none() {
            return Err(Errno::ENOSYS);
        }
        let give_up = timeout.map(|timeout| Instant::now() + timeout);
        let mut waiting = None;
        let outcome = self.read_or_wait(out, threshold, give_up, &mut waiting);
        if let Some(waiting) = waiting {
            self.end_wait(&mut self.engine.lock(), &waiting);
        }
        outcome
    }

    fn readerr(&self) -> Result<CompletionError> {
        self.engine.with(|state| {
            state.cq.uncork();
            let queue = &mut state.queues[self.at];
            match queue.entries.pop_front() {
                Some(Entry::Failure(error)) => Ok(*error),
                Some(entry) => {
                    queue.entries.push_front(entry);
                    Err(Errno::EAGAIN)
                }
                None => Err(Errno::EAGAIN),
            }
        })
    }

    fn signal(&self) -> Result<()> {
        if self.wait.is_none() {
            return Err(Errno::ENOSYS);
        }
        self.engine.with(|state| state.queues[self.at].is_signaled = true);
        Ok(())
    }

    fn strerror(&self, prov_errno: i32) -> &'static CStr {
        operation::text(prov_errno)
    }
}

impl<D: Device> Fid for CompletionQueue<D> {
    const CANCELLATION_POINTS: bool = D::CANCELLATION_POINTS;

    fn close(&self) -> Result<()> {
        let mut state = self.engine.lock();
        if state.queues.get(self.at).is_some_and(|queue| queue.users > 0 || queue.readers > 0) {
            return Err(Errno::EBUSY);
        }
        state.remove_queue(self.at);
        drop(state);
        *self.membership.lock() = None;
        Ok(())
    }

    fn control(&self, command: Control<'_>) -> Result<i32> {
        let wait = self.wait.as_ref().ok_or(Errno::ENOSYS)?;
        wait::control(command, || {
            // The device signals only what arrives after this point.
            self.engine.with(|state| {
                state.queues[self.at].descriptor.iter_mut().for_each(Descriptor::expose);
                self.is_ready_before_sleep(state)
            });
            Ok(wait.as_fd().as_raw_fd())
        })
    }
}
