//! Operations: what they do, the memory that moves into them and comes back, and the futures of their ends.

use std::marker::PhantomData;
use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::slice;
use std::task::{Context, Poll};

use self::sealed::KEY;
use super::core::Core;
use super::endpoint::Handle;
use super::registration::{Span, Spans};
use super::slots::{Owner, Queue, SlotId};
use super::{Error, Failed, Remote, TrustedDevice};
use crate::memory::OutOfBounds;
use crate::{
    Access, AnyDevice, Completion, CompletionStatus, Operation as Verb, Payload, QueuePairs as _, Segment,
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

    /// Checks what a device may report only by breaking the connection.
    fn check<D: TrustedDevice>(&self, handle: &Handle<D>, is_sink_public: bool) -> Result<(), Error> {
        if let Some(room) = self.room {
            let length: u64 = self.spans.iter().map(|span| u64::from(span.length)).sum();
            if length > room.into() {
                let (length, size) = (usize::try_from(length).unwrap_or(usize::MAX), room as usize);
                return Err(OutOfBounds { offset: 0, length, size }.into());
            }
        }
        let needed = match self.verb {
            Verb::Read { .. } if is_sink_public => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            Verb::Read { .. } => Access::LOCAL_WRITE,
            Verb::Send { .. } | Verb::Write { .. } => Access::empty(),
        };
        self.spans.iter().try_for_each(|Span { registration, .. }| {
            handle.shard.owns(registration)?;
            let granted = registration.access;
            if granted.contains(needed) { Ok(()) } else { Err(Error::MissingRights { needed, granted }) }
        })
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

/// The segments of an operation's memory.
enum Segments {
    None,
    One(Segment),
    Many(Vec<Segment>),
}

impl Segments {
    fn of(spans: &Spans, verb: Verb) -> Self {
        // Some adapters take a length of 0 for 2 GiB, and a read needs a segment.
        let is_needed = |segment: &Segment| segment.length > 0 || matches!(verb, Verb::Read { .. });
        match spans.next {
            None => Some(spans.first.segment()).filter(is_needed).map_or(Self::None, Self::One),
            Some(_) => Self::Many(spans.iter().map(Span::segment).filter(is_needed).collect()),
        }
    }
}

impl Deref for Segments {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        match self {
            Self::None => &[],
            Self::One(segment) => slice::from_ref(segment),
            Self::Many(segments) => segments,
        }
    }
}

impl<M: Lend, const N: usize> InFlight<M, N> {
    /// Posts operations, all or none.
    pub(super) fn post<D: TrustedDevice>(
        handle: &Handle<D>,
        core: &mut Core<D>,
        works: [Work<M>; N],
    ) -> Result<Self, Failed<[M; N]>> {
        let is_sink_public = !core.attributes.private_read_sinks;
        if let Err(error) = works.iter().try_for_each(|work| work.check(handle, is_sink_public)) {
            return Err(Failed { memory: works.map(|work| M::restore(work.spans, KEY)), error });
        }
        let lent = works.map(|Work { spans, verb, is_fenced, .. }| {
            let segments = Segments::of(&spans, verb);
            let slot = core.slots.insert(Queue::Send(handle.index), spans, Owner::Future);
            (slot, verb, segments, is_fenced)
        });
        let requests: [_; N] = std::array::from_fn(|at| {
            let (slot, operation, segments, is_fenced) = &lent[at];
            let payload = if *is_fenced { Payload::Fenced(segments) } else { Payload::Segments(segments) };
            SendRequest { id: slot.0, signaled: true, operation: *operation, payload }
        });
        let qp = handle.pair(core).qp;
        let outcome = match core.cq.post_send(qp, &requests, false) {
            // Completed requests hold their entries until they are polled.
            Err(crate::Error::QueueFull { .. }) if core.reap() => core.cq.post_send(qp, &requests, false),
            outcome => outcome,
        };
        let posted = Self { slots: lent.map(|(slot, ..)| slot), memory: PhantomData };
        if let Err(error) = outcome {
            let memory = posted.slots.map(|slot| M::restore(core.slots.take(slot).0, KEY));
            return Err(Failed { memory, error: handle.refusal(core, error) });
        }
        let pair = handle.pair(core);
        pair.outstanding += N;
        pair.unsignaled = 0;
        Ok(posted)
    }

    /// The memory, once, when all are done; otherwise registers the task. Tells why one has failed, if so.
    #[inline]
    pub(super) fn poll<D: TrustedDevice>(
        &self,
        handle: &Handle<D>,
        core: &mut Core<D>,
        context: &mut Context<'_>,
        failure: &mut Option<Error>,
    ) -> Poll<[M; N]> {
        if !core.have_completed(&self.slots, context.waker()) {
            return Poll::Pending;
        }
        Poll::Ready(self.slots.map(|slot| {
            let (spans, Completion { status, .. }) = core.slots.take(slot);
            if status != CompletionStatus::Success {
                failure.get_or_insert_with(|| handle.failure(core, status));
            }
            M::restore(spans, KEY)
        }))
    }

    /// Leaves them alone: their memory goes back to its pool when they are done.
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
            let posted = match mem::replace(stage, Stage::Over) {
                Stage::New(works) => match InFlight::post(handle, core, works) {
                    Ok(posted) => posted,
                    Err(Failed { memory, error }) => {
                        *failure = Some(error);
                        return Poll::Ready(memory);
                    }
                },
                Stage::Posted(posted) => posted,
                Stage::Over => return Poll::Pending,
            };
            let memory = posted.poll(handle, core, context, failure);
            if memory.is_pending() {
                *stage = Stage::Posted(posted);
            }
            memory
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
    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut failure = None;
        self.advance(context, &mut failure).map(|memory| output(memory, failure))
    }
}

impl<D: TrustedDevice, M: Lend, const N: usize> Drop for Batch<'_, D, M, N> {
    fn drop(&mut self) {
        let Stage::Posted(posted) = &self.stage else { return };
        self.handle.with(|core| posted.detach(core));
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
