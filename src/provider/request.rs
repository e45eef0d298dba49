//! A connection request, which `FI_CONNREQ` reports and the application accepts or rejects.
//!
//! It belongs to its passive endpoint, and from `fi_endpoint` on to the endpoint that was opened for it. When
//! the owner is closed, the request is abandoned. But one whose event the application has read may still be
//! accepted after its passive endpoint is closed: it belongs to the fabric then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::abi::ConnectionHandle;
use rdma_verbs::{ConnectionRequest, Device};
use rstream_session::{Peer, Sizes};

/// A request and, until it is accepted or rejected, its connection.
pub(super) struct Request<D: Device> {
    pending: Mutex<Option<Pending<D>>>,
    /// Whether an endpoint was opened for it.
    claimed: AtomicBool,
    arrived: Instant,
    peer: PeerEndpoint,
}

/// The kind of the peer's endpoint.
#[derive(Debug, Clone)]
pub(super) enum PeerEndpoint {
    /// A stream: the peer's connection parameters, and the initial sizes of an endpoint that accepts it.
    Stream(Peer, Sizes),
    /// Messages, with tags or without, and the [number](super::message::rxm) of this side.
    Messages { tags: bool, number: Option<i32> },
}

/// The parts that accepting or rejecting consumes.
struct Pending<D: Device> {
    request: D::Request,
    /// The application's handle of the request. It keeps the request alive.
    handle: Option<ConnectionHandle>,
}

impl<D: Device> Request<D> {
    /// A request of a peer.
    pub(super) fn new(request: D::Request, peer: PeerEndpoint) -> Arc<Self> {
        let pending = Mutex::new(Some(Pending { request, handle: None }));
        Arc::new(Self { pending, claimed: AtomicBool::new(false), arrived: Instant::now(), peer })
    }

    /// Creates the handle of the request, which is valid until the request is accepted, rejected or
    /// abandoned.
    pub(super) fn name(self: &Arc<Self>, give: impl FnOnce(&ConnectionHandle)) {
        if let Some(pending) = &mut *self.pending.lock() {
            give(pending.handle.get_or_insert_with(|| ConnectionHandle::new(Arc::clone(self))));
        }
    }

    /// The connection parameters of a peer that requests a stream, and the initial sizes of an endpoint for
    /// it.
    pub(super) fn stream(&self) -> Option<(&Peer, Sizes)> {
        match &self.peer {
            PeerEndpoint::Stream(peer, sizes) => Some((peer, *sizes)),
            PeerEndpoint::Messages { .. } => None,
        }
    }

    /// Whether the peer has a message endpoint of this kind.
    pub(super) fn is_of_messages(&self, with_tags: bool) -> bool {
        matches!(self.peer, PeerEndpoint::Messages { tags, .. } if tags == with_tags)
    }

    /// By which number the peer knows this side, if it is `ofi_rxm`.
    pub(super) fn number(&self) -> Option<i32> {
        match self.peer {
            PeerEndpoint::Messages { number, .. } => number,
            PeerEndpoint::Stream(..) => None,
        }
    }

    /// Passes it to the endpoint that is opened for it. `false` if another one has it.
    pub(super) fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::Relaxed)
    }

    /// Whether it is pending and has no endpoint.
    fn is_unclaimed(&self) -> bool {
        !self.claimed.load(Ordering::Relaxed) && self.is_pending()
    }

    /// Removes the connection, to accept or reject it. `None` if that has happened before.
    pub(super) fn take(&self) -> Option<D::Request> {
        self.pending.lock().take().map(|pending| pending.request)
    }

    fn is_pending(&self) -> bool {
        self.pending.lock().is_some()
    }

    /// Whether it is pending and its peer has closed the connection.
    fn has_left(&self) -> bool {
        self.pending.lock().as_ref().is_some_and(|pending| pending.request.has_left())
    }

    /// Drops the connection without a reply.
    pub(super) fn abandon(&self) {
        drop(self.take());
    }

    /// Rejects the request. `false` if it was accepted or rejected before.
    pub(super) fn reject(&self, private_data: &[u8]) -> bool {
        self.take().map(|request| request.reject(private_data)).is_some()
    }
}

/// The pending requests of a passive endpoint, or those that closed ones have left to the fabric.
pub(super) struct Requests<D: Device>(Vec<Weak<Request<D>>>);

impl<D: Device> Default for Requests<D> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<D: Device> Requests<D> {
    /// Adds a request. Of the requests whose peers have closed the connection, at least the last `kept` keep
    /// their handles. Older ones are abandoned eventually.
    pub(super) fn remember(&mut self, request: &Arc<Request<D>>, kept: usize) {
        if self.0.len() == self.0.capacity() {
            self.sweep(kept);
        }
        self.0.push(Arc::downgrade(request));
    }

    /// Takes over the requests of a passive endpoint that is closed. Abandons those that have waited for `longest`,
    /// after which their peers have given up.
    pub(super) fn adopt(&mut self, orphans: Self, longest: Duration) {
        self.0.extend(orphans.0);
        self.abandon_after(longest);
        self.0.retain(|request| request.upgrade().is_some_and(|request| request.is_unclaimed()));
    }

    /// Abandons the requests that have no endpoint and have waited for `least`.
    pub(super) fn abandon_after(&self, least: Duration) {
        let requests = self.0.iter().filter_map(Weak::upgrade);
        requests
            .filter(|request| request.is_unclaimed() && request.arrived.elapsed() >= least)
            .for_each(|request| request.abandon());
    }

    /// Removes accepted and rejected requests, and abandons old ones whose peers have closed the connection.
    fn sweep(&mut self, kept: usize) {
        self.0.retain(|request| request.upgrade().is_some_and(|request| request.is_pending()));
        let left: Vec<_> =
            self.0.iter().filter_map(Weak::upgrade).filter(|request| request.has_left()).collect();
        left.iter().rev().skip(kept).for_each(|request| request.abandon());
    }
}
