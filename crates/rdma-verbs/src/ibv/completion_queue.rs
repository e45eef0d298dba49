//! The completion queue and the queue pairs that report to it.

mod connections;

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rdma_sys as sys;
use rustix::time::{ClockId, Timespec, clock_gettime};

use super::connection::watch_in;
use super::deferred;
use super::device::{Context, check, check_pointer, set_nonblocking};
use super::memory::Pd;
use super::queue_pair::{QueuePair, number_of};
use crate::{
    self as verbs, Completion, Error, EventTarget, Interest, QpCapabilities, QpId, RecvRequest, Result,
    SendRequest, Timer, WaitSet,
};

/// Completions taken from the device in one call.
const BATCH: usize = 16;

/// After so many polls in vain the connection manager is asked whether a connection has ended, at
/// most once a tick of the coarse clock: that is a system call, which a caller that polls in a loop
/// should make neither each time nor while a message is under way.
const PATIENCE: u32 = 64;

/// A completion queue with its queue pairs.
pub struct Cq {
    queue_pairs: BTreeMap<u32, QueuePair>,
    last_number: u32,
    queue: Arc<Queue>,
    /// The set that is woken for completions and for the end of connections.
    wait: Option<EventTarget>,
    /// In that set: wakes whoever sleeps there, since a peer's host has to be probed also where nothing
    /// completes.
    keepalive_timer: Option<Timer>,
    /// Of the latest connection.
    keepalive: Option<Duration>,
    /// Whether the device was asked for a wake-up that was not taken from the channel yet.
    armed: bool,
    polls_in_vain: u32,
    /// When the connection manager was asked last.
    asked: Timespec,
}

/// The device's queue and its channel: its queue pairs hold it.
pub(super) struct Queue {
    context: Arc<Context>,
    raw: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
}

// SAFETY: libibverbs ties these to no thread; `Queue` is the only handle to them.
unsafe impl Send for Queue {}
// SAFETY: libibverbs allows calls on them from several threads at once.
unsafe impl Sync for Queue {}

impl Queue {
    fn create(context: &Arc<Context>, depth: u32) -> Result<Self> {
        let most = context.max_completions;
        if depth == 0 || depth > most {
            let (what, value) = ("completion queue depth", depth.into());
            return Err(Error::OutOfRange { what, value, least: 1, most: most.into() });
        }
        // Room for probes as well.
        let depth = i32::try_from(depth.saturating_add(depth / 8 + 8).min(most)).unwrap_or(i32::MAX);
        let (library, user) = (context.library, std::ptr::null_mut());
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(context.raw()) };
        let channel = check_pointer("ibv_create_comp_channel", channel)?;
        // SAFETY: context and channel are valid, and vector 0 is there on every device.
        let raw = unsafe { (library.ibv_create_cq)(context.raw(), depth, user, channel.as_ptr(), 0) };
        let raw = check_pointer("ibv_create_cq", raw).inspect_err(|_| {
            // SAFETY: the channel is valid, given up once, and no queue uses it.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
        })?;
        let queue = Self { context: Arc::clone(context), raw, channel };
        set_nonblocking(queue.descriptor())?;
        Ok(queue)
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the channel is, which `self` owns.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// Takes wake-ups out of the channel; answers whether there was one.
    fn take_wake_ups(&self) -> bool {
        let (mut queue, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (library, channel) = (self.context.library, self.channel.as_ptr());
        let mut taken = 0;
        // SAFETY: the channel is valid and its descriptor does not block; both answers go to live places.
        while unsafe { (library.ibv_get_cq_event)(channel, &raw mut queue, &raw mut user) } == 0 {
            taken += 1;
        }
        if taken > 0 {
            // SAFETY: the queue is valid; as many are acknowledged as were taken, all of them its own.
            unsafe { (library.ibv_ack_cq_events)(self.raw(), taken) };
        }
        taken > 0
    }

    fn request_wake_up(&self) -> Result<()> {
        // SAFETY: the queue is valid.
        check("ibv_req_notify_cq", unsafe { sys::ibv_req_notify_cq(self.raw(), 0) })
    }

    /// Takes up to `most` completions; they are the first entries then.
    fn poll<'a>(&self, batch: &'a mut [MaybeUninit<sys::ibv_wc>; BATCH], most: usize) -> &'a [sys::ibv_wc] {
        let most = most.min(BATCH) as i32;
        // SAFETY: the queue is valid, and the array has room for `most` completions.
        let count = unsafe { sys::ibv_poll_cq(self.raw(), most, batch.as_mut_ptr().cast()) };
        let count = usize::try_from(count).unwrap_or_else(|_| {
            log::warn!("ibv_poll_cq failed");
            0
        });
        // SAFETY: the first `count` entries were filled in; those are what is borrowed.
        unsafe { std::slice::from_raw_parts(batch.as_ptr().cast(), count) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.context.maker.is_this_process() {
            return;
        }
        let library = self.context.library;
        // SAFETY: no queue pair reports here any more, every wake-up taken was acknowledged, and both
        // are given up once, the queue before its channel.
        unsafe {
            (library.ibv_destroy_cq)(self.raw());
            (library.ibv_destroy_comp_channel)(self.channel.as_ptr());
        }
    }
}

impl Cq {
    pub(super) fn create(context: &Arc<Context>, depth: u32) -> Result<Self> {
        Ok(Self {
            queue: Arc::new(Queue::create(context, depth)?),
            queue_pairs: BTreeMap::new(),
            last_number: 0,
            wait: None,
            keepalive_timer: None,
            keepalive: None,
            armed: false,
            polls_in_vain: 0,
            asked: now_coarse(),
        })
    }

    fn queue_pair(&mut self, qp: QpId, what: &'static str) -> Result<&mut QueuePair> {
        self.queue_pairs.get_mut(&qp.0).ok_or(Error::BadState { state: "unknown", what })
    }

    /// Takes one batch from the device; answers how many of them were put into `out`, or `None` if
    /// there were none at all.
    fn take_batch(&mut self, out: &mut [Completion]) -> Option<usize> {
        let mut batch = [const { MaybeUninit::uninit() }; BATCH];
        let batch = self.queue.poll(&mut batch, out.len());
        if batch.is_empty() {
            return None;
        }
        let mut count = 0;
        for done in batch {
            // Completions of a queue pair that is gone mean nothing any more.
            let Some(queue_pair) = self.queue_pairs.get_mut(&number_of(done.wr_id)) else { continue };
            if let Some(completion) = queue_pair.take(done) {
                out[count] = completion;
                count += 1;
            }
            queue_pair.close_when_flushed();
        }
        Some(count)
    }

    /// Asks the connection manager about every connection; answers whether there was news. What is due
    /// by the clock is for [`verbs::Connections::poll_event`].
    fn drive_connections(&mut self) -> bool {
        self.queue_pairs.values_mut().filter_map(|queue_pair| queue_pair.drive().then_some(())).count() > 0
    }

    /// Wakes sleepers from now on, if there are a set to wake and a connection to look at: four times in the
    /// keep-alive time, so that a look that comes a little late still leaves two before twice that time is
    /// over.
    fn start_keepalive_timer(&self) -> Result<()> {
        match (&self.keepalive_timer, self.keepalive) {
            (Some(timer), Some(keepalive)) => timer.repeat(keepalive / 4),
            _ => Ok(()),
        }
    }
}

/// The time of the last tick, some milliseconds ago at most: reading it takes no system call.
fn now_coarse() -> Timespec {
    clock_gettime(ClockId::MonotonicCoarse)
}

impl Drop for Cq {
    fn drop(&mut self) {
        std::mem::take(&mut self.queue_pairs).into_values().for_each(deferred::destroy);
    }
}

impl verbs::QueuePairs for Cq {
    type Pd = Pd;

    fn create_qp(&mut self, pd: &Pd, wanted: QpCapabilities) -> Result<(QpId, QpCapabilities)> {
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
        deferred::retry();
        let queue_pair = QueuePair::create(number, pd, &self.queue, wanted)?;
        self.last_number = number.0;
        let granted = queue_pair.granted;
        self.queue_pairs.insert(number.0, queue_pair);
        Ok((number, granted))
    }

    fn destroy_qp(&mut self, qp: QpId) {
        if let Some(queue_pair) = self.queue_pairs.remove(&qp.0) {
            deferred::destroy(queue_pair);
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

impl verbs::MessageQueues for Cq {}

impl verbs::CompletionQueue for Cq {
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if out.is_empty() {
            return 0;
        }
        loop {
            match self.take_batch(out) {
                Some(0) => {}
                Some(count) => {
                    self.polls_in_vain = 0;
                    return count;
                }
                None => {
                    self.polls_in_vain += 1;
                    if self.polls_in_vain < PATIENCE {
                        return 0;
                    }
                    self.polls_in_vain = 0;
                    let now = now_coarse();
                    if now == std::mem::replace(&mut self.asked, now) || !self.drive_connections() {
                        return 0;
                    }
                }
            }
        }
    }

    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()> {
        if let Some(before) = self.wait.take() {
            before.wait.remove(self.queue.descriptor())?;
            self.keepalive_timer = None;
        }
        let target = EventTarget::new(&wait);
        wait.add(self.queue.descriptor(), target.token, Interest::Read)?;
        for queue_pair in self.queue_pairs.values() {
            if let Some(id) = &queue_pair.id {
                watch_in(&target, id.channel())?;
            }
        }
        let timer = Timer::new()?;
        wait.add(timer.as_fd(), target.token, Interest::Read)?;
        self.keepalive_timer = Some(timer);
        self.wait = Some(target);
        self.start_keepalive_timer()?;
        self.arm().map(drop)
    }

    /// Only here is a wake-up taken back, so that it waits for whoever is about to sleep: others may
    /// have polled its completions.
    fn arm(&mut self) -> Result<bool> {
        if self.armed && self.queue.take_wake_ups() {
            self.armed = false;
        }
        let again = !self.armed;
        if again {
            self.queue.request_wake_up()?;
            self.armed = true;
        }
        if self.keepalive_timer.as_ref().is_some_and(Timer::take) {
            self.queue_pairs.values_mut().for_each(QueuePair::on_time);
        }
        Ok(self.drive_connections() || again)
    }
}
