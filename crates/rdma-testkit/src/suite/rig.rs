//! How the suite gets its devices.

use std::net::SocketAddr;

use rdma_verbs::{CompletionStatus, ConnectionEvent, Device};

/// Makes devices that reach each other.
pub trait Rig {
    /// What kind of device.
    type Device: Device;

    /// Two devices: one connects, one listens.
    fn devices(&self) -> (Self::Device, Self::Device);

    /// Where the second one can listen, with port 0.
    fn listen_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// An address of the first one, with port 0.
    fn connect_address(&self) -> SocketAddr {
        self.listen_address()
    }

    /// Whether private data arrives zero-padded, to the device's maximum at least.
    fn private_data_padded(&self) -> bool {
        false
    }

    /// Whether the peer learns how a connection ended, and whether a request was refused or dropped.
    fn tells_how_it_ended(&self) -> bool {
        true
    }

    /// Whether one direction can end before the other.
    fn ends_one_way_at_a_time(&self) -> bool {
        true
    }

    /// Whether a post with a wrong local segment is refused, rather than failing later.
    fn checks_segments(&self) -> bool {
        true
    }

    /// The status of a receive that is shorter than its message.
    fn truncated(&self) -> CompletionStatus {
        CompletionStatus::Truncated
    }

    /// Whether what follows a read completes after it.
    fn reads_complete_in_order(&self) -> bool {
        true
    }

    /// Whether a read that the peer must not make ends the connection.
    fn answers_wrong_reads(&self) -> bool {
        true
    }

    /// Whether a peer can give up the key of any region.
    fn invalidates_keys(&self) -> bool {
        true
    }

    /// Whether this is how the peer learns that a connection broke.
    fn is_break(&self, event: &ConnectionEvent) -> bool {
        match event {
            ConnectionEvent::Broken(_) => true,
            ConnectionEvent::Disconnected => !self.tells_how_it_ended(),
            _ => false,
        }
    }
}
