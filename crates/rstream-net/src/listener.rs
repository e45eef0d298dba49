//! Connections that come, as `std::net` has them.

use std::io;
use std::net::{self, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rstream_sockets::{Role, TURNS};

use crate::TcpStream;

/// As [`std::net::TcpListener`], for [`TcpStream`]s of this crate.
#[derive(Debug)]
pub struct TcpListener {
    socket: net::TcpListener,
    after: AtomicU32,
}

impl TcpListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// Those of [`std::net::TcpListener::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        net::TcpListener::bind(address).map(Self::from)
    }

    /// Waits for a connection.
    ///
    /// # Errors
    /// Those of [`std::net::TcpListener::accept`].
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, peer) = self.socket.accept()?;
        Ok((TcpStream::new(socket, Role::Passive, self.after.load(Ordering::Relaxed))?, peer))
    }

    /// Each connection that comes, for ever.
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Another one of the same socket.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_clone(&self) -> io::Result<Self> {
        let after = AtomicU32::new(self.after.load(Ordering::Relaxed));
        Ok(Self { socket: self.socket.try_clone()?, after })
    }

    /// Whether [`accept`](Self::accept) returns at once if there is no connection.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        self.socket.set_nonblocking(is_nonblocking)
    }

    /// `IP_TTL`.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set_ttl(ttl)
    }

    /// `IP_TTL`.
    ///
    /// # Errors
    /// What the system says.
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }

    /// `SO_ERROR`.
    ///
    /// # Errors
    /// What the system says.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    /// [`TcpStream::upgrade_after`] of each connection that is accepted from now on.
    pub fn upgrade_after(&self, turns: u32) {
        self.after.store(turns, Ordering::Relaxed);
    }
}

impl From<net::TcpListener> for TcpListener {
    fn from(socket: net::TcpListener) -> Self {
        Self { socket, after: AtomicU32::new(TURNS) }
    }
}

impl From<TcpListener> for net::TcpListener {
    fn from(listener: TcpListener) -> Self {
        listener.socket
    }
}

impl AsFd for TcpListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for TcpListener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// What [`TcpListener::incoming`] gives.
#[derive(Debug)]
pub struct Incoming<'a> {
    listener: &'a TcpListener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<TcpStream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl std::iter::FusedIterator for Incoming<'_> {}
