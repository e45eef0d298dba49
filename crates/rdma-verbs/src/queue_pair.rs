//! Queue pairs, to which requests are posted.

use crate::{RecvRequest, Result, SendRequest};

/// The id of a queue pair within the completion queue that owns it. Ids are not reused while the completion
/// queue lives. The number on the wire is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpId(pub u32);

/// Capabilities of a queue pair. [`QueuePairs::create_qp`] gets the requested ones and returns the granted
/// ones, which are at least as large, except that `inline` may be smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCapabilities {
    /// Number of send requests that may be posted and not completed. A signaled request holds its entry until
    /// its completion is polled. An unsignaled one holds it until it is done, or at the latest until a later
    /// completion is polled.
    pub send_depth: u32,
    /// Number of receives that may be posted and not completed, in the same sense.
    pub recv_depth: u32,
    /// Maximum number of bytes of [`Payload::Inline`](crate::Payload::Inline) in one request.
    pub inline: usize,
    /// Number of RDMA Reads that this side may have outstanding (ORD).
    pub initiator_depth: u8,
    /// Number of RDMA Reads of the peer that this side serves at a time (IRD).
    pub responder_resources: u8,
}

/// The queue pairs of a completion queue.
pub trait QueuePairs {
    /// The device's protection domain.
    type Pd;

    /// Creates a queue pair whose sends and receives complete in this queue. Receives may be posted at once;
    /// post them before connecting or accepting, because iWARP does not retry a message that finds no
    /// receive.
    fn create_qp(&mut self, pd: &Self::Pd, wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)>;

    /// Destroys a queue pair. Its outstanding requests never complete. An established connection is reset
    /// (call [`Connections::disconnect`](crate::Connections::disconnect) first for an orderly end).
    fn destroy_qp(&mut self, qp: QpId);

    /// Posts receives, in order. All or none: [`Error::QueueFull`](crate::Error::QueueFull) if they do not
    /// fit. A device that takes some and refuses the rest breaks the connection, and returns the reason.
    fn post_recv(&mut self, qp: QpId, requests: &[RecvRequest<'_>]) -> Result<()>;

    /// Posts sends, in order, all or none, as [`QueuePairs::post_recv`] does. Inline payload may be reused
    /// when the call returns. With `more` the device may hold the requests back and send them together with
    /// later ones; any later call that drives the queue pair sends them. If the device has no memory for
    /// output that must wait, it returns [`Error::Io`](crate::Error::Io), and the connection is broken.
    fn post_send(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()>;
}
