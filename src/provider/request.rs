//! A connection request: what `FI_CONNREQ` hands to the application, to accept or reject.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::abi::ConnectionHandle;
use crate::verbs::{ConnectionRequest, Device};

use super::offer::Peer;
use super::options::Options;

/// A request that waits for an answer.
pub(super) struct Request<D: Device> {
    pending: Mutex<Option<Pending<D>>>,
    peer: Peer,
    options: Options,
}

/// What goes with the answer.
struct Pending<D: Device> {
    request: D::Request,
    /// By which the application names the request; it keeps the request alive.
    handle: Option<ConnectionHandle>,
}

impl<D: Device> Request<D> {
    /// A request of `peer`, to be answered with endpoints of these options.
    pub(super) fn new(request: D::Request, peer: Peer, options: Options) -> Arc<Self> {
        let pending = Mutex::new(Some(Pending { request, handle: None }));
        Arc::new(Self { pending, peer, options })
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

    /// The options that an endpoint accepted from here begins with.
    pub(super) fn options(&self) -> Options {
        self.options
    }

    /// The request itself, for its one answer.
    pub(super) fn take(&self) -> Option<D::Request> {
        self.pending.lock().take().map(|pending| pending.request)
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
