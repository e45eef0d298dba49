//! An endpoint: a queue pair before its connection, and the attempt to make one.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::core::Core;
use super::queue_pair::{QueuePair, State};
use super::registration::Registration;
use super::slots::SlotState;
use super::work::sealed::{KEY, Lend};
use super::{Connection, Error, Failed, Landing, Piece, Pool, Result, Shard, TrustedDevice};
use crate::{Access, AnyDevice, Connections as _, EventTarget, QpCapabilities, QpId};

/// The ownership of a queue pair. Dropping it ends the connection in order, without waiting for that.
pub(super) struct Handle<D: TrustedDevice> {
    pub(super) shard: Shard<D>,
    pub(super) index: usize,
    /// What the device calls it.
    pub(super) qp: QpId,
}

impl<D: TrustedDevice> Handle<D> {
    /// Runs `body` on the state of the shard.
    #[inline]
    pub(super) fn with<R>(&self, body: impl FnOnce(&mut Core<D>) -> R) -> R {
        self.shard.inner.with(body)
    }

    /// The state of the queue pair, which exists as long as its handle.
    #[inline]
    pub(super) fn pair<'c>(&self, core: &'c mut Core<D>) -> &'c mut QueuePair {
        &mut core.pairs[self.index]
    }

    /// Whether memory is of this shard.
    #[inline]
    pub(super) fn owns(&self, memory: &impl Lend) -> bool {
        let shard = self.shard.inner.id;
        let check = |registration: &Registration| if registration.shard == shard { Ok(()) } else { Err(()) };
        memory.try_for_each(check, KEY).is_ok()
    }

    /// Checks that memory is of this shard, and has the rights that a request needs.
    pub(super) fn check(&self, memory: &impl Lend, needed: Access) -> Result<()> {
        let check = |registration: &Registration| {
            self.shard.owns(registration)?;
            let granted = registration.access;
            if granted.contains(needed) { Ok(()) } else { Err(Error::MissingRights { needed, granted }) }
        };
        memory.try_for_each(check, KEY)
    }

    pub(super) fn post_receives(&self, pool: &Pool, count: u32) -> Result<()> {
        self.shard.owns(pool.registration())?;
        for _ in 0..count {
            let span = pool.take()?.into_span();
            let posted = self.with(|core| core.post_receive(self.index, span, SlotState::Inbox));
            posted.map_err(|refused| refused.error)?;
        }
        Ok(())
    }
}

impl<D: TrustedDevice> Drop for Handle<D> {
    fn drop(&mut self) {
        self.shard.inner.with(|core| core.abandon(self.index));
    }
}

/// A queue pair without a connection. Receives can be posted, nothing can be sent.
#[must_use = "dropping it destroys the queue pair"]
pub struct Endpoint<D: TrustedDevice = AnyDevice> {
    handle: Handle<D>,
}

impl<D: TrustedDevice> Endpoint<D> {
    pub(super) fn new(shard: &Shard<D>, wanted: QpCapabilities, shared: Option<usize>) -> Result<Self> {
        let (index, qp) = shard.inner.with(|core| core.create(wanted, shared))?;
        Ok(Self { handle: Handle { shard: shard.clone(), index, qp } })
    }

    /// Posts buffers of the pool as receives. Do so before connecting or accepting: iWARP does not retry a
    /// message that finds no receive. Each is posted again when its message was read and dropped.
    ///
    /// # Errors
    /// [`Error::PoolEmpty`], [`Error::ForeignMemory`], or the device's if the queue is full. The receives
    /// before that are posted.
    pub fn post_receives(&self, pool: &Pool, count: u32) -> Result<()> {
        self.handle.post_receives(pool, count)
    }

    /// Posts a piece of a region as a receive. It is one of the connection's receives, in the order of
    /// posting, and its message goes to the [`Landing`] and not to [`Connection::recv`].
    ///
    /// # Errors
    /// [`Failed`] with the piece: the device's if the queue is full, [`Error::ForeignMemory`],
    /// [`Error::MissingRights`].
    pub fn land(&self, piece: Piece) -> std::result::Result<Landing<D>, Failed<Piece>> {
        Landing::post(&self.handle, piece)
    }

    /// The capabilities that the device granted.
    #[must_use]
    pub fn capabilities(&self) -> QpCapabilities {
        self.handle.with(|core| self.handle.pair(core).granted)
    }

    /// Connects to a listener. The attempt begins at once. Dropping it ends it.
    pub fn connect(self, remote: SocketAddr, private_data: &[u8]) -> Connecting<D> {
        self.begin(|core, qp, events| core.cq.connect(qp, remote, None, private_data, &core.options, events))
    }

    /// Accepts a request.
    pub(super) fn accept(self, request: D::Request, private_data: &[u8]) -> Connecting<D> {
        self.begin(|core, qp, events| core.cq.accept(qp, request, private_data, &core.options, events))
    }

    fn begin(
        self,
        start: impl FnOnce(&mut Core<D>, QpId, EventTarget) -> crate::Result<()>,
    ) -> Connecting<D> {
        let handle = self.handle;
        let outcome = handle.with(|core| {
            let events = core.attempt(handle.index);
            start(core, handle.qp, events)
        });
        Connecting { begun: Some((handle, outcome)), ticket: None }
    }
}

/// An attempt to connect. It becomes a [`Connection`]. If it fails, its queue pair is spent: it is destroyed,
/// and the buffers of its receives go back to their pool.
///
/// # Errors
/// [`Error::Ended`] with the reason, or the peer's rejection and its private data; the device's, if it
/// refused to begin.
#[must_use = "dropping it ends the attempt"]
pub struct Connecting<D: TrustedDevice = AnyDevice> {
    /// The queue pair, and whether the attempt has begun. `None` after the outcome was returned.
    begun: Option<(Handle<D>, crate::Result<()>)>,
    ticket: Option<u64>,
}

impl<D: TrustedDevice> Future for Connecting<D> {
    type Output = Result<Connection<D>>;

    /// After the outcome it stays pending.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (handle, ticket) = match self.begun.take() {
            None => return Poll::Pending,
            Some((_, Err(error))) => return Poll::Ready(Err(error.into())),
            Some((handle, Ok(()))) => (handle, &mut self.ticket),
        };
        let state = handle.with(|core| {
            core.poll_events(handle.index);
            let pair = &mut core.pairs[handle.index];
            if pair.state == State::Attempting {
                pair.watchers.register(ticket, context.waker(), &mut core.woken);
            }
            pair.state.clone()
        });
        match state {
            State::Established => Poll::Ready(Ok(Connection::new(handle))),
            State::Ended(end) => Poll::Ready(Err(Error::Ended(end))),
            State::Idle | State::Attempting | State::Closing => {
                self.begun = Some((handle, Ok(())));
                Poll::Pending
            }
        }
    }
}

impl<D: TrustedDevice> Connecting<D> {
    /// Waits for the outcome, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of the attempt.
    pub fn wait(self) -> Result<Connection<D>> {
        match &self.begun {
            Some((handle, _)) => handle.shard.clone().block_on(self),
            None => Err(crate::Error::BadState { state: "spent", what: "waiting" }.into()),
        }
    }
}
