//! Why a connection attempt failed, by what said so.

use super::{Attempt, kind};
use crate::{ConnectError, Error, HandshakeFault};

/// Why an attempt failed, by the event that said so.
pub(super) fn failure(event: kind::Type, status: i32, attempt: &Attempt) -> ConnectError {
    let errno = status.wrapping_neg();
    match event {
        // Nobody answered for the address.
        kind::RDMA_CM_EVENT_ADDR_ERROR | kind::RDMA_CM_EVENT_ROUTE_ERROR if errno == libc::ETIMEDOUT => {
            ConnectError::System(libc::EHOSTUNREACH)
        }
        kind::RDMA_CM_EVENT_ADDR_ERROR | kind::RDMA_CM_EVENT_ROUTE_ERROR if errno > 0 => {
            ConnectError::System(errno)
        }
        kind::RDMA_CM_EVENT_UNREACHABLE => {
            ConnectError::TimedOut(u64::try_from(attempt.passed().as_millis()).unwrap_or(u64::MAX))
        }
        kind::RDMA_CM_EVENT_DEVICE_REMOVAL => ConnectError::System(libc::ENODEV),
        kind::RDMA_CM_EVENT_DISCONNECTED => ConnectError::Closed,
        kind::RDMA_CM_EVENT_CONNECT_ERROR if errno == libc::ECONNRESET => ConnectError::Closed,
        other => ConnectError::Protocol(HandshakeFault::Event { event: other, status }),
    }
}

/// Why an attempt failed, by the call that did.
pub(super) fn connect_error(error: &Error) -> ConnectError {
    match error {
        Error::Io { source, .. } => match source.raw_os_error() {
            Some(libc::ECONNREFUSED) => ConnectError::Refused,
            // The address is one that no device has, or no device leads to.
            Some(libc::ENODEV) | None => ConnectError::System(libc::EADDRNOTAVAIL),
            Some(errno) => ConnectError::System(errno),
        },
        _ => ConnectError::System(libc::EINVAL),
    }
}
