//! Threads that wait for a number of entries of a completion queue, or for a value of a counter, and those that
//! sleep on the descriptor of a counter.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::counter::Count;
use super::engine::Engine;
use super::queues::Queues;
use crate::abi::{Errno, Result};
use crate::provider::wait;
use rdma_verbs::{Device, Signal, WaitSet};

/// What a thread waits for.
pub(super) enum Goal {
    /// So many entries in the queue at this index, or an error or a signal in it.
    Entries { queue: usize, number: usize },
    /// So many successes, or another number of errors.
    Count { count: Arc<Count>, successes: u64, errors: u64 },
    /// Other numbers of successes and errors than these.
    Change { count: Arc<Count>, seen: (u64, u64) },
}

impl Goal {
    fn is_reached(&self, queues: &Queues) -> bool {
        match self {
            Self::Entries { queue, number } => {
                queues.get(*queue).is_none_or(|queue| queue.ends_wait(*number))
            }
            Self::Count { count, successes, errors } => {
                count.successes() >= *successes || count.errors.load(Ordering::Relaxed) != *errors
            }
            Self::Change { count, seen } => count.numbers() != *seen,
        }
    }
}

/// A thread that waits. Whichever thread drives the engine wakes it.
pub(super) struct Waiter {
    goal: Goal,
    signal: Signal,
}

impl Waiter {
    /// Whoever sleeps on the descriptor of a counter, whose set has this `signal`.
    pub(super) fn on_counter(count: Arc<Count>, signal: Signal) -> Self {
        let seen = count.numbers();
        Self { goal: Goal::Change { count, seen }, signal }
    }

    /// Whether the counter has changed since the last call.
    pub(super) fn take_change(&mut self) -> bool {
        let Goal::Change { count, seen } = &mut self.goal else { return false };
        let numbers = count.numbers();
        std::mem::replace(seen, numbers) != numbers
    }

    pub(super) fn notify(&self, queues: &Queues) {
        self.signal.set(self.goal.is_reached(queues));
    }
}

impl<D: Device> Engine<D> {
    /// Drives the engine and sleeps until the goal is reached. Returns whether it was reached in time.
    pub(super) fn wait_for(&self, goal: Goal, give_up: Option<Instant>) -> Result<bool> {
        let (set, at, sleeper) = self.with(|state| {
            let (set, sleeper) = self.sleeper_set(state)?;
            state.sleepers.begin(sleeper);
            let signal = set.signal(set.token());
            Ok::<_, Errno>((set, state.waiters.insert(Waiter { goal, signal }), sleeper))
        })?;
        let outcome = self.sleep(at, &set, give_up);
        let mut state = self.lock();
        state.waiters.remove(at);
        state.sleepers.end(sleeper);
        state.sleepers.remove(sleeper);
        outcome
    }

    fn sleep(&self, at: usize, set: &WaitSet, give_up: Option<Instant>) -> Result<bool> {
        let mut ready = Vec::new();
        loop {
            let (is_reached, may_sleep) = self.with(|state| {
                let may_sleep = !state.drive() && !state.arm();
                (state.waiters[at].goal.is_reached(&state.queues), may_sleep)
            });
            if is_reached || wait::is_over(give_up) {
                return Ok(is_reached);
            }
            if may_sleep {
                wait::sleep(set, give_up, &mut ready)?;
                ready.clear();
            }
        }
    }
}
