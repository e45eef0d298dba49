//! The threads that sleep within calls until the device has something to do. The device wakes one of them, the leader.
//! The leader drives all endpoints. It wakes each other thread by a signal when that thread's operation is done.
//! So an arrival wakes two threads at most, however many sleep.
//!
//! Each of them sleeps on a set of its own, or on one for all readers of a completion queue. The device's set is in all
//! of these, but only the leader's reports it.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use slab::Slab;

use rdma_verbs::{Interest, Result, Token, WaitSet};

/// The interest that the other sets have in the device's set. They would report its errors, and a set has none.
const NOTHING: Interest = Interest::Failure;

/// The sets on which threads sleep within calls.
pub(super) struct Sleepers {
    /// Readable when the device has something to do.
    device: Arc<WaitSet>,
    sets: Slab<Sleeper>,
    /// Index of the set that reports the device's.
    leader: Option<usize>,
}

struct Sleeper {
    wait: Arc<WaitSet>,
    /// Of the device's set.
    token: Token,
    /// Number of threads in calls that sleep on it.
    threads: usize,
}

impl Sleepers {
    pub(super) fn new(device: Arc<WaitSet>) -> Self {
        Self { device, sets: Slab::new(), leader: None }
    }

    /// Adds a set. Returns its index.
    pub(super) fn add(&mut self, wait: Arc<WaitSet>) -> Result<usize> {
        let token = wait.token();
        wait.add(self.device.as_fd(), token, NOTHING)?;
        Ok(self.sets.insert(Sleeper { wait, token, threads: 0 }))
    }

    /// Removes a set on which no thread sleeps.
    pub(super) fn remove(&mut self, at: usize) {
        if self.leader == Some(at) {
            self.leader = None;
        }
        self.sets.remove(at);
    }

    /// A call begins that may sleep on this set.
    pub(super) fn begin(&mut self, at: usize) {
        self.sets[at].threads += 1;
        if self.leader.is_none_or(|leader| self.sets[leader].threads == 0) {
            self.lead(at);
        }
    }

    /// The call ends.
    pub(super) fn end(&mut self, at: usize) {
        self.sets[at].threads -= 1;
        if self.leader == Some(at)
            && self.sets[at].threads == 0
            && let Some((next, _)) = self.sets.iter().find(|(_, sleeper)| sleeper.threads > 0)
        {
            self.lead(next);
        }
    }

    /// Has this set report the device's. If that is readable, a thread that sleeps on this set already is woken.
    fn lead(&mut self, at: usize) {
        if self.leader == Some(at) {
            return;
        }
        if let Some(before) = self.leader.replace(at) {
            self.report(before, NOTHING);
        }
        self.report(at, Interest::Read);
    }

    fn report(&self, at: usize, interest: Interest) {
        let Sleeper { wait, token, .. } = &self.sets[at];
        if let Err(error) = wait.modify(self.device.as_fd(), *token, interest) {
            log::error!(target: "cq", "a wake-up is lost: {error}");
        }
    }
}
