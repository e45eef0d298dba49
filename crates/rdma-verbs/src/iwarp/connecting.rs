//! A connection that is being established: the input and output of its handshake, until both sides agree or
//! one gives up. The rules of the handshake are in [`super::handshake`].

use std::io::IoSlice;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::handshake::{Initiator, Reply};
use super::machine::{self, Agreement, Taken, Wire as _};
use super::socket::Socket;
use crate::timer::later;
use crate::{ConnectError, ConnectOptions, Interest};
use iwarp_wire::mpa::MAX_PRIVATE_DATA;

/// An unfinished handshake.
pub(super) struct Connecting {
    deadline: Instant,
    timeout: Duration,
    keepalive: Duration,
    role: Role,
    /// The frame that this side sends, and how much of it is sent.
    output: Vec<u8>,
    sent: usize,
}

enum Role {
    /// Waits for the TCP connection, sends the request, and receives the reply.
    Active(Initiator),
    /// Sends the reply, and waits for the peer's first FPDU if the peer promised one.
    Passive(Agreement),
}

/// Result of a finished handshake.
pub(super) enum Outcome {
    /// The connection is established. With the peer's private data.
    Accepted(Agreement, Vec<u8>),
    /// The peer rejected the request. With its private data.
    Rejected(Vec<u8>),
}

impl Connecting {
    /// The active side, on a socket that is connecting.
    pub(super) fn active((initiator, request): (Initiator, Vec<u8>), options: &ConnectOptions) -> Self {
        Self::new(Role::Active(initiator), request, options)
    }

    /// The passive side, which sends this reply.
    pub(super) fn passive((reply, agreement): (Vec<u8>, Agreement), options: &ConnectOptions) -> Self {
        Self::new(Role::Passive(agreement), reply, options)
    }

    fn new(role: Role, output: Vec<u8>, options: &ConnectOptions) -> Self {
        let &ConnectOptions { timeout, keepalive } = options;
        Self { deadline: later(Instant::now(), timeout), timeout, keepalive, role, output, sent: 0 }
    }

    /// Whether it is that of the passive side.
    pub(super) fn is_passive(&self) -> bool {
        matches!(self.role, Role::Passive(_))
    }

    /// The time at which it fails if it is not finished.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// [`ConnectOptions::keepalive`] of the connection.
    pub(super) fn keepalive(&self) -> Duration {
        self.keepalive
    }

    /// Advances the handshake as far as possible. `None`: it continues when the socket is ready, or ends at
    /// the deadline [RFC 5044 7.1.2-21].
    pub(super) fn advance(&mut self, socket: &mut Socket) -> Result<Option<Outcome>, ConnectError> {
        match self.step(socket) {
            Ok(None) if Instant::now() >= self.deadline => Err(timed_out(self.timeout)),
            outcome => outcome,
        }
    }

    /// The socket states for which it waits.
    pub(super) fn interest(&self) -> Interest {
        if self.sent < self.output.len() { Interest::ReadWrite } else { Interest::Read }
    }

    /// The meaning of an error of the connection attempt.
    pub(super) fn error(&self, errno: Errno) -> ConnectError {
        match errno {
            Errno::CONNREFUSED => ConnectError::Refused,
            Errno::TIMEDOUT => timed_out(self.timeout),
            Errno::CONNRESET | Errno::PIPE => ConnectError::Closed,
            errno => ConnectError::System(errno.raw_os_error()),
        }
    }

    fn step(&mut self, socket: &mut Socket) -> Result<Option<Outcome>, ConnectError> {
        let sent_before = self.sent == self.output.len();
        if !self.send(socket)? {
            return Ok(None);
        }
        match &mut self.role {
            // The request was sent just now, so the reply cannot be there.
            Role::Active(_) if !sent_before => Ok(None),
            Role::Passive(agreement) if agreement.rtr && !socket.has_input() => Ok(None),
            Role::Passive(agreement) => Ok(Some(Outcome::Accepted(*agreement, Vec::new()))),
            Role::Active(initiator) => receive_reply(initiator, socket),
        }
    }

    /// Sends the rest of the frame. Returns whether all is sent.
    fn send(&mut self, socket: &mut Socket) -> Result<bool, ConnectError> {
        while self.sent < self.output.len() {
            match socket.transmit(&[IoSlice::new(&self.output[self.sent..])], false) {
                Taken::Bytes(0) => return Ok(false),
                Taken::Bytes(count) => self.sent += count,
                Taken::Dead | Taken::Unreadable => {
                    return Err(self.error(socket.send_error().unwrap_or(Errno::PIPE)));
                }
            }
        }
        Ok(true)
    }
}

/// Receives what has arrived of the reply [RFC 5044 7.1.1-4, 7.1.1-13, 7.1.1-15, 7.1.2-9, 7.1.2-13, 8-3].
fn receive_reply(initiator: &mut Initiator, socket: &mut Socket) -> Result<Option<Outcome>, ConnectError> {
    let mut buffer = [0; MAX_PRIVATE_DATA];
    loop {
        let wanted = initiator.wanted().min(buffer.len());
        let count = match socket.receive(&mut buffer[..wanted]) {
            Ok(0) | Err(Errno::CONNRESET) => return Err(ConnectError::Closed),
            Ok(count) => count,
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(ConnectError::System(errno.raw_os_error())),
        };
        match initiator.feed(&buffer[..count]) {
            Ok(None) => {}
            Ok(Some(Reply::Accepted { agreement, private_data })) => {
                return Ok(Some(Outcome::Accepted(agreement, private_data)));
            }
            Ok(Some(Reply::Rejected { private_data })) => return Ok(Some(Outcome::Rejected(private_data))),
            Err(error) => {
                if let Some(terminate) = error.terminate() {
                    machine::send_terminate(terminate, socket);
                }
                return Err(ConnectError::Protocol(error.into()));
            }
        }
    }
}

fn timed_out(timeout: Duration) -> ConnectError {
    ConnectError::TimedOut(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))
}
