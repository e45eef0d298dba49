//! The user of the process at the other end of a Unix socket.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Whether the process at the other end had this one's user when it connected or listened.
pub(crate) fn is_same_user(socket: BorrowedFd<'_>) -> bool {
    is_user(socket, rustix::process::geteuid().as_raw())
}

/// Whether the process at the other end had this user when it connected or listened. Where some users have no
/// number, the overflow user is nobody's: it stands for all of them.
pub(crate) fn is_user(socket: BorrowedFd<'_>, user: u32) -> bool {
    let is_one = || overflow_user().is_some_and(|overflow| overflow != user) || have_all_users_numbers();
    user_of_peer(socket) == Some(user) && is_one()
}

/// Whether this user namespace has a number for each user of the system, as the first one does: then the user
/// `nobody`, whose number is usually the overflow user's, is one.
fn have_all_users_numbers() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn overflow_user() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?.trim().parse().ok()
}

fn user_of_peer(socket: BorrowedFd<'_>) -> Option<u32> {
    peer(socket).map(|peer| peer.uid)
}

/// The process at the other end when it connected or listened, if it has a number in this namespace.
pub(crate) fn process_of_peer(socket: BorrowedFd<'_>) -> Option<u32> {
    peer(socket).and_then(|peer| u32::try_from(peer.pid).ok()).filter(|&process| process != 0)
}

/// `SO_PEERCRED`. Not by `rustix`, in whose answer a process has a number: one of another namespace has none.
fn peer(socket: BorrowedFd<'_>) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`); the kernel writes at most `length` bytes to
    // `peer`, which has as many and holds integers only, and the length written to `length`.
    let answer = unsafe {
        let (peer, length) = ((&raw mut peer).cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, peer, length)
    };
    (answer == 0 && length as usize == size_of::<libc::ucred>()).then_some(peer)
}
