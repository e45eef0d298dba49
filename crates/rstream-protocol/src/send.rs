//! The sending half: room in the peer's ring, staging in the send ring, credits and send-queue
//! entries, taken together or not at all.

use super::Violation;
use super::credits::SendCredits;
use super::ring::Ring;
use super::setup::Setup;
use super::slots::{Slots, Ticket};
use super::words::Control;

/// One data message: where its bytes are staged and where they go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) remote_index: u32,
    pub(super) local_index: u32,
    pub(super) length: u32,
    pub(super) ticket: Ticket,
}

/// What this side may send, and what of it is on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sender {
    peer_ring: Ring,
    staging: Ring,
    credits: SendCredits,
    slots: Slots,
    /// Longest data message, in bytes.
    longest: u32,
    /// Send-queue entries that a data message takes.
    entries: u32,
}

impl Sender {
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            peer_ring: Ring::new(setup.peer_ring),
            staging: Ring::new(setup.send_ring),
            credits: SendCredits::new(setup.peer_receives),
            slots: Slots::new(setup.send_depth, setup.send_ring),
            longest: setup.max_message.min(setup.words.longest_data()),
            entries: setup.words.data_entries(),
        }
    }

    /// Bytes that can be sent now, over all messages that it takes.
    pub(super) fn sendable(&self) -> u32 {
        let room = self.peer_ring.room().min(self.staging.room());
        let mut messages = self.messages();
        let (mut to_peer_wrap, mut to_staging_wrap) =
            (self.peer_ring.until_wrap(), self.staging.until_wrap());
        let mut sum = 0;
        // Each ring wraps at most once within its room: at most three pieces between wraps, each
        // of as many messages as its length takes.
        while messages > 0 && sum < room {
            let piece = (room - sum).min(to_peer_wrap).min(to_staging_wrap);
            let needed = piece.div_ceil(self.longest);
            if needed > messages {
                return sum + messages * self.longest;
            }
            messages -= needed;
            sum += piece;
            to_peer_wrap = beyond(to_peer_wrap, piece, self.peer_ring.size());
            to_staging_wrap = beyond(to_staging_wrap, piece, self.staging.size());
        }
        sum
    }

    /// Takes what the next message of up to `at_most` bytes needs; `None` if something of it is
    /// missing.
    pub(super) fn next_piece(&mut self, at_most: usize) -> Option<Piece> {
        let length = self
            .peer_ring
            .room()
            .min(self.peer_ring.until_wrap())
            .min(self.staging.room())
            .min(self.staging.until_wrap())
            .min(self.longest)
            .min(u32::try_from(at_most).unwrap_or(u32::MAX));
        if length == 0 || self.messages() == 0 {
            return None;
        }
        self.credits.spend();
        let remote = self.peer_ring.take(length);
        let local = self.staging.take(length);
        let ticket = self.slots.post(self.entries, length, self.staging.next().offset);
        Some(Piece { remote_index: remote.index, local_index: local.index, length, ticket })
    }

    /// Takes what a control message needs, which may take the last credit or not; `None` if something
    /// of it is missing.
    pub(super) fn next_control(&mut self, may_be_last: bool) -> Option<Ticket> {
        if !self.credits.allow_control(may_be_last) || !self.slots.free_for_control() {
            return None;
        }
        self.credits.spend();
        Some(self.slots.post(1, 0, self.staging.next().offset))
    }

    /// The request with this id is done, and all before it.
    pub(super) fn on_sent(&mut self, id: u64) {
        let bytes = Slots::staged(id).wrapping_sub(self.staging.freed() as u32);
        if bytes <= self.staging.in_use() && self.slots.complete(id) {
            self.staging.free(bytes);
        }
    }

    /// The peer gave back room and receives: all of it is right, or nothing is taken.
    pub(super) fn on_control(&mut self, control: Control) -> Result<(), Violation> {
        let outstanding = self.peer_ring.in_use();
        if control.bytes > outstanding {
            return Err(Violation::ExcessBytes { freed: control.bytes, outstanding });
        }
        self.credits.check_refund(control.receives)?;
        self.peer_ring.free(control.bytes);
        self.credits.refund(control.receives);
        Ok(())
    }

    /// Bytes of all pieces so far.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.peer_ring.next().offset
    }

    /// Of these, bytes whose room in the peer's ring was not returned.
    pub(super) fn outstanding_bytes(&self) -> u32 {
        self.peer_ring.in_use()
    }

    /// Data messages that credits and the send queue allow now.
    fn messages(&self) -> u32 {
        u32::from(self.credits.data_messages()).min(self.slots.free_for_data() / self.entries)
    }
}

/// Distance to the wrap after `piece` bytes more, at most the distance before, in a ring of `size`.
fn beyond(to_wrap: u32, piece: u32, size: u32) -> u32 {
    if piece == to_wrap { size } else { to_wrap - piece }
}
