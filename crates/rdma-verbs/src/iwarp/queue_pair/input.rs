//! Input from the peer.

use rustix::io::Errno;

use super::super::machine::{Sink, Spaced, Violation};
use super::super::scratch::Scratch;
use super::super::socket::Socket;
use super::QueuePair;
use super::ending::End;
use crate::Completion;

/// Bytes requested from the socket where no payload is expected: many small messages at once.
const READ: usize = 16 * 1024;
/// Bytes requested after a payload that goes straight to its place: its trailer and the headers that follow.
/// Bytes of the next payload among them have to be copied.
const REST: usize = 1024;

impl QueuePair {
    /// Takes what arrived until nothing is left, there is something to report, or the connection ends.
    pub(super) fn receive(&mut self, rounds: usize, thorough: bool, sink: &mut impl Sink) -> Option<End> {
        let mut counting = Counting { sink, count: 0 };
        let mut scratch = None;
        self.unread = false;
        for _ in 0..rounds {
            if self.machine.is_stalled() {
                self.missed_end |= thorough;
                return self.socket.as_ref().and_then(Socket::failure).map(End::System);
            }
            let scratch = scratch.get_or_insert_with(Scratch::take);
            let Read { asked, straight, received } = self.read(scratch)?;
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
            let straight_bytes = match straight {
                Straight::Bytes(most) => count.min(most),
                Straight::Spaced(_) => count,
            };
            self.bulk = straight_bytes >= READ || self.bulk && count == asked;
            let taken = match straight {
                Straight::Bytes(_) => {
                    self.machine.placed(straight_bytes);
                    self.machine.feed(&scratch[..count - straight_bytes], &mut counting)
                }
                Straight::Spaced(spaced) => self.machine.take_spaced(&spaced, scratch, count, &mut counting),
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

    /// Receives from the socket once. What does not go straight to its place is in `scratch`.
    fn read(&self, scratch: &mut [u8]) -> Option<Read> {
        let socket = self.socket.as_ref()?;
        if socket.is_tapped() {
            return Some(self.read_all(socket, scratch));
        }
        if let Some(spaced) = self.machine.spaced_target() {
            let received = socket.receive_by(|socket| spaced.receive(socket, scratch));
            return Some(Read { asked: spaced.length(), straight: Straight::Spaced(spaced), received });
        }
        let Some(place) = self.machine.target() else { return Some(self.read_all(socket, scratch)) };
        let rest = &mut scratch[..REST];
        let (asked, straight) = (place.length + REST, Straight::Bytes(place.length));
        Some(Read { asked, straight, received: socket.receive_by(|socket| place.receive(socket, rest)) })
    }

    /// Receives everything into `scratch`.
    fn read_all(&self, socket: &Socket, scratch: &mut [u8]) -> Read {
        let asked = match self.bulk {
            _ if self.machine.checks_crc() => scratch.len(),
            true => REST,
            false => READ,
        };
        Read { asked, straight: Straight::Bytes(0), received: socket.receive(&mut scratch[..asked]) }
    }
}

/// What was received from the socket at once.
struct Read {
    /// Number of bytes requested.
    asked: usize,
    straight: Straight,
    received: Result<usize, Errno>,
}

/// What of it goes straight to its place.
enum Straight {
    /// The first bytes, up to this number.
    Bytes(usize),
    /// Payload of several segments.
    Spaced(Spaced),
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
