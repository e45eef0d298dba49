//! What the parts of a session share: numbers, regions, the bound on memory, and the way out.

use std::cell::Cell;
use std::net::IpAddr;

use crate::Operation;
use crate::finding::{Finding, Topic};
use crate::operation::{Placement, Sink, Target};
use crate::regions::Regions;

/// Bytes that state may take, over all connections.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Cell<i64>,
}

impl Budget {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { left: Cell::new(i64::try_from(bytes).unwrap_or(i64::MAX)) }
    }

    /// Takes `bytes`, or says that they are not there.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        let enough = self.left.get() >= bytes as i64;
        if enough {
            self.owe(bytes);
        }
        enough
    }

    /// Takes `bytes` whether they are there or not. Who does so gives up something while there is a
    /// [debt](Self::is_in_debt).
    pub(crate) fn owe(&self, bytes: usize) {
        self.left.set(self.left.get() - bytes as i64);
    }

    pub(crate) fn is_in_debt(&self) -> bool {
        self.left.get() < 0
    }

    pub(crate) fn give(&self, bytes: usize) {
        self.left.set(self.left.get() + bytes as i64);
    }
}

/// State shared by all connections of a session.
#[derive(Debug)]
pub(crate) struct Shared {
    regions: Regions,
    operations: u64,
    connections: u32,
}

impl Shared {
    /// `memory`: what regions may take of it.
    pub(crate) fn new(memory: usize) -> Self {
        Self { regions: Regions::new(memory), operations: 0, connections: 0 }
    }
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
        Target { key, address, region: self.shared.regions.find(connection, host, key, self.sink) }
    }

    /// The key names nothing any more.
    pub(crate) fn invalidate(&mut self, host: IpAddr, key: u32) {
        self.shared.regions.invalidate(host, key);
    }

    /// A connection is over, and with it the regions that only it used.
    pub(crate) fn closed(&mut self, connection: u32) {
        self.shared.regions.closed(connection);
        self.sink.closed(connection);
    }
}
