//! What has to hold of the system, of this process and of the peer's user before memory is shared. Each is
//! asked anew for each connection.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::{Resource, getrlimit};

/// Shared memory takes a descriptor for each connection, and is a convenience. A process keeps what it
/// has beyond one in so many of those that it may have,
const SPARE: u64 = 32;
/// or beyond this many, if they are no more than one in so many.
const SPARE_LEAST: (u64, u64) = (256, 4);
/// The mode of `vm.overcommit_memory` in which memory is refused.
const STRICT: u32 = 2;

/// Whether the process at the other end has this one's user. The overflow user is nobody's: it stands for all
/// users that this user namespace does not know.
pub(super) fn is_same_user(socket: BorrowedFd<'_>) -> bool {
    let own = rustix::process::geteuid().as_raw();
    peer_user(socket) == Some(own) && setting("/proc/sys/kernel/overflowuid").is_some_and(|user| user != own)
}

/// Whether a process that was given this descriptor has enough others left. The system gives the
/// lowest number that is free.
pub(super) fn is_affordable(descriptor: BorrowedFd<'_>) -> bool {
    let number = u64::from(descriptor.as_raw_fd().unsigned_abs());
    let (least, share) = SPARE_LEAST;
    let spare = |most: u64| (most / SPARE).max(least.min(most / share));
    getrlimit(Resource::Nofile).current.is_none_or(|most| number < spare(most))
}

/// Whether this process may make a file of `size` bytes. The system ends a process that tries to make a
/// longer one than it may.
pub(super) fn is_permitted(size: u64) -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|most| size <= most)
}

/// Whether the pages of a file in memory are there when they are first used. Where the system commits no more
/// memory than it has, it may refuse one then, and end the process that used it.
pub(super) fn is_memory_certain() -> bool {
    setting("/proc/sys/vm/overcommit_memory").is_some_and(|mode| mode != STRICT)
}

/// A number that the system has in a file.
fn setting(path: &str) -> Option<u32> {
    std::str::from_utf8(&std::fs::read(path).ok()?).ok()?.trim().parse().ok()
}

/// The user whom the process at the other end of a Unix socket had when it connected or listened
/// (`SO_PEERCRED`).
fn peer_user(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`); the kernel writes at most `length`
    // bytes to `peer`, which has as many and holds integers only, and the length written to `length`.
    let answer = unsafe {
        let (peer, length) = ((&raw mut peer).cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, peer, length)
    };
    (answer == 0 && length as usize == size_of::<libc::ucred>()).then_some(peer.uid)
}
