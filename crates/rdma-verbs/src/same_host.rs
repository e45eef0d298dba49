//! Sharing memory with a peer on the same host.

use std::net::SocketAddr;

use crate::shm::Invitation;
use crate::{MemoryRegion, QpId};

/// What a device offers to queue pairs whose peer is a process of the same host: two regions of memory that
/// both sides map. The connection works the same whatever comes of it. See
/// [`Connections::same_host`](crate::Connections::same_host).
pub trait SameHost {
    /// The device's connection request.
    type Request;

    /// Before [`Connections::connect`](crate::Connections::connect): makes a place where the peer at
    /// `remote`, if it is on this host and knows how, can take part in sharing memory, `target` in it, for
    /// which the peer has to be told. `None`: there is no such place.
    fn invite(&mut self, qp: QpId, remote: SocketAddr, target: &dyn MemoryRegion) -> Option<Invitation>;

    /// Before [`Connections::accept`](crate::Connections::accept): follows the peer's invitation. What
    /// `target` holds is lost. Answers whether memory is shared, of which the peer has to be told.
    fn visit(
        &mut self,
        qp: QpId,
        request: &Self::Request,
        invitation: &Invitation,
        target: &dyn MemoryRegion,
    ) -> bool;

    /// After [`ConnectionEvent::Established`](crate::ConnectionEvent::Established) on the side that invited:
    /// whether the peer says that it came. Poll afterwards, as after
    /// [`CompletionQueue::attach`](crate::CompletionQueue::attach).
    fn meet(&mut self, qp: QpId, visited: bool);

    /// Whether memory is shared with the peer, so that messages cost next to nothing but their copies.
    fn shares_memory(&self, qp: QpId) -> bool;
}
