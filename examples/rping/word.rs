//! What the two sides say in sends: where memory lies. The server's words have no meaning but that they come.

use rstream_fi::verbs::RemoteAddress;

/// Length of a word in bytes: address, key and size, big-endian.
pub(crate) const LENGTH: usize = 16;

/// A piece of the client's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) memory: RemoteAddress,
    pub(crate) size: u32,
}

impl Word {
    pub(crate) fn emit(self) -> [u8; LENGTH] {
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

    pub(crate) fn parse(bytes: [u8; LENGTH]) -> Self {
        let u32_at = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let address = u64::from(u32_at(0)) << 32 | u64::from(u32_at(4));
        Self { memory: RemoteAddress { key: u32_at(8), address }, size: u32_at(12) }
    }
}
