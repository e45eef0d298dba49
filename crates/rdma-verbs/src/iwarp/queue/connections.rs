//! Connections of a completion queue: each call goes to the queue pair.

use std::net::SocketAddr;
use std::time::Instant;

use super::CompletionQueue;
use crate::iwarp::connecting::Connecting;
use crate::iwarp::handshake::{Initiator, Parameters};
use crate::iwarp::listener::ConnectionRequest;
use crate::iwarp::socket::Socket;
use crate::{
    self as verbs, ConnectOptions, ConnectionEvent, ConnectionRequest as _, Error, EventTarget,
    QpCapabilities, QpId, Result,
};

/// Maximum number of waiting completions of the peer's writes, which hold no receives, above which no further
/// input is taken.
const MAX_UNPOSTED: usize = 1 << 16;

impl CompletionQueue {
    fn check_private_data(&self, private_data: &[u8], revision: u8) -> Result<()> {
        let most = crate::iwarp::max_private_data(revision);
        if private_data.len() > most {
            let value = private_data.len() as u64;
            return Err(Error::OutOfRange {
                what: "private data length",
                value,
                least: 0,
                most: most as u64,
            });
        }
        Ok(())
    }

    fn parameters(&self, capabilities: &QpCapabilities) -> Parameters {
        Parameters {
            revision: self.config.mpa_revision,
            crc: self.config.crc,
            initiator_depth: capabilities.initiator_depth,
            responder_resources: capabilities.responder_resources,
        }
    }
}

impl verbs::Connections for CompletionQueue {
    type Request = ConnectionRequest;

    fn connect(
        &mut self,
        qp: QpId,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        let at = self.position(qp)?;
        self.pairs[at].check_idle("connect")?;
        self.check_private_data(private_data, self.config.mpa_revision)?;
        let parameters = self.parameters(&self.pairs[at].capabilities());
        let connecting = Connecting::active(Initiator::new(parameters, private_data), options);
        let attempt = Socket::connect(remote, local)?;
        self.with(qp, |pair, _, sets| pair.connect(attempt, connecting, events, sets))?
    }

    fn accept(
        &mut self,
        qp: QpId,
        request: ConnectionRequest,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        let at = self.position(qp)?;
        self.pairs[at].check_idle("accept")?;
        self.check_private_data(private_data, request.revision())?;
        let parameters = self.parameters(&self.pairs[at].capabilities());
        let addresses = (request.local_address(), request.peer_address());
        let (socket, reply) = request.accept(&parameters, private_data);
        let connecting = Connecting::passive(reply, options);
        self.with(qp, |pair, _, sets| pair.accept(socket, addresses, connecting, events, sets))?
    }

    fn disconnect(&mut self, qp: QpId) {
        // An unknown queue pair has no connection.
        let _ = self.with(qp, |pair, ready, sets| pair.disconnect(ready, sets));
    }

    fn abort(&mut self, qp: QpId) {
        // As above.
        let _ = self.with(qp, |pair, ready, sets| pair.abort(ready, sets));
    }

    fn flushed(&mut self, qp: QpId) -> bool {
        self.with(qp, |pair, ready, sets| pair.is_flushed(ready, sets)).unwrap_or(true)
    }

    fn poll_event(&mut self, qp: QpId) -> Option<ConnectionEvent> {
        let is_full = self.ready.len() > self.depth as usize + MAX_UNPOSTED;
        self.with(qp, |pair, ready, sets| pair.poll_event(is_full, ready, sets)).ok().flatten()
    }

    fn deadline(&self, qp: QpId) -> Option<Instant> {
        self.pair(qp)?.deadline()
    }

    fn local_address(&self, qp: QpId) -> Option<SocketAddr> {
        self.pair(qp)?.local_address()
    }

    fn peer_address(&self, qp: QpId) -> Option<SocketAddr> {
        self.pair(qp)?.peer_address()
    }
}
