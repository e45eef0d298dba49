//! Wake-ups of a completion queue, and the list of its queue pairs that have something to do.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use rdma_verbs::{QpId, Signal, WaitSet};

/// Rung by peers and by the queue itself; the completion queue answers it in `poll`.
#[derive(Debug)]
pub(super) struct Bell {
    /// See [`super::Config::arming`].
    arming: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Queue pairs to drive.
    rung: BTreeSet<QpId>,
    /// Completions are there to be polled.
    ready: bool,
    armed: bool,
    signal: Option<Signal>,
}

impl Bell {
    pub(super) fn new(arming: bool) -> Self {
        Self { arming, state: Mutex::default() }
    }

    /// This queue pair has something to do.
    pub(super) fn ring(&self, qp: QpId) {
        let mut state = self.state.lock();
        state.rung.insert(qp);
        self.wake(&mut state);
    }

    /// Answers for all queue pairs: returns those to drive. A ring that comes while they are driven
    /// counts anew.
    pub(super) fn answer_all(&self) -> BTreeSet<QpId> {
        std::mem::take(&mut self.state.lock().rung)
    }

    /// Answers for one queue pair, which the caller is about to drive.
    pub(super) fn answer(&self, qp: QpId) {
        self.state.lock().rung.remove(&qp);
    }

    /// After every call that may have made or handed out completions: whether some are there.
    pub(super) fn settle(&self, ready: bool) {
        let mut state = self.state.lock();
        let news = ready && !state.ready;
        state.ready = ready;
        if news {
            self.wake(&mut state);
        } else if !self.arming {
            let wanted = ready || !state.rung.is_empty();
            state.signal(wanted);
        }
    }

    /// Makes `wait` follow from now on, starting with what is there; the next wake-up is asked for.
    pub(super) fn attach(&self, wait: &Arc<WaitSet>) {
        let mut state = self.state.lock();
        state.signal = Some(wait.signal(wait.token()));
        state.signal(state.ready || !state.rung.is_empty());
        state.armed = true;
    }

    /// Asks for the next wake-up, where it must be asked for; answers whether it had to be.
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
