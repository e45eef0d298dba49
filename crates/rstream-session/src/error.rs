//! Why a call on a stream moved no bytes.

/// The outcome of a call that moves bytes.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call moved no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing to receive, or no room to send.
    #[error("nothing can be done now")]
    WouldBlock,
    /// More bytes than can ever go at once.
    #[error("more bytes than the rings hold")]
    TooLong,
    /// The sending direction was shut, by this side or by the peer.
    #[error("the sending direction is shut")]
    Shut,
    /// The connection broke.
    #[error("the connection broke")]
    Reset,
}
