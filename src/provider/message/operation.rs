//! An operation from its call to its completion.

use std::ops::{Deref, DerefMut};

use slab::Slab;

use crate::abi::{Completion, CompletionError, Errno, UserContext, constants};
use rdma_verbs::CompletionStatus;

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Recv,
    Write,
    Read,
    /// [`Kind::Send`] and [`Kind::Recv`] of a message with a tag.
    TaggedSend,
    TaggedRecv,
}

impl Kind {
    /// The flags of its completions.
    fn flags(self) -> u64 {
        match self {
            Self::Send => constants::FI_SEND | constants::FI_MSG,
            Self::Recv => constants::FI_RECV | constants::FI_MSG,
            Self::Write => constants::FI_RMA | constants::FI_WRITE,
            Self::Read => constants::FI_RMA | constants::FI_READ,
            Self::TaggedSend => constants::FI_SEND | constants::FI_TAGGED,
            Self::TaggedRecv => constants::FI_RECV | constants::FI_TAGGED,
        }
    }

    /// The same without a tag.
    #[inline]
    pub(super) fn untagged(self) -> Self {
        match self {
            Self::TaggedSend => Self::Send,
            Self::TaggedRecv => Self::Recv,
            other => other,
        }
    }

    /// Whether it receives a message.
    #[inline]
    pub(super) fn is_receive(self) -> bool {
        matches!(self, Self::Recv | Self::TaggedRecv)
    }
}

/// An operation that is posted and not reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    pub(super) context: UserContext,
    /// Whether its call asks for a report of its success (`FI_COMPLETION`). Without, a selective completion queue
    /// gets only its failure.
    pub(super) asks: bool,
    /// Whether it never has a completion in a queue.
    pub(super) is_injected: bool,
    /// Length of the buffer of a receive, in bytes.
    pub(super) room: u32,
    /// The number of calls before its own, modulo 2^32.
    pub(super) order: u32,
    /// The tag that a receive takes, or that of the message that it has taken.
    pub(super) tag: u64,
    /// Number of its work requests that are not complete.
    pub(super) left: u8,
    /// The first failure among the complete ones.
    pub(super) failure: Option<CompletionStatus>,
}

/// The operations of one endpoint, or of one shared receive context.
#[derive(Default)]
pub(super) struct Operations {
    by_place: Slab<Operation>,
    /// The number of calls so far, modulo 2^32.
    calls: u32,
}

impl Operations {
    /// Adds the operation of the latest call. Returns its place.
    #[inline(always)]
    pub(super) fn insert(&mut self, mut operation: Operation) -> usize {
        operation.order = self.calls;
        self.calls = self.calls.wrapping_add(1);
        self.by_place.insert(operation)
    }

    /// Records that a work request of the operation in this place is complete. Returns the operation if it was the last
    /// one.
    pub(super) fn complete(&mut self, place: usize, status: CompletionStatus) -> Option<Operation> {
        let operation = self.by_place.get_mut(place)?;
        // A reason says more than that another of its requests was flushed.
        if status != CompletionStatus::Success
            && matches!(operation.failure, None | Some(CompletionStatus::Flushed))
        {
            operation.failure = Some(status);
        }
        operation.left -= 1;
        if operation.left > 0 {
            return None;
        }
        self.by_place.try_remove(place)
    }

    /// All of them, in the order of their calls.
    pub(super) fn into_ordered(mut self) -> Vec<Operation> {
        let mut operations: Vec<_> = self.by_place.drain().collect();
        operations.sort_unstable_by_key(|operation| operation.order.wrapping_sub(self.calls));
        operations
    }
}

impl Deref for Operations {
    type Target = Slab<Operation>;

    fn deref(&self) -> &Self::Target {
        &self.by_place
    }
}

impl DerefMut for Operations {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.by_place
    }
}

/// An entry of a completion queue.
#[derive(Debug)]
pub(super) enum Entry {
    Success(Completion),
    Failure(Box<CompletionError>),
}

impl Operation {
    /// An operation of one work request, from a call with these flags.
    pub(super) fn new(kind: Kind, context: UserContext, flags: u64) -> Self {
        let asks = flags & constants::FI_COMPLETION != 0;
        Self { kind, context, asks, is_injected: false, room: 0, order: 0, tag: 0, left: 1, failure: None }
    }

    /// The entry of its failure. `length` is that of the message, if it was longer than the receive.
    #[inline(never)]
    pub(super) fn failure(&self, status: CompletionStatus, length: usize, data: Option<u64>) -> Entry {
        let room = self.room as usize;
        let (received, excess) = match status {
            // An RDMA device does not tell the length.
            CompletionStatus::Truncated => (room.min(length), length.saturating_sub(room)),
            _ => (0, 0),
        };
        let completion = self.completion(received, data);
        failed(completion, excess, errno_of(status), code_of(status))
    }

    /// The entry of an operation that is cancelled, possibly by closing its endpoint.
    pub(super) fn cancelled(&self) -> Entry {
        self.failure(CompletionStatus::Flushed, 0, None)
    }

    /// The entry of an operation that was not complete when its connection ended. `by_peer`: the peer or its host ended it.
    /// Then a receive is cancelled, but what would have reached the peer has failed: MPICH takes a cancelled send for one
    /// that nobody waits for.
    pub(super) fn flushed(&self, by_peer: bool) -> Entry {
        if by_peer && !self.kind.is_receive() {
            return failed(self.completion(0, None), 0, Errno::ECONNRESET, CUT_OFF);
        }
        self.cancelled()
    }

    /// What is reported of it, with `length` bytes received.
    pub(super) fn completion(&self, length: usize, data: Option<u64>) -> Completion {
        let data_flag = if data.is_some() { constants::FI_REMOTE_CQ_DATA } else { 0 };
        Completion {
            context: self.context,
            flags: self.kind.flags() | data_flag,
            length,
            data: data.unwrap_or(0),
            tag: self.tag,
        }
    }
}

/// The entry of a write of the peer that carried data, with the context of the receive that it consumed, if
/// it consumed one.
pub(super) fn remote_write(context: UserContext, length: usize, data: Option<u64>) -> Entry {
    let flags = constants::FI_REMOTE_WRITE | constants::FI_RMA | constants::FI_REMOTE_CQ_DATA;
    Entry::Success(Completion { context, flags, length, data: data.unwrap_or(0), tag: 0 })
}

/// The entry of a call that asked for a message with this tag, and found none.
pub(super) fn no_message(context: UserContext, tag: u64) -> Entry {
    let flags = Kind::TaggedRecv.flags();
    let completion = Completion { context, flags, length: 0, data: 0, tag };
    failed(completion, 0, Errno::ENOMSG, NO_MESSAGE)
}

fn failed(completion: Completion, excess: usize, err: Errno, prov_errno: i32) -> Entry {
    Entry::Failure(Box::new(CompletionError { completion, excess, err, prov_errno, err_data: Vec::new() }))
}

/// The codes of [`no_message`] and of [`Operation::flushed`] by the peer: those behind the statuses'.
const NO_MESSAGE: i32 = STATUSES.len() as i32 + 1;
const CUT_OFF: i32 = NO_MESSAGE + 1;

/// The statuses, in the order of their codes in `prov_errno`, which begin with 1.
const STATUSES: [(CompletionStatus, Errno, &std::ffi::CStr); 9] = [
    (CompletionStatus::Flushed, Errno::ECANCELED, c"the connection ended, or the operation was cancelled"),
    (CompletionStatus::Truncated, Errno::ETRUNC, c"the message was longer than its receive"),
    (CompletionStatus::LocalAccess, Errno::EFAULT, c"no access to local memory"),
    (CompletionStatus::LocalOperation, Errno::EIO, c"the operation failed on this side"),
    (
        CompletionStatus::RemoteAccess,
        Errno::EACCES,
        c"the peer refused access to its memory: key, bounds or rights",
    ),
    (CompletionStatus::RemoteOperation, Errno::EIO, c"the operation failed on the peer's side"),
    (CompletionStatus::ReceiverNotReady, Errno::EIO, c"the peer had no receive"),
    (CompletionStatus::Unanswered, Errno::EIO, c"no answer from the peer's host"),
    (CompletionStatus::DeviceFailed, Errno::EIO, c"the device failed"),
];

fn errno_of(status: CompletionStatus) -> Errno {
    STATUSES.iter().find(|known| known.0 == status).map_or(Errno::EIO, |known| known.1)
}

fn code_of(status: CompletionStatus) -> i32 {
    STATUSES.iter().zip(1..).find(|(known, _)| known.0 == status).map_or(0, |(_, code)| code)
}

/// The text of a `prov_errno`.
pub(super) fn text(code: i32) -> &'static std::ffi::CStr {
    match code {
        NO_MESSAGE => c"no message with such a tag has arrived",
        CUT_OFF => c"the peer ended the connection before",
        _ => {
            let known = usize::try_from(code).ok().and_then(|code| STATUSES.get(code.wrapping_sub(1)));
            known.map_or(c"not an error of this provider", |known| known.2)
        }
    }
}
