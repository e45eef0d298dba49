//! The completion queue: finds the queue pair for a call, drives those that were rung for, and hands
//! out what completed.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::announcer::Announcer;
use super::bell::Bell;
use super::link::{Port, Wakes};
use super::listener::Arrival;
use super::queue_pair::{Beginning, Patience, QueuePair, Sink};
use super::{Config, ConnectionRequest, Fabric, ProtectionDomain};
use rdma_verbs::{
    self as verbs, Completion, ConnectOptions, ConnectionEvent, Error, EventTarget, QpCapabilities, QpNumber,
    RecvRequest, Result, SendRequest, WaitSet,
};

/// A completion queue of the simulated device, with its queue pairs.
#[derive(Debug)]
pub struct CompletionQueue {
    fabric: Fabric,
    config: Config,
    depth: u32,
    next_number: u32,
    queue_pairs: BTreeMap<QpNumber, QueuePair>,
    ready: Sink,
    bell: Arc<Bell>,
}

impl CompletionQueue {
    pub(super) fn new(fabric: Fabric, config: Config, depth: u32) -> Self {
        let bell = Arc::new(Bell::new(config.arming));
        Self { fabric, config, depth, next_number: 0, queue_pairs: BTreeMap::new(), ready: Sink::new(), bell }
    }

    fn existing(&mut self, qp: QpNumber, what: &'static str) -> Result<&mut QueuePair> {
        self.queue_pairs.get_mut(&qp).ok_or(Error::BadState { state: "absent", what })
    }

    /// Runs `body` on a queue pair with the list that its completions go to, then updates the
    /// wake-ups. `None` if there is no such queue pair.
    fn with<R>(&mut self, qp: QpNumber, body: impl FnOnce(&mut QueuePair, &mut Sink) -> R) -> Option<R> {
        let answer = self.queue_pairs.get_mut(&qp).map(|queue_pair| body(queue_pair, &mut self.ready));
        self.bell.settle(!self.ready.is_empty());
        answer
    }

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

    fn check_capabilities(&self, wanted: &QpCapabilities) -> Result<()> {
        check_most("send queue depth", wanted.send_depth.into(), self.config.max_send_depth.into())?;
        check_most("receive queue depth", wanted.recv_depth.into(), self.config.max_recv_depth.into())?;
        let taken: u64 = self.queue_pairs.values().map(QueuePair::depths).sum();
        let asked = u64::from(wanted.send_depth) + u64::from(wanted.recv_depth);
        check_most("sum of queue depths", taken + asked, self.depth.into())
    }

    fn wakes(&self, qp: QpNumber, announcer: &Arc<Announcer>) -> Wakes {
        Wakes { bell: Arc::clone(&self.bell), qp, announcer: Arc::clone(announcer) }
    }
}

fn check_most(what: &'static str, value: u64, most: u64) -> Result<()> {
    if value <= most { Ok(()) } else { Err(Error::OutOfRange { what, value, least: 0, most }) }
}

impl verbs::CompletionQueue for CompletionQueue {
    type Pd = ProtectionDomain;
    type Request = ConnectionRequest;

    fn create_qp(
        &mut self,
        pd: &ProtectionDomain,
        wanted: QpCapabilities,
    ) -> Result<(QpNumber, QpCapabilities)> {
        self.check_capabilities(&wanted)?;
        let number = QpNumber(self.next_number);
        self.next_number = number.0.checked_add(1).ok_or(Error::Unsupported("more queue pair numbers"))?;
        let granted = QpCapabilities { inline: wanted.inline.min(self.config.inline), ..wanted };
        let queue_pair = QueuePair::new(number, self.config.clone(), granted, pd.regions());
        self.queue_pairs.insert(number, queue_pair);
        Ok((number, granted))
    }

    fn destroy_qp(&mut self, qp: QpNumber) {
        self.queue_pairs.remove(&qp);
        self.ready.retain(|finished| finished.completion.qp != qp);
        self.bell.answer(qp);
        self.bell.settle(!self.ready.is_empty());
    }

    fn connect(
        &mut self,
        qp: QpNumber,
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
        let announcer = Arc::new(Announcer::new(&events)?);
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
        qp: QpNumber,
        request: ConnectionRequest,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()> {
        self.check_private_data(private_data)?;
        self.existing(qp, "accepting")?.require_idle("accepting")?;
        let announcer = Arc::new(Announcer::new(&events)?);
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

    fn disconnect(&mut self, qp: QpNumber) {
        self.bell.answer(qp);
        self.with(qp, QueuePair::disconnect);
    }

    fn abort(&mut self, qp: QpNumber) {
        self.with(qp, QueuePair::abort);
    }

    fn flushed(&mut self, qp: QpNumber) -> bool {
        self.bell.answer(qp);
        let flushed = self.with(qp, |queue_pair, sink| {
            queue_pair.drive(sink);
            queue_pair.flushed()
        });
        flushed.unwrap_or(true)
    }

    fn poll_event(&mut self, qp: QpNumber) -> Option<ConnectionEvent> {
        self.bell.answer(qp);
        self.with(qp, QueuePair::poll_event).flatten()
    }

    fn deadline(&self, qp: QpNumber) -> Option<Instant> {
        self.queue_pairs.get(&qp)?.deadline()
    }

    fn local_address(&self, qp: QpNumber) -> Option<SocketAddr> {
        self.queue_pairs.get(&qp)?.local_address()
    }

    fn peer_address(&self, qp: QpNumber) -> Option<SocketAddr> {
        self.queue_pairs.get(&qp)?.peer_address()
    }

    fn post_recv(&mut self, qp: QpNumber, requests: &[RecvRequest]) -> Result<()> {
        let queue_pair = self.existing(qp, "receiving")?;
        queue_pair.post_recv(requests)?;
        if queue_pair.is_stalled() {
            self.bell.ring(qp);
        }
        Ok(())
    }

    fn post_send(&mut self, qp: QpNumber, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        let absent = Error::BadState { state: "absent", what: "sending" };
        let posted = self.with(qp, |queue_pair, sink| queue_pair.post_send(requests, more, sink));
        posted.ok_or(absent)??;
        if more {
            // A poll sends what is held back.
            self.bell.ring(qp);
        }
        Ok(())
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.ready.is_empty() {
            for qp in self.bell.answer_all() {
                if let Some(queue_pair) = self.queue_pairs.get_mut(&qp) {
                    queue_pair.drive(&mut self.ready);
                }
            }
        }
        let count = out.len().min(self.ready.len());
        for (slot, finished) in out.iter_mut().zip(self.ready.drain(..count)) {
            *slot = finished.completion;
            if let Some(queue_pair) = self.queue_pairs.get_mut(&finished.completion.qp) {
                queue_pair.free(finished.frees);
            }
        }
        self.bell.settle(!self.ready.is_empty());
        count
    }

    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()> {
        self.bell.attach(wait)
    }

    fn arm(&mut self) -> Result<bool> {
        Ok(self.bell.arm())
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
