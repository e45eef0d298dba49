//! Requests that the device has forgotten: they never complete, and are flushed here.
//!
//! A device that is gone completes nothing any more. Soft iWARP forgets requests that are posted to a connection that
//! has ended: its kernel part flushes the requests of a connection once, when it notices the end. A consumer that has
//! not taken the event of the end yet may post more. The user library puts these into queues that the kernel part looks
//! at no more, so they never complete. After the event none can be posted, and the kernel part has flushed what it will.
//! What is still outstanding when the device's completion queue is empty is then flushed.

use super::Cq;
use crate::ibv::outstanding::Posted;
use crate::ibv::queue_pair::QueuePair;
use crate::{Completion, CompletionStatus, ConnectionEvent, QpId};

impl Cq {
    /// Notes that the consumer takes this event of a queue pair.
    pub(super) fn note_event(&mut self, qp: QpId, event: &ConnectionEvent) {
        let is_end = matches!(event, ConnectionEvent::Disconnected | ConnectionEvent::Broken(_));
        if is_end && self.queue.context.is_soft_iwarp() {
            self.forgotten.push(qp);
        }
    }

    /// Notes the requests of all connections that have ended, because the device is gone.
    #[cold]
    pub(super) fn note_all_outstanding(&mut self) {
        let outstanding = self.queue_pairs.iter().filter(|queue_pair| queue_pair.has_ended_unflushed());
        self.forgotten = outstanding.map(|queue_pair| queue_pair.number).collect();
    }

    /// Flushes requests that the device has forgotten, if its queue is empty. Returns how many completions the
    /// consumer gets.
    #[inline(never)]
    pub(super) fn flush_forgotten(&mut self, out: &mut [Completion]) -> usize {
        let mut count = 0;
        while count < out.len()
            && let Some(&qp) = self.forgotten.last()
        {
            match self.get_mut(qp).and_then(flush_oldest) {
                Some(completion) => {
                    out[count] = completion;
                    count += 1;
                }
                None => _ = self.forgotten.pop(),
            }
        }
        count
    }
}

/// Flushes the oldest outstanding request of the consumer.
fn flush_oldest(queue_pair: &mut QueuePair) -> Option<Completion> {
    if queue_pair.context().is_gone() {
        // Else the device might still access the memory of the requests.
        queue_pair.release_device();
    }
    let (qp, status) = (queue_pair.number, CompletionStatus::Flushed);
    [&mut queue_pair.sends, &mut queue_pair.receives].into_iter().find_map(|outstanding| {
        while let Some(oldest) = outstanding.oldest() {
            if let Posted::User { id, kind, .. } = outstanding.complete(oldest)? {
                return Some(Completion { qp, id, kind, status, ..Completion::EMPTY });
            }
        }
        None
    })
}
