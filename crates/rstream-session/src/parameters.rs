//! Connection parameters, which the sides exchange in the private data of request and reply.

use rdma_verbs::{DeviceAttributes, RemoteAddress};
use rstream_protocol::{
    Extension, Features, Offer, OfferError, Refusal, RefusalReason, SetupError, UserDataTooLong,
};
use rstream_ring::Rendezvous;

/// Why a connection with the peer's parameters is not possible.
#[derive(Debug, thiserror::Error)]
pub enum BadParameters {
    /// They are no valid parameters of the protocol.
    #[error(transparent)]
    Offer(#[from] OfferError),
    /// The key of the peer's ring does not fit in a work request.
    #[error("ring key {0:#x} is longer than the 32 bits of a remote key")]
    RingKey(u64),
    /// The peer's sizes do not fit this side's.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl BadParameters {
    /// The reason that is sent to the peer.
    fn reason(&self) -> RefusalReason {
        match self {
            Self::Offer(OfferError::Version { .. }) => RefusalReason::Version,
            Self::Offer(_) | Self::RingKey(_) | Self::Setup(_) => RefusalReason::Parameters,
        }
    }

    /// The private data of a reject for this reason.
    #[must_use]
    pub fn refusal(&self) -> Vec<u8> {
        refusal(self.reason(), &[]).unwrap_or_default()
    }
}

/// The parameters of a peer, checked.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    /// Its parameters, without its application's data.
    pub(crate) offer: Offer<'static>,
    /// The key of its ring.
    key: u32,
    /// Where it can be met to share memory.
    pub(crate) rendezvous: Option<Rendezvous>,
}

impl Peer {
    /// The parameters and the application's data in a peer's private data.
    ///
    /// # Errors
    /// [`BadParameters`] if the protocol does not allow them.
    pub fn decode(private_data: &[u8]) -> Result<(Self, Vec<u8>), BadParameters> {
        let offer = Offer::decode(private_data)?;
        let key = u32::try_from(offer.ring_key).map_err(|_| BadParameters::RingKey(offer.ring_key))?;
        let rendezvous = offer.extension.and_then(|extension| Rendezvous::from_bytes(extension.rendezvous));
        let bare = |Extension { features, .. }| Extension { features, user_data: &[], rendezvous: &[] };
        let extension = offer.extension.map(bare);
        Ok((Self { offer: Offer { extension, ..offer }, key, rendezvous }, offer.user_data().to_vec()))
    }

    /// Whether the peer supports the extension, which carries the application's data.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        self.offer.extension.is_some()
    }

    /// Whether it says that it comes to the rendezvous of this side.
    pub(crate) fn comes(&self) -> bool {
        let shares = |extension: Extension<'_>| extension.features.contains(Features::SHARED_MEMORY);
        self.offer.extension.is_some_and(shares)
    }

    /// The remote address of its receive ring.
    pub(crate) fn ring(&self) -> RemoteAddress {
        RemoteAddress { key: self.key, address: self.offer.ring_address }
    }
}

/// Bytes of private data that a device has for the application in request, reply and reject.
#[must_use]
pub fn user_data_room(device: &DeviceAttributes) -> usize {
    device.private_data.least().saturating_sub(Offer::OVERHEAD).min(Offer::USER_DATA_MAX)
}

/// The extension of the active side. It contains the rendezvous, if there is one and it fits.
pub(crate) fn extend<'a>(
    features: Features,
    user_data: &'a [u8],
    rendezvous: &'a [u8],
    device: &DeviceAttributes,
) -> Extension<'a> {
    let bare = Extension { features, user_data, rendezvous: &[] };
    let extended = Extension { features: features | Features::SHARED_MEMORY, rendezvous, ..bare };
    let fits = user_data.len() + extended.rendezvous_bytes() <= user_data_room(device);
    if fits && !rendezvous.is_empty() { extended } else { bare }
}

/// The private data of a reject.
///
/// # Errors
/// [`UserDataTooLong`] if the application's data does not fit.
pub fn refusal(reason: RefusalReason, user_data: &[u8]) -> Result<Vec<u8>, UserDataTooLong> {
    Refusal { reason, user_data }.encode()
}
