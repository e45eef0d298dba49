//! Connection data: what this side offers, what the peer's offer means for a connection.

use crate::abi::{Errno, Result};
use rdma_verbs::shm::Invitation;
use rdma_verbs::{DeviceAttributes, RemoteAddress, Transport};
use rstream_protocol::{
    Extension, Features, Offer, OfferError, Refusal, RefusalReason, Setup, SetupError, Stream, WordFormat,
    negotiate,
};

use super::options::Options;

/// Why no connection can be made of a peer's offer.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadOffer {
    /// It is not an offer that the protocol knows.
    #[error(transparent)]
    Offer(#[from] OfferError),
    /// Its ring cannot be named in a work request.
    #[error("ring key {0:#x} is longer than the 32 bits of a remote key")]
    RingKey(u64),
    /// Its sizes and ours do not make a connection.
    #[error(transparent)]
    Setup(#[from] SetupError),
}

impl BadOffer {
    /// What the peer is told.
    pub(super) fn reason(&self) -> RefusalReason {
        match self {
            Self::Offer(OfferError::Version { .. }) => RefusalReason::Version,
            Self::Offer(_) | Self::RingKey(_) | Self::Setup(_) => RefusalReason::Parameters,
        }
    }
}

/// What a peer said of itself, checked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    /// Its offer, without the user's data.
    offer: Offer<'static>,
    /// The key of its ring, as verbs have it.
    key: u32,
    /// Where it can be met to share memory.
    invitation: Option<Invitation>,
}

impl Peer {
    /// Whether the peer reads an extension, and with it the user's connection data.
    pub(super) fn is_extended(&self) -> bool {
        self.offer.extension.is_some()
    }

    /// Its invitation to share memory.
    pub(super) fn invitation(&self) -> Option<&Invitation> {
        self.invitation.as_ref()
    }

    /// Whether it says that it shares memory, and was invited to.
    pub(super) fn shares_memory(&self) -> bool {
        let shares = |extension: Extension<'_>| extension.features.contains(Features::SHARED_MEMORY);
        self.offer.extension.is_some_and(shares)
    }

    /// Where its receive ring is.
    pub(super) fn ring(&self) -> RemoteAddress {
        RemoteAddress { key: self.key, address: self.offer.ring_address }
    }

    /// Bytes of its receive ring.
    pub(super) fn ring_size(&self) -> u32 {
        self.offer.ring_size
    }
}

/// The features of this side.
pub(super) fn features(device: &DeviceAttributes, force_iwarp: bool) -> Features {
    let mut features = Features::END_OF_STREAM;
    features.set(Features::IMMEDIATE, device.immediate && !force_iwarp);
    features.set(Features::SHORT_DATA, !device.immediate);
    features
}

/// Bytes that a device leaves for the user's connection data.
pub(super) fn user_data_room(device: &DeviceAttributes) -> usize {
    device.max_private_data.saturating_sub(Offer::OVERHEAD).min(Offer::USER_DATA_MAX)
}

/// The extension of a side that has an invitation for the peer, if there is room for it.
pub(super) fn extend<'a>(
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

/// Connection data of an offer.
pub(super) fn encode(offer: &Offer<'_>) -> Result<Vec<u8>> {
    offer.encode().map_err(|error| {
        log::warn!(target: "ep_ctrl", "connection data: {error}");
        Errno::EINVAL
    })
}

/// A peer's offer and the user's connection data in it.
pub(super) fn decode(data: &[u8]) -> std::result::Result<(Peer, Vec<u8>), BadOffer> {
    let offer = Offer::decode(data)?;
    let key = u32::try_from(offer.ring_key).map_err(|_| BadOffer::RingKey(offer.ring_key))?;
    let invitation = offer.extension.and_then(|extension| Invitation::from_bytes(extension.invitation));
    let bare = |Extension { features, .. }| Extension { features, user_data: &[], invitation: &[] };
    let extension = offer.extension.map(bare);
    Ok((Peer { offer: Offer { extension, ..offer }, key, invitation }, offer.user_data().to_vec()))
}

/// The connection data of a refusal.
pub(super) fn encode_refusal(reason: RefusalReason, user_data: &[u8]) -> Result<Vec<u8>> {
    Refusal { reason, user_data }.encode().map_err(|_| Errno::EINVAL)
}

/// Why the peer refused, and the user's connection data in it.
pub(super) fn decode_refusal(data: &[u8]) -> (RefusalReason, Vec<u8>) {
    let refusal = Refusal::decode(data);
    (refusal.reason, refusal.user_data.to_vec())
}

/// The protocol machine that both offers lead to, and the format of its words.
pub(super) fn agree(
    options: &Options,
    peer: &Peer,
    device: &DeviceAttributes,
    force_iwarp: bool,
    max_message: u32,
) -> std::result::Result<(Stream, WordFormat), BadOffer> {
    let base = match device.transport {
        Transport::InfiniBand => WordFormat::Immediate,
        Transport::Iwarp => WordFormat::Iwarp,
    };
    let (words, agreed) = negotiate(features(device, force_iwarp), &peer.offer, base, force_iwarp);
    let setup = Setup {
        local_ring: options.recv_buffer,
        local_receives: options.recv_depth,
        peer_ring: peer.offer.ring_size,
        peer_receives: peer.offer.receives,
        send_ring: options.send_buffer,
        send_depth: u32::from(options.send_depth) * words.data_entries(),
        max_message,
        words,
        features: agreed,
    };
    Ok((Stream::new(setup)?, words))
}
