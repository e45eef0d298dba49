//! Input from the peer.

use rustix::io::Errno;

use super::super::machine::{Fault, Sink, Violation};
use super::super::scratch::Scratch;
use super::super::socket::Socket;
use super::QueuePair;
use super::ending::End;
use crate::Completion;

/// Bytes requested from the socket where no payload is expected: many small messages at once, or one of 16 KiB with its
/// headers.
const READ: usize = 17 * 1024;
/// A payload of so many bytes that goes straight to its place shows that large payloads follow each other. Of a message of
/// 32 KiB, one call of [`READ`] bytes leaves more than that.
const BULK: usize = 12 * 1024;
/// Bytes requested after a payload that goes straight to its place: its trailer and the headers that follow.
/// Bytes of the next payload among them have to be copied.
const REST: usize = 1024;
/// Maximum number of bytes that a call for the payload of one segment returns.
const SEGMENT: usize = 65536 + REST;

impl QueuePair {
    /// Takes what arrived until nothing is left, there is something to report, or the connection ends.
    pub(super) fn receive(&mut self, mut rounds: usize, thorough: bool, sink: &mut impl Sink) -> Option<End> {
        let mut counting = Counting { sink, count: 0 };
        let mut scratch = None;
        self.unread = false;
        while rounds > 0 {
            rounds -= 1;
            if self.machine.is_stalled() {
                self.missed_end |= thorough;
                return self.socket.as_ref().and_then(Socket::failure).map(End::System);
            }
            let scratch = scratch.get_or_insert_with(Scratch::take);
            let (asked, straight, received) = self.read(scratch)?;
            let count = match received {
                Ok(0) => return Some(End::Input),
                Ok(count) => count,
                Err(Errno::AGAIN) => {
                    self.machine.shrink();
                    return None;
                }
                Err(Errno::FAULT) => return Some(End::Fault(Violation::LocalTarget.into())),
                Err(errno) => return Some(End::System(errno)),
            };
            let taken = if straight == 0 {
                self.bulk &= count == asked;
                self.machine.feed(&scratch[..count], &mut counting)
            } else {
                // A call for several segments counts as several rounds.
                rounds = rounds.saturating_sub(count / SEGMENT);
                let placed = count.min(straight);
                self.bulk = placed >= BULK || self.bulk && count == asked;
                self.take_straight(placed, scratch, count, &mut counting)
            };
            if let Err(fault) = taken {
                return Some(End::Fault(fault));
            }
            if counting.count > 0 {
                if let Some(socket) = &mut self.socket {
                    socket.expect_answer();
                }
                if !thorough {
                    return None;
                }
            } else if !thorough && count < asked {
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

    /// Takes `count` received bytes: the first `placed` are in their places, the rest is in `scratch`. If several segments
    /// were requested, those between their payloads are in `scratch`.
    #[inline(never)]
    fn take_straight(
        &mut self,
        placed: usize,
        scratch: &[u8],
        count: usize,
        sink: &mut impl Sink,
    ) -> Result<(), Fault> {
        // The machine is as it was when the socket was asked.
        if let Some(spaced) = self.machine.spaced_target() {
            return self.machine.take_spaced(&spaced, scratch, count, sink);
        }
        self.machine.placed(placed);
        self.machine.feed(&scratch[..count - placed], sink)
    }

    /// Receives from the socket once. Returns how many bytes it requested, up to how many go straight to their place,
    /// and the outcome. The rest is in `scratch`.
    fn read(&self, scratch: &mut [u8]) -> Option<(usize, usize, Result<usize, Errno>)> {
        let socket = self.socket.as_ref()?;
        let Some(place) = self.machine.target().filter(|_| !socket.is_tapped()) else {
            let asked = match self.bulk {
                _ if self.machine.checks_crc() => scratch.len(),
                true => REST,
                false => READ,
            };
            return Some((asked, 0, socket.receive(&mut scratch[..asked])));
        };
        Some(match self.machine.spaced_target() {
            Some(spaced) => {
                let asked = spaced.length();
                (asked, asked, socket.receive_by(|socket| spaced.receive(socket, scratch)))
            }
            None => {
                let rest = &mut scratch[..REST];
                let received = socket.receive_by(|socket| place.receive(socket, rest));
                (place.length + REST, place.length, received)
            }
        })
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
