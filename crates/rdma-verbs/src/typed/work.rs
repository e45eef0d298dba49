//! Operations: what they do, the memory that moves into them and comes back, and the futures of their ends.

use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use self::sealed::KEY;
use super::core::Core;
use super::endpoint::Handle;
use super::registration::Spans;
use super::slots::{Queue, SlotId, SlotState};
use super::{Error, Failed, Remote, TrustedDevice};
use crate::memory::OutOfBounds;
use crate::{
    Access, AnyDevice, CompletionStatus, DeviceAttributes, Operation as Verb, Payload, QueuePairs as _, Segment,
    SendRequest,
};

/// Memory that an operation can use: a [`Buf`](super::Buf), a [`Piece`](super::Piece) of a region, or several
/// [`Pieces`](super::Pieces).
pub trait Lend: sealed::Lend {}

pub(super) mod sealed {
    use crate::typed::registration::Spans;

    /// Memory as spans. A user who is generic over [`Lend`](super::Lend) could call this, but has no [`Key`].
    pub trait Lend: Sized + Unpin {
        fn lend(self, key: Key) -> Spans;
        /// Takes it out of the spans.
        fn restore(spans: &mut Spans, key: Key) -> Self;
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
    /// Without memory while a slot has it.
    spans: Spans,
    /// What they are made of.
    memory: PhantomData<M>,
    verb: Verb,
    /// Length of the peer's memory, if the operation names some.
    room: Option<u32>,
    is_fenced: bool,
}

impl<M: Lend> Work<M> {
    fn new(memory: M, verb: Verb, room: Option<u32>) -> Self {
        Self { spans: memory.lend(KEY), memory: PhantomData, verb, room, is_fenced: false }
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
    pub(super) fn into_memory(mut self) -> M {
        M::restore(&mut self.spans, KEY)
    }

    /// Checks what a device may report only by breaking the connection.
    #[inline]
    fn check<D: TrustedDevice>(&self, handle: &Handle<D>, device: &DeviceAttributes) -> Result<(), Error> {
        let spans = &self.spans;
        if let Some(room) = self.room.filter(|&room| spans.length() > room.into()) {
            let (length, size) = (usize::try_from(spans.length()).unwrap_or(usize::MAX), room as usize);
            return Err(OutOfBounds { offset: 0, length, size }.into());
        }
        match self.verb {
            Verb::Send { .. } | Verb::Write { .. } => handle.owns(spans),
            Verb::Read { .. } if device.private_read_sinks => handle.check(spans, Access::LOCAL_WRITE),
            Verb::Read { .. } => handle.check(spans, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
        }
    }

    /// The request with this id and these segments.
    #[inline]
    fn request<'s>(&self, id: SlotId, segments: &'s [Segment]) -> SendRequest<'s> {
        let segments = match segments {
            // Some adapters take a length of 0 for 2 GiB, and a read needs a segment.
            [Segment { length: 0, .. }] if !matches!(self.verb, Verb::Read { .. }) => &[],
            segments => segments,
        };
        let payload = if self.is_fenced { Payload::Fenced(segments) } else { Payload::Segments(segments) };
        SendRequest { id: id.0, signaled: true, operation: self.verb, payload }
    }

    /// Posts it, and polls the completion queue once. If it is the first request to complete, as it is over the
    /// embedded device, it gets no slot, and has its memory all the time. Otherwise its slot has the memory
    /// until it is done. Tells why, if it failed.
    #[inline]
    fn begin<D: TrustedDevice>(
        &mut self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        context: &mut Context<'_>,
        failure: &mut Option<Error>,
    ) -> Stage<M, 1> {
        if let Err(error) = self.check(handle, &core.attributes) {
            *failure = Some(error);
            return Stage::Over;
        }
        let pair = handle.pair(core);
        let (qp, unsignaled) = (pair.qp, mem::take(&mut pair.unsignaled));
        let lent = Lent(self);
        let post = |core: &mut Core<D>| {
            let id = core.slots.next_id();
            let request = lent.0.request(id, lent.0.spans.segments());
            core.cq.post_send(qp, &[request], false).map(|()| id)
        };
        let mut outcome = post(core);
        // Completed requests hold their entries until they are polled.
        if matches!(outcome, Err(crate::Error::QueueFull { .. })) && core.reap() {
            outcome = post(core);
        }
        let id = match outcome {
            Ok(id) => id,
            Err(error) => {
                lent.end();
                handle.pair(core).unsignaled += unsignaled;
                *failure = Some(handle.refusal(core, error));
                return Stage::Over;
            }
        };
        let count = core.poll();
        lent.end();
        let Some(status) = core.first_status(id, count) else {
            return self.fill_slot(handle, core, count, context, failure);
        };
        core.complete_from(1, count);
        if status != CompletionStatus::Success {
            core.poll_events(handle.index);
            *failure = Some(handle.failure(core, status));
        }
        Stage::Over
    }

    /// Moves the memory of a request that is posted to the next slot, whose id the request has. Then it handles
    /// the `count` completions of the last poll.
    #[inline(never)]
    fn fill_slot<D: TrustedDevice>(
        &mut self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        count: usize,
        context: &mut Context<'_>,
        failure: &mut Option<Error>,
    ) -> Stage<M, 1> {
        let queue = Queue::Send(handle.index);
        let slots = [core.slots.insert(queue, mem::take(&mut self.spans), SlotState::Future)];
        handle.pair(core).outstanding += 1;
        core.complete_from(0, count);
        let posted = InFlight { slots, memory: PhantomData };
        if !core.are_done_now(&slots, context.waker()) {
            return Stage::Posted(posted);
        }
        [self.spans] = posted.take(handle, core, failure);
        Stage::Over
    }
}

/// An operation that the device may have, and whose memory is not in a slot. If the device panics, the memory is
/// leaked, so that nobody else gets it.
struct Lent<'w, M: Lend>(&'w mut Work<M>);

impl<M: Lend> Lent<'_, M> {
    /// The device has returned.
    #[inline]
    fn end(self) {
        mem::forget(self);
    }
}

impl<M: Lend> Drop for Lent<'_, M> {
    #[cold]
    fn drop(&mut self) {
        mem::forget(mem::take(&mut self.0.spans));
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
        works.iter().try_for_each(|work| work.check(handle, &core.attributes))?;
        let slots = works.each_mut().map(|work| {
            core.slots.insert(Queue::Send(handle.index), mem::take(&mut work.spans), SlotState::Future)
        });
        let qp = handle.pair(core).qp;
        let post = |core: &mut Core<D>| {
            let requests: [_; N] =
                std::array::from_fn(|at| works[at].request(slots[at], core.slots.segments(slots[at])));
            core.cq.post_send(qp, &requests, false)
        };
        let mut outcome = post(core);
        // Completed requests hold their entries until they are polled.
        if matches!(outcome, Err(crate::Error::QueueFull { .. })) && core.reap() {
            outcome = post(core);
        }
        if let Err(error) = outcome {
            for (work, slot) in works.iter_mut().zip(slots) {
                work.spans = core.slots.take(slot);
            }
            return Err(handle.refusal(core, error));
        }
        let pair = handle.pair(core);
        pair.outstanding += N;
        pair.unsignaled = 0;
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
        let spans = self.take(handle, core, failure);
        Poll::Ready(spans.map(|mut spans| M::restore(&mut spans, KEY)))
    }

    /// Frees the slots of operations that are done. Tells why one has failed, if so.
    fn take<D: TrustedDevice>(
        &self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        failure: &mut Option<Error>,
    ) -> [Spans; N] {
        self.slots.map(|slot| {
            let Some((spans, completion)) = core.slots.free(slot) else { return Spans::default() };
            let (spans, status) = (mem::take(spans), completion.status);
            if status != CompletionStatus::Success {
                failure.get_or_insert_with(|| handle.failure(core, status));
            }
            spans
        })
    }

    /// Leaves them alone: their memory goes back to its pool when they are done.
    pub(super) fn detach<D: TrustedDevice>(&self, core: &mut Core<D>) {
        self.slots.iter().for_each(|&slot| core.slots.abandon(slot, &mut core.woken));
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

impl<M: Lend, const N: usize> InFlight<M, N> {
    /// See [`InFlight::detach`].
    #[cold]
    fn leave<D: TrustedDevice>(&self, handle: &Handle<D>) {
        handle.with(|core| self.detach(core));
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
            for (work, spans) in works.iter_mut().zip(posted.take(handle, core, failure)) {
                work.spans = spans;
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
        let memory = self.works.each_mut().map(|work| M::restore(&mut work.spans, KEY));
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
    /// It has its memory before it is posted and when it is done.
    work: Work<M>,
    stage: Stage<M, 1>,
}

impl<'c, M: Lend, D: TrustedDevice> Operation<'c, M, D> {
    #[inline]
    pub(super) fn new(handle: &'c Handle<D>, work: Work<M>) -> Self {
        Self { handle, work, stage: Stage::New }
    }

    /// Waits until it is done, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait(self) -> Result<M, Failed<M>> {
        self.handle.shard.block_on(self)
    }

    /// Posts it, if it is not posted. Returns whether it is over, once. Tells why, if it failed.
    ///
    /// The failure is not part of the result, because a large result costs as much as the operation.
    #[inline]
    fn advance(&mut self, context: &mut Context<'_>, failure: &mut Option<Error>) -> bool {
        let Self { handle, work, stage } = self;
        handle.with(|core| {
            *stage = match stage {
                Stage::New => work.begin(handle, core, context, failure),
                Stage::Posted(posted) if core.are_done(&posted.slots, context.waker()) => {
                    [work.spans] = posted.take(handle, core, failure);
                    Stage::Over
                }
                Stage::Posted(_) | Stage::Over => return false,
            };
            matches!(stage, Stage::Over)
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
        Poll::Ready(output(M::restore(&mut self.work.spans, KEY), failure))
    }
}

impl<M: Lend, D: TrustedDevice> Drop for Operation<'_, M, D> {
    #[inline]
    fn drop(&mut self) {
        self.stage.leave(self.handle);
    }
}
