//! The hub: its listeners and its connections, of which it polls those that have something to do.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::channel::{Channel, Output};
use super::flow;
use super::ready::{Ready, Source};
use super::wire::{Header, Hello};
use super::{Event, Options, Peer, Reason, Request, Ticket, Violation};
use crate::typed::{
    Connecting, Connection, End, Endpoint, Listener, Pool, Region, Result, Shard, TrustedDevice, out_of_range,
};
use crate::{AnyDevice, BreakReason, PrivateDataLimits};

/// A connection that is not made yet.
struct Attempt<D: TrustedDevice> {
    connecting: Connecting<D>,
    pool: Pool,
    /// What the peer has said in its request, and the program's data with it. The side that connects gets
    /// them with the reply.
    request: Option<(Hello, Vec<u8>)>,
}

/// A connection and the waker that it is polled with.
struct Entry<D: TrustedDevice> {
    state: State<D>,
    waker: Waker,
}

enum State<D: TrustedDevice> {
    Attempt(Attempt<D>),
    Established(Box<Channel<D>>),
    /// An attempt that the program has ended.
    Aborted,
}

/// A listener, and the ticket of its waker.
struct Listening<D: TrustedDevice> {
    listener: Listener<D>,
    ticket: Option<u64>,
}

/// Messages to and from peers, by connections that it makes and accepts. Dropping it ends its connections,
/// without waiting for that.
///
/// Its shard has to be driven, as for all of the [typed layer](crate::typed): [`Hub::dispatch`] and the `wait`
/// of [`Hub::next`] do that. Connections make progress while one of them is called. Connections of one shard
/// share its protection domain: a hub for peers that must not learn each other's keys has a shard for each.
pub struct Hub<D: TrustedDevice = AnyDevice> {
    shard: Shard<D>,
    options: Options,
    limits: PrivateDataLimits,
    listeners: Vec<Listening<D>>,
    peers: BTreeMap<Peer, Entry<D>>,
    ready: Arc<Ready>,
    /// The number of the next peer or ticket.
    next: u64,
}

impl<D: TrustedDevice> Hub<D> {
    /// A hub without connections.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] for options outside their limits.
    pub fn new(shard: &Shard<D>, options: Options) -> Result<Self> {
        let attributes = shard.inner.with(|core| core.attributes.clone());
        options.check(attributes.max_message)?;
        Ok(Self {
            shard: shard.clone(),
            options,
            limits: attributes.private_data,
            listeners: Vec::new(),
            peers: BTreeMap::new(),
            ready: Arc::default(),
            next: 0,
        })
    }

    /// Listens on `address` (port 0: any free port), as long as the hub lives. Returns the address with the
    /// actual port. At most `backlog` requests wait to be reported; further ones are cut. What is no hub's
    /// request is rejected inside.
    ///
    /// # Errors
    /// The device's.
    pub fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<SocketAddr> {
        let listener = self.shard.listen(address, backlog)?;
        let address = listener.local_address();
        self.ready.add(Source::Listener(self.listeners.len()));
        self.listeners.push(Listening { listener, ticket: None });
        Ok(address)
    }

    /// Connects to a hub that listens. The outcome is an event.
    ///
    /// # Errors
    /// The device's; [`crate::Error::OutOfRange`] for too much private data.
    pub fn connect(&mut self, remote: SocketAddr, private_data: &[u8]) -> Result<Peer> {
        let hello = self.hello(private_data, self.limits.request)?;
        let (endpoint, pool) = self.endpoint()?;
        Ok(self.add(Attempt { connecting: endpoint.connect(remote, &hello), pool, request: None }))
    }

    /// Accepts a request. The outcome is an event.
    ///
    /// # Errors
    /// Those of [`Hub::connect`]. Then the request is rejected.
    pub fn accept(&mut self, mut request: Request<D>, private_data: &[u8]) -> Result<Peer> {
        let hello = self.hello(private_data, self.limits.reply)?;
        let (endpoint, pool) = self.endpoint()?;
        // It has none after an answer, which consumes the request.
        let spent = crate::Error::BadState { state: "spent", what: "accepting" };
        let incoming = request.incoming.take().ok_or(spent)?;
        let from_request = (request.hello, std::mem::take(&mut request.private_data));
        let connecting = incoming.accept(endpoint, &hello);
        Ok(self.add(Attempt { connecting, pool, request: Some(from_request) }))
    }

    fn hello(&self, private_data: &[u8], limit: usize) -> Result<Vec<u8>> {
        let most = limit.saturating_sub(Hello::LENGTH).min(u8::MAX.into());
        let length = private_data.len();
        if length > most {
            return Err(out_of_range("private data length", length as u64, 0, most));
        }
        Ok(Hello::new(&self.options).encode(private_data))
    }

    /// A queue pair with its receives, and the pool of its buffers.
    fn endpoint(&self) -> Result<(Endpoint<D>, Pool)> {
        let receives = flow::receives(&self.options);
        let size = self.options.eager + Header::LENGTH as u32;
        let pool = self.shard.pool(receives + self.options.sends(), size)?;
        let endpoint = self.shard.endpoint(self.options.queues())?;
        endpoint.post_receives(&pool, receives)?;
        Ok((endpoint, pool))
    }

    fn add(&mut self, attempt: Attempt<D>) -> Peer {
        let peer = Peer(self.number());
        let waker = self.ready.add(Source::Peer(peer)).into();
        self.peers.insert(peer, Entry { state: State::Attempt(attempt), waker });
        peer
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Sends a message, of which the bytes are copied. [`Event::Sent`] reports that it is sent.
    ///
    /// # Errors
    /// [`crate::Error::QueueFull`] if [`Options::queue`] messages are not reported as sent: it can be sent
    /// after such a report. [`crate::Error::OutOfRange`] if the peer takes no message of this length.
    /// [`crate::Error::BadState`] if the peer is not connected, or the end of the connection has begun.
    pub fn send(&mut self, peer: Peer, bytes: &[u8]) -> Result<Ticket> {
        self.post(peer, |channel, ticket| channel.send(ticket, bytes))
    }

    /// Sends a piece of a region with [`Access::REMOTE_READ`](crate::Access::REMOTE_READ). If it is long, its
    /// bytes are not copied on this side: they must not change until [`Event::Sent`] reports it.
    ///
    /// # Errors
    /// Those of [`Hub::send`]; [`OutOfBounds`](crate::typed::Error::OutOfBounds),
    /// [`MissingRights`](crate::typed::Error::MissingRights),
    /// [`ForeignMemory`](crate::typed::Error::ForeignMemory).
    pub fn send_region(&mut self, peer: Peer, region: &Region, range: Range<usize>) -> Result<Ticket> {
        self.post(peer, |channel, ticket| channel.send_region(ticket, region, range))
    }

    fn post(
        &mut self,
        peer: Peer,
        send: impl FnOnce(&mut Channel<D>, Ticket) -> Result<()>,
    ) -> Result<Ticket> {
        let ticket = Ticket(self.number());
        let Some(Entry { state: State::Established(channel), waker }) = self.peers.get_mut(&peer) else {
            return Err(crate::Error::BadState { state: "not connected", what: "sending a message" }.into());
        };
        send(channel, ticket)?;
        // The next call that waits polls it.
        waker.wake_by_ref();
        Ok(ticket)
    }

    /// Begins the orderly end of a connection: it ends when the peer has everything that was sent. Nothing
    /// more can be sent, and messages of the peer may still arrive. [`Event::Disconnected`] reports the end.
    pub fn disconnect(&mut self, peer: Peer) {
        self.end(peer, Channel::disconnect);
    }

    /// Breaks a connection, or ends the attempt to make one. [`Event::Disconnected`] reports it.
    pub fn abort(&mut self, peer: Peer) {
        self.end(peer, |channel| channel.abort());
    }

    fn end(&mut self, peer: Peer, end: impl FnOnce(&mut Channel<D>)) {
        let Some(Entry { state, waker }) = self.peers.get_mut(&peer) else { return };
        match state {
            State::Established(channel) => end(channel),
            State::Attempt(_) | State::Aborted => *state = State::Aborted,
        }
        waker.wake_by_ref();
    }

    /// The address of a peer, if there is a connection.
    #[must_use]
    pub fn peer_address(&self, peer: Peer) -> Option<SocketAddr> {
        match &self.peers.get(&peer)?.state {
            State::Established(channel) => channel.peer_address(),
            State::Attempt(_) | State::Aborted => None,
        }
    }

    /// The next event. Dropping the future loses none.
    #[expect(clippy::should_implement_trait, reason = "it is the name of this in the typed layer")]
    pub fn next(&mut self) -> Next<'_, D> {
        Next { hub: self }
    }

    /// The next event, if there is one before the time is over. It drives the shard meanwhile.
    ///
    /// # Errors
    /// Those of [`Shard::drive`].
    pub fn dispatch(&mut self, timeout: Duration) -> Result<Option<Event<D>>> {
        let shard = self.shard.clone();
        let now = Instant::now();
        if let Some(event) = shard.block_on_until(&mut self.next(), now) {
            return Ok(Some(event));
        }
        // Also without any time it does what there is to do.
        shard.drive()?;
        match now.checked_add(timeout) {
            Some(deadline) => Ok(shard.block_on_until(&mut self.next(), deadline)),
            None => Ok(Some(self.next().wait())),
        }
    }

    fn poll_listener(&mut self, index: usize, waker: &Waker) -> Option<Event<D>> {
        let Listening { listener, ticket } = self.listeners.get_mut(index)?;
        loop {
            match listener.poll_next(ticket, &mut Context::from_waker(waker)) {
                Poll::Pending | Poll::Ready(Err(_)) => return None,
                Poll::Ready(Ok(incoming)) => match Request::new(incoming) {
                    Ok(request) => return Some(Event::Request(request)),
                    Err((incoming, violation)) => {
                        log::debug!("rejects a request of {}: {violation}", incoming.peer_address());
                        incoming.reject(b"");
                    }
                },
            }
        }
    }

    fn poll_peer(&mut self, peer: Peer, waker: &Waker) -> Option<Event<D>> {
        let context = &mut Context::from_waker(waker);
        let Entry { state, .. } = self.peers.get_mut(&peer)?;
        let reason = match state {
            State::Established(channel) => match channel.poll(context)? {
                Output::Sent(ticket) => return Some(Event::Sent { peer, ticket }),
                Output::Message(message) => return Some(Event::Message { peer, message }),
                Output::Ended(reason) => reason,
            },
            State::Aborted => Reason::Ended(End::Broken(BreakReason::Aborted)),
            State::Attempt(attempt) => match Pin::new(&mut attempt.connecting).poll(context) {
                Poll::Pending => return None,
                Poll::Ready(Err(error)) => error.into(),
                Poll::Ready(Ok(connection)) => match attempt.establish(connection, self.options) {
                    Ok((channel, private_data)) => {
                        *state = State::Established(Box::new(channel));
                        return Some(Event::Established { peer, private_data });
                    }
                    Err(violation) => violation.into(),
                },
            },
        };
        self.peers.remove(&peer);
        Some(Event::Disconnected { peer, reason })
    }
}

impl<D: TrustedDevice> Attempt<D> {
    /// Makes a channel of the connection that it has become.
    fn establish(
        &mut self,
        connection: Connection<D>,
        options: Options,
    ) -> std::result::Result<(Channel<D>, Vec<u8>), Violation> {
        let connects = self.request.is_none();
        let (hello, private_data) = match self.request.take() {
            Some(request) => request,
            None => {
                let reply = connection.private_data();
                match Hello::decode(&reply) {
                    Ok((hello, private_data)) => (hello, private_data.to_vec()),
                    Err(violation) => {
                        connection.abort();
                        return Err(violation);
                    }
                }
            }
        };
        Ok((Channel::new(connection, self.pool.clone(), options, &hello, connects), private_data))
    }
}

impl<D: TrustedDevice> fmt::Debug for Hub<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("peers", &self.peers.len()).finish_non_exhaustive()
    }
}

/// The next event of a hub.
#[must_use = "it does nothing before it is polled"]
pub struct Next<'h, D: TrustedDevice = AnyDevice> {
    hub: &'h mut Hub<D>,
}

impl<D: TrustedDevice> Next<'_, D> {
    /// Waits for it, and drives the shard meanwhile.
    pub fn wait(self) -> Event<D> {
        self.hub.shard.clone().block_on(self)
    }
}

impl<D: TrustedDevice> Future for Next<'_, D> {
    type Output = Event<D>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Event<D>> {
        let hub = &mut *self.hub;
        // A source that cannot go on before the shard is driven wakes itself.
        for _ in 0..hub.ready.len() {
            let Some((source, waker)) = hub.ready.next() else { break };
            let event = match source {
                Source::Listener(index) => hub.poll_listener(index, &waker),
                Source::Peer(peer) => hub.poll_peer(peer, &waker),
            };
            if let Some(event) = event {
                // It may have more to report, after the others.
                waker.wake();
                return Poll::Ready(event);
            }
        }
        hub.ready.register(context.waker());
        Poll::Pending
    }
}
