//! Connection calls of the completion queue, which passes each to its queue pair.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::CompletionQueue;
use crate::sim::ConnectionRequest;
use crate::sim::link::{Port, WakeTarget};
use crate::sim::listener::PendingRequest;
use crate::sim::queue_pair::{Attempt, Deadline, QueuePair};
use rdma_verbs::Signal;
use rdma_verbs::{self as verbs, ConnectOptions, ConnectionEvent, Error, EventTarget, QpId, Result};

impl CompletionQueue {
    fn check_private_data(&self, private_data: &[u8]) -> Result<()> {
        let most = self.config.max_private_data;
        if private_data.len() <= most {
            return Ok(());
        }
        Err(Error::OutOfRange {
            what: "private data length",
            value: private_data.len() as u64,
            least: 0,
            most: most as u64,
        })
    }

    fn wake_target(&self, qp: QpId, event_signal: &Arc<Signal>) -> WakeTarget {
        WakeTarget { notifier: Arc::clone(&self.notifier), qp, event_signal: Arc::clone(event_signal) }
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
        self.check_private_data(private_data)?;
        let queue_pair = self.queue_pair(qp, "connecting")?;
        queue_pair.require_idle("connecting")?;
        let parameters = queue_pair.parameters();
        let bound = self.fabric.bind(active_address(remote, local)?)?;
        let event_signal = Arc::new(events.wait.signal(events.token));
        let (port, passive) = Port::pair();
        port.wake(self.wake_target(qp, &event_signal));
        let pending = PendingRequest {
            port: passive,
            private_data: private_data.to_vec(),
            parameters,
            peer_address: bound.address(),
            local_address: remote,
        };
        let requested = self.fabric.request_connection(pending);
        let attempt = Attempt {
            port,
            event_signal,
            local_address: bound.address(),
            peer_address: remote,
            deadline: Deadline::from_now(options.timeout),
        };
        self.with(qp, |queue_pair, ready| match requested {
            Ok(()) => queue_pair.connecting(attempt, bound),
            Err(error) => queue_pair.connect_failed(attempt.event_signal, error, ready),
        });
        Ok(())
    }

    fn accept(
        &mut self,
        qp: QpId,
        request: ConnectionRequest,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        self.check_private_data(private_data)?;
        self.queue_pair(qp, "accepting")?.require_idle("accepting")?;
        let event_signal = Arc::new(events.wait.signal(events.token));
        let pending = request.into_pending();
        pending.port.wake(self.wake_target(qp, &event_signal));
        // The active side may have ended its attempt before this target was set.
        event_signal.set(true);
        let attempt = Attempt {
            port: pending.port,
            event_signal,
            local_address: pending.local_address,
            peer_address: pending.peer_address,
            deadline: Deadline::from_now(options.timeout),
        };
        self.with(qp, |queue_pair, _| {
            queue_pair.accepting(attempt, pending.parameters, private_data.to_vec())
        });
        Ok(())
    }

    fn disconnect(&mut self, qp: QpId) {
        self.notifier.take(qp);
        self.with(qp, QueuePair::disconnect);
    }

    fn abort(&mut self, qp: QpId) {
        self.with(qp, QueuePair::abort);
    }

    fn flushed(&mut self, qp: QpId) -> bool {
        self.notifier.take(qp);
        let flushed = self.with(qp, |queue_pair, ready| {
            queue_pair.drive(ready);
            queue_pair.flushed()
        });
        flushed.unwrap_or(true)
    }

    fn poll_event(&mut self, qp: QpId) -> Option<ConnectionEvent> {
        self.notifier.take(qp);
        self.with(qp, QueuePair::poll_event).flatten()
    }

    fn deadline(&self, qp: QpId) -> Option<Instant> {
        self.queue_pairs.get(&qp)?.deadline()
    }

    fn local_address(&self, qp: QpId) -> Option<SocketAddr> {
        self.queue_pairs.get(&qp)?.local_address()
    }

    fn peer_address(&self, qp: QpId) -> Option<SocketAddr> {
        self.queue_pairs.get(&qp)?.peer_address()
    }
}

/// The active side's address: `local`, or the peer's host if there is none or it is the wildcard address.
fn active_address(remote: SocketAddr, local: Option<SocketAddr>) -> Result<SocketAddr> {
    let mut address = local.unwrap_or_else(|| SocketAddr::new(remote.ip(), 0));
    if address.is_ipv4() != remote.is_ipv4() {
        return Err(Error::io("connect")(rustix::io::Errno::AFNOSUPPORT));
    }
    if address.ip().is_unspecified() {
        address.set_ip(remote.ip());
    }
    Ok(address)
}
