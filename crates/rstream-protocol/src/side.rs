//! What one side brings to a connection, and what both sides make of it.

use super::negotiate::{Features, negotiate};
use super::setup::{Setup, SetupError};
use super::slots::CONTROL_ENTRIES;
use super::{Offer, WordFormat};

/// The sizes of one side and what its device can do. All sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// Size of the receive ring.
    pub ring: u32,
    /// Receives that are posted.
    pub receives: u16,
    /// Size of the send ring.
    pub send_ring: u32,
    /// Data messages that may be under way.
    pub messages: u16,
    /// Whether the device posts and receives immediate data.
    pub has_immediates: bool,
    /// What base peers use on this transport: [`WordFormat::Iwarp`] on iWARP, [`WordFormat::Immediate`]
    /// elsewhere.
    pub transport_base: WordFormat,
    /// Whether four-byte words are asked for although the transport has immediates.
    pub forces_iwarp: bool,
}

impl Side {
    /// The features that this side names.
    #[must_use]
    pub fn features(&self) -> Features {
        let mut features = Features::END_OF_STREAM;
        features.set(Features::IMMEDIATE, self.has_immediates && !self.forces_iwarp);
        features.set(Features::SHORT_DATA, !self.has_immediates);
        features
    }

    /// Entries that the send queue needs, whichever format the two sides agree on.
    #[must_use]
    pub fn send_entries(&self) -> u32 {
        u32::from(self.messages) * WordFormat::Iwarp.data_entries() + CONTROL_ENTRIES
    }

    /// Most data messages for which a send queue of `entries` has room, in either format.
    #[must_use]
    pub fn most_messages(entries: u32) -> u32 {
        entries.saturating_sub(CONTROL_ENTRIES) / WordFormat::Iwarp.data_entries()
    }

    /// The connection that this side and the peer's offer make, with messages of at most `max_message` bytes.
    ///
    /// # Errors
    /// [`SetupError`] if the sizes of both do not make one.
    pub fn agree(&self, peer: &Offer<'_>, max_message: u32) -> Result<Setup, SetupError> {
        let (words, features) = negotiate(self.features(), peer, self.transport_base, self.forces_iwarp);
        let setup = Setup {
            local_ring: self.ring,
            local_receives: self.receives,
            peer_ring: peer.ring_size,
            peer_receives: peer.receives,
            send_ring: self.send_ring,
            send_depth: u32::from(self.messages) * words.data_entries(),
            max_message,
            words,
            features,
        };
        setup.check().map(|()| setup)
    }
}
