//! What a connection failed of, as values: a consumer can tell causes apart, and a log has their numbers.

use std::io;

use iwarp_wire::rdmap::Terminate;

use crate::CompletionStatus;
use crate::iwarp::handshake::HandshakeError;
use crate::iwarp::machine::Violation;

/// What was wrong with a message or request, as the side tells it that found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// A breach of iWARP's rules, or of a bound, that the embedded device found.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// What an iWARP peer says that this side did.
    #[error("{0}")]
    Terminate(Terminate),
    /// A request that a device reports as failed.
    #[error("{status}, by the device's own number {code}")]
    Request {
        /// What it means.
        status: CompletionStatus,
        /// The device's own number for it (`ibv_wc_status`).
        code: u32,
    },
    /// A message longer than the receive that it took.
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
    /// Immediate data for a device that has none.
    #[error("immediate data for a device without it")]
    Immediate,
    /// Memory that this key does not open: no such key, not that right, or outside its region.
    #[error("key {key:#x} does not open {length} bytes at {address:#x}")]
    Access {
        /// Key given.
        key: u32,
        /// First byte asked for.
        address: u64,
        /// Bytes asked for.
        length: usize,
    },
    /// A key given up that was not valid.
    #[error("key {0:#x} cannot be given up")]
    Invalidate(u32),
    /// The operating system's errno.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    System(i32),
}

/// What was wrong with the peer's part of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeFault {
    /// MPA, by the embedded device.
    #[error(transparent)]
    Mpa(#[from] HandshakeError),
    /// The peer's device refused, for this reason of InfiniBand's connection manager.
    #[error("refused by the peer's device, reason {0}")]
    Refused(i32),
    /// An event of the connection manager that has no place there.
    #[error("connection manager event {event}, status {status}")]
    Event {
        /// `rdma_cm_event_type`.
        event: u32,
        /// What came with it.
        status: i32,
    },
}
