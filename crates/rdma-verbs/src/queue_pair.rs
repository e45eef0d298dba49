//! Queue pairs: where requests are posted.

use crate::{RecvRequest, Result, SendRequest};

/// A queue pair, named within the completion queue that owns it. Ids are not used again while the queue
/// lives. On the wire the device has a number of its own for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpId(pub u32);

/// Sizes of a queue pair: asked for in [`QueuePairs::create_qp`], which answers what was
/// granted (at least what was asked, except for `inline`, which is a request and not a promise).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCapabilities {
    /// Send work requests that may be posted and not completed. One holds its entry until its
    /// completion is polled; one whose success is not reported until it is done, or at the latest
    /// until a completion behind it is polled.
    pub send_depth: u32,
    /// Receives that may be posted and not completed, in the same sense.
    pub recv_depth: u32,
    /// Bytes of [`Payload::Inline`](crate::Payload::Inline) in one request.
    pub inline: usize,
    /// RDMA reads that this side may have outstanding (ORD).
    pub initiator_depth: u8,
    /// RDMA reads of the peer that this side serves at a time (IRD).
    pub responder_resources: u8,
}

/// The queue pairs of a completion queue.
pub trait QueuePairs {
    /// The device's protection domain.
    type Pd;

    /// Makes a queue pair whose sends and receives complete here. Receives may be posted at once;
    /// post them before connecting or accepting, because iWARP has no retry for a message that
    /// finds none.
    fn create_qp(&mut self, pd: &Self::Pd, wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)>;

    /// Destroys a queue pair. What it had outstanding never completes; a connection that still stands is cut
    /// (call [`Connections::disconnect`](crate::Connections::disconnect) first for an orderly end).
    fn destroy_qp(&mut self, qp: QpId);

    /// Posts receives, in order. All or none: [`Error::QueueFull`](crate::Error::QueueFull) if they do not
    /// fit. A device that takes some and refuses the rest breaks the connection, and answers why.
    fn post_recv(&mut self, qp: QpId, requests: &[RecvRequest<'_>]) -> Result<()>;

    /// Posts sends, in order. All or none, as [`QueuePairs::post_recv`]. Inline payload may be reused when
    /// the call returns. With `more` the device may hold the requests back to send them with what follows;
    /// any later call that drives the queue pair sends them. Where the device has no memory for what must
    /// wait, it answers [`Error::Io`](crate::Error::Io) and the connection is broken.
    fn post_send(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()>;
}
