//! Receives into regions, at places that the program chooses.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::endpoint::Handle;
use super::queue_pair::Refused;
use super::slots::{SlotId, SlotState};
use super::work::sealed::{KEY, Lend as _};
use super::{Error, Failed, Piece, Shard, TrustedDevice};
use crate::{Access, AnyDevice, Completion, CompletionKind, CompletionStatus};

/// A receive that was posted into a [`Piece`] of a region. It becomes the message.
///
/// Dropping it does not take the receive back: its message still arrives in the region, and nobody is told.
///
/// # Errors
/// [`Failed`], with the piece, if no message has arrived in it and none will.
#[must_use = "dropping it loses the message's length"]
pub struct Landing<D: TrustedDevice = AnyDevice> {
    shard: Shard<D>,
    /// Its queue pair.
    index: usize,
    /// `None` after the outcome was returned.
    slot: Option<SlotId>,
}

/// A message that has arrived in a piece of a region.
#[derive(Debug)]
pub struct Landed {
    /// The piece of the receive.
    pub piece: Piece,
    /// Number of bytes of the message, from the beginning of the piece. 0 if it told of a write.
    pub length: u32,
    /// The number that came with a write ([`Work::write_immediate`](super::Work::write_immediate)).
    pub immediate: Option<u64>,
    /// The key of this side that the message has invalidated.
    pub invalidated: Option<u32>,
}

impl<D: TrustedDevice> Landing<D> {
    pub(super) fn post(handle: &Handle<D>, mut piece: Piece) -> Result<Self, Failed<Piece>> {
        if let Err(error) = handle.check(&piece, Access::LOCAL_WRITE) {
            return Err(Failed { memory: piece, error });
        }
        let span = piece.lend(KEY).into_first();
        let posted = handle.with(|core| match core.post_receive(handle.index, span, SlotState::Future) {
            // Completed receives hold their entries until they are polled.
            Err(Refused { span, error: crate::Error::QueueFull { .. } }) if core.reap() => {
                core.post_receive(handle.index, span, SlotState::Future)
            }
            outcome => outcome,
        });
        match posted {
            Ok(slot) => Ok(Self { shard: handle.shard.clone(), index: handle.index, slot: Some(slot) }),
            Err(refused) => {
                let error = handle.with(|core| handle.refusal(core, refused.error));
                Err(Failed { memory: Piece::restore(refused.span.into(), KEY), error })
            }
        }
    }

    /// Waits for the message, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of the receive.
    pub fn wait(self) -> Result<Landed, Failed<Piece>> {
        self.shard.clone().block_on(self)
    }
}

impl<D: TrustedDevice> Future for Landing<D> {
    type Output = Result<Landed, Failed<Piece>>;

    /// After the outcome it stays pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { shard, index, slot } = &mut *self;
        let Some(id) = *slot else { return Poll::Pending };
        shard.inner.with(|core| {
            if !core.are_done(&[id], context.waker()) {
                return Poll::Pending;
            }
            *slot = None;
            let completion = core.slots.completion(id);
            let piece = Piece::restore(core.slots.take(id).0, KEY);
            let Completion { status, kind, length, immediate, invalidated, qp, .. } = completion;
            if status != CompletionStatus::Success {
                // Its queue pair may be gone, and another one may have the index.
                let pair = core.pairs.get(*index).filter(|pair| pair.qp == qp);
                let end = pair.and_then(|pair| pair.end().cloned());
                return Poll::Ready(Err(Failed { memory: piece, error: Error::Operation { status, end } }));
            }
            let length = if kind == CompletionKind::Recv { length } else { 0 };
            Poll::Ready(Ok(Landed { piece, length, immediate, invalidated }))
        })
    }
}

impl<D: TrustedDevice> Drop for Landing<D> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.shard.inner.with(|core| core.slots.abandon(slot, &mut core.woken));
        }
    }
}
