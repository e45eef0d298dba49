//! The connections of a completion queue: each call goes to its queue pair.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::CompletionQueue;
use crate::sim::ConnectionRequest;
use crate::sim::link::{Port, Wakes};
use crate::sim::listener::Arrival;
use crate::sim::queue_pair::{Beginning, Patience, QueuePair};
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

    fn wakes(&self, qp: QpId, announcer: &Arc<Signal>) -> Wakes {
        Wakes { notifier: Arc::clone(&self.notifier), qp, announcer: Arc::clone(announcer) }
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
        let queue_pair = self.existing(qp, "connecting")?;
        queue_pair.require_idle("connecting")?;
        let terms = queue_pair.terms();
        let bound = self.fabric.bind(active_address(remote, local)?)?;
        let announcer = Arc::new(events.wait.signal(events.token));
        let (port, passive) = Port::pair();
        port.wake(self.wakes(qp, &announcer));
        let arrival = Arrival {
            port: passive,
            private_data: private_data.to_vec(),
            terms,
            peer_address: bound.address(),
            local_address: remote,
        };
        let knocked = self.fabric.knock(arrival);
        let beginning = Beginning {
            port,
            announcer,
            local_address: bound.address(),
            peer_address: remote,
            patience: Patience::from_now(options.timeout),
        };
        self.with(qp, |queue_pair, sink| match knocked {
            Ok(()) => queue_pair.connecting(beginning, bound),
            Err(error) => queue_pair.connect_failed(beginning.announcer, error, sink),
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
        self.existing(qp, "accepting")?.require_idle("accepting")?;
        let announcer = Arc::new(events.wait.signal(events.token));
        let arrival = request.into_arrival();
        arrival.port.wake(self.wakes(qp, &announcer));
        // The active side may have given up before there was anybody to wake.
        announcer.set(true);
        let beginning = Beginning {
            port: arrival.port,
            announcer,
            local_address: arrival.local_address,
            peer_address: arrival.peer_address,
            patience: Patience::from_now(options.timeout),
        };
        self.with(qp, |queue_pair, _| queue_pair.accepting(beginning, arrival.terms, private_data.to_vec()));
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
        let flushed = self.with(qp, |queue_pair, sink| {
            queue_pair.drive(sink);
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

/// The active side's address: as asked, with the peer's own host for none or the wildcard.
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
