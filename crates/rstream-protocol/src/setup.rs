//! What a stream is made from: the sizes that both sides told each other, and what they agreed on.

use super::credits::LEAST_RECEIVES;
use super::negotiate::Features;
use super::slots::CONTROL_ENTRIES;
use super::words::WordFormat;

/// Room in bytes that a sender can count on: once the peer has read everything and what was posted
/// is complete, a stream takes at least this much (or the whole of the peer's ring or the send
/// ring, if one is smaller), however little was sent since the last update. So an all-or-nothing
/// send up to this length never waits for an update that is not due.
///
/// It may take up to three messages, because each ring may wrap in the middle. A side at rest can
/// send three if the peer posted 7 receives or more, and two if one side posted more than 3, given
/// a send queue of as many messages.
pub const GUARANTEED_ROOM: u32 = 1024;

/// Sizes and agreements of one connection. All sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Size of the receive ring that we offered.
    pub local_ring: u32,
    /// Receives that we offered and have posted.
    pub local_receives: u16,
    /// Size of the receive ring that the peer offered.
    pub peer_ring: u32,
    /// Receives that the peer offered.
    pub peer_receives: u16,
    /// Size of the local send ring, where bytes are staged that the device must read later.
    pub send_ring: u32,
    /// Send-queue entries for data. A data message takes one, with [`WordFormat::Iwarp`] two.
    pub send_depth: u32,
    /// Longest single write that the device takes.
    pub max_message: u32,
    /// How data and words travel.
    pub words: WordFormat,
    /// What both sides named.
    pub features: Features,
}

impl Setup {
    /// Entries that the queue pair's send queue needs: those for data, and those kept for control.
    #[must_use]
    pub fn send_queue_depth(&self) -> u32 {
        self.send_depth.saturating_add(CONTROL_ENTRIES)
    }

    /// Refuses what no stream can work with.
    pub(super) fn check(&self) -> Result<(), SetupError> {
        for (what, size) in [
            ("local ring", self.local_ring),
            ("peer's ring", self.peer_ring),
            ("send ring", self.send_ring),
            ("longest message", self.max_message),
        ] {
            if size == 0 {
                return Err(SetupError::Empty { what });
            }
        }
        let (local, peer) = (self.local_receives, self.peer_receives);
        if local < LEAST_RECEIVES || peer < LEAST_RECEIVES {
            return Err(SetupError::TooFewReceives { local, peer });
        }
        if local == LEAST_RECEIVES
            && peer == LEAST_RECEIVES
            && !self.features.contains(Features::END_OF_STREAM)
        {
            return Err(SetupError::NoSpareReceive { local, peer });
        }
        let (least, most) = (self.words.data_entries(), u32::MAX - CONTROL_ENTRIES);
        if !(least..=most).contains(&self.send_depth) {
            return Err(SetupError::SendDepth { depth: self.send_depth, least, most });
        }
        Ok(())
    }
}

/// Why there can be no stream with these sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// A size of 0.
    #[error("{what} of 0 bytes")]
    Empty {
        /// Which size.
        what: &'static str,
    },
    /// A side with fewer receives than the protocol needs.
    #[error("{local} receives here and {peer} at the peer; each side needs {LEAST_RECEIVES}")]
    TooFewReceives {
        /// Ours.
        local: u16,
        /// The peer's.
        peer: u16,
    },
    /// The fewest receives on both sides, and a peer that may not know how to live with it.
    #[error("{local} receives here and {peer} at the peer; without the extension one side needs more")]
    NoSpareReceive {
        /// Ours.
        local: u16,
        /// The peer's.
        peer: u16,
    },
    /// A send queue that is too short for one data message, or longer than can be counted.
    #[error("{depth} send-queue entries for data are outside {least} to {most}")]
    SendDepth {
        /// Asked for.
        depth: u32,
        /// Fewest that work.
        least: u32,
        /// Most that work.
        most: u32,
    },
}
