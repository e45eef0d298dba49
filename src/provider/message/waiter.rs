//! Threads that wait for a number of entries of a completion queue, or for a value of a counter.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use slab::Slab;

use super::completion_queue::Queue;
use super::counter::Count;
use super::engine::Engine;
use crate::abi::Result;
use crate::provider::error::errno_of;
use rdma_verbs::{Device, Interest, Signal, WaitSet};

/// What a thread waits for.
pub(super) enum Goal {
    /// So many entries in the queue at this index, or an error or a signal in it.
    Entries { queue: usize, number: usize },
    /// So many successes, or another number of errors.
    Count { count: Arc<Count>, successes: u64, errors: u64 },
}

impl Goal {
    fn is_reached(&self, queues: &Slab<Queue>) -> bool {
        match self {
            Self::Entries { queue, number } => {
                queues.get(*queue).is_none_or(|queue| queue.ends_wait(*number))
            }
            Self::Count { count, successes, errors } => {
                count.successes() >= *successes || count.errors.load(Ordering::Relaxed) != *errors
            }
        }
    }
}

/// A thread that waits. Whichever thread drives the engine wakes it.
pub(super) struct Waiter {
    goal: Goal,
    signal: Signal,
}

impl Waiter {
    pub(super) fn notify(&self, queues: &Slab<Queue>) {
        self.signal.set(self.goal.is_reached(queues));
    }
}

impl<D: Device> Engine<D> {
    /// Drives the engine and sleeps until the goal is reached. Returns whether it was reached in time.
    pub(super) fn wait_for(&self, goal: Goal, give_up: Option<Instant>) -> Result<bool> {
        let wait = Arc::new(WaitSet::new().map_err(errno_of)?);
        wait.add(self.wait_set()?.as_fd(), wait.token(), Interest::Read).map_err(errno_of)?;
        let signal = wait.signal(wait.token());
        let at = self.with(|state| state.waiters.insert(Waiter { goal, signal }));
        let outcome = self.sleep(at, &wait, give_up);
        self.lock().waiters.remove(at);
        outcome
    }

    fn sleep(&self, at: usize, wait: &WaitSet, give_up: Option<Instant>) -> Result<bool> {
        let mut ready = Vec::new();
        loop {
            let (is_reached, may_sleep) = self.with(|state| {
                let may_sleep = !state.drive() && !state.arm();
                (state.waiters[at].goal.is_reached(&state.queues), may_sleep)
            });
            let left = give_up.map(|at| at.saturating_duration_since(Instant::now()));
            if is_reached || left.is_some_and(|left| left.is_zero()) {
                return Ok(is_reached);
            }
            if may_sleep {
                wait.wait(left, &mut ready).map_err(errno_of)?;
                ready.clear();
            }
        }
    }
}
