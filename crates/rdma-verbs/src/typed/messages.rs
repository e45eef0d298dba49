//! Messages of any length between programs, reported as events.
//!
//! A [`Hub`] listens and connects on one [`Shard`]. Messages arrive whole, once, and in the order in which
//! their connection's peer has sent them, or the connection reports its end. What verbs leave to the program
//! is done inside: the hub posts receives and tells the peer of them, so that none is ever missing, and long
//! messages stay with their sender until the receiver's device reads them.
//!
//! ```
//! use rdma_verbs::typed::Shard;
//! use rdma_verbs::typed::messages::{Event, Hub, Options};
//!
//! # fn main() -> Result<(), rdma_verbs::typed::Error> {
//! let mut hub = Hub::new(&Shard::embedded()?, Options::default())?;
//! let address = hub.listen(([127, 0, 0, 1], 0).into(), 8)?;
//! let client = hub.connect(address, b"")?;
//! loop {
//!     match hub.next().wait() {
//!         Event::Request(request) => _ = hub.accept(request, b"")?,
//!         Event::Established { peer, .. } if peer == client => _ = hub.send(peer, b"hello")?,
//!         Event::Established { .. } => {}
//!         Event::Message { peer, message } if peer == client => {
//!             assert_eq!(*message, [b'!'; 100_000]);
//!             hub.disconnect(peer);
//!         }
//!         Event::Message { peer, message } => {
//!             assert_eq!(*message, *b"hello");
//!             hub.send(peer, &[b'!'; 100_000])?;
//!         }
//!         Event::Sent { .. } => {}
//!         Event::Disconnected { peer, .. } if peer == client => return Ok(()),
//!         Event::Disconnected { .. } => {}
//!     }
//! }
//! # }
//! ```
//!
//! `docs/verbs/messages.md` of the repository has the format, and what a hostile peer can do.

mod channel;
mod flow;
mod message;
mod ready;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

pub use message::Message;

use self::channel::{Channel, Output};
use self::ready::{Ready, Source};
use self::wire::{Header, Hello};
use super::{
    Connecting, Connection, End, Endpoint, Error, Incoming, Listener, Pool, Region, Result, Shard,
    TrustedDevice, out_of_range,
};
use crate::{AnyDevice, BreakReason, PrivateDataLimits, QpCapabilities};

/// What each connection of a hub has. It takes memory for `window + offers + 2 + queue + 2` buffers, for what
/// it sends and the peer has not read, and for as many of the peer's longest messages as `offers` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Length in bytes of the longest message that is sent at once, in a buffer; at least
    /// [`Options::LEAST_EAGER`]. A longer one stays in the sender's memory until the receiver reads it. The
    /// lesser of both sides' values counts.
    pub eager: u32,
    /// Length in bytes of the longest message that this side takes; at least `eager`.
    pub longest: u32,
    /// Number of messages that the program may hold, or that may be under way to it. Then the peer waits.
    pub window: u16,
    /// Number of long messages that are read at a time.
    pub offers: u8,
    /// Number of messages that the program may send before it is told that they are sent.
    pub queue: u32,
}

impl Options {
    /// The least value of `eager`.
    pub const LEAST_EAGER: u32 = (Header::OFFER - Header::LENGTH) as u32;

    fn check(&self, max_message: u64) -> Result<()> {
        let most_longest = usize::try_from(max_message).unwrap_or(usize::MAX).min(u32::MAX as usize);
        let limits: [(_, u64, u64, usize); 5] = [
            ("longest message", self.longest.into(), 1, most_longest),
            // A buffer has a header, too.
            (
                "eager message",
                self.eager.into(),
                Self::LEAST_EAGER.into(),
                self.longest.min(1 << 30) as usize,
            ),
            ("window", self.window.into(), 1, u16::MAX.into()),
            ("number of offers", self.offers.into(), 1, u8::MAX.into()),
            ("queue", self.queue.into(), 1, 1 << 20),
        ];
        for (what, value, least, most) in limits {
            if !(least..=most as u64).contains(&value) {
                return Err(out_of_range(what, value, least, most));
            }
        }
        Ok(())
    }

    /// Number of buffers for what it sends: each message has one, and two are for what has none.
    fn sends(&self) -> u32 {
        self.queue + 2
    }

    fn queues(&self) -> QpCapabilities {
        QpCapabilities {
            send_depth: self.sends() + u32::from(self.offers),
            recv_depth: flow::receives(self),
            inline: 0,
            initiator_depth: self.offers,
            responder_resources: self.offers,
        }
    }
}

impl Default for Options {
    /// Buffers of 4 KiB, messages up to 1 MiB; 2 MiB and 230 KiB for each connection.
    fn default() -> Self {
        Self { eager: 4096 - Header::LENGTH as u32, longest: 1 << 20, window: 16, offers: 2, queue: 32 }
    }
}

/// A connection of a hub. The hub never uses the same value for two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(u64);

/// A message that was sent. The hub never uses the same value for two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What happens.
pub enum Event<D: TrustedDevice = AnyDevice> {
    /// A peer wants to connect. Unless it is accepted, it is rejected when it is dropped.
    Request(Request<D>),
    /// There is a connection: messages can be sent.
    Established {
        /// The connection.
        peer: Peer,
        /// What the peer has given with its request or its reply.
        private_data: Vec<u8>,
    },
    /// A message has arrived.
    Message {
        /// Its connection.
        peer: Peer,
        /// Its bytes.
        message: Message<D>,
    },
    /// A message was sent: the device has transmitted it, or the peer has read it. Its place in the queue is
    /// free again, and so is its memory. A long one may be reported after later ones.
    Sent {
        /// Its connection.
        peer: Peer,
        /// What [`Hub::send`] has returned.
        ticket: Ticket,
    },
    /// The connection is no more, or was never made. It is the last event of this peer. Messages that were
    /// not reported as sent may not have arrived.
    Disconnected {
        /// The connection.
        peer: Peer,
        /// Why.
        reason: Reason,
    },
}

impl<D: TrustedDevice> fmt::Debug for Event<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(request) => f.debug_tuple("Request").field(request).finish(),
            Self::Established { peer, .. } => f.debug_tuple("Established").field(peer).finish(),
            Self::Message { peer, message } => f.debug_tuple("Message").field(peer).field(message).finish(),
            Self::Sent { peer, ticket } => f.debug_tuple("Sent").field(peer).field(ticket).finish(),
            Self::Disconnected { peer, reason } => {
                f.debug_tuple("Disconnected").field(peer).field(reason).finish()
            }
        }
    }
}

/// Why a connection is no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// It ended, or it was never made.
    #[error(transparent)]
    Ended(End),
    /// The peer has sent what no hub sends, and this side has broken the connection.
    #[error("the peer is no hub, or lies: {0}")]
    Violation(#[from] Violation),
    /// This side could not go on, and has broken the connection.
    #[error(transparent)]
    Failed(Error),
}

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        match error {
            Error::Ended(end) => Self::Ended(end),
            error => Self::Failed(error),
        }
    }
}

/// What a peer has done that no hub does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The private data of its reply.
    #[error("private data of {length} bytes are no hello")]
    NoHello {
        /// Their length.
        length: usize,
    },
    /// A message without a header.
    #[error("a message of {length} bytes has no header")]
    NoHeader {
        /// Its length.
        length: usize,
    },
    /// A message of another kind.
    #[error("a message of kind {0}")]
    UnknownKind(u8),
    /// A reserved byte that is not 0.
    #[error("a reserved byte of {0}")]
    Reserved(u8),
    /// A write that consumes a receive, or an invalidation.
    #[error("a request of a kind that no hub posts")]
    NoMessage,
    /// A message without a credit for it.
    #[error("a message without a credit")]
    Unannounced,
    /// Credits for more than the peer has.
    #[error("{more} credits more than {held} exceed the window of {window}")]
    TooManyCredits {
        /// Credits that this side has.
        held: u16,
        /// Those of the message.
        more: u16,
        /// The peer's window.
        window: u16,
    },
    /// A message that has nothing but credits, and none of them.
    #[error("a message of credits has none")]
    NoCredits,
    /// A header that does not describe its message.
    #[error("the header says {said} bytes, {arrived} arrived")]
    WrongLength {
        /// The length in the header.
        said: u32,
        /// What follows the header, in bytes.
        arrived: usize,
    },
    /// A message whose length is not one of its kind.
    #[error("a length of {length} is not within {least} to {most}")]
    LengthOutOfRange {
        /// Its length in bytes.
        length: u32,
        /// The least length of its kind.
        least: u32,
        /// The greatest length of its kind.
        most: u32,
    },
    /// More long messages at a time than both sides have agreed on.
    #[error("more than {most} offers at a time")]
    TooManyOffers {
        /// What they have agreed on.
        most: u8,
    },
    /// The peer says that it has read a message that it was not offered.
    #[error("the peer has read an offer that was not made")]
    NothingOffered,
}

/// A request of a peer to connect. Dropping it rejects it.
pub struct Request<D: TrustedDevice = AnyDevice> {
    /// `None` after the answer.
    incoming: Option<Incoming<D>>,
    hello: Hello,
    private_data: Vec<u8>,
    peer_address: SocketAddr,
}

impl<D: TrustedDevice> Request<D> {
    fn new(incoming: Incoming<D>) -> std::result::Result<Self, (Incoming<D>, Violation)> {
        let (hello, private_data) = match Hello::decode(incoming.private_data()) {
            Ok((hello, private_data)) => (hello, private_data.to_vec()),
            Err(violation) => return Err((incoming, violation)),
        };
        let peer_address = incoming.peer_address();
        Ok(Self { incoming: Some(incoming), hello, private_data, peer_address })
    }

    /// What the peer has given with its request.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// Rejects it, with private data for the peer.
    pub fn reject(mut self, private_data: &[u8]) {
        if let Some(incoming) = self.incoming.take() {
            incoming.reject(private_data);
        }
    }
}

impl<D: TrustedDevice> Drop for Request<D> {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            incoming.reject(b"");
        }
    }
}

impl<D: TrustedDevice> fmt::Debug for Request<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("peer_address", &self.peer_address).finish_non_exhaustive()
    }
}

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
/// Its shard has to be driven, as for all of the [typed layer](super): [`Hub::dispatch`] and the `wait` of
/// [`Hub::next`] do that. Connections make progress while one of them is called. Connections of one shard
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
    /// Those of [`Hub::send`]; [`Error::OutOfBounds`], [`Error::MissingRights`], [`Error::ForeignMemory`].
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
