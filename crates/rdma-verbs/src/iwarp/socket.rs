//! The TCP socket under a queue pair: the only place where the embedded device sends and receives.

#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, sockopt};

use super::halves::halves;
use super::machine::{Taken, Wire, copies};
use super::scratch::Scratch;
use super::tap::Tap;
use super::tcp;
use crate::descriptor::Descriptor;
use crate::memory::{self, Source};
use crate::process::Maker;
use crate::{Error, Result};

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// A connected socket, or one that is connecting; never blocks, never raises a signal.
#[derive(Debug)]
pub(super) struct Socket {
    descriptor: Descriptor,
    maker: Maker,
    /// The error that ended the sending side. Input is still received until it ends.
    send_error: Option<Errno>,
    /// See [`Socket::keep`].
    keeps: bool,
    /// Whether the system may keep bytes that it has taken.
    has_kept: bool,
    /// The keep-alive time that [`Socket::tune`] has set.
    tuned: Option<Duration>,
    /// Whether the peer is on this host.
    stays_on_host: bool,
    /// Whether input has completed a request since memory was sent last. If so, the peer may wait for an answer.
    answers: bool,
    /// The capture of what passes, if one is asked for.
    tap: Option<Box<Tap>>,
}

/// What [`Socket::drop_input`] has dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dropped {
    /// More has arrived.
    Part,
    /// All that has arrived.
    All,
    /// All that ever arrives.
    End,
}

impl Socket {
    /// Starts to connect to `remote`, from `local` if given. The outcome shows when the socket sends. The
    /// second value is an immediate error, which sending would not report.
    pub(super) fn connect(remote: SocketAddr, local: Option<SocketAddr>) -> Result<(Self, Option<Errno>)> {
        let descriptor = open(remote)?;
        if let Some(local) = local {
            if local.port() == 0 {
                // A system without this option chooses the port now, which is slower.
                let _ = tcp::choose_port_late(descriptor.as_fd());
            }
            net::bind(&descriptor, &local).map_err(Error::io("bind"))?;
        }
        let refused = match net::connect(&descriptor, &remote) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => None,
            Err(errno) => Some(errno),
        };
        Ok((Self::new(descriptor, None, true), refused))
    }

    /// The socket that `descriptor` is, with the keep-alive time that it has. `active`: this side connects.
    fn new(descriptor: Descriptor, tuned: Option<Duration>, active: bool) -> Self {
        let (maker, tap) = (Maker::this_process(), Tap::new(active));
        Self {
            descriptor,
            maker,
            send_error: None,
            keeps: false,
            has_kept: false,
            tuned,
            stays_on_host: false,
            answers: false,
            tap,
        }
    }

    /// Sets the options of every connection: no delay, and keep-alive probes. These detect that the peer's
    /// host has vanished while all data is acknowledged; [`super::liveness`] covers the rest.
    ///
    /// The system probes the peer after half of `keepalive` without input, several times, and ends the
    /// connection before `keepalive` has passed. It counts idle time in seconds.
    pub(super) fn tune(&mut self, keepalive: Duration) -> rustix::io::Result<()> {
        if self.tuned != Some(keepalive) {
            tune(self.as_fd(), keepalive)?;
            self.tuned = Some(keepalive);
        }
        Ok(())
    }

    /// Makes output to a peer on the same host leave as soon as its window allows. No network is between the two whose
    /// congestion would have to be controlled, and the system's default may space out what is sent (BBR does).
    pub(super) fn stay_on_host(&mut self) {
        self.stays_on_host = true;
        // Every system and process may use Reno; if not, the default remains.
        let _ = sockopt::set_tcp_congestion(&self.descriptor, "reno");
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        net::getsockname(&self.descriptor).ok().and_then(|address| address.try_into().ok())
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        net::getpeername(&self.descriptor).ok().flatten().and_then(|address| address.try_into().ok())
    }

    fn ends(&self) -> Option<[SocketAddr; 2]> {
        Some([self.local_address()?, self.peer_address()?])
    }

    /// Whether this process made it, rather than a parent of this process.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.maker.is_this_process()
    }

    /// Whether what passes is captured: then [`Socket::receive_at`] may not be used.
    pub(super) fn is_tapped(&self) -> bool {
        self.tap.is_some()
    }

    /// Receives into `buffer`; 0 is the end of the input.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> std::result::Result<usize, Errno> {
        match &self.tap {
            None => self.recv(buffer),
            Some(tap) => self.receive_tapped(tap, buffer),
        }
    }

    #[inline]
    fn recv(&self, buffer: &mut [u8]) -> std::result::Result<usize, Errno> {
        loop {
            match net::recv(&self.descriptor, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => return other.map(|(count, _)| count),
            }
        }
    }

    #[cold]
    fn receive_tapped(&self, tap: &Tap, buffer: &mut [u8]) -> std::result::Result<usize, Errno> {
        let count = self.recv(buffer)?;
        let unacknowledged = tcp::unacknowledged(self.as_fd()).unwrap_or(0);
        tap.received(|| self.ends(), &buffer[..count], unacknowledged);
        Ok(count)
    }

    /// Input has completed a request: what is sent next may be an answer.
    #[inline]
    pub(super) fn expect_answer(&mut self) {
        self.answers = true;
    }

    /// Whether there is something to receive: data, the end of the input, or an error.
    pub(super) fn has_input(&self) -> bool {
        let peeked = net::recv(&self.descriptor, &mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        !matches!(peeked, Err(Errno::AGAIN | Errno::INTR))
    }

    /// The error that ended the connection, if it did not end in order.
    pub(super) fn failure(&self) -> Option<Errno> {
        if self.send_error.is_some() {
            // The socket reports it only once.
            return self.send_error;
        }
        let mut watched = [PollFd::new(&self.descriptor, PollFlags::empty())];
        let looked = poll(&mut watched, Some(&Timespec::default()));
        let failed = looked.is_ok() && watched[0].revents().contains(PollFlags::ERR);
        failed
            .then(|| sockopt::socket_error(&self.descriptor).ok()?.err().or(Some(Errno::CONNRESET)))
            .flatten()
    }

    /// Receives by `call`; 0 is the end of the input.
    pub(super) fn receive_by(
        &self,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> std::result::Result<usize, Errno> {
        loop {
            match call(self.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)),
            }
        }
    }

    /// See [`Wire::transmit`].
    #[inline]
    fn send(&mut self, pieces: &[IoSlice<'_>], more: bool) -> Taken {
        let more = more || self.keeps;
        let flags = if more { SEND_FLAGS | SendFlags::MORE } else { SEND_FLAGS };
        self.attempt(more, |socket| match pieces {
            [piece] => net::send(socket, piece, flags),
            pieces => net::sendmsg(socket, pieces, &mut net::SendAncillaryBuffer::default(), flags),
        })
    }

    /// Whether the socket keeps what it takes from now on, as if more followed. What does not fill a segment is sent with
    /// later output, by [`Socket::push`], or by the system: when what was sent before is acknowledged, or after a
    /// time-out (200 ms, unless the peer is far away). Memory is kept only where the peer is on this host: in a network it
    /// is several segments, and only the last one would be kept.
    pub(super) fn keep(&mut self, keep: bool) {
        self.keeps = keep;
    }

    /// Sends what the socket keeps.
    pub(super) fn push(&mut self) {
        if !std::mem::take(&mut self.has_kept) {
            return;
        }
        // Setting the option has this effect even if it is set. A socket that cannot has lost its connection.
        let _ = sockopt::set_tcp_nodelay(&self.descriptor, true);
    }

    /// Sends two halves by a call each.
    fn send_halves(&mut self, [first, second]: [&[Source<'_>]; 2]) -> Taken {
        let half = first.iter().map(Source::len).sum();
        let taken = self.send_from_memory(first);
        if taken != Taken::Bytes(half) {
            return taken;
        }
        match self.send_from_memory(second) {
            Taken::Bytes(count) => Taken::Bytes(half + count),
            // Sending the rest reports it again.
            Taken::Dead | Taken::Unreadable => taken,
        }
    }

    fn send_from_memory(&mut self, pieces: &[Source<'_>]) -> Taken {
        let more = self.keeps && self.stays_on_host;
        self.attempt(more, |socket| {
            let sent = memory::send(socket, pieces, more);
            sent.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })
    }

    /// Attempts to send by `call`, which says whether more follows.
    #[inline]
    fn attempt(&mut self, more: bool, call: impl Fn(BorrowedFd<'_>) -> rustix::io::Result<usize>) -> Taken {
        if self.send_error.is_some() {
            return Taken::Dead;
        }
        loop {
            match call(self.descriptor.as_fd()) {
                Ok(count) => {
                    if count > 0 {
                        self.has_kept = more;
                    }
                    return Taken::Bytes(count);
                }
                Err(Errno::INTR) => {}
                // Also when the system has no memory for it now: a writable socket tells when.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Taken::Bytes(0),
                Err(Errno::FAULT) => return Taken::Unreadable,
                Err(errno) => {
                    self.send_error = Some(errno);
                    return Taken::Dead;
                }
            }
        }
    }

    #[cold]
    fn transmit_tapped(&mut self, pieces: &[IoSlice<'_>], more: bool) -> Taken {
        let taken = self.send(pieces, more);
        if let (Some(tap), Taken::Bytes(count)) = (&self.tap, &taken) {
            tap.sent(|| self.ends(), pieces, *count);
        }
        taken
    }

    /// What ended the sending side, if something did.
    pub(super) fn send_error(&self) -> Option<Errno> {
        self.send_error
    }

    /// Whether the peer's host has acknowledged everything that was sent except the last `spared` bytes.
    pub(super) fn is_acknowledged(&self, spared: u64) -> bool {
        self.send_error.is_some() || tcp::unacknowledged(self.as_fd()).unwrap_or(0) as u64 <= spared
    }

    /// Ends the output, after what was sent.
    pub(super) fn end_output(&self) {
        self.shut(Shutdown::Write);
    }

    /// Ends both directions, after what was sent.
    pub(super) fn end(&self) {
        self.shut(Shutdown::Both);
    }

    /// Drops what has arrived, by at most so many calls.
    pub(super) fn drop_input(&self, calls: usize) -> Dropped {
        if !self.is_of_this_process() {
            return Dropped::All;
        }
        let mut scratch = Scratch::take();
        for _ in 0..calls {
            match self.recv(&mut scratch) {
                Ok(1..) => {}
                Err(Errno::AGAIN) => return Dropped::All,
                Ok(0) | Err(_) => return Dropped::End,
            }
        }
        Dropped::Part
    }

    fn shut(&self, how: Shutdown) {
        if self.is_of_this_process() {
            if let Some(tap) = &self.tap {
                tap.finished();
            }
            // A socket that is not connected any more has nobody to tell.
            let _ = net::shutdown(&self.descriptor, how);
        }
    }

    /// Closes the connection with a reset instead of an orderly end. A child of the process that opened the
    /// socket closes the descriptor only, and the connection remains.
    pub(super) fn reset(self) {
        if self.is_of_this_process() {
            if let Some(tap) = &self.tap {
                tap.reset();
            }
            // At once, and not when the last copy of the descriptor is closed: a child may have one. If it
            // fails, the end is an orderly one, after the Terminate that says otherwise.
            let _ = net::connect_unspec(&self.descriptor);
        }
    }
}

impl Drop for Socket {
    /// Closing alone would not inform the peer while a child of this process has a copy of the descriptor.
    fn drop(&mut self) {
        self.end();
    }
}

impl Wire for Socket {
    fn transmit(&mut self, pieces: &[IoSlice<'_>], more: bool) -> Taken {
        if self.tap.is_some() { self.transmit_tapped(pieces, more) } else { self.send(pieces, more) }
    }

    fn transmit_from_memory(&mut self, pieces: &[Source<'_>]) -> Taken {
        if self.tap.is_some() {
            // What is captured is what is sent: the memory may change.
            let Some(bytes) = copies(pieces) else { return Taken::Unreadable };
            return self.transmit(&[IoSlice::new(&bytes)], false);
        }
        if std::mem::take(&mut self.answers)
            && self.stays_on_host
            && let Some([first, second]) = halves(pieces)
        {
            return self.send_halves([&first, &second]);
        }
        self.send_from_memory(pieces)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A socket that listens on `address`. Connections that it accepts inherit the options of [`tune`].
pub(super) fn listen(address: SocketAddr, backlog: u32, keepalive: Duration) -> Result<Descriptor> {
    let descriptor = open(address)?;
    tune(descriptor.as_fd(), keepalive).map_err(Error::io("setsockopt"))?;
    sockopt::set_socket_reuseaddr(&descriptor, true).map_err(Error::io("SO_REUSEADDR"))?;
    if address.is_ipv6() {
        // Whatever the system's default is: the wildcard address serves both families, and an IPv4-mapped one can be
        // bound.
        sockopt::set_ipv6_v6only(&descriptor, false).map_err(Error::io("IPV6_V6ONLY"))?;
    }
    net::bind(&descriptor, &address).map_err(Error::io("bind"))?;
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX).max(1);
    net::listen(&descriptor, backlog).map_err(Error::io("listen"))?;
    Ok(descriptor)
}

/// Accepts a connection of a listening socket, whose keep-alive time is `keepalive`. Returns the peer's
/// address as well.
pub(super) fn accept(
    listening: BorrowedFd<'_>,
    keepalive: Duration,
) -> rustix::io::Result<(Socket, Option<SocketAddr>)> {
    let (descriptor, peer) = net::acceptfrom_with(listening, FLAGS)?;
    let socket = Socket::new(descriptor.into(), Some(keepalive), false);
    Ok((socket, peer.and_then(|peer| peer.try_into().ok())))
}

/// Stops listening, also for copies of the descriptor in children of this process.
pub(super) fn stop_listening(listening: BorrowedFd<'_>) {
    // It cannot fail: the socket listens.
    let _ = net::shutdown(listening, Shutdown::Both);
}

/// Whether a connection waits to be accepted, or this cannot be found out: `poll` fails if the process may
/// open no descriptors at all.
pub(super) fn has_waiting_peer(listening: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(listening, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec::default())) != Ok(0)
}

/// The address that a listening socket got.
pub(super) fn bound_address(listening: BorrowedFd<'_>) -> Result<SocketAddr> {
    let address = net::getsockname(listening).map_err(Error::io("getsockname"))?;
    address.try_into().map_err(Error::io("getsockname"))
}

fn open(address: SocketAddr) -> Result<Descriptor> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    net::socket_with(family, SocketType::STREAM, FLAGS, None)
        .map(Descriptor::from)
        .map_err(Error::io("socket"))
}

/// See [`Socket::tune`].
fn tune(descriptor: BorrowedFd<'_>, keepalive: Duration) -> rustix::io::Result<()> {
    let second = Duration::from_secs(1);
    sockopt::set_tcp_nodelay(descriptor, true)?;
    let idle = (keepalive / 2).clamp(second, 32_767 * second);
    let interval = (keepalive / 8).clamp(second, 32_767 * second);
    let probes = u32::try_from(idle.as_secs() / interval.as_secs()).unwrap_or(1);
    sockopt::set_tcp_keepidle(descriptor, idle)?;
    sockopt::set_tcp_keepintvl(descriptor, interval)?;
    sockopt::set_tcp_keepcnt(descriptor, probes)?;
    sockopt::set_socket_keepalive(descriptor, true)
}
