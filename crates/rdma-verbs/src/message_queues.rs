//! Queue pairs for messages whose receivers are not in step with their senders, and shared receive queues.
//!
//! Verbs leave it to the consumers to agree when a receive is posted: over iWARP a message that finds none breaks
//! the connection. libfabric's message endpoints ask for more, and get it from a device that can wait.

use crate::{Error, QpCapabilities, QpId, QueuePairs, RecvRequest, Result};

/// A shared receive queue, named within the completion queue that owns it. Ids are not used again while the
/// completion queue lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// Where receives are posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvQueue {
    /// The queue pair's own queue.
    Own(QpId),
    /// A shared one.
    Shared(SrqId),
}

/// Queue pairs for messages, of a device that has them. The queue pairs of both sides have to be such: consumers
/// settle that with the private data of their connection.
///
/// On such a queue pair
/// - a message without a receive waits until one is posted, and what the peer sent behind it waits as well; once
///   this side has disconnected, all that comes is dropped;
/// - a message that is longer than its receive is cut: the receive completes as
///   [`Truncated`](crate::CompletionStatus::Truncated). On the embedded device the connection stands; RDMA devices
///   break it;
/// - a send carries immediate data with its payload. A write with immediate takes a receive on RDMA devices, and none
///   on the embedded device;
/// - payload is inline or in [places](crate::Place).
pub trait MessageQueues: QueuePairs {
    /// Makes a queue pair for messages, as [`QueuePairs::create_qp`] does; its receives are those of `shared`, if
    /// given.
    fn create_message_qp(
        &mut self,
        pd: &Self::Pd,
        wanted: QpCapabilities,
        shared: Option<SrqId>,
    ) -> Result<(QpId, QpCapabilities)> {
        let _ = (pd, wanted, shared);
        Err(UNSUPPORTED)
    }

    /// Makes a shared receive queue of at most `depth` receives, for queue pairs of the same domain.
    fn create_srq(&mut self, pd: &Self::Pd, depth: u32) -> Result<SrqId> {
        let _ = (pd, depth);
        Err(UNSUPPORTED)
    }

    /// Destroys a shared receive queue; its receives never complete. [`Error::BadState`] while a queue pair uses it.
    fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        let _ = srq;
        Err(UNSUPPORTED)
    }

    /// Posts receives to a shared receive queue, in order, all or none. A receive that a message had begun to fill
    /// when its connection ended is posted again by itself, as the oldest.
    fn post_srq_recv(&mut self, srq: SrqId, requests: &[RecvRequest<'_>]) -> Result<()> {
        let _ = (srq, requests);
        Err(UNSUPPORTED)
    }

    /// Takes back the newest receive with this id that no message has taken. Answers whether there was one; it never
    /// completes.
    fn cancel_recv(&mut self, queue: RecvQueue, id: u64) -> bool {
        let _ = (queue, id);
        false
    }
}

const UNSUPPORTED: Error = Error::Unsupported("queue pairs for messages");
