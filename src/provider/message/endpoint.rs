//! The message endpoint: opening, binding, enabling, closing.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;

use super::completion_queue::CompletionQueue;
use super::counter::{Counter, Counters};
use super::engine::{Engine, id_of};
use super::inbox::{self, Inbox};
use super::info::{self, DEFAULT_SIZE, READS};
use super::limits::SPARE;
use super::operation::{Kind, Operations};
use super::rxm::Headers;
use super::shared_receive::{BoundReceives, SharedReceive};
use super::statistics::{self, Statistics};
use crate::abi::info::{RxAttr, TxAttr};
use crate::abi::{
    AnyFid, CmOps as _, Control, EndpointOps, Errno, Fid, FidHandle, InfoRef, OptionOut, PayloadPlaces,
    Result, UserContext, constants,
};
use crate::provider::children::Child;
use crate::provider::config::Config;
use crate::provider::domain::Domain;
use crate::provider::error::errno_of;
use crate::provider::event_queue::Binding;
use crate::provider::passive_endpoint::PassiveEndpoint;
use crate::provider::request::Request;
use rdma_verbs::process::Maker;
use rdma_verbs::{
    Device, MessageQueues as _, PeerAccesses, QpCapabilities, QpId, QueuePairs as _, RecvQueue,
};

/// An open message endpoint.
pub(in super::super) struct Endpoint<D: Device> {
    pub(super) engine: Arc<Engine<D>>,
    /// The peer that the info names, for `fi_connect` without one.
    pub(super) destination: Option<SocketAddr>,
    /// The connection request that this endpoint was opened for.
    pub(super) request: Option<Arc<Request<D>>>,
    handle: OnceLock<FidHandle>,
    maker: Maker,
    pub(super) sizes: Sizes,
    /// Whether its messages have tags.
    pub(super) tags: bool,
    /// Set if it is an endpoint of an [`ofi_rxm`](super::rxm) that tells where payload goes.
    pub(super) payload_places: Option<PayloadPlaces>,
    /// Its index in the engine, once it is enabled.
    pub(super) link: OnceLock<usize>,
    pub(super) setup: Mutex<Setup<D>>,
}

/// The sizes that the info requests.
pub(super) struct Sizes {
    pub(super) tx: usize,
    pub(super) rx: usize,
    pub(super) tx_flags: u64,
    pub(super) rx_flags: u64,
    /// Flags that each write has.
    pub(super) write_flags: u64,
}

/// The objects that are bound until the endpoint is enabled, and the references that keep others open.
pub(super) struct Setup<D: Device> {
    binding: Option<Binding>,
    tx: Option<Bound<D>>,
    rx: Option<Bound<D>>,
    counters: Counters,
    shared: Option<BoundReceives<D>>,
    /// Address to bind before connecting.
    pub(super) source: Option<SocketAddr>,
    membership: Option<Child>,
}

/// A completion queue that is bound for one direction. It counts as used until this is dropped.
struct Bound<D: Device> {
    queue: Arc<CompletionQueue<D>>,
    is_selective: bool,
}

impl<D: Device> Bound<D> {
    fn new(queue: &Arc<CompletionQueue<D>>, is_selective: bool) -> Self {
        queue.used(1);
        Self { queue: Arc::clone(queue), is_selective }
    }

    fn report(&self) -> Report {
        Report { at: self.queue.at, is_selective: self.is_selective }
    }
}

impl<D: Device> Drop for Bound<D> {
    fn drop(&mut self) {
        self.queue.used(-1);
    }
}

/// How the operations of one direction are reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    /// Index of the completion queue in the engine.
    pub(super) at: usize,
    /// Whether only operations that request it are reported.
    pub(super) is_selective: bool,
}

/// The engine's part of an enabled endpoint.
pub(super) struct Link {
    pub(super) qp: QpId,
    /// Whether it is for a connection request.
    pub(super) is_passive: bool,
    pub(super) phase: Phase,
    /// When a call was first refused because the connection has ended.
    pub(super) refused: Option<Instant>,
    pub(super) operations: Operations,
    /// Those that send, and those of them that read; and those that receive.
    pub(super) sends: usize,
    pub(super) reads: usize,
    pub(super) receives: usize,
    pub(super) tx: Report,
    pub(super) rx: Report,
    /// Whether the peer's writes with data wait until entries of the queue for receives are read.
    pub(super) holds_writes: bool,
    pub(super) counters: Counters,
    /// What the device counts for these.
    pub(super) accesses: Option<Arc<PeerAccesses>>,
    pub(super) statistics: Statistics,
    /// Index of the shared receive context in the engine.
    pub(super) shared: Option<usize>,
    /// Set on an endpoint with tags.
    pub(super) inbox: Option<Box<Inbox>>,
    /// Set on an endpoint of an [`ofi_rxm`](super::rxm) that tells where payload goes.
    pub(super) headers: Option<Box<Headers>>,
    pub(super) binding: Binding,
}

/// The connection of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Idle,
    Connecting,
    Connected,
    Over,
}

impl Link {
    /// Records that an operation has ended.
    pub(super) fn ended(&mut self, kind: Kind) {
        if kind.is_receive() {
            self.receives = self.receives.saturating_sub(1);
        } else {
            self.sends -= 1;
            self.reads -= usize::from(kind == Kind::Read);
        }
    }
}

impl<D: Device> Endpoint<D> {
    /// Opens an endpoint as `info` describes it.
    pub(in super::super) fn open(domain: &Domain<D>, info: InfoRef<'_>) -> Result<Arc<Self>> {
        let request = info.handle().and_then(|handle| handle.downcast::<Request<D>>());
        let passive = info.handle().and_then(|handle| handle.downcast::<PassiveEndpoint<D>>());
        let is_other_handle = info.handle().is_some() && request.is_none() && passive.is_none();
        let tags = info::has_tags(info);
        if is_other_handle || request.as_ref().is_some_and(|request| !request.is_of_messages(tags)) {
            return Err(Errno::EINVAL);
        }
        let engine = domain.engine()?;
        if !info::describes_endpoint(&engine.limits, info) {
            return Err(Errno::ENODATA);
        }
        let payload_places = engine.lock().payload_places.filter(|_| !tags);
        let size = |asked: usize| if asked == 0 { DEFAULT_SIZE } else { asked };
        let sizes = Sizes {
            tx: size(info.tx_attr().map_or(0, TxAttr::size)),
            rx: size(info.rx_attr().map_or(0, RxAttr::size)),
            tx_flags: info.tx_attr().map_or(0, TxAttr::op_flags),
            rx_flags: info.rx_attr().map_or(0, RxAttr::op_flags),
            write_flags: if Config::get().delivery { constants::FI_DELIVERY_COMPLETE } else { 0 },
        };
        // A passive endpoint that does not listen passes on its address.
        let bound = passive.map(|passive| passive.getname()).transpose()?;
        let (source, destination) = (bound.or(info.src_addr()?), info.dest_addr()?);
        if request.as_ref().is_some_and(|request| !request.claim()) {
            return Err(Errno::EINVAL);
        }
        let setup = Setup {
            binding: None,
            tx: None,
            rx: None,
            counters: Counters::default(),
            shared: None,
            source,
            membership: Some(domain.children().join()),
        };
        Ok(Arc::new(Self {
            engine,
            destination,
            request,
            handle: OnceLock::new(),
            maker: Maker::this_process(),
            sizes,
            tags,
            payload_places,
            link: OnceLock::new(),
            setup: Mutex::new(setup),
        }))
    }

    /// Whether it has the calls that send with tags.
    pub(in super::super) fn sends_tags(&self) -> bool {
        self.tags || self.payload_places.is_some()
    }

    /// Its place in the engine.
    pub(super) fn link(&self) -> Result<usize> {
        self.link.get().copied().ok_or(Errno::EOPBADSTATE)
    }

    /// Creates the queue pair, unless it exists.
    pub(super) fn enable(&self) -> Result<usize> {
        let mut setup = self.setup.lock();
        if let Some(&link) = self.link.get() {
            return Ok(link);
        }
        if setup.binding.is_none() {
            return Err(Errno::ENOEQ);
        }
        let (Some(tx), Some(rx)) = (&setup.tx, &setup.rx) else { return Err(Errno::ENOCQ) };
        let (tx, rx) = (tx.report(), rx.report());
        let depth = |size: usize| u32::try_from(size).map_err(|_| Errno::EINVAL);
        let requests = self.requests_per_operation();
        let wanted = QpCapabilities {
            send_depth: depth(self.sizes.tx * requests + SPARE as usize)?.min(self.engine.limits.send_depth),
            recv_depth: match setup.shared {
                Some(_) => 0,
                None if self.tags => inbox::RECEIVES,
                None => depth(self.sizes.rx)?,
            },
            inline: self.engine.limits.inject,
            initiator_depth: READS,
            responder_resources: READS,
        };
        let shared = setup.shared.as_ref().map(BoundReceives::at);
        let inbox = self.tags.then(|| Inbox::new().map(Box::new).ok_or(Errno::ENOMEM)).transpose()?;
        let link = self.engine.with(|state| {
            let srq = shared.map(|at| state.shared[at].srq);
            let (qp, granted) =
                state.cq.create_message_qp(self.engine.pd(), wanted, srq).map_err(errno_of)?;
            let is_granted = if granted.inline < wanted.inline { Err(Errno::ENOSPC) } else { Ok(()) };
            if let Err(error) = is_granted.and_then(|()| self.engine.watch(state, qp, [tx.at, rx.at])) {
                state.cq.destroy_qp(qp);
                return Err(error);
            }
            let number = self.request.as_ref().and_then(|request| request.number());
            let headers = self.payload_places.map(|_| Box::new(Headers::new(number)));
            // Checked above.
            let binding = setup.binding.take().ok_or(Errno::ENOEQ)?;
            let counters = std::mem::take(&mut setup.counters);
            let accesses = counters.is_of_accesses().then(|| state.cq.count_accesses(qp)).flatten();
            if let Some(accesses) = &accesses {
                counters.watch(accesses);
            }
            let (phase, operations) = (Phase::Idle, Operations::default());
            let (sends, reads, receives) = (0, 0, 0);
            let at = state.add(Link {
                qp,
                is_passive: self.request.is_some(),
                phase,
                refused: None,
                operations,
                sends,
                reads,
                receives,
                tx,
                rx,
                holds_writes: false,
                counters,
                accesses,
                statistics: Statistics::default(),
                shared,
                inbox,
                headers,
                binding,
            });
            state.with_inbox(at, Inbox::expect_header);
            Ok::<_, Errno>(at)
        })?;
        Ok(*self.link.get_or_init(|| link))
    }

    /// Binds a completion queue.
    fn bind_queue(&self, setup: &mut Setup<D>, queue: &Arc<CompletionQueue<D>>, flags: u64) -> Result<()> {
        let directions = constants::FI_TRANSMIT | constants::FI_RECV;
        if flags & !(directions | constants::FI_SELECTIVE_COMPLETION) != 0 {
            return Err(Errno::EBADFLAGS);
        }
        if flags & directions == 0 {
            return Err(Errno::EINVAL);
        }
        let is_selective = flags & constants::FI_SELECTIVE_COMPLETION != 0;
        let (sends, receives) = (flags & constants::FI_TRANSMIT != 0, flags & constants::FI_RECV != 0);
        if sends && setup.tx.is_some() || receives && setup.rx.is_some() {
            return Err(Errno::EINVAL);
        }
        if sends {
            setup.tx = Some(Bound::new(queue, is_selective));
        }
        if receives {
            setup.rx = Some(Bound::new(queue, is_selective));
        }
        Ok(())
    }
}

impl<D: Device> Fid for Endpoint<D> {
    const CANCELLATION_POINTS: bool = D::CANCELLATION_POINTS;
    const DESCRIPTORS: bool = D::LOCAL_KEYS;

    fn opened(&self, handle: FidHandle) {
        // Called once, before any other call.
        let _ = self.handle.set(handle);
    }

    fn close(&self) -> Result<()> {
        if let Some(&link) = self.link.get() {
            // After a fork, only the process that opened the endpoint ends the connection.
            if self.maker.is_this_process() {
                self.engine.with(|state| {
                    statistics::report(state, link);
                    state.remove(link);
                });
            } else {
                self.engine.lock().abandon(link);
            }
        }
        let mut setup = self.setup.lock();
        (setup.binding, setup.tx, setup.rx, setup.shared) = (None, None, None, None);
        setup.counters = Counters::default();
        setup.membership = None;
        drop(setup);
        if let Some(request) = &self.request {
            request.abandon();
        }
        Ok(())
    }

    fn bind(self: &Arc<Self>, other: &AnyFid, flags: u64) -> Result<()> {
        let fid = *self.handle.get().ok_or(Errno::EINVAL)?;
        let mut setup = self.setup.lock();
        if self.link.get().is_some() {
            return Err(Errno::EOPBADSTATE);
        }
        // Objects of other domains have indexes in other engines.
        let is_of_domain =
            |engine| if Arc::ptr_eq(engine, &self.engine) { Ok(()) } else { Err(Errno::EDOMAIN) };
        if let Some(queue) = other.downcast::<CompletionQueue<D>>() {
            is_of_domain(&queue.engine)?;
            return self.bind_queue(&mut setup, &queue, flags);
        }
        if let Some(counter) = other.downcast::<Counter<D>>() {
            is_of_domain(&counter.engine)?;
            return setup.counters.bind(&counter.count, flags);
        }
        if let Some(shared) = other.downcast::<SharedReceive<D>>() {
            is_of_domain(&shared.engine)?;
            if flags & !constants::FI_RECV != 0 {
                return Err(Errno::EBADFLAGS);
            }
            if setup.shared.is_some() || self.tags {
                return Err(Errno::EINVAL);
            }
            setup.shared = Some(BoundReceives::new(shared));
            return Ok(());
        }
        Binding::make(&mut setup.binding, other, flags, self, fid)
    }

    fn control(&self, command: Control<'_>) -> Result<i32> {
        match command {
            Control::Enable => self.enable().map(|_| 0),
            _ => Err(Errno::ENOSYS),
        }
    }
}

impl<D: Device> EndpointOps for Endpoint<D> {
    fn getopt(&self, level: i32, name: i32, out: &mut OptionOut<'_>) -> Result<()> {
        getopt(level, name, out, self.engine.limits.user_data)
    }

    fn setopt(&self, _level: i32, _name: i32, _value: &[u8]) -> Result<()> {
        Err(Errno::ENOPROTOOPT)
    }

    fn cancel(&self, context: UserContext) -> Result<()> {
        let at = self.link()?;
        self.engine.with(|state| {
            if let Some(was_there) = state.with_inbox(at, |inbox, parts| inbox.cancel(parts, context)) {
                return if was_there { Ok(()) } else { Err(Errno::ENOENT) };
            }
            let link = state.links.get_mut(at).ok_or(Errno::EOPBADSTATE)?;
            // Several receives may have one context, and messages may have reached some of them.
            let known =
                link.operations.iter().filter(|(_, one)| one.kind == Kind::Recv && one.context == context);
            let queue = RecvQueue::Own(link.qp);
            let operation = known
                .map(|(operation, _)| operation)
                .find(|&operation| state.cq.cancel_recv(queue, id_of(at, operation)))
                .ok_or(Errno::ENOENT)?;
            let cancelled = link.operations.remove(operation);
            link.ended(Kind::Recv);
            link.counters.count(Kind::Recv, false);
            let queue = link.rx.at;
            state.queues[queue].push(cancelled.cancelled());
            Ok(())
        })
    }

    fn tx_size_left(&self) -> Result<usize> {
        let at = self.link()?;
        let mut state = self.engine.lock();
        let link = state.link(at)?;
        let (qp, left) = (link.qp, self.sizes.tx.saturating_sub(link.sends));
        let room = state.cq.send_room(qp).map(|room| room / self.requests_per_operation());
        Ok(room.map_or(left, |room| left.min(room)))
    }

    fn rx_size_left(&self) -> Result<usize> {
        let at = self.link()?;
        Ok(self.sizes.rx.saturating_sub(self.engine.lock().link(at)?.receives))
    }
}

/// `fi_getopt` of active and passive endpoints of messages, whose connection data has so much room for the
/// application.
pub(in super::super) fn getopt(
    level: i32,
    name: i32,
    out: &mut OptionOut<'_>,
    user_data: usize,
) -> Result<()> {
    let asked = (u32::try_from(level), u32::try_from(name));
    if asked != (Ok(constants::FI_OPT_ENDPOINT), Ok(constants::FI_OPT_CM_DATA_SIZE)) {
        return Err(Errno::ENOPROTOOPT);
    }
    out.put_integer(user_data as u64, &[size_of::<usize>()])
}
