//! Establishes the connection of a queue pair: drives the handshake of either side and applies its outcome.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;

use super::super::connecting::{Connecting, Outcome};
use super::super::liveness::Liveness;
use super::super::machine::{Agreement, Sink};
use super::super::membership::PollSets;
use super::super::socket::Socket;
use super::{Phase, QueuePair};
use crate::{ConnectError, ConnectionEvent, EventTarget, Interest, Result};

impl QueuePair {
    /// Begins the handshake of the active side on a socket that is connecting. `refused` is an immediate
    /// error of the attempt.
    pub(in super::super) fn connect(
        &mut self,
        (socket, refused): (Socket, Option<Errno>),
        connecting: Connecting,
        target: EventTarget,
        sets: PollSets<'_>,
    ) -> Result<()> {
        let refused = refused.map(|errno| connecting.error(errno));
        self.open(socket, connecting);
        match refused {
            Some(error) => self.fail(error, sets),
            // A connection to a nearby peer may be established already.
            None => self.advance(sets),
        }
        self.set_event_target(target)
    }

    /// Begins to reply to `peer` on the passive side. If the peer has closed the connection, there is no
    /// socket.
    pub(in super::super) fn accept(
        &mut self,
        socket: Option<Socket>,
        (local, peer): (SocketAddr, SocketAddr),
        connecting: Connecting,
        target: EventTarget,
        sets: PollSets<'_>,
    ) -> Result<()> {
        (self.local, self.peer) = (Some(local), Some(peer));
        let Some(socket) = socket else {
            self.fail(ConnectError::Closed, sets);
            return Ok(());
        };
        self.open(socket, connecting);
        self.advance(sets);
        self.update_interest(sets);
        self.set_event_target(target)
    }

    fn open(&mut self, socket: Socket, connecting: Connecting) {
        self.socket = Some(socket);
        self.phase = Phase::Connecting(Box::new(connecting));
    }

    /// Sets the event target. It reports an event that is ready already.
    fn set_event_target(&mut self, target: EventTarget) -> Result<()> {
        let interest = match &self.phase {
            Phase::Connecting(connecting) => connecting.interest(),
            _ => Interest::ReadWrite,
        };
        match &self.socket {
            Some(socket) => self.membership.set_event_target(socket.as_fd(), interest, target),
            None => Ok(()),
        }
    }

    /// Advances the handshake as far as possible [RFC 5044 7.1.2-10].
    pub(super) fn advance(&mut self, sets: PollSets<'_>) {
        let Phase::Connecting(connecting) = &mut self.phase else { return };
        let Some(socket) = &mut self.socket else { return };
        let wanted = match connecting.advance(socket) {
            Ok(None) => connecting.interest(),
            Ok(Some(Outcome::Rejected(private_data))) => {
                self.opened = Some(ConnectionEvent::Rejected { private_data });
                self.phase = Phase::Over;
                return;
            }
            Ok(Some(Outcome::Accepted(agreement, private_data))) => {
                let keepalive = connecting.keepalive();
                return self.establish(&agreement, private_data, keepalive, sets);
            }
            Err(error) => return self.fail(error, sets),
        };
        self.set_event_interest(Some(wanted));
    }

    /// Whether polls drive the handshake: that of a passive side for messages ends with the peer's first message, for
    /// which a consumer may wait without polling events.
    pub(super) fn polls_handshake(&self) -> bool {
        self.machine.is_for_messages()
            && matches!(&self.phase, Phase::Connecting(connecting) if connecting.is_passive())
    }

    /// Drives the handshake, if polls do, and receives what has arrived behind it. The event of the
    /// connection stays for [`QueuePair::poll_event`]. Returns whether that ended the connection.
    #[cold]
    pub(super) fn drive_handshake(
        &mut self,
        rounds: usize,
        sink: &mut impl Sink,
        sets: PollSets<'_>,
    ) -> bool {
        if !self.polls_handshake() {
            return false;
        }
        self.advance(sets);
        self.update_interest(sets);
        if self.opened.is_some() {
            // The input that shows it is about to be taken.
            self.set_event_interest(Some(Interest::ReadWrite));
        }
        matches!(self.phase, Phase::Open) && self.drive_for(rounds, false, sink, sets)
    }

    /// Applies the outcome of the handshake: full operation begins [RFC 5044 7.1.2-11].
    fn establish(
        &mut self,
        agreement: &Agreement,
        private_data: Vec<u8>,
        keepalive: Duration,
        sets: PollSets<'_>,
    ) {
        let Some(socket) = &mut self.socket else { return };
        if let Err(errno) = socket.tune(keepalive) {
            return self.fail(ConnectError::System(errno.raw_os_error()), sets);
        }
        self.local = self.local.or_else(|| socket.local_address());
        self.peer = self.peer.or_else(|| socket.peer_address());
        if self.local.zip(self.peer).is_some_and(|(local, peer)| are_on_one_host(local.ip(), peer.ip())) {
            socket.stay_on_host();
        }
        self.machine.establish(agreement);
        self.phase = Phase::Open;
        self.liveness = Some(Liveness::new(keepalive));
        self.opened = Some(ConnectionEvent::Established { private_data });
        let mut none = Vec::new();
        self.send_output(&mut none, sets);
    }

    fn fail(&mut self, error: ConnectError, sets: PollSets<'_>) {
        self.remove_from_sets(sets);
        if let Some(socket) = &self.socket {
            socket.end();
        }
        self.opened = Some(ConnectionEvent::Failed(error));
        self.phase = Phase::Over;
    }
}

/// Whether a connection between these addresses does not leave this host.
fn are_on_one_host(local: IpAddr, peer: IpAddr) -> bool {
    local == peer || peer.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_equal_addresses_or_is_the_loopback() {
        for (local, peer, expected) in [
            ("127.0.0.1", "127.0.0.9", true),
            ("::1", "::1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.2", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("2001:db8::1", "2001:db8::2", false),
        ] {
            assert_eq!(are_on_one_host(local.parse().unwrap(), peer.parse().unwrap()), expected, "{peer}");
        }
    }
}
