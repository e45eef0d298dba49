//! Credits: how many messages each side may send before it hears from the other, when receives
//! are returned, and why that neither deadlocks nor goes on for ever.
//!
//! Each side posted a number of receives, `R`, at least 3. A message of any kind uses one, and the
//! receiver posts it again at once; but the sender may count on it only when a control word has
//! *returned* it. The sender's credits are what it may still send. For each direction
//!
//! > credits + messages in flight + arrived and not returned (*owed*) + returns in flight = `R`
//!
//! # Rules
//! 1. A **data message** leaves at least the *reserve* untouched: 2 credits, or 1 if the peer
//!    posted 4 receives or fewer.
//! 2. A **control message** may use any credit, except that the last one is only for a word that
//!    returns at least one receive or says CLOSE.
//! 3. A control message returns all that is owed, as far as its fields reach. One is *due* when
//!    owed reaches the threshold `T = min(R / 2, 511)` (511 is the field's maximum). A side that
//!    posted 3 receives has `T = 1` if the peer posted more, and `T = 2` if it posted 3 as well.
//! 4. What is due is sent as soon as rule 2 and the send queue allow, from any call.
//!
//! # No deadlock
//! After CLOSE neither side has anything to send, so that nobody waits for a credit. Before it:
//!
//! *The two sides are never both without credits with nothing in flight.* Suppose they were, and
//! look at the last message of each, `a` and `b`. Both used a last credit, so by rules 1 and 2 both
//! returned a receive. When `a` arrived it raised the other side's credits above 0, so `b`, which
//! brought them to 0 for good, was sent after that; likewise `a` was sent after `b` arrived. Both
//! cannot be.
//!
//! *A sender does not wait for ever.* Suppose that nothing is in flight and nobody can send, but A
//! has data and its credits are down to the reserve, or has a control word without receives to
//! return and at most one credit. Then B owes at least `R - reserve` or `R - 1`, and with rule 3
//! both are at least `T` (`R = 3`: 2; `R = 4`: 3 against 2; else `R - 2` against at most `R / 2`).
//! So B has an update due that returns receives, and only a lack of any credit can hold it. Then
//! all of A's receives are owed, so A has one due as well, and by assumption no credit either: both
//! have none, which cannot be. Send-queue entries come back without the peer's doing (see
//! [`super::slots`]), and ring bytes come back with updates that are due when enough was read (see
//! [`super::recv`]).
//!
//! # No endless exchange
//! Every update makes the peer owe one more receive. Rule 3 gives `T_a * T_b >= 2`, so there are
//! weights with `w_b < w_a * T_a` and `w_a < w_b * T_b`. An update that is due for its receives
//! takes at least `T` of them, so each one lowers `w_a * owed_a + w_b * owed_b` (messages in flight
//! counted as owed by their receiver). Data, ring bytes read and endings raise it only as often as
//! the applications do something; in between, the exchange stops.
//!
//! # Three receives
//! Whatever message came last, its receiver owes it. If both sides posted 3 receives and a sender
//! keeps 2 back, one side can then send no data until a message is returned, and that message
//! leaves the other side in the same place: with such peers the exchange either stops in a deadlock
//! or does not stop. That is why rule 1 keeps back less, and why [`super::Stream::new`] refuses 3
//! receives on both sides for a peer without the end-of-stream feature, which cannot be trusted to
//! know rule 1.

use super::Violation;
use super::words::RECEIVES_MAX;

/// Fewest receives that a side may offer.
pub const LEAST_RECEIVES: u16 = 3;

/// What this side may send: the peer's receives.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendCredits {
    posted: u16,
    left: u16,
    reserve: u16,
}

impl SendCredits {
    /// The peer posted `posted` receives.
    pub(super) fn new(posted: u16) -> Self {
        Self { posted, left: posted, reserve: if posted <= 4 { 1 } else { 2 } }
    }

    /// Data messages that may be sent now.
    pub(super) fn data_messages(&self) -> u16 {
        self.left.saturating_sub(self.reserve)
    }

    /// Whether a control message may be sent now, which may take the last credit or not.
    pub(super) fn allow_control(&self, may_be_last: bool) -> bool {
        self.left >= 2 || (self.left == 1 && may_be_last)
    }

    /// Uses one credit, which one of the questions above has allowed.
    pub(super) fn spend(&mut self) {
        debug_assert!(self.left > 0);
        self.left -= 1;
    }

    /// The peer returned `receives`.
    pub(super) fn check_refund(&self, receives: u16) -> Result<(), Violation> {
        let outstanding = self.posted - self.left;
        if receives > outstanding {
            return Err(Violation::ExcessReceives { freed: receives, outstanding });
        }
        Ok(())
    }

    /// Takes back `receives` that [`SendCredits::check_refund`] found right.
    pub(super) fn refund(&mut self, receives: u16) {
        debug_assert!(self.check_refund(receives).is_ok());
        self.left += receives;
    }
}

/// What the peer may send: our receives.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecvCredits {
    posted: u16,
    owed: u16,
    threshold: u16,
}

impl RecvCredits {
    /// This side posted `posted` receives, the peer `peer_posted`.
    pub(super) fn new(posted: u16, peer_posted: u16) -> Self {
        let threshold = match (posted, peer_posted) {
            (LEAST_RECEIVES, LEAST_RECEIVES) => 2,
            _ => (posted / 2).min(RECEIVES_MAX),
        };
        Self { posted, owed: 0, threshold }
    }

    /// Whether the peer may have sent another message.
    pub(super) fn check_arrival(&self) -> Result<(), Violation> {
        if self.owed == self.posted {
            return Err(Violation::NoReceive { posted: self.posted });
        }
        Ok(())
    }

    /// A message that [`RecvCredits::check_arrival`] allowed used a receive.
    pub(super) fn arrived(&mut self) {
        debug_assert!(self.check_arrival().is_ok());
        self.owed += 1;
    }

    /// Whether enough is owed for an update.
    pub(super) fn due(&self) -> bool {
        self.owed >= self.threshold
    }

    /// How many receives the next control word returns.
    pub(super) fn returnable(&self) -> u16 {
        self.owed.min(RECEIVES_MAX)
    }

    /// A control word returns `receives`, at most [`RecvCredits::returnable`].
    pub(super) fn returned(&mut self, receives: u16) {
        debug_assert!(receives <= self.owed);
        self.owed -= receives;
    }
}
