//! From a queue pair to a connection.
//!
//! ```text
//! active side                                     passive side
//! Handshake::connect ── parameters ─────────────▶ Peer::decode
//!        │                                        Handshake::accept, or a reject with a refusal
//!        │                 ◀─── parameters ─────────────┤
//! Handshake::poll                                 Handshake::poll
//!        └──────────────▶ Connection ◀──────────────────┘
//! ```
//!
//! Each layer has one such state machine. The device's opens the transport and carries private data (for
//! iWARP, in MPA's request and reply). This one exchanges connection parameters in that private data. The
//! layer above reports the outcome to its user (in libfabric with `FI_CONNREQ` and `FI_CONNECTED`).

use std::net::SocketAddr;

use rdma_verbs::{
    self as verbs, ConnectError, ConnectionEvent, Connections, Device, DeviceAttributes, EventTarget,
};
use rstream_protocol::{Extension, Features, Hello, Offer, OfferError, Refusal, RefusalReason, Stream};
use rstream_ring::{Rendezvous, RingSizes};

use super::connection::Connection;
use super::parameters::{BadParameters, Peer, extend, user_data_room};
use super::queue_pair::StreamQueuePair;
use super::settings::Settings;
use super::sharing::Attempt;

/// Why an attempt could not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] verbs::Error),
    /// The application's data does not fit, or no peer may be offered these sizes.
    #[error("connection parameters: {0}")]
    Parameters(#[from] OfferError),
}

/// A connection attempt under way.
pub struct Handshake<D: Device> {
    queue_pair: Box<StreamQueuePair<D>>,
    /// On the passive side, the peer's parameters. The active side gets them with the reply.
    peer: Option<Peer>,
    /// Where the two sides meet to share memory, if both are willing to.
    rendezvous: Option<Rendezvous>,
    settings: Settings,
    device: DeviceAttributes,
}

/// The outcome of an attempt.
pub enum Outcome<D: Device> {
    /// The connection is established. An active side gets its peer's application data.
    Connected(Box<Connection<D>>, Vec<u8>),
    /// The peer refused, with its application's data.
    Rejected(RefusalReason, Vec<u8>),
    /// What listens there is for message endpoints.
    RejectedKind,
    /// The attempt failed.
    Failed(ConnectError),
    /// The peer's parameters make no connection.
    BadParameters(BadParameters),
}

/// An attempt that has started, or the unchanged queue pair and why the attempt could not start.
pub type Started<D> = Result<Box<Handshake<D>>, (Box<StreamQueuePair<D>>, StartError)>;

impl<D: Device> Handshake<D> {
    /// Starts to connect to `remote`, from the local address `source` if there is one. `events` is signaled
    /// when to poll.
    ///
    /// # Errors
    /// [`StartError`], with the unchanged queue pair.
    pub fn connect(
        mut queue_pair: Box<StreamQueuePair<D>>,
        (remote, source): (SocketAddr, Option<SocketAddr>),
        user_data: &[u8],
        settings: Settings,
        device: DeviceAttributes,
        events: EventTarget,
    ) -> Started<D> {
        let rendezvous = if settings.shares_memory() { Rendezvous::new(remote) } else { None };
        let told = rendezvous.map(Rendezvous::to_bytes);
        let features = settings.side(&device).features();
        let told = told.as_ref().map_or(&[][..], |bytes| bytes);
        let extension = extend(features, user_data, told, &device);
        let offer = queue_pair.offer(&settings, Some(extension));
        let StreamQueuePair { cq, qp, .. } = &mut *queue_pair;
        let start = |data: &[u8]| cq.connect(*qp, remote, source, data, &settings.connect, events);
        match begin(&offer, start) {
            Ok(()) => Ok(Box::new(Self { queue_pair, peer: None, rendezvous, settings, device })),
            Err(error) => Err((queue_pair, error)),
        }
    }

    /// Accepts the request of `peer`. A peer without the extension gets no `user_data`.
    ///
    /// # Errors
    /// [`StartError`], with the unchanged queue pair. The request is dropped.
    pub fn accept(
        mut queue_pair: Box<StreamQueuePair<D>>,
        (request, peer): (D::Request, Peer),
        user_data: &[u8],
        settings: Settings,
        device: DeviceAttributes,
        events: EventTarget,
    ) -> Started<D> {
        let mut features = settings.side(&device).features();
        // The reply needs one byte more to say that this side comes.
        let comes = settings.shares_memory() && user_data.len() < user_data_room(&device);
        let rendezvous = peer.rendezvous.filter(|_| comes);
        features.set(Features::SHARED_MEMORY, rendezvous.is_some());
        let extension = peer.is_extended().then_some(Extension { features, user_data, rendezvous: &[] });
        let offer = queue_pair.offer(&settings, extension);
        let StreamQueuePair { cq, qp, .. } = &mut *queue_pair;
        let start = |data: &[u8]| cq.accept(*qp, request, data, &settings.connect, events);
        match begin(&offer, start) {
            Ok(()) => Ok(Box::new(Self { queue_pair, peer: Some(peer), rendezvous, settings, device })),
            Err(error) => Err((queue_pair, error)),
        }
    }

    /// The queue pair, for its addresses and its deadline.
    #[must_use]
    pub fn queue_pair(&self) -> &StreamQueuePair<D> {
        &self.queue_pair
    }

    /// The queue pair, to attach a wait set.
    pub fn queue_pair_mut(&mut self) -> &mut StreamQueuePair<D> {
        &mut self.queue_pair
    }

    /// Drives the attempt.
    ///
    /// # Errors
    /// The attempt itself while it continues: poll again when the event target is signaled, or at
    /// [`StreamQueuePair::deadline`].
    pub fn poll(mut self: Box<Self>) -> Result<Outcome<D>, Box<Self>> {
        let StreamQueuePair { cq, qp, .. } = &mut *self.queue_pair;
        let Some(event) = cq.poll_event(*qp) else { return Err(self) };
        Ok(match event {
            ConnectionEvent::Established { private_data } => {
                self.establish(&private_data).unwrap_or_else(Outcome::BadParameters)
            }
            ConnectionEvent::Rejected { private_data } if Hello::decode(&private_data).is_some() => {
                Outcome::RejectedKind
            }
            ConnectionEvent::Rejected { private_data } => {
                let refusal = Refusal::decode(&private_data);
                Outcome::Rejected(refusal.reason, refusal.user_data.to_vec())
            }
            ConnectionEvent::Failed(error) => Outcome::Failed(error),
            ConnectionEvent::Disconnected | ConnectionEvent::Broken(_) => {
                Outcome::Failed(ConnectError::Closed)
            }
        })
    }

    /// The connection that both sides' parameters make.
    fn establish(self, private_data: &[u8]) -> Result<Outcome<D>, BadParameters> {
        let Self { queue_pair, peer, rendezvous, settings, device } = self;
        let sizes = |peer: &Peer| RingSizes {
            output: peer.offer.ring_size as usize,
            input: settings.sizes.recv_buffer as usize,
        };
        let (peer, user_data, attempt) = match peer {
            Some(peer) => {
                let attempt = rendezvous.map(|rendezvous| Attempt::to_connect(rendezvous, sizes(&peer)));
                (peer, Vec::new(), attempt)
            }
            None => {
                let (peer, user_data) = Peer::decode(private_data)?;
                let rendezvous = rendezvous.filter(|_| peer.comes());
                let attempt = rendezvous.map(|rendezvous| Attempt::to_listen(rendezvous, sizes(&peer)));
                (peer, user_data, attempt)
            }
        };
        let longest = u32::try_from(device.max_message).unwrap_or(u32::MAX);
        let setup = settings.side(&device).agree(&peer.offer, longest)?;
        let protocol = (Stream::new(setup)?, setup.words);
        let ring = (peer.ring(), peer.offer.ring_size);
        let connection = Connection::new(*queue_pair, &settings, protocol, ring, attempt);
        Ok(Outcome::Connected(Box::new(connection), user_data))
    }
}

/// Encodes the parameters and has the device start.
fn begin(offer: &Offer<'_>, start: impl FnOnce(&[u8]) -> verbs::Result<()>) -> Result<(), StartError> {
    Ok(start(&offer.encode()?)?)
}
