//! Errors of a device: one type for calls, one for connection attempts, one for established connections.

use std::io;

use crate::{Cause, HandshakeFault};

/// Outcome of a verbs call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a verbs call failed. A failed call changes nothing, unless its documentation says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More requests than the queue has room for.
    #[error("queue of {depth} entries has room for {room}, not for {asked}")]
    QueueFull {
        /// Number of entries.
        depth: u32,
        /// Number of free entries.
        room: u32,
        /// Number of requested entries.
        asked: usize,
    },
    /// Queue pairs and shared receive queues that together have more entries than their completion queue may
    /// have.
    #[error("a completion queue of at most {most} entries has no room for queues of {needed}")]
    CompletionQueueFull {
        /// Number of entries of all queues.
        needed: u64,
        /// Maximum number of entries of the completion queue.
        most: u64,
    },
    /// An inline payload longer than the queue pair was granted.
    #[error("{length} bytes inline are more than the {limit} granted")]
    InlineTooLong {
        /// Bytes of the payload.
        length: usize,
        /// Bytes granted.
        limit: usize,
    },
    /// A length, depth or size outside the device's limits.
    #[error("{what} of {value} is outside {least} to {most}")]
    OutOfRange {
        /// What the value is.
        what: &'static str,
        /// The value.
        value: u64,
        /// The smallest valid value.
        least: u64,
        /// The largest valid value.
        most: u64,
    },
    /// A local segment outside every region: its key names no region of this protection domain, its range is
    /// not within the region, or the region does not grant the access that the request needs.
    #[error("local segment key {key:#x}, address {address:#x}, {length} bytes: {why}")]
    BadSegment {
        /// The segment's key.
        key: u32,
        /// Its address.
        address: u64,
        /// Its length in bytes.
        length: u32,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A region of the protection domain has this key already.
    #[error("key {0:#x} is taken")]
    KeyTaken(u32),
    /// The queue pair is not in a state for this, or does not exist.
    #[error("queue pair is {state}: {what} is not possible")]
    BadState {
        /// Its state.
        state: &'static str,
        /// The call.
        what: &'static str,
    },
    /// The device does not support this.
    #[error("the device has no {0}")]
    Unsupported(&'static str),
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// The call.
        what: &'static str,
        /// Its error.
        source: io::Error,
    },
}

impl Error {
    /// Wraps an error of the operating system, with the call that returned it.
    pub fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { what, source: source.into() }
    }
}

/// Why a connection attempt failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No process listens at the address.
    #[error("connection refused: nobody is listening")]
    Refused,
    /// The host or network cannot be reached; the system's errno.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    System(i32),
    /// The peer did not answer in time; the time-out in milliseconds.
    #[error("no answer within {0} ms")]
    TimedOut(u64),
    /// The peer's part of the handshake was wrong.
    #[error("handshake failed: {0}")]
    Protocol(HandshakeFault),
    /// The peer closed the connection during the handshake.
    #[error("peer closed the connection during the handshake")]
    Closed,
}

/// Why an established connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BreakReason {
    /// The peer or its host reset the connection, or closed it in the middle of a message.
    #[error("reset by peer")]
    Reset,
    /// The peer's host does not answer any more.
    #[error("peer's host does not answer")]
    Vanished,
    /// The peer violated the protocol or a bound.
    #[error("peer broke the protocol: {0}")]
    Protocol(Cause),
    /// This side cannot continue, and the peer did nothing wrong: memory that a message needs was
    /// deregistered, or memory cannot be allocated.
    #[error("this side cannot continue: {0}")]
    Local(Cause),
    /// The peer ended the connection and reports that this side violated the protocol or a bound.
    #[error("peer terminated: {0}")]
    Terminated(Cause),
    /// The device failed or was removed.
    #[error("the RDMA device is gone")]
    DeviceGone,
    /// The device's port went down.
    #[error("the RDMA device's port is down")]
    PortDown,
    /// This side aborted the connection.
    #[error("aborted by this side")]
    Aborted,
}
