//! Posting requests that may leave together: see [`super::super::cork`].

use std::time::Instant;

use super::CompletionQueue;
use crate::iwarp::cork::MAX_PAYLOAD;
use crate::{Operation, QpId, QueuePairs as _, Result, SendRequest};

impl CompletionQueue {
    /// See [`MessageQueues::post_corked`](crate::MessageQueues::post_corked).
    #[inline]
    pub(super) fn post_in_series(
        &mut self,
        qp: QpId,
        requests: &[SendRequest<'_>],
        more: bool,
    ) -> Result<()> {
        if self.cork.has_series() {
            return self.post_later(qp, requests, more);
        }
        self.cork.begin(qp);
        self.post_send(qp, requests, more)
    }

    #[inline(never)]
    fn post_later(&mut self, qp: QpId, requests: &[SendRequest<'_>], more: bool) -> Result<()> {
        let length: usize = requests.iter().map(|request| request.payload.len()).sum();
        if more || length > MAX_PAYLOAD || !self.cork.is_of(qp) {
            let keeping = self.cork.end(Instant::now);
            self.push(keeping);
            self.cork.begin(qp);
            return self.post_send(qp, requests, more);
        }
        let sent = requests.iter().filter(|request| !matches!(request.operation, Operation::Read { .. }));
        let sent = sent.map(|request| request.payload.len()).sum();
        let waits = self.cork.add(sent, Instant::now);
        let posted = if waits {
            self.with(qp, |pair, ready, sets| pair.post_kept_send(requests, ready, sets))
                .and_then(|posted| posted)
        } else {
            self.post_send(qp, requests, more)
        };
        self.cork.added(waits, Instant::now);
        posted
    }

    /// Sends what waits in a socket: the consumer polls.
    #[inline]
    pub(super) fn end_series(&mut self) {
        if self.cork.has_series() {
            let keeping = self.cork.end(Instant::now);
            self.push(keeping);
        }
    }

    #[inline]
    fn push(&mut self, keeping: Option<QpId>) {
        if let Some(Ok(at)) = keeping.map(|qp| self.position(qp)) {
            self.pairs[at].push_output();
        }
    }
}
