//! The requests of a connection that were posted and whose completions were not taken, in order.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use parking_lot::Mutex;

use crate::domain::{Domain, Timeout, poll_once};
use crate::error::Result;

/// A request of C under way: it becomes the number of bytes received. It owns what it needs.
pub(crate) type Request = Pin<Box<dyn Future<Output = Result<u32>> + Send>>;

/// One of the two queues of a connection.
#[derive(Default)]
pub(crate) struct Queue {
    posted: Mutex<VecDeque<Posted>>,
    /// Held by the thread that waits for the oldest request: a request wakes one thread.
    turn: Mutex<()>,
}

struct Posted {
    /// What C gave with the request.
    context: usize,
    request: Request,
    /// The outcome, if posting has found it already.
    early: Option<Result<u32>>,
}

/// A request that is done.
pub(crate) struct Done {
    pub(crate) context: usize,
    pub(crate) outcome: Result<u32>,
}

impl Queue {
    /// Posts a request, and keeps it if its completion is wanted. `post` makes it, or refuses.
    pub(crate) fn post(
        &self,
        context: usize,
        is_signaled: bool,
        post: impl FnOnce() -> Result<Request>,
    ) -> Result<()> {
        // Requests are kept in the order in which they are posted.
        let mut posted = self.posted.lock();
        let mut request = post()?;
        let early = poll_once(request.as_mut());
        match early {
            Some(Err(error)) => return Err(error),
            early if is_signaled => posted.push_back(Posted { context, request, early }),
            _ => {}
        }
        Ok(())
    }

    /// Number of completions that can be taken, now or later.
    pub(crate) fn len(&self) -> usize {
        self.posted.lock().len()
    }

    /// Waits for the completion of the oldest request. `None`: none is left, or the time is over.
    pub(crate) fn next(&self, domain: &Domain, timeout: Timeout) -> Option<Done> {
        let _turn = match timeout.deadline {
            None => self.turn.lock(),
            Some(deadline) => self.turn.try_lock_until(deadline)?,
        };
        let mut oldest = poll_fn(|context| {
            let mut posted = self.posted.lock();
            let Some(request) = posted.front_mut() else { return Poll::Ready(None) };
            let outcome = match request.early.take() {
                Some(outcome) => outcome,
                None => match request.request.as_mut().poll(context) {
                    Poll::Ready(outcome) => outcome,
                    Poll::Pending => return Poll::Pending,
                },
            };
            Poll::Ready(posted.pop_front().map(|Posted { context, .. }| Done { context, outcome }))
        });
        domain.wait(&mut oldest, timeout).flatten()
    }

    /// Drops all requests: nobody takes their completions any more.
    pub(crate) fn clear(&self) {
        let posted = std::mem::take(&mut *self.posted.lock());
        drop(posted);
    }
}
