//! How much of the protocol was spoken.

/// Messages of one connection, counted as they were handed out or taken over. What a peer sent and
/// was refused is not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Data messages handed out.
    pub data_sent: u64,
    /// Control messages handed out: window updates and endings.
    pub updates_sent: u64,
    /// Data messages taken over.
    pub data_received: u64,
    /// Control messages taken over.
    pub updates_received: u64,
}
