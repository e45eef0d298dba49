//! Requests of peers to connect.

use std::fmt;
use std::net::SocketAddr;

use super::Violation;
use super::wire::Hello;
use crate::AnyDevice;
use crate::typed::{Incoming, TrustedDevice};

/// A request of a peer to connect. Dropping it rejects it.
pub struct Request<D: TrustedDevice = AnyDevice> {
    /// `None` after the answer.
    pub(super) incoming: Option<Incoming<D>>,
    pub(super) hello: Hello,
    pub(super) private_data: Vec<u8>,
    peer_address: SocketAddr,
}

impl<D: TrustedDevice> Request<D> {
    pub(super) fn new(incoming: Incoming<D>) -> std::result::Result<Self, (Incoming<D>, Violation)> {
        let (hello, private_data) = match Hello::decode(incoming.private_data()) {
            Ok((hello, private_data)) => (hello, private_data.to_vec()),
            Err(violation) => return Err((incoming, violation)),
        };
        let peer_address = incoming.peer_address();
        Ok(Self { incoming: Some(incoming), hello, private_data, peer_address })
    }

    /// What the peer has given with its request.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// Rejects it, with private data for the peer.
    pub fn reject(mut self, private_data: &[u8]) {
        if let Some(incoming) = self.incoming.take() {
            incoming.reject(private_data);
        }
    }
}

impl<D: TrustedDevice> Drop for Request<D> {
    fn drop(&mut self) {
        if let Some(incoming) = self.incoming.take() {
            incoming.reject(b"");
        }
    }
}

impl<D: TrustedDevice> fmt::Debug for Request<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("peer_address", &self.peer_address).finish_non_exhaustive()
    }
}
