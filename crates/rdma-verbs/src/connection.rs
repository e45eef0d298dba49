//! Connections of queue pairs: how they are made, what happens to them, how they end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{BreakReason, ConnectError, QpId, Result, SameHost, Token, WaitSet};

/// How to connect, accept or listen.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// After how long without an established connection the attempt fails with
    /// [`ConnectError::TimedOut`].
    pub timeout: Duration,
    /// After how long of silence a vanished host is noticed; at most twice this time passes.
    pub keepalive: Duration,
}

/// Where a queue pair, a listener or a completion queue announces that it has something to tell: the wait
/// set, and the token by which the owner of the set knows whom to ask.
#[derive(Debug, Clone)]
pub struct EventTarget {
    /// Becomes readable when there is something to ask for.
    pub wait: Arc<WaitSet>,
    /// Reported by [`WaitSet::wait`] for it.
    pub token: Token,
}

impl EventTarget {
    /// A target in `wait` with a token of its own.
    #[must_use]
    pub fn new(wait: &Arc<WaitSet>) -> Self {
        Self { token: wait.token(), wait: Arc::clone(wait) }
    }
}

/// What happened to a connection. Each is reported once, in this order: at most one of the first
/// three, then, only after `Established`, at most one of the last two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The connection stands and carries data. The active side gets the private data of the reply;
    /// the passive side gets none.
    Established {
        /// Exact bytes where the transport keeps lengths, zero-padded where it does not.
        private_data: Vec<u8>,
    },
    /// The passive side refused, with its private data.
    Rejected {
        /// See `Established`.
        private_data: Vec<u8>,
    },
    /// There is no connection and will be none.
    Failed(ConnectError),
    /// The peer ended the connection in an orderly way; nothing of what it sent is missing.
    Disconnected,
    /// The connection broke; completions that were polled before stay true.
    Broken(BreakReason),
}

/// The connections of a completion queue's queue pairs.
pub trait Connections {
    /// The device's connection request.
    type Request;

    /// Starts connecting. `local` binds the active side's address first. The outcome is told by
    /// [`Connections::poll_event`].
    fn connect(
        &mut self,
        qp: QpId,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()>;

    /// Accepts a request on this queue pair. The outcome is told by
    /// [`Connections::poll_event`], also where the peer has left.
    fn accept(
        &mut self,
        qp: QpId,
        request: Self::Request,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()>;

    /// Begins an orderly end: what was posted goes out first, then the peer sees
    /// [`ConnectionEvent::Disconnected`]. Nothing can be posted afterwards; what arrives is
    /// still received.
    fn disconnect(&mut self, qp: QpId);

    /// Ends the connection at once as broken, telling the peer so (Terminate, reset).
    fn abort(&mut self, qp: QpId);

    /// Whether everything that was posted has reached the peer's host, as far as the transport
    /// tells: after that an end of this process loses nothing. No wake-up says when it becomes so:
    /// ask again after a pause.
    fn flushed(&mut self, qp: QpId) -> bool;

    /// The next connection event of this queue pair; drives its connection. `None`: nothing new;
    /// ask again when the event target reports its token, or at [`Connections::deadline`].
    fn poll_event(&mut self, qp: QpId) -> Option<ConnectionEvent>;

    /// When [`Connections::poll_event`] wants to be called even if nothing happens; by now if an event
    /// waits.
    fn deadline(&self, qp: QpId) -> Option<Instant>;

    /// The local address, once there is one.
    fn local_address(&self, qp: QpId) -> Option<SocketAddr>;

    /// The peer's address, once there is a connection.
    fn peer_address(&self, qp: QpId) -> Option<SocketAddr>;

    /// How to share memory with a peer on the same host, if the device can.
    fn same_host(&mut self) -> Option<&mut dyn SameHost<Request = Self::Request>> {
        None
    }
}

/// A passive endpoint that listens.
pub trait Listener: Send {
    /// What a peer asked for.
    type Request: ConnectionRequest;

    /// The address it listens on, with the real port.
    fn local_address(&self) -> SocketAddr;

    /// The next connection request; drives the handshakes. A peer that is slow or silent in its handshake
    /// holds up nobody else, and a crowd of peers does not hold up the caller: what is left to do is
    /// announced again. `None`: ask again when the event target reports its token, or at
    /// [`Listener::deadline`].
    fn poll(&mut self) -> Option<Self::Request>;

    /// When [`Listener::poll`] wants to be called even if nothing happens.
    fn deadline(&self) -> Option<Instant>;
}

/// A connection that a peer asked for: accept it with [`Connections::accept`], or reject it.
/// Dropping it cuts the connection without an answer.
pub trait ConnectionRequest: Send {
    /// What the peer sent along; exact bytes where the transport keeps lengths.
    fn private_data(&self) -> &[u8];
    /// Where it comes from.
    fn peer_address(&self) -> SocketAddr;
    /// Where it arrived.
    fn local_address(&self) -> SocketAddr;
    /// Whether its peer is known to have left: then the request holds nothing of the system's any more, and
    /// who accepts it meets [`ConnectError::Closed`]. [`Listener::poll`] finds that out, if the transport
    /// tells.
    fn has_left(&self) -> bool {
        false
    }
    /// Refuses it, with private data that the peer reads in [`ConnectionEvent::Rejected`].
    fn reject(self, private_data: &[u8]);
}
