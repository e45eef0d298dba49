//! Accounting of the entries of a queue pair's send and receive queue.
//!
//! A request holds its entry until its completion is polled, and an unsignaled one until it is done. The
//! machine counts the requests that are not done. Requests whose completions wait to be polled are not
//! counted: this module finds them in the completion queue when it matters.

use std::collections::VecDeque;

use crate::{Completion, CompletionKind, Error, QpId, Result};

/// The kind of a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Send,
    Recv,
    /// The receive queue of a queue pair for messages. The peer's writes take none of its entries.
    MessageRecv,
}

/// The entries of one queue.
pub(super) struct Entries {
    pub(super) qp: QpId,
    pub(super) queue: Queue,
    /// The number of all entries.
    pub(super) depth: u32,
    /// The number of entries that are not held by a request that is not done.
    pub(super) free: usize,
}

impl Entries {
    /// Checks that `asked` more requests fit. `ready` has the completions that wait to be polled.
    #[inline]
    pub(super) fn check(&self, asked: usize, ready: &VecDeque<Completion>) -> Result<()> {
        // If they fit even beside all that wait, it does not matter to which queue those belong.
        if asked + ready.len() <= self.free { Ok(()) } else { self.check_exactly(asked, ready) }
    }

    #[cold]
    fn check_exactly(&self, asked: usize, ready: &VecDeque<Completion>) -> Result<()> {
        let room = self.room(ready);
        if asked <= room {
            return Ok(());
        }
        let depth = self.depth;
        Err(Error::QueueFull { depth, room: u32::try_from(room).unwrap_or(depth), asked })
    }

    /// How many more requests fit.
    pub(super) fn room(&self, ready: &VecDeque<Completion>) -> usize {
        self.free.saturating_sub(ready.iter().filter(|completion| self.holds(completion)).count())
    }

    /// Whether the request of `completion` holds an entry of this queue.
    fn holds(&self, completion: &Completion) -> bool {
        let holds = match completion.kind {
            CompletionKind::Send | CompletionKind::Write | CompletionKind::Read => self.queue == Queue::Send,
            CompletionKind::Recv => self.queue != Queue::Send,
            CompletionKind::RecvWrite => self.queue == Queue::Recv,
        };
        completion.qp == self.qp && holds
    }
}
