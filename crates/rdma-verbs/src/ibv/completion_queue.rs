//! The completion queue and the queue pairs that report to it.

mod connections;
mod device_queue;
mod forgotten;
mod retiring;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rdma_sys as sys;
use rustix::time::{ClockId, Timespec, clock_gettime};

pub(super) use device_queue::Queue;

use super::cm::Channel;
use super::connection::{self, add_channel};
use super::device::Context;
use super::memory::Pd;
use super::queue_pair::{LAST_NUMBER, Purpose, QueuePair, number_of};
use super::shared_queue::{self, SharedQueue};
use crate::{
    self as verbs, ANY_DEPTH, Completion, Error, EventTarget, Interest, QpCapabilities, QpId, RecvRequest,
    Result, SendRequest, SrqId, Timer, WaitSet,
};
use retiring::Retiring;

/// Most completions polled from the device in one call.
const BATCH: usize = 16;

/// After so many empty polls the connection manager is polled as well, at most once per tick of the coarse
/// clock. It costs a system call, which a caller that polls in a loop must not pay in every poll.
const EMPTY_POLLS: u32 = 64;

/// A completion queue with its queue pairs.
pub struct Cq {
    /// Sorted by number.
    queue_pairs: Vec<QueuePair>,
    last_number: u32,
    shared: BTreeMap<SrqId, Arc<SharedQueue>>,
    last_shared: u32,
    /// The queue pair of a number by which the device names it: of those with shared receives.
    by_wire: BTreeMap<u32, u32>,
    queue: Arc<Queue>,
    /// For a queue of [`ANY_DEPTH`].
    room: Option<Room>,
    /// Completions that queue pairs may have left which are destroyed.
    left_behind: u32,
    /// Queue pairs that have ended, and may have requests that the device has forgotten.
    forgotten: Vec<QpId>,
    /// Queue pairs that are to be destroyed when their completions are polled.
    retiring: Vec<Retiring>,
    /// The target that completions and the ends of connections wake.
    wait: Option<EventTarget>,
    /// A source of that wait set. It wakes a sleeping caller, because a peer's host has to be probed even if
    /// nothing completes.
    keepalive_timer: Option<Timer>,
    /// The keep-alive time of the latest connection.
    keepalive: Option<Duration>,
    /// Whether a notification was requested that was not read from the channel yet.
    armed: bool,
    empty_polls: u32,
    /// When the connection manager was polled last.
    cm_polled: Timespec,
}

/// Completions for which the device's queue has room: now, and at most.
#[derive(Clone, Copy)]
struct Room {
    now: u32,
    most: u32,
}

impl Cq {
    pub(super) fn create(context: &Arc<Context>, depth: u32) -> Result<Self> {
        let depths = (depth == ANY_DEPTH).then(|| context.any_depths()).transpose()?;
        let room = depths.map(|(now, most)| Room { now, most });
        Ok(Self {
            queue: Arc::new(Queue::create(context, room.map_or(depth, |room| room.now))?),
            queue_pairs: Vec::new(),
            last_number: 0,
            shared: BTreeMap::new(),
            last_shared: 0,
            by_wire: BTreeMap::new(),
            room,
            left_behind: 0,
            forgotten: Vec::new(),
            retiring: Vec::new(),
            wait: None,
            keepalive_timer: None,
            keepalive: None,
            armed: false,
            empty_polls: 0,
            cm_polled: now_coarse(),
        })
    }

    fn get(&self, qp: QpId) -> Option<&QueuePair> {
        position(&self.queue_pairs, qp).map(|at| &self.queue_pairs[at])
    }

    fn get_mut(&mut self, qp: QpId) -> Option<&mut QueuePair> {
        position(&self.queue_pairs, qp).map(|at| &mut self.queue_pairs[at])
    }

    fn queue_pair(&mut self, qp: QpId, what: &'static str) -> Result<&mut QueuePair> {
        self.get_mut(qp).ok_or(Error::BadState { state: "unknown", what })
    }

    /// Polls one batch from the device. Returns how many completions of it the consumer gets in `out`, and
    /// whether the device may have more; or `None` if the batch is empty.
    fn poll_batch(&mut self, out: &mut [Completion]) -> Option<(usize, bool)> {
        let mut batch = [const { MaybeUninit::uninit() }; BATCH];
        let batch = self.queue.poll(&mut batch, out.len());
        let is_full = batch.len() == BATCH.min(out.len());
        if batch.is_empty() {
            self.left_behind = 0;
            return None;
        }
        let mut count = 0;
        for work in batch {
            if let Some((srq, at)) = shared_queue::place_of(work.wr_id) {
                if let Some(completion) = self.take_shared(work, srq, at) {
                    out[count] = completion;
                    count += 1;
                }
                continue;
            }
            // Completions of a destroyed queue pair are dropped.
            let Some(queue_pair) = self.get_mut(QpId(number_of(work.wr_id))) else { continue };
            if let Some(completion) = queue_pair.take(work) {
                out[count] = completion;
                count += 1;
            }
            queue_pair.close_when_flushed();
        }
        Some((count, is_full))
    }

    /// Posts sends. Returns how many the device took.
    pub(crate) fn post_some(&mut self, qp: QpId, requests: &[SendRequest<'_>]) -> (usize, Result<()>) {
        match self.queue_pair(qp, "post_send") {
            Ok(queue_pair) => {
                let before = queue_pair.sends.posted();
                let posted = queue_pair.post_send(requests);
                ((queue_pair.sends.posted() - before) as usize, posted)
            }
            Err(error) => (0, Err(error)),
        }
    }

    fn srq(&self, srq: SrqId) -> Result<&Arc<SharedQueue>> {
        self.shared.get(&srq).ok_or(Error::BadState { state: "unknown", what: "any call" })
    }

    /// Handles the completion of a shared receive.
    #[inline(never)]
    fn take_shared(&mut self, work: &sys::ibv_wc, srq: SrqId, at: u32) -> Option<Completion> {
        let shared = self.shared.get(&srq)?;
        let number = self.by_wire.get(&work.qp_num);
        let index = number.and_then(|&number| position(&self.queue_pairs, QpId(number)));
        if let Some(queue_pair) = index.map(|index| &mut self.queue_pairs[index])
            && queue_pair.take_shared(work)
        {
            return Some(queue_pair.received(shared.complete(at)?, work));
        }
        // The message will never be complete, or its queue pair is destroyed.
        shared.repost(at);
        None
    }

    /// Makes a queue pair.
    fn add(&mut self, pd: &Pd, wanted: QpCapabilities, purpose: Purpose) -> Result<(QpId, QpCapabilities)> {
        self.queue.context.check_present()?;
        let attributes = &self.queue.context.attributes;
        let depths = [
            ("send queue depth", wanted.send_depth, attributes.max_send_depth),
            ("receive queue depth", wanted.recv_depth, attributes.max_recv_depth),
        ];
        for (what, value, most) in depths {
            if value > most {
                return Err(Error::OutOfRange { what, value: value.into(), least: 0, most: most.into() });
            }
        }
        let number = QpId(self.last_number + 1);
        if number.0 > LAST_NUMBER {
            return Err(Error::Unsupported("so many queue pairs of one completion queue"));
        }
        connection::destroy_waiting();
        let queue_pair = QueuePair::create(number, pd, &self.queue, wanted, purpose)?;
        self.make_room(queue_pair.completions())?;
        self.last_number = number.0;
        let granted = queue_pair.granted;
        if queue_pair.shared.is_some() {
            self.by_wire.insert(queue_pair.wire_number(), number.0);
        }
        self.queue_pairs.push(queue_pair);
        Ok((number, granted))
    }

    /// Makes the device's queue large enough for so many completions more, if it is one that grows.
    fn make_room(&mut self, more: u32) -> Result<()> {
        let Some(Room { now, most }) = self.room else { return Ok(()) };
        let pairs = self.queue_pairs.iter().map(QueuePair::completions);
        let shared = self.shared.values().map(|shared| shared.depth);
        let needed: u64 = pairs.chain(shared).chain([self.left_behind, more]).map(u64::from).sum();
        if needed > most.into() {
            return Err(Error::CompletionQueueFull { needed, most: most.into() });
        }
        // At most `most`.
        let needed = needed as u32;
        if needed > now {
            let next = needed.checked_next_power_of_two().unwrap_or(most).min(most);
            self.queue.resize(next)?;
            self.room = Some(Room { now: next, most });
        }
        Ok(())
    }

    /// After enough empty polls, handles the connection manager's events. Returns whether there were any.
    #[inline(never)]
    fn poll_connections(&mut self) -> bool {
        if self.empty_polls < EMPTY_POLLS {
            return false;
        }
        self.empty_polls = 0;
        let now = now_coarse();
        now != std::mem::replace(&mut self.cm_polled, now) && self.drive_connections()
    }

    /// Handles the connection manager's events of every connection. Returns whether there were any. Deadlines
    /// are left to [`verbs::Connections::poll_event`].
    fn drive_connections(&mut self) -> bool {
        self.retiring.iter_mut().for_each(Retiring::drive);
        let had_events =
            self.queue_pairs.iter_mut().filter_map(|queue_pair| queue_pair.drive().then_some(())).count() > 0;
        if self.queue.context.is_gone() {
            self.note_all_outstanding();
        }
        had_events
    }

    /// The channels of the connections.
    fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.queue_pairs.iter().filter_map(|queue_pair| queue_pair.id.as_ref()).map(|id| &**id.channel())
    }

    /// Adds the descriptors of the device and of the connections to a wait set, or none.
    fn add_to(&self, target: &EventTarget) -> Result<()> {
        let mut added = 0;
        let outcome = self
            .channels()
            .try_for_each(|channel| add_channel(target, channel).inspect(|()| added += 1))
            .and_then(|()| target.wait.add(self.queue.descriptor(), target.token, Interest::Read));
        if outcome.is_err() {
            self.channels().take(added).for_each(|channel| _ = target.wait.remove(channel.as_fd()));
        }
        outcome
    }

    /// Takes the descriptors out of a wait set.
    fn leave(&mut self, wait: &WaitSet) {
        self.keepalive_timer = None;
        self.queue.leave(wait);
        // The set does not have the channels of all connections.
        self.channels().for_each(|channel| _ = wait.remove(channel.as_fd()));
    }

    /// Starts the keep-alive timer, if a wait set is attached and a connection was made. It runs four times
    /// in the keep-alive time: even if one check is a little late, two more follow before twice that time is
    /// over.
    fn start_keepalive_timer(&self) -> Result<()> {
        match (&self.keepalive_timer, self.keepalive) {
            (Some(timer), Some(keepalive)) => timer.repeat(keepalive / 4),
            _ => Ok(()),
        }
    }
}

/// The place of a queue pair among those of a queue.
#[inline]
fn position(queue_pairs: &[QueuePair], qp: QpId) -> Option<usize> {
    queue_pairs.binary_search_by_key(&qp, |queue_pair| queue_pair.number).ok()
}

/// The time of the last clock tick, a few milliseconds ago at most. Reading it takes no system call.
fn now_coarse() -> Timespec {
    clock_gettime(ClockId::MonotonicCoarse)
}

impl Drop for Cq {
    fn drop(&mut self) {
        if let Some(target) = &self.wait {
            self.queue.leave(&target.wait);
        }
        self.queue_pairs.drain(..).for_each(connection::destroy);
        self.retiring.drain(..).for_each(Retiring::end);
    }
}

impl verbs::QueuePairs for Cq {
    type Pd = Pd;

    fn create_qp(&mut self, pd: &Pd, wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)> {
        self.add(pd, wanted, Purpose::Any(None))
    }

    fn destroy_qp(&mut self, qp: QpId) {
        if let Some(at) = position(&self.queue_pairs, qp) {
            let queue_pair = self.queue_pairs.remove(at);
            self.by_wire.remove(&queue_pair.wire_number());
            self.left_behind = self.left_behind.saturating_add(queue_pair.completions());
            if queue_pair.may_leave_shared() {
                self.retiring.push(Retiring::new(queue_pair));
            } else {
                connection::destroy(queue_pair);
            }
        }
    }

    fn post_recv(&mut self, qp: QpId, requests: &[RecvRequest<'_>]) -> Result<()> {
        if requests.is_empty() {
            return Ok(());
        }
        self.queue_pair(qp, "post_recv")?.post_recv(requests)
    }

    fn post_send(&mut self, qp: QpId, requests: &[SendRequest<'_>], _more: bool) -> Result<()> {
        self.queue_pair(qp, "post_send")?.post_send(requests)
    }
}

impl verbs::MessageQueues for Cq {
    fn create_message_qp(
        &mut self,
        pd: &Pd,
        wanted: QpCapabilities,
        shared: Option<SrqId>,
    ) -> Result<(QpId, QpCapabilities)> {
        if self.queue.context.attributes.max_places == 0 {
            return Err(NO_MESSAGES);
        }
        let shared = shared.map(|srq| self.srq(srq).cloned()).transpose()?;
        self.add(pd, wanted, Purpose::Messages(shared))
    }

    fn create_shared_qp(
        &mut self,
        pd: &Pd,
        wanted: QpCapabilities,
        srq: SrqId,
    ) -> Result<(QpId, QpCapabilities)> {
        let shared = Arc::clone(self.srq(srq)?);
        if !shared.is_of(pd) {
            return Err(Error::BadState { state: "of another domain", what: "sharing its receives" });
        }
        self.add(pd, wanted, Purpose::Any(Some(shared)))
    }

    fn create_srq(&mut self, pd: &Pd, depth: u32) -> Result<SrqId> {
        if self.queue.context.attributes.max_srq_depth == 0 {
            return Err(Error::Unsupported("shared receive queues"));
        }
        let number = SrqId(self.last_shared + 1);
        self.make_room(depth)?;
        self.shared.insert(number, Arc::new(SharedQueue::create(number, pd, depth)?));
        self.last_shared = number.0;
        Ok(number)
    }

    fn send_room(&self, qp: QpId) -> Option<usize> {
        self.get(qp).map(|queue_pair| queue_pair.send_room() as usize)
    }

    fn has_sends(&self, qp: QpId) -> bool {
        self.get(qp).is_some_and(|queue_pair| queue_pair.sends.outstanding() > 0)
    }

    fn peer_ended(&self, qp: QpId) -> bool {
        self.get(qp).is_some_and(|queue_pair| queue_pair.peer_ended)
    }

    fn end_events(&mut self, qp: QpId) {
        if let Some(queue_pair) = self.get_mut(qp) {
            queue_pair.end_events();
        }
    }

    fn destroy_srq(&mut self, srq: SrqId) -> Result<()> {
        self.end_retirement_of(srq);
        // Each queue pair of it has a reference.
        if Arc::strong_count(self.srq(srq)?) > 1 {
            return Err(Error::BadState { state: "using it", what: "destroying a shared receive queue" });
        }
        if let Some(shared) = self.shared.remove(&srq) {
            self.left_behind = self.left_behind.saturating_add(shared.depth);
        }
        Ok(())
    }

    fn post_srq_recv(&mut self, srq: SrqId, requests: &[RecvRequest<'_>]) -> Result<()> {
        self.srq(srq)?.post(requests)
    }
}

const NO_MESSAGES: Error = Error::Unsupported("queue pairs for messages");

impl verbs::CompletionQueue for Cq {
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut count = 0;
        while count < out.len() {
            match self.poll_batch(&mut out[count..]) {
                Some((more, is_full)) => {
                    count += more;
                    self.empty_polls = 0;
                    if count > 0 && !is_full {
                        break;
                    }
                }
                None if count > 0 => break,
                None => {
                    self.empty_polls += 1;
                    let is_idle = self.forgotten.is_empty() && self.retiring.is_empty();
                    if self.empty_polls < EMPTY_POLLS && is_idle {
                        break;
                    }
                    self.end_retirements();
                    count = self.flush_forgotten(out);
                    if count > 0 || !self.poll_connections() {
                        break;
                    }
                }
            }
        }
        count
    }

    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()> {
        if let Some(before) = self.wait.take() {
            self.leave(&before.wait);
        }
        let target = EventTarget::new(&wait);
        let timer = Timer::new()?;
        // Closing the timer undoes this.
        wait.add(timer.as_fd(), target.token, Interest::Read)?;
        self.add_to(&target)?;
        self.keepalive_timer = Some(timer);
        self.wait = Some(target);
        let armed = self.start_keepalive_timer().and_then(|()| self.arm());
        if armed.is_err()
            && let Some(target) = self.wait.take()
        {
            self.leave(&target.wait);
        }
        armed.map(drop)
    }

    /// Only this call consumes a notification, because its caller is about to sleep. A poll does not: the
    /// notification must still wake a sleeping thread after another thread polled its completions.
    fn arm(&mut self) -> Result<bool> {
        if self.armed && self.queue.take_notifications() {
            self.armed = false;
        }
        let is_gone = self.queue.context.is_gone();
        if is_gone && let Some(target) = &self.wait {
            // Its descriptor would wake the caller without end.
            self.queue.leave(&target.wait);
        }
        let again = !self.armed && !is_gone;
        if again {
            self.queue.request_notification()?;
            self.armed = true;
        }
        if self.keepalive_timer.as_ref().is_some_and(Timer::take) {
            self.queue_pairs.iter_mut().for_each(QueuePair::on_time);
        }
        Ok(self.drive_connections() || again || !self.forgotten.is_empty())
    }
}
