//! Connections that come.
//!
//! A listener has any number of handshakes under way, so that a peer that is slow in its own delays no other.
//! Its descriptor holds those of the handshakes.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rdma_verbs::{
    AnyDevice, ConnectionRequest as _, Device, EventTarget, Interest, Listener as _, Timer, WaitSet,
};
use rstream_protocol::RefusalReason;
use rstream_session::{Peer, refusal};

use super::attempt::{Attempt, DeviceRequest};
use super::core::Core;
use super::error::of_device;
use super::{Options, Stream};

/// Handshakes under way. One more ends the oldest: peers that stay silent keep nobody out.
const HANDSHAKES: usize = 64;

/// What a peer asks for.
#[derive(Debug)]
pub struct Request<'a> {
    data: &'a [u8],
    peer: SocketAddr,
}

impl Request<'_> {
    /// The connection data of the peer.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.data
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }
}

/// The answer to a [`Request`], with connection data for the peer: at most [`Options::data_room`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A stream.
    Accept(Vec<u8>),
    /// None. The peer has the data as [`Rejected`](super::Rejected).
    Reject(Vec<u8>),
}

/// Listens for streams, as [`std::net::TcpListener`] does. Its [`Options`] are those of the streams.
pub struct Listener {
    options: Options,
    address: SocketAddr,
    wait: Arc<WaitSet>,
    state: Mutex<State>,
    is_nonblocking: AtomicBool,
}

struct State {
    listener: <AnyDevice as Device>::Listener,
    /// The handshakes under way, the oldest first.
    attempts: Vec<Attempt>,
    /// Expires at the deadline of the device's listener.
    timer: Timer,
    deadline: Option<Instant>,
}

impl Listener {
    /// Listens at the first of the addresses that can be had, with the default [`Options`].
    ///
    /// # Errors
    /// Those of [`Options::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Self> {
        Options::new().bind(address)
    }

    pub(super) fn new(options: Options, address: SocketAddr) -> io::Result<Self> {
        let listen = || {
            let (wait, timer) = (Arc::new(WaitSet::new()?), Timer::new()?);
            wait.add(timer.as_fd(), wait.token(), Interest::Read)?;
            let events = EventTarget::new(&wait);
            let listener = options.device.listen(address, options.backlog, &options.connect, events)?;
            Ok((wait, timer, listener))
        };
        let (wait, timer, listener) = listen().map_err(of_device)?;
        let address = listener.local_address();
        let state = Mutex::new(State { listener, attempts: Vec::new(), timer, deadline: None });
        Ok(Self { options, address, wait, state, is_nonblocking: AtomicBool::new(false) })
    }

    /// Waits for a stream. Peers that give up meanwhile are passed over.
    ///
    /// # Errors
    /// What the system says, if it has nothing left for a stream.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        self.accept_with(self.accept_all())
    }

    /// Waits for a stream, and has `answer` answer each request that comes meanwhile.
    ///
    /// # Errors
    /// As [`accept`](Self::accept); [`InvalidInput`](io::ErrorKind::InvalidInput) for an answer with more data
    /// than there is room for, whose peer is rejected.
    pub fn accept_with(
        &self,
        mut answer: impl FnMut(&Request<'_>) -> Answer,
    ) -> io::Result<(Stream, SocketAddr)> {
        loop {
            if let Some(core) = self.poll(&mut answer)? {
                let peer = core.ends().1;
                return Ok((Stream::new(core), peer));
            }
            if self.is_nonblocking.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.wait.wait(None, &mut Vec::new()).map_err(of_device)?;
        }
    }

    /// Each stream that comes, for ever.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<Stream>> {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// The address at which it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Whether [`accept`](Self::accept) returns at once if there is no stream.
    ///
    /// # Errors
    /// None: it is a `Result` because that of [`std::net::TcpListener`] is.
    pub fn set_nonblocking(&self, is_nonblocking: bool) -> io::Result<()> {
        self.is_nonblocking.store(is_nonblocking, Ordering::Relaxed);
        Ok(())
    }

    /// Its descriptor.
    #[cfg(feature = "tokio")]
    pub(super) fn descriptor(&self) -> &Arc<WaitSet> {
        &self.wait
    }

    /// The answer that [`accept`](Self::accept) gives.
    pub(super) fn accept_all(&self) -> impl FnMut(&Request<'_>) -> Answer {
        |_| Answer::Accept(self.options.data.clone())
    }

    /// The next stream, if there is one. If not, the descriptor is readable when to ask again.
    pub(super) fn poll(&self, answer: &mut dyn FnMut(&Request<'_>) -> Answer) -> io::Result<Option<Core>> {
        let state = &mut *self.state.lock();
        let mut finished = state.first_connected(&self.wait);
        while finished.is_none()
            && let Some(request) = state.listener.poll()
        {
            if let Some(attempt) = self.answer(request, answer)? {
                let descriptor = attempt.descriptor().as_fd();
                self.wait.add(descriptor, self.wait.token(), Interest::Read).map_err(of_device)?;
                if state.attempts.len() == HANDSHAKES {
                    state.attempts.remove(0);
                }
                state.attempts.push(attempt);
                finished = state.first_connected(&self.wait);
            }
        }
        state.set_timer()?;
        Ok(finished)
    }

    /// Answers a request. `None`: there will be no stream.
    fn answer(
        &self,
        request: DeviceRequest,
        answer: &mut dyn FnMut(&Request<'_>) -> Answer,
    ) -> io::Result<Option<Attempt>> {
        let peer_address = request.peer_address();
        let (peer, data) = match Peer::decode(request.private_data()) {
            Ok(decoded) => decoded,
            Err(why) => {
                log::warn!("connection from {peer_address} refused: {why}");
                request.reject(&why.refusal());
                return Ok(None);
            }
        };
        let answer = answer(&Request { data: &data, peer: peer_address });
        let room = self.options.data_room();
        match answer {
            Answer::Accept(reply) if reply.len() <= room => {
                Attempt::accept(&self.options, (request, peer), data, &reply).map(Some)
            }
            Answer::Reject(reply) if reply.len() <= room => {
                request.reject(&refusal(RefusalReason::Application, &reply).unwrap_or_default());
                Ok(None)
            }
            Answer::Accept(reply) | Answer::Reject(reply) => {
                request.reject(&refusal(RefusalReason::Application, &[]).unwrap_or_default());
                let why = format!("{} bytes of connection data are more than {room}", reply.len());
                Err(io::Error::new(io::ErrorKind::InvalidInput, why))
            }
        }
    }
}

impl State {
    /// Drives the handshakes, up to the first that is a connection. Those that failed are over.
    fn first_connected(&mut self, wait: &WaitSet) -> Option<Core> {
        let mut at = 0;
        while let Some(attempt) = self.attempts.get_mut(at) {
            match attempt.poll() {
                None => at += 1,
                Some(outcome) => {
                    let attempt = self.attempts.remove(at);
                    // It cannot fail: the descriptor is there.
                    let _ = wait.remove(attempt.descriptor().as_fd());
                    match outcome {
                        Ok(core) => return Some(core),
                        Err(error) => log::info!("a connection that came failed: {error}"),
                    }
                }
            }
        }
        None
    }

    /// An expired timer is readable until it is set again.
    fn set_timer(&mut self) -> io::Result<()> {
        let deadline = self.listener.deadline();
        if deadline != self.deadline {
            self.deadline = deadline;
            self.timer.set(deadline).map_err(of_device)?;
        }
        Ok(())
    }
}

/// It becomes readable when a call of [`accept`](Listener::accept) may return a stream.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wait.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("addr", &self.address).finish_non_exhaustive()
    }
}
