//! The options of a hub, and their limits.

use super::flow;
use super::wire::Header;
use crate::QpCapabilities;
use crate::typed::{Result, out_of_range};

/// What each connection of a hub has. It takes memory for `window + offers + 2 + queue + 2` buffers, for what
/// it sends and the peer has not read, and for as many of the peer's longest messages as `offers` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Length in bytes of the longest message that is sent at once, in a buffer; at least
    /// [`Options::LEAST_EAGER`]. A longer one stays in the sender's memory until the receiver reads it. The
    /// lesser of both sides' values counts.
    pub eager: u32,
    /// Length in bytes of the longest message that this side takes; at least `eager`.
    pub longest: u32,
    /// Number of messages that the program may hold, or that may be under way to it. Then the peer waits.
    pub window: u16,
    /// Number of long messages that are read at a time.
    pub offers: u8,
    /// Number of messages that the program may send before it is told that they are sent.
    pub queue: u32,
}

impl Options {
    /// The least value of `eager`.
    pub const LEAST_EAGER: u32 = (Header::OFFER - Header::LENGTH) as u32;

    pub(super) fn check(&self, max_message: u64) -> Result<()> {
        let most_longest = usize::try_from(max_message).unwrap_or(usize::MAX).min(u32::MAX as usize);
        let limits: [(_, u64, u64, usize); 5] = [
            ("longest message", self.longest.into(), 1, most_longest),
            // A buffer has a header, too.
            (
                "eager message",
                self.eager.into(),
                Self::LEAST_EAGER.into(),
                self.longest.min(1 << 30) as usize,
            ),
            ("window", self.window.into(), 1, u16::MAX.into()),
            ("number of offers", self.offers.into(), 1, u8::MAX.into()),
            ("queue", self.queue.into(), 1, 1 << 20),
        ];
        for (what, value, least, most) in limits {
            if !(least..=most as u64).contains(&value) {
                return Err(out_of_range(what, value, least, most));
            }
        }
        Ok(())
    }

    /// Number of buffers for what it sends: each message has one, and two are for what has none.
    pub(super) fn sends(&self) -> u32 {
        self.queue + 2
    }

    pub(super) fn queues(&self) -> QpCapabilities {
        QpCapabilities {
            send_depth: self.sends() + u32::from(self.offers),
            recv_depth: flow::receives(self),
            inline: 0,
            initiator_depth: self.offers,
            responder_resources: self.offers,
        }
    }
}

impl Default for Options {
    /// Buffers of 4 KiB, messages up to 1 MiB; 2 MiB and 230 KiB for each connection.
    fn default() -> Self {
        Self { eager: 4096 - Header::LENGTH as u32, longest: 1 << 20, window: 16, offers: 2, queue: 32 }
    }
}
