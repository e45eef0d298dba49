//! Queue pairs that are to be destroyed, and may have taken shared receives.
//!
//! A driver may drop the completions of a queue pair while it destroys it (`mlx5_destroy_qp`, `mlx4_destroy_qp`, `bnxt_re_destroy_qp`), and
//! with them the only word on the shared receives that it took. So such a queue pair stays for a while in the state
//! Error, in which it takes nothing more, and its completions are polled before.

use std::time::{Duration, Instant};

use super::{Cq, connection};
use crate::SrqId;
use crate::ibv::queue_pair::QueuePair;

/// For how long: the device completes what it has taken within microseconds.
const COMPLETES_WITHIN: Duration = Duration::from_millis(100);

pub(super) struct Retiring {
    queue_pair: QueuePair,
    until: Instant,
}

impl Retiring {
    pub(super) fn new(mut queue_pair: QueuePair) -> Self {
        queue_pair.retire();
        Self { queue_pair, until: Instant::now() + COMPLETES_WITHIN }
    }

    /// Drops the events of the connection manager.
    pub(super) fn drive(&mut self) {
        self.queue_pair.drive();
    }

    pub(super) fn end(self) {
        connection::destroy(self.queue_pair);
    }
}

impl Cq {
    /// Destroys the queue pairs whose time is over. The device's queue was found empty.
    pub(super) fn end_retirements(&mut self) {
        if self.retiring.is_empty() {
            return;
        }
        let now = Instant::now();
        self.retiring.extract_if(.., |one| now >= one.until).for_each(Retiring::end);
    }

    /// Destroys those that use a shared queue, before that is destroyed.
    pub(super) fn end_retirement_of(&mut self, srq: SrqId) {
        let uses = |one: &mut Retiring| one.queue_pair.shared_number() == Some(srq);
        self.retiring.extract_if(.., uses).for_each(Retiring::end);
    }
}
