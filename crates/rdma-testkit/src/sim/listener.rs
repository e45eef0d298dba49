//! Listeners and their backlogs of connection requests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::Config;
use super::fabric::{BoundAddress, Fabric};
use super::link::{Frame, Parameters, Port};
use rdma_verbs::Signal;
use rdma_verbs::{self as verbs, ConnectError, EventTarget, Result};

/// A listener of the simulated device.
#[derive(Debug)]
pub struct Listener {
    bound: BoundAddress,
    backlog: Arc<Backlog>,
    config: Config,
}

/// A connection request at the simulated device. Dropping it resets the connection.
#[derive(Debug)]
pub struct ConnectionRequest {
    pending: PendingRequest,
    max_private_data: usize,
}

/// The request that the active side sent.
#[derive(Debug)]
pub(super) struct PendingRequest {
    /// The passive side of the link. Dropping it resets the connection.
    pub(super) port: Port,
    pub(super) private_data: Vec<u8>,
    pub(super) parameters: Parameters,
    pub(super) peer_address: SocketAddr,
    pub(super) local_address: SocketAddr,
}

/// Requests that were not polled yet.
#[derive(Debug)]
pub(super) struct Backlog {
    waiting: Mutex<VecDeque<PendingRequest>>,
    limit: usize,
    event_signal: Signal,
}

impl Listener {
    pub(super) fn new(
        fabric: &Fabric,
        config: &Config,
        address: SocketAddr,
        backlog: u32,
        events: EventTarget,
    ) -> Result<Self> {
        let event_signal = events.wait.signal(events.token);
        let bound = fabric.bind(address)?;
        let limit = usize::try_from(backlog.max(1)).unwrap_or(usize::MAX);
        let backlog = Arc::new(Backlog { waiting: Mutex::default(), limit, event_signal });
        fabric.publish(bound.address(), Arc::clone(&backlog));
        Ok(Self { bound, backlog, config: config.clone() })
    }
}

impl verbs::Listener for Listener {
    type Request = ConnectionRequest;

    fn local_address(&self) -> SocketAddr {
        self.bound.address()
    }

    fn poll(&mut self) -> Option<ConnectionRequest> {
        let mut pending = self.backlog.dequeue()?;
        pending.private_data = self.config.received_private_data(pending.private_data);
        Some(ConnectionRequest { pending, max_private_data: self.config.max_private_data })
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

impl Backlog {
    /// Adds a request, unless the backlog is full.
    pub(super) fn enqueue(&self, pending: PendingRequest) -> std::result::Result<(), ConnectError> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= self.limit {
            return Err(ConnectError::Refused);
        }
        waiting.push_back(pending);
        self.event_signal.set(true);
        Ok(())
    }

    /// Removes the oldest request whose active side exists, and those before it.
    fn dequeue(&self) -> Option<PendingRequest> {
        let mut waiting = self.waiting.lock();
        let mut next = waiting.pop_front();
        while next.as_ref().is_some_and(|pending| pending.port.peer_gone()) {
            next = waiting.pop_front();
        }
        self.event_signal.set(!waiting.is_empty());
        next
    }
}

impl ConnectionRequest {
    pub(super) fn into_pending(self) -> PendingRequest {
        self.pending
    }
}

impl verbs::ConnectionRequest for ConnectionRequest {
    fn private_data(&self) -> &[u8] {
        &self.pending.private_data
    }

    fn peer_address(&self) -> SocketAddr {
        self.pending.peer_address
    }

    fn local_address(&self) -> SocketAddr {
        self.pending.local_address
    }

    fn has_left(&self) -> bool {
        self.pending.port.peer_gone()
    }

    /// Truncates private data that is longer than the device's maximum.
    fn reject(self, private_data: &[u8]) {
        let length = private_data.len().min(self.max_private_data);
        let private_data = private_data[..length].to_vec();
        self.pending.port.push(Frame::Reject { private_data });
    }
}
