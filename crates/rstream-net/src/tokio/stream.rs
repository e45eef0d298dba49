//! A connection, as `tokio::net` has it.

use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{self, Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use ::tokio::net::ToSocketAddrs;
use rstream_sockets::{Role, TURNS};

use super::core::Core;
use super::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf, split, split_owned};
use super::wakers::Who;
use crate::connection::{Connection, Path};

/// As [`tokio::net::TcpStream`](::tokio::net::TcpStream). Any TCP peer may be at the other end; with one that
/// uses rstream too, on the same host, the bytes move to shared memory by themselves.
pub struct TcpStream {
    core: Core,
}

impl TcpStream {
    pub(super) fn new(socket: ::tokio::net::TcpStream, role: Role, after: u32) -> io::Result<Self> {
        Ok(Self { core: Core::new(Connection::new(socket, role, after)?) })
    }

    /// Connects to the first of the addresses that answers.
    ///
    /// # Errors
    /// Those of [`tokio::net::TcpStream::connect`](::tokio::net::TcpStream::connect).
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::new(::tokio::net::TcpStream::connect(address).await?, Role::Active, TURNS)
    }

    /// A connection that has carried **no bytes yet**, in this runtime. One that has stays on TCP, as far as
    /// the kernel's counts tell. It need not have been made non-blocking.
    ///
    /// # Errors
    /// What the system says.
    pub fn from_std(socket: net::TcpStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let socket = ::tokio::net::TcpStream::from_std(socket)?;
        Ok(Self { core: Core::new(Connection::of_unknown(socket)?) })
    }

    /// How its bytes travel.
    #[must_use]
    pub fn path(&self) -> Path {
        self.core.connection().path()
    }

    /// Has it move to shared memory after so many turns, instead of 8, if it has not begun to. A turn is a call
    /// whose bytes go the other way than those of the call before, or 32 calls that go the same way, or a MiB.
    /// 0 is for tests; [`u32::MAX`] is never.
    pub fn upgrade_after(&self, turns: u32) {
        self.core.connection().stream.meet_after(turns);
    }

    /// As a read, but the bytes stay the next to be read. Any number of tasks may wait.
    ///
    /// # Errors
    /// What the system says.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let place = self.core.place();
        poll_fn(|cx| self.core.poll_receive(cx, place.who(), &mut [IoSliceMut::new(buffer)], true)).await
    }

    /// As [`peek`](Self::peek); the task of the last call that reads or peeks is woken.
    ///
    /// # Errors
    /// What the system says.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<usize>> {
        let place = IoSliceMut::new(buffer.initialize_unfilled());
        let length = ready!(self.core.poll_receive(cx, Who::Reader, &mut [place], true))?;
        buffer.advance(length);
        Poll::Ready(Ok(length))
    }

    /// Waits until there may be something to read, or the end. Any number of tasks may wait.
    ///
    /// # Errors
    /// What the system says.
    pub async fn readable(&self) -> io::Result<()> {
        let place = self.core.place();
        poll_fn(|cx| self.core.poll_ready(cx, place.who(), false)).await
    }

    /// Waits until there may be room to write. Any number of tasks may wait.
    ///
    /// # Errors
    /// What the system says.
    pub async fn writable(&self) -> io::Result<()> {
        let place = self.core.place();
        poll_fn(|cx| self.core.poll_ready(cx, place.who(), true)).await
    }

    /// Waits until a part of `interest` may be possible, and says which.
    ///
    /// # Errors
    /// What the system says.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let place = self.core.place();
        poll_fn(|cx| {
            let mut ready = Ready::EMPTY;
            if interest.is_readable() && self.core.poll_ready(cx, place.who(), false)?.is_ready() {
                ready |= Ready::READABLE;
            }
            if interest.is_writable() && self.core.poll_ready(cx, place.who(), true)?.is_ready() {
                ready |= Ready::WRITABLE;
            }
            if ready.is_empty() { Poll::Pending } else { Poll::Ready(Ok(ready)) }
        })
        .await
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing is; what the system says.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.core.try_receive(&mut [IoSliceMut::new(buffer)], false)
    }

    /// Reads what is there.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read).
    pub fn try_read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.core.try_receive(buffers, false)
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) if there is none; what the system says.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.core.try_send(&[IoSlice::new(bytes)])
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// As [`try_write`](Self::try_write).
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.core.try_send(slices)
    }

    /// Both directions, for two futures of one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        split(self)
    }

    /// Both directions, for two tasks. The output ends when its half is dropped.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        split_owned(Arc::new(self))
    }

    /// The address of this end.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.core.connection().socket.local_addr()
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// What the system says.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.core.connection().socket.peer_addr()
    }

    /// `TCP_NODELAY`, as it was asked for.
    ///
    /// # Errors
    /// What the system says.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.core.connection().nodelay()
    }

    /// `TCP_NODELAY`. In shared memory nothing is delayed.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_nodelay(&self, is_nodelay: bool) -> io::Result<()> {
        self.core.connection().set_nodelay(is_nodelay)
    }

    /// `IP_TTL`.
    ///
    /// # Errors
    /// What the system says.
    pub fn ttl(&self) -> io::Result<u32> {
        self.core.connection().socket.ttl()
    }

    /// `IP_TTL`.
    ///
    /// # Errors
    /// What the system says.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.core.connection().socket.set_ttl(ttl)
    }

    /// `SO_ERROR`.
    ///
    /// # Errors
    /// What the system says.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.core.connection().take_error()
    }

    pub(super) fn poll_read_shared(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A read of nothing tells nothing, as in tokio.
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let place = IoSliceMut::new(buffer.initialize_unfilled());
        let length = ready!(self.core.poll_receive(cx, Who::Reader, &mut [place], false))?;
        buffer.advance(length);
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_write_shared(
        &self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.core.poll_send(cx, slices)
    }

    /// A connection that is gone has no output to end, which is no error in tokio.
    pub(super) fn end_output(&self) -> io::Result<()> {
        match self.core.shutdown(Shutdown::Write) {
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            outcome => outcome,
        }
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_shared(cx, buffer)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_shared(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_shared(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.end_output())
    }
}

impl AsFd for TcpStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.connection().as_fd()
    }
}

impl AsRawFd for TcpStream {
    fn as_raw_fd(&self) -> RawFd {
        self.core.connection().as_raw_fd()
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}
