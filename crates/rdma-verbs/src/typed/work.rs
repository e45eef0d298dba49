//! Operations: what they do, the memory that moves into them and comes back, and the futures of their ends.

use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use self::sealed::KEY;
use super::core::Core;
use super::endpoint::Handle;
use super::registration::Spans;
use super::slots::{Queue, SlotId, SlotState, Slots};
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
    /// Without memory once it is posted.
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

    /// The request of the slot that has its memory.
    #[inline]
    fn request<'s>(&self, id: SlotId, slots: &'s Slots) -> SendRequest<'s> {
        let segments = match slots.segments(id) {
            // Some adapters take a length of 0 for 2 GiB, and a read needs a segment.
            [Segment { length: 0, .. }] if !matches!(self.verb, Verb::Read { .. }) => &[],
            segments => segments,
        };
        let payload = if self.is_fenced { Payload::Fenced(segments) } else { Payload::Segments(segments) };
        SendRequest { id: id.0, signaled: true, operation: self.verb, payload }
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
    stage: Stage<M, N>,
}

enum Stage<M: Lend, const N: usize> {
    New([Work<M>; N]),
    Posted(InFlight<M, N>),
    Over,
}

impl<M: Lend, const N: usize> Stage<M, N> {
    /// The memory of operations that could not be posted.
    #[cold]
    fn take_back(&mut self) -> Poll<[M; N]> {
        match mem::replace(self, Self::Over) {
            Self::New(works) => Poll::Ready(works.map(Work::into_memory)),
            Self::Posted(_) | Self::Over => Poll::Pending,
        }
    }
}

/// The slots of posted operations. Their connection is not part of it.
pub(super) struct InFlight<M, const N: usize> {
    slots: [SlotId; N],
    /// What their spans were made of.
    memory: PhantomData<fn() -> M>,
}

impl<'c, D: TrustedDevice, M: Lend, const N: usize> Batch<'c, D, M, N> {
    pub(super) fn new(handle: &'c Handle<D>, works: [Work<M>; N]) -> Self {
        Self { handle, stage: Stage::New(works) }
    }

    /// Waits until all are done, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of the batch.
    pub fn wait(self) -> Result<[M; N], Failed<[M; N]>> {
        self.handle.shard.block_on(self)
    }
}

impl<M: Lend, const N: usize> InFlight<M, N> {
    /// Posts operations, all or none. If none, they keep their memory.
    #[inline]
    pub(super) fn post<D: TrustedDevice>(
        handle: &Handle<D>,
        core: &mut Core<D>,
        works: &mut [Work<M>; N],
    ) -> Result<Self, Error> {
        works.iter().try_for_each(|work| work.check(handle, &core.attributes))?;
        let pair = handle.pair(core);
        pair.outstanding += N;
        let unsignaled = mem::take(&mut pair.unsignaled);
        let qp = pair.qp;
        let slots = works.each_mut().map(|work| {
            core.slots.insert(Queue::Send(handle.index), mem::take(&mut work.spans), SlotState::Future)
        });
        let post = |core: &mut Core<D>| {
            let requests: [_; N] = std::array::from_fn(|at| works[at].request(slots[at], &core.slots));
            core.cq.post_send(qp, &requests, false)
        };
        let mut outcome = post(core);
        // Completed requests hold their entries until they are polled.
        if matches!(outcome, Err(crate::Error::QueueFull { .. })) && core.reap() {
            outcome = post(core);
        }
        if let Err(error) = outcome {
            let pair = handle.pair(core);
            pair.outstanding -= N;
            pair.unsignaled += unsignaled;
            for (work, slot) in works.iter_mut().zip(slots) {
                work.spans = core.slots.take(slot);
            }
            return Err(handle.refusal(core, error));
        }
        Ok(Self { slots, memory: PhantomData })
    }

    /// The memory, once, when all are done; otherwise registers the task. Tells why one has failed, if so.
    #[inline]
    pub(super) fn poll<D: TrustedDevice>(
        &self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        are_new: bool,
        context: &mut Context<'_>,
        failure: &mut Option<Error>,
    ) -> Poll<[M; N]> {
        let first = if are_new { core.reap_new(handle.index, &self.slots) } else { None };
        let are_done = match (first, are_new) {
            (Some(_), _) => true,
            (None, true) => core.are_done_now(&self.slots, context.waker()),
            (None, false) => core.are_done(&self.slots, context.waker()),
        };
        if !are_done {
            return Poll::Pending;
        }
        Poll::Ready(self.slots.map(|slot| {
            let Some((spans, completion)) = core.slots.free(slot) else { return without_memory() };
            let (memory, status) = (M::restore(spans, KEY), first.unwrap_or(completion.status));
            if status != CompletionStatus::Success {
                failure.get_or_insert_with(|| handle.failure(core, status));
            }
            memory
        }))
    }

    /// See [`InFlight::detach`].
    #[cold]
    fn leave<D: TrustedDevice>(&self, handle: &Handle<D>) {
        handle.with(|core| self.detach(core));
    }

    /// Leaves them alone: their memory goes back to its pool when they are done.
    #[cold]
    pub(super) fn detach<D: TrustedDevice>(&self, core: &mut Core<D>) {
        self.slots.iter().for_each(|&slot| core.slots.abandon(slot, &mut core.woken));
    }
}

impl<D: TrustedDevice, M: Lend, const N: usize> Batch<'_, D, M, N> {
    /// The memory, once, when all is over; before, posts what is not posted. Tells why, if something failed.
    ///
    /// The failure is not part of the result, because a large result costs as much as the operation.
    #[inline]
    fn advance(&mut self, context: &mut Context<'_>, failure: &mut Option<Error>) -> Poll<[M; N]> {
        let Self { handle, stage } = self;
        handle.with(|core| {
            let mut are_new = false;
            if let Stage::New(works) = stage {
                are_new = true;
                match InFlight::post(handle, core, works) {
                    // The operations have no memory any more, so nothing has to be dropped.
                    Ok(posted) => mem::forget(mem::replace(stage, Stage::Posted(posted))),
                    Err(error) => {
                        *failure = Some(error);
                        return stage.take_back();
                    }
                }
            }
            let Stage::Posted(posted) = stage else { return Poll::Pending };
            let memory = posted.poll(handle, core, are_new, context, failure);
            if memory.is_ready() {
                *stage = Stage::Over;
            }
            memory
        })
    }
}

/// What an operation becomes whose slot is gone, which happens to none.
#[cold]
fn without_memory<M: Lend>() -> M {
    M::restore(&mut Spans::default(), KEY)
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
    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut failure = None;
        self.advance(context, &mut failure).map(|memory| output(memory, failure))
    }
}

impl<D: TrustedDevice, M: Lend, const N: usize> Drop for Batch<'_, D, M, N> {
    #[inline]
    fn drop(&mut self) {
        if let Stage::Posted(posted) = &self.stage {
            posted.leave(self.handle);
        }
    }
}

/// One operation: a [`Batch`] of one, which becomes its memory.
///
/// # Errors
/// [`Failed`], with the memory, if the device refused it, or if it failed.
#[must_use = "nothing is posted before it is polled"]
pub struct Operation<'c, M: Lend, D: TrustedDevice = AnyDevice>(pub(super) Batch<'c, D, M, 1>);

impl<M: Lend, D: TrustedDevice> Operation<'_, M, D> {
    /// Waits until it is done, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of the operation.
    pub fn wait(self) -> Result<M, Failed<M>> {
        self.0.handle.shard.block_on(self)
    }
}

impl<M: Lend, D: TrustedDevice> Future for Operation<'_, M, D> {
    type Output = Result<M, Failed<M>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut failure = None;
        self.0.advance(context, &mut failure).map(|[memory]| output(memory, failure))
    }
}
