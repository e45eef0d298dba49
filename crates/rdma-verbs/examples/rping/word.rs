//! What the two sides say in sends: where memory lies. The server's words have no meaning but that they come.

use std::error::Error;

use rdma_testkit::harness::{CAPABILITIES, Connection};
use rdma_verbs::{Device, QpCapabilities, RemoteAddress};

/// Length of a word in bytes: address, key and size, big-endian.
const LENGTH: usize = 16;

/// A queue pair for words; it reads one piece at a time.
pub(crate) fn open<D: Device>(device: D) -> Result<Connection<D>, Box<dyn Error>> {
    let wanted = QpCapabilities { initiator_depth: 1, responder_resources: 1, ..CAPABILITIES };
    Ok(Connection::new(device, wanted, LENGTH)?)
}

/// A piece of the client's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) memory: RemoteAddress,
    pub(crate) size: u32,
}

impl Word {
    fn emit(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&self.memory.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.memory.key.to_be_bytes());
        bytes[12..].copy_from_slice(&self.size.to_be_bytes());
        bytes
    }

    /// The same place by a key that names nothing.
    pub(crate) fn with_wrong_key(mut self) -> Self {
        self.memory.key ^= 0x100;
        self
    }

    fn parse(message: &[u8]) -> Result<Self, Box<dyn Error>> {
        let bytes: [u8; LENGTH] = message
            .try_into()
            .map_err(|_| format!("a message of {} bytes, not of {LENGTH}", message.len()))?;
        let u32_at = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let address = u64::from(u32_at(0)) << 32 | u64::from(u32_at(4));
        Ok(Self { memory: RemoteAddress { key: u32_at(8), address }, size: u32_at(12) })
    }
}

pub(crate) fn say<D: Device>(connection: &mut Connection<D>, word: Word) -> Result<(), Box<dyn Error>> {
    Ok(connection.send(&word.emit())?)
}

pub(crate) fn hear<D: Device>(connection: &mut Connection<D>) -> Result<Word, Box<dyn Error>> {
    Word::parse(&connection.receive()?)
}
