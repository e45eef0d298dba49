//! What the typed layer of `rdma-verbs` needs to know of the devices of this crate.

use rdma_verbs::typed::TrustedDevice;
use rdma_verbs::{QpId, Result, SendRequest};

use crate::faulty::Faulty;
use crate::sim;

// SAFETY: a queue pair finds memory by key, bounds and rights among the regions of its protection domain, and
// only while it executes a posted request or a peer's. A request is removed from its queue when it completes,
// and the queue with its queue pair. A completion has the id of its request.
unsafe impl TrustedDevice for sim::Device {}

// SAFETY: it posts what the consumer posts, or tells which part of it, holds completions back without changing
// them, and drops those of a queue pair that is destroyed.
unsafe impl<D: TrustedDevice> TrustedDevice for Faulty<D> {
    fn post_batch(cq: &mut Self::Cq, qp: QpId, requests: &[SendRequest<'_>]) -> (usize, Result<()>) {
        cq.post_some(qp, requests, false)
    }
}
