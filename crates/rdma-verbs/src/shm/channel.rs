//! Both directions between two processes that share a segment, as a queue pair uses them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::lane::{Reader, SLOTS, Writer};
use super::meeting::Target;
use super::message::{Garbage, MAX_OFFSET, Message};
use super::notifier::Notifier;
use super::segment::{Board, LaneOf, Side};
use crate::{Operation, Payload, SendRequest};

/// One end of a channel.
pub struct Channel {
    board: Arc<Board>,
    /// Whether the peer is known to have joined.
    joined: bool,
    output: Writer<LaneOf>,
    input: Reader<LaneOf>,
    /// Key of the memory that the peer writes.
    key: u32,
    /// The peer's memory, which this side writes.
    peer: Target,
    notifier: Notifier,
    /// Position of the connection's stream that the peer was told of last.
    told: u64,
}

/// What comes next from the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This message; [`Channel::take`] it.
    Message(Message),
    /// What the connection's stream carries, for so many bytes.
    Stream(u64),
    /// Nothing yet.
    Nothing,
    /// Nothing that can be understood.
    Garbage(Garbage),
}

impl Channel {
    /// The end of `side`, whose memory has `key`.
    pub(super) fn new(board: &Arc<Board>, side: Side, key: u32, peer: Target, notifier: Notifier) -> Self {
        Self {
            board: Arc::clone(board),
            joined: side == Side::Active,
            output: Writer::new(board.lane(side)),
            input: Reader::new(board.lane(side.other())),
            key,
            peer,
            notifier,
            told: 0,
        }
    }

    /// Key of the memory that the peer writes.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Posts all of `requests` or none, which then have to take the connection's stream; of that,
    /// `position` bytes were given out before. They are done when this returns. `inline` is the most
    /// payload of one.
    #[must_use]
    pub fn post(&mut self, requests: &[SendRequest<'_>], inline: usize, position: u64) -> bool {
        let behind = position != self.told;
        if !self.is_joined()
            || !requests.iter().all(|request| self.can_carry(request, inline))
            || !self.output.has_room(requests.len() + usize::from(behind))
        {
            return false;
        }
        if behind {
            self.output.write(Message::Stream(position));
            self.told = position;
        }
        for request in requests {
            self.write(request);
        }
        self.output.wake(&self.notifier);
        true
    }

    /// What comes next, when `position` bytes of the connection's stream were taken.
    #[inline]
    pub fn next(&mut self, position: u64) -> Next {
        // A peer that writes nothing else, as fast as they are taken, does not hold the caller.
        for _ in 0..SLOTS {
            match self.input.peek() {
                None => break,
                Some(Err(garbage)) => return Next::Garbage(garbage),
                Some(Ok(Message::Stream(until))) if until > position => {
                    return Next::Stream(until - position);
                }
                Some(Ok(Message::Stream(_))) => self.input.take(),
                Some(Ok(message)) => return Next::Message(message),
            }
        }
        Next::Nothing
    }

    /// Takes the message that [`Channel::next`] answered.
    #[inline]
    pub fn take(&mut self) {
        self.input.take();
    }

    /// Readable when the peer has written something since [`Channel::arm`], and once the peer has closed
    /// its end, see [`Channel::is_alone`].
    #[must_use]
    pub fn notifier(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }

    /// Asks the peer for a notification when it writes. Answers whether something is there already.
    pub fn arm(&mut self) -> bool {
        self.input.fall_asleep(&mut self.notifier)
    }

    /// Whether the peer will never notify again, so that [`Channel::notifier`] stays readable.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.notifier.has_ended()
    }

    /// Whether the peer is known to use the channel.
    #[inline]
    pub fn is_joined(&mut self) -> bool {
        self.joined = self.joined || self.board.is_joined();
        self.joined
    }

    fn can_carry(&self, request: &SendRequest<'_>, inline: usize) -> bool {
        let length = request.payload.len();
        let fits = |immediate| u32::try_from(immediate).is_ok();
        match (request.operation, request.payload) {
            (Operation::Write { remote, immediate }, Payload::Inline(_)) => {
                let end = remote.address.saturating_add(length as u64);
                remote.key == self.peer.key
                    && remote.address <= MAX_OFFSET
                    && end <= self.peer.memory.len() as u64
                    && length <= inline.min(u32::MAX as usize)
                    && immediate.is_none_or(fits)
            }
            (Operation::Send { immediate: Some(data), invalidate: None, .. }, _) => length == 0 && fits(data),
            _ => false,
        }
    }

    /// Writes what [`Channel::can_carry`] approved.
    #[inline]
    fn write(&mut self, request: &SendRequest<'_>) {
        match (request.operation, request.payload) {
            (Operation::Write { remote, immediate }, Payload::Inline(slices)) => {
                let mut offset = remote.address;
                for slice in slices {
                    if self.peer.memory.write(offset, slice).is_err() {
                        return;
                    }
                    offset += slice.len() as u64;
                }
                let length = (offset - remote.address) as u32;
                let immediate = immediate.map(|data| data as u32);
                self.output.write(Message::Write { offset: remote.address, length, immediate });
            }
            (Operation::Send { immediate: Some(immediate), .. }, _) => {
                self.output.write(Message::Send { immediate: immediate as u32 });
            }
            _ => {}
        }
    }
}
