//! Conversion of errors of the verbs core and of the stream to errno.

use rdma_verbs::Error;

use crate::abi::Errno;

/// The errno of a call that a device refused. The error itself goes to the log, because an errno cannot
/// express it.
pub(super) fn errno_of(error: Error) -> Errno {
    log::warn!(target: "ep_ctrl", "{error}");
    match error {
        Error::Io { source, .. } => source.into(),
        Error::QueueFull { .. } => Errno::EAGAIN,
        Error::CompletionQueueFull { .. } => Errno::ENOSPC,
        Error::InlineTooLong { .. } => Errno::EMSGSIZE,
        Error::OutOfRange { .. } | Error::BadSegment { .. } => Errno::EINVAL,
        Error::BadState { .. } => Errno::EOPBADSTATE,
        Error::Unsupported(_) => Errno::ENOSYS,
        _ => Errno::EIO,
    }
}

/// The errno of a call on a stream that moved no bytes.
impl From<rstream_session::Error> for Errno {
    fn from(error: rstream_session::Error) -> Self {
        match error {
            rstream_session::Error::WouldBlock => Self::EAGAIN,
            rstream_session::Error::TooLong => Self::EMSGSIZE,
            rstream_session::Error::Shut => Self::EPIPE,
            rstream_session::Error::Reset => Self::ECONNRESET,
        }
    }
}
