//! What a hub reports.

use std::fmt;

use super::{Message, Reason, Request};
use crate::AnyDevice;
use crate::typed::TrustedDevice;

/// A connection of a hub. The hub never uses the same value for two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer(pub(super) u64);

/// A message that was sent. The hub never uses the same value for two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

/// What happens.
pub enum Event<D: TrustedDevice = AnyDevice> {
    /// A peer wants to connect. Unless it is accepted, it is rejected when it is dropped.
    Request(Request<D>),
    /// There is a connection: messages can be sent.
    Established {
        /// The connection.
        peer: Peer,
        /// What the peer has given with its request or its reply.
        private_data: Vec<u8>,
    },
    /// A message has arrived.
    Message {
        /// Its connection.
        peer: Peer,
        /// Its bytes.
        message: Message<D>,
    },
    /// A message was sent: the device has transmitted it, or the peer has read it. Its place in the queue is
    /// free again, and so is its memory. A long one may be reported after later ones.
    Sent {
        /// Its connection.
        peer: Peer,
        /// What [`Hub::send`](super::Hub::send) has returned.
        ticket: Ticket,
    },
    /// The connection is no more, or was never made. It is the last event of this peer. Messages that were
    /// not reported as sent may not have arrived.
    Disconnected {
        /// The connection.
        peer: Peer,
        /// Why.
        reason: Reason,
    },
}

impl<D: TrustedDevice> fmt::Debug for Event<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(request) => f.debug_tuple("Request").field(request).finish(),
            Self::Established { peer, .. } => f.debug_tuple("Established").field(peer).finish(),
            Self::Message { peer, message } => f.debug_tuple("Message").field(peer).field(message).finish(),
            Self::Sent { peer, ticket } => f.debug_tuple("Sent").field(peer).field(ticket).finish(),
            Self::Disconnected { peer, reason } => {
                f.debug_tuple("Disconnected").field(peer).field(reason).finish()
            }
        }
    }
}
