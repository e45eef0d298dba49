//! An established connection: the stream protocol driven over a queue pair, and rings in shared memory beside
//! it if the peer is on the same host.
//!
//! To send, [`Connection::send`] asks the protocol where in the peer's ring the next message belongs, and
//! posts it. To receive, [`Connection::receive`] polls completions, feeds them to the protocol, and copies
//! bytes out of the receive ring. Each public call flushes before it returns: control words that are due are
//! posted, unless the caller held output back with `more`.
//!
//! Once memory is shared, each direction moves from the queue pair to its ring and stays there. The queue
//! pair goes on to tell how the connection ends.
//!
//! | file | part |
//! |---|---|
//! | `connection` | its state, readiness and ends |
//! | `connection/transfer` | the calls that move bytes, over the queue pair |
//! | `connection/drive` | completions, connection events, control words |
//! | `connection/moving` | from the queue pair to shared memory |
//! | `connection/rings` | the same calls over shared memory |
//!
//! While a call over shared memory has nothing to do but to move bytes, its user may make it as a
//! [direct one](super::direct), without the lock that covers the connection.

mod drive;
mod moving;
mod rings;
mod transfer;

use std::sync::Arc;
use std::time::Instant;

use rdma_verbs::{self as verbs, Completion, CompletionQueue, Connections, Device, RemoteAddress, WaitSet};
use rstream_protocol::{RecvState, SendEnd, Stream, WordFormat};

use super::error::Error;
use super::queue_pair::{REPOST_CHAIN, StreamQueuePair};
use super::settings::Settings;
use super::sharing::Attempt;
use super::spin::AdaptiveSpin;
use super::statistics::{Calls, Statistics};
use rings::Rings;

/// A stream over a queue pair.
pub struct Connection<D: Device> {
    pub(crate) queue_pair: StreamQueuePair<D>,
    stream: Stream,
    sharing: Sharing,
    /// Calls of each direction, but for direct ones.
    calls: [Calls; 2],
    /// Whether to spin before a sleep, for each direction.
    spin: [AdaptiveSpin; 2],
    /// Messages of the peer that violated the protocol.
    refused: u64,
    format: WordFormat,
    peer_ring: RemoteAddress,
    /// The longest inject: the size of the smaller of the peer's ring and the send ring.
    longest_inject: usize,
    /// If the last send returned [`Error::WouldBlock`], the bytes of room that make another send worthwhile.
    /// Otherwise 0.
    room_awaited: usize,
    /// Output is held back for `more`.
    held: bool,
    /// Whether a receive has returned the end of the stream.
    end_returned: bool,
    /// Whether the transport has ended, in an orderly way or not.
    ended: bool,
    /// When this side closed both directions with one call.
    closed: Option<Instant>,
    /// Whether this side began the orderly end of the transport.
    disconnecting: bool,
    /// Connection events are to be polled: something shows that the transport has ended.
    event_expected: bool,
    /// Polls that found nothing, modulo 256.
    empty_polls: u8,
    /// Filled by a poll. It is kept, because clearing it for each poll costs more than the poll.
    batch: Box<[Completion; REPOST_CHAIN]>,
    /// Receives that messages consumed and that are not posted again. The peer may not count on them
    /// before a control word has returned them, so they wait for that word or for a whole chain of them.
    used: Vec<u64>,
    at_cancellation_point: fn(&mut dyn FnMut()),
}

/// Memory shared with a peer on the same host.
enum Sharing {
    /// There is none, and will be none.
    Never,
    /// Both sides are willing to.
    Attempt(Box<Attempt>),
    /// There is.
    Rings(Box<Rings>),
}

/// A direction of the stream, seen from this side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From this side to the peer.
    Send,
    /// From the peer to this side.
    Receive,
}

impl Direction {
    /// The opposite direction.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Send => Self::Receive,
            Self::Receive => Self::Send,
        }
    }
}

impl<D: Device> Connection<D> {
    /// A connection over `queue_pair` to a peer whose receive ring of `peer_ring_size` bytes is at
    /// `peer_ring`.
    pub(crate) fn new(
        queue_pair: StreamQueuePair<D>,
        settings: &Settings,
        (stream, format): (Stream, WordFormat),
        (peer_ring, peer_ring_size): (RemoteAddress, u32),
        attempt: Option<Attempt>,
    ) -> Self {
        Self {
            queue_pair,
            stream,
            sharing: attempt.map_or(Sharing::Never, |attempt| Sharing::Attempt(Box::new(attempt))),
            calls: Default::default(),
            spin: Default::default(),
            refused: 0,
            format,
            peer_ring,
            longest_inject: peer_ring_size.min(settings.sizes.send_buffer) as usize,
            room_awaited: 0,
            held: false,
            end_returned: false,
            ended: false,
            closed: None,
            disconnecting: false,
            event_expected: false,
            empty_polls: 0,
            batch: Box::new([Completion::EMPTY; REPOST_CHAIN]),
            // Less than a chain before a poll, and one batch from it.
            used: Vec::with_capacity(2 * REPOST_CHAIN),
            at_cancellation_point: settings.at_cancellation_point,
        }
    }

    /// The queue pair, for its addresses and its deadline.
    #[must_use]
    pub fn queue_pair(&self) -> &StreamQueuePair<D> {
        &self.queue_pair
    }

    /// Attaches a wait set, which becomes readable when there is a reason to call.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::attach`].
    pub fn attach(&mut self, wait: Arc<WaitSet>) -> verbs::Result<()> {
        self.queue_pair.attach(wait)?;
        self.watch_rings()
    }

    /// Whether an event loop has a reason to call.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_ready_for(Direction::Receive) || self.is_ready_for(Direction::Send)
    }

    /// Whether an event loop has a reason to call in this direction: there is something to receive, or room
    /// for a send that found none. The end of the stream counts until a receive has returned it, and again
    /// once nothing can be sent any more. In between, a sender may want to sleep.
    #[must_use]
    pub fn is_ready_for(&self, direction: Direction) -> bool {
        match direction {
            Direction::Receive => {
                self.known_input() > 0
                    || (self.stream.receive_end() != RecvState::Open
                        && (!self.end_returned || self.stream.send_state().is_err()))
            }
            Direction::Send => {
                self.room_awaited > 0 && !self.known_room().is_ok_and(|room| room < self.room_awaited)
            }
        }
    }

    /// Asks the device to signal the attached wait set for what comes next. Returns whether something may
    /// have come in between: then the caller has to call once more before it sleeps.
    ///
    /// # Errors
    /// Those of [`CompletionQueue::arm`].
    pub fn arm(&mut self) -> verbs::Result<bool> {
        let again = self.queue_pair.cq.arm()?;
        // If all completions before an event were polled already, only the event signals the wait set.
        self.event_expected |= self.event_is_due();
        let expected = self.event_expected;
        if (again || expected) && self.direct().is_some() {
            // Arming has taken the wake-up, and calls on a ring look at the queue pair only at times.
            self.progress();
            self.event_expected = false;
        }
        let found = self.arm_rings();
        Ok(again || expected || found)
    }

    /// The statistics of one direction, for the caller to count its calls of the connection in.
    pub fn calls(&mut self, direction: Direction) -> &mut Calls {
        &mut self.calls[direction as usize]
    }

    /// Whether a call of this direction spins before its caller sleeps.
    pub fn spin(&mut self, direction: Direction) -> &mut AdaptiveSpin {
        &mut self.spin[direction as usize]
    }

    /// What was counted so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let [mut sends, mut receives] = self.calls;
        if let Some(direct) = self.direct() {
            sends += direct.output.lock().calls;
            receives += direct.input.lock().calls;
        }
        Statistics { sends, receives, traffic: self.stream.traffic(), refused: self.refused }
    }

    /// Whether both directions have ended, or the connection broke.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.stream.is_over()
    }

    /// Ends the sending direction: the peer reads what was sent, then the end of the stream.
    pub fn shut_send(&mut self) {
        self.stream.shut_send();
        self.room_awaited = 0;
        self.drain_end();
    }

    /// Ends the receiving direction: further bytes of the peer are dropped.
    pub fn shut_recv(&mut self) {
        self.stream.shut_recv();
        self.drop_ring_input();
    }

    /// Closes both directions. Returns when they were closed.
    pub fn close(&mut self) -> Instant {
        // What has arrived by either way stays readable.
        self.progress();
        self.keep_ring_input();
        self.stream.close();
        self.room_awaited = 0;
        self.drain_end();
        *self.closed.get_or_insert_with(Instant::now)
    }

    /// Begins the orderly end of the transport, even if the end of the stream was not sent to the peer.
    #[cold]
    pub fn disconnect(&mut self) {
        if !self.disconnecting && !self.ended {
            self.disconnecting = true;
            self.queue_pair.cq.disconnect(self.queue_pair.qp);
        }
    }

    /// Whether the peer's host has everything that this side sent.
    pub fn is_flushed(&mut self) -> bool {
        self.ended || (self.stream.outgoing_done() && self.queue_pair.cq.flushed(self.queue_pair.qp))
    }

    /// Bytes that a receive would return, as far as is known without a look.
    fn known_input(&self) -> usize {
        if self.receives_from_ring() { self.known_in_ring() } else { self.stream.readable() }
    }
}

impl From<SendEnd> for Error {
    fn from(end: SendEnd) -> Self {
        match end {
            SendEnd::Shut => Self::Shut,
            SendEnd::Reset => Self::Reset,
        }
    }
}
