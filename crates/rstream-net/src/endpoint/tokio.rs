//! The same for tokio's runtime. Features `endpoint` and `tokio`.
//!
//! The reactor waits for the one descriptor that a stream has. What a task finds for another one that waits for
//! the same stream, it tells that task.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use ::tokio::io::unix::AsyncFd;
use ::tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use ::tokio::net::{ToSocketAddrs, lookup_host};
use ::tokio::runtime::Handle;
use ::tokio::task::coop::{consume_budget, poll_proceed};
use rdma_verbs::WaitSet;
use rstream_session::{Direction, Statistics};

use super::attempt::Attempt;
use super::core::Core;
use super::{Answer, Options, Path, Request};
use crate::tokio::wakers::{Wakers, Who};

/// Attempts of one poll. More are left to the next one.
const ATTEMPTS: u32 = 16;

/// A descriptor in the runtime.
#[derive(Debug)]
struct Descriptor(AsyncFd<Owned>);

#[derive(Debug)]
struct Owned(Arc<WaitSet>);

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Descriptor {
    fn new(set: &Arc<WaitSet>) -> io::Result<Self> {
        // What replaces it is unsafe, because a descriptor could change or close. This one does not.
        #[allow(deprecated, reason = "older versions of tokio have no other")]
        let register = AsyncFd::with_interest;
        register(Owned(Arc::clone(set)), Interest::READABLE).map(Self)
    }

    /// Waits until it is readable.
    async fn readable(&self) -> io::Result<()> {
        consume_budget().await;
        while !self.0.get_ref().0.is_readable() {
            self.0.readable().await?.clear_ready();
        }
        Ok(())
    }

    /// Ready if it became readable since this was ready last.
    fn poll_event(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_read_ready(cx))?.clear_ready();
        Poll::Ready(Ok(()))
    }
}

/// As [`endpoint::Stream`](super::Stream), for tasks.
///
/// If what was written has to wait for the peer when the stream is dropped, a thread of the runtime waits.
pub struct Stream {
    core: Arc<Core>,
    descriptor: Descriptor,
    wakers: Arc<Wakers>,
    /// Wakes all of them: what the reactor is given for each.
    all: Waker,
}

impl Stream {
    /// Connects to the first of the addresses that answers, with the default [`Options`].
    ///
    /// # Errors
    /// Those of [`Options::connect`].
    pub async fn connect(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::connect_with(&Options::new(), address).await
    }

    /// Connects to the first of the addresses that answers.
    ///
    /// # Errors
    /// Those of [`Options::connect`].
    pub async fn connect_with(options: &Options, address: impl ToSocketAddrs) -> io::Result<Self> {
        let mut outcome = Err(ErrorKind::InvalidInput.into());
        for address in lookup_host(address).await? {
            outcome = connect(options, address).await;
            if outcome.is_ok() {
                break;
            }
        }
        Self::new(Arc::new(outcome?))
    }

    /// The stream in this runtime. Its clones do not wait any more, either.
    ///
    /// # Errors
    /// What the system says.
    pub fn from_blocking(stream: super::Stream) -> io::Result<Self> {
        Self::new(stream.core)
    }

    fn new(core: Arc<Core>) -> io::Result<Self> {
        core.set_nonblocking(true);
        let descriptor = Descriptor::new(core.descriptor())?;
        let wakers = Arc::new(Wakers::default());
        let all = Waker::from(Arc::clone(&wakers));
        Ok(Self { core, descriptor, wakers, all })
    }

    /// [`endpoint::Stream::peer_data`](super::Stream::peer_data).
    #[must_use]
    pub fn peer_data(&self) -> &[u8] {
        self.core.peer_data()
    }

    /// How its bytes travel.
    #[must_use]
    pub fn path(&self) -> Path {
        self.core.path()
    }

    /// What was counted so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.core.statistics()
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

    /// Makes a call, which must not wait. What it finds for the other direction, it tells its task.
    fn poll(
        &self,
        cx: &mut Context<'_>,
        (who, direction): (Who, Direction),
        mut call: impl FnMut() -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let budget = ready!(poll_proceed(cx));
        self.wakers.register(who, cx.waker());
        for _ in 0..ATTEMPTS {
            let outcome = call();
            if self.core.is_ready_for(direction.other()) {
                self.wakers.wake_others(Some(who));
            }
            match outcome {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    ready!(self.descriptor.poll_event(&mut Context::from_waker(&self.all)))?;
                }
                outcome => {
                    budget.made_progress();
                    return Poll::Ready(outcome);
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Delivers what was written.
impl Drop for Stream {
    fn drop(&mut self) {
        if Arc::strong_count(&self.core) == 1
            && !self.core.close()
            && let Ok(runtime) = Handle::try_current()
        {
            let core = Arc::clone(&self.core);
            runtime.spawn_blocking(move || core.finish());
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let place = buffer.initialize_unfilled();
        let call = || self.core.receive(&mut [IoSliceMut::new(place)]);
        let length = ready!(self.poll(cx, (Who::Reader, Direction::Receive), call))?;
        buffer.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll(cx, (Who::Writer, Direction::Send), || self.core.send(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.core.shutdown(Shutdown::Write);
        self.wakers.wake_others(None);
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

async fn connect(options: &Options, address: SocketAddr) -> io::Result<Core> {
    let mut attempt = Attempt::connect(options, address)?;
    let descriptor = Descriptor::new(attempt.descriptor())?;
    loop {
        if let Some(outcome) = attempt.poll() {
            return outcome;
        }
        descriptor.readable().await?;
    }
}

/// As [`endpoint::Listener`](super::Listener), for tasks.
#[derive(Debug)]
pub struct Listener {
    listener: super::Listener,
    descriptor: Descriptor,
}

impl Listener {
    /// Listens at the first of the addresses that can be had, with the default [`Options`].
    ///
    /// # Errors
    /// Those of [`Options::bind`].
    pub async fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        let addresses: Vec<_> = lookup_host(address).await?.collect();
        Self::from_blocking(super::Listener::bind(&*addresses)?)
    }

    /// The listener in this runtime.
    ///
    /// # Errors
    /// What the system says.
    pub fn from_blocking(listener: super::Listener) -> io::Result<Self> {
        let descriptor = Descriptor::new(listener.descriptor())?;
        Ok(Self { listener, descriptor })
    }

    /// Waits for a stream. A future that is dropped loses none.
    ///
    /// # Errors
    /// Those of [`endpoint::Listener::accept`](super::Listener::accept).
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        self.accept_with(self.listener.accept_all()).await
    }

    /// Waits for a stream, and has `answer` answer each request that comes meanwhile.
    ///
    /// # Errors
    /// Those of [`endpoint::Listener::accept_with`](super::Listener::accept_with).
    pub async fn accept_with(
        &self,
        mut answer: impl FnMut(&Request<'_>) -> Answer,
    ) -> io::Result<(Stream, SocketAddr)> {
        loop {
            if let Some(core) = self.listener.poll(&mut answer)? {
                let peer = core.ends().1;
                return Ok((Stream::new(Arc::new(core))?, peer));
            }
            self.descriptor.readable().await?;
        }
    }

    /// The address at which it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }
}
