//! What kind of device to be.

use rdma_verbs::Transport;

/// The properties of a simulated device. Devices of one fabric may differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Decides when sends and writes complete: on [`Transport::Iwarp`] when the wire took them, on
    /// [`Transport::InfiniBand`] when the peer's device acknowledged them.
    pub transport: Transport,
    /// Whether immediate data can be sent and received.
    pub immediate: bool,
    /// Most bytes of inline payload that a queue pair is granted.
    pub inline: usize,
    /// Most entries of a send queue.
    pub max_send_depth: u32,
    /// Most entries of a receive queue.
    pub max_recv_depth: u32,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Most bytes of private data.
    pub max_private_data: usize,
    /// Whether private data arrives zero-padded to the maximum, as the InfiniBand connection
    /// manager leaves it.
    pub private_data_padded: bool,
    /// Messages that the wire holds for each direction (at least 1). What does not fit stays in the
    /// send queue, its payload in the sender's memory, until the peer drives its side.
    pub wire: usize,
    /// Whether a message that finds no receive waits for one (InfiniBand with endless RNR retries)
    /// rather than break the connection (iWARP).
    pub receiver_not_ready_waits: bool,
    /// Whether the attached wait set becomes readable only after
    /// [`arm`](rdma_verbs::CompletionQueue::arm), once, and only for what comes later, like the
    /// completion channel of hardware; otherwise it follows the queue's state.
    pub arming: bool,
}

impl Config {
    /// A user-space iWARP device: no immediate data, exact private data, a wait set that follows the
    /// queue's state.
    #[must_use]
    pub const fn iwarp() -> Self {
        Self {
            transport: Transport::Iwarp,
            immediate: false,
            inline: 4096,
            max_send_depth: 16_384,
            max_recv_depth: 16_384,
            max_message: 1 << 30,
            max_private_data: 508,
            private_data_padded: false,
            wire: 64,
            receiver_not_ready_waits: false,
            arming: false,
        }
    }

    /// An InfiniBand adapter: immediate data, little and padded private data, few inline bytes, a
    /// completion channel that must be armed.
    #[must_use]
    pub const fn infiniband() -> Self {
        Self {
            transport: Transport::InfiniBand,
            immediate: true,
            inline: 64,
            max_private_data: 56,
            private_data_padded: true,
            receiver_not_ready_waits: true,
            arming: true,
            ..Self::iwarp()
        }
    }

    /// Private data as the consumer of this device sees it arrive.
    pub(super) fn arrived(&self, mut private_data: Vec<u8>) -> Vec<u8> {
        if self.private_data_padded && private_data.len() < self.max_private_data {
            private_data.resize(self.max_private_data, 0);
        }
        private_data
    }
}

impl Default for Config {
    /// [`Config::iwarp`].
    fn default() -> Self {
        Self::iwarp()
    }
}
