//! The listener: accepts TCP connections and reads the MPA request of each.
//!
//! Handshakes run concurrently in the listener's own wait set, so a slow peer delays no other.
//! [`HandshakeLimit`] bounds their number, and none begins while `backlog` requests wait for
//! [`verbs::Listener::poll`]. If the limit is reached, or the process has no descriptor left, a further peer
//! replaces the oldest handshake, provided that its grace period ([`handshake_limit::grace`]) is over: silent
//! peers keep nobody out. Until then the listening socket is not watched, and further peers wait in the
//! system's queue.
//!
//! One call accepts a bounded number of peers. The listening socket then stays readable, and the next call
//! continues.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::handshake::{Parameters, Request, Responder};
use super::handshake_limit::{self, HandshakeLimit};
use super::machine::{Agreement, Wire as _};
use super::request_sockets::{RequestSocket, RequestSockets};
use super::socket::{self, Socket};
use crate::descriptor::Descriptor;
use crate::timer::later;
use crate::{self as verbs, ConnectOptions, EventTarget, Interest, Result, Signal, Token, WaitSet};
use iwarp_wire::mpa::MAX_PRIVATE_DATA;

/// Maximum number of peers that one call accepts.
const MAX_ACCEPTS: usize = 16;
/// Pause after the system had no descriptor or memory for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener of the embedded device.
pub struct Listener {
    socket: Descriptor,
    address: SocketAddr,
    backlog: usize,
    options: ConnectOptions,
    wait: Arc<WaitSet>,
    events: EventTarget,
    limit: HandshakeLimit,
    /// In the order of their tokens, which is that of their age.
    handshakes: VecDeque<Handshake>,
    requests: Arc<RequestSockets>,
    /// Is on while requests are ready.
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

/// A peer's connection request that has been read.
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

    /// Advances handshakes, accepts connections, and closes requests whose peer hung up.
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

    /// Accepts waiting connections, as far as there is room.
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
                // A peer that has already closed has no address.
                Ok((_, None)) => {}
                Ok((socket, Some(peer))) => self.begin(socket, peer, now),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // The system reports this even if no connection waits.
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

    /// Whether another connection may be accepted now, apart from the limit of handshakes.
    fn may_accept(&self) -> bool {
        self.resume.is_none() && self.ready.len() < self.backlog
    }

    /// Whether a peer waits to be accepted.
    fn has_waiting_peer(&self) -> bool {
        socket::has_waiting_peer(self.socket.as_fd())
    }

    /// Drops the oldest handshake in favour of another peer, if its `grace` period is over. Otherwise pauses
    /// accepting until then, but at most for `longest`. Returns whether one was dropped.
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
        // It cannot fail, as in `advance`.
        let _ = self.wait.remove(oldest.socket.as_fd());
    }

    fn begin(&mut self, socket: Socket, peer: SocketAddr, now: Instant) {
        let token = self.wait.token();
        let mut handshake = Handshake { token, begun: now, socket, peer, responder: Responder::default() };
        // Its request may have arrived already.
        if let Some(outcome) = handshake.advance() {
            return self.end(handshake, outcome);
        }
        if let Err(error) = self.wait.add(handshake.socket.as_fd(), token, Interest::Read) {
            log::warn!("iwarp: cannot watch the handshake of {peer}: {error}");
            return;
        }
        self.handshakes.push_back(handshake);
    }

    /// Handles a token that the wait set reported: advances a handshake, or closes a request whose peer hung
    /// up. The listening socket and the signal need no handling.
    fn advance(&mut self, token: Token) {
        let Ok(at) = self.handshakes.binary_search_by_key(&token, |handshake| handshake.token) else {
            if self.requests.take(token).is_some() {
                log::info!("iwarp: a peer of {} has left before it was answered", self.address);
            }
            return;
        };
        let Some(outcome) = self.handshakes[at].advance() else { return };
        let Some(handshake) = self.handshakes.remove(at) else { return };
        // It cannot fail: `begin` added the socket.
        let _ = self.wait.remove(handshake.socket.as_fd());
        self.end(handshake, outcome);
    }

    /// Handles the outcome of a handshake: a request, or the reason of its failure
    /// [RFC 5044 7.1.1-2, 7.1.1-13, 7.1.1-15, 7.1.2-3, 8-3].
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

    /// Drops handshakes that have exceeded their time-out [RFC 5044 7.1.2-16, 7.1.2-21].
    fn expire(&mut self, now: Instant) {
        while let Some(oldest) = self.handshakes.front()
            && later(oldest.begun, self.options.timeout) <= now
        {
            self.drop_oldest("its time is over");
        }
    }

    /// Watches the listening socket while it may accept, and signals requests that are ready.
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
        let handshake = self.handshakes.front().map(|handshake| later(handshake.begun, self.options.timeout));
        handshake.into_iter().chain(self.resume).min()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It cannot fail: `new` added the set.
        let _ = self.events.wait.remove(self.wait.as_fd());
        if !self.wait.is_inherited() {
            socket::stop_listening(self.socket.as_fd());
        }
    }
}

impl Handshake {
    /// Receives what has arrived. `None`: the request is not complete.
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

    /// The socket, unless it is closed, the reply that accepts, and the agreement of both sides.
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

/// Sends `bytes` and ends the connection after them. A new socket has room for a frame, and a peer that has
/// closed needs none.
fn send_last(mut socket: Socket, bytes: &[u8]) {
    let _ = socket.transmit(&[IoSlice::new(bytes)], false);
    socket.end_output();
}
