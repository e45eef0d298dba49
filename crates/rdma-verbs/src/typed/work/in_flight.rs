//! Posted operations, whose memory slots have.

use std::marker::PhantomData;
use std::task::{Context, Poll};

use super::sealed::KEY;
use super::{Lend, Work};
use crate::CompletionStatus;
use crate::typed::core::Core;
use crate::typed::endpoint::Handle;
use crate::typed::slots::{Queue, SlotId, SlotState};
use crate::typed::{Error, TrustedDevice};

/// How far operations have got.
pub(super) enum Stage<M, const N: usize> {
    New,
    /// Slots have the memory.
    Posted(InFlight<M, N>),
    Over,
}

/// The slots of posted operations. Their connection is not part of it.
pub(in crate::typed) struct InFlight<M, const N: usize> {
    slots: [SlotId; N],
    /// What their spans were made of.
    memory: PhantomData<fn() -> M>,
}

impl<M: Lend, const N: usize> InFlight<M, N> {
    pub(super) fn of(slots: [SlotId; N]) -> Self {
        Self { slots, memory: PhantomData }
    }

    /// Posts operations, all or none. If none, they keep their memory. If the device takes a part of them, and breaks
    /// the connection, the others are done: they were flushed.
    pub(in crate::typed) fn post<D: TrustedDevice>(
        handle: &Handle<D>,
        core: &mut Core<D>,
        works: &mut [Work<M>; N],
    ) -> Result<Self, Error> {
        works.iter().try_for_each(|work| work.check(handle, core))?;
        let slots = works.each_mut().map(|work| {
            core.slots.insert(Queue::Send(handle.index), work.memory.lend(KEY), SlotState::Future)
        });
        let post = |core: &mut Core<D>| {
            let requests: [_; N] =
                std::array::from_fn(|at| works[at].request(slots[at], core.slots.segments(slots[at])));
            D::post_batch(&mut core.cq, handle.qp, &requests)
        };
        let (mut taken, mut outcome) = post(core);
        // Completed requests hold their entries until they are polled.
        if matches!(outcome, Err(crate::Error::QueueFull { .. })) && core.reap() {
            (taken, outcome) = post(core);
        }
        if let Err(error) = outcome {
            if taken > 0 {
                core.flush(&slots[taken..]);
                handle.pair(core).outstanding += taken;
                core.poll_events(handle.index);
                return Ok(Self::of(slots));
            }
            for (work, slot) in works.iter_mut().zip(slots) {
                work.memory = M::restore(core.slots.take(slot).0, KEY);
            }
            return Err(handle.refusal(core, error));
        }
        handle.pair(core).outstanding += N;
        Ok(Self::of(slots))
    }

    /// The memory, once, when all are done. If they are not, this polls the completion queue once before it registers
    /// the task. Tells why one has failed, if so.
    pub(in crate::typed) fn poll<D: TrustedDevice>(
        &self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        context: &mut Context<'_>,
        failure: &mut Option<Error>,
    ) -> Poll<[M; N]> {
        match core.are_done(&self.slots, context.waker()) {
            true => Poll::Ready(self.take(handle, core, failure)),
            false => Poll::Pending,
        }
    }

    /// Frees the slots of operations that are done. Returns the memory. Tells why one has failed, if so.
    pub(super) fn take<D: TrustedDevice>(
        &self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        failure: &mut Option<Error>,
    ) -> [M; N] {
        self.slots.map(|slot| {
            let (spans, status) = core.slots.take(slot);
            if status != CompletionStatus::Success {
                failure.get_or_insert_with(|| handle.failure(core, status));
            }
            M::restore(spans, KEY)
        })
    }

    /// Leaves them alone: their memory goes back to its pool when they are done.
    pub(in crate::typed) fn detach<D: TrustedDevice>(&self, core: &mut Core<D>) {
        self.slots.iter().for_each(|&slot| core.slots.abandon(slot, &mut core.woken));
    }

    /// Does so where the shard is not locked.
    #[cold]
    fn leave<D: TrustedDevice>(&self, handle: &Handle<D>) {
        handle.with(|core| self.detach(core));
    }
}

impl<M: Lend, const N: usize> Stage<M, N> {
    /// Does what the drop of a future has to do.
    #[inline]
    pub(super) fn leave<D: TrustedDevice>(&self, handle: &Handle<D>) {
        if let Self::Posted(posted) = self {
            posted.leave(handle);
        }
    }
}
