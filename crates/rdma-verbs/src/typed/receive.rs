//! Messages that arrive.

use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::core::Core;
use super::endpoint::Handle;
use super::queue_pair::Arrived;
use super::registration::Span;
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
    if let Some(arrived) = arrived(handle, core) {
        let shared = handle.pair(core).shared;
        let shared = shared.and_then(|index| Some((index, core.shared.get(index)?.srq)));
        return Poll::Ready(Ok(Received::new(handle, arrived, shared)));
    }
    let pair = &mut core.pairs[handle.index];
    match pair.end().filter(|_| pair.is_exhausted()) {
        Some(end) => Poll::Ready(Err(Error::Ended(end.clone()))),
        None => {
            pair.receivers.register(ticket, context.waker(), &mut core.woken);
            Poll::Pending
        }
    }
}

/// The oldest message that nobody has taken.
fn arrived<D: TrustedDevice>(handle: &Handle<D>, core: &mut Core<D>) -> Option<Arrived> {
    handle.pair(core).inbox.pop_front().or_else(|| {
        core.reap();
        handle.pair(core).inbox.pop_front()
    })
}

impl<D: TrustedDevice> Drop for Recv<'_, D> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.handle.with(|core| {
                core.pairs[self.handle.index].receivers.remove(self.ticket, &mut core.woken);
            });
        }
    }
}

/// A message of the peer. Dropping it posts its buffer as a receive again, of its connection or of the queue
/// that this shares.
#[derive(Debug)]
pub struct Received<D: TrustedDevice = AnyDevice> {
    buf: Buf,
    /// Whether the buffer was taken by [`Received::into_buf`].
    is_taken: bool,
    completion: Completion,
    /// The capacity of the receive.
    size: u32,
    shard: Shard<D>,
    index: usize,
    /// The shared queue that the receive is of.
    shared: Option<(usize, SrqId)>,
}

impl<D: TrustedDevice> Received<D> {
    fn new(handle: &Handle<D>, arrived: Arrived, shared: Option<(usize, SrqId)>) -> Self {
        let Arrived { mut span, completion } = arrived;
        let size = span.length;
        span.length = match completion.kind {
            CompletionKind::Recv => completion.length.min(size),
            // Its bytes are in a region.
            _ => 0,
        };
        let buf = Buf::restore(span, size, KEY);
        let (shard, index) = (handle.shard.clone(), handle.index);
        Self { buf, is_taken: false, completion, size, shard, index, shared }
    }

    /// The number that came with a write ([`Work::write_immediate`](super::Work::write_immediate)).
    #[must_use]
    pub fn immediate(&self) -> Option<u64> {
        self.completion.immediate
    }

    /// Number of bytes that the peer has written to a region, if this is what it tells.
    #[must_use]
    pub fn written(&self) -> Option<u32> {
        (self.completion.kind == CompletionKind::RecvWrite).then_some(self.completion.length)
    }

    /// The key of this side that the message has invalidated.
    #[must_use]
    pub fn invalidated(&self) -> Option<u32> {
        self.completion.invalidated
    }

    /// The peer's memory, if the message is an [advertisement](super::Connection::advertise).
    ///
    /// # Errors
    /// [`Error::NoAdvert`]
    pub fn advert(&self) -> Result<Remote> {
        Remote::from_advert(self)
    }

    /// The buffer, which is not posted again. The connection has a receive less.
    #[must_use]
    pub fn into_buf(mut self) -> Buf {
        self.is_taken = true;
        self.take()
    }

    /// Takes the buffer, and leaves one without bytes.
    fn take(&mut self) -> Buf {
        let no_bytes = Span::shared(&self.buf.span(KEY).registration, 0, 0);
        mem::replace(&mut self.buf, Buf::restore(no_bytes, 0, KEY))
    }

    fn qp(&self) -> QpId {
        self.completion.qp
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
        if self.is_taken {
            return;
        }
        let (mut span, _) = self.take().lend(KEY);
        span.length = self.size;
        // Its connection or its queue may be gone, and another one may have the index.
        self.shard.inner.with(|core| match self.shared {
            Some((index, srq)) => {
                if core.shared.get(index).is_some_and(|shared| shared.srq == srq) {
                    core.repost_shared(index, span);
                }
            }
            None => {
                if core.pairs.get(self.index).is_some_and(|pair| pair.qp == self.qp()) {
                    core.repost(self.index, span);
                }
            }
        });
    }
}
