//! The in-memory network: its listeners, its bound addresses, and the numbers that are unique in it (keys and
//! region addresses).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::listener::{Backlog, PendingRequest};
use super::{Config, Device};
use rdma_verbs::{ConnectError, Error, Result};

/// First of the ports that are assigned for port 0 (RFC 6335's dynamic range).
const FIRST_FREE_PORT: u16 = 49_152;
/// The lowest region address, and the least distance between two regions: a wrongly computed address is in no
/// region.
const REGION_GAP: u64 = 1 << 20;

/// An isolated in-memory network. Clones are handles to the same network.
#[derive(Debug, Clone, Default)]
pub struct Fabric {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    listeners: BTreeMap<SocketAddr, Arc<Backlog>>,
    bound: BTreeSet<SocketAddr>,
    ports_assigned: u16,
    regions: u32,
    next_address: u64,
}

/// An address that is bound until this value is dropped.
#[derive(Debug)]
pub(super) struct BoundAddress {
    fabric: Fabric,
    address: SocketAddr,
}

impl Fabric {
    /// An empty network.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A device on this network.
    #[must_use]
    pub fn device(&self, config: Config) -> Device {
        Device::new(self.clone(), config)
    }

    /// Binds `address`, with a free port for port 0.
    pub(super) fn bind(&self, mut address: SocketAddr) -> Result<BoundAddress> {
        let mut state = self.state.lock();
        if address.port() == 0 {
            address.set_port(state.free_port().ok_or_else(address_in_use)?);
        }
        if !state.bound.insert(address) {
            return Err(address_in_use());
        }
        Ok(BoundAddress { fabric: self.clone(), address })
    }

    /// Makes `backlog` the listener of a bound address.
    pub(super) fn publish(&self, address: SocketAddr, backlog: Arc<Backlog>) {
        self.state.lock().listeners.insert(address, backlog);
    }

    /// Delivers a connection request to the listener at its local address, or at the wildcard address of that
    /// family.
    pub(super) fn request_connection(
        &self,
        pending: PendingRequest,
    ) -> std::result::Result<(), ConnectError> {
        let state = self.state.lock();
        let exact = pending.local_address;
        let any = match exact.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let listener =
            state.listeners.get(&exact).or_else(|| state.listeners.get(&SocketAddr::new(any, exact.port())));
        listener.ok_or(ConnectError::Refused)?.enqueue(pending)
    }

    /// A number and an address for a new region of `length` bytes, unique on the fabric. `None` if there are
    /// no numbers left.
    pub(super) fn assign_region(&self, length: u64) -> Option<(u32, u64)> {
        let mut state = self.state.lock();
        let number = state.regions.checked_add(1)?;
        let address = state.next_address.checked_add(REGION_GAP)?;
        state.next_address = address.checked_add(length)?.checked_next_multiple_of(REGION_GAP)?;
        state.regions = number;
        Some((number, address))
    }
}

impl State {
    /// A port that no bound address has.
    fn free_port(&mut self) -> Option<u16> {
        let span = u16::MAX - FIRST_FREE_PORT + 1;
        for _ in 0..span {
            let port = FIRST_FREE_PORT + self.ports_assigned % span;
            self.ports_assigned = (self.ports_assigned + 1) % span;
            if !self.bound.iter().any(|bound| bound.port() == port) {
                return Some(port);
            }
        }
        None
    }
}

impl BoundAddress {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for BoundAddress {
    fn drop(&mut self) {
        let mut state = self.fabric.state.lock();
        state.bound.remove(&self.address);
        let listener = state.listeners.remove(&self.address);
        // Dropping the backlog resets its requests, which takes other locks.
        drop(state);
        drop(listener);
    }
}

fn address_in_use() -> Error {
    Error::io("bind")(Errno::ADDRINUSE)
}
