//! The state of a shard: the device's objects, the requests in flight, and what waits for them. Everything
//! here runs under the lock of the shard, takes none but those of pools, and wakes no task: see
//! [`Core::woken`].

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use slab::Slab;

use super::End;
use super::TrustedDevice;
use super::device_events::Watching;
use super::queue_pair::{QueuePair, Refused, State};
use super::registration::Span;
use super::shared::SharedQueue;
use super::slots::{NO_SLOT, Queue, SlotId, SlotState, Slots};
use super::waiters::Waiters;
use crate::wait::REPORTED;
use crate::{
    ANY_DEPTH, Completion, CompletionQueue, CompletionStatus, ConnectOptions, ConnectionEvent, Connections,
    DeviceAttributes, EventTarget, Interest, Listener, MessageQueues, QpCapabilities, QpId, QueuePairs,
    Result, Segment, Signal, Timer, Token, Transport, WaitSet,
};

/// Completions that one poll of the queue takes.
const BATCH: usize = 16;
/// Polls of one turn.
const POLLS: usize = 16;
/// Pause before the device is asked again whether the peer's host has everything.
const FLUSH_PAUSE: Duration = Duration::from_millis(2);

/// Whether a turn found something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// There may be more to do now.
    Busy,
    /// Until the shard's descriptor is readable there is nothing to do.
    Idle,
}

/// What a token of the events stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    QueuePair(usize),
    Listener(usize),
    Device(usize),
}

/// A listener, and the requests that nobody has taken.
pub(super) struct Listening<D: TrustedDevice> {
    pub(super) listener: D::Listener,
    token: Token,
    pub(super) requests: VecDeque<D::Request>,
    backlog: usize,
    pub(super) watchers: Waiters,
}

/// See the module. The completion queue is dropped first: then no device uses the memory of the slots.
pub(super) struct Core<D: TrustedDevice> {
    pub(super) cq: D::Cq,
    pub(super) pd: D::Pd,
    pub(super) device: D,
    pub(super) attributes: DeviceAttributes,
    pub(super) options: ConnectOptions,
    pub(super) pairs: Slab<QueuePair>,
    pub(super) listeners: Slab<Listening<D>>,
    pub(super) slots: Slots,
    /// Wakers of tasks to wake when the lock is released.
    pub(super) woken: Vec<Waker>,
    batch: [Completion; BATCH],
    /// Those who wait for the events of the device.
    pub(super) watching: Slab<Watching>,
    pub(super) sources: BTreeMap<Token, Source>,
    /// Queues of receives that queue pairs share, and these queue pairs.
    pub(super) shared: Slab<SharedQueue>,
    pub(super) sharing: BTreeMap<QpId, usize>,
    /// Number of completions that were polled.
    pub(super) completed: u64,
    /// Number of queue pairs that are [draining](QueuePair::draining).
    pub(super) draining: usize,
    /// Number of queue pairs whose owners have dropped them.
    abandoned: usize,
    /// Whether a queue pair has buffers to post as receives again.
    pub(super) has_unposted: bool,
    /// Readable when something below is: the shard's descriptor.
    pub(super) wait: Arc<WaitSet>,
    /// Readable when a queue pair's connection, a listener or the device has something to report.
    pub(super) events: Arc<WaitSet>,
    events_token: Token,
    /// Expires at the earliest deadline.
    timer: Timer,
    expires: Option<Instant>,
    /// Makes a sleeping driver take a turn.
    pub(super) kick: Signal,
    tokens: Vec<Token>,
}

impl<D: TrustedDevice> Core<D> {
    pub(super) fn new(device: D, options: ConnectOptions) -> Result<Self> {
        let (wait, events) = (Arc::new(WaitSet::new()?), Arc::new(WaitSet::new()?));
        let data = Arc::new(WaitSet::new()?);
        let timer = Timer::new()?;
        let events_token = wait.token();
        wait.add(events.as_fd(), events_token, Interest::Read)?;
        wait.add(data.as_fd(), wait.token(), Interest::Read)?;
        wait.add(timer.as_fd(), wait.token(), Interest::Read)?;
        let mut cq = device.create_cq(ANY_DEPTH)?;
        cq.attach(data)?;
        Ok(Self {
            cq,
            pd: device.alloc_pd()?,
            attributes: device.attributes(),
            device,
            options,
            pairs: Slab::new(),
            listeners: Slab::new(),
            slots: Slots::default(),
            woken: Vec::new(),
            batch: [Completion::EMPTY; BATCH],
            watching: Slab::new(),
            sources: BTreeMap::new(),
            shared: Slab::new(),
            sharing: BTreeMap::new(),
            completed: 0,
            draining: 0,
            abandoned: 0,
            has_unposted: false,
            events,
            events_token,
            timer,
            expires: None,
            kick: wait.signal(wait.token()),
            wait,
            // A busy shard may wait for the first time after many operations, which allocate nothing.
            tokens: Vec::with_capacity(REPORTED),
        })
    }

    /// Polls the completion queue once. Returns whether there were completions.
    pub(super) fn reap(&mut self) -> bool {
        let count = self.poll();
        self.complete_from(0, count);
        count > 0
    }

    /// Polls the completion queue once, for a program that waits for this queue pair's next message, and whose
    /// inbox is empty. A message that is the first completion does not go through the inbox.
    #[inline]
    pub(super) fn reap_message(&mut self, index: usize) -> Option<SlotId> {
        let count = self.poll();
        if count > 0 && self.complete_message(index) {
            self.complete_from(1, count);
            return Some(self.first_id());
        }
        self.complete_from(0, count);
        self.pairs[index].inbox.pop_front()
    }

    /// Handles the first completion of the last poll, if it is a message of this queue pair.
    #[inline]
    fn complete_message(&mut self, index: usize) -> bool {
        if !self.slots.finish_message(Queue::Recv(index), &self.batch[0]) {
            return false;
        }
        let pair = &mut self.pairs[index];
        pair.outstanding -= 1;
        pair.receives -= 1;
        pair.receivers.wake(&mut self.woken);
        if pair.is_closed_and_idle() {
            self.poll_events(index);
        }
        true
    }

    /// Notes that the future with this ticket waits for no message of this queue pair any more.
    #[cold]
    pub(super) fn stop_waiting(&mut self, index: usize, ticket: &mut Option<u64>) {
        self.pairs[index].receivers.remove(ticket.take(), &mut self.woken);
    }

    /// Polls the completion queue once, without handling what has completed.
    #[inline]
    pub(super) fn poll(&mut self) -> usize {
        let count = self.cq.poll(&mut self.batch);
        self.completed += count as u64;
        count
    }

    /// The id of the first completion of the last poll.
    #[inline]
    pub(super) fn first_id(&self) -> SlotId {
        SlotId(self.batch[0].id)
    }

    /// The status of the first completion of the last poll.
    #[inline]
    pub(super) fn first_status(&self) -> CompletionStatus {
        self.batch[0].status
    }

    /// Handles those of the `count` completions of the last poll that are not handled: from this one on.
    #[inline]
    pub(super) fn complete_from(&mut self, first: usize, count: usize) {
        if first < count {
            self.complete_all(first, count);
        }
        if self.has_unposted {
            self.post_again();
        }
    }

    #[inline(never)]
    fn complete_all(&mut self, first: usize, count: usize) {
        (first..count).for_each(|at| self.complete(at));
    }

    /// Handles a completion of the last poll.
    #[inline]
    fn complete(&mut self, at: usize) {
        let completion = &self.batch[at];
        let id = SlotId(completion.id);
        let Some(slot) = self.slots.get_mut(id) else { return without_slot(completion) };
        let failed = completion.status != CompletionStatus::Success;
        let (index, is_receive) = match slot.queue {
            Queue::Send(index) => (index, false),
            Queue::Recv(index) => (index, true),
            Queue::Shared(index) => return self.complete_shared(index, *completion),
        };
        let Some(pair) = self.pairs.get_mut(index) else { return };
        pair.outstanding -= 1;
        if is_receive {
            pair.receives -= 1;
            pair.receivers.wake(&mut self.woken);
        }
        // The connection has the reason of a failure. If this side closes, its last request may be done.
        let is_event_due = failed || pair.is_closed_and_idle();
        match slot.state {
            SlotState::Future => slot.finish(completion, &mut self.woken),
            SlotState::Inbox if !failed => {
                slot.completion = *completion;
                pair.inbox.push_back(id);
            }
            // The device has none in another state.
            _ => drop(self.slots.take(id)),
        }
        if is_event_due {
            self.poll_events(index);
        }
    }

    /// Whether all these requests of a future are done. If not, it polls the completion queue once before it
    /// registers the task.
    pub(super) fn are_done(&mut self, requests: &[SlotId], waker: &Waker) -> bool {
        self.slots.are_done(requests) || {
            self.reap();
            self.are_done_now(requests, waker)
        }
    }

    /// Whether all these requests of a future are done. If not, it registers the task.
    pub(super) fn are_done_now(&mut self, requests: &[SlotId], waker: &Waker) -> bool {
        let incomplete = requests.iter().copied().find(|&id| !self.slots.is_done(id));
        incomplete.into_iter().for_each(|id| self.slots.register(id, waker, &mut self.woken));
        incomplete.is_none()
    }

    /// Posts memory as a receive of a queue pair that exists.
    pub(super) fn post_receive(
        &mut self,
        index: usize,
        span: Span,
        state: SlotState,
    ) -> std::result::Result<SlotId, Refused> {
        let segment = span.segment;
        let id = self.slots.insert(Queue::Recv(index), span.into(), state);
        match self.pairs[index].post_receive(&mut self.cq, id, segment) {
            Ok(()) => Ok(id),
            Err(error) => Err(Refused { span: self.slots.take(id).0.into_first(), error }),
        }
    }

    /// Takes back the buffer of a message and posts it as a receive again. If the program has kept the buffer,
    /// or if the queue of the receive is destroyed, there is nothing to post.
    #[inline]
    pub(super) fn return_message(&mut self, id: SlotId, span: &mut Span) {
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
        match pair.post_receive(&mut self.cq, id, segment) {
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
    pub(super) fn repost_slot(&mut self, id: SlotId) {
        if let Some((queue, segment)) = self.slots.get_mut(id).map(|slot| (slot.queue, slot.segment())) {
            self.repost(id, queue, segment);
        }
    }

    #[cold]
    fn post_again(&mut self) {
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

    /// Creates a queue pair, with receives of its own or shared ones. Returns its index and its id.
    pub(super) fn create(&mut self, wanted: QpCapabilities, shared: Option<usize>) -> Result<(usize, QpId)> {
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
    pub(super) fn depths(&self) -> usize {
        let depths = |pair: &QueuePair| pair.granted.send_depth as usize + pair.granted.recv_depth as usize;
        let of_pairs: usize = self.pairs.iter().map(|(_, pair)| depths(pair)).sum();
        of_pairs + self.shared.iter().map(|(_, shared)| shared.depth as usize).sum::<usize>()
    }

    /// A target for the events of a queue pair that connects or accepts.
    pub(super) fn attempt(&mut self, index: usize) -> EventTarget {
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
    pub(super) fn poll_events(&mut self, index: usize) {
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
    pub(super) fn close(&mut self, index: usize) {
        let Some(pair) = self.pairs.get_mut(index) else { return };
        if pair.state == State::Established {
            pair.state = State::Closing;
            self.cq.disconnect(pair.qp);
            self.poll_events(index);
            // The driver may have a deadline more.
            self.kick.set(true);
        }
    }

    /// Listens. Returns the index of the listener, and its address with the actual port.
    pub(super) fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<(usize, SocketAddr)> {
        let target = EventTarget::new(&self.events);
        let token = target.token;
        let listener = self.device.listen(address, backlog, &self.options, target)?;
        let address = listener.local_address();
        let (requests, watchers) = (VecDeque::new(), Waiters::default());
        let backlog = backlog as usize;
        let index = self.listeners.insert(Listening { listener, token, requests, backlog, watchers });
        self.sources.insert(token, Source::Listener(index));
        self.kick.set(true);
        Ok((index, address))
    }

    pub(super) fn stop_listening(&mut self, index: usize) {
        if let Some(mut listening) = self.listeners.try_remove(index) {
            self.sources.remove(&listening.token);
            listening.watchers.wake(&mut self.woken);
        }
    }

    /// Takes over the requests of a listener. Those that its backlog has no room for are cut.
    pub(super) fn poll_listener(&mut self, index: usize) {
        let Some(listening) = self.listeners.get_mut(index) else { return };
        while let Some(request) = listening.listener.poll() {
            if listening.requests.len() < listening.backlog {
                listening.requests.push_back(request);
            }
            listening.watchers.wake(&mut self.woken);
        }
    }

    /// Destroys a queue pair whose owner has dropped it, as soon as its connection has ended and the device
    /// has no request of it. A device that has not got there after the time-out of the connection is cut
    /// short.
    pub(super) fn abandon(&mut self, index: usize) {
        self.close(index);
        let Some(pair) = self.pairs.get_mut(index) else { return };
        pair.abandoned = Some(Instant::now() + self.options.timeout);
        self.abandoned += 1;
        self.release(index);
        self.kick.set(true);
    }

    /// Destroys a queue pair if it is time.
    fn release(&mut self, index: usize) {
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
    pub(super) fn is_done(&self) -> bool {
        self.abandoned == 0
    }

    /// Does what there is to do, up to a bound. After [`Turn::Idle`] the next event makes the shard's
    /// descriptor readable, and it was not readable before: so it is an edge too.
    pub(super) fn turn(&mut self) -> Result<Turn> {
        self.kick.set(false);
        let mut is_busy = (0..POLLS).take_while(|_| self.reap()).count() > 0;
        // What completed before is found by a poll after arming.
        is_busy |= self.cq.arm()? && self.reap();
        is_busy |= self.poll_due();
        self.release_all();
        self.set_timer()?;
        self.tokens.clear();
        // A look into the set also forgets what was ready and is not any more. Otherwise such a source would
        // be no edge when it becomes ready again.
        is_busy |= self.wait.wait(Some(Duration::ZERO), &mut self.tokens)?;
        if self.draining > 0 {
            self.finish_draining(!is_busy);
        }
        if self.tokens.contains(&self.events_token) {
            self.poll_sources()?;
        }
        Ok(if is_busy { Turn::Busy } else { Turn::Idle })
    }

    /// Polls the queue pairs and listeners whose tokens are reported.
    fn poll_sources(&mut self) -> Result<()> {
        self.tokens.clear();
        self.events.wait(Some(Duration::ZERO), &mut self.tokens)?;
        let tokens = std::mem::take(&mut self.tokens);
        for token in &tokens {
            self.poll_source(self.sources.get(token).copied());
        }
        self.tokens = tokens;
        Ok(())
    }

    fn poll_source(&mut self, source: Option<Source>) {
        match source {
            Some(Source::QueuePair(index)) => self.poll_events(index),
            Some(Source::Listener(index)) => self.poll_listener(index),
            Some(Source::Device(index)) => self.poll_device(index),
            // It was dropped.
            None => {}
        }
    }

    fn deadline(&self, source: Source) -> Option<Instant> {
        match source {
            Source::QueuePair(index) => {
                let pair = self.pairs.get(index)?;
                self.cq.deadline(pair.qp).into_iter().chain(pair.abandoned).chain(pair.ask_again).min()
            }
            Source::Listener(index) => self.listeners.get(index)?.listener.deadline(),
            Source::Device(_) => None,
        }
    }

    /// Polls the sources whose deadlines have come. Returns whether there were any.
    fn poll_due(&mut self) -> bool {
        if self.expires.is_none_or(|expires| Instant::now() < expires) {
            return false;
        }
        let _ = self.timer.take();
        self.expires = None;
        let sources: Vec<_> = self.sources.values().copied().collect();
        for source in sources {
            // A device whose event is ready returns the time of the call.
            if self.deadline(source).is_some_and(|deadline| deadline <= Instant::now()) {
                self.poll_source(Some(source));
            }
        }
        true
    }

    fn release_all(&mut self) {
        if self.abandoned > 0 {
            (0..self.pairs.capacity()).for_each(|index| self.release(index));
        }
        (0..self.shared.capacity()).for_each(|index| self.release_shared(index));
    }

    /// Has the timer expire at the earliest deadline.
    fn set_timer(&mut self) -> Result<()> {
        let expires = self.sources.values().filter_map(|&source| self.deadline(source)).min();
        if expires != self.expires {
            self.timer.set(expires)?;
            self.expires = expires;
        }
        Ok(())
    }
}

/// Handles the completion of a request that has no slot.
#[cold]
fn without_slot(completion: &Completion) {
    if completion.id != NO_SLOT {
        log::debug!("completion of an unknown request: {completion:?}");
    }
}
