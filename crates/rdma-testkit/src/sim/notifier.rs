//! Notifications of a completion queue, and the set of its queue pairs that have something to do.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use rdma_verbs::{QpId, Signal, WaitSet};

/// Peers and the completion queue itself notify it. `poll` drives the notified queue pairs.
#[derive(Debug)]
pub(super) struct Notifier {
    /// See [`super::Config::arming`].
    arming: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Queue pairs to drive.
    notified: BTreeSet<QpId>,
    /// There are completions to poll.
    ready: bool,
    armed: bool,
    signal: Option<Signal>,
}

impl Notifier {
    pub(super) fn new(arming: bool) -> Self {
        Self { arming, state: Mutex::default() }
    }

    /// Notes that this queue pair has something to do.
    pub(super) fn notify(&self, qp: QpId) {
        let mut state = self.state.lock();
        state.notified.insert(qp);
        self.wake(&mut state);
    }

    /// Removes and returns all queue pairs that have something to do. A notification that arrives while they
    /// are driven adds them again.
    pub(super) fn take_all(&self) -> BTreeSet<QpId> {
        std::mem::take(&mut self.state.lock().notified)
    }

    /// Removes one queue pair, which the caller is about to drive.
    pub(super) fn take(&self, qp: QpId) {
        self.state.lock().notified.remove(&qp);
    }

    /// Records whether there are completions to poll. Called after every call that may add or remove
    /// completions.
    pub(super) fn update(&self, ready: bool) {
        let mut state = self.state.lock();
        let became_ready = ready && !state.ready;
        state.ready = ready;
        if became_ready {
            self.wake(&mut state);
        } else if !self.arming {
            let on = ready || !state.notified.is_empty();
            state.signal(on);
        }
    }

    /// Signals `wait` from now on, also for present completions, and arms it.
    pub(super) fn attach(&self, wait: &Arc<WaitSet>) {
        let mut state = self.state.lock();
        state.signal = Some(wait.signal(wait.token()));
        state.signal(state.ready || !state.notified.is_empty());
        state.armed = true;
    }

    /// Arms the signal if the device must be armed. Returns whether it was not armed already.
    pub(super) fn arm(&self) -> bool {
        if !self.arming {
            return false;
        }
        let mut state = self.state.lock();
        state.signal(false);
        !std::mem::replace(&mut state.armed, true)
    }

    fn wake(&self, state: &mut State) {
        if !self.arming || std::mem::take(&mut state.armed) {
            state.signal(true);
        }
    }
}

impl State {
    fn signal(&self, on: bool) {
        if let Some(signal) = &self.signal {
            signal.set(on);
        }
    }
}
