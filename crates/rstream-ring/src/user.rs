//! The user of the process at the other end of a Unix socket.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Whether the process at the other end had this one's user when it connected or listened. The overflow user
/// is nobody's: it stands for all users that this user namespace does not know.
pub(crate) fn is_same_user(socket: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid().as_raw();
    user_of_peer(socket) == Some(own) && overflow_user().is_some_and(|overflow| overflow != own)
}

fn overflow_user() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok()
}

/// `SO_PEERCRED`. Not by `rustix`, in whose answer a process has a number: one of another namespace has none.
fn user_of_peer(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`); the kernel writes at most `length` bytes to
    // `peer`, which has as many and holds integers only, and the length written to `length`.
    let answer = unsafe {
        let (peer, length) = ((&raw mut peer).cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, peer, length)
    };
    (answer == 0 && length as usize == size_of::<libc::ucred>()).then_some(peer.uid)
}
