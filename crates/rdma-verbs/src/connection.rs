//! Connections of queue pairs: how they are established, what is reported of them, and how they end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{BreakReason, ConnectError, QpId, Result, Token, WaitSet};

/// How to connect, accept or listen.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// Time after which an attempt that has not established a connection fails with
    /// [`ConnectError::TimedOut`].
    pub timeout: Duration,
    /// Keep-alive time: a peer's host that vanished is noticed within twice this time.
    pub keepalive: Duration,
}

/// Where a queue pair, a listener or a completion queue signals that it has something to report: the wait
/// set, and the token by which the owner of the set identifies the source.
#[derive(Debug, Clone)]
pub struct EventTarget {
    /// Becomes readable when there is something to report.
    pub wait: Arc<WaitSet>,
    /// The token that [`WaitSet::wait`] reports then.
    pub token: Token,
}

impl EventTarget {
    /// A target in `wait` with a token of its own.
    #[must_use]
    pub fn new(wait: &Arc<WaitSet>) -> Self {
        Self { token: wait.token(), wait: Arc::clone(wait) }
    }
}

/// An event of a connection. Each is reported at most once, in this order: one of the first three, then, only
/// after `Established`, one of the last two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The connection is established. The active side gets the private data of the reply; the passive side
    /// gets none.
    Established {
        /// The exact bytes if the transport preserves their length, otherwise padded with zeros.
        private_data: Vec<u8>,
    },
    /// The passive side rejected the request, with its private data.
    Rejected {
        /// See `Established`.
        private_data: Vec<u8>,
    },
    /// The attempt failed.
    Failed(ConnectError),
    /// The peer ended the connection in an orderly way. Everything that it sent has arrived.
    Disconnected,
    /// The connection broke. Completions that were polled before remain valid.
    Broken(BreakReason),
}

/// The connections of a completion queue's queue pairs.
pub trait Connections {
    /// The device's connection request.
    type Request;

    /// Starts to connect. `local` binds the active side's address first. [`Connections::poll_event`] reports
    /// the outcome.
    fn connect(
        &mut self,
        qp: QpId,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()>;

    /// Accepts a request on this queue pair. [`Connections::poll_event`] reports the outcome, also if the
    /// peer has closed the connection.
    fn accept(
        &mut self,
        qp: QpId,
        request: Self::Request,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()>;

    /// Begins an orderly end: posted requests are sent first, then the peer gets
    /// [`ConnectionEvent::Disconnected`]. Nothing can be posted afterwards. Messages that arrive are still
    /// received.
    fn disconnect(&mut self, qp: QpId);

    /// Breaks the connection at once. The peer is informed (Terminate, reset).
    fn abort(&mut self, qp: QpId);

    /// Whether everything that was posted has reached the peer's host, as far as the transport reports that.
    /// From then on the end of this process loses nothing. No wait set signals it: the caller asks again
    /// after a pause.
    fn flushed(&mut self, qp: QpId) -> bool;

    /// Drives the connection of this queue pair and returns its next event. After `None`, the caller asks
    /// again when the event target reports its token, or at [`Connections::deadline`].
    fn poll_event(&mut self, qp: QpId) -> Option<ConnectionEvent>;

    /// When to call [`Connections::poll_event`] even if no token is reported. If an event is ready, this time
    /// has come.
    fn deadline(&self, qp: QpId) -> Option<Instant>;

    /// The local address, once there is one.
    fn local_address(&self, qp: QpId) -> Option<SocketAddr>;

    /// The peer's address, once there is a connection.
    fn peer_address(&self, qp: QpId) -> Option<SocketAddr>;
}

/// A listener.
pub trait Listener: Send {
    /// The type of its connection requests.
    type Request: ConnectionRequest;

    /// The address it listens on, with the actual port.
    fn local_address(&self) -> SocketAddr;

    /// Drives the handshakes and returns the next connection request. A peer that is slow or silent in its
    /// handshake delays no other peer. One call does a bounded amount of work; if more is left, the event
    /// target is signaled again. After `None`, the caller asks again when the event target reports its token,
    /// or at [`Listener::deadline`].
    fn poll(&mut self) -> Option<Self::Request>;

    /// When to call [`Listener::poll`] even if no token is reported.
    fn deadline(&self) -> Option<Instant>;
}

/// A peer's connection request, to be accepted with [`Connections::accept`] or rejected. Dropping it closes
/// the connection without a reply.
pub trait ConnectionRequest: Send {
    /// The private data of the request: the exact bytes if the transport preserves their length.
    fn private_data(&self) -> &[u8];
    /// The address of the peer.
    fn peer_address(&self) -> SocketAddr;
    /// The address at which the request arrived.
    fn local_address(&self) -> SocketAddr;
    /// Whether the peer is known to have closed the connection. The request then holds no descriptor any
    /// more, and accepting it fails with [`ConnectError::Closed`]. [`Listener::poll`] notices it, if the
    /// transport reports it.
    fn has_left(&self) -> bool {
        false
    }
    /// Rejects it. The peer gets the private data in [`ConnectionEvent::Rejected`], at most
    /// [`PrivateDataLimits::reject`](crate::PrivateDataLimits::reject) bytes.
    fn reject(self, private_data: &[u8]);
}
