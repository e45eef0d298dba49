//! Work requests and their completions. All are plain values.

use std::io::IoSlice;

use crate::Place;

bitflags::bitflags! {
    /// Rights on a memory region. Local reading is always allowed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Receives and RDMA Reads of this side may write it.
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
    /// Address of its first byte, as [`super::MemoryRegion::address`] counts.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
}

/// An address in the peer's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The peer's [`super::MemoryRegion::remote_key`].
    pub key: u32,
    /// Address of the first byte.
    pub address: u64,
}

/// A receive. An arriving message consumes the oldest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvRequest<'a> {
    /// Reported in [`Completion::id`].
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
    /// Lent memory, filled in this order: at most [`super::DeviceAttributes::max_places`] places.
    Places(&'a [Place]),
}

impl Buffer<'_> {
    /// Length in bytes.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Segment(segment) => segment.length.into(),
            // The usual buffer costs no loop.
            Self::Places([place]) => place.len() as u64,
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
    /// Reported in [`Completion::id`].
    pub id: u64,
    /// Whether its success is reported. A completion also means that all requests posted before it on the
    /// same queue pair are done. Failures are always reported.
    pub signaled: bool,
    /// The operation.
    pub operation: Operation,
    /// The local bytes: source of sends and writes, target of reads.
    pub payload: Payload<'a>,
}

/// The operation of a send request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Deliver the payload to the peer's oldest receive.
    Send {
        /// Delivered in [`Completion::immediate`] of the receive. It has at most
        /// [`super::DeviceAttributes::immediate`] bits. Together with payload only on a queue pair for
        /// [messages](crate::MessageQueues).
        immediate: Option<u64>,
        /// Remote key of the peer to invalidate (Send with Invalidate). The embedded device breaks the
        /// connection if other queue pairs use the peer's protection domain, and so the key, or if the peer
        /// has [named](crate::ProtectionDomain::register_as) the region.
        invalidate: Option<u32>,
        /// Whether to wake the peer (solicited event).
        solicited: bool,
    },
    /// Place the payload in the peer's memory.
    Write {
        /// Its destination.
        remote: RemoteAddress,
        /// With it, the write also consumes the peer's oldest receive and completes there.
        immediate: Option<u64>,
    },
    /// Fetch from the peer's memory into the payload: one segment, or places.
    Read {
        /// Its source.
        remote: RemoteAddress,
    },
}

/// The local bytes of a send request.
#[derive(Debug, Clone, Copy)]
pub enum Payload<'a> {
    /// The caller's memory. The call takes its content before it returns. At most
    /// [`super::QpCapabilities::inline`] bytes.
    Inline(&'a [IoSlice<'a>]),
    /// Registered memory, which must not change until the request completes.
    Segments(&'a [Segment]),
    /// The same, of a send or write that begins when all reads posted before it are done (a *fence*): so it
    /// can have what they fetch. It has no immediate data, and its queue pair is not for
    /// [messages](crate::MessageQueues).
    Fenced(&'a [Segment]),
    /// Lent memory: at most [`super::DeviceAttributes::max_places`] places.
    Places(&'a [Place]),
}

impl Payload<'_> {
    /// Checks that a [`Payload::Fenced`] is that of a request that can have one.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported)
    pub fn check_fence(&self, operation: Operation) -> crate::Result<()> {
        let Self::Fenced(_) = self else { return Ok(()) };
        match operation {
            Operation::Send { immediate: None, .. } | Operation::Write { immediate: None, .. } => Ok(()),
            _ => Err(crate::Error::Unsupported("fenced reads, or immediate data of fenced requests")),
        }
    }

    /// Length in bytes.
    #[must_use]
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            // The usual payloads cost no loop.
            Self::Inline([slice]) => slice.len(),
            Self::Segments([segment]) | Self::Fenced([segment]) => segment.length as usize,
            Self::Places([place]) => place.len(),
            _ => self.sum(),
        }
    }

    /// Length in bytes, by adding up that of all pieces.
    #[inline(never)]
    fn sum(&self) -> usize {
        match self {
            Self::Inline(slices) => slices.iter().map(|slice| slice.len()).sum(),
            Self::Segments(segments) | Self::Fenced(segments) => {
                segments.iter().map(|segment| segment.length as usize).sum()
            }
            Self::Places(places) => places.iter().map(Place::len).sum(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The kind of a completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CompletionKind {
    /// A send of this side is done.
    Send,
    /// A write of this side is done.
    Write,
    /// A read of this side is done.
    Read,
    /// A message arrived in a receive.
    Recv,
    /// A peer's write with immediate data arrived. It consumed a receive, unless its id is
    /// [`Completion::NO_RECEIVE`].
    RecvWrite,
}

/// The outcome of a work request. If the transport shows which request failed, the device reports the failure
/// there. Other requests are [`CompletionStatus::Flushed`], and the connection's
/// [`BreakReason`](crate::BreakReason) gives the cause. Over iWARP, sends and writes succeed when TCP has
/// taken them, so only a read reports a failure on the peer's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum CompletionStatus {
    /// The request succeeded.
    #[error("success")]
    Success,
    /// The connection ended before the request was done.
    #[error("flushed")]
    Flushed,
    /// A receive: the message was longer than it.
    #[error("the message was longer than its receive")]
    Truncated,
    /// A local key, bound or right was wrong, or the region was deregistered before the request was done.
    #[error("no access to local memory")]
    LocalAccess,
    /// This side could not carry out the request for another reason.
    #[error("the request failed on this side")]
    LocalOperation,
    /// The peer's key, bound or right was wrong.
    #[error("no access to the peer's memory")]
    RemoteAccess,
    /// The peer could not carry out the request for another reason: it was longer than the receive that it
    /// consumed, or of a kind that the peer does not support.
    #[error("the request failed on the peer's side")]
    RemoteOperation,
    /// The peer posted no receive for it while the device retried.
    #[error("the peer had no receive")]
    ReceiverNotReady,
    /// The peer's host did not answer while the device retried.
    #[error("no answer from the peer's host")]
    Unanswered,
    /// The device failed.
    #[error("the device failed")]
    DeviceFailed,
}

/// A work completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The queue pair.
    pub qp: super::QpId,
    /// The request's id.
    pub id: u64,
    /// The kind of request.
    pub kind: CompletionKind,
    /// The outcome. The fields below are valid only after success, and the length also after
    /// [`CompletionStatus::Truncated`].
    pub status: CompletionStatus,
    /// Number of bytes of the message received ([`CompletionKind::Recv`]) or written by the peer
    /// ([`CompletionKind::RecvWrite`]); otherwise 0. Of a peer's write, it is the length of the write, and on the
    /// embedded device, except on queue pairs for [messages](crate::MessageQueues), of all writes since the
    /// peer's last message.
    pub length: u32,
    /// The peer's immediate data.
    pub immediate: Option<u64>,
    /// A key of this side that the peer invalidated.
    pub invalidated: Option<u32>,
}

impl Completion {
    /// Id of a [`CompletionKind::RecvWrite`] that consumed no receive: on queue pairs for
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
