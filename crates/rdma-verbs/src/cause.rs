//! Why a connection failed, as values: a consumer can distinguish the causes, and a log has their numbers.

use std::io;

use iwarp_wire::rdmap::Terminate;

use crate::CompletionStatus;
use crate::iwarp::handshake::HandshakeError;
use crate::iwarp::machine::Violation;

/// What was wrong with a message or request, reported by the side that found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// A violation of iWARP's rules, or of a bound, that the embedded device found.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The error of this side that an iWARP peer reports in a Terminate message.
    #[error("{0}")]
    Terminate(Terminate),
    /// A request that a device reports as failed.
    #[error("{status}, by the device's own number {code}")]
    Request {
        /// Its status.
        status: CompletionStatus,
        /// The device's status code (`ibv_wc_status`).
        code: u32,
    },
    /// A message longer than the receive that it consumed.
    #[error("message of {length} bytes for a receive of {room}")]
    TooLong {
        /// Bytes of the message.
        length: usize,
        /// Bytes of the receive.
        room: usize,
    },
    /// A message that found no receive.
    #[error("message without a receive")]
    NoReceive,
    /// Immediate data for a device that does not support it.
    #[error("immediate data for a device without it")]
    Immediate,
    /// Memory that the key gives no access to: the key is unknown, the region does not grant the access, or
    /// the range is outside the region.
    #[error("key {key:#x} does not open {length} bytes at {address:#x}")]
    Access {
        /// The key.
        key: u32,
        /// Address of the first byte.
        address: u64,
        /// Number of bytes.
        length: usize,
    },
    /// A key that the peer invalidates and that was not valid.
    #[error("key {0:#x} cannot be invalidated")]
    Invalidate(u32),
    /// An errno of the operating system.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    System(i32),
}

/// What was wrong with the peer's messages of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeFault {
    /// An error of MPA, found by the embedded device.
    #[error(transparent)]
    Mpa(#[from] HandshakeError),
    /// The peer's device rejected the request, for this reason of InfiniBand's connection manager.
    #[error("refused by the peer's device, reason {0}")]
    Refused(i32),
    /// An unexpected event of the connection manager.
    #[error("connection manager event {event}, status {status}")]
    Event {
        /// `rdma_cm_event_type`.
        event: u32,
        /// The event's status.
        status: i32,
    },
}
