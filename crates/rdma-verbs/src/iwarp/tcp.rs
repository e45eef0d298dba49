//! Properties of a TCP connection for which no safe interface exists.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Bytes that a TCP socket accepted and the peer's host has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// What the system says.
pub(super) fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`); `TIOCOUTQ` writes one `int`
    // through the pointer, which is to a live one.
    let returned = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if returned < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// State of a TCP socket's output (`TCP_INFO`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Transmission {
    /// Number of retransmissions and window probes since the peer's host last answered.
    pub(super) unanswered: u32,
    /// Time since the last acknowledgement.
    pub(super) since_answer: Duration,
}

/// Returns the [`Transmission`] state of a TCP socket.
///
/// # Errors
/// What the system says.
pub(super) fn transmission(socket: BorrowedFd<'_>) -> io::Result<Transmission> {
    // SAFETY: `tcp_info` consists of integers, for which all zeros are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`); the kernel writes at most `length`
    // bytes to `info`, which has as many, and the length written to `length`; both are live.
    let returned = unsafe {
        let (info, length) = ((&raw mut info).cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, length)
    };
    if returned < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Transmission {
        unanswered: u32::from(info.tcpi_retransmits) + u32::from(info.tcpi_probes),
        since_answer: Duration::from_millis(info.tcpi_last_ack_recv.into()),
    })
}

/// Makes a later bind to port 0 leave the choice of a port to `connect` (`IP_BIND_ADDRESS_NO_PORT`).
/// `connect` needs a port that is free towards its peer only, and not one that no socket uses.
///
/// # Errors
/// What the system says.
pub(super) fn choose_port_late(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let option = libc::IP_BIND_ADDRESS_NO_PORT;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`); the kernel reads `length` bytes
    // of a live `int`.
    let returned = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, option, (&raw const on).cast(), length)
    };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
