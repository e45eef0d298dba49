//! What can go wrong on a device: one type for calls, one for connecting, one for a connection
//! that stood.

use std::io;

use crate::{Cause, HandshakeFault};

/// Outcome of a verbs call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a verbs call was refused. Nothing has changed then, unless the call says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// More requests than the queue has room for.
    #[error("queue of {depth} entries has room for {room}, not for {asked}")]
    QueueFull {
        /// Entries in all.
        depth: u32,
        /// Entries free.
        room: u32,
        /// Entries asked for.
        asked: usize,
    },
    /// An inline payload over the granted limit.
    #[error("{length} bytes inline are more than the {limit} granted")]
    InlineTooLong {
        /// Bytes given.
        length: usize,
        /// Bytes granted.
        limit: usize,
    },
    /// A length, depth or size outside what the device can do.
    #[error("{what} of {value} is outside {least} to {most}")]
    OutOfRange {
        /// What was asked for.
        what: &'static str,
        /// The value given.
        value: u64,
        /// Smallest that works.
        least: u64,
        /// Largest that works.
        most: u64,
    },
    /// A local key that names no region of this protection domain, or too short a region, or one
    /// without the right that the request needs.
    #[error("local segment key {key:#x}, address {address:#x}, {length} bytes: {why}")]
    BadSegment {
        /// Key given.
        key: u32,
        /// Address given.
        address: u64,
        /// Length given, in bytes.
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
        /// The state that it is in.
        state: &'static str,
        /// The call.
        what: &'static str,
    },
    /// The device has no such thing.
    #[error("the device has no {0}")]
    Unsupported(&'static str),
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl Error {
    /// Wraps an error of the operating system, with the call that met it.
    pub fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Io { what, source: source.into() }
    }
}

/// Why a connection did not come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody listens there.
    #[error("connection refused: nobody is listening")]
    Refused,
    /// The host or network cannot be reached; the system's errno.
    #[error("{}", io::Error::from_raw_os_error(*.0))]
    System(i32),
    /// No answer in time.
    #[error("no answer within {0} ms")]
    TimedOut(u64),
    /// The peer answered with something else than the handshake expects.
    #[error("handshake failed: {0}")]
    Protocol(HandshakeFault),
    /// The peer went away in the middle of the handshake.
    #[error("peer closed the connection during the handshake")]
    Closed,
}

/// Why a standing connection broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BreakReason {
    /// Reset by the peer or its host, or ended in the middle of a message.
    #[error("reset by peer")]
    Reset,
    /// The host does not answer any more.
    #[error("peer's host does not answer")]
    Vanished,
    /// The peer broke the protocol or a bound.
    #[error("peer broke the protocol: {0}")]
    Protocol(Cause),
    /// This side cannot go on, through no fault of the peer: memory that a message needs is gone, or
    /// there is none.
    #[error("given up by this side: {0}")]
    Local(Cause),
    /// The peer said that this side did.
    #[error("peer terminated: {0}")]
    Terminated(Cause),
    /// The device failed or was removed.
    #[error("the RDMA device is gone")]
    DeviceGone,
    /// The device's port went down.
    #[error("the RDMA device's port is down")]
    PortDown,
    /// This side aborted.
    #[error("aborted by this side")]
    Aborted,
}
