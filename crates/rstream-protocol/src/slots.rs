//! Entries of the send queue: who may take them, which requests ask for a completion, and what a
//! completion says.
//!
//! The queue has entries for data and [`CONTROL_ENTRIES`] on top. Data stops where only those are
//! left; control takes any. So a side whose data waits for the peer can still return credits.
//!
//! Invariant: **no entry and no staged byte waits for a completion that was not asked for.** A
//! request asks for one when those since the last that did would fill a quarter of the data entries
//! or of the send ring (less, if [`GUARANTEED_ROOM`] needs it). So once all asked-for completions
//! are in, three quarters of both are free.
//!
//! A request's id is how many entries and bytes were posted up to and with it, both modulo 2^32.
//! Less than that is ever outstanding, so a completion needs no table.

use super::setup::GUARANTEED_ROOM;

/// Entries of the send queue that data never takes.
pub const CONTROL_ENTRIES: u32 = 2;

/// How to post a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Work request id; comes back to [`super::Stream::on_sent`].
    pub id: u64,
    /// Whether to ask for a completion. If it takes several requests to post the message, only
    /// the last one asks.
    pub signaled: bool,
}

/// The send queue's entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slots {
    for_data: u32,
    /// Entries posted and completed since the start, modulo 2^32.
    posted: u32,
    completed: u32,
    /// Entries and bytes posted since the last request that asked for a completion.
    silent_entries: u32,
    silent_bytes: u32,
    /// What is reached by the request that asks.
    entry_interval: u32,
    byte_interval: u32,
}

impl Slots {
    /// A queue with `for_data` entries for data (at least 1), over a send ring of `send_ring` bytes.
    pub(super) fn new(for_data: u32, send_ring: u32) -> Self {
        Self {
            for_data,
            posted: 0,
            completed: 0,
            silent_entries: 0,
            silent_bytes: 0,
            entry_interval: (for_data / 4).max(1),
            byte_interval: (send_ring / 4).min(send_ring.saturating_sub(GUARANTEED_ROOM)).max(1),
        }
    }

    /// Entries posted and not known to be done.
    fn in_use(&self) -> u32 {
        self.posted.wrapping_sub(self.completed)
    }

    /// Entries that data may take now.
    pub(super) fn free_for_data(&self) -> u32 {
        self.for_data.saturating_sub(self.in_use())
    }

    /// Whether a control message finds an entry now.
    pub(super) fn free_for_control(&self) -> bool {
        self.in_use() < self.for_data + CONTROL_ENTRIES
    }

    /// Takes `entries` for a message of `bytes` that ends at `end`, a count of all bytes staged.
    pub(super) fn post(&mut self, entries: u32, bytes: u32, end: u64) -> Ticket {
        debug_assert!(self.in_use() + entries <= self.for_data + CONTROL_ENTRIES);
        self.posted = self.posted.wrapping_add(entries);
        self.silent_entries = self.silent_entries.saturating_add(entries);
        self.silent_bytes = self.silent_bytes.saturating_add(bytes);
        let signaled = self.silent_entries >= self.entry_interval || self.silent_bytes >= self.byte_interval;
        if signaled {
            self.silent_entries = 0;
            self.silent_bytes = 0;
        }
        Ticket { id: u64::from(self.posted) << 32 | u64::from(end as u32), signaled }
    }

    /// How many bytes were staged up to the request with this id, modulo 2^32.
    pub(super) fn staged(id: u64) -> u32 {
        id as u32
    }

    /// The request with this id and all before it are done. Answers whether any such was
    /// outstanding.
    pub(super) fn complete(&mut self, id: u64) -> bool {
        let posted = (id >> 32) as u32;
        let done = posted.wrapping_sub(self.completed);
        if done == 0 || done > self.in_use() {
            return false;
        }
        self.completed = posted;
        true
    }
}
