//! The entries of a queue pair's queues, and who holds them: a request until its completion is
//! polled, one that completes in silence until it is done.
//!
//! The machine counts the requests that are not done. Those whose completion waits to be polled are
//! counted here, in the completion queue itself, and only when so many wait that it matters.

use std::collections::VecDeque;

use crate::{Completion, CompletionKind, Error, QpId, Result};

/// Which queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Recv,
    /// Of a queue pair for messages: the peer's writes take none of its entries.
    MessageRecv,
}

/// One queue of a queue pair.
pub(super) struct Entries {
    pub(super) qp: QpId,
    pub(super) queue: Queue,
    /// Entries in all.
    pub(super) depth: u32,
    /// Entries that no request holds which is not done.
    pub(super) free: usize,
}

impl Entries {
    /// Refuses `asked` more requests, if they do not fit beside those whose completions are in
    /// `ready`.
    #[inline]
    pub(super) fn check(&self, asked: usize, ready: &VecDeque<Completion>) -> Result<()> {
        // Seldom do so many wait that it matters whose they are.
        if asked + ready.len() <= self.free { Ok(()) } else { self.check_exactly(asked, ready) }
    }

    #[cold]
    fn check_exactly(&self, asked: usize, ready: &VecDeque<Completion>) -> Result<()> {
        let held = ready.iter().filter(|completion| self.holds(completion)).count();
        let room = self.free.saturating_sub(held);
        if asked <= room {
            return Ok(());
        }
        let depth = self.depth;
        Err(Error::QueueFull { depth, room: u32::try_from(room).unwrap_or(depth), asked })
    }

    fn holds(&self, completion: &Completion) -> bool {
        let holds = match completion.kind {
            CompletionKind::Send | CompletionKind::Write | CompletionKind::Read => self.queue == Queue::Send,
            CompletionKind::Recv => self.queue != Queue::Send,
            CompletionKind::RecvWrite => self.queue == Queue::Recv,
        };
        completion.qp == self.qp && holds
    }
}
