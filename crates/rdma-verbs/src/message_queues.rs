//! Queue pairs for messages between peers that do not agree on when receives are posted, and receive queues
//! that queue pairs share.
//!
//! Verbs leave this agreement to the consumers: over iWARP, a message without a receive breaks the
//! connection. libfabric's message endpoints require more, which a device that can wait provides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, QpCapabilities, QpId, QueuePairs, RecvRequest, Result, SendRequest};

/// The id of a shared receive queue within the completion queue that owns it. Ids are not reused while the
/// completion queue lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub u32);

/// The queue to which receives are posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecvQueue {
    /// The queue pair's own queue.
    Own(QpId),
    /// A shared one.
    Shared(SrqId),
}

/// Queue pairs for messages, if the device supports them. Both sides of a connection have to use them: the
/// consumers agree on that through the private data of their connection.
///
/// On such a queue pair
/// - a message without a receive waits until one is posted, and so does all that the peer sent after it; once
///   this side has disconnected, further input is dropped. So does a write with immediate data that takes no
///   receive, while [`MessageQueues::hold_writes`] holds it;
/// - a message that is longer than its receive is cut: the receive completes as
///   [`Truncated`](crate::CompletionStatus::Truncated). The connection remains on the embedded device, and
///   breaks on RDMA devices;
/// - a send carries immediate data with its payload. A write with immediate data consumes a receive on RDMA
///   devices, and none on the embedded device;
/// - payload is inline or in [places](crate::Place).
pub trait MessageQueues: QueuePairs {
    /// Creates a queue pair for messages, as [`QueuePairs::create_qp`] does. If `shared` is given, it
    /// consumes the receives of that queue.
    fn create_message_qp(
        &mut self,
        pd: &Self::Pd,
        wanted: QpCapabilities,
        shared: Option<SrqId>,
    ) -> Result<(QpId, QpCapabilities)> {
        let _ = (pd, wanted, shared);
        Err(UNSUPPORTED)
    }

    /// Creates a queue pair, as [`QueuePairs::create_qp`] does, that consumes the receives of this queue. A
    /// message without a receive waits or breaks its connection, as on any other queue pair.
    fn create_shared_qp(
        &mut self,
        pd: &Self::Pd,
        wanted: QpCapabilities,
        srq: SrqId,
    ) -> Result<(QpId, QpCapabilities)> {
        let _ = (pd, wanted, srq);
        Err(Error::Unsupported("shared receive queues"))
    }

    /// Posts sends as [`QueuePairs::post_send`] does, for a consumer that usually polls soon. On the embedded device
    /// requests of up to 24 KiB to one queue pair, one after the other, may leave together: with the next poll,
    /// [`MessageQueues::uncork`], or request that is not of them. If there is no further call, they leave when the peer's
    /// host acknowledges what it has got, or after the time-out of TCP (200 ms, unless the peer is far away). They do not
    /// wait for a consumer that usually polls later.
    fn post_corked(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        self.post_send(qp, requests, more)
    }

    /// Sends what [`MessageQueues::post_corked`] has left to wait, as a poll does.
    fn uncork(&mut self) {}

    /// Creates a shared receive queue for up to `depth` receives, for queue pairs of the same domain. They
    /// are all for messages, and then its receives are in places; or none of them is, and then its receives
    /// are in registered memory.
    fn create_srq(&mut self, pd: &Self::Pd, depth: u32) -> Result<SrqId> {
        let _ = (pd, depth);
        Err(UNSUPPORTED)
    }

    /// Destroys a shared receive queue. Its receives never complete. [`Error::BadState`] while a queue pair
    /// uses it.
    fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        let _ = srq;
        Err(UNSUPPORTED)
    }

    /// Posts receives to a shared receive queue, in order, all or none. They are not flushed. If a
    /// connection ends while a message is filling a receive, that receive becomes the oldest of the queue
    /// again. Poll all completions of a queue pair before it is destroyed: of a receive whose completion
    /// was not polled, the embedded device forgets the message and the receive, and other devices post the
    /// receive again.
    fn post_srq_recv(&mut self, srq: SrqId, requests: &[RecvRequest<'_>]) -> Result<()> {
        let _ = (srq, requests);
        Err(UNSUPPORTED)
    }

    /// Cancels the newest receive with this id that no message has consumed. Returns whether there was one. A
    /// cancelled receive never completes.
    fn cancel_recv(&mut self, queue: RecvQueue, id: u64) -> bool {
        let _ = (queue, id);
        false
    }

    /// Number of requests that a queue pair's send queue has room for now, if the device tells that.
    fn send_room(&self, qp: QpId) -> Option<usize> {
        let _ = qp;
        None
    }

    /// Whether the device has sends, writes or reads of a queue pair that it has not completed: destroying one with shared
    /// receives before that may lose those that messages have taken. `false` where it loses none.
    fn has_sends(&self, qp: QpId) -> bool {
        let _ = qp;
        false
    }

    /// Gives up what is outstanding on a queue pair that has disconnected: the requests never complete, no memory is
    /// accessed for them from now on, and nothing is sent behind a message that is not all sent. What has been copied
    /// before that message is still sent. Returns whether the device can do so; else destroying the queue
    /// pair has the same effect, except that what is copied may be lost.
    fn give_up(&mut self, qp: QpId) -> bool {
        let _ = qp;
        false
    }

    /// Reports no more events of a queue pair: its event target hears nothing of it from now on.
    fn end_events(&mut self, qp: QpId) {
        let _ = qp;
    }

    /// Whether the device has noticed the end of the connection, and its event is still to be polled. It looks at nothing,
    /// so this costs no system call. `false` where the device does not know.
    fn has_ended(&self, qp: QpId) -> bool {
        let _ = qp;
        false
    }

    /// Whether the peer has ended the connection, in order or not and without a Terminate, while this side had it open:
    /// requests that send, write or read and are flushed were cut off by that. On the embedded device also whether the
    /// peer's host has vanished.
    fn peer_ended(&self, qp: QpId) -> bool {
        let _ = qp;
        false
    }

    /// Whether the connection ended by a fault of the peer's, such as a refused access, and the peer has not ended its
    /// output yet. Destroying the queue pair before that may reset the connection, and the peer may learn of the reset
    /// before it has taken the reason.
    fn awaits_peer(&self, qp: QpId) -> bool {
        let _ = qp;
        false
    }

    /// Holds the peer's writes with immediate data from the next one on, or lets them pass again. Where they take
    /// receives, those bound how many arrive, and this changes nothing.
    fn hold_writes(&mut self, qp: QpId, hold: bool) {
        let _ = (qp, hold);
    }

    /// Counts the accesses of the peer to memory of this side from now on, for a queue pair for messages. `None` where the
    /// device cannot.
    fn count_accesses(&mut self, qp: QpId) -> Option<Arc<PeerAccesses>> {
        let _ = qp;
        None
    }

    /// How many messages of the peer found no receive, or were held, and had to wait. 0 where the device does not
    /// know.
    fn stalls(&mut self, qp: QpId) -> u64 {
        let _ = qp;
        0
    }
}

/// How many accesses of a peer to memory of this side are complete. They are counted while the completion queue is
/// driven; any thread may look.
#[derive(Debug, Default)]
pub struct PeerAccesses {
    writes: AtomicU64,
    reads: AtomicU64,
}

impl PeerAccesses {
    /// RDMA Writes, those of no bytes included.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// RDMA Reads of at least one byte. Devices read none to confirm a write.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// For devices: counts a write.
    pub fn count_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// For devices: counts a read.
    pub fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }
}

const UNSUPPORTED: Error = Error::Unsupported("queue pairs for messages");
