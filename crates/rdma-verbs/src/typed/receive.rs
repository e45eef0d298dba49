//! Messages that arrive.

use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::core::Core;
use super::endpoint::Handle;
use super::slots::SlotId;
use super::{Buf, Error, Remote, Result, Shard, TrustedDevice};
use crate::{AnyDevice, Completion, CompletionKind};

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
        let message = handle.with(|core| next(handle, core, ticket, context));
        if message.is_ready() {
            // It is set here, where the compiler sees that nothing is left for `drop`.
            *ticket = None;
        }
        message
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
    let inbox = &mut handle.pair(core).inbox;
    let message = if inbox.is_empty() { core.reap_message(handle.index) } else { inbox.pop_front() };
    if let Some(slot) = message {
        if ticket.is_some() {
            core.stop_waiting(handle.index, ticket);
        }
        let buf = Buf::new(core.slots.take_message(slot));
        return Poll::Ready(Ok(Received { buf, slot, shard: handle.shard.clone() }));
    }
    let pair = &mut core.pairs[handle.index];
    match pair.end().filter(|_| pair.is_exhausted()) {
        Some(end) => {
            let end = end.clone();
            core.stop_waiting(handle.index, ticket);
            Poll::Ready(Err(Error::Ended(end)))
        }
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
        self.handle.with(|core| core.stop_waiting(self.handle.index, &mut self.ticket));
    }
}

/// A message of the peer. Dropping it posts its buffer as a receive again, of its connection or of the queue
/// that this shares.
#[derive(Debug)]
pub struct Received<D: TrustedDevice = AnyDevice> {
    /// Without memory after [`Received::into_buf`].
    buf: Buf,
    /// The slot to which the buffer returns. It has what else is known of the message.
    slot: SlotId,
    shard: Shard<D>,
}

impl<D: TrustedDevice> Received<D> {
    fn completion(&self) -> Completion {
        self.shard.inner.with(|core| core.slots.completion(self.slot))
    }

    /// Whether it is nothing but bytes: it has no number and no key, and tells of no write.
    pub(super) fn is_plain(&self) -> bool {
        let Completion { kind, immediate, invalidated, .. } = self.completion();
        kind == CompletionKind::Recv && immediate.is_none() && invalidated.is_none()
    }

    /// The number that came with a write ([`Work::write_immediate`](super::Work::write_immediate)).
    #[must_use]
    pub fn immediate(&self) -> Option<u64> {
        self.completion().immediate
    }

    /// Number of bytes that the peer has written to a region, if this is what it tells.
    #[must_use]
    pub fn written(&self) -> Option<u32> {
        let Completion { kind, length, .. } = self.completion();
        (kind == CompletionKind::RecvWrite).then_some(length)
    }

    /// The key of this side that the message has invalidated.
    #[must_use]
    pub fn invalidated(&self) -> Option<u32> {
        self.completion().invalidated
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
        Buf::new(mem::take(self.buf.span_mut()))
    }
}

impl<D: TrustedDevice> Deref for Received<D> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

impl<D: TrustedDevice> Drop for Received<D> {
    #[inline]
    fn drop(&mut self) {
        let Self { buf, slot, shard } = self;
        shard.inner.with(|core| core.return_message(*slot, buf.span_mut()));
    }
}
