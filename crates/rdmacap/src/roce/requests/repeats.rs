//! Packets that come again or late, and why.

use super::{Cause, Requests};
use crate::context::Context;
use crate::finding::Topic;
use crate::roce::packet::Packet;

/// Gaps that are open for less, without a NAK, are reordering rather than loss. In nanoseconds.
const REORDERING: u64 = 1_000_000;

impl Requests {
    /// New packets go up to `psn`; what was passed over is a gap, and something that fills one is late.
    pub(super) fn advance(&mut self, psn: u64, context: &mut Context<'_>) {
        let next = self.next.unwrap_or(psn);
        if psn > next {
            if self.gap.is_none() {
                self.cause = None;
            }
            self.next = Some(psn);
            return;
        }
        if let Some((_, since)) = self.gap.take() {
            let waited = context.time.saturating_sub(since);
            if self.cause == Some(Cause::Sequence) || waited >= REORDERING {
                let text = format!("a packet from {} came {} us late", self.from, waited / 1000);
                context.finding(Topic::NetworkLoss, Some(self.connection), text);
            }
        }
    }

    /// A packet of an operation that was seen.
    pub(super) fn again(&mut self, at: usize, psn: u64, packet: &Packet<'_>, context: &mut Context<'_>) {
        let pending = &mut self.pending[at];
        pending.operation.resent += 1;
        pending.operation.frames.1 = context.frame;
        let index = (psn - pending.first) as usize;
        let whole = packet.payload.len() == packet.length;
        let differs = pending.sums.get(index).is_some_and(|sum| *sum != crc32c::crc32c(packet.payload));
        if whole && differs && pending.operation.cut == 0 {
            let text = format!("packet {:#08x} of {} came again with other bytes", packet.psn, self.from);
            context.finding(Topic::Differs, Some(self.connection), text);
        }
        self.repeated("a packet", context);
    }

    pub(super) fn repeated_old(&mut self, context: &mut Context<'_>) {
        self.repeated("a packet that was acknowledged", context);
    }

    pub(super) fn repeated(&mut self, what: &str, context: &mut Context<'_>) {
        let (topic, why) = match self.cause {
            Some(Cause::Sequence) => (Topic::NetworkLoss, "after a NAK for a missing packet"),
            Some(Cause::NotReady) => (Topic::NotReady, "after the receiver was not ready"),
            None => (Topic::NetworkLoss, "without a NAK: a timeout, or a copy that the network made"),
        };
        let text = format!("{} sent {what} again, {why}", self.from);
        context.finding(topic, Some(self.connection), text);
    }
}
