//! The completion queue: passes each call to its queue pair, drives the notified queue pairs, and reports
//! completions.

mod connections;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::notifier::Notifier;
use super::queue_pair::{QueuePair, ReadyList};
use super::{Config, Fabric, ProtectionDomain};
use rdma_verbs::{
    self as verbs, Completion, Error, QpCapabilities, QpId, RecvRequest, Result, SendRequest, WaitSet,
};

/// A completion queue of the simulated device, with its queue pairs.
#[derive(Debug)]
pub struct CompletionQueue {
    fabric: Fabric,
    config: Config,
    depth: u32,
    next_number: u32,
    queue_pairs: BTreeMap<QpId, QueuePair>,
    ready: ReadyList,
    notifier: Arc<Notifier>,
}

impl CompletionQueue {
    pub(super) fn new(fabric: Fabric, config: Config, depth: u32) -> Self {
        let notifier = Arc::new(Notifier::new(config.arming));
        Self {
            fabric,
            config,
            depth,
            next_number: 0,
            queue_pairs: BTreeMap::new(),
            ready: ReadyList::new(),
            notifier,
        }
    }

    fn queue_pair(&mut self, qp: QpId, what: &'static str) -> Result<&mut QueuePair> {
        self.queue_pairs.get_mut(&qp).ok_or(Error::BadState { state: "absent", what })
    }

    /// Runs `body` on a queue pair with the list of ready completions, then updates the signal. Returns
    /// `None` if there is no such queue pair.
    fn with<R>(&mut self, qp: QpId, body: impl FnOnce(&mut QueuePair, &mut ReadyList) -> R) -> Option<R> {
        let result = self.queue_pairs.get_mut(&qp).map(|queue_pair| body(queue_pair, &mut self.ready));
        self.notifier.update(!self.ready.is_empty());
        result
    }

    fn check_capabilities(&self, wanted: &QpCapabilities) -> Result<()> {
        check_most("send queue depth", wanted.send_depth.into(), self.config.max_send_depth.into())?;
        check_most("receive queue depth", wanted.recv_depth.into(), self.config.max_recv_depth.into())?;
        let taken: u64 = self.queue_pairs.values().map(QueuePair::depths).sum();
        let needed = taken + u64::from(wanted.send_depth) + u64::from(wanted.recv_depth);
        let most = self.depth.into();
        if needed <= most { Ok(()) } else { Err(Error::CompletionQueueFull { needed, most }) }
    }
}

fn check_most(what: &'static str, value: u64, most: u64) -> Result<()> {
    if value <= most { Ok(()) } else { Err(Error::OutOfRange { what, value, least: 0, most }) }
}

impl verbs::QueuePairs for CompletionQueue {
    type Pd = ProtectionDomain;

    fn create_qp(&mut self, pd: &ProtectionDomain, wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)> {
        self.check_capabilities(&wanted)?;
        let number = QpId(self.next_number);
        self.next_number = number.0.checked_add(1).ok_or(Error::Unsupported("more queue pair numbers"))?;
        let granted = QpCapabilities { inline: wanted.inline.min(self.config.inline), ..wanted };
        let queue_pair = QueuePair::new(number, self.config.clone(), granted, pd.regions());
        self.queue_pairs.insert(number, queue_pair);
        Ok((number, granted))
    }

    fn destroy_qp(&mut self, qp: QpId) {
        self.queue_pairs.remove(&qp);
        self.ready.retain(|finished| finished.completion.qp != qp);
        self.notifier.take(qp);
        self.notifier.update(!self.ready.is_empty());
    }

    fn post_recv(&mut self, qp: QpId, requests: &[RecvRequest<'_>]) -> Result<()> {
        let queue_pair = self.queue_pair(qp, "receiving")?;
        queue_pair.post_recv(requests)?;
        if queue_pair.is_stalled() {
            self.notifier.notify(qp);
        }
        Ok(())
    }

    fn post_send(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        let absent = Error::BadState { state: "absent", what: "sending" };
        let posted = self.with(qp, |queue_pair, ready| queue_pair.post_send(requests, more, ready));
        posted.ok_or(absent)??;
        if more {
            // A poll sends the held-back requests.
            self.notifier.notify(qp);
        }
        Ok(())
    }
}

impl verbs::MessageQueues for CompletionQueue {}

impl verbs::CompletionQueue for CompletionQueue {
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.ready.is_empty() {
            for qp in self.notifier.take_all() {
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
        self.notifier.update(!self.ready.is_empty());
        count
    }

    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()> {
        self.notifier.attach(&wait);
        Ok(())
    }

    fn arm(&mut self) -> Result<bool> {
        Ok(self.notifier.arm())
    }
}
