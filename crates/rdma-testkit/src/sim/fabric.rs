//! The in-memory network: who listens where, which addresses are taken, and the numbers that must
//! differ everywhere (keys and region addresses).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::listener::{Arrival, Backlog};
use super::{Config, Device};
use rdma_verbs::{ConnectError, Error, Result};

/// First of the ports that are given out for port 0 (RFC 6335's dynamic range).
const FIRST_FREE_PORT: u16 = 49_152;
/// Region addresses begin here and are this far apart at least: an address that is computed wrongly
/// lands in no region.
const REGION_GAP: u64 = 1 << 20;

/// An isolated in-memory network; clones are handles to the same one.
#[derive(Debug, Clone, Default)]
pub struct Fabric {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    listeners: BTreeMap<SocketAddr, Arc<Backlog>>,
    bound: BTreeSet<SocketAddr>,
    ports_given: u16,
    regions: u32,
    next_address: u64,
}

/// An address that is taken until this value is dropped.
#[derive(Debug)]
pub(super) struct Bound {
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

    /// Takes `address`, with a free port for port 0.
    pub(super) fn bind(&self, mut address: SocketAddr) -> Result<Bound> {
        let mut state = self.state.lock();
        if address.port() == 0 {
            address.set_port(state.free_port().ok_or_else(address_in_use)?);
        }
        if !state.bound.insert(address) {
            return Err(address_in_use());
        }
        Ok(Bound { fabric: self.clone(), address })
    }

    /// Makes `backlog` the listener of a bound address.
    pub(super) fn publish(&self, address: SocketAddr, backlog: Arc<Backlog>) {
        self.state.lock().listeners.insert(address, backlog);
    }

    /// Brings a connection request to who listens at its local address, or at the wildcard address
    /// of that family.
    pub(super) fn knock(&self, arrival: Arrival) -> std::result::Result<(), ConnectError> {
        let state = self.state.lock();
        let exact = arrival.local_address;
        let any = match exact.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let listener =
            state.listeners.get(&exact).or_else(|| state.listeners.get(&SocketAddr::new(any, exact.port())));
        listener.ok_or(ConnectError::Refused)?.enqueue(arrival)
    }

    /// A number and an address for a new region of `length` bytes, used nowhere else on the fabric.
    /// `None` when the numbers are used up.
    pub(super) fn place_region(&self, length: u64) -> Option<(u32, u64)> {
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
            let port = FIRST_FREE_PORT + self.ports_given % span;
            self.ports_given = (self.ports_given + 1) % span;
            if !self.bound.iter().any(|taken| taken.port() == port) {
                return Some(port);
            }
        }
        None
    }
}

impl Bound {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let mut state = self.fabric.state.lock();
        state.bound.remove(&self.address);
        let listener = state.listeners.remove(&self.address);
        // What waits in its backlog is told outside the lock.
        drop(state);
        drop(listener);
    }
}

fn address_in_use() -> Error {
    Error::io("bind")(Errno::ADDRINUSE)
}
