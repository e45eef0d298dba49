//! Queue pairs and their connections, from their creation until they are destroyed.

use std::time::{Duration, Instant};

use super::{BATCH, Core, Source};
use crate::timer::later;
use crate::typed::queue_pair::{QueuePair, State};
use crate::typed::slots::Queue;
use crate::typed::{End, TrustedDevice};
use crate::{
    ConnectionEvent, Connections, EventTarget, MessageQueues, QpCapabilities, QpId, QueuePairs, Result,
    Transport,
};

/// Pause before the device is asked again whether the peer's host has everything.
const FLUSH_PAUSE: Duration = Duration::from_millis(2);

impl<D: TrustedDevice> Core<D> {
    /// Creates a queue pair, with receives of its own or shared ones. Returns its index and its id.
    pub(in crate::typed) fn create(
        &mut self,
        wanted: QpCapabilities,
        shared: Option<usize>,
    ) -> Result<(usize, QpId)> {
        let (qp, granted) = match shared.and_then(|index| self.shared.get_mut(index)) {
            Some(shared) => {
                let wanted = QpCapabilities { recv_depth: 0, ..wanted };
                let created = self.cq.create_shared_qp(&self.pd, wanted, shared.srq)?;
                shared.users += 1;
                created
            }
            None => self.cq.create_qp(&self.pd, wanted)?,
        };
        let index = self.pairs.insert(QueuePair::new(qp, granted, shared));
        if shared.is_some() {
            self.sharing.insert(qp, index);
        }
        self.slots.reserve(self.depths());
        self.woken.reserve(BATCH);
        Ok((index, qp))
    }

    /// Number of requests that all queues have room for.
    pub(in crate::typed) fn depths(&self) -> usize {
        let depths = |pair: &QueuePair| pair.granted.send_depth as usize + pair.granted.recv_depth as usize;
        let of_pairs: usize = self.pairs.iter().map(|(_, pair)| depths(pair)).sum();
        of_pairs + self.shared.iter().map(|(_, shared)| shared.depth as usize).sum::<usize>()
    }

    /// A target for the events of a queue pair that connects or accepts.
    pub(in crate::typed) fn attempt(&mut self, index: usize) -> EventTarget {
        let target = EventTarget::new(&self.events);
        self.sources.insert(target.token, Source::QueuePair(index));
        if let Some(pair) = self.pairs.get_mut(index) {
            pair.token = Some(target.token);
            pair.state = State::Attempting;
        }
        // The driver has a deadline more.
        self.kick.set(true);
        target
    }

    /// Takes over the events of a queue pair.
    pub(in crate::typed) fn poll_events(&mut self, index: usize) {
        let Some(pair) = self.pairs.get_mut(index).filter(|pair| pair.token.is_some()) else { return };
        let had_ended = pair.end().is_some();
        while let Some(event) = self.cq.poll_event(pair.qp) {
            pair.apply(event, &mut self.woken);
        }
        pair.ask_again = None;
        // Only InfiniBand adapters have shared receives and may report no end. They receive nothing after
        // this side's end.
        let is_silent = pair.shared.is_none() || self.attributes.transport == Transport::InfiniBand;
        if pair.state == State::Closing && pair.outstanding == 0 && is_silent {
            // A device may report no end to the side that began it, and nothing signals that the peer's host
            // has everything.
            if self.cq.flushed(pair.qp) {
                pair.apply(ConnectionEvent::Disconnected, &mut self.woken);
            } else {
                pair.ask_again = Some(Instant::now() + FLUSH_PAUSE);
            }
        }
        if !had_ended && pair.end().is_some() && pair.shared.is_some() {
            self.begin_draining(index);
        }
    }

    /// Begins the orderly end of an established connection.
    pub(in crate::typed) fn close(&mut self, index: usize) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        if pair.state == State::Established {
            pair.state = State::Closing;
            self.cq.disconnect(pair.qp);
            self.poll_events(index);
            // The driver may have a deadline more.
            self.kick.set(true);
        }
    }

    /// Destroys a queue pair whose owner has dropped it, as soon as its connection has ended and the device
    /// has no request of it. A device that has not got there after the time-out of the connection is cut
    /// short.
    pub(in crate::typed) fn abandon(&mut self, index: usize) {
        self.close(index);
        let Some(pair) = self.pairs.get_mut(index) else { return };
        pair.abandoned = Some(later(Instant::now(), self.options.timeout));
        self.abandoned += 1;
        self.release(index);
        self.kick.set(true);
    }

    /// Destroys a queue pair if it is time.
    pub(super) fn release(&mut self, index: usize) {
        let Some(pair) = self.pairs.get(index) else { return };
        let Some(deadline) = pair.abandoned else { return };
        let is_done = match pair.state {
            // It has sent nothing.
            State::Idle | State::Attempting | State::Ended(End::Failed(_) | End::Rejected { .. }) => true,
            State::Established | State::Closing => false,
            State::Ended(_) => pair.outstanding == 0 && pair.draining.is_none(),
        };
        if !is_done && Instant::now() < deadline {
            return;
        }
        let qp = pair.qp;
        if pair.shared.is_some() {
            self.take_completions();
        }
        self.cq.destroy_qp(qp);
        let is_destroyed = |queue| matches!(queue, Queue::Send(of) | Queue::Recv(of) if of == index);
        self.slots.end(is_destroyed, &mut self.woken);
        let mut pair = self.pairs.remove(index);
        if let Some(shared) = pair.shared {
            self.leave_shared(shared, &mut pair);
        }
        self.abandoned -= 1;
        if let Some(token) = pair.token {
            self.sources.remove(&token);
        }
        pair.receivers.wake(&mut self.woken);
        pair.watchers.wake(&mut self.woken);
    }

    /// Whether nothing is left to do after the last handle is gone.
    pub(in crate::typed) fn is_done(&self) -> bool {
        self.abandoned == 0
    }
}
