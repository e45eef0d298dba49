#![doc = include_str!("../README.md")]
//!
//! # The model
//!
//! The traits here follow the RDMA verbs as an application knows them, with one difference that
//! Rust asks for: **a completion queue owns the queue pairs that report to it**. It is the unit of
//! progress and of exclusion, so that nothing inside needs a lock of its own: whoever shares a
//! completion queue between threads puts it behind one lock, and everything reached through it is
//! covered. Any number of queue pairs may report to one queue.
//!
//! ```text
//! Device ── alloc_pd ──▶ ProtectionDomain ── register ──▶ MemoryRegion (keys, rights)
//!    ├── create_cq ────▶ CompletionQueue ─── create_qp ─▶ QpNumber (send, receive, write, read)
//!    └── listen ───────▶ Listener ────────── poll ──────▶ ConnectionRequest (accept or reject)
//! ```
//!
//! All calls return at once; what takes time is finished by later calls
//! ([`CompletionQueue::poll`], [`CompletionQueue::poll_event`], [`Listener::poll`]). A
//! [`WaitSet`] is the file descriptor that says when such a call is worth making.
//!
#![deny(unsafe_code)]
// What a peer or a consumer says never panics: nothing outside tests asks for it.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod error;
#[cfg(feature = "ibv")]
#[allow(unsafe_code)]
pub mod ibv;
pub mod iwarp;
#[allow(unsafe_code)]
pub mod memory;
pub mod process;
#[allow(unsafe_code)]
pub mod shm;
mod ticks;
mod wait;
mod work;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use error::{BreakReason, ConnectError, Error, Result};
pub use memory::Memory;
pub use wait::{Interest, Signal, Token, WaitSet};
pub use work::{
    Access, Completion, CompletionKind, CompletionStatus, Operation, Payload, RecvRequest, RemoteAddress,
    Segment, SendRequest,
};

/// What a device can do, constant over its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Short name of the kind of device, for messages (`"iwarp"`).
    pub name: &'static str,
    /// Whose rules the connection follows.
    pub transport: Transport,
    /// Whether writes and sends with immediate data can be posted and received.
    pub immediate: bool,
    /// Most entries that a queue pair's send queue can have.
    pub max_send_depth: u32,
    /// Most entries that a queue pair's receive queue can have.
    pub max_recv_depth: u32,
    /// Most bytes of private data in a connection request, reply or reject.
    pub max_private_data: usize,
    /// Longest single message, in bytes.
    pub max_message: u64,
}

/// The transport under a device, as far as a consumer can tell the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// InfiniBand or RoCE: writes with immediate are part of the transport.
    InfiniBand,
    /// iWARP (RFC 5040 to 5044): immediate data only between peers that agreed on RFC 7306.
    Iwarp,
}

/// A queue pair, named within the completion queue that owns it. Numbers are not used again while
/// the queue lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpNumber(pub u32);

/// Sizes of a queue pair: asked for in [`CompletionQueue::create_qp`], which answers what was
/// granted (at least what was asked, except for `inline`, which is a request and not a promise).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCapabilities {
    /// Send work requests that may be posted and not completed. One holds its entry until its
    /// completion is polled; one whose success is not reported until it is done, or at the latest
    /// until a completion behind it is polled.
    pub send_depth: u32,
    /// Receives that may be posted and not completed, in the same sense.
    pub recv_depth: u32,
    /// Bytes of [`Payload::Inline`] in one request.
    pub inline: usize,
    /// RDMA reads that this side may have outstanding (ORD).
    pub initiator_depth: u8,
    /// RDMA reads of the peer that this side serves at a time (IRD).
    pub responder_resources: u8,
}

/// How to connect, accept or listen.
#[derive(Debug, Clone)]
pub struct ConnectOptions {
    /// After how long without an established connection the attempt fails with
    /// [`ConnectError::TimedOut`].
    pub timeout: Duration,
    /// After how long of silence a vanished host is noticed; at most twice this time passes.
    pub keepalive: Duration,
}

/// Where connection events of one queue pair or listener are announced: the wait set, and the
/// token by which its owner knows whom to ask.
#[derive(Debug, Clone)]
pub struct EventTarget {
    /// Becomes readable when there is something to ask for.
    pub wait: Arc<WaitSet>,
    /// Reported by [`WaitSet::wait`] for it.
    pub token: Token,
}

/// What happened to a connection. Each is reported once, in this order: at most one of the first
/// three, then, only after `Established`, at most one of the last two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The connection stands and carries data. The active side gets the private data of the reply;
    /// the passive side gets none.
    Established {
        /// Exact bytes where the transport keeps lengths, zero-padded where it does not.
        private_data: Vec<u8>,
    },
    /// The passive side refused, with its private data.
    Rejected {
        /// See `Established`.
        private_data: Vec<u8>,
    },
    /// There is no connection and will be none.
    Failed(ConnectError),
    /// The peer ended the connection in an orderly way; nothing of what it sent is missing.
    Disconnected,
    /// The connection broke; completions that were polled before stay true.
    Broken(BreakReason),
}

/// An RDMA device.
pub trait Device: Send + Sync + 'static {
    /// Groups memory regions and queue pairs that may work together.
    type Pd: ProtectionDomain<Mr = Self::Mr>;
    /// Memory that the device may read or write.
    type Mr: MemoryRegion;
    /// Completions, and the queue pairs that report them.
    type Cq: CompletionQueue<Pd = Self::Pd, Request = Self::Request>;
    /// A passive endpoint.
    type Listener: Listener<Request = Self::Request>;
    /// A connection that a peer asked for.
    type Request: ConnectionRequest;

    /// Whether sending, receiving and looking for completions may come upon a cancellation point of the C
    /// library (`pthreads(7)`). [`CompletionQueue::abort`] always may.
    const CANCELLATION_POINTS: bool;

    /// What this device can do.
    fn attributes(&self) -> DeviceAttributes;

    /// Makes a protection domain.
    fn alloc_pd(&self) -> Result<Self::Pd>;

    /// Makes a completion queue that holds up to `depth` completions: at least the sum of the
    /// queue depths of its queue pairs.
    fn create_cq(&self, depth: u32) -> Result<Self::Cq>;

    /// Listens on `address` (port 0: any free port). `backlog` bounds the connections that are
    /// not asked for by [`Listener::poll`] yet, those in a handshake included.
    fn listen(
        &self,
        address: SocketAddr,
        backlog: u32,
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<Self::Listener>;
}

/// A protection domain: memory regions and queue pairs work together only within one.
pub trait ProtectionDomain: Send + Sync {
    /// The regions made here.
    type Mr: MemoryRegion;

    /// Registers `memory` with the given rights. Local reading is always allowed.
    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<Self::Mr>;
}

/// Registered memory. The keys die with the value; the memory lives at least as long.
pub trait MemoryRegion: Send + Sync {
    /// Key for local use, in [`Segment`].
    fn local_key(&self) -> u32;
    /// Key for a peer's use, in [`RemoteAddress`]: rkey or STag.
    fn remote_key(&self) -> u32;
    /// Address of the region's first byte, for [`Segment`] and [`RemoteAddress`]. A device may
    /// count from zero rather than tell peers where memory lies.
    fn address(&self) -> u64;
    /// The memory itself.
    fn memory(&self) -> &Arc<Memory>;
}

/// A completion queue and the queue pairs that report to it.
pub trait CompletionQueue: Send {
    /// The device's protection domain.
    type Pd;
    /// The device's connection request.
    type Request;

    /// Makes a queue pair whose sends and receives complete here. Receives may be posted at once;
    /// post them before connecting or accepting, because iWARP has no retry for a message that
    /// finds none.
    fn create_qp(&mut self, pd: &Self::Pd, wanted: QpCapabilities) -> Result<(QpNumber, QpCapabilities)>;

    /// Destroys a queue pair. What it had outstanding never completes; a connection that still
    /// stands is cut (call [`CompletionQueue::disconnect`] first for an orderly end).
    fn destroy_qp(&mut self, qp: QpNumber);

    /// Starts connecting. `local` binds the active side's address first. The outcome is told by
    /// [`CompletionQueue::poll_event`].
    fn connect(
        &mut self,
        qp: QpNumber,
        remote: SocketAddr,
        local: Option<SocketAddr>,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()>;

    /// Accepts a request on this queue pair. The outcome is told by
    /// [`CompletionQueue::poll_event`], also where the peer has left.
    fn accept(
        &mut self,
        qp: QpNumber,
        request: Self::Request,
        private_data: &[u8],
        options: &ConnectOptions,
        events: EventTarget,
    ) -> Result<()>;

    /// Before [`CompletionQueue::connect`]: makes a place where the peer at `remote`, if it is on this
    /// host and the device knows how, can take part in sharing memory, `target` in it, for which the
    /// peer has to be told. `None`: there is no such place.
    fn invite(
        &mut self,
        _qp: QpNumber,
        _remote: SocketAddr,
        _target: &dyn MemoryRegion,
    ) -> Option<shm::Invitation> {
        None
    }

    /// Before [`CompletionQueue::accept`]: follows the peer's invitation. What `target` holds is lost.
    /// Answers whether memory is shared, of which the peer has to be told.
    fn visit(
        &mut self,
        _qp: QpNumber,
        _request: &Self::Request,
        _invitation: &shm::Invitation,
        _target: &dyn MemoryRegion,
    ) -> bool {
        false
    }

    /// After [`ConnectionEvent::Established`] on the side that invited: whether the peer says that it
    /// came. The connection works the same whatever comes of it. Poll afterwards, as after
    /// [`CompletionQueue::attach`].
    fn meet(&mut self, _qp: QpNumber, _visited: bool) {}

    /// Whether memory is shared with the peer, so that messages cost next to nothing but their copies.
    fn shares_memory(&self, _qp: QpNumber) -> bool {
        false
    }

    /// Begins an orderly end: what was posted goes out first, then the peer sees
    /// [`ConnectionEvent::Disconnected`]. Nothing can be posted afterwards; what arrives is
    /// still received.
    fn disconnect(&mut self, qp: QpNumber);

    /// Ends the connection at once as broken, telling the peer so (Terminate, reset).
    fn abort(&mut self, qp: QpNumber);

    /// Whether everything that was posted has reached the peer's host, as far as the transport
    /// tells: after that an end of this process loses nothing. No wake-up says when it becomes so:
    /// ask again after a pause.
    fn flushed(&mut self, qp: QpNumber) -> bool;

    /// The next connection event of this queue pair; drives its connection. `None`: nothing new;
    /// ask again when the event target reports its token, or at [`CompletionQueue::deadline`].
    fn poll_event(&mut self, qp: QpNumber) -> Option<ConnectionEvent>;

    /// When [`CompletionQueue::poll_event`] wants to be called even if nothing happens; by now if an event
    /// waits.
    fn deadline(&self, qp: QpNumber) -> Option<Instant>;

    /// The local address, once there is one.
    fn local_address(&self, qp: QpNumber) -> Option<SocketAddr>;

    /// The peer's address, once there is a connection.
    fn peer_address(&self, qp: QpNumber) -> Option<SocketAddr>;

    /// Posts receives, in order. All or none: [`Error::QueueFull`] if they do not fit. A device that takes some
    /// and refuses the rest breaks the connection, and answers why.
    fn post_recv(&mut self, qp: QpNumber, requests: &[RecvRequest]) -> Result<()>;

    /// Posts sends, in order. All or none, as [`CompletionQueue::post_recv`]. Inline payload
    /// may be reused when the call returns. With `more` the device may hold the requests back to
    /// send them with what follows; any later call that drives the queue pair sends them. Where the
    /// device has no memory for what must wait, it answers [`Error::Io`] and the connection is broken.
    fn post_send(&mut self, qp: QpNumber, requests: &[SendRequest<'_>], more: bool) -> Result<()>;

    /// Fills `out` with completions and answers how many; completions that are already there come
    /// without input or output, and only if there are none the queue pairs are driven. 0 means
    /// that nothing is left to do until the wait set says so.
    fn poll(&mut self, out: &mut [Completion]) -> usize;

    /// From now on `wait` becomes readable when [`CompletionQueue::poll`] would do something, as after
    /// [`CompletionQueue::arm`]. Of what is there already it may not tell: poll once more. Several sets are not
    /// supported: a later call replaces the earlier set. [`Signal::Queue`] of the set is this queue's as long
    /// as it lives.
    fn attach(&mut self, wait: Arc<WaitSet>) -> Result<()>;

    /// Asks for the next wake-up on the attached set; call it when `poll` answered 0 and the caller
    /// is about to sleep. Answers whether a completion may have come in between: then poll once
    /// more first. Devices whose wait set follows their state by itself answer `false`. Of connection events
    /// that wait [`CompletionQueue::deadline`] tells.
    fn arm(&mut self) -> Result<bool>;
}

/// A passive endpoint that listens.
pub trait Listener: Send {
    /// What a peer asked for.
    type Request: ConnectionRequest;

    /// The address it listens on, with the real port.
    fn local_address(&self) -> SocketAddr;

    /// The next connection request; drives the handshakes. A peer that is slow or silent in its
    /// handshake holds up nobody else, and a crowd of peers does not hold up the caller: what is left to do is
    /// announced again. `None`: ask again when the event target reports its token, or at
    /// [`Listener::deadline`].
    fn poll(&mut self) -> Option<Self::Request>;

    /// When [`Listener::poll`] wants to be called even if nothing happens.
    fn deadline(&self) -> Option<Instant>;
}

/// A connection that a peer asked for: accept it with [`CompletionQueue::accept`], or reject it.
/// Dropping it cuts the connection without an answer.
pub trait ConnectionRequest: Send {
    /// What the peer sent along; exact bytes where the transport keeps lengths.
    fn private_data(&self) -> &[u8];
    /// Where it comes from.
    fn peer_address(&self) -> SocketAddr;
    /// Where it arrived.
    fn local_address(&self) -> SocketAddr;
    /// Whether its peer is known to have left: then the request holds nothing of the system's any more, and who
    /// accepts it meets [`ConnectError::Closed`]. [`Listener::poll`] finds that out, if the transport tells.
    fn has_left(&self) -> bool {
        false
    }
    /// Refuses it, with private data that the peer reads in [`ConnectionEvent::Rejected`].
    fn reject(self, private_data: &[u8]);
}
