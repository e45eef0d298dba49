//! Errors of the typed layer.

use std::fmt;

use crate::memory::OutOfBounds;
use crate::{Access, BreakReason, CompletionStatus, ConnectError};

/// Outcome of a call of the typed layer.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call or an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device or the system refused.
    #[error(transparent)]
    Verbs(#[from] crate::Error),
    /// A range that is not within a buffer, a region or a peer's memory.
    #[error(transparent)]
    OutOfBounds(#[from] OutOfBounds),
    /// All buffers of the pool are held.
    #[error("all {buffers} buffers of {size} bytes are held")]
    PoolEmpty {
        /// Number of buffers of the pool.
        buffers: u32,
        /// Size of each in bytes.
        size: u32,
    },
    /// The memory is registered with another shard.
    #[error("the memory belongs to shard {memory}, the connection to shard {connection}")]
    ForeignMemory {
        /// The shard of the memory.
        memory: u64,
        /// The shard of the connection.
        connection: u64,
    },
    /// The region does not have the rights that the operation needs.
    #[error("the operation needs {needed:?}, the region has {granted:?}")]
    MissingRights {
        /// The necessary rights.
        needed: Access,
        /// The region's rights.
        granted: Access,
    },
    /// The operation failed.
    #[error("{status}; {}", Connection(.end.as_ref()))]
    Operation {
        /// Its status.
        status: CompletionStatus,
        /// How the connection ended, if it did.
        end: Option<End>,
    },
    /// There is no connection, or there will be none.
    #[error(transparent)]
    Ended(#[from] End),
    /// A message that is no advertisement.
    #[error("an advertisement has {expected} bytes, the message has {length}")]
    NoAdvert {
        /// Bytes of the message.
        length: usize,
        /// Bytes of an advertisement.
        expected: usize,
    },
}

/// How a connection, or the attempt to make one, ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// The peer ended the connection in an orderly way.
    #[error("the peer has ended the connection")]
    Disconnected,
    /// The connection broke.
    #[error("the connection is broken: {0}")]
    Broken(BreakReason),
    /// The attempt failed.
    #[error(transparent)]
    Failed(ConnectError),
    /// The peer rejected the request.
    #[error("the peer has rejected the connection, with {} bytes of private data", private_data.len())]
    Rejected {
        /// The peer's private data: the exact bytes if the transport preserves their length, otherwise padded
        /// with zeros.
        private_data: Vec<u8>,
    },
    /// The listener has stopped.
    #[error("nobody listens any more")]
    ListenerStopped,
}

/// The text for the state of a connection.
struct Connection<'e>(Option<&'e End>);

impl fmt::Display for Connection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(end) => end.fmt(f),
            None => f.write_str("the connection has not reported an end"),
        }
    }
}

/// An operation that failed, with its memory. Reads may have changed it.
pub struct Failed<M> {
    /// The memory of the operation.
    pub memory: M,
    /// Why it failed.
    pub error: Error,
}

impl<M> fmt::Debug for Failed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for Failed<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M> std::error::Error for Failed<M> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<M> From<Failed<M>> for Error {
    fn from(failed: Failed<M>) -> Self {
        failed.error
    }
}

/// A value outside its limits.
pub(super) fn out_of_range(what: &'static str, value: u64, least: u64, most: usize) -> Error {
    crate::Error::OutOfRange { what, value, least, most: most as u64 }.into()
}
