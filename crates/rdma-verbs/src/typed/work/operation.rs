//! The future of one operation. One that is done at its first poll gets no slot: its memory stays where it is.

use std::mem::{self, ManuallyDrop};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::in_flight::{InFlight, Stage};
use super::sealed::KEY;
use super::{Lend, Work, output};
use crate::typed::core::Core;
use crate::typed::endpoint::Handle;
use crate::typed::slots::{Queue, SlotId, SlotState};
use crate::typed::{Error, Failed, TrustedDevice};
use crate::{AnyDevice, CompletionStatus};

/// One operation. It becomes its memory when it is done, as a [`Batch`](super::Batch) does.
///
/// # Errors
/// [`Failed`], with the memory, if the device refused it, or if it failed.
#[must_use = "nothing is posted before it is polled"]
pub struct Operation<'c, M: Lend, D: TrustedDevice = AnyDevice> {
    handle: &'c Handle<D>,
    /// It has its memory before it is posted and when it is done. What it has at the end, `drop` takes.
    work: ManuallyDrop<Work<M>>,
    stage: Stage<M, 1>,
}

impl<'c, M: Lend, D: TrustedDevice> Operation<'c, M, D> {
    #[inline]
    pub(in crate::typed) fn new(handle: &'c Handle<D>, work: Work<M>) -> Self {
        Self { handle, work: ManuallyDrop::new(work), stage: Stage::New }
    }

    /// Waits until it is done, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait(self) -> Result<M, Failed<M>> {
        self.handle.shard.block_on(self)
    }

    /// Does what the drop before the end has to do.
    #[cold]
    fn leave(&mut self) {
        self.stage.leave(self.handle);
        drop(self.work.take_memory());
    }

    /// Posts it, if it is not posted. Returns whether it is over, once. Tells why, if it failed.
    ///
    /// The failure is not part of the result, because a large result costs as much as the operation.
    #[inline]
    fn advance(&mut self, context: &mut Context<'_>, failure: &mut Option<Error>) -> bool {
        let Self { handle, work, stage } = self;
        handle.with(|core| match stage {
            Stage::New => work.begin(handle, core, stage, context, failure),
            Stage::Posted(posted) => work.end(posted.poll(handle, core, context, failure)),
            Stage::Over => false,
        })
    }
}

impl<M: Lend, D: TrustedDevice> Future for Operation<'_, M, D> {
    type Output = Result<M, Failed<M>>;

    /// After the outcome it stays pending.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut failure = None;
        if !self.advance(context, &mut failure) {
            return Poll::Pending;
        }
        let memory = self.work.take_memory();
        // It is set here, where the compiler sees that nothing is left for `drop`.
        self.stage = Stage::Over;
        Poll::Ready(output(memory, failure))
    }
}

impl<M: Lend, D: TrustedDevice> Drop for Operation<'_, M, D> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.stage, Stage::Over) {
            self.leave();
        }
    }
}

impl<M: Lend> Work<M> {
    /// Posts it, and polls the completion queue once. If it is the first request to complete, as most sends are
    /// over the embedded device, it gets no slot and keeps its memory. Otherwise a slot has the memory until it
    /// is done. Returns whether it is over. Tells why, if it failed.
    #[inline]
    fn begin<D: TrustedDevice>(
        &mut self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        stage: &mut Stage<M, 1>,
        context: &mut Context<'_>,
        failure: &mut Option<Error>,
    ) -> bool {
        if !self.is_fine(handle)
            && let Err(error) = self.check(handle, core)
        {
            *failure = Some(error);
            return true;
        }
        let mut outcome = self.post(handle, core);
        // Completed requests hold their entries until they are polled.
        if matches!(outcome, Err(crate::Error::QueueFull { .. })) && core.reap() {
            outcome = self.post(handle, core);
        }
        let (id, count) = match outcome {
            Ok(posted) => posted,
            Err(error) => {
                core.slots.skip();
                *failure = Some(handle.refusal(core, error));
                return true;
            }
        };
        if count == 0 || core.first_id() != id {
            return self.fill_slot(handle, core, stage, count, context.waker()).is_some_and(|posted| {
                [self.memory] = posted.take(handle, core, failure);
                true
            });
        }
        let status = core.first_status();
        core.complete_from(1, count);
        if status != CompletionStatus::Success {
            core.poll_events(handle.index);
            *failure = Some(handle.failure(core, status));
        }
        true
    }

    /// Posts it with the id of the slot that is filled next, and polls the completion queue once. Returns the id,
    /// and the number of completions, none of which is handled.
    // 26 instructions fewer for each message.
    #[inline(always)]
    fn post<D: TrustedDevice>(
        &mut self,
        handle: &Handle<D>,
        core: &mut Core<D>,
    ) -> crate::Result<(SlotId, usize)> {
        let lent = Lent { work: self, handle, core };
        let id = lent.core.slots.next_id();
        let request = lent.work.request(id, lent.work.memory.segments(KEY));
        let outcome = lent.core.post_and_poll(handle.qp, &request).map(|count| (id, count));
        mem::forget(lent);
        outcome
    }

    /// Moves the memory of a posted request to the next slot, whose id the request has. Then it handles the
    /// `count` completions of the last poll. Returns the slot if the request is done by then. Otherwise it registers
    /// the task.
    #[cold]
    fn fill_slot<D: TrustedDevice>(
        &mut self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        stage: &mut Stage<M, 1>,
        count: usize,
        waker: &Waker,
    ) -> Option<InFlight<M, 1>> {
        let queue = Queue::Send(handle.index);
        let slots = [core.slots.insert(queue, self.memory.lend(KEY), SlotState::Future)];
        *stage = Stage::Posted(InFlight::of(slots));
        handle.pair(core).outstanding += 1;
        core.complete_from(0, count);
        core.are_done_now(&slots, waker).then(|| InFlight::of(slots))
    }

    /// Takes back the memory, if it is over. Returns whether it is.
    fn end(&mut self, memory: Poll<[M; 1]>) -> bool {
        let is_over = memory.is_ready();
        if let Poll::Ready([memory]) = memory {
            self.memory = memory;
        }
        is_over
    }
}

/// An operation that the device may have, and whose memory is not in a slot. If the device panics, the slot
/// that has its id gets the memory, as if its future was dropped.
struct Lent<'l, D: TrustedDevice, M: Lend> {
    work: &'l mut Work<M>,
    handle: &'l Handle<D>,
    core: &'l mut Core<D>,
}

impl<D: TrustedDevice, M: Lend> Drop for Lent<'_, D, M> {
    #[cold]
    fn drop(&mut self) {
        let Self { work, handle, core } = self;
        core.slots.insert(Queue::Send(handle.index), work.memory.lend(KEY), SlotState::Abandoned);
        handle.pair(core).outstanding += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::typed::Shard;
    use crate::{QpCapabilities, iwarp};

    #[test]
    fn memory_that_a_panicking_device_may_use_goes_to_a_slot() {
        let wanted = QpCapabilities {
            send_depth: 1,
            recv_depth: 1,
            inline: 0,
            initiator_depth: 1,
            responder_resources: 1,
        };
        let shard = Shard::new(iwarp::Device::default()).unwrap();
        let pool = shard.pool(1, 64).unwrap();
        let (index, qp) = shard.inner.with(|core| core.create(wanted, None)).unwrap();
        let handle = Handle { shard, index, qp };
        let mut work = Work::send(pool.take().unwrap());
        let mut call = |core: &mut Core<_>| {
            let _lent = Lent { work: &mut work, handle: &handle, core };
            panic!("as a device might");
        };
        let outcome = handle.with(|core| catch_unwind(AssertUnwindSafe(|| call(core))));
        assert!(outcome.is_err());
        drop(work);
        assert_eq!(pool.available(), 0, "the device may still use it");
        drop(handle);
        assert_eq!(pool.available(), 1, "the queue pair is destroyed");
    }
}
