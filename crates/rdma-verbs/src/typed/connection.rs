//! Established connections and their ends.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::core::Core;
use super::endpoint::Handle;
use super::slots::NO_SLOT;
use super::work::{Batch, Lend, Operation, Work};
use super::{Buf, End, Error, Failed, Landing, Piece, Pool, Recv, Remote, Result, TrustedDevice};
use crate::{
    AnyDevice, CompletionStatus, Connections as _, Operation as Verb, Payload, QpCapabilities,
    QueuePairs as _, SendRequest,
};

/// An established connection. Dropping it ends it in order, without waiting for that: what was posted before
/// is sent, as long as something drives the shard.
#[must_use = "dropping it ends the connection"]
pub struct Connection<D: TrustedDevice = AnyDevice> {
    handle: Handle<D>,
}

impl<D: TrustedDevice> Handle<D> {
    /// Why a post was refused: the end of the connection, if that is it.
    pub(super) fn refusal(&self, core: &mut Core<D>, error: crate::Error) -> Error {
        core.poll_events(self.index);
        match (error, self.pair(core).end()) {
            (crate::Error::BadState { .. }, Some(end)) => end.clone().into(),
            (error, _) => error.into(),
        }
    }

    /// Why an operation has failed.
    #[cold]
    pub(super) fn failure(&self, core: &mut Core<D>, status: CompletionStatus) -> Error {
        Error::Operation { status, end: self.pair(core).end().cloned() }
    }

    /// How the connection has ended, or registers the task.
    fn poll_end(&self, ticket: &mut Option<u64>, context: &mut Context<'_>) -> Poll<End> {
        self.with(|core| {
            core.poll_events(self.index);
            let pair = &mut core.pairs[self.index];
            if let Some(end) = pair.end() {
                return Poll::Ready(end.clone());
            }
            pair.watchers.register(ticket, context.waker(), &mut core.woken);
            Poll::Pending
        })
    }

    fn send_inline(&self, core: &mut Core<D>, bytes: &[u8]) -> Result<()> {
        let pair = self.pair(core);
        // Unsignaled requests hold their entries until a signaled one is polled.
        let signaled = 2 * (pair.unsignaled + 1) >= pair.granted.send_depth;
        let slices = [IoSlice::new(bytes)];
        let operation = Verb::Send { immediate: None, invalidate: None, solicited: false };
        let request = [SendRequest { id: NO_SLOT, signaled, operation, payload: Payload::Inline(&slices) }];
        let outcome = match core.cq.post_send(self.qp, &request, false) {
            Err(crate::Error::QueueFull { .. }) if core.reap() => core.cq.post_send(self.qp, &request, false),
            outcome => outcome,
        };
        outcome.map_err(|error| self.refusal(core, error))?;
        let pair = self.pair(core);
        pair.unsignaled = if signaled { 0 } else { pair.unsignaled + 1 };
        Ok(())
    }
}

impl<D: TrustedDevice> Connection<D> {
    pub(super) fn new(handle: Handle<D>) -> Self {
        Self { handle }
    }

    pub(super) fn into_handle(self) -> Handle<D> {
        self.handle
    }

    /// Posts the operation. Its future becomes the memory.
    pub fn post<M: Lend>(&self, work: Work<M>) -> Operation<'_, M, D> {
        Operation::new(&self.handle, work)
    }

    /// Posts operations together: the device is told once. Their future becomes their memory.
    pub fn batch<M: Lend, const N: usize>(&self, works: [Work<M>; N]) -> Batch<'_, D, M, N> {
        Batch::new(&self.handle, works)
    }

    /// [`Work::send`]
    pub fn send<M: Lend>(&self, memory: M) -> Operation<'_, M, D> {
        self.post(Work::send(memory))
    }

    /// [`Work::write`]
    pub fn write<M: Lend>(&self, memory: M, remote: Remote) -> Operation<'_, M, D> {
        self.post(Work::write(memory, remote))
    }

    /// [`Work::read`]
    pub fn read<M: Lend>(&self, memory: M, remote: Remote) -> Operation<'_, M, D> {
        self.post(Work::read(memory, remote))
    }

    /// Sends bytes that the device copies at once, at most [`QpCapabilities::inline`]. A failure later shows
    /// only as the end of the connection.
    ///
    /// # Errors
    /// The device's; [`Error::Ended`].
    pub fn send_inline(&self, bytes: &[u8]) -> Result<()> {
        self.handle.with(|core| self.handle.send_inline(core, bytes))
    }

    /// Tells the peer, by a message of [`Remote::ADVERT`] bytes in this buffer, of memory of this side.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`], with the buffer, if the buffer is too small.
    pub fn advertise(
        &self,
        mut buf: Buf,
        memory: Remote,
    ) -> std::result::Result<Operation<'_, Buf, D>, Failed<Buf>> {
        if let Err(error) = buf.resize(Remote::ADVERT) {
            return Err(Failed { memory: buf, error });
        }
        buf.copy_from_slice(&memory.to_advert());
        Ok(self.send(buf))
    }

    /// The next message.
    pub fn recv(&self) -> Recv<'_, D> {
        Recv::new(&self.handle)
    }

    /// Posts more buffers of the pool as receives.
    ///
    /// # Errors
    /// As [`Endpoint::post_receives`](super::Endpoint::post_receives).
    pub fn post_receives(&self, pool: &Pool, count: u32) -> Result<()> {
        self.handle.post_receives(pool, count)
    }

    /// Posts a piece of a region as a receive, as [`Endpoint::land`](super::Endpoint::land) does.
    ///
    /// # Errors
    /// Those of it.
    pub fn land(&self, piece: Piece) -> std::result::Result<Landing<D>, Failed<Piece>> {
        Landing::post(&self.handle, piece)
    }

    /// Number of requests that the device has, receives included: their memory is in use.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.handle.with(|core| self.handle.pair(core).outstanding)
    }

    /// Number of receives that wait for messages. If every message that arrived is held, there are none, and
    /// the peer has to wait, or over iWARP the next message breaks the connection.
    #[must_use]
    pub fn receives(&self) -> usize {
        self.handle.with(|core| self.handle.pair(core).receives)
    }

    /// The private data of the peer's reply. The side that accepted gets none.
    #[must_use]
    pub fn private_data(&self) -> Vec<u8> {
        self.handle.with(|core| self.handle.pair(core).private_data.clone())
    }

    /// The capabilities that the device granted.
    #[must_use]
    pub fn capabilities(&self) -> QpCapabilities {
        self.handle.with(|core| self.handle.pair(core).granted)
    }

    /// The address of the peer, if the device knows it.
    #[must_use]
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.handle.with(|core| core.cq.peer_address(self.handle.qp))
    }

    /// The address of this side, if the device knows it.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.handle.with(|core| core.cq.local_address(self.handle.qp))
    }

    /// How the connection has ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.handle.with(|core| {
            core.poll_events(self.handle.index);
            self.handle.pair(core).end().cloned()
        })
    }

    /// Begins the orderly end: what was posted is sent, and nothing more can be posted. Messages of the peer
    /// still arrive, until it has ended its side.
    pub fn close(self) -> Closing<D> {
        self.disconnect();
        Closing { handle: self.handle, ticket: None }
    }

    /// Begins the orderly end as [`Connection::close`] does, of a connection whose operations and messages
    /// are still awaited. [`Connection::ended`] waits for the end.
    pub fn disconnect(&self) {
        self.handle.with(|core| core.close(self.handle.index));
    }

    /// How the connection ends.
    pub fn ended(&self) -> Ended<'_, D> {
        Ended { handle: &self.handle, ticket: None }
    }

    /// Breaks the connection at once. The peer is told, and operations fail.
    pub fn abort(&self) {
        self.handle.with(|core| {
            core.cq.abort(self.handle.qp);
            core.poll_events(self.handle.index);
        });
    }
}

/// The end of a connection, whichever side begins it.
#[must_use = "it does nothing before it is polled"]
pub struct Ended<'c, D: TrustedDevice = AnyDevice> {
    handle: &'c Handle<D>,
    ticket: Option<u64>,
}

impl<D: TrustedDevice> Future for Ended<'_, D> {
    type Output = End;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<End> {
        let Self { handle, ticket } = &mut *self;
        handle.poll_end(ticket, context)
    }
}

impl<D: TrustedDevice> Drop for Ended<'_, D> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.handle.with(|core| {
                core.pairs[self.handle.index].watchers.remove(self.ticket, &mut core.woken);
            });
        }
    }
}

/// A connection whose orderly end this side has begun. It ends when the peer has ended its side too, or when
/// the peer's host has everything and nothing can arrive any more. Dropping it does not wait for that.
///
/// # Errors
/// [`Error::Ended`] if the connection broke.
#[must_use = "dropping it does not wait for the peer"]
pub struct Closing<D: TrustedDevice = AnyDevice> {
    handle: Handle<D>,
    ticket: Option<u64>,
}

impl<D: TrustedDevice> Closing<D> {
    /// The next message, as long as some arrive.
    pub fn recv(&self) -> Recv<'_, D> {
        Recv::new(&self.handle)
    }

    /// Waits for the end, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of the end.
    pub fn wait(self) -> Result<()> {
        self.handle.shard.clone().block_on(self)
    }
}

impl<D: TrustedDevice> Future for Closing<D> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { handle, ticket } = &mut *self;
        handle.poll_end(ticket, context).map(|end| match end {
            End::Disconnected => Ok(()),
            end => Err(Error::Ended(end)),
        })
    }
}
