//! The state of a shard: the device's objects, the requests in flight, and what waits for them. Everything
//! here runs under the lock of the shard, takes none but those of pools, and wakes no task: see
//! [`Core::woken`].

mod completions;
mod listening;
mod queue_pairs;
mod receives;
mod turn;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use slab::Slab;

pub(super) use turn::Turn;

use self::listening::Listening;
use super::TrustedDevice;
use super::device_events::Watching;
use super::queue_pair::QueuePair;
use super::shared::SharedQueue;
use super::slots::Slots;
use crate::wait::REPORTED;
use crate::{
    ANY_DEPTH, Completion, CompletionQueue, ConnectOptions, DeviceAttributes, Interest, QpId, Result, Signal,
    Timer, Token, WaitSet,
};

/// Completions that one poll of the queue takes.
const BATCH: usize = 16;

/// What a token of the events stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    QueuePair(usize),
    Listener(usize),
    Device(usize),
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
}
