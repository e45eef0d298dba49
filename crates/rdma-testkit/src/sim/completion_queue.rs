//! The completion queue: passes each call to its queue pair, drives the notified queue pairs, and reports
//! completions.

mod connections;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::notifier::Notifier;
use super::queue_pair::{Finished, QueuePair, ReadyList, Rules, Shared, SharedReceives};
use super::{Config, Fabric, ProtectionDomain};
use rdma_verbs::{
    self as verbs, Completion, Error, PeerAccesses, QpCapabilities, QpId, RecvQueue, RecvRequest, Result,
    SendRequest, SrqId, WaitSet,
};

/// A completion queue of the simulated device, with its queue pairs.
#[derive(Debug)]
pub struct CompletionQueue {
    fabric: Fabric,
    config: Config,
    depth: u32,
    next_number: u32,
    queue_pairs: BTreeMap<QpId, QueuePair>,
    next_srq: u32,
    shared: BTreeMap<SrqId, SharedReceives>,
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
            next_srq: 0,
            shared: BTreeMap::new(),
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
        self.finish_call();
        result
    }

    /// Called at the end of calls that drive queue pairs or post receives: messages that waited for a receive
    /// go on with the next poll. Updates the signal.
    fn finish_call(&mut self) {
        let resumed = self.queue_pairs.iter_mut().filter_map(|(&qp, pair)| pair.can_resume().then_some(qp));
        resumed.for_each(|qp| self.notifier.notify(qp));
        self.notifier.update(!self.ready.is_empty());
    }

    fn add(
        &mut self,
        pd: &ProtectionDomain,
        rules: Rules,
        wanted: QpCapabilities,
        shared: Option<SharedReceives>,
    ) -> Result<(QpId, QpCapabilities)> {
        check_most("send queue depth", wanted.send_depth.into(), self.config.max_send_depth.into())?;
        check_most("receive queue depth", wanted.recv_depth.into(), self.config.max_recv_depth.into())?;
        self.check_depth(u64::from(wanted.send_depth) + u64::from(wanted.recv_depth))?;
        let number = QpId(self.next_number);
        self.next_number = number.0.checked_add(1).ok_or(Error::Unsupported("more queue pair numbers"))?;
        let granted = QpCapabilities { inline: wanted.inline.min(self.config.inline), ..wanted };
        let queue_pair = QueuePair::new(number, self.config.clone(), rules, granted, pd.regions(), shared);
        self.queue_pairs.insert(number, queue_pair);
        Ok((number, granted))
    }

    /// Checks that the queue has room for the completions of so many more entries.
    fn check_depth(&self, more: u64) -> Result<()> {
        let of_pairs: u64 = self.queue_pairs.values().map(QueuePair::depths).sum();
        let of_shared: u64 =
            self.shared.values().map(|shared| u64::from(shared.lock().receives.depth())).sum();
        let (needed, most) = (of_pairs + of_shared + more, self.depth.into());
        if needed <= most { Ok(()) } else { Err(Error::CompletionQueueFull { needed, most }) }
    }

    fn srq(&self, srq: SrqId) -> Result<&SharedReceives> {
        self.shared.get(&srq).ok_or(Error::BadState { state: "absent", what: "sharing receives" })
    }

    /// The queue, which a queue pair of these rules and this domain is going to use.
    fn admit(&self, srq: SrqId, rules: Rules, pd: &ProtectionDomain) -> Result<SharedReceives> {
        let shared = self.srq(srq)?;
        shared.lock().admit(rules, &pd.regions())?;
        Ok(Arc::clone(shared))
    }

    /// Refuses queue pairs for messages on a device without places.
    fn require_messages(&self) -> Result<()> {
        if self.config.max_places > 0 { Ok(()) } else { Err(Error::Unsupported("queue pairs for messages")) }
    }
}

fn check_most(what: &'static str, value: u64, most: u64) -> Result<()> {
    if value <= most { Ok(()) } else { Err(Error::OutOfRange { what, value, least: 0, most }) }
}

impl verbs::QueuePairs for CompletionQueue {
    type Pd = ProtectionDomain;

    fn create_qp(&mut self, pd: &ProtectionDomain, wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)> {
        self.add(pd, Rules::Verbs, wanted, None)
    }

    fn destroy_qp(&mut self, qp: QpId) {
        let Some(mut queue_pair) = self.queue_pairs.remove(&qp) else { return };
        let of_others = |finished: &Finished| finished.completion.qp != qp;
        let (ready, dropped): (ReadyList, ReadyList) =
            std::mem::take(&mut self.ready).into_iter().partition(of_others);
        self.ready = ready;
        dropped.into_iter().rev().for_each(|finished| queue_pair.drop_completion(finished.frees));
        self.notifier.take(qp);
        self.finish_call();
    }

    fn post_recv(&mut self, qp: QpId, requests: &[RecvRequest<'_>]) -> Result<()> {
        self.queue_pair(qp, "receiving")?.post_recv(requests)?;
        self.finish_call();
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

impl verbs::MessageQueues for CompletionQueue {
    fn create_message_qp(
        &mut self,
        pd: &ProtectionDomain,
        wanted: QpCapabilities,
        shared: Option<SrqId>,
    ) -> Result<(QpId, QpCapabilities)> {
        self.require_messages()?;
        let shared = shared.map(|srq| self.admit(srq, Rules::Messages, pd)).transpose()?;
        self.add(pd, Rules::Messages, wanted, shared)
    }

    fn create_shared_qp(
        &mut self,
        pd: &ProtectionDomain,
        wanted: QpCapabilities,
        srq: SrqId,
    ) -> Result<(QpId, QpCapabilities)> {
        let shared = self.admit(srq, Rules::Verbs, pd)?;
        self.add(pd, Rules::Verbs, wanted, Some(shared))
    }

    fn create_srq(&mut self, pd: &ProtectionDomain, depth: u32) -> Result<SrqId> {
        self.require_messages()?;
        check_most("shared receive queue depth", depth.into(), self.config.max_srq_depth.into())?;
        self.check_depth(depth.into())?;
        let srq = SrqId(self.next_srq);
        self.next_srq = srq.0.checked_add(1).ok_or(Error::Unsupported("more shared receive queues"))?;
        self.shared.insert(srq, Arc::new(Mutex::new(Shared::new(depth, pd.regions()))));
        Ok(srq)
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        // Each queue pair that uses it has a reference.
        if Arc::strong_count(self.srq(srq)?) > 1 {
            return Err(Error::BadState { state: "in use", what: "destroying a shared receive queue" });
        }
        self.shared.remove(&srq);
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: SrqId, requests: &[RecvRequest<'_>]) -> Result<()> {
        self.srq(srq)?.lock().post(&self.config, requests)?;
        self.finish_call();
        Ok(())
    }

    fn cancel_recv(&mut self, queue: RecvQueue, id: u64) -> bool {
        match queue {
            RecvQueue::Own(qp) => self.queue_pairs.get_mut(&qp).is_some_and(|pair| pair.cancel_recv(id)),
            RecvQueue::Shared(srq) => self.srq(srq).is_ok_and(|shared| shared.lock().receives.cancel(id)),
        }
    }

    fn hold_writes(&mut self, qp: QpId, hold: bool) {
        if let Some(pair) = self.queue_pairs.get_mut(&qp) {
            pair.hold_writes(hold);
        }
        self.finish_call();
    }

    fn count_accesses(&mut self, qp: QpId) -> Option<Arc<PeerAccesses>> {
        self.queue_pairs.get_mut(&qp).and_then(QueuePair::count_accesses)
    }

    fn peer_ended(&self, qp: QpId) -> bool {
        self.queue_pairs.get(&qp).is_some_and(QueuePair::peer_ended)
    }

    fn stalls(&mut self, qp: QpId) -> u64 {
        self.queue_pairs.get(&qp).map_or(0, QueuePair::stalls)
    }
}

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
        self.finish_call();
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
