//! Why connections of a hub end.

use crate::typed::{End, Error};

/// Why a connection is no more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// It ended, or it was never made.
    #[error(transparent)]
    Ended(End),
    /// The peer has sent what no hub sends, and this side has broken the connection.
    #[error("the peer is no hub, or lies: {0}")]
    Violation(#[from] Violation),
    /// This side could not go on, and has broken the connection.
    #[error(transparent)]
    Failed(Error),
}

impl From<Error> for Reason {
    fn from(error: Error) -> Self {
        match error {
            Error::Ended(end) => Self::Ended(end),
            error => Self::Failed(error),
        }
    }
}

/// What a peer has done that no hub does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// The private data of its reply.
    #[error("private data of {length} bytes are no hello")]
    NoHello {
        /// Their length.
        length: usize,
    },
    /// A message without a header.
    #[error("a message of {length} bytes has no header")]
    NoHeader {
        /// Its length.
        length: usize,
    },
    /// A message of another kind.
    #[error("a message of kind {0}")]
    UnknownKind(u8),
    /// A reserved byte that is not 0.
    #[error("a reserved byte of {0}")]
    Reserved(u8),
    /// A write that consumes a receive, or an invalidation.
    #[error("a request of a kind that no hub posts")]
    NoMessage,
    /// A message without a credit for it.
    #[error("a message without a credit")]
    Unannounced,
    /// Credits for more than the peer has.
    #[error("{more} credits more than {held} exceed the window of {window}")]
    TooManyCredits {
        /// Credits that this side has.
        held: u16,
        /// Those of the message.
        more: u16,
        /// The peer's window.
        window: u16,
    },
    /// A message that has nothing but credits, and none of them.
    #[error("a message of credits has none")]
    NoCredits,
    /// A header that does not describe its message.
    #[error("the header says {said} bytes, {arrived} arrived")]
    WrongLength {
        /// The length in the header.
        said: u32,
        /// What follows the header, in bytes.
        arrived: usize,
    },
    /// A message whose length is not one of its kind.
    #[error("a length of {length} is not within {least} to {most}")]
    LengthOutOfRange {
        /// Its length in bytes.
        length: u32,
        /// The least length of its kind.
        least: u32,
        /// The greatest length of its kind.
        most: u32,
    },
    /// More long messages at a time than both sides have agreed on.
    #[error("more than {most} offers at a time")]
    TooManyOffers {
        /// What they have agreed on.
        most: u8,
    },
    /// The peer says that it has read a message that it was not offered.
    #[error("the peer has read an offer that was not made")]
    NothingOffered,
}
