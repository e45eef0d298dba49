//! Listeners and their connection requests.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use super::cm::{Channel, Event, Id, ReadDepths, kind};
use super::device::Context;
use crate::{self as verbs, EventTarget, Interest, Result};

/// A listener on an address of the device, or on all addresses.
pub struct Listener {
    id: Id,
    address: SocketAddr,
    context: Arc<Context>,
}

/// A peer's connection request.
pub struct Request {
    id: Id,
    private_data: Vec<u8>,
    reads: ReadDepths,
    local: SocketAddr,
    peer: SocketAddr,
    /// Most bytes of private data of a reject.
    reject: usize,
}

impl Listener {
    pub(super) fn open(
        context: &Arc<Context>,
        address: SocketAddr,
        backlog: u32,
        events: &EventTarget,
    ) -> Result<Self> {
        let channel = Channel::open()?;
        let id = Id::create(&channel)?;
        id.bind(address)?;
        id.listen(backlog)?;
        events.wait.add(channel.as_fd(), events.token, Interest::Read)?;
        let address = id.local_address().unwrap_or(address);
        Ok(Self { id, address, context: Arc::clone(context) })
    }

    /// The request that an event reports, if it is for this device. A listener on all addresses receives the
    /// requests of every device, and rejects those of the others.
    fn request(&self, event: Event) -> Option<Request> {
        let id = event.request?;
        let (local, peer) = (id.local_address()?, id.peer_address()?);
        if id.device_name().as_ref() != Some(&self.context.name) {
            log::warn!(
                "connection from {peer} refused: it came to a device other than {}",
                self.context.name
            );
            let _ = id.reject(&[]);
            return None;
        }
        let (private_data, reads) = (event.private_data, event.reads);
        let reject = self.context.attributes.private_data.reject;
        Some(Request { id, private_data, reads, local, peer, reject })
    }
}

impl verbs::Listener for Listener {
    type Request = Request;

    fn local_address(&self) -> SocketAddr {
        self.address
    }

    fn poll(&mut self) -> Option<Request> {
        while let Some(event) = self.id.channel().next_event() {
            if event.kind == kind::RDMA_CM_EVENT_DEVICE_REMOVAL {
                log::warn!("the listener on {} gets no more requests: the device is gone", self.address);
            }
            if let Some(request) = self.request(event) {
                return Some(request);
            }
        }
        None
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }
}

impl Request {
    /// The identifier, and the read depths that the peer proposes.
    pub(super) fn into_parts(self) -> (Id, ReadDepths) {
        (self.id, self.reads)
    }
}

impl verbs::ConnectionRequest for Request {
    fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    fn local_address(&self) -> SocketAddr {
        self.local
    }

    fn reject(self, private_data: &[u8]) {
        let private_data = &private_data[..private_data.len().min(self.reject)];
        if let Err(error) = self.id.reject(private_data) {
            log::info!("{error}");
        }
    }
}
