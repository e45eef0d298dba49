//! What can go wrong, here and with the peer.

use std::fmt;

use rustix::io::Errno;

/// Why a call did not do what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The peer reads no more, or this side has ended its output.
    Closed,
    /// The peer said that it stands where it cannot. It breaks the protocol: end the connection.
    Position {
        /// What it counts.
        what: &'static str,
        /// What it said.
        said: u64,
        /// What it said before, or the least that is possible.
        least: u64,
        /// The most that is possible.
        most: u64,
    },
    /// A ring of a size that is not allowed.
    RingSize {
        /// The size.
        size: usize,
        /// The longest ring; the shortest has one byte.
        most: usize,
    },
    /// A file that came from the peer is no segment of the size that was agreed.
    NoSegment(&'static str),
    /// There is no peer that may share memory with this process.
    NoPeer(&'static str),
    /// The system may refuse memory when it is first used (`vm.overcommit_memory`), and then ends the
    /// process.
    UncertainMemory,
    /// The system refused a call.
    Io {
        /// Which.
        what: &'static str,
        /// Why.
        source: Errno,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: &'static str) -> impl Fn(Errno) -> Self {
        move |source| Self::Io { what, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "this direction is closed"),
            Self::Position { what, said, least, most } => {
                write!(f, "the peer says {said} {what}, where {least} to {most} are possible")
            }
            Self::RingSize { size, most } => write!(f, "a ring of {size} bytes, of 1 to {most}"),
            Self::NoSegment(why) => write!(f, "the peer handed over no segment: {why}"),
            Self::NoPeer(why) => write!(f, "no peer to share memory with: {why}"),
            Self::UncertainMemory => write!(f, "the system may refuse memory when it is first used"),
            Self::Io { what, source } => write!(f, "{what}: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
