//! Errors of devices and streams as those of `std::io`.

use std::io::{self, ErrorKind};

use rdma_verbs::{self as verbs, ConnectError};
use rstream_protocol::RefusalReason;
use rstream_session::{Error, StartError};

/// The peer rejected a connection. It is the inner error of an [`io::Error`] of the kind
/// [`ConnectionRefused`](ErrorKind::ConnectionRefused).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the peer rejected the connection: {why}")]
pub struct Rejected {
    why: &'static str,
    data: Vec<u8>,
}

impl Rejected {
    /// The data that the peer's program gave with it.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }
}

pub(super) fn of_reject(reason: RefusalReason, data: Vec<u8>) -> io::Error {
    let why = match reason {
        RefusalReason::Application => "its program did so",
        RefusalReason::Version => "it has another version of the protocol",
        RefusalReason::Parameters => "these sizes make no connection",
        RefusalReason::Resources => "it has no memory or no queue for it",
    };
    rejected(why, data)
}

/// What listens there is for message endpoints.
pub(super) fn of_reject_of_kind() -> io::Error {
    rejected("what listens there is for messages", Vec::new())
}

fn rejected(why: &'static str, data: Vec<u8>) -> io::Error {
    io::Error::new(ErrorKind::ConnectionRefused, Rejected { why, data })
}

pub(super) fn of_device(error: verbs::Error) -> io::Error {
    let kind = match &error {
        verbs::Error::Io { source, .. } => source.kind(),
        verbs::Error::OutOfRange { .. } => ErrorKind::InvalidInput,
        verbs::Error::Unsupported(_) => ErrorKind::Unsupported,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

pub(super) fn of_start(error: StartError) -> io::Error {
    match error {
        StartError::Device(error) => of_device(error),
        StartError::Parameters(error) => io::Error::new(ErrorKind::InvalidInput, error),
    }
}

pub(super) fn of_attempt(error: ConnectError) -> io::Error {
    let kind = match error {
        ConnectError::System(errno) => return io::Error::from_raw_os_error(errno),
        ConnectError::Refused => ErrorKind::ConnectionRefused,
        ConnectError::TimedOut(_) => ErrorKind::TimedOut,
        ConnectError::Closed => ErrorKind::ConnectionReset,
        ConnectError::Protocol(_) => ErrorKind::InvalidData,
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

pub(super) fn of_stream(error: Error) -> io::Error {
    match error {
        Error::WouldBlock => ErrorKind::WouldBlock,
        Error::TooLong => ErrorKind::InvalidInput,
        Error::Shut => ErrorKind::BrokenPipe,
        Error::Reset => ErrorKind::ConnectionReset,
    }
    .into()
}
