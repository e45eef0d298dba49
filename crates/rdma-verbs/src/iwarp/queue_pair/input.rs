//! Input from the peer: from the connection's stream and, if there is any, from shared memory.
//!
//! Messages use either path and are taken in the order in which they were posted. A message in shared memory
//! may state a position of the stream; then it waits until the stream has been taken up to that position.
//! Stream input follows all messages that were in shared memory when it was received.

use rustix::io::Errno;

use super::super::machine::{Fault, Sink};
use super::super::scratch::Scratch;
use super::super::socket::Socket;
use super::ending::End;
use super::{Phase, QueuePair};
use crate::Completion;
use crate::shm::{Next, SLOTS};

/// Bytes requested from the socket where no payload is expected: many small messages at once.
const READ: usize = 16 * 1024;
/// Bytes requested after a payload that goes straight to its place: its trailer and the headers that follow.
/// Bytes of the next payload among them have to be copied.
const REST: usize = 1024;
/// Number of completions after which no more messages are taken from shared memory, unless all have to be
/// taken.
const MESSAGES: usize = 16;

impl QueuePair {
    /// Takes what arrived until nothing is left, there is something to report, or the connection ends.
    pub(super) fn receive(&mut self, rounds: usize, thorough: bool, sink: &mut impl Sink) -> Option<End> {
        let mut counting = Counting { sink, count: 0 };
        let mut scratch = None;
        self.unread = false;
        for _ in 0..rounds {
            if self.machine.is_stalled() {
                return self.socket.as_ref().and_then(Socket::failure).map(End::System);
            }
            let next = match self.take_messages(MESSAGES, &mut counting) {
                Ok(next) => next,
                Err(fault) => return Some(End::Fault(fault)),
            };
            if !thorough && !self.must_read_stream(next, counting.count > 0) {
                return None;
            }
            let scratch = scratch.get_or_insert_with(Scratch::take);
            let (asked, straight, received) = self.read(scratch)?;
            let count = match received {
                Ok(0) => return Some(self.end_of_input(&mut counting)),
                Ok(count) => count,
                Err(Errno::AGAIN) => {
                    self.machine.shrink();
                    return None;
                }
                Err(errno) => return Some(self.end_after_messages(End::System(errno), &mut counting)),
            };
            let placed = count.min(straight);
            self.bulk = placed >= READ || self.bulk && count == asked;
            self.machine.placed(placed);
            if let Err(fault) = self.feed(&scratch[..count - placed], &mut counting) {
                return Some(End::Fault(fault));
            }
            // Messages may wait for what the stream just had.
            let dry = count < asked && !matches!(next, Next::Stream(_));
            if !thorough && (counting.count > 0 || dry) {
                return None;
            }
        }
        self.unread = true;
        if thorough {
            // The end may follow the input that is left. The set reported it once: request another report.
            self.notify_hang_up();
        }
        None
    }

    /// Receives from the socket once. Returns how many bytes it requested, how many of these go straight to
    /// their place, and the outcome. The rest is in `scratch`.
    fn read(&self, scratch: &mut [u8]) -> Option<(usize, usize, Result<usize, Errno>)> {
        let socket = self.socket.as_ref()?;
        Some(match self.machine.target() {
            Some(place) if !socket.is_tapped() => {
                let rest = &mut scratch[..REST];
                (place.length + REST, place.length, socket.receive_at(&place, rest))
            }
            _ => {
                let asked = match self.bulk {
                    _ if self.machine.checks_crc() => scratch.len(),
                    true => REST,
                    false => READ,
                };
                (asked, 0, socket.receive(&mut scratch[..asked]))
            }
        })
    }

    /// Takes all messages that are in shared memory, up to `most` completions. Returns what comes next there.
    fn take_messages(&mut self, most: usize, sink: &mut Counting<'_, impl Sink>) -> Result<Next, Fault> {
        let Some(shared) = &mut self.shared else { return Ok(Next::Nothing) };
        let channel = &mut shared.channel;
        let enough = sink.count + most;
        for _ in 0..SLOTS {
            if sink.count >= enough {
                break;
            }
            match channel.next(self.machine.consumed()) {
                Next::Message(message) => {
                    self.machine.receive_message(message, channel.key(), sink)?;
                    channel.take();
                }
                Next::Garbage(garbage) => return Err(Fault::Violation(garbage.into())),
                next => return Ok(next),
            }
        }
        Ok(Next::Nothing)
    }

    /// Takes bytes of the stream, each after the messages that precede it.
    fn feed(&mut self, mut input: &[u8], sink: &mut Counting<'_, impl Sink>) -> Result<(), Fault> {
        while !input.is_empty() {
            // All messages that can precede these bytes.
            let length = match self.take_messages(SLOTS, sink)? {
                Next::Stream(length) => usize::try_from(length).unwrap_or(usize::MAX).min(input.len()),
                _ => input.len(),
            };
            let (piece, rest) = input.split_at(length);
            self.machine.feed(piece, sink)?;
            input = rest;
        }
        Ok(())
    }

    /// Handles the end of the stream: takes the messages that precede it.
    fn end_of_input(&mut self, sink: &mut Counting<'_, impl Sink>) -> End {
        match self.take_messages(SLOTS, sink) {
            // A part of the stream is missing.
            Ok(Next::Stream(_)) => End::System(Errno::CONNRESET),
            Ok(_) => End::Input,
            Err(fault) => End::Fault(fault),
        }
    }

    /// Returns `end`, after taking the messages that precede it.
    fn end_after_messages(&mut self, end: End, sink: &mut Counting<'_, impl Sink>) -> End {
        self.take_messages(SLOTS, sink).map_or_else(End::Fault, |_| end)
    }

    /// Whether to read the stream, if `next` is what shared memory has.
    fn must_read_stream(&mut self, next: Next, found: bool) -> bool {
        let is_open = matches!(self.phase, Phase::Open);
        match &mut self.shared {
            Some(shared) if is_open && !self.machine.awaits_stream() => shared.must_read_stream(next, found),
            _ => true,
        }
    }
}

/// Counts the completions that it passes on.
struct Counting<'s, S: Sink> {
    sink: &'s mut S,
    count: usize,
}

impl<S: Sink> Sink for Counting<'_, S> {
    fn push(&mut self, completion: Completion) {
        self.count += 1;
        self.sink.push(completion);
    }
}
