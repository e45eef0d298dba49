//! Connections that come, as `tokio::net` has them.

use std::io;
use std::net::{self, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use ::tokio::net::ToSocketAddrs;
use rstream_sockets::{Role, TURNS};

use super::TcpStream;

/// As [`tokio::net::TcpListener`](::tokio::net::TcpListener), for [`TcpStream`]s of this crate.
#[derive(Debug)]
pub struct TcpListener {
    socket: ::tokio::net::TcpListener,
    after: AtomicU32,
}

impl TcpListener {
    /// Listens at an address.
    ///
    /// # Errors
    /// Those of [`tokio::net::TcpListener::bind`](::tokio::net::TcpListener::bind).
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Ok(Self::new(::tokio::net::TcpListener::bind(address).await?))
    }

    /// The listener in this runtime. It need not have been made non-blocking.
    ///
    /// # Errors
    /// What the system says.
    pub fn from_std(socket: net::TcpListener) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self::new(::tokio::net::TcpListener::from_std(socket)?))
    }

    fn new(socket: ::tokio::net::TcpListener) -> Self {
        Self { socket, after: AtomicU32::new(TURNS) }
    }

    /// Waits for a connection. A future that is dropped loses none.
    ///
    /// # Errors
    /// What the system says.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (socket, peer) = self.socket.accept().await?;
        Ok((self.stream(socket)?, peer))
    }

    /// As [`accept`](Self::accept); the task of the last call is woken.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let (socket, peer) = ready!(self.socket.poll_accept(cx))?;
        Poll::Ready(Ok((self.stream(socket)?, peer)))
    }

    fn stream(&self, socket: ::tokio::net::TcpStream) -> io::Result<TcpStream> {
        TcpStream::new(socket, Role::Passive, self.after.load(Ordering::Relaxed))
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// `IP_TTL`.
    ///
    /// # Errors
    /// What the system says.
    pub fn ttl(&self) -> io::Result<u32> {
        self.socket.ttl()
    }

    /// `IP_TTL`.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.socket.set_ttl(ttl)
    }

    /// [`TcpStream::upgrade_after`] of each connection that is accepted from now on.
    pub fn upgrade_after(&self, turns: u32) {
        self.after.store(turns, Ordering::Relaxed);
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
