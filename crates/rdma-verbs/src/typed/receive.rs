//! Messages that arrive.

use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::core::Core;
use super::endpoint::Handle;
use super::registration::{Span, Spans};
use super::work::sealed::{KEY, Lend as _};
use super::{Buf, Error, Remote, Result, Shard, TrustedDevice};
use crate::{AnyDevice, Completion, CompletionKind, QpId, SrqId};

/// The next message of a connection. Messages arrive in the order in which they were sent.
///
/// # Errors
/// [`Error::Ended`] when the connection has ended and every message has been taken.
#[must_use = "it does nothing before it is polled"]
pub struct Recv<'c, D: TrustedDevice = AnyDevice> {
    handle: &'c Handle<D>,
    ticket: Option<u64>,
}

impl<'c, D: TrustedDevice> Recv<'c, D> {
    pub(super) fn new(handle: &'c Handle<D>) -> Self {
        Self { handle, ticket: None }
    }

    /// Waits for the message, and drives the shard meanwhile.
    ///
    /// # Errors
    /// [`Error::Ended`]
    pub fn wait(self) -> Result<Received<D>> {
        self.handle.shard.block_on(self)
    }
}

impl<D: TrustedDevice> Future for Recv<'_, D> {
    type Output = Result<Received<D>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { handle, ticket } = &mut *self;
        handle.with(|core| next(handle, core, ticket, context))
    }
}

/// The next message, the end of the connection when there is none, or registers the task.
#[inline]
pub(super) fn next<D: TrustedDevice>(
    handle: &Handle<D>,
    core: &mut Core<D>,
    ticket: &mut Option<u64>,
    context: &mut Context<'_>,
) -> Poll<Result<Received<D>>> {
    if handle.pair(core).inbox.is_empty() {
        core.reap();
    }
    let pair = &mut core.pairs[handle.index];
    if let Some(id) = pair.inbox.pop_front() {
        let source = match pair.shared.and_then(|index| Some((index, core.shared.get(index)?))) {
            Some((index, shared)) => Source::Shared(index, shared.srq),
            None => Source::Own(handle.index, pair.qp),
        };
        let (spans, completion) = core.slots.take(id);
        return Poll::Ready(Ok(Received::new(spans.into_first(), completion, handle.shard.clone(), source)));
    }
    match pair.end().filter(|_| pair.is_exhausted()) {
        Some(end) => Poll::Ready(Err(Error::Ended(end.clone()))),
        None => {
            pair.receivers.register(ticket, context.waker(), &mut core.woken);
            Poll::Pending
        }
    }
}

impl<D: TrustedDevice> Drop for Recv<'_, D> {
    #[inline]
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.stop();
        }
    }
}

impl<D: TrustedDevice> Recv<'_, D> {
    /// Notes that it waits no longer.
    #[cold]
    fn stop(&mut self) {
        self.handle.with(|core| {
            core.pairs[self.handle.index].receivers.remove(self.ticket, &mut core.woken);
        });
    }
}

/// A message of the peer. Dropping it posts its buffer as a receive again, of its connection or of the queue
/// that this shares.
#[derive(Debug)]
pub struct Received<D: TrustedDevice = AnyDevice> {
    /// Without memory after [`Received::into_buf`].
    buf: Buf,
    immediate: Option<u64>,
    written: Option<u32>,
    invalidated: Option<u32>,
    shard: Shard<D>,
    source: Source,
}

/// The queue that a receive is of, by its index and its id.
#[derive(Debug, Clone, Copy)]
enum Source {
    Own(usize, QpId),
    Shared(usize, SrqId),
}

impl<D: TrustedDevice> Received<D> {
    fn new(mut span: Span, completion: Completion, shard: Shard<D>, source: Source) -> Self {
        let Completion { kind, length, immediate, invalidated, .. } = completion;
        let written = (kind == CompletionKind::RecvWrite).then_some(length);
        // The bytes of a write are in a region.
        span.segment.length = if written.is_none() { length.min(span.segment.length) } else { 0 };
        Self { buf: Buf::restore(span.into(), KEY), immediate, written, invalidated, shard, source }
    }

    /// The number that came with a write ([`Work::write_immediate`](super::Work::write_immediate)).
    #[must_use]
    pub fn immediate(&self) -> Option<u64> {
        self.immediate
    }

    /// Number of bytes that the peer has written to a region, if this is what it tells.
    #[must_use]
    pub fn written(&self) -> Option<u32> {
        self.written
    }

    /// The key of this side that the message has invalidated.
    #[must_use]
    pub fn invalidated(&self) -> Option<u32> {
        self.invalidated
    }

    /// The peer's memory, if the message is an [advertisement](super::Connection::advertise).
    ///
    /// # Errors
    /// [`Error::NoAdvert`]
    pub fn advert(&self) -> Result<Remote> {
        Remote::from_advert(self)
    }

    /// Takes the buffer, and leaves one without memory.
    #[inline]
    fn take(&mut self) -> Buf {
        mem::replace(&mut self.buf, Buf::restore(Spans::default(), KEY))
    }

    /// The buffer, which is not posted again. The connection has a receive less.
    #[must_use]
    pub fn into_buf(mut self) -> Buf {
        self.take()
    }
}

impl<D: TrustedDevice> Deref for Received<D> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

impl<D: TrustedDevice> Drop for Received<D> {
    fn drop(&mut self) {
        let mut span = self.take().lend(KEY).into_first();
        span.segment.length = span.chunk();
        if span.segment.length == 0 {
            return;
        }
        let source = self.source;
        // Its connection or its queue may be gone, and another one may have the index.
        self.shard.inner.with(|core| match source {
            Source::Own(index, qp) => core.repost(index, qp, span),
            Source::Shared(index, srq) => {
                if core.shared.get(index).is_some_and(|shared| shared.srq == srq) {
                    core.repost_shared(index, span);
                }
            }
        });
    }
}
