//! A connection request: what `FI_CONNREQ` hands to the application, to accept or reject.
//!
//! It belongs to its passive endpoint, and from `fi_endpoint` on to the endpoint opened for it: the owner's close
//! gives it up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::abi::ConnectionHandle;
use rdma_verbs::{ConnectionRequest, Device};
use rstream_session::{Peer, Sizes};

/// A request that waits for an answer.
pub(super) struct Request<D: Device> {
    pending: Mutex<Option<Pending<D>>>,
    /// Whether there is an endpoint for it.
    claimed: AtomicBool,
    peer: Peer,
    sizes: Sizes,
}

/// What goes with the answer.
struct Pending<D: Device> {
    request: D::Request,
    /// By which the application names the request; it keeps the request alive.
    handle: Option<ConnectionHandle>,
}

impl<D: Device> Request<D> {
    /// A request of `peer`, to be answered with endpoints of these sizes.
    pub(super) fn new(request: D::Request, peer: Peer, sizes: Sizes) -> Arc<Self> {
        let pending = Mutex::new(Some(Pending { request, handle: None }));
        Arc::new(Self { pending, claimed: AtomicBool::new(false), peer, sizes })
    }

    /// Makes the request one that an application can name, until it is answered or abandoned.
    pub(super) fn name(self: &Arc<Self>, give: impl FnOnce(&ConnectionHandle)) {
        if let Some(pending) = &mut *self.pending.lock() {
            give(pending.handle.get_or_insert_with(|| ConnectionHandle::new(Arc::clone(self))));
        }
    }

    /// What the peer offers.
    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The sizes that an endpoint accepted from here begins with.
    pub(super) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Makes it the affair of the endpoint that is opened for it.
    pub(super) fn claim(&self) {
        self.claimed.store(true, Ordering::Relaxed);
    }

    /// The request itself, for its one answer.
    pub(super) fn take(&self) -> Option<D::Request> {
        self.pending.lock().take().map(|pending| pending.request)
    }

    fn is_pending(&self) -> bool {
        self.pending.lock().is_some()
    }

    /// Whether it waits for an answer that nobody waits for.
    fn has_left(&self) -> bool {
        self.pending.lock().as_ref().is_some_and(|pending| pending.request.has_left())
    }

    /// Gives the request up without an answer.
    pub(super) fn abandon(&self) {
        drop(self.take());
    }

    /// Refuses the request; `false` if it was answered before.
    pub(super) fn reject(&self, private_data: &[u8]) -> bool {
        self.take().map(|request| request.reject(private_data)).is_some()
    }
}

/// The requests of a passive endpoint that wait for an answer.
pub(super) struct Requests<D: Device>(Vec<Weak<Request<D>>>);

impl<D: Device> Default for Requests<D> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<D: Device> Requests<D> {
    /// Adds a request. Of those whose peers have left at least the last `kept` can still be named; the others are
    /// given up in time.
    pub(super) fn remember(&mut self, request: &Arc<Request<D>>, kept: usize) {
        if self.0.len() == self.0.capacity() {
            self.sweep(kept);
        }
        self.0.push(Arc::downgrade(request));
    }

    /// Gives up all that have no endpoint.
    pub(super) fn abandon(self) {
        let requests = self.0.iter().filter_map(Weak::upgrade);
        requests
            .filter(|request| !request.claimed.load(Ordering::Relaxed))
            .for_each(|request| request.abandon());
    }

    /// Forgets what was answered.
    fn sweep(&mut self, kept: usize) {
        self.0.retain(|request| request.upgrade().is_some_and(|request| request.is_pending()));
        let left: Vec<_> =
            self.0.iter().filter_map(Weak::upgrade).filter(|request| request.has_left()).collect();
        left.iter().rev().skip(kept).for_each(|request| request.abandon());
    }
}
