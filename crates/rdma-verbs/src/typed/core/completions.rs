//! What completes: it goes to the future or the inbox that waits for it.

use std::task::Waker;

use super::Core;
use crate::typed::TrustedDevice;
use crate::typed::slots::{NO_SLOT, Queue, SlotId, SlotState};
use crate::{Completion, CompletionQueue, CompletionStatus, QpId, Result, SendRequest};

impl<D: TrustedDevice> Core<D> {
    /// Polls the completion queue once. Returns whether there were completions.
    pub(in crate::typed) fn reap(&mut self) -> bool {
        let count = self.poll();
        self.complete_from(0, count);
        count > 0
    }

    /// Polls the completion queue once, for who waits for the next message of this queue pair. The inbox is
    /// empty. A message that is the first completion does not go through it.
    #[inline]
    pub(in crate::typed) fn reap_message(&mut self, index: usize) -> Option<SlotId> {
        let count = self.poll();
        if count > 0 && self.complete_message(index) {
            self.complete_from(1, count);
            return Some(self.first_id());
        }
        self.complete_from(0, count);
        self.pairs[index].inbox.pop_front()
    }

    /// Handles the first completion of the last poll, if it is a message of this queue pair.
    #[inline]
    fn complete_message(&mut self, index: usize) -> bool {
        if !self.slots.finish_message(Queue::Recv(index), &self.batch[0]) {
            return false;
        }
        let pair = &mut self.pairs[index];
        pair.outstanding -= 1;
        pair.receives -= 1;
        pair.receivers.wake(&mut self.woken);
        if pair.is_closed_and_idle() {
            self.poll_events(index);
        }
        true
    }

    /// Notes that the future with this ticket waits for no message of this queue pair any more.
    #[cold]
    pub(in crate::typed) fn stop_waiting(&mut self, index: usize, ticket: &mut Option<u64>) {
        self.pairs[index].receivers.remove(ticket.take(), &mut self.woken);
    }

    /// Polls the completion queue once, without handling what has completed.
    #[inline]
    pub(in crate::typed) fn poll(&mut self) -> usize {
        let count = self.cq.poll(&mut self.batch);
        self.completed += count as u64;
        count
    }

    /// Posts a request, and polls the completion queue once, without handling what has completed. Returns the
    /// number of completions.
    #[inline]
    pub(in crate::typed) fn post_and_poll(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<usize> {
        let count = D::post_and_poll(&mut self.cq, qp, request, &mut self.batch)?;
        self.completed += count as u64;
        Ok(count)
    }

    /// The id of the first completion of the last poll.
    #[inline]
    pub(in crate::typed) fn first_id(&self) -> SlotId {
        SlotId(self.batch[0].id)
    }

    /// The status of the first completion of the last poll.
    #[inline]
    pub(in crate::typed) fn first_status(&self) -> CompletionStatus {
        self.batch[0].status
    }

    /// Handles those of the `count` completions of the last poll that are not handled: from this one on.
    #[inline]
    pub(in crate::typed) fn complete_from(&mut self, first: usize, count: usize) {
        if first < count {
            self.complete_all(first, count);
        }
        if self.has_unposted {
            self.post_again();
        }
    }

    #[inline(never)]
    fn complete_all(&mut self, first: usize, count: usize) {
        (first..count).for_each(|at| self.complete(at));
    }

    /// Handles a completion of the last poll.
    #[inline]
    fn complete(&mut self, at: usize) {
        let completion = &self.batch[at];
        let id = SlotId(completion.id);
        let Some(slot) = self.slots.get_mut(id).filter(|slot| slot.is_outstanding()) else {
            return without_slot(completion);
        };
        let failed = completion.status != CompletionStatus::Success;
        let (index, is_receive) = match slot.queue {
            Queue::Send(index) => (index, false),
            Queue::Recv(index) => (index, true),
            Queue::Shared(index) => return self.complete_shared(index, *completion),
        };
        let Some(pair) = self.pairs.get_mut(index) else { return };
        pair.outstanding -= 1;
        if is_receive {
            pair.receives -= 1;
            pair.receivers.wake(&mut self.woken);
        }
        // The connection has the reason of a failure. If this side closes, its last request may be done.
        let is_event_due = failed || pair.is_closed_and_idle();
        match slot.state {
            SlotState::Future => slot.finish(completion, &mut self.woken),
            SlotState::Inbox if !failed => {
                slot.completion = *completion;
                pair.inbox.push_back(id);
            }
            _ => drop(self.slots.take(id)),
        }
        if is_event_due {
            self.poll_events(index);
        }
    }

    /// Ends requests of a future that the device has not taken.
    #[cold]
    pub(in crate::typed) fn flush(&mut self, requests: &[SlotId]) {
        for &id in requests {
            // Its status is that it was flushed.
            self.slots
                .get_mut(id)
                .into_iter()
                .for_each(|slot| slot.finish(&Completion::EMPTY, &mut self.woken));
        }
    }

    /// Whether all these requests of a future are done. If not, it polls the completion queue once before it
    /// registers the task.
    pub(in crate::typed) fn are_done(&mut self, requests: &[SlotId], waker: &Waker) -> bool {
        self.slots.are_done(requests) || {
            self.reap();
            self.are_done_now(requests, waker)
        }
    }

    /// Whether all these requests of a future are done. If not, it registers the task.
    pub(in crate::typed) fn are_done_now(&mut self, requests: &[SlotId], waker: &Waker) -> bool {
        let incomplete = requests.iter().copied().find(|&id| !self.slots.is_done(id));
        incomplete.into_iter().for_each(|id| self.slots.register(id, waker, &mut self.woken));
        incomplete.is_none()
    }
}

/// Handles the completion of a request that has no slot.
#[cold]
fn without_slot(completion: &Completion) {
    if completion.id != NO_SLOT {
        log::debug!("completion of an unknown request: {completion:?}");
    }
}
