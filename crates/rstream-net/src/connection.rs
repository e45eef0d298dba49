//! A connection: the kernel's socket and the engine's stream over it. Both kinds of streams are made of it.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{self, Shutdown};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rstream_sockets::{Kernel, Patience, Role, Socket, Stream, TURNS};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};

/// Buffers of one call of the kernel.
const MOST: usize = 1024;

/// How the bytes of a connection travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Through memory that both processes share.
    SharedMemory,
    /// By TCP, for this reason: "not yet", or why it stays so. It goes back to TCP if one side needs that: a
    /// peer that hands its end to another program, or [`to_std`](crate::TcpStream::to_std).
    Tcp(&'static str),
}

/// A connected socket: that of `std`, or tokio's.
pub(crate) struct Connection<S: AsFd = net::TcpStream> {
    pub(crate) socket: S,
    pub(crate) stream: Stream,
    role: Role,
    pub(crate) patience: Patience,
    /// What the application wants of `TCP_NODELAY`, which bells need in any case.
    is_nodelay: AtomicBool,
}

impl<S: AsFd> Connection<S> {
    /// A connection that has carried no bytes yet.
    pub(crate) fn new(socket: S, role: Role, after: u32) -> io::Result<Self> {
        let is_nodelay = AtomicBool::new(sockopt::tcp_nodelay(&socket)?);
        let (stream, patience) = (Stream::new(role, after)?, Patience::new());
        Ok(Self { socket, stream, role, patience, is_nodelay })
    }

    /// A connection of unknown origin. If it has carried bytes, it stays on TCP.
    pub(crate) fn of_unknown(socket: S) -> io::Result<Self> {
        let role = Socket::role_of_unused(socket.as_fd());
        let connection = Self::new(socket, role.unwrap_or(Role::Passive), TURNS)?;
        if role.is_none() {
            connection.stream.stay(&connection.kernel(), "it was used before");
        }
        Ok(connection)
    }

    /// The engine's view of the socket.
    #[inline]
    pub(crate) fn kernel(&self) -> Socket<'_> {
        Socket::new(self.socket.as_fd(), self.role == Role::Active)
    }

    pub(crate) fn path(&self) -> Path {
        if self.stream.has_rings() {
            Path::SharedMemory
        } else if self.stream.is_back() {
            Path::Tcp("back on TCP")
        } else {
            Path::Tcp(self.stream.reason().unwrap_or("not yet"))
        }
    }

    /// The kernel's call, which waits if the socket does.
    pub(crate) fn kernel_receive(&self, buffers: &mut [IoSliceMut<'_>], peek: bool) -> Result<usize, Errno> {
        let flags = if peek { RecvFlags::PEEK } else { RecvFlags::empty() };
        if let [only] = buffers {
            return rustix::net::recv(&self.socket, &mut **only, flags).map(|(received, _)| received);
        }
        let count = buffers.len().min(MOST);
        let control = &mut RecvAncillaryBuffer::default();
        let received = rustix::net::recvmsg(&self.socket, &mut buffers[..count], control, flags);
        received.map(|message| message.bytes)
    }

    /// The kernel's call, which waits if the socket does.
    pub(crate) fn kernel_send(&self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL;
        if let [only] = slices {
            return rustix::net::send(&self.socket, only, flags);
        }
        let slices = &slices[..slices.len().min(MOST)];
        rustix::net::sendmsg(&self.socket, slices, &mut SendAncillaryBuffer::default(), flags)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        if !self.stream.shut(&self.kernel(), how)? {
            return Ok(());
        }
        Ok(rustix::net::shutdown(
            &self.socket,
            match how {
                Shutdown::Read => rustix::net::Shutdown::Read,
                Shutdown::Write => rustix::net::Shutdown::Write,
                Shutdown::Both => rustix::net::Shutdown::Both,
            },
        )?)
    }

    /// `SO_ERROR`, also of an error that the engine has found.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        let found = sockopt::socket_error(&self.socket)?.err();
        Ok(found.or_else(|| self.stream.take_error()).map(io::Error::from))
    }

    pub(crate) fn set_nodelay(&self, is_nodelay: bool) -> io::Result<()> {
        self.is_nodelay.store(is_nodelay, Ordering::Relaxed);
        if !self.stream.has_rings() {
            sockopt::set_tcp_nodelay(&self.socket, is_nodelay)?;
        }
        // It may have been upgraded just now.
        if self.stream.has_rings() {
            sockopt::set_tcp_nodelay(&self.socket, true)?;
        }
        Ok(())
    }

    pub(crate) fn nodelay(&self) -> io::Result<bool> {
        match self.stream.has_rings() {
            true => Ok(self.is_nodelay.load(Ordering::Relaxed)),
            false => Ok(sockopt::tcp_nodelay(&self.socket)?),
        }
    }
}

impl<S: AsFd> AsFd for Connection<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<S: AsFd> AsRawFd for Connection<S> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl<S: AsFd> Drop for Connection<S> {
    fn drop(&mut self) {
        if self.stream.has_rings() {
            let wants_reset = || sockopt::socket_linger(&self.socket) == Ok(Some(Duration::ZERO));
            if self.stream.close(&self.kernel(), wants_reset) {
                // The kernel does so for unread bytes of its own.
                let _ = sockopt::set_socket_linger(&self.socket, Some(Duration::ZERO));
            }
        }
    }
}

impl<S: AsFd> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("TcpStream");
        if let Some((address, peer)) = self.kernel().ends() {
            shown.field("addr", &address).field("peer", &peer);
        }
        shown.field("fd", &self.as_raw_fd()).field("path", &self.path()).finish()
    }
}
