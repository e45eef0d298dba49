//! What a shard knows of one queue pair.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use super::registration::Span;
use super::slots::SlotId;
use super::waiters::Waiters;
use super::work::sealed::KEY;
use super::{End, TrustedDevice};
use crate::{Buffer, ConnectionEvent, Error, QpCapabilities, QpId, RecvRequest, Segment, Token};

/// A receive that the device did not take.
pub(super) struct Refused {
    pub(super) span: Span,
    pub(super) error: Error,
}

/// The connection of a queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    /// Connecting or accepting.
    Attempting,
    Established,
    /// This side has begun the orderly end.
    Closing,
    Ended(End),
}

/// A queue pair of a shard.
#[derive(Debug)]
pub(super) struct QueuePair {
    pub(super) qp: QpId,
    pub(super) granted: QpCapabilities,
    pub(super) state: State,
    /// The token of its events, from connecting or accepting on.
    pub(super) token: Option<Token>,
    /// The private data of the peer's reply.
    pub(super) private_data: Vec<u8>,
    /// Number of requests in slots that have not completed.
    pub(super) outstanding: usize,
    /// Number of these that are receives.
    pub(super) receives: usize,
    /// The index of the shared queue whose receives it consumes.
    pub(super) shared: Option<usize>,
    /// Set at the end of a connection with shared receives, of which none is flushed: how many completions
    /// the shard has polled when all that were there at the end are among them.
    pub(super) draining: Option<u64>,
    /// The slots of messages that arrived and were not taken.
    pub(super) inbox: VecDeque<SlotId>,
    /// The slots of receives to post again, which the device did not take.
    pub(super) unposted: Vec<SlotId>,
    /// Unsignaled inline sends since the last signaled one of them.
    pub(super) unsignaled: u32,
    /// Futures that wait for a message.
    pub(super) receivers: Waiters,
    /// Futures that wait for a change of the state.
    pub(super) watchers: Waiters,
    /// When to ask again whether the peer's host has everything, while this side closes.
    pub(super) ask_again: Option<Instant>,
    /// When to destroy it, if its owner has dropped it.
    pub(super) abandoned: Option<Instant>,
}

impl QueuePair {
    pub(super) fn new(qp: QpId, granted: QpCapabilities, shared: Option<usize>) -> Self {
        let receives = granted.recv_depth as usize;
        Self {
            qp,
            granted,
            state: State::Idle,
            token: None,
            private_data: Vec::new(),
            outstanding: 0,
            receives: 0,
            shared,
            draining: None,
            inbox: VecDeque::with_capacity(receives),
            unposted: Vec::with_capacity(receives),
            unsignaled: 0,
            receivers: Waiters::default(),
            watchers: Waiters::default(),
            ask_again: None,
            abandoned: None,
        }
    }

    /// Posts the receive of a slot that has this segment.
    // 30 instructions fewer for each message.
    #[inline(always)]
    pub(super) fn post_receive<D: TrustedDevice>(
        &mut self,
        cq: &mut D::Cq,
        id: SlotId,
        segment: Segment,
    ) -> Result<(), Error> {
        // Some adapters take a length of 0 for 2 GiB.
        let buffer = if segment.length == 0 { Buffer::Empty } else { Buffer::Segment(segment) };
        D::post_checked_recv(cq, self.qp, &RecvRequest { id: id.0, buffer }, KEY)?;
        self.outstanding += 1;
        self.receives += 1;
        Ok(())
    }

    /// How the connection ended, if it did.
    pub(super) fn end(&self) -> Option<&End> {
        match &self.state {
            State::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Whether this side closes, and its last request is done.
    #[inline]
    pub(super) fn is_closed_and_idle(&self) -> bool {
        matches!(self.state, State::Closing) && self.outstanding == 0
    }

    /// Whether no message will arrive any more: the connection has ended, and each receive has completed.
    pub(super) fn is_exhausted(&self) -> bool {
        self.end().is_some() && self.receives == 0 && self.draining.is_none()
    }

    /// Takes over an event of the connection.
    pub(super) fn apply(&mut self, event: ConnectionEvent, woken: &mut Vec<Waker>) {
        self.state = match event {
            ConnectionEvent::Established { private_data } => {
                self.private_data = private_data;
                State::Established
            }
            ConnectionEvent::Rejected { private_data } => State::Ended(End::Rejected { private_data }),
            ConnectionEvent::Failed(error) => State::Ended(End::Failed(error)),
            ConnectionEvent::Disconnected => State::Ended(End::Disconnected),
            ConnectionEvent::Broken(reason) => State::Ended(End::Broken(reason)),
        };
        self.watchers.wake(woken);
        self.receivers.wake(woken);
    }
}
