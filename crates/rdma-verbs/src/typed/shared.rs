//! Receives that connections share.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::core::Core;
use super::queue_pair::QueuePair;
use super::registration::Span;
use super::slots::{Queue, SlotId, SlotState};
use super::waiters::Waiters;
use super::{Endpoint, Pool, Result, Shard, TrustedDevice};
use crate::{
    AnyDevice, Buffer, Completion, CompletionStatus, MessageQueues, QpCapabilities, RecvRequest, Segment,
    SrqId,
};

/// What a shard knows of one shared queue.
#[derive(Debug)]
pub(super) struct SharedQueue {
    pub(super) srq: SrqId,
    pub(super) depth: u32,
    /// Number of receives that are posted.
    posted: usize,
    /// Number of queue pairs that use it.
    pub(super) users: usize,
    /// The slots of receives to post again, which the device did not take.
    unposted: Vec<SlotId>,
    /// Futures that wait until few receives are posted.
    waiters: Waiters,
    is_dropped: bool,
}

/// A queue of receives that connections share: a message of any of them takes the oldest receive. So a
/// server needs buffers for the messages that come, not for all that its clients could send.
///
/// Over iWARP, a message that finds no receive breaks its connection; on InfiniBand it waits. Receives are
/// posted again when their messages are dropped. [`SharedReceives::fewer_than`] tells when that is not often
/// enough.
#[derive(Debug)]
#[must_use = "it ends with its last connection"]
pub struct SharedReceives<D: TrustedDevice = AnyDevice> {
    shard: Shard<D>,
    index: usize,
}

impl<D: TrustedDevice> SharedReceives<D> {
    pub(super) fn new(shard: &Shard<D>, depth: u32) -> Result<Self> {
        let index = shard.inner.with(|core| core.create_shared(depth))?;
        Ok(Self { shard: shard.clone(), index })
    }

    /// A queue pair without a connection, whose messages take these receives. It has none of its own.
    ///
    /// # Errors
    /// The device's, for more than it has.
    pub fn endpoint(&self, wanted: QpCapabilities) -> Result<Endpoint<D>> {
        Endpoint::new(&self.shard, wanted, Some(self.index))
    }

    /// Posts buffers of the pool as receives.
    ///
    /// # Errors
    /// As [`Endpoint::post_receives`].
    pub fn post(&self, pool: &Pool, count: u32) -> Result<()> {
        self.shard.owns(pool.registration())?;
        for _ in 0..count {
            let span = pool.take()?.into_span();
            self.shard.inner.with(|core| core.post_shared(self.index, span))?;
        }
        Ok(())
    }

    /// Number of receives that wait for messages.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.shard.inner.with(|core| core.shared.get(self.index).map_or(0, |shared| shared.posted))
    }

    /// Waits until fewer than `limit` receives wait for messages.
    pub fn fewer_than(&self, limit: usize) -> Fewer<'_, D> {
        Fewer { receives: self, limit, ticket: None }
    }
}

impl<D: TrustedDevice> Drop for SharedReceives<D> {
    fn drop(&mut self) {
        self.shard.inner.with(|core| {
            if let Some(shared) = core.shared.get_mut(self.index) {
                shared.is_dropped = true;
                core.release_shared(self.index);
            }
        });
    }
}

/// See [`SharedReceives::fewer_than`].
#[must_use = "it does nothing before it is polled"]
pub struct Fewer<'r, D: TrustedDevice = AnyDevice> {
    receives: &'r SharedReceives<D>,
    limit: usize,
    ticket: Option<u64>,
}

impl<D: TrustedDevice> Fewer<'_, D> {
    /// Waits for it, and drives the shard meanwhile.
    pub fn wait(self) {
        self.receives.shard.block_on(self);
    }
}

impl<D: TrustedDevice> Future for Fewer<'_, D> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { receives, limit, ticket } = &mut *self;
        receives.shard.inner.with(|core| match core.shared.get_mut(receives.index) {
            Some(shared) if shared.posted >= *limit => {
                shared.waiters.register(ticket, context.waker(), &mut core.woken);
                Poll::Pending
            }
            _ => Poll::Ready(()),
        })
    }
}

impl<D: TrustedDevice> Drop for Fewer<'_, D> {
    fn drop(&mut self) {
        self.receives.shard.inner.with(|core| {
            if let Some(shared) = core.shared.get_mut(self.receives.index) {
                shared.waiters.remove(self.ticket, &mut core.woken);
            }
        });
    }
}

impl SharedQueue {
    /// Posts the receive of a slot that has this segment.
    fn post(&mut self, cq: &mut impl MessageQueues, id: SlotId, segment: Segment) -> crate::Result<()> {
        let request = RecvRequest { id: id.0, buffer: Buffer::Segment(segment) };
        cq.post_srq_recv(self.srq, &[request])?;
        self.posted += 1;
        Ok(())
    }
}

impl<D: TrustedDevice> Core<D> {
    fn create_shared(&mut self, depth: u32) -> crate::Result<usize> {
        let srq = self.cq.create_srq(&self.pd, depth)?;
        let (unposted, waiters) = (Vec::new(), Waiters::default());
        let queue = SharedQueue { srq, depth, posted: 0, users: 0, unposted, waiters, is_dropped: false };
        let index = self.shared.insert(queue);
        self.slots.reserve(self.depths());
        Ok(index)
    }

    /// Posts a buffer as a receive of a shared queue. A buffer that the device did not take goes back to its
    /// pool.
    fn post_shared(&mut self, index: usize, span: Span) -> crate::Result<()> {
        let Some(shared) = self.shared.get_mut(index) else { return Ok(()) };
        let segment = span.segment;
        let id = self.slots.insert(Queue::Shared(index), span.into(), SlotState::Inbox);
        let posted = shared.post(&mut self.cq, id, segment);
        if posted.is_err() {
            self.slots.take(id);
        }
        posted
    }

    /// Posts the receive of a slot of this shared queue again, now or when the queue has room.
    #[inline(never)]
    pub(super) fn repost_shared(&mut self, id: SlotId, queue: Queue, segment: Segment) {
        let Queue::Shared(index) = queue else { return };
        let Some(shared) = self.shared.get_mut(index) else { return };
        match shared.post(&mut self.cq, id, segment) {
            Ok(()) => {}
            Err(crate::Error::QueueFull { .. }) => {
                shared.unposted.push(id);
                self.has_unposted = true;
            }
            Err(_) => drop(self.slots.take(id)),
        }
    }

    /// Posts what the device has refused.
    pub(super) fn post_shared_again(&mut self) {
        for index in 0..self.shared.capacity() {
            for _ in 0..self.shared.get(index).map_or(0, |shared| shared.unposted.len()) {
                let id = self.shared.get_mut(index).and_then(|shared| shared.unposted.pop());
                id.into_iter().for_each(|id| self.repost_slot(id));
            }
        }
    }

    /// Handles the completion of a shared receive: its message is one of the completion's queue pair.
    pub(super) fn complete_shared(&mut self, index: usize, completion: Completion) {
        let id = SlotId(completion.id);
        if let Some(shared) = self.shared.get_mut(index) {
            shared.posted -= 1;
            shared.waiters.wake(&mut self.woken);
        }
        let pair = self.sharing.get(&completion.qp).copied();
        match pair.and_then(|pair| self.pairs.get_mut(pair)) {
            Some(pair) if completion.status == CompletionStatus::Success => {
                if let Some(slot) = self.slots.get_mut(id) {
                    slot.completion = completion;
                    pair.inbox.push_back(id);
                }
                pair.receivers.wake(&mut self.woken);
            }
            _ => {
                self.repost_slot(id);
                // The connection has the reason.
                pair.into_iter().for_each(|pair| self.poll_events(pair));
            }
        }
    }

    /// Takes all completions that are there now: a device may forget those of a queue pair that is destroyed,
    /// and with them the receives.
    pub(super) fn take_completions(&mut self) {
        let until = self.completed + self.depths() as u64;
        while self.reap() && self.completed < until {}
    }

    /// A queue pair is destroyed. What it has not taken is posted again.
    pub(super) fn leave_shared(&mut self, index: usize, pair: &mut QueuePair) {
        self.sharing.remove(&pair.qp);
        self.draining -= usize::from(pair.draining.is_some());
        for id in pair.inbox.drain(..) {
            self.repost_slot(id);
        }
        if let Some(shared) = self.shared.get_mut(index) {
            shared.users -= 1;
        }
        self.release_shared(index);
    }

    /// Destroys a shared queue, if its owner and its queue pairs are gone. A device may hold a queue pair for
    /// a while.
    pub(super) fn release_shared(&mut self, index: usize) {
        let is_unused = |shared: &&SharedQueue| shared.is_dropped && shared.users == 0;
        let Some(shared) = self.shared.get(index).filter(is_unused) else { return };
        if self.cq.destroy_srq(shared.srq).is_ok() {
            self.slots.end(|queue| queue == Queue::Shared(index), &mut self.woken);
            self.shared.remove(index);
        }
    }

    /// Notes that the connection of a queue pair with shared receives has ended. None of them is flushed, so
    /// its last message is taken when all completions are that are there now.
    pub(super) fn begin_draining(&mut self, index: usize) {
        let until = self.completed + self.depths() as u64;
        if let Some(pair) = self.pairs.get_mut(index) {
            pair.draining = Some(until);
            self.draining += 1;
            self.kick.set(true);
        }
    }

    /// Lets queue pairs report their end, if their messages are taken: after a turn that found nothing, or
    /// after all completions that there can have been.
    pub(super) fn finish_draining(&mut self, is_idle: bool) {
        for (_, pair) in &mut self.pairs {
            if pair.draining.is_some_and(|until| is_idle || self.completed >= until) {
                pair.draining = None;
                self.draining -= 1;
                pair.receivers.wake(&mut self.woken);
                pair.watchers.wake(&mut self.woken);
            }
        }
    }
}
