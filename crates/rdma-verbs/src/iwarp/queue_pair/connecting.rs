//! The way of a queue pair to a connection: the handshake of either side, and what it comes to.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;

use super::super::liveness::Liveness;
use super::super::machine::Agreement;
use super::super::opening::{Opening, Outcome};
use super::super::socket::Socket;
use super::super::watch::DataSets;
use super::{Phase, QueuePair};
use crate::{ConnectError, ConnectionEvent, EventTarget, Interest, Result};

impl QueuePair {
    /// Begins the active side's handshake on a socket that connects; `refused` is what the
    /// connection attempt met at once.
    pub(in super::super) fn connect(
        &mut self,
        (socket, refused): (Socket, Option<Errno>),
        opening: Opening,
        target: EventTarget,
        sets: DataSets<'_>,
    ) -> Result<()> {
        let refused = refused.map(|errno| opening.error(errno));
        self.open(socket, opening);
        match refused {
            Some(error) => self.fail(error),
            // A peer that is near is connected to at once.
            None => self.advance(sets),
        }
        self.announce_on(target)
    }

    /// Ends the passive side's handshake with `peer`, which may have left: then there is no socket.
    pub(in super::super) fn accept(
        &mut self,
        socket: Option<Socket>,
        (local, peer): (SocketAddr, SocketAddr),
        opening: Opening,
        target: EventTarget,
        sets: DataSets<'_>,
    ) -> Result<()> {
        (self.local, self.peer) = (Some(local), Some(peer));
        let Some(socket) = socket else {
            self.fail(ConnectError::Closed);
            return Ok(());
        };
        self.open(socket, opening);
        self.advance(sets);
        self.announce_on(target)
    }

    fn open(&mut self, socket: Socket, opening: Opening) {
        self.socket = Some(socket);
        self.phase = Phase::Opening(Box::new(opening));
    }

    /// Has connection events announced, one that is there already among them.
    fn announce_on(&mut self, target: EventTarget) -> Result<()> {
        let interest = match &self.phase {
            Phase::Opening(opening) => opening.interest(),
            _ => Interest::ReadWrite,
        };
        match &self.socket {
            Some(socket) => self.watch.announce_on(socket.as_fd(), interest, target),
            None => Ok(()),
        }
    }

    /// Takes the handshake further, as far as it goes now [RFC 5044 7.1.2-10].
    pub(super) fn advance(&mut self, sets: DataSets<'_>) {
        let Phase::Opening(opening) = &mut self.phase else { return };
        let Some(socket) = &mut self.socket else { return };
        let wanted = match opening.advance(socket) {
            Ok(None) => opening.interest(),
            Ok(Some(Outcome::Rejected(private_data))) => {
                self.opened = Some(ConnectionEvent::Rejected { private_data });
                self.phase = Phase::Over;
                return;
            }
            Ok(Some(Outcome::Accepted(agreement, private_data))) => {
                let keepalive = opening.keepalive();
                return self.establish(&agreement, private_data, keepalive, sets);
            }
            Err(error) => return self.fail(error),
        };
        self.follow(Some(wanted));
    }

    /// The handshake is done: full operation begins [RFC 5044 7.1.2-11].
    fn establish(
        &mut self,
        agreement: &Agreement,
        private_data: Vec<u8>,
        keepalive: Duration,
        sets: DataSets<'_>,
    ) {
        let Some(socket) = &mut self.socket else { return };
        if let Err(errno) = socket.tune(keepalive) {
            return self.fail(ConnectError::System(errno.raw_os_error()));
        }
        self.local = self.local.or_else(|| socket.local_address());
        self.peer = self.peer.or_else(|| socket.peer_address());
        self.machine.establish(agreement);
        self.phase = Phase::Open;
        self.liveness = Some(Liveness::new(keepalive));
        self.opened = Some(ConnectionEvent::Established { private_data });
        let mut none = Vec::new();
        self.push_out(&mut none, sets);
    }

    fn fail(&mut self, error: ConnectError) {
        if let Some(socket) = &self.socket {
            socket.end();
        }
        self.opened = Some(ConnectionEvent::Failed(error));
        self.phase = Phase::Over;
    }
}
