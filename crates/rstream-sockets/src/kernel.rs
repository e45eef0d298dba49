//! What the engine asks of the kernel's socket.
//!
//! No call waits. A door to the engine makes the calls that wait itself, with the application's own socket.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::{self, RecvFlags, SendFlags};

use crate::delays::Delays;
use crate::stream::Role;

/// Bytes of the stream that went through the kernel, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Taken from this side by its calls that send.
    pub sent: u64,
    /// Given to this side by its calls that receive.
    pub taken: u64,
}

/// A connected TCP socket.
pub trait Kernel {
    /// Sends as much as there is room for. No bytes ask only whether the connection still takes some.
    ///
    /// # Errors
    /// What the kernel says; [`Errno::AGAIN`] if it has no room.
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno>;

    /// Receives to `buffers`, or looks at what is there without taking it. 0 is the end of the stream.
    ///
    /// # Errors
    /// What the kernel says; [`Errno::AGAIN`] if there is nothing.
    fn receive(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno>;

    /// Why it cannot be upgraded, if so.
    fn obstacle(&self) -> Option<&'static str>;

    /// The addresses of the connection, this side's first. `None`: it is none of TCP.
    fn ends(&self) -> Option<(SocketAddr, SocketAddr)>;

    /// What the kernel has counted. `None`: it cannot tell now, or not any more, because an end has ended its
    /// output.
    fn counts(&self) -> Option<Counts>;

    /// Sets how what is sent is delayed from now on. Returns how it was before.
    ///
    /// # Errors
    /// What the kernel says.
    fn delay(&self, delays: Delays) -> Result<Delays, Errno>;

    /// Ends the output, as `shutdown` does.
    fn end_output(&self);

    /// Whether there is something to receive, or the end.
    fn has_input(&self) -> bool;

    /// Whether the peer has ended its output, or the connection has broken.
    fn has_ended(&self) -> bool;

    /// Whether a call that sends would fail. The call tells why.
    fn has_failed(&self) -> bool;
}

/// The socket itself.
#[derive(Debug, Clone, Copy)]
pub struct Socket<'a> {
    descriptor: BorrowedFd<'a>,
    /// Whether it was this side that connected.
    active: bool,
}

impl<'a> Socket<'a> {
    /// A connected TCP socket. `active`: this side called `connect`.
    #[must_use]
    pub fn new(descriptor: BorrowedFd<'a>, active: bool) -> Self {
        Self { descriptor, active }
    }

    /// Whether it is one of TCP, and not of UDP, MPTCP or another family.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        net::sockopt::socket_protocol(self.descriptor) == Ok(Some(net::ipproto::TCP))
    }

    /// Which end of a connection a socket is that has carried no bytes yet: what the kernel counts begins
    /// differently on the two sides. `None`: it has carried some, or is none of a connection.
    #[must_use]
    pub fn role_of_unused(descriptor: BorrowedFd<'a>) -> Option<Role> {
        let is_unused = |active| Self::new(descriptor, active).counts() == Some(Counts { sent: 0, taken: 0 });
        let connects = || tcp_info(descriptor).is_some_and(|info| info.state == SYN_SENT);
        if is_unused(true) || connects() {
            return Some(Role::Active);
        }
        is_unused(false).then_some(Role::Passive)
    }

    /// Whether a call would report an error, and whether the connection is gone in both directions, as
    /// `poll` says it unasked.
    #[must_use]
    pub fn failures(&self) -> PollFlags {
        look(self.descriptor, PollFlags::empty())
    }

    /// Whether the kernel takes bytes.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !look(self.descriptor, PollFlags::OUT).is_empty()
    }
}

impl Kernel for Socket<'_> {
    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        net::send(self.descriptor, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }

    fn receive(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        let flags = if peek { RecvFlags::DONTWAIT | RecvFlags::PEEK } else { RecvFlags::DONTWAIT };
        if let [only] = buffers {
            return net::recv(self.descriptor, &mut **only, flags).map(|(received, _)| received);
        }
        let received =
            net::recvmsg(self.descriptor, buffers, &mut net::RecvAncillaryBuffer::default(), flags);
        received.map(|message| message.bytes)
    }

    fn obstacle(&self) -> Option<&'static str> {
        if !self.is_tcp() {
            return Some("it is no TCP connection");
        }
        // A bell is one byte, and is in its place. A ring knows no time.
        let is_usual = option(self.descriptor, libc::SO_RCVLOWAT) == Some(1)
            && net::sockopt::socket_oobinline(self.descriptor) == Ok(false)
            && TIMES.iter().all(|&name| option(self.descriptor, name).unwrap_or(0) == 0);
        (!is_usual).then_some("an option needs TCP")
    }

    fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        let (own, peers) = (net::getsockname(self.descriptor).ok()?, net::getpeername(self.descriptor).ok()?);
        Some((own.try_into().ok()?, peers?.try_into().ok()?))
    }

    fn counts(&self) -> Option<Counts> {
        // An acknowledgement that arrives between the questions moves bytes from one count to the other.
        for _ in 0..8 {
            let info = tcp_info(self.descriptor)?;
            let (waiting, unread) = (queue::<SIOCOUTQ>(self.descriptor)?, queue::<SIOCINQ>(self.descriptor)?);
            if tcp_info(self.descriptor)? == info && info.state == ESTABLISHED {
                // The side that connected counts the acknowledgement of its SYN too.
                let sent = (info.acknowledged + waiting).checked_sub(self.active.into())?;
                return Some(Counts { sent, taken: info.received.checked_sub(unread)? });
            }
        }
        None
    }

    fn delay(&self, delays: Delays) -> Result<Delays, Errno> {
        let before = Delays {
            no_delay: net::sockopt::tcp_nodelay(self.descriptor)?,
            cork: net::sockopt::tcp_cork(self.descriptor)?,
        };
        if before.cork != delays.cork {
            net::sockopt::set_tcp_cork(self.descriptor, delays.cork)?;
        }
        if before.no_delay != delays.no_delay {
            net::sockopt::set_tcp_nodelay(self.descriptor, delays.no_delay)?;
        }
        Ok(before)
    }

    fn end_output(&self) {
        // A connection that is gone has no output to end.
        let _ = net::shutdown(self.descriptor, net::Shutdown::Write);
    }

    fn has_input(&self) -> bool {
        !look(self.descriptor, PollFlags::IN).is_empty()
    }

    fn has_ended(&self) -> bool {
        !look(self.descriptor, PollFlags::RDHUP).is_empty()
    }

    fn has_failed(&self) -> bool {
        !self.failures().is_empty()
    }
}

fn look(socket: BorrowedFd<'_>, events: PollFlags) -> PollFlags {
    let mut polled = [PollFd::from_borrowed_fd(socket, events)];
    match poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(1) => polled[0].revents(),
        _ => PollFlags::empty(),
    }
}

/// What is used of `struct tcp_info`.
#[derive(PartialEq, Eq)]
struct TcpInfo {
    state: u8,
    acknowledged: u64,
    received: u64,
}

/// `TCP_ESTABLISHED`: neither side has ended its output.
const ESTABLISHED: u8 = 1;
/// `TCP_SYN_SENT`: a call of `connect` is under way.
const SYN_SENT: u8 = 2;
/// Bytes that were sent and not acknowledged, and bytes that were not read (`tcp(7)`).
const SIOCOUTQ: Opcode = 0x5411;
const SIOCINQ: Opcode = 0x541b;

/// `TCP_INFO`. The C library's structure ends before the counts of bytes.
#[allow(unsafe_code)]
fn tcp_info(socket: BorrowedFd<'_>) -> Option<TcpInfo> {
    const ACKNOWLEDGED: usize = 120;
    const RECEIVED: usize = 128;
    let mut info = [0_u8; RECEIVED + 8];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`); the kernel writes at most `length` bytes to
    // `info`, which has as many, and the length written to `length`.
    let answer = unsafe {
        let (info, length) = (info.as_mut_ptr().cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info, length)
    };
    let word = |at: usize| info.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    if answer != 0 || length as usize != info.len() {
        return None;
    }
    Some(TcpInfo { state: info[0], acknowledged: word(ACKNOWLEDGED)?, received: word(RECEIVED)? })
}

/// Options that ask for the time of packets. An accepted connection has those of the socket that listened.
const TIMES: [libc::c_int; 6] = [
    libc::SO_TIMESTAMP,
    libc::SO_TIMESTAMP_NEW,
    libc::SO_TIMESTAMPNS,
    libc::SO_TIMESTAMPNS_NEW,
    libc::SO_TIMESTAMPING,
    libc::SO_TIMESTAMPING_NEW,
];

/// An option of sockets that is a number.
#[allow(unsafe_code)]
fn option(socket: BorrowedFd<'_>, name: libc::c_int) -> Option<libc::c_int> {
    let mut number: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`); the kernel writes at most `length` bytes to
    // `number`, which has as many, and the length written to `length`.
    let answer = unsafe {
        let (value, length) = ((&raw mut number).cast(), &raw mut length);
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, value, length)
    };
    (answer == 0).then_some(number)
}

/// By `rustix`, whose calls are not the C library's: a library may stand in front of those.
#[allow(unsafe_code)]
fn queue<const REQUEST: Opcode>(socket: BorrowedFd<'_>) -> Option<u64> {
    // SAFETY: both requests write one integer.
    let bytes = unsafe { ioctl(socket, Getter::<REQUEST, i32>::new()) };
    u64::try_from(bytes.ok()?).ok()
}
