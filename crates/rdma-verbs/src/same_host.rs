//! Sharing memory with a peer on the same host.

use std::net::SocketAddr;

use crate::shm::Invitation;
use crate::{MemoryRegion, QpId};

/// The rendezvous of two queue pairs whose processes are on the same host. Afterwards both processes map one
/// region of each side, and messages use this shared memory. If the rendezvous fails, the connection works
/// without it. See [`Connections::same_host`](crate::Connections::same_host).
pub trait SameHost {
    /// The device's connection request.
    type Request;

    /// Offers the rendezvous, before [`Connections::connect`](crate::Connections::connect). `target` is this
    /// side's region. The caller sends the returned offer to the peer at `remote`. `None` if the peer is not
    /// on this host or the system refuses.
    fn invite(&mut self, qp: QpId, remote: SocketAddr, target: &dyn MemoryRegion) -> Option<Invitation>;

    /// Connects to the peer's offer, before [`Connections::accept`](crate::Connections::accept). `target` is
    /// this side's region, whose content is lost. Returns whether memory is shared, which the caller reports
    /// to the peer.
    fn visit(
        &mut self,
        qp: QpId,
        request: &Self::Request,
        invitation: &Invitation,
        target: &dyn MemoryRegion,
    ) -> bool;

    /// Finishes the rendezvous on the side that offered it, after
    /// [`ConnectionEvent::Established`](crate::ConnectionEvent::Established). `visited` is what the peer
    /// reported. Poll afterwards, as after [`CompletionQueue::attach`](crate::CompletionQueue::attach).
    fn meet(&mut self, qp: QpId, visited: bool);

    /// Whether memory is shared with the peer. A message then costs little more than the copy of its payload.
    fn shares_memory(&self, qp: QpId) -> bool;
}
