//! A connection, as `std::net` has it.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{self, Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rstream_sockets::{Role, TURNS};

use crate::blocking;
use crate::connection::{Connection, Path};

/// As [`std::net::TcpStream`]. Any TCP peer may be at the other end; with one that uses rstream too, on the
/// same host, the bytes move to shared memory by themselves.
pub struct TcpStream {
    connection: Arc<Connection>,
}

impl TcpStream {
    pub(crate) fn new(socket: net::TcpStream, role: Role, after: u32) -> io::Result<Self> {
        Ok(Self { connection: Arc::new(Connection::new(socket, role, after)?) })
    }

    /// Connects to the first of the addresses that answers.
    ///
    /// # Errors
    /// Those of [`std::net::TcpStream::connect`].
    pub fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::new(net::TcpStream::connect(address)?, Role::Active, TURNS)
    }

    /// Connects within a time.
    ///
    /// # Errors
    /// Those of [`std::net::TcpStream::connect_timeout`].
    pub fn connect_timeout(address: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        Self::new(net::TcpStream::connect_timeout(address, timeout)?, Role::Active, TURNS)
    }

    /// A connection that has carried **no bytes yet**. One that has stays on TCP, as far as the kernel's
    /// counts tell.
    ///
    /// # Errors
    /// What the system says.
    pub fn from_std(socket: net::TcpStream) -> io::Result<Self> {
        Ok(Self { connection: Arc::new(Connection::of_unknown(socket)?) })
    }

    /// A stream of `std` for this connection, which goes back to TCP for it, in the midst of its bytes. All
    /// that is one goes on there: also this stream and its clones, by TCP.
    ///
    /// # Errors
    /// [`TimedOut`](io::ErrorKind::TimedOut) if the peer makes no call on the connection within a second, or
    /// leaves more unread than 64 KiB. Then the connection is used on as before. What the system says.
    pub fn to_std(&self) -> io::Result<net::TcpStream> {
        blocking::go_back(&self.connection)?;
        self.connection.socket.try_clone()
    }

    /// How its bytes travel.
    #[must_use]
    pub fn path(&self) -> Path {
        self.connection.path()
    }

    /// Has it move to shared memory after so many turns, instead of 8, if it has not begun to. A turn is a call
    /// whose bytes go the other way than those of the call before, or 32 calls that go the same way, or a MiB.
    /// 0 is for tests; [`u32::MAX`] is never.
    pub fn upgrade_after(&self, turns: u32) {
        self.connection.stream.meet_after(turns);
    }

    /// As `read`, but the bytes stay the next to be read.
    ///
    /// # Errors
    /// Those of [`std::net::TcpStream::peek`].
    pub fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        blocking::receive(&self.connection, &mut [IoSliceMut::new(buffer)], true)
    }

    /// Ends the input, the output or both.
    ///
    /// # Errors
    /// What the system says.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.connection.shutdown(how)
    }

    /// Another one of the same connection. Both have one descriptor.
    ///
    /// # Errors
    /// None: it is a `Result` because that of [`std::net::TcpStream`] is.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { connection: Arc::clone(&self.connection) })
    }

    /// The address of this end.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.socket.local_addr()
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// What the system says.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.connection.socket.peer_addr()
    }

    /// Whether calls that would wait fail instead, with [`WouldBlock`](io::ErrorKind::WouldBlock).
    ///
    /// # Errors
    /// What the system says.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        self.connection.socket.set_nonblocking(is_nonblocking)
    }

    /// How long a call that receives waits.
    ///
    /// # Errors
    /// Those of [`std::net::TcpStream::set_read_timeout`].
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.connection.socket.set_read_timeout(timeout)
    }

    /// How long a call that sends waits.
    ///
    /// # Errors
    /// Those of [`std::net::TcpStream::set_write_timeout`].
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.connection.socket.set_write_timeout(timeout)
    }

    /// How long a call that receives waits.
    ///
    /// # Errors
    /// What the system says.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        self.connection.socket.read_timeout()
    }

    /// How long a call that sends waits.
    ///
    /// # Errors
    /// What the system says.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        self.connection.socket.write_timeout()
    }

    /// `TCP_NODELAY`. In shared memory nothing is delayed.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_nodelay(&self, is_nodelay: bool) -> io::Result<()> {
        self.connection.set_nodelay(is_nodelay)
    }

    /// `TCP_NODELAY`, as it was asked for.
    ///
    /// # Errors
    /// What the system says.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.connection.nodelay()
    }

    /// `IP_TTL`.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.connection.socket.set_ttl(ttl)
    }

    /// `IP_TTL`.
    ///
    /// # Errors
    /// What the system says.
    pub fn ttl(&self) -> io::Result<u32> {
        self.connection.socket.ttl()
    }

    /// `SO_ERROR`.
    ///
    /// # Errors
    /// What the system says.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.connection.take_error()
    }
}

impl Read for &TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        blocking::receive(&self.connection, &mut [IoSliceMut::new(buffer)], false)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        blocking::receive(&self.connection, buffers, false)
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        blocking::send(&self.connection, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        blocking::send(&self.connection, slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(buffers)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.connection.as_raw_fd()
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
    }
}
