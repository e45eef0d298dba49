//! A socket by which two processes notify each other.
//!
//! Each end has a file description of its own, and each call says for itself that it neither waits nor
//! raises a signal. So nothing that the other end does, to its socket or to its process, blocks or ends
//! this process. A notification is a message of one byte. What nobody takes fills the sender's buffer,
//! and the sender goes on without: as many notifications as fit are enough.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::{Error, Result};

/// One end of whatever two sides wake each other by. No call waits.
pub trait Notify {
    /// Ends a sleep of the other side, now or later.
    fn notify(&self);

    /// Takes one notification, if there is one, so that it ends no sleep any more. Others stay. Returns
    /// whether there was one.
    fn take(&self) -> bool;
}

/// An end of a connected Unix socket that keeps messages apart (`SOCK_SEQPACKET`). Its descriptor is readable
/// while a notification is there, and once the other end is closed.
#[derive(Debug)]
pub struct Notifier {
    socket: OwnedFd,
    ended: AtomicBool,
}

impl Notifier {
    /// The notifier on a socket that **this process** made, by `connect`, `accept` or `socketpair`. A socket
    /// that was handed over by a peer shares its file description with the peer, who could have it raise
    /// signals here.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, ended: AtomicBool::new(false) }
    }

    /// Both ends, for a process and one that is forked from it.
    ///
    /// # Errors
    /// [`Error::Io`] with what the system says.
    pub fn pair() -> Result<(Self, Self)> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let ends = net::socketpair(AddressFamily::UNIX, kind, flags, None);
        let (one, other) = ends.map_err(Error::io("socketpair"))?;
        Ok((Self::new(one), Self::new(other)))
    }

    /// The process that connected, or listened, at the other end, by the number that it has here. `None`: it
    /// has none.
    #[cfg(not(loom))]
    #[must_use]
    pub fn peer_process(&self) -> Option<u32> {
        crate::user::process_of_peer(self.socket.as_fd())
    }

    /// Whether the other end was found closed. The descriptor is readable for ever then.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Notify for Notifier {
    fn notify(&self) {
        // A full socket has notifications enough; the connection tells that a process has ended.
        let _ = net::send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    fn take(&self) -> bool {
        // Descriptors that come with a message are closed by the system: there is no room for them.
        let (taken, ended) = match net::recv(&self.socket, &mut [0], RecvFlags::DONTWAIT) {
            Ok((_, length)) => (length > 0, length == 0),
            Err(errno) => (false, !matches!(errno, Errno::AGAIN | Errno::INTR)),
        };
        self.ended.fetch_or(ended, Ordering::Relaxed);
        taken
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// Without `O_NONBLOCK`, as a peer may leave its own end.
    fn ends() -> (Notifier, OwnedFd) {
        let (one, other) =
            net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Notifier::new(one), other)
    }

    fn is_readable(end: &Notifier) -> bool {
        let mut polled = [PollFd::new(end, PollFlags::IN)];
        poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn each_notification_is_taken_once() {
        let (one, other) = Notifier::pair().unwrap();
        assert!(!one.take() && !is_readable(&one));
        other.notify();
        other.notify();
        for left in [true, false] {
            assert!(is_readable(&one) && one.take());
            assert_eq!(is_readable(&one), left);
        }
        assert!(!one.take() && !one.has_ended());
    }

    #[test]
    fn a_full_socket_holds_nobody() {
        let (one, other) = ends();
        (0..10_000).for_each(|_| one.notify());
        let (other, mut count) = (Notifier::new(other), 0);
        while is_readable(&other) {
            other.take();
            count += 1;
        }
        assert!((1..10_000).contains(&count), "{count} notifications were kept");
    }

    #[test]
    fn an_end_that_is_closed_is_found() {
        let (one, other) = ends();
        // One that nobody reads: the system says so before it says that the end is closed.
        one.notify();
        drop(other);
        one.notify();
        one.take();
        assert!(one.has_ended());
        one.take();
        assert!(one.has_ended());
    }

    #[test]
    fn descriptors_that_come_along_are_not_kept() {
        use std::io::IoSlice;
        use std::mem::MaybeUninit;

        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage};

        let (one, other) = ends();
        let (kept, passed) = std::io::pipe().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [passed.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        net::sendmsg(&other, &[IoSlice::new(b"much more")], &mut control, SendFlags::empty()).unwrap();
        drop(passed);
        one.take();
        assert!(!is_readable(&one) && !one.has_ended());
        assert_eq!(rustix::io::read(&kept, &mut [0; 1]), Ok(0), "nobody has the other end of the pipe");
    }
}
