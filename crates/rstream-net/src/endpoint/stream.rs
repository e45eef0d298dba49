//! A stream, with the calls that `std::net::TcpStream` has.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rstream_session::{Direction, Statistics};

use super::core::Core;
use super::options::Options;

/// How the bytes of a stream travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Through memory that both processes share. Each direction moves there by itself, once.
    SharedMemory,
    /// By the queue pair of the device.
    QueuePair,
}

/// A byte stream over an RDMA device. Its calls are those of [`std::net::TcpStream`], with these differences: a
/// write takes what there is room for, also if it waits, and clones have one descriptor.
///
/// No thread runs behind a stream: its calls drive it, in both directions, also while they wait. What was written
/// and could not go out at once, the end included, goes out with later calls.
///
/// Dropping the last clone delivers what was written and ends the stream. That waits until the peer's host has
/// everything, at most for the [linger time](Options::linger).
pub struct Stream {
    pub(super) core: Arc<Core>,
}

impl Stream {
    pub(super) fn new(core: Core) -> Self {
        Self { core: Arc::new(core) }
    }

    /// Connects to the first of the addresses that answers, with the default [`Options`].
    ///
    /// # Errors
    /// Those of [`Options::connect`].
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Options::new().connect(address)
    }

    /// The connection data of the peer: that of its request if this stream was accepted, else that of its reply.
    #[must_use]
    pub fn peer_data(&self) -> &[u8] {
        self.core.peer_data()
    }

    /// How its bytes travel.
    #[must_use]
    pub fn path(&self) -> Path {
        self.core.path()
    }

    /// What was counted so far. A call that waits counts once for each sleep, and once at its end.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.core.statistics()
    }

    /// As `read`, but the bytes stay the next to be read.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.peek(buffer)
    }

    /// Ends the input, the output or both. The peer reads what was written, then the end of the stream.
    ///
    /// # Errors
    /// None: it is a `Result` because that of [`std::net::TcpStream`] is.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.core.shutdown(how);
        Ok(())
    }

    /// Another one of the same connection.
    ///
    /// # Errors
    /// None: it is a `Result` because that of [`std::net::TcpStream`] is.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { core: Arc::clone(&self.core) })
    }

    /// The address of this end.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.core.ends().0
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.core.ends().1
    }

    /// Whether calls that would wait fail instead, with [`WouldBlock`](ErrorKind::WouldBlock). It holds for all
    /// clones.
    ///
    /// # Errors
    /// None: it is a `Result` because that of [`std::net::TcpStream`] is.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        self.core.set_nonblocking(is_nonblocking);
        Ok(())
    }

    /// How long a read waits. Then it fails with [`WouldBlock`](ErrorKind::WouldBlock).
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for no time at all.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_limit(Direction::Receive, limit)
    }

    /// How long a write waits. Then it fails with [`WouldBlock`](ErrorKind::WouldBlock).
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for no time at all.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.set_limit(Direction::Send, limit)
    }

    /// How long a read waits.
    ///
    /// # Errors
    /// None: it is a `Result` because that of [`std::net::TcpStream`] is.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.core.limit(Direction::Receive))
    }

    /// How long a write waits.
    ///
    /// # Errors
    /// None: it is a `Result` because that of [`std::net::TcpStream`] is.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.core.limit(Direction::Send))
    }

    fn set_limit(&self, direction: Direction, limit: Option<Duration>) -> io::Result<()> {
        if limit == Some(Duration::ZERO) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "a time-out of no time"));
        }
        self.core.set_limit(direction, limit);
        Ok(())
    }
}

impl Read for &Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.core.receive(buffers)
    }
}

impl Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.core.send(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}

/// The one descriptor to sleep on, in both directions: once a call has failed with
/// [`WouldBlock`](ErrorKind::WouldBlock), it is **readable** as soon as that call would do something. Wait
/// level-triggered.
impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.as_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}
