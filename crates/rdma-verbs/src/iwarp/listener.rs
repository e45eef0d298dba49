//! The passive endpoint: accepts TCP connections and takes each through its MPA request.
//!
//! Handshakes run side by side in the listener's own wait set, so that a slow peer costs one entry and its
//! deadline. There are as many at a time as the listener's [`Share`] says, and while `backlog` requests wait
//! for [`verbs::Listener::poll`] none begins. Where there is no place for another, or no descriptor, the
//! oldest handshake gives its own up, once it had its time ([`share::grace`]): silent peers keep nobody out.
//! Until then the listening socket is not watched, and further peers wait in the system's queue.
//!
//! A call accepts a few peers and leaves the rest there: the listening socket stays readable, and the next
//! call goes on.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::handshake::{Parameters, Request, Responder};
use super::handshake_limit::{self, HandshakeLimit};
use super::machine::{Agreement, Wire as _};
use super::request_sockets::{RequestSocket, RequestSockets};
use super::socket::{self, Socket};
use crate::{self as verbs, ConnectOptions, EventTarget, Interest, Result, Signal, Token, WaitSet};
use iwarp_wire::mpa::MAX_PRIVATE_DATA;

/// Most peers that one call accepts.
const MAX_ACCEPTS: usize = 16;
/// How long accepting pauses when the system has no descriptor or memory for it.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening endpoint of the embedded device.
pub struct Listener {
    socket: OwnedFd,
    address: SocketAddr,
    backlog: usize,
    options: ConnectOptions,
    wait: Arc<WaitSet>,
    events: EventTarget,
    limit: HandshakeLimit,
    /// In the order of their tokens, and so of their age.
    handshakes: VecDeque<Handshake>,
    requests: Arc<RequestSockets>,
    /// On while requests are ready.
    ready_signal: Signal,
    ready: VecDeque<ConnectionRequest>,
    watching: bool,
    resume: Option<Instant>,
    found: Vec<Token>,
}

struct Handshake {
    token: Token,
    begun: Instant,
    socket: Socket,
    peer: SocketAddr,
    responder: Responder,
}

/// A connection that a peer asked for, its request read.
pub struct ConnectionRequest {
    socket: RequestSocket,
    request: Request,
    peer: SocketAddr,
    local: SocketAddr,
}

impl Listener {
    pub(super) fn new(
        address: SocketAddr,
        backlog: u32,
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<Self> {
        let socket = socket::listen(address, backlog, options.keepalive)?;
        let address = socket::bound_address(socket.as_fd())?;
        let wait = Arc::new(WaitSet::new()?);
        wait.add(socket.as_fd(), wait.token(), Interest::Read)?;
        events.wait.add(wait.as_fd(), events.token, Interest::Read)?;
        let ready_signal = wait.signal(wait.token());
        Ok(Self {
            socket,
            address,
            backlog: usize::try_from(backlog).unwrap_or(usize::MAX).max(1),
            options: options.clone(),
            requests: RequestSockets::new(Arc::clone(&wait)),
            wait,
            events,
            limit: HandshakeLimit::new(),
            handshakes: VecDeque::new(),
            ready_signal,
            ready: VecDeque::new(),
            watching: true,
            resume: None,
            found: Vec::new(),
        })
    }

    /// Takes handshakes further and new connections in, and closes what peers have left.
    fn drive(&mut self) {
        let now = Instant::now();
        self.expire(now);
        if self.resume.is_some_and(|resume| resume <= now) {
            self.resume = None;
        }
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        if let Err(error) = self.wait.wait(Some(Duration::ZERO), &mut found) {
            log::warn!("iwarp: cannot look for handshakes on {}: {error}", self.address);
        }
        for &token in &found {
            self.advance(token);
        }
        self.found = found;
        self.accept(now);
    }

    /// Accepts some of those who wait, as far as there is room.
    fn accept(&mut self, now: Instant) {
        let limit = self.limit.current();
        let grace = handshake_limit::grace(limit);
        for _ in 0..MAX_ACCEPTS {
            let full = self.handshakes.len() >= limit;
            if !self.may_accept()
                || full && !(self.has_waiting_peer() && self.free_handshake(now, grace, grace))
            {
                return;
            }
            match socket::accept(self.socket.as_fd(), self.options.keepalive) {
                // A peer that is gone again has no address; nothing is lost with it.
                Ok((_, None)) => {}
                Ok((socket, Some(peer))) => self.begin(socket, peer, now),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // No descriptor is said also where nobody needs one.
                Err(Errno::MFILE | Errno::NFILE) if !self.has_waiting_peer() => return,
                Err(errno) => {
                    log::warn!("iwarp: cannot accept on {}: {errno}", self.address);
                    let lacking = matches!(errno, Errno::MFILE | Errno::NFILE);
                    if !(lacking && self.free_handshake(now, grace, PAUSE)) {
                        self.resume.get_or_insert(now + PAUSE);
                        return;
                    }
                }
            }
        }
    }

    /// Whether another connection may be accepted now.
    fn may_accept(&self) -> bool {
        self.resume.is_none() && self.ready.len() < self.backlog
    }

    /// Whether a peer waits to be accepted.
    fn has_waiting_peer(&self) -> bool {
        socket::has_waiting_peer(self.socket.as_fd())
    }

    /// Drops the oldest handshake in favour of another peer, if it had its `grace`; otherwise pauses
    /// accepting until it has, for at most `longest`. Answers whether one was dropped.
    fn free_handshake(&mut self, now: Instant, grace: Duration, longest: Duration) -> bool {
        let left = |oldest: &Handshake| (oldest.begun + grace).saturating_duration_since(now);
        let pause = self.handshakes.front().map_or(longest, left).min(longest);
        if pause.is_zero() {
            self.drop_oldest("its place is needed");
        } else {
            self.resume = Some(now + pause);
        }
        pause.is_zero()
    }

    fn drop_oldest(&mut self, why: &str) {
        let Some(oldest) = self.handshakes.pop_front() else { return };
        log::info!("iwarp: no whole request from {}: {why}", oldest.peer);
        // As in `advance`.
        let _ = self.wait.remove(oldest.socket.as_fd());
    }

    fn begin(&mut self, socket: Socket, peer: SocketAddr, now: Instant) {
        let token = self.wait.token();
        let mut handshake = Handshake { token, begun: now, socket, peer, responder: Responder::default() };
        // Its request may be there already.
        if let Some(outcome) = handshake.advance() {
            return self.end(handshake, outcome);
        }
        if let Err(error) = self.wait.add(handshake.socket.as_fd(), token, Interest::Read) {
            log::warn!("iwarp: cannot watch the handshake of {peer}: {error}");
            return;
        }
        self.handshakes.push_back(handshake);
    }

    /// Takes one handshake further, or closes what its peer has left behind; other tokens are the listening
    /// socket's.
    fn advance(&mut self, token: Token) {
        let Ok(at) = self.handshakes.binary_search_by_key(&token, |handshake| handshake.token) else {
            if self.requests.take(token).is_some() {
                log::info!("iwarp: a peer of {} has left before it was answered", self.address);
            }
            return;
        };
        let Some(outcome) = self.handshakes[at].advance() else { return };
        let Some(handshake) = self.handshakes.remove(at) else { return };
        // It is there: it was added when the handshake began.
        let _ = self.wait.remove(handshake.socket.as_fd());
        self.end(handshake, outcome);
    }

    /// Takes the outcome of a handshake [RFC 5044 7.1.1-2, 7.1.1-13, 7.1.1-15, 7.1.2-3, 8-3].
    fn end(&mut self, handshake: Handshake, outcome: std::result::Result<Request, String>) {
        let Handshake { token, socket, peer, responder, .. } = handshake;
        match outcome {
            Ok(request) => {
                let local = socket.local_address().unwrap_or(self.address);
                match self.requests.add(token, socket) {
                    Ok(socket) => self.ready.push_back(ConnectionRequest { socket, request, peer, local }),
                    Err(error) => log::warn!("iwarp: cannot watch the request of {peer}: {error}"),
                }
            }
            Err(reason) => {
                log::info!("iwarp: handshake with {peer} failed: {reason}");
                if let Some(refusal) = responder.refusal() {
                    send_last(socket, &refusal);
                }
            }
        }
    }

    /// Drops handshakes whose time is over [RFC 5044 7.1.2-16, 7.1.2-21].
    fn expire(&mut self, now: Instant) {
        while let Some(oldest) = self.handshakes.front()
            && oldest.begun + self.options.timeout <= now
        {
            self.drop_oldest("its time is over");
        }
    }

    /// Watches the listening socket while there is room, and tells of requests that are ready.
    fn update_readiness(&mut self) {
        let watch = self.may_accept();
        if watch != self.watching {
            let outcome = if watch {
                self.wait.add(self.socket.as_fd(), self.wait.token(), Interest::Read)
            } else {
                self.wait.remove(self.socket.as_fd())
            };
            match outcome {
                Ok(()) => self.watching = watch,
                Err(error) => log::warn!("iwarp: cannot watch {}: {error}", self.address),
            }
        }
        self.ready_signal.set(!self.ready.is_empty());
    }
}

impl verbs::Listener for Listener {
    type Request = ConnectionRequest;

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn poll(&mut self) -> Option<ConnectionRequest> {
        if self.ready.is_empty() {
            self.drive();
        }
        let request = self.ready.pop_front();
        self.update_readiness();
        request
    }

    fn deadline(&self) -> Option<Instant> {
        let handshake = self.handshakes.front().map(|handshake| handshake.begun + self.options.timeout);
        handshake.into_iter().chain(self.resume).min()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It is there: `new` added it.
        let _ = self.events.wait.remove(self.wait.as_fd());
        if !self.wait.is_inherited() {
            socket::stop_listening(self.socket.as_fd());
        }
    }
}

impl Handshake {
    /// Receives what is there. `None`: more is to come.
    fn advance(&mut self) -> Option<std::result::Result<Request, String>> {
        let mut buffer = [0; MAX_PRIVATE_DATA];
        loop {
            let wanted = self.responder.wanted().min(buffer.len());
            let count = match self.socket.receive(&mut buffer[..wanted]) {
                Ok(0) => return Some(Err("the peer closed".into())),
                Ok(count) => count,
                Err(Errno::AGAIN) => return None,
                Err(errno) => return Some(Err(errno.to_string())),
            };
            match self.responder.feed(&buffer[..count]) {
                Ok(None) => {}
                Ok(Some(request)) => return Some(Ok(request)),
                Err(error) => return Some(Err(error.to_string())),
            }
        }
    }
}

impl ConnectionRequest {
    pub(super) fn revision(&self) -> u8 {
        self.request.revision()
    }

    /// The socket, unless the peer has left, and the reply that accepts with what it agrees to.
    pub(super) fn accept(
        self,
        offer: &Parameters,
        private_data: &[u8],
    ) -> (Option<Socket>, (Vec<u8>, Agreement)) {
        (self.socket.into_socket(), self.request.accept(offer, private_data))
    }
}

impl verbs::ConnectionRequest for ConnectionRequest {
    fn private_data(&self) -> &[u8] {
        &self.request.private_data
    }

    fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    fn local_address(&self) -> SocketAddr {
        self.local
    }

    fn has_left(&self) -> bool {
        self.socket.is_closed()
    }

    fn reject(self, private_data: &[u8]) {
        let Some(socket) = self.socket.into_socket() else { return };
        let most = super::max_private_data(self.request.revision());
        let private_data = &private_data[..private_data.len().min(most)];
        send_last(socket, &self.request.reject(private_data));
    }
}

/// Sends `bytes` and ends the connection after them. A new socket has room for a frame; a peer
/// that is gone misses nothing.
fn send_last(mut socket: Socket, bytes: &[u8]) {
    let _ = socket.transmit(&[IoSlice::new(bytes)], false);
    socket.end_output();
}
