//! Receives, which are posted again when their messages are dropped.

use super::Core;
use crate::Segment;
use crate::typed::TrustedDevice;
use crate::typed::queue_pair::Refused;
use crate::typed::registration::Span;
use crate::typed::slots::{Queue, SlotId, SlotState};

impl<D: TrustedDevice> Core<D> {
    /// Posts memory as a receive of a queue pair that exists.
    pub(in crate::typed) fn post_receive(
        &mut self,
        index: usize,
        span: Span,
        state: SlotState,
    ) -> std::result::Result<SlotId, Refused> {
        let segment = span.segment;
        let id = self.slots.insert(Queue::Recv(index), span.into(), state);
        match self.pairs[index].post_receive::<D>(&mut self.cq, id, segment) {
            Ok(()) => Ok(id),
            Err(error) => Err(Refused { span: self.slots.take(id).0.into_first(), error }),
        }
    }

    /// Takes back the buffer of a message and posts it as a receive again. There is nothing to post if the
    /// program has kept the buffer, or if the queue of the receive is destroyed.
    #[inline]
    pub(in crate::typed) fn return_message(&mut self, id: SlotId, span: &mut Span) {
        let slot = self.slots.of_message(id);
        let segment = Segment { length: span.chunk(), ..span.segment };
        if segment.length == 0 || slot.state != SlotState::Message {
            self.slots.take(id);
            return;
        }
        slot.return_message(span, segment);
        let queue = slot.queue;
        self.repost(id, queue, segment);
    }

    /// Posts the receive of a slot of this queue again, now or when the queue has room, and tells those that
    /// wait for a change of the state. After the end of the connection its buffer goes back to its pool.
    #[inline(always)]
    fn repost(&mut self, id: SlotId, queue: Queue, segment: Segment) {
        let Queue::Recv(index) = queue else { return self.repost_shared(id, queue, segment) };
        let Some(pair) = self.pairs.get_mut(index) else { return };
        match pair.post_receive::<D>(&mut self.cq, id, segment) {
            Ok(()) => pair.watchers.wake(&mut self.woken),
            Err(crate::Error::QueueFull { .. }) => {
                pair.unposted.push(id);
                self.has_unposted = true;
            }
            Err(_) => drop(self.slots.take(id)),
        }
    }

    /// Posts the receive of a slot again, as [`Core::repost`] does.
    #[cold]
    pub(in crate::typed) fn repost_slot(&mut self, id: SlotId) {
        if let Some((queue, segment)) = self.slots.get_mut(id).map(|slot| (slot.queue, slot.segment())) {
            self.repost(id, queue, segment);
        }
    }

    #[cold]
    pub(super) fn post_again(&mut self) {
        self.has_unposted = false;
        for index in 0..self.pairs.capacity() {
            // One that is refused again is the last one then.
            for _ in 0..self.pairs.get(index).map_or(0, |pair| pair.unposted.len()) {
                let id = self.pairs.get_mut(index).and_then(|pair| pair.unposted.pop());
                id.into_iter().for_each(|id| self.repost_slot(id));
            }
        }
        self.post_shared_again();
    }
}
