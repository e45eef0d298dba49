//! Single requests of the typed layer, by shorter ways. What these do not take goes the usual way.

use std::slice;

use super::{CompletionQueue, Delivery};
use crate::iwarp::membership::PollSets;
use crate::{Completion, CompletionQueue as _, QpId, QueuePairs as _, RecvRequest, Result, SendRequest};

impl CompletionQueue {
    /// See [`TrustedDevice::post_and_poll`](crate::typed::TrustedDevice::post_and_poll).
    pub(crate) fn post_and_poll(
        &mut self,
        qp: QpId,
        request: &SendRequest<'_>,
        out: &mut [Completion],
    ) -> Result<usize> {
        let at = self.position(qp)?;
        let sets = PollSets { attached: self.attached.as_ref(), own: self.own_set.as_ref() };
        let mut delivery = Delivery { out, filled: 0, rest: &mut self.ready };
        // If it is done at once, its completion does not go through the queue. Those that wait there precede it.
        let is_sent = delivery.rest.is_empty() && self.pairs[at].send_at_once(request, &mut delivery, sets);
        let count = delivery.filled;
        if count > 0 {
            self.finish_call();
            return Ok(count);
        }
        if !is_sent {
            self.post_send(qp, slice::from_ref(request), false)?;
        }
        Ok(self.poll(out))
    }

    /// See [`TrustedDevice::post_checked_recv`](crate::typed::TrustedDevice::post_checked_recv).
    pub(crate) fn post_checked_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<()> {
        let at = self.position(qp)?;
        if self.pairs[at].add_receive(request, self.ready.len()) {
            return Ok(());
        }
        self.post_recv(qp, slice::from_ref(request))
    }
}
