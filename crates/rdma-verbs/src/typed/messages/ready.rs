//! Which connections and listeners of a hub have something to do. Each is polled with a waker of its own, so
//! that the hub does not poll them all.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use parking_lot::Mutex;

use super::Peer;

/// What a hub polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Listener(usize),
    Peer(Peer),
}

/// The sources to poll, in the order in which they were woken.
#[derive(Debug, Default)]
pub(super) struct Ready(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    due: VecDeque<Arc<SourceWaker>>,
    /// The waker of the task that waits for the hub.
    waker: Option<Waker>,
}

impl Ready {
    /// A source, which is polled first of all.
    pub(super) fn add(self: &Arc<Self>, source: Source) -> Arc<SourceWaker> {
        let waker =
            Arc::new(SourceWaker { source, is_due: AtomicBool::new(false), ready: Arc::downgrade(self) });
        waker.wake_by_ref();
        waker
    }

    /// Number of sources to poll.
    pub(super) fn len(&self) -> usize {
        self.0.lock().due.len()
    }

    /// The next source to poll, and the waker to poll it with.
    pub(super) fn next(&self) -> Option<(Source, Waker)> {
        let next = self.0.lock().due.pop_front()?;
        next.is_due.store(false, Ordering::Release);
        Some((next.source, next.into()))
    }

    /// Has the task woken when there is a source to poll.
    pub(super) fn register(&self, task: &Waker) {
        let mut state = self.0.lock();
        let is_due = !state.due.is_empty();
        let is_known = state.waker.as_ref().is_some_and(|known| known.will_wake(task));
        let replaced = if is_due || is_known { None } else { state.waker.replace(task.clone()) };
        // A waker may run anything when it is woken or dropped.
        drop(state);
        drop(replaced);
        if is_due {
            task.wake_by_ref();
        }
    }
}

/// The waker of one source.
#[derive(Debug)]
pub(super) struct SourceWaker {
    source: Source,
    /// Whether it is among those that are due.
    is_due: AtomicBool,
    /// It may be among those that are due there.
    ready: Weak<Ready>,
}

impl Wake for SourceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(ready) = self.ready.upgrade() else { return };
        let mut state = ready.0.lock();
        state.due.push_back(Arc::clone(self));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
