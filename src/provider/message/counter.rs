//! The counter (`fi_cntr`): how many operations of its endpoints succeeded and failed.

use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::engine::Engine;
use super::operation::Kind;
use super::waiter::{Goal, Waiter};
use crate::abi::{CntrAttr, CntrOps, Control, Errno, Fid, Result, constants};
use crate::provider::children::Child;
use crate::provider::wait;
use rdma_verbs::{Device, PeerAccesses, WaitSet};

/// The numbers of a counter.
#[derive(Default)]
pub(super) struct Count {
    /// Number of successes, except what the sources count.
    successes: AtomicU64,
    pub(super) errors: AtomicU64,
    /// Accesses of peers that are counted as well, if there have been any sources.
    sources: OnceLock<Mutex<Vec<Source>>>,
}

/// What counts accesses of peers by itself.
#[derive(Clone)]
pub(super) enum Source {
    /// The writes to a region.
    Region(Weak<dyn Written>),
    /// The writes of the peer of an endpoint.
    Writes(Arc<PeerAccesses>),
    /// Its reads.
    Reads(Arc<PeerAccesses>),
}

/// A region that counts the writes of peers.
pub(super) trait Written: Send + Sync {
    fn writes(&self) -> u64;
}

impl Source {
    fn number(&self) -> u64 {
        match self {
            Self::Region(region) => region.upgrade().map_or(0, |region| region.writes()),
            Self::Writes(accesses) => accesses.writes(),
            Self::Reads(accesses) => accesses.reads(),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Region(one), Self::Region(other)) => ptr::addr_eq(one.as_ptr(), other.as_ptr()),
            (Self::Writes(one), Self::Writes(other)) | (Self::Reads(one), Self::Reads(other)) => {
                Arc::ptr_eq(one, other)
            }
            _ => false,
        }
    }
}

impl Count {
    fn add(&self, is_success: bool) {
        let number = if is_success { &self.successes } else { &self.errors };
        number.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts from now on what a source counts.
    pub(super) fn watch(&self, source: Source) {
        let mut sources = self.sources.get_or_init(Mutex::default).lock();
        self.successes.fetch_sub(source.number(), Ordering::Relaxed);
        sources.push(source);
    }

    /// Takes over the number of a source that is to be closed.
    pub(super) fn take_over(&self, source: &Source) {
        let Some(sources) = self.sources.get() else { return };
        let mut sources = sources.lock();
        if let Some(at) = sources.iter().position(|other| other.is(source)) {
            sources.swap_remove(at);
            self.successes.fetch_add(source.number(), Ordering::Relaxed);
        }
    }

    /// Passes what the sources count to `look`. No source is added, or taken over, while it runs.
    fn with_sources<R>(&self, look: impl FnOnce(u64) -> R) -> R {
        let Some(sources) = self.sources.get() else { return look(0) };
        let sources = sources.lock();
        look(sources.iter().map(Source::number).sum())
    }

    pub(super) fn successes(&self) -> u64 {
        self.with_sources(|more| self.successes.load(Ordering::Relaxed).wrapping_add(more))
    }

    /// The numbers of successes and errors.
    pub(super) fn numbers(&self) -> (u64, u64) {
        (self.successes(), self.errors.load(Ordering::Relaxed))
    }

    fn set(&self, value: u64) {
        self.with_sources(|more| self.successes.store(value.wrapping_sub(more), Ordering::Relaxed));
    }
}

/// The counters of an endpoint, by what they count.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) send: Vec<Arc<Count>>,
    pub(super) recv: Vec<Arc<Count>>,
    pub(super) write: Vec<Arc<Count>>,
    pub(super) read: Vec<Arc<Count>>,
    pub(super) remote_write: Vec<Arc<Count>>,
    remote_read: Vec<Arc<Count>>,
}

impl Counters {
    /// Counts an operation that has ended.
    pub(super) fn count(&self, kind: Kind, is_success: bool) {
        let counters = match kind {
            Kind::Send | Kind::TaggedSend => &self.send,
            Kind::Recv | Kind::TaggedRecv => &self.recv,
            Kind::Write => &self.write,
            Kind::Read => &self.read,
        };
        counters.iter().for_each(|count| count.add(is_success));
    }

    /// Counts a write of the peer that came with data, where the device counts none.
    pub(super) fn count_remote_write(&self) {
        self.remote_write.iter().for_each(|count| count.add(true));
    }

    /// Counts the accesses of the peer as the device does.
    pub(super) fn watch(&self, accesses: &Arc<PeerAccesses>) {
        self.each_source(accesses, |count, source| count.watch(source));
    }

    /// Takes over these numbers, since the endpoint is to be closed.
    pub(super) fn take_over(&self, accesses: &Arc<PeerAccesses>) {
        self.each_source(accesses, |count, source| count.take_over(&source));
    }

    fn each_source(&self, accesses: &Arc<PeerAccesses>, act: impl Fn(&Count, Source)) {
        for count in &self.remote_write {
            act(count, Source::Writes(Arc::clone(accesses)));
        }
        for count in &self.remote_read {
            act(count, Source::Reads(Arc::clone(accesses)));
        }
    }

    /// Whether there is a counter for accesses of the peer.
    pub(super) fn is_of_accesses(&self) -> bool {
        !self.remote_write.is_empty() || !self.remote_read.is_empty()
    }

    /// Whether there is a counter for sends.
    pub(super) fn is_of_sends(&self) -> bool {
        !self.send.is_empty() || !self.write.is_empty()
    }

    /// Binds a counter with these flags.
    pub(super) fn bind(&mut self, count: &Arc<Count>, flags: u64) -> Result<()> {
        let known = [
            (constants::FI_SEND, &mut self.send),
            (constants::FI_RECV, &mut self.recv),
            (constants::FI_WRITE, &mut self.write),
            (constants::FI_READ, &mut self.read),
            (constants::FI_REMOTE_WRITE, &mut self.remote_write),
            (constants::FI_REMOTE_READ, &mut self.remote_read),
        ];
        let all = known.iter().fold(0, |all, (flag, _)| all | flag);
        if flags & !all != 0 {
            return Err(Errno::EBADFLAGS);
        }
        for (_, counters) in known.into_iter().filter(|(flag, _)| flags & flag != 0) {
            counters.push(Arc::clone(count));
        }
        Ok(())
    }
}

/// An open counter.
pub(in super::super) struct Counter<D: Device> {
    pub(super) engine: Arc<Engine<D>>,
    pub(super) count: Arc<Count>,
    membership: Mutex<Option<Child>>,
    descriptor: Option<Descriptor>,
}

/// What a counter needs for a descriptor to sleep on.
struct Descriptor {
    /// Holds the engine's set and the signal of the counter.
    wait: Arc<WaitSet>,
    /// Index of the waiter that stands for the sleepers, in the engine.
    waiter: usize,
}

impl Descriptor {
    fn new<D: Device>(engine: &Engine<D>, count: &Arc<Count>) -> Result<Self> {
        let wait = engine.nested_set()?;
        let waiter = Waiter::on_counter(Arc::clone(count), wait.signal(wait.token()));
        let waiter = engine.lock().waiters.insert(waiter);
        Ok(Self { wait, waiter })
    }
}

impl<D: Device> Counter<D> {
    pub(in super::super) fn open(
        engine: Arc<Engine<D>>,
        attributes: CntrAttr,
        membership: Child,
    ) -> Result<Arc<Self>> {
        if attributes.events != constants::FI_CNTR_EVENTS_COMP {
            return Err(Errno::ENOSYS);
        }
        if attributes.flags != 0 {
            return Err(Errno::EBADFLAGS);
        }
        let (count, membership) = (Arc::default(), Mutex::new(Some(membership)));
        let descriptor = match attributes.wait_obj {
            constants::FI_WAIT_NONE | constants::FI_WAIT_UNSPEC | constants::FI_WAIT_MUTEX_COND => None,
            constants::FI_WAIT_FD => Some(Descriptor::new(&engine, &count)?),
            _ => return Err(Errno::ENOSYS),
        };
        Ok(Arc::new(Self { engine, count, membership, descriptor }))
    }

    fn drive(&self) {
        self.engine.with(|state| _ = state.drive());
    }

    /// For `fi_trywait`: whether the counter has changed since the last call, or may change now. Otherwise the
    /// descriptor becomes readable for the next change, whoever drives the engine.
    pub(in super::super) fn must_not_wait(&self) -> bool {
        let is_busy = self.engine.with(|state| {
            let is_busy = state.drive() || state.arm();
            let sleepers = self.descriptor.as_ref().and_then(|own| state.waiters.get_mut(own.waiter));
            sleepers.is_some_and(Waiter::take_change) || is_busy
        });
        is_busy || self.descriptor.as_ref().is_some_and(|own| self.engine.settle(&own.wait))
    }
}

impl<D: Device> CntrOps for Counter<D> {
    fn read(&self) -> u64 {
        self.drive();
        self.count.successes()
    }

    fn readerr(&self) -> u64 {
        self.drive();
        self.count.errors.load(Ordering::Relaxed)
    }

    fn add(&self, value: u64) -> Result<()> {
        self.engine.with(|_| self.count.successes.fetch_add(value, Ordering::Relaxed));
        Ok(())
    }

    fn adderr(&self, value: u64) -> Result<()> {
        self.engine.with(|_| self.count.errors.fetch_add(value, Ordering::Relaxed));
        Ok(())
    }

    fn set(&self, value: u64) -> Result<()> {
        self.engine.with(|_| self.count.set(value));
        Ok(())
    }

    fn seterr(&self, value: u64) -> Result<()> {
        self.engine.with(|_| self.count.errors.store(value, Ordering::Relaxed));
        Ok(())
    }

    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<()> {
        let give_up = timeout.map(|timeout| Instant::now() + timeout);
        let errors = self.count.errors.load(Ordering::Relaxed);
        if self.read() >= threshold {
            return Ok(());
        }
        let goal = Goal::Count { count: Arc::clone(&self.count), successes: threshold, errors };
        let is_reached = self.engine.wait_for(goal, give_up)?;
        if self.count.successes() >= threshold {
            Ok(())
        } else if self.count.errors.load(Ordering::Relaxed) != errors {
            Err(Errno::EAVAIL)
        } else if is_reached {
            // Another thread has set it to a lower number since.
            Ok(())
        } else {
            Err(Errno::ETIMEDOUT)
        }
    }
}

impl<D: Device> Fid for Counter<D> {
    const CANCELLATION_POINTS: bool = D::CANCELLATION_POINTS;

    fn close(&self) -> Result<()> {
        // Each endpoint and region that uses it has a reference, and so have its own sleepers.
        if Arc::strong_count(&self.count) > 1 + usize::from(self.descriptor.is_some()) {
            return Err(Errno::EBUSY);
        }
        if let Some(own) = &self.descriptor {
            self.engine.lock().waiters.try_remove(own.waiter);
        }
        *self.membership.lock() = None;
        Ok(())
    }

    fn control(&self, command: Control<'_>) -> Result<i32> {
        let own = self.descriptor.as_ref().ok_or(Errno::ENOSYS)?;
        wait::control(command, || Ok(own.wait.as_fd().as_raw_fd()))
    }
}
