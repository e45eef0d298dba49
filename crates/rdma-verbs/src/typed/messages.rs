//! Messages of any length between programs, reported as events.
//!
//! A [`Hub`] listens and connects on one [`Shard`](super::Shard). Messages arrive whole, once, and in the
//! order in which their connection's peer has sent them, or the connection reports its end. What verbs leave
//! to the program is done inside: the hub posts receives and tells the peer of them, so that none is ever
//! missing, and long messages stay with their sender until the receiver's device reads them.
//!
//! ```
//! use rdma_verbs::typed::Shard;
//! use rdma_verbs::typed::messages::{Event, Hub, Options};
//!
//! # fn main() -> Result<(), rdma_verbs::typed::Error> {
//! let mut hub = Hub::new(&Shard::embedded()?, Options::default())?;
//! let address = hub.listen(([127, 0, 0, 1], 0).into(), 8)?;
//! let client = hub.connect(address, b"")?;
//! loop {
//!     match hub.next().wait() {
//!         Event::Request(request) => _ = hub.accept(request, b"")?,
//!         Event::Established { peer, .. } if peer == client => _ = hub.send(peer, b"hello")?,
//!         Event::Established { .. } => {}
//!         Event::Message { peer, message } if peer == client => {
//!             assert_eq!(*message, [b'!'; 100_000]);
//!             hub.disconnect(peer);
//!         }
//!         Event::Message { peer, message } => {
//!             assert_eq!(*message, *b"hello");
//!             hub.send(peer, &[b'!'; 100_000])?;
//!         }
//!         Event::Sent { .. } => {}
//!         Event::Disconnected { peer, .. } if peer == client => return Ok(()),
//!         Event::Disconnected { .. } => {}
//!     }
//! }
//! # }
//! ```
//!
//! `docs/verbs/messages.md` of the repository has the format, and what a hostile peer can do.

mod channel;
mod event;
mod flow;
mod hub;
mod message;
mod options;
mod ready;
mod reason;
mod request;
mod wire;

pub use event::{Event, Peer, Ticket};
pub use hub::{Hub, Next};
pub use message::Message;
pub use options::Options;
pub use reason::{Reason, Violation};
pub use request::Request;
