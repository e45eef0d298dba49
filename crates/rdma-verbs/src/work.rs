//! Work requests and their completions: plain values.

use std::io::IoSlice;

use crate::Place;

bitflags::bitflags! {
    /// Rights on a memory region. Local reading is always allowed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Receives and RDMA reads of this side may fill it.
        const LOCAL_WRITE = 1 << 0;
        /// The peer may write it.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may read it.
        const REMOTE_READ = 1 << 2;
    }
}

/// A piece of a local memory region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// [`super::MemoryRegion::local_key`].
    pub key: u32,
    /// Address of its first byte, counted as [`super::MemoryRegion::address`] counts.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
}

/// A place in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The peer's [`super::MemoryRegion::remote_key`].
    pub key: u32,
    /// Address of the first byte.
    pub address: u64,
}

/// A receive: a message that arrives takes the oldest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvRequest<'a> {
    /// Comes back in [`Completion::id`].
    pub id: u64,
    /// Where the payload goes.
    pub buffer: Buffer<'a>,
}

/// The memory of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer<'a> {
    /// None: for messages without payload.
    Empty,
    /// Registered memory.
    Segment(Segment),
    /// Memory on loan, filled in this order: at most [`super::DeviceAttributes::max_places`].
    Places(&'a [Place]),
}

impl Buffer<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Segment(segment) => segment.length.into(),
            Self::Places(places) => places.iter().map(|place| place.len() as u64).sum(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A send, write or read.
#[derive(Debug, Clone, Copy)]
pub struct SendRequest<'a> {
    /// Comes back in [`Completion::id`].
    pub id: u64,
    /// Whether its success is reported. A completion also says that all requests posted before it
    /// on the same queue pair are done. Failures are always reported.
    pub signaled: bool,
    /// What to do.
    pub operation: Operation,
    /// The local bytes: source of sends and writes, target of reads.
    pub payload: Payload<'a>,
}

/// What a send request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Deliver the payload to the peer's oldest receive.
    Send {
        /// Delivered in [`Completion::immediate`] of the receive; of as many bits as
        /// [`super::DeviceAttributes::immediate`] says. With payload only on a queue pair for
        /// [messages](crate::MessageQueues).
        immediate: Option<u64>,
        /// Remote key of the peer's that it gives up (Send with Invalidate). The embedded device breaks the
        /// connection if other queue pairs use the peer's protection domain, and so the key.
        invalidate: Option<u32>,
        /// Asks the peer to be woken (solicited event).
        solicited: bool,
    },
    /// Place the payload in the peer's memory.
    Write {
        /// Where.
        remote: RemoteAddress,
        /// With it the write also takes the peer's oldest receive and completes there.
        immediate: Option<u64>,
    },
    /// Fetch from the peer's memory into the payload: one segment, or places.
    Read {
        /// From where.
        remote: RemoteAddress,
    },
}

/// The local bytes of a send request.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// The caller's memory, taken before the call returns. At most
    /// [`super::QpCapabilities::inline`] bytes.
    Inline(&'a [IoSlice<'a>]),
    /// Registered memory, which must stay as it is until the request completes.
    Segments(&'a [Segment]),
    /// Memory on loan: at most [`super::DeviceAttributes::max_places`].
    Places(&'a [Place]),
}

impl Payload<'_> {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Inline(slices) => slices.iter().map(|slice| slice.len()).sum(),
            Self::Segments(segments) => segments.iter().map(|segment| segment.length as usize).sum(),
            Self::Places(places) => places.iter().map(Place::len).sum(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a completion reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompletionKind {
    /// A send of ours is done.
    Send,
    /// A write of ours is done.
    Write,
    /// A read of ours is done.
    Read,
    /// A message arrived in a receive.
    Recv,
    /// A peer's write with immediate arrived. It took a receive, unless its id is [`Completion::NO_RECEIVE`].
    RecvWrite,
}

/// How a work request ended. A device reports a failure at the request that met it where its transport tells
/// which one that was; elsewhere requests are [`CompletionStatus::Flushed`], and the connection's
/// [`BreakReason`](crate::BreakReason) says why. Over iWARP sends and writes succeed when TCP has taken them,
/// so that only a read learns what the peer thinks of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionStatus {
    /// As asked.
    #[error("success")]
    Success,
    /// The connection ended first.
    #[error("flushed")]
    Flushed,
    /// A receive: the message was longer.
    #[error("the message was longer than its receive")]
    Truncated,
    /// A local key, bound or right was wrong, or its region went before the request was done.
    #[error("no access to local memory")]
    LocalAccess,
    /// The device could not carry the request out on this side, for another reason.
    #[error("the request failed on this side")]
    LocalOperation,
    /// The peer's key, bound or right was wrong.
    #[error("no access to the peer's memory")]
    RemoteAccess,
    /// The peer's device could not carry the request out for another reason: it was longer than the receive
    /// that it took, or of a kind that the peer does not serve.
    #[error("the request failed on the peer's side")]
    RemoteOperation,
    /// The peer had no receive for it, for as long as the device tries.
    #[error("the peer had no receive")]
    ReceiverNotReady,
    /// The peer's host did not answer, for as long as the device tries.
    #[error("no answer from the peer's host")]
    Unanswered,
    /// The device failed.
    #[error("the device failed")]
    DeviceFailed,
}

/// A work completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// On which queue pair.
    pub qp: super::QpId,
    /// The request's id.
    pub id: u64,
    /// What it was.
    pub kind: CompletionKind,
    /// How it ended; the fields below count only after success, and the length after
    /// [`CompletionStatus::Truncated`] as well.
    pub status: CompletionStatus,
    /// Bytes of the message received ([`CompletionKind::Recv`]) or written by the peer
    /// ([`CompletionKind::RecvWrite`]); else 0.
    pub length: u32,
    /// The peer's immediate data.
    pub immediate: Option<u64>,
    /// A key of ours that the peer gave up; it is no longer valid.
    pub invalidated: Option<u32>,
}

impl Completion {
    /// Id of a [`CompletionKind::RecvWrite`] that took no receive: on queue pairs for
    /// [messages](crate::MessageQueues) of the embedded device.
    pub const NO_RECEIVE: u64 = u64::MAX;

    /// A value to fill arrays with before [`super::CompletionQueue::poll`].
    pub const EMPTY: Self = Self {
        qp: super::QpId(u32::MAX),
        id: 0,
        kind: CompletionKind::Send,
        status: CompletionStatus::Flushed,
        length: 0,
        immediate: None,
        invalidated: None,
    };
}
