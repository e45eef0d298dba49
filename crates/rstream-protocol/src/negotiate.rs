//! What two peers use of what each of them can do (`docs/protocol.md`, section "Features").

#[cfg(doc)]
use super::SHORT_DATA_MOST;
use super::{Offer, WordFormat};

bitflags::bitflags! {
    /// What a side can do beyond the base protocol; used only if both sides name it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Features: u32 {
        /// Control words may say that a side will write no more, or has closed.
        const END_OF_STREAM = 1 << 0;
        /// This side can post and receive immediate data on this device, and wants to.
        const IMMEDIATE = 1 << 1;
        /// In a request: a rendezvous to share memory follows. In a reply: this side will come to it.
        const SHARED_MEMORY = 1 << 2;
        /// With [`WordFormat::Iwarp`], data of up to [`SHORT_DATA_MOST`] bytes may come in the send of
        /// its word: this side's receives have room for it.
        const SHORT_DATA = 1 << 3;
    }
}

/// Decides how two peers talk. Both sides come to the same answer, each from its own features
/// (those that it named, or would have named to a peer with the extension) and the other's offer.
///
/// `transport_base` is what base peers use on this transport: [`WordFormat::Iwarp`] on iWARP,
/// [`WordFormat::Immediate`] elsewhere. `local_forces_iwarp` asks for four-byte words although the
/// transport has immediates; a side that does so must not name [`Features::IMMEDIATE`], and a base
/// peer must have been told by other means.
#[must_use]
pub fn negotiate(
    local: Features,
    peer: &Offer<'_>,
    transport_base: WordFormat,
    local_forces_iwarp: bool,
) -> (WordFormat, Features) {
    let Some(extension) = &peer.extension else {
        let words = if local_forces_iwarp { WordFormat::Iwarp } else { transport_base };
        return (words, Features::empty());
    };
    let agreed = local & extension.features;
    let words = if agreed.contains(Features::IMMEDIATE) { WordFormat::Immediate } else { WordFormat::Iwarp };
    (words, agreed)
}
