//! Connection calls of the completion queue, which passes each to its queue pair.

use std::net::SocketAddr;
use std::time::Instant;

use super::Cq;
use crate::ibv::cm::Id;
use crate::ibv::connection::Targets;
use crate::ibv::listener::Request;
use crate::ibv::queue_pair::QueuePair;
use crate::{self as verbs, ConnectOptions, ConnectionEvent, EventTarget, QpId, Result};

impl verbs::Connections for Cq {
    type Request = Request;

    fn connect(
        &mut self,
        qp: QpId,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        let wait = self.wait.clone();
        let targets = Targets { events, completions: wait.as_ref() };
        self.queue_pair(qp, "connect")?.connect(remote, local, private_data, options, &targets)?;
        self.keepalive = Some(options.keepalive);
        self.start_keepalive_timer()
    }

    fn accept(
        &mut self,
        qp: QpId,
        request: Request,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        let wait = self.wait.clone();
        let targets = Targets { events, completions: wait.as_ref() };
        self.queue_pair(qp, "accept")?.accept(request, private_data, options, &targets)?;
        self.keepalive = Some(options.keepalive);
        self.start_keepalive_timer()
    }

    fn disconnect(&mut self, qp: QpId) {
        if let Some(queue_pair) = self.get_mut(qp) {
            queue_pair.disconnect();
        }
    }

    fn abort(&mut self, qp: QpId) {
        if let Some(queue_pair) = self.get_mut(qp) {
            queue_pair.abort();
        }
    }

    fn flushed(&mut self, qp: QpId) -> bool {
        self.get_mut(qp).is_none_or(QueuePair::flushed)
    }

    fn poll_event(&mut self, qp: QpId) -> Option<ConnectionEvent> {
        let queue_pair = self.get_mut(qp)?;
        if queue_pair.events.is_empty() {
            queue_pair.drive();
            queue_pair.on_time();
        }
        let event = queue_pair.events.pop_front()?;
        self.note_event(qp, &event);
        Some(event)
    }

    fn deadline(&self, qp: QpId) -> Option<Instant> {
        self.get(qp)?.deadline()
    }

    fn local_address(&self, qp: QpId) -> Option<SocketAddr> {
        let queue_pair = self.get(qp)?;
        let current = || queue_pair.id.as_ref().and_then(Id::local_address);
        queue_pair.local.or_else(current)
    }

    fn peer_address(&self, qp: QpId) -> Option<SocketAddr> {
        self.get(qp)?.peer
    }
}
