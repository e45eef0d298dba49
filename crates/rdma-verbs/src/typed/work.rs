//! Operations: what they do, the memory that moves into them and comes back, and the futures of their ends.

use std::marker::PhantomData;
use std::mem::{self, ManuallyDrop};
use std::pin::Pin;
use std::task::{Context, Poll};

use self::sealed::KEY;
use super::core::Core;
use super::endpoint::Handle;
use super::slots::{Queue, SlotId, SlotState};
use super::{Error, Failed, Remote, TrustedDevice};
use crate::memory::OutOfBounds;
use crate::{
    Access, AnyDevice, CompletionStatus, Operation as Verb, Payload, QueuePairs as _, Segment, SendRequest,
};

/// Memory that an operation can use: a [`Buf`](super::Buf), a [`Piece`](super::Piece) of a region, or several
/// [`Pieces`](super::Pieces).
pub trait Lend: sealed::Lend {}

pub(super) mod sealed {
    use crate::Segment;
    use crate::typed::registration::{Registration, Spans};

    /// Memory as spans. A user who is generic over [`Lend`](super::Lend) could call this, but has no [`Key`].
    pub trait Lend: Sized + Unpin {
        /// Its segments. Only the first one may be empty, if it is the only one.
        fn segments(&self, key: Key) -> &[Segment];
        /// Calls `each` with the registrations of all its spans, until it fails.
        fn try_for_each<E>(&self, each: impl Fn(&Registration) -> Result<(), E>, key: Key) -> Result<(), E>;
        /// Takes its spans. It has none then.
        fn lend(&mut self, key: Key) -> Spans;
        fn restore(spans: Spans, key: Key) -> Self;
    }

    /// Only the typed layer makes one.
    #[derive(Clone, Copy)]
    pub struct Key(pub(in crate::typed) ());

    /// The only one.
    pub(in crate::typed) const KEY: Key = Key(());
}

/// An operation to post.
#[derive(Debug)]
#[must_use = "it is done when it is posted"]
pub struct Work<M> {
    /// Without spans while a slot has them.
    memory: M,
    verb: Verb,
    /// Length of the peer's memory, if the operation names some.
    room: Option<u32>,
    is_fenced: bool,
}

impl<M: Lend> Work<M> {
    fn new(memory: M, verb: Verb, room: Option<u32>) -> Self {
        Self { memory, verb, room, is_fenced: false }
    }

    /// Sends the memory as a message: it arrives in the peer's oldest receive.
    pub fn send(memory: M) -> Self {
        Self::new(memory, Verb::Send { immediate: None, invalidate: None, solicited: false }, None)
    }

    /// Like [`Work::send`], and invalidates a key of the peer.
    pub fn send_invalidate(memory: M, key: u32) -> Self {
        Self::new(memory, Verb::Send { immediate: None, invalidate: Some(key), solicited: false }, None)
    }

    /// Writes the memory to the beginning of the peer's.
    pub fn write(memory: M, remote: Remote) -> Self {
        let verb = Verb::Write { remote: remote.start(), immediate: None };
        Self::new(memory, verb, Some(remote.length))
    }

    /// Like [`Work::write`], and tells the peer, in its oldest receive, with this number.
    pub fn write_immediate(memory: M, remote: Remote, immediate: u64) -> Self {
        let verb = Verb::Write { remote: remote.start(), immediate: Some(immediate) };
        Self::new(memory, verb, Some(remote.length))
    }

    /// Reads the beginning of the peer's memory into this memory, as much as there is room for here.
    pub fn read(memory: M, remote: Remote) -> Self {
        Self::new(memory, Verb::Read { remote: remote.start() }, Some(remote.length))
    }

    /// Has a send or write begin when all reads posted before it are done, so that it can have what they
    /// fetch, as in a [`Batch`] with them. It has no number
    /// ([`Work::write_immediate`]).
    pub fn fenced(self) -> Self {
        Self { is_fenced: true, ..self }
    }

    /// The memory of an operation that is not posted.
    pub(super) fn into_memory(self) -> M {
        self.memory
    }

    /// Takes the memory. What stays has no spans.
    #[inline]
    fn take_memory(&mut self) -> M {
        M::restore(self.memory.lend(KEY), KEY)
    }

    /// Whether [`Work::check`] has nothing to find: it needs nothing but memory of this shard, and has that.
    #[inline]
    fn is_fine<D: TrustedDevice>(&self, handle: &Handle<D>) -> bool {
        self.room.is_none() && handle.owns(&self.memory)
    }

    /// Checks what a device may report only by breaking the connection.
    #[inline(never)]
    fn check<D: TrustedDevice>(&self, handle: &Handle<D>, core: &Core<D>) -> Result<(), Error> {
        let length: u64 = self.memory.segments(KEY).iter().map(|segment| u64::from(segment.length)).sum();
        if let Some(room) = self.room.filter(|&room| length > room.into()) {
            let (length, size) = (usize::try_from(length).unwrap_or(usize::MAX), room as usize);
            return Err(OutOfBounds { offset: 0, length, size }.into());
        }
        let needed = match self.verb {
            Verb::Read { .. } if core.attributes.private_read_sinks => Access::LOCAL_WRITE,
            Verb::Read { .. } => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            Verb::Send { .. } | Verb::Write { .. } => Access::empty(),
        };
        handle.check(&self.memory, needed)
    }

    /// The segments of an operation without bytes. Some adapters take a length of 0 for 2 GiB, and a read needs
    /// a segment.
    #[cold]
    fn without_bytes<'s>(&self, segment: &'s [Segment]) -> &'s [Segment] {
        if matches!(self.verb, Verb::Read { .. }) { segment } else { &[] }
    }

    /// The request with this id and these segments.
    #[inline]
    fn request<'s>(&self, id: SlotId, segments: &'s [Segment]) -> SendRequest<'s> {
        let segments = match segments {
            [Segment { length: 0, .. }] => self.without_bytes(segments),
            segments => segments,
        };
        let payload = if self.is_fenced { Payload::Fenced(segments) } else { Payload::Segments(segments) };
        SendRequest { id: id.0, signaled: true, operation: self.verb, payload }
    }

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
            return self.fill_slot(handle, core, count, stage, context, failure);
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
        let outcome = lent.core.cq.post_send(handle.qp, &[request], false);
        let outcome = outcome.map(|()| (id, lent.core.poll()));
        mem::forget(lent);
        outcome
    }

    /// Moves the memory of a posted request to the next slot, whose id the request has. Then it handles the
    /// `count` completions of the last poll.
    #[cold]
    fn fill_slot<D: TrustedDevice>(
        &mut self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        count: usize,
        stage: &mut Stage<M, 1>,
        context: &mut Context<'_>,
        failure: &mut Option<Error>,
    ) -> bool {
        let queue = Queue::Send(handle.index);
        let slots = [core.slots.insert(queue, self.memory.lend(KEY), SlotState::Future)];
        *stage = Stage::Posted(InFlight { slots, memory: PhantomData });
        handle.pair(core).outstanding += 1;
        core.complete_from(0, count);
        let Stage::Posted(posted) = stage else { return false };
        let is_done = core.are_done_now(&slots, context.waker());
        if is_done {
            [self.memory] = posted.take(handle, core, failure);
        }
        is_done
    }

    /// Goes on with it after it was posted. Returns whether it is over, once. Tells why, if it failed.
    #[inline(never)]
    fn resume<D: TrustedDevice>(
        &mut self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        stage: &mut Stage<M, 1>,
        context: &mut Context<'_>,
        failure: &mut Option<Error>,
    ) -> bool {
        let Stage::Posted(posted) = stage else { return false };
        if !core.are_done(&posted.slots, context.waker()) {
            return false;
        }
        [self.memory] = posted.take(handle, core, failure);
        true
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

/// How far operations have got.
enum Stage<M, const N: usize> {
    New,
    /// Slots have the memory.
    Posted(InFlight<M, N>),
    Over,
}

/// The slots of posted operations. Their connection is not part of it.
pub(super) struct InFlight<M, const N: usize> {
    slots: [SlotId; N],
    /// What their spans were made of.
    memory: PhantomData<fn() -> M>,
}

impl<M: Lend, const N: usize> InFlight<M, N> {
    /// Posts operations, all or none. If none, they keep their memory.
    pub(super) fn post<D: TrustedDevice>(
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
            core.cq.post_send(handle.qp, &requests, false)
        };
        let mut outcome = post(core);
        // Completed requests hold their entries until they are polled.
        if matches!(outcome, Err(crate::Error::QueueFull { .. })) && core.reap() {
            outcome = post(core);
        }
        if let Err(error) = outcome {
            for (work, slot) in works.iter_mut().zip(slots) {
                work.memory = M::restore(core.slots.take(slot).0, KEY);
            }
            return Err(handle.refusal(core, error));
        }
        handle.pair(core).outstanding += N;
        Ok(Self { slots, memory: PhantomData })
    }

    /// The memory, once, when all are done; otherwise registers the task. Tells why one has failed, if so.
    pub(super) fn poll<D: TrustedDevice>(
        &self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        context: &mut Context<'_>,
        failure: &mut Option<Error>,
    ) -> Poll<[M; N]> {
        if !core.are_done(&self.slots, context.waker()) {
            return Poll::Pending;
        }
        Poll::Ready(self.take(handle, core, failure))
    }

    /// Frees the slots of operations that are done. Returns the memory. Tells why one has failed, if so.
    fn take<D: TrustedDevice>(
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
    pub(super) fn detach<D: TrustedDevice>(&self, core: &mut Core<D>) {
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
    fn leave<D: TrustedDevice>(&self, handle: &Handle<D>) {
        if let Self::Posted(posted) = self {
            posted.leave(handle);
        }
    }
}

/// Several operations that are posted together. It becomes their memory when all are done.
///
/// Nothing is posted before it is polled or waited for. Dropping it later does not take the operations back:
/// their memory goes back to its pool when they are done.
///
/// # Errors
/// [`Failed`], with the memory, if the device refused them, which are then not posted, or if one failed.
#[must_use = "nothing is posted before it is polled"]
pub struct Batch<'c, D: TrustedDevice, M: Lend, const N: usize> {
    handle: &'c Handle<D>,
    /// They have their memory before they are posted and when they are done.
    works: [Work<M>; N],
    stage: Stage<M, N>,
}

impl<'c, D: TrustedDevice, M: Lend, const N: usize> Batch<'c, D, M, N> {
    pub(super) fn new(handle: &'c Handle<D>, works: [Work<M>; N]) -> Self {
        Self { handle, works, stage: Stage::New }
    }

    /// Waits until all are done, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of the batch.
    pub fn wait(self) -> Result<[M; N], Failed<[M; N]>> {
        self.handle.shard.block_on(self)
    }

    /// Posts what is not posted. Returns whether all is over, once. Tells why, if something failed.
    fn advance(&mut self, context: &mut Context<'_>, failure: &mut Option<Error>) -> bool {
        let Self { handle, works, stage } = self;
        handle.with(|core| {
            if let Stage::New = stage {
                *stage = match InFlight::post(handle, core, works) {
                    Ok(posted) => Stage::Posted(posted),
                    Err(error) => {
                        *failure = Some(error);
                        *stage = Stage::Over;
                        return true;
                    }
                };
            }
            let Stage::Posted(posted) = stage else { return false };
            if !core.are_done(&posted.slots, context.waker()) {
                return false;
            }
            for (work, memory) in works.iter_mut().zip(posted.take(handle, core, failure)) {
                work.memory = memory;
            }
            *stage = Stage::Over;
            true
        })
    }
}

/// The output of a future.
#[inline]
fn output<M>(memory: M, failure: Option<Error>) -> Result<M, Failed<M>> {
    match failure {
        None => Ok(memory),
        Some(error) => Err(Failed { memory, error }),
    }
}

impl<D: TrustedDevice, M: Lend, const N: usize> Future for Batch<'_, D, M, N> {
    type Output = Result<[M; N], Failed<[M; N]>>;

    /// After the outcome it stays pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut failure = None;
        if !self.advance(context, &mut failure) {
            return Poll::Pending;
        }
        let memory = self.works.each_mut().map(Work::take_memory);
        Poll::Ready(output(memory, failure))
    }
}

impl<D: TrustedDevice, M: Lend, const N: usize> Drop for Batch<'_, D, M, N> {
    fn drop(&mut self) {
        self.stage.leave(self.handle);
    }
}

/// One operation. It becomes its memory when it is done, as a [`Batch`] does.
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
    pub(super) fn new(handle: &'c Handle<D>, work: Work<M>) -> Self {
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
            Stage::Posted(_) | Stage::Over => work.resume(handle, core, stage, context, failure),
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
