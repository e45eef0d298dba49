//! What the parts of a session share: numbers, regions, the bound on memory, and the way out.

use std::cell::Cell;
use std::collections::HashMap;
use std::net::IpAddr;

use crate::Operation;
use crate::operation::{Finding, Placement, Region, Sink, Target, Topic};

/// Bytes that state may take, over all connections.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Cell<usize>,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left: Cell::new(bytes) }
    }

    /// Takes `bytes`, or says that they are not there.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let left = self.left.get().checked_sub(bytes);
        left.inspect(|left| self.left.set(*left)).is_some()
    }

    pub(crate) fn give(&self, bytes: usize) {
        self.left.set(self.left.get() + bytes);
    }
}

/// The regions that keys name, by host. A key that names something else later is another region.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    current: HashMap<(IpAddr, u32), Current>,
    epochs: HashMap<(IpAddr, u32), u32>,
    used_by: HashMap<u32, Vec<(IpAddr, u32)>>,
    made: u32,
}

#[derive(Debug)]
struct Current {
    id: u32,
    /// Connections that used it and are not over.
    users: Vec<u32>,
}

/// Most keys that are kept apart at a time. Beyond it all of them begin anew.
const MOST_KEYS: usize = 1 << 18;

/// State shared by all connections of a session.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    regions: Regions,
    operations: u64,
    connections: u32,
}

/// What the handling of one frame may use.
pub(crate) struct Context<'s> {
    pub(crate) shared: &'s mut Shared,
    pub(crate) budget: &'s Budget,
    pub(crate) sink: &'s mut dyn Sink,
    pub(crate) frame: u64,
    pub(crate) time: u64,
}

impl Context<'_> {
    pub(crate) fn operation_id(&mut self) -> u64 {
        self.shared.operations += 1;
        self.shared.operations
    }

    pub(crate) fn connection_id(&mut self) -> u32 {
        self.shared.connections += 1;
        self.shared.connections
    }

    pub(crate) fn finding(&mut self, topic: Topic, connection: Option<u32>, text: String) {
        self.sink.finding(&Finding { topic, connection, frame: self.frame, text });
    }

    pub(crate) fn bytes(&mut self, placement: &Placement, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.sink.bytes(placement, bytes);
        }
    }

    pub(crate) fn ended(&mut self, operation: &Operation) {
        self.sink.ended(operation);
    }

    /// The memory that `key` names at `host`, from the view of `connection`.
    pub(crate) fn target(&mut self, connection: u32, host: IpAddr, key: u32, address: u64) -> Target {
        let regions = &mut self.shared.regions;
        if regions.current.len() >= MOST_KEYS || regions.epochs.len() >= 4 * MOST_KEYS {
            regions.current.clear();
            regions.epochs.clear();
            regions.used_by.clear();
        }
        let current = regions.current.entry((host, key)).or_insert_with(|| {
            regions.made += 1;
            let epoch = regions.epochs.entry((host, key)).or_default();
            *epoch += 1;
            self.sink.region(&Region { id: regions.made, host, key, epoch: *epoch });
            Current { id: regions.made, users: Vec::new() }
        });
        if !current.users.contains(&connection) {
            current.users.push(connection);
            regions.used_by.entry(connection).or_default().push((host, key));
        }
        Target { key, address, region: current.id }
    }

    /// The key names nothing any more.
    pub(crate) fn invalidate(&mut self, host: IpAddr, key: u32) {
        self.shared.regions.current.remove(&(host, key));
    }

    /// A connection is over, and with it the regions that only it used.
    pub(crate) fn closed(&mut self, connection: u32) {
        let regions = &mut self.shared.regions;
        for name in regions.used_by.remove(&connection).unwrap_or_default() {
            if let Some(current) = regions.current.get_mut(&name) {
                current.users.retain(|user| *user != connection);
                if current.users.is_empty() {
                    regions.current.remove(&name);
                }
            }
        }
        self.sink.closed(connection);
    }
}
