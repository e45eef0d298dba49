//! Connection parameters: what each side tells the other in the private data of request and reply.

use rdma_verbs::shm::Invitation;
use rdma_verbs::{DeviceAttributes, RemoteAddress};
use rstream_protocol::{
    Extension, Features, Offer, OfferError, Refusal, RefusalReason, SetupError, UserDataTooLong,
};

/// Why a peer's parameters make no connection.
#[derive(Debug, thiserror::Error)]
pub enum BadParameters {
    /// They are not parameters that the protocol knows.
    #[error(transparent)]
    Offer(#[from] OfferError),
    /// The peer's ring cannot be named in a work request.
    #[error("ring key {0:#x} is longer than the 32 bits of a remote key")]
    RingKey(u64),
    /// The peer's sizes and this side's do not make a connection.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl BadParameters {
    /// What the peer is told.
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
    /// What it offers, without its application's data.
    pub(crate) offer: Offer<'static>,
    /// The key of its ring.
    key: u32,
    /// Where it offers to share memory.
    pub(crate) invitation: Option<Invitation>,
}

impl Peer {
    /// The parameters and the application's data in a peer's private data.
    ///
    /// # Errors
    /// [`BadParameters`] if the protocol does not allow them.
    pub fn decode(private_data: &[u8]) -> Result<(Self, Vec<u8>), BadParameters> {
        let offer = Offer::decode(private_data)?;
        let key = u32::try_from(offer.ring_key).map_err(|_| BadParameters::RingKey(offer.ring_key))?;
        let invitation = offer.extension.and_then(|extension| Invitation::from_bytes(extension.invitation));
        let bare = |Extension { features, .. }| Extension { features, user_data: &[], invitation: &[] };
        let extension = offer.extension.map(bare);
        Ok((Self { offer: Offer { extension, ..offer }, key, invitation }, offer.user_data().to_vec()))
    }

    /// Whether the peer reads the extension, and with it the application's data.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        self.offer.extension.is_some()
    }

    /// Whether it says that it shares memory, as this side offered.
    pub(crate) fn shares_memory(&self) -> bool {
        let shares = |extension: Extension<'_>| extension.features.contains(Features::SHARED_MEMORY);
        self.offer.extension.is_some_and(shares)
    }

    /// Where its receive ring is.
    pub(crate) fn ring(&self) -> RemoteAddress {
        RemoteAddress { key: self.key, address: self.offer.ring_address }
    }
}

/// Bytes that a device leaves for the application's data in request, reply and reject.
#[must_use]
pub fn user_data_room(device: &DeviceAttributes) -> usize {
    device.max_private_data.saturating_sub(Offer::OVERHEAD).min(Offer::USER_DATA_MAX)
}

/// The extension of a side that offers to share memory, if there is room for that.
pub(crate) fn extend<'a>(
    features: Features,
    user_data: &'a [u8],
    invitation: Option<&'a Invitation>,
    device: &DeviceAttributes,
) -> Extension<'a> {
    let bare = Extension { features, user_data, invitation: &[] };
    let Some(invitation) = invitation else { return bare };
    let features = features | Features::SHARED_MEMORY;
    let extended = Extension { features, invitation: invitation.as_bytes(), ..bare };
    let taken = user_data.len() + extended.invitation_bytes();
    if taken <= user_data_room(device) { extended } else { bare }
}

/// The private data of a reject.
///
/// # Errors
/// [`UserDataTooLong`] where the application's data does not fit.
pub fn refusal(reason: RefusalReason, user_data: &[u8]) -> Result<Vec<u8>, UserDataTooLong> {
    Refusal { reason, user_data }.encode()
}
