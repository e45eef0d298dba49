//! Stream sockets as a C application uses them: TCP without delay, and Unix sockets.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener, UnixStream};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::{Connector, Interest, Listener, Stream};

/// A connected socket of either family.
pub(crate) struct Socket(OwnedFd);

impl Stream for Socket {
    #[inline]
    fn send(&mut self, data: &[u8]) -> Result<Option<usize>> {
        match send(&self.0, data, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(taken) => Ok(Some(taken)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error).context("send"),
        }
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        match recv(&self.0, buffer, RecvFlags::DONTWAIT) {
            Ok((given, _)) => Ok(Some(given)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error).context("recv"),
        }
    }

    fn finish(&mut self) -> Result<()> {
        shutdown(&self.0, Shutdown::Write).context("shutdown")
    }

    fn twin(&self) -> Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    fn sleep(streams: &[Self], until: Interest) -> Result<()> {
        let events = match until {
            Interest::Receive => PollFlags::IN,
            Interest::Send => PollFlags::OUT,
            Interest::Both => PollFlags::IN | PollFlags::OUT,
        };
        let each = |stream| PollFd::from_borrowed_fd(Self::as_fd(stream), events);
        // The usual one stream costs no allocation.
        let slept = match streams {
            [stream] => poll(&mut [each(stream)], None),
            _ => poll(&mut streams.iter().map(each).collect::<Vec<_>>(), None),
        };
        match slept {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("poll"),
        }
    }
}

impl Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn tcp(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self(stream.into()))
    }
}

/// Listens for TCP connections on one address, on a port that the system chooses.
pub(crate) struct TcpDoor(TcpListener);

impl TcpDoor {
    pub(crate) fn open(address: IpAddr) -> Result<Self> {
        Ok(Self(TcpListener::bind((address, 0)).with_context(|| format!("listening on {address}"))?))
    }
}

impl Listener for TcpDoor {
    type Stream = Socket;

    fn target(&self) -> Result<String> {
        Ok(self.0.local_addr()?.port().to_string())
    }

    fn accept(&mut self) -> Result<Socket> {
        Socket::tcp(self.0.accept()?.0)
    }
}

/// Where a TCP listener is.
pub(crate) struct TcpWay(pub(crate) SocketAddr);

impl Connector for TcpWay {
    type Stream = Socket;

    fn connect(&mut self) -> Result<Socket> {
        Socket::tcp(TcpStream::connect(self.0).with_context(|| format!("connecting to {}", self.0))?)
    }
}

/// Listens on a name that is no file and goes away with the process.
pub(crate) struct UnixDoor {
    listener: UnixListener,
    name: String,
}

impl UnixDoor {
    pub(crate) fn open() -> Result<Self> {
        let name = format!("rstream-perf-{}", std::process::id());
        let listener = UnixListener::bind_addr(&abstract_address(&name)?)?;
        Ok(Self { listener, name })
    }
}

impl Listener for UnixDoor {
    type Stream = Socket;

    fn target(&self) -> Result<String> {
        Ok(self.name.clone())
    }

    fn accept(&mut self) -> Result<Socket> {
        Ok(Socket(self.listener.accept()?.0.into()))
    }
}

/// The name of a Unix listener.
pub(crate) struct UnixWay(pub(crate) String);

impl Connector for UnixWay {
    type Stream = Socket;

    fn connect(&mut self) -> Result<Socket> {
        let stream = UnixStream::connect_addr(&abstract_address(&self.0)?).context("connecting")?;
        Ok(Socket(stream.into()))
    }
}

fn abstract_address(name: &str) -> Result<net::SocketAddr> {
    Ok(net::SocketAddr::from_abstract_name(name)?)
}
