//! What makes the wait objects of completion queues and counters readable, and the sets of threads that sleep within
//! calls: the sockets of a queue's own endpoints where the device tells them apart, or else the device as a whole.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use super::super::completion_queue::Queue;
use super::{Engine, State};
use crate::abi::Result;
use crate::provider::error::errno_of;
use rdma_verbs::{CompletionQueue as _, Device, Interest, QpId, WaitSet};

impl<D: Device> Engine<D> {
    /// A set that is readable when the device has something to do, for whatever endpoint. Its user adds a signal of
    /// its own.
    pub(in super::super) fn nested_set(&self) -> Result<Arc<WaitSet>> {
        let wait = Arc::new(WaitSet::new().map_err(errno_of)?);
        self.nest(&mut self.state.lock(), &wait)?;
        Ok(wait)
    }

    /// Makes `wait` readable as well when the device has something to do. If it fails, `wait` is what it was.
    fn nest(&self, state: &mut State<D>, wait: &WaitSet) -> Result<()> {
        self.attach(state)?;
        wait.add(self.wait.as_fd(), wait.token(), Interest::Read).map_err(errno_of)
    }

    /// Makes the engine's set show when the device has something to do.
    fn attach(&self, state: &mut State<D>) -> Result<()> {
        if !state.attached {
            state.cq.attach(Arc::clone(&self.wait)).map_err(errno_of)?;
            (state.attached, state.notifies) = (true, true);
            state.drain();
            state.notify();
        }
        Ok(())
    }

    /// Makes the wait objects of the completion queues with these indexes readable when there is something to do for
    /// this queue pair; on a device with one descriptor for all, for any. If none of them has one, whoever sleeps on
    /// another queue drives it. If it fails, some wait objects may become readable more often than they need to.
    pub(in super::super) fn watch(&self, state: &mut State<D>, qp: QpId, queues: [usize; 2]) -> Result<()> {
        let mut has_wait_object = false;
        for at in queues {
            let Some(wait) = state.queues[at].wait_set().cloned() else { continue };
            has_wait_object = true;
            if !state.cq.watch(qp, &wait).map_err(errno_of)? {
                self.nest_queue(state, at)?;
            }
        }
        if !has_wait_object && !state.has_unwatched {
            let queues: Vec<_> = state.queues.iter().map(|(at, _)| at).collect();
            queues.into_iter().try_for_each(|at| self.nest_queue(state, at))?;
            state.has_unwatched = true;
        }
        Ok(())
    }

    /// Makes the wait object of a completion queue, if it has one, readable when there is something to do for any queue
    /// pair.
    fn nest_queue(&self, state: &mut State<D>, at: usize) -> Result<()> {
        let Some(wait) = state.queues[at].wait_set().cloned() else { return Ok(()) };
        if !state.queues[at].is_nested {
            self.nest(state, &wait)?;
            state.queues[at].is_nested = true;
        }
        Ok(())
    }

    /// [`WaitSet::settle`] for a wait object, with the engine's set that it may hold.
    pub(in super::super) fn settle(&self, wait: &WaitSet) -> bool {
        self.wait.settle() | wait.settle()
    }

    /// A set for threads that sleep within calls, and its index among the sleepers.
    pub(in super::super) fn sleeper_set(&self, state: &mut State<D>) -> Result<(Arc<WaitSet>, usize)> {
        self.attach(state)?;
        let set = Arc::new(WaitSet::new().map_err(errno_of)?);
        let at = state.sleepers.add(Arc::clone(&set)).map_err(errno_of)?;
        Ok((set, at))
    }

    /// Adds a completion queue. Returns its index.
    pub(in super::super) fn add_queue(&self, queue: Queue) -> Result<usize> {
        let mut state = self.state.lock();
        state.notifies |= queue.wait_set().is_some();
        let at = state.queues.insert(queue);
        if state.has_unwatched {
            self.nest_queue(&mut state, at).inspect_err(|_| drop(state.queues.remove(at)))?;
        }
        Ok(at)
    }
}

impl<D: Device> State<D> {
    /// Removes a completion queue that no endpoint uses. Another one's wait object shows from now on what there is to
    /// do for closed endpoints that had this one.
    pub(in super::super) fn remove_queue(&mut self, at: usize) {
        let Some(queue) = self.queues.remove(at) else { return };
        if let Some(readers) = &queue.reader_set {
            self.sleepers.remove(readers.at);
        }
        let Some(wait) = queue.wait_set() else { return };
        let other = self.queues.iter().find_map(|(_, queue)| queue.wait_set());
        for one in &self.lingering {
            if self.cq.unwatch(one.qp, wait)
                && let Some(Err(error)) = other.map(|other| self.cq.watch(one.qp, other))
            {
                log::warn!(target: "cq", "output of a closed endpoint is not watched: {error}");
            }
        }
    }
}
