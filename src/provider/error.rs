//! From errors of the verbs core to errno.

use crate::abi::Errno;
use rdma_verbs::Error;

/// The errno of a device's refusal; what the device said goes to the log, because an errno cannot
/// carry it.
pub(super) fn errno_of(error: Error) -> Errno {
    log::warn!(target: "ep_ctrl", "{error}");
    match error {
        Error::Io { source, .. } => source.into(),
        Error::QueueFull { .. } => Errno::EAGAIN,
        Error::InlineTooLong { .. } => Errno::EMSGSIZE,
        Error::OutOfRange { .. } | Error::BadSegment { .. } => Errno::EINVAL,
        Error::BadState { .. } => Errno::EOPBADSTATE,
        Error::Unsupported(_) => Errno::ENOSYS,
    }
}
