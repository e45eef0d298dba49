//! The engine that drives the message endpoints of a domain: the device's completion queue with its queue
//! pairs, and the lists that assign completions to operations, behind one lock.
//!
//! The lock is taken before that of an event queue. No thread waits while it holds the lock, with one exception: `fi_close`
//! of an endpoint with shared receives waits up to [`FLUSH_LIMIT`] for an RDMA device.

mod watching;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use slab::Slab;

use super::armed::Armed;
use super::completion_queue::Queue;
use super::endpoint::Link;
use super::inbox::InboxTasks;
use super::leader::Sleepers;
use super::limits::Limits;
use super::operation::{Entry, Kind, Operations, remote_write};
use super::queues::Queues;
use super::waiter::Waiter;
use crate::abi::{CompletionsOut, Errno, PayloadPlaces, Result, UserContext};
use crate::provider::error::errno_of;
use rdma_verbs::{
    ANY_DEPTH, Completion, CompletionKind, CompletionQueue, CompletionStatus, Connections, Device,
    MessageQueues, QpId, QueuePairs, SendRequest, SrqId, WaitSet,
};

/// Maximum number of completions that one poll takes from the device.
const BATCH: usize = 32;
/// Number of completions from which on one call polls no more, so that peers that send without pause do not hold the
/// caller.
const MOST: usize = 8 * BATCH;
/// Maximum number of such calls until the device has nothing more, for the same reason.
const DRAINS: usize = 1024;
/// Maximum time for which the queue pair of a closed endpoint is kept until the peer's host has received
/// everything.
const LINGER_LIMIT: Duration = Duration::from_secs(5);
/// Maximum time that a device takes to complete what is outstanding on a connection that it has ended: microseconds, but
/// virtual machines stand still at times.
const FLUSH_LIMIT: Duration = Duration::from_millis(100);

/// Id of work requests whose completions are not reported, and of completions without a request of this side.
pub(super) const NO_OPERATION: u64 = Completion::NO_RECEIVE;
/// Set in the ids of shared receives.
const SHARED: u64 = 1 << 63;

/// See the module.
pub(in super::super) struct Engine<D: Device> {
    pub(super) limits: Limits,
    pd: D::Pd,
    state: Mutex<State<D>>,
    /// Readable when the device has something to do, for any of its queue pairs. It is attached to the device when
    /// a caller first may sleep for all of them.
    wait: Arc<WaitSet>,
}

/// The state that the lock covers.
pub(in super::super) struct State<D: Device> {
    pub(super) cq: D::Cq,
    pub(super) links: Slab<Link>,
    by_qp: BTreeMap<QpId, usize>,
    pub(super) queues: Queues,
    pub(super) shared: Slab<SharedReceives>,
    pub(super) waiters: Slab<Waiter>,
    lingering: Vec<Lingering>,
    /// What the inboxes of endpoints have left to do.
    pub(super) tasks: InboxTasks,
    /// The function that tells where payload goes, for endpoints that are opened from now on.
    pub(in super::super) payload_places: Option<PayloadPlaces>,
    attached: bool,
    /// Whether callers may sleep.
    notifies: bool,
    /// Whether there are or were endpoints none of whose completion queues has a wait object.
    has_unwatched: bool,
    /// Threads that sleep within calls.
    pub(super) sleepers: Sleepers,
    /// The threads that may sleep until the device wakes them. One that makes a call is awake, and arms again before it
    /// sleeps.
    armed: Armed,
    /// Room for the completions of one poll, kept because making it anew costs a tenth of a short message.
    batch: Box<[Completion; BATCH]>,
}

/// A queue pair of a closed endpoint that still has output.
struct Lingering {
    qp: QpId,
    /// When it is destroyed at the latest, and whether its connection was ended because of that.
    until: Instant,
    is_over: bool,
    /// Index of the shared receive context that it uses.
    shared: Option<usize>,
}

/// A read that drives the engine. Successes of its queue go to it at once, unless others are queued before them.
pub(super) struct Reader<'a, 'b> {
    /// Index of the completion queue that it reads.
    pub(super) queue: usize,
    pub(super) out: &'a mut CompletionsOut<'b>,
}

/// The receives of a shared receive context.
pub(super) struct SharedReceives {
    pub(super) srq: SrqId,
    pub(super) operations: Operations,
    /// Number of endpoints that it is bound to.
    pub(super) users: usize,
}

/// The id of a work request of the endpoint with this link.
pub(super) fn id_of(link: usize, operation: usize) -> u64 {
    (link as u64) << 32 | operation as u64
}

/// The id of a receive of the shared receive context with this index.
pub(super) fn shared_id_of(context: usize, operation: usize) -> u64 {
    SHARED | id_of(context, operation)
}

impl<D: Device> Engine<D> {
    pub(in super::super) fn new(device: &D) -> Result<Self> {
        let limits = Limits::of(&device.attributes(), D::LOCAL_KEYS).ok_or(Errno::EINVAL)?;
        let wait = Arc::new(WaitSet::new().map_err(errno_of)?);
        let state = State {
            cq: device.create_cq(ANY_DEPTH).map_err(errno_of)?,
            links: Slab::new(),
            by_qp: BTreeMap::new(),
            queues: Queues::default(),
            shared: Slab::new(),
            waiters: Slab::new(),
            lingering: Vec::new(),
            tasks: InboxTasks::default(),
            payload_places: None,
            attached: false,
            notifies: false,
            has_unwatched: false,
            sleepers: Sleepers::new(Arc::clone(&wait)),
            armed: Armed::None,
            batch: Box::new([Completion::EMPTY; BATCH]),
        };
        Ok(Self { limits, pd: device.alloc_pd().map_err(errno_of)?, state: Mutex::new(state), wait })
    }

    /// The protection domain.
    pub(super) fn pd(&self) -> &D::Pd {
        &self.pd
    }

    /// The state, for calls that report nothing.
    pub(in super::super) fn lock(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock()
    }

    /// Runs a call on the state, then updates the signals.
    #[inline(always)]
    pub(super) fn with<R>(&self, call: impl FnOnce(&mut State<D>) -> R) -> R {
        let mut state = self.state.lock();
        let outcome = call(&mut state);
        if state.notifies {
            state.notify();
        }
        outcome
    }
}

impl<D: Device> State<D> {
    /// Takes completions from the device and reports them. The number of one call is bounded: returns whether
    /// the device may have more, as long as it had any.
    pub(super) fn drive(&mut self) -> bool {
        self.drive_for(None)
    }

    /// The same, for a read.
    #[inline(always)]
    pub(super) fn drive_for(&mut self, mut reader: Option<Reader<'_, '_>>) -> bool {
        let (mut count, mut total) = (BATCH, 0);
        while total < MOST {
            count = self.cq.poll(&mut *self.batch);
            total += count.max(1);
            for at in 0..count {
                self.deliver(at, reader.as_mut());
            }
            if count < BATCH && !self.tasks.take_new_receives() {
                break;
            }
        }
        if self.tasks.has_any() {
            self.look_at_inboxes();
        }
        if !self.lingering.is_empty() {
            self.destroy_flushed();
        }
        if self.armed != Armed::None {
            self.leave_wake_up();
        }
        count > 0
    }

    /// Posts sends. They may leave together with later ones, unless another thread sleeps: this one may go on to wait for
    /// it, instead of polling.
    #[inline]
    pub(super) fn post_send(
        &mut self,
        qp: QpId,
        requests: &[SendRequest<'_>],
        more: bool,
    ) -> rdma_verbs::Result<()> {
        if self.armed.has_others() {
            return self.cq.post_send(qp, requests, more);
        }
        self.cq.post_corked(qp, requests, more)
    }

    /// Leaves others that sleep the wake-up that this thread may have taken by polls.
    #[cold]
    fn leave_wake_up(&mut self) {
        if self.armed.has_others() {
            self.cq.arm_for_others();
        }
    }

    /// Drives until the device has no more.
    pub(super) fn drain(&mut self) {
        for _ in 0..DRAINS {
            if !self.drive() {
                break;
            }
        }
    }

    /// Requests a wake-up for the next completion. Returns whether some may have been there already. The
    /// caller may stay awake for those, while threads sleep that wait for others of them. Arming has taken
    /// the wake-up from these threads, so everything is reported here.
    pub(super) fn arm(&mut self) -> bool {
        self.armed = self.armed.with_this();
        let may_have_more = self.cq.arm().unwrap_or(true);
        if may_have_more {
            self.drain();
        }
        may_have_more
    }

    /// Reports completions that calls left in the device, and updates the signals of completion queues and of
    /// threads that wait.
    fn notify(&mut self) {
        let mut looks = self.tasks.has_any();
        loop {
            let count = self.cq.take_waiting(&mut *self.batch);
            for at in 0..count {
                self.deliver(at, None);
            }
            if count == BATCH || self.tasks.take_new_receives() {
                continue;
            }
            if !std::mem::take(&mut looks) && !self.tasks.has_strangers() {
                break;
            }
            self.look_at_inboxes();
        }
        self.queues.notify();
        for (_, waiter) in &self.waiters {
            waiter.notify(&self.queues);
        }
    }

    /// Reports the completion at this place of the batch, to `reader` if it may go there at once.
    #[inline]
    fn deliver(&mut self, at: usize, reader: Option<&mut Reader<'_, '_>>) {
        let Completion { qp, id, kind, status, length, immediate, .. } = self.batch[at];
        let is_remote_write = kind == CompletionKind::RecvWrite;
        let length = length as usize;
        if id == NO_OPERATION {
            if is_remote_write
                && let Some(&link) = self.by_qp.get(&qp)
                && let Some(link) = self.links.get_mut(link)
            {
                let entry = remote_write(UserContext::NONE, length, immediate);
                link.report_remote_write(entry, &mut self.queues, &mut self.cq);
            }
            return;
        }
        let (at, operation) = ((id & !SHARED) >> 32, id & u64::from(u32::MAX));
        let (at, operation) = (at as usize, operation as usize);
        let link = if id & SHARED == 0 {
            // The index may have passed from a closed endpoint to another one, whose queue pair is another.
            self.links.get_mut(at).filter(|link| link.qp == qp)
        } else {
            self.by_qp.get(&qp).and_then(|&link| self.links.get_mut(link))
        };
        let Some(link) = link else { return };
        let done = if id & SHARED == 0 {
            link.operations.complete(operation, status)
        } else {
            self.shared.get_mut(at).and_then(|shared| shared.operations.complete(operation, status))
        };
        let Some(done) = done else {
            if id & SHARED == 0 && link.inbox.is_some() {
                self.take_in(at, operation, status, (length, immediate));
            }
            return;
        };
        link.ended(done.kind);
        if let Some(headers) = &mut link.headers
            && !done.kind.is_receive()
        {
            headers.ended(id);
        }
        if is_remote_write && done.failure.is_none() {
            let entry = remote_write(done.context, length, immediate);
            return link.report_remote_write(entry, &mut self.queues, &mut self.cq);
        }
        if done.kind == Kind::Recv {
            link.statistics.received(&done, length);
        }
        link.counters.count(done.kind, done.failure.is_none());
        let report = if done.kind == Kind::Recv { &link.rx } else { &link.tx };
        let entry = match done.failure {
            _ if done.is_injected => return,
            None if report.is_selective && !done.asks => return,
            None => {
                let completion = done.completion(length, immediate);
                if let Some(Reader { queue, out }) = reader
                    && *queue == report.at
                    && self.queues.get(*queue).is_some_and(Queue::is_empty)
                    && out.push(&completion)
                {
                    return;
                }
                Entry::Success(completion)
            }
            Some(CompletionStatus::Flushed) => done.flushed(self.cq.peer_ended(qp)),
            Some(status) => done.failure(status, length, None),
        };
        self.queues[report.at].push(entry);
    }

    /// Moves entries of a completion queue to `out`, up to the first failure. Lets writes of peers pass that waited
    /// for that.
    #[inline(always)]
    pub(super) fn take(&mut self, at: usize, out: &mut CompletionsOut<'_>) -> Result<()> {
        let queue = &mut self.queues[at];
        let outcome = queue.take(out);
        if queue.lets_writes_pass() {
            self.release_writes(at);
        }
        outcome
    }

    #[cold]
    fn release_writes(&mut self, queue: usize) {
        for (_, link) in self.links.iter_mut().filter(|(_, link)| link.rx.at == queue) {
            if std::mem::take(&mut link.holds_writes) {
                self.cq.hold_writes(link.qp, false);
            }
        }
    }

    /// Adds an enabled endpoint.
    pub(super) fn add(&mut self, link: Link) -> usize {
        let qp = link.qp;
        let at = self.links.insert(link);
        self.by_qp.insert(qp, at);
        at
    }

    /// Removes an endpoint that is closed. Reports its outstanding operations as cancelled, in the order of their
    /// calls, and does not access their memory afterwards. What the device has taken is still sent to the peer.
    pub(super) fn remove(&mut self, at: usize) {
        let Some(qp) = self.links.get(at).map(|link| link.qp) else { return };
        // What is complete is reported as such, and what the end completes as well.
        self.drain();
        self.cq.disconnect(qp);
        self.drain();
        // The queue pair may outlive the endpoint only if the device accesses no memory of the application
        // for it. The bytes of injected operations are copies.
        let link = &self.links[at];
        let has_copies = link.inbox.as_ref().is_none_or(|inbox| inbox.is_idle())
            && link.operations.iter().all(|(_, operation)| operation.is_injected);
        let may_linger = has_copies || self.cq.give_up(qp);
        if !may_linger && self.links[at].shared.is_some() {
            self.flush(qp);
        }
        let link = self.links.remove(at);
        self.by_qp.remove(&qp);
        let by_peer = self.cq.peer_ended(qp);
        if let Some(accesses) = &link.accesses {
            link.counters.take_over(accesses);
        }
        for operation in &link.operations.into_ordered() {
            link.counters.count(operation.kind, false);
            if operation.is_injected {
                continue;
            }
            let queue = if operation.kind.is_receive() { &link.rx } else { &link.tx };
            self.queues[queue.at].push(operation.flushed(by_peer));
        }
        if may_linger && has_output(&mut self.cq, qp, link.shared) {
            // Nobody is left to take its events.
            self.cq.end_events(qp);
            let until = Instant::now() + LINGER_LIMIT;
            self.lingering.push(Lingering { qp, until, is_over: false, shared: link.shared });
        } else {
            self.cq.destroy_qp(qp);
        }
    }

    /// Ends the connection of a queue pair with shared receives, so that what it sends completes: see
    /// [`MessageQueues::has_sends`].
    fn flush(&mut self, qp: QpId) {
        self.cq.abort(qp);
        let until = Instant::now() + FLUSH_LIMIT;
        while self.cq.has_sends(qp) && Instant::now() < until {
            self.drain();
        }
    }

    /// Removes an endpoint that another process has opened: frees this process's part of it, and reports
    /// nothing.
    pub(super) fn abandon(&mut self, at: usize) {
        let Some(link) = self.links.try_remove(at) else { return };
        self.by_qp.remove(&link.qp);
        self.cq.destroy_qp(link.qp);
    }

    /// Destroys lingering queue pairs whose output has reached the peer's host, or whose time is over.
    #[inline(never)]
    fn destroy_flushed(&mut self) {
        let now = Instant::now();
        for one in self.lingering.iter_mut().filter(|one| now >= one.until && !one.is_over) {
            one.is_over = true;
            if one.shared.is_some() && self.cq.has_sends(one.qp) {
                self.cq.abort(one.qp);
                one.until = now + FLUSH_LIMIT;
            }
        }
        self.destroy_lingering(|cq, one| !has_output(cq, one.qp, one.shared) || now >= one.until);
    }

    /// Destroys lingering queue pairs that use a shared receive context, before that is closed.
    pub(super) fn destroy_lingering_of(&mut self, context: usize) {
        self.destroy_lingering(|_, one| one.shared == Some(context));
    }

    fn destroy_lingering(&mut self, ends: impl Fn(&mut D::Cq, &Lingering) -> bool) {
        let cq = &mut self.cq;
        self.lingering.retain(|one| {
            let stays = !ends(cq, one);
            if !stays {
                cq.destroy_qp(one.qp);
            }
            stays
        });
    }

    /// Whether closed endpoints still have output. Drives first, which destroys the queue pairs of those that have
    /// none, except what [`MessageQueues::awaits_peer`] keeps.
    pub(in super::super) fn is_lingering(&mut self) -> bool {
        self.drain();
        let cq = &mut self.cq;
        self.lingering.iter().any(|one| !cq.awaits_peer(one.qp) || !cq.flushed(one.qp))
    }

    /// The enabled endpoint with this index.
    pub(super) fn link(&mut self, at: usize) -> Result<&mut Link> {
        self.links.get_mut(at).ok_or(Errno::EOPBADSTATE)
    }
}

/// Whether the queue pair of a closed endpoint, which may use a shared receive context, is needed still.
fn has_output(cq: &mut impl CompletionQueue, qp: QpId, shared: Option<usize>) -> bool {
    !cq.flushed(qp) || cq.awaits_peer(qp) || shared.is_some() && cq.has_sends(qp)
}

impl Link {
    /// Reports a write of the peer that came with data.
    #[inline(never)]
    fn report_remote_write(&mut self, entry: Entry, queues: &mut Queues, cq: &mut impl MessageQueues) {
        if self.accesses.is_none() {
            self.counters.count_remote_write();
        }
        if queues[self.rx.at].push_write(entry) && !self.holds_writes {
            self.holds_writes = true;
            cq.hold_writes(self.qp, true);
        }
    }
}
