//! Notifications of a completion queue, and the set of its queue pairs that have something to do.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use rdma_verbs::{QpId, Signal, WaitSet};

/// Peers and the queue itself notify it. The completion queue drives the notified queue pairs in `poll`.
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
    /// Completions wait to be polled.
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

    /// Takes out all queue pairs that have something to do. A notification that arrives while they are driven
    /// counts again.
    pub(super) fn take_all(&self) -> BTreeSet<QpId> {
        std::mem::take(&mut self.state.lock().notified)
    }

    /// Takes out one queue pair, which the caller is about to drive.
    pub(super) fn take(&self, qp: QpId) {
        self.state.lock().notified.remove(&qp);
    }

    /// Called after every call that may have added or removed completions, with whether some are left.
    pub(super) fn update(&self, ready: bool) {
        let mut state = self.state.lock();
        let news = ready && !state.ready;
        state.ready = ready;
        if news {
            self.wake(&mut state);
        } else if !self.arming {
            let wanted = ready || !state.notified.is_empty();
            state.signal(wanted);
        }
    }

    /// Signals `wait` from now on, also for completions that are there already, and arms it.
    pub(super) fn attach(&self, wait: &Arc<WaitSet>) {
        let mut state = self.state.lock();
        state.signal = Some(wait.signal(wait.token()));
        state.signal(state.ready || !state.notified.is_empty());
        state.armed = true;
    }

    /// Arms the next wake-up if the device needs that. Returns whether it does.
    pub(super) fn arm(&self) -> bool {
        if self.arming {
            let mut state = self.state.lock();
            state.signal(false);
            state.armed = true;
        }
        self.arming
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
