//! Listeners and connection requests.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::{Connecting, End, Endpoint, Error, Result, Shard, TrustedDevice};
use crate::{AnyDevice, ConnectionRequest as _};

/// A listener. Dropping it cuts the requests that were not taken.
#[derive(Debug)]
pub struct Listener<D: TrustedDevice = AnyDevice> {
    shard: Shard<D>,
    index: usize,
    address: SocketAddr,
}

impl<D: TrustedDevice> Listener<D> {
    pub(super) fn new(shard: &Shard<D>, address: SocketAddr, backlog: u32) -> Result<Self> {
        let (index, address) = shard.inner.with(|core| core.listen(address, backlog))?;
        Ok(Self { shard: shard.clone(), index, address })
    }

    /// The address that it listens on, with the actual port.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// The next request.
    pub fn next(&self) -> Next<'_, D> {
        Next { listener: self, ticket: None }
    }

    /// Stops listening: the requests that were not taken are cut, and so are further ones. Whoever waits for one is
    /// told.
    pub fn stop(&self) {
        self.shard.inner.with(|core| core.stop_listening(self.index));
    }

    /// The next request, or registers the task.
    pub(super) fn poll_next(
        &self,
        ticket: &mut Option<u64>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Incoming<D>>> {
        self.shard.inner.with(|core| {
            core.poll_listener(self.index);
            // It exists as long as its handle.
            let listening = &mut core.listeners[self.index];
            match listening.requests.pop_front() {
                Some(request) => Poll::Ready(Ok(Incoming { request })),
                None if listening.listener.is_none() => Poll::Ready(Err(Error::Ended(End::ListenerStopped))),
                None => {
                    listening.watchers.register(ticket, context.waker(), &mut core.woken);
                    Poll::Pending
                }
            }
        })
    }
}

impl<D: TrustedDevice> Drop for Listener<D> {
    fn drop(&mut self) {
        self.shard.inner.with(|core| core.remove_listener(self.index));
    }
}

/// The next request of a listener.
///
/// # Errors
/// [`End::ListenerStopped`] after [`Listener::stop`].
#[must_use = "it does nothing before it is polled"]
pub struct Next<'l, D: TrustedDevice = AnyDevice> {
    listener: &'l Listener<D>,
    ticket: Option<u64>,
}

impl<D: TrustedDevice> Next<'_, D> {
    /// Waits for it, and drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of [`Next`].
    pub fn wait(self) -> Result<Incoming<D>> {
        self.listener.shard.block_on(self)
    }
}

impl<D: TrustedDevice> Future for Next<'_, D> {
    type Output = Result<Incoming<D>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { listener, ticket } = &mut *self;
        listener.poll_next(ticket, context)
    }
}

impl<D: TrustedDevice> Drop for Next<'_, D> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            self.listener.shard.inner.with(|core| {
                if let Some(listening) = core.listeners.get_mut(self.listener.index) {
                    listening.watchers.remove(self.ticket, &mut core.woken);
                }
            });
        }
    }
}

/// A request to connect. Dropping it cuts it without an answer.
#[must_use = "dropping it cuts it without an answer"]
pub struct Incoming<D: TrustedDevice = AnyDevice> {
    request: D::Request,
}

impl<D: TrustedDevice> Incoming<D> {
    /// The private data of the request: the exact bytes if the transport preserves their length, otherwise
    /// padded with zeros.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.request.private_data()
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddr {
        self.request.peer_address()
    }

    /// Accepts it on this endpoint, with private data for the peer.
    pub fn accept(self, endpoint: Endpoint<D>, private_data: &[u8]) -> Connecting<D> {
        endpoint.accept(self.request, private_data)
    }

    /// Rejects it, with private data for the peer.
    pub fn reject(self, private_data: &[u8]) {
        self.request.reject(private_data);
    }
}
