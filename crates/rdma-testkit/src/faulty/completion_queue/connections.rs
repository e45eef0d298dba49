//! Connections with faults: attempts that fail, and breaks and ends that this layer injects.

use std::net::SocketAddr;
use std::time::Instant;

use super::CompletionQueue;
use rdma_verbs::iwarp::handshake::HandshakeError;
use rdma_verbs::{
    self as verbs, BreakReason, ConnectError, ConnectOptions, ConnectionEvent, Error, EventTarget, QpId,
    Result,
};

impl<C: verbs::CompletionQueue> CompletionQueue<C> {
    /// Gives a queue pair this layer's own signal for connection events.
    fn add_signal(&mut self, qp: QpId, events: &EventTarget) -> Result<()> {
        let signal = events.wait.signal(events.token);
        signal.set(self.random.happens(self.plan.spurious_wake));
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.signal = Some(signal);
        }
        Ok(())
    }

    fn random_connect_error(&mut self, options: &ConnectOptions) -> ConnectError {
        match self.random.up_to(4) {
            0 => ConnectError::Refused,
            1 => ConnectError::System(rustix::io::Errno::HOSTUNREACH.raw_os_error()),
            2 => ConnectError::TimedOut(u64::try_from(options.timeout.as_millis()).unwrap_or(u64::MAX)),
            3 => ConnectError::Protocol(HandshakeError::Markers.into()),
            _ => ConnectError::Closed,
        }
    }
}

impl<C: verbs::CompletionQueue> verbs::Connections for CompletionQueue<C> {
    type Request = C::Request;

    fn connect(
        &mut self,
        qp: QpId,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        let is_first = self.queue_pairs.get(&qp).is_some_and(|queue_pair| queue_pair.signal.is_none());
        self.add_signal(qp, &events)?;
        if !(is_first && self.random.happens(self.plan.fail_connect)) {
            return self.inner.connect(qp, remote, local, private_data, options, events);
        }
        let error = self.random_connect_error(options);
        let Some(queue_pair) = self.queue_pairs.get_mut(&qp) else {
            return Err(Error::BadState { state: "absent", what: "connecting" });
        };
        queue_pair.failure = Some(error);
        if let Some(signal) = &queue_pair.signal {
            signal.set(true);
        }
        Ok(())
    }

    fn accept(
        &mut self,
        qp: QpId,
        request: C::Request,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        self.add_signal(qp, &events)?;
        self.inner.accept(qp, request, private_data, options, events)
    }

    fn disconnect(&mut self, qp: QpId) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.established = false;
        }
        self.inner.disconnect(qp);
    }

    fn abort(&mut self, qp: QpId) {
        if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
            queue_pair.established = false;
        }
        self.inner.abort(qp);
    }

    fn flushed(&mut self, qp: QpId) -> bool {
        self.inner.flushed(qp)
    }

    fn poll_event(&mut self, qp: QpId) -> Option<ConnectionEvent> {
        self.maybe_end(qp);
        let spurious = self.random.happens(self.plan.spurious_wake);
        let queue_pair = self.queue_pairs.get_mut(&qp)?;
        if let Some(signal) = &queue_pair.signal {
            signal.set(spurious);
        }
        if let Some(error) = queue_pair.failure.take() {
            return Some(ConnectionEvent::Failed(error));
        }
        let event = self.inner.poll_event(qp)?;
        match event {
            ConnectionEvent::Established { .. } => queue_pair.established = true,
            ConnectionEvent::Broken(BreakReason::Aborted) if queue_pair.broken => {
                return Some(ConnectionEvent::Broken(BreakReason::Reset));
            }
            _ => queue_pair.established = false,
        }
        Some(event)
    }

    fn deadline(&self, qp: QpId) -> Option<Instant> {
        self.inner.deadline(qp)
    }

    fn local_address(&self, qp: QpId) -> Option<SocketAddr> {
        self.inner.local_address(qp)
    }

    fn peer_address(&self, qp: QpId) -> Option<SocketAddr> {
        self.inner.peer_address(qp)
    }
}
