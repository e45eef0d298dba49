//! How the suite gets its devices.

use std::net::SocketAddr;

use rdma_verbs::{CompletionStatus, ConnectionEvent, Device};

/// Makes devices that reach each other.
pub trait Rig {
    /// The type of the devices.
    type Device: Device;

    /// Two devices. The first one connects, the second one listens.
    fn devices(&self) -> (Self::Device, Self::Device);

    /// An address of the second one, with port 0.
    fn listen_address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// An address of the first one, with port 0.
    fn connect_address(&self) -> SocketAddr {
        self.listen_address()
    }

    /// Whether private data arrives padded with zeros.
    fn private_data_padded(&self) -> bool {
        false
    }

    /// Whether the device reports how the peer ended a connection, and whether the peer rejected or dropped a
    /// request.
    fn reports_how_it_ended(&self) -> bool {
        true
    }

    /// Whether one direction can end before the other.
    fn closes_directions_separately(&self) -> bool {
        true
    }

    /// Whether a post with a wrong local segment is refused. Otherwise its request fails.
    fn checks_segments(&self) -> bool {
        true
    }

    /// The status of a receive that is shorter than its message.
    fn truncated_status(&self) -> CompletionStatus {
        CompletionStatus::Truncated
    }

    /// Whether receives can be cancelled.
    fn cancels_receives(&self) -> bool {
        true
    }

    /// Whether requests after a read complete after it.
    fn reads_complete_in_order(&self) -> bool {
        true
    }

    /// Whether a read without access breaks the connection. Otherwise it never completes.
    fn refuses_wrong_reads(&self) -> bool {
        true
    }

    /// Whether a peer can invalidate the key of any region.
    fn invalidates_keys(&self) -> bool {
        true
    }

    /// Whether the device reports a broken connection with this event.
    fn is_break(&self, event: &ConnectionEvent) -> bool {
        match event {
            ConnectionEvent::Broken(_) => true,
            ConnectionEvent::Disconnected => !self.reports_how_it_ended(),
            _ => false,
        }
    }
}
