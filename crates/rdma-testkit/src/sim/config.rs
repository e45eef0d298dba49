//! The configuration of a simulated device.

use rdma_verbs::Transport;

/// The properties of a simulated device. Devices of one fabric may differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Determines when sends and writes complete: on [`Transport::Iwarp`] when they are on the wire, on
    /// [`Transport::InfiniBand`] when the peer's device has acknowledged them. Where
    /// [`rdma_verbs::MessageQueues`] has rules of the embedded device and others of RDMA devices, the former
    /// follows those, and the latter these.
    pub transport: Transport,
    /// Number of bits of immediate data; 0: none.
    pub immediate: u8,
    /// Most bytes of inline payload that a queue pair is granted.
    pub inline: usize,
    /// Most entries of a send queue.
    pub max_send_depth: u32,
    /// Most entries of a receive queue.
    pub max_recv_depth: u32,
    /// Most entries of a shared receive queue.
    pub max_srq_depth: u32,
    /// Most places of a request; 0: there are no queue pairs for messages.
    pub max_places: usize,
    /// Longest message in bytes.
    pub max_message: u32,
    /// Most bytes of private data.
    pub max_private_data: usize,
    /// Whether private data arrives padded with zeros to the maximum, as with InfiniBand's connection
    /// manager.
    pub private_data_padded: bool,
    /// Messages that the wire holds in each direction, at least 1. Further messages stay in the send queue,
    /// and their payload in the sender's memory, until the peer drives its side.
    pub wire: usize,
    /// Whether a message without a posted receive waits for one (InfiniBand with unlimited RNR retries).
    /// Otherwise it breaks the connection (iWARP). On queue pairs for messages it always waits.
    pub receiver_not_ready_waits: bool,
    /// Whether the attached wait set behaves like the completion channel of hardware: it becomes readable
    /// once after [`arm`](rdma_verbs::CompletionQueue::arm), for a later completion. Otherwise it is readable
    /// while there are completions.
    pub arming: bool,
}

impl Config {
    /// A user-space iWARP device: no immediate data, exact private data, a wait set that is readable while
    /// there are completions.
    #[must_use]
    pub const fn iwarp() -> Self {
        Self {
            transport: Transport::Iwarp,
            immediate: 0,
            inline: 4096,
            max_send_depth: 16_384,
            max_recv_depth: 16_384,
            max_srq_depth: 16_384,
            max_places: 4,
            max_message: 1 << 30,
            max_private_data: 508,
            private_data_padded: false,
            wire: 64,
            receiver_not_ready_waits: false,
            arming: false,
        }
    }

    /// An InfiniBand adapter: immediate data, short and padded private data, few inline bytes, a completion
    /// channel that must be armed.
    #[must_use]
    pub const fn infiniband() -> Self {
        Self {
            transport: Transport::InfiniBand,
            immediate: 32,
            inline: 64,
            max_private_data: 56,
            private_data_padded: true,
            receiver_not_ready_waits: true,
            arming: true,
            ..Self::iwarp()
        }
    }

    /// The private data that the consumer of this device gets for the peer's `private_data`.
    pub(super) fn received_private_data(&self, mut private_data: Vec<u8>) -> Vec<u8> {
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
