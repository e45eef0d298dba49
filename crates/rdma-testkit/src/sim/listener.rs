//! Passive endpoints and the requests that wait at them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::Config;
use super::fabric::{Bound, Fabric};
use super::link::{Frame, Port, Terms};
use rdma_verbs::Signal;
use rdma_verbs::{self as verbs, ConnectError, EventTarget, Result};

/// A passive endpoint of the simulated device.
#[derive(Debug)]
pub struct Listener {
    bound: Bound,
    backlog: Arc<Backlog>,
    config: Config,
}

/// A connection request at the simulated device. Dropping it resets the connection.
#[derive(Debug)]
pub struct ConnectionRequest {
    arrival: Arrival,
    max_private_data: usize,
}

/// What the active side sent.
#[derive(Debug)]
pub(super) struct Arrival {
    /// The passive end of the link; dropping it resets the connection.
    pub(super) port: Port,
    pub(super) private_data: Vec<u8>,
    pub(super) terms: Terms,
    pub(super) peer_address: SocketAddr,
    pub(super) local_address: SocketAddr,
}

/// Requests that were not asked for yet.
#[derive(Debug)]
pub(super) struct Backlog {
    waiting: Mutex<VecDeque<Arrival>>,
    limit: usize,
    announcer: Signal,
}

impl Listener {
    pub(super) fn new(
        fabric: &Fabric,
        config: &Config,
        address: SocketAddr,
        backlog: u32,
        events: EventTarget,
    ) -> Result<Self> {
        let announcer = events.wait.signal(events.token);
        let bound = fabric.bind(address)?;
        let limit = usize::try_from(backlog.max(1)).unwrap_or(usize::MAX);
        let backlog = Arc::new(Backlog { waiting: Mutex::default(), limit, announcer });
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
        let mut arrival = self.backlog.dequeue()?;
        arrival.private_data = self.config.arrived(arrival.private_data);
        Some(ConnectionRequest { arrival, max_private_data: self.config.max_private_data })
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

impl Backlog {
    /// Adds a request, unless there are as many as allowed.
    pub(super) fn enqueue(&self, arrival: Arrival) -> std::result::Result<(), ConnectError> {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= self.limit {
            return Err(ConnectError::Refused);
        }
        waiting.push_back(arrival);
        self.announcer.set(true);
        Ok(())
    }

    /// The oldest request whose active side is still there.
    fn dequeue(&self) -> Option<Arrival> {
        let mut waiting = self.waiting.lock();
        let mut next = waiting.pop_front();
        while next.as_ref().is_some_and(|arrival| arrival.port.peer_gone()) {
            next = waiting.pop_front();
        }
        self.announcer.set(!waiting.is_empty());
        next
    }
}

impl ConnectionRequest {
    pub(super) fn into_arrival(self) -> Arrival {
        self.arrival
    }
}

impl verbs::ConnectionRequest for ConnectionRequest {
    fn private_data(&self) -> &[u8] {
        &self.arrival.private_data
    }

    fn peer_address(&self) -> SocketAddr {
        self.arrival.peer_address
    }

    fn local_address(&self) -> SocketAddr {
        self.arrival.local_address
    }

    fn has_left(&self) -> bool {
        self.arrival.port.peer_gone()
    }

    /// Private data beyond what the device carries is cut off.
    fn reject(self, private_data: &[u8]) {
        let length = private_data.len().min(self.max_private_data);
        let private_data = private_data[..length].to_vec();
        self.arrival.port.push(Frame::Reject { private_data });
    }
}
