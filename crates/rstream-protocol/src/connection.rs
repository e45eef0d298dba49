//! One connection: both halves, and how each direction ends.
//!
//! What a call answers follows from a few facts that only become true: what this side ended, what
//! the peer said, and what became of the transport. None of them is kept in two forms, so their
//! order does not matter (a device may report the end of a connection before the last message).
//! Where several facts apply, **what this side ended itself stays as it ended it**, then what the
//! peer ended in words, then the transport.

use super::negotiate::Features;
use super::recv::{Receiver, Span};
use super::send::Sender;
use super::setup::{Setup, SetupError};
use super::slots::Ticket;
use super::traffic::Traffic;
use super::violation::Violation;
use super::words::{Control, DATA_IMMEDIATE, SHORT_DATA_MOST, Word, WordFormat};

/// A data message to post: an RDMA write, with [`WordFormat::Iwarp`] followed by a send of the
/// word, least significant byte first. The ticket is for the last of them; a write that is followed
/// by a send takes the same id and asks for no completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteMessage {
    /// Where the bytes go, counted from the start of the peer's ring.
    pub remote_offset: u64,
    /// Where they are staged, counted from the start of the send ring, if the device does not take
    /// them before posting returns. They must stay until the ticket's request is complete.
    pub local_offset: u32,
    /// How many, at least 1. Contiguous in both rings.
    pub length: u32,
    /// The immediate of the write, or the word to send after it.
    pub word: u32,
    /// The bytes may go in the send of the word, behind it, and there is no write then.
    pub may_join_word: bool,
    /// How to post it.
    pub ticket: Ticket,
}

/// A control message to post: a send without payload whose immediate is the word, with
/// [`WordFormat::Iwarp`] a send of the word, least significant byte first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlMessage {
    /// The immediate or word.
    pub word: u32,
    /// How to post it.
    pub ticket: Ticket,
}

/// A message that took one of our receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// A write with immediate.
    Write {
        /// Its immediate.
        immediate: u32,
        /// Bytes that it placed, from the completion.
        length: u32,
    },
    /// A send with immediate and without payload.
    Control {
        /// Its immediate.
        immediate: u32,
    },
    /// A send of four bytes, read with the least significant byte first.
    Word(u32),
    /// The same with data behind it, which belongs at [`Stream::landing`]: ask for that first, and
    /// put it there if the arrival was taken over.
    WordWithData {
        /// The four bytes.
        word: u32,
        /// Bytes behind them.
        length: u32,
    },
}

/// Why nothing can be sent any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SendEnd {
    /// This side shut its sending side, or the peer closed in an orderly way (`EPIPE`).
    #[error("the sending side is shut")]
    Shut,
    /// The connection broke (`ECONNRESET`).
    #[error("the connection was reset")]
    Reset,
}

/// What a receive answers when nothing is readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecvState {
    /// More may come (`EAGAIN`).
    Open,
    /// The end of the stream (0 bytes).
    Ended,
    /// The connection broke before the end (`ECONNRESET`).
    Reset,
}

/// What has become of one kind of ending that this side can announce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Notice {
    /// There is nothing to say.
    None,
    /// To be said with the next control message.
    Owed,
    /// Said.
    Sent,
}

/// What has become of the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Up,
    /// Ended in an orderly way.
    Ended,
    /// Broken, or given up because the peer broke the protocol.
    Broken,
}

/// The state of one connection. See the [module](super) for who calls what.
#[derive(Debug, Clone)]
pub struct Stream {
    words: WordFormat,
    /// Whether endings can be said in words: both named [`Features::END_OF_STREAM`].
    endings: bool,
    /// Whether data may come with its word: both named [`Features::SHORT_DATA`].
    short_data: bool,
    sender: Sender,
    receiver: Receiver,
    /// This side writes no more.
    send_shut: bool,
    end: Notice,
    close: Notice,
    peer_ended: bool,
    peer_closed: bool,
    transport: Transport,
    /// The peer broke the protocol; nothing that it says counts any more.
    violated: bool,
    traffic: Traffic,
}

impl Stream {
    /// A connection that has just been established.
    ///
    /// # Errors
    /// [`SetupError`] if the sizes cannot work.
    pub fn new(setup: Setup) -> Result<Self, SetupError> {
        setup.check()?;
        Ok(Self {
            words: setup.words,
            endings: setup.features.contains(Features::END_OF_STREAM),
            short_data: setup.features.contains(Features::SHORT_DATA) && setup.words == WordFormat::Iwarp,
            sender: Sender::new(&setup),
            receiver: Receiver::new(&setup),
            send_shut: false,
            end: Notice::None,
            close: Notice::None,
            peer_ended: false,
            peer_closed: false,
            transport: Transport::Up,
            violated: false,
            traffic: Traffic::default(),
        })
    }

    /// Bytes that a send would take now, over all messages that it may need; 0 if it would block.
    /// [`Stream::next_write`] hands out as many, if it is asked for all of them at once.
    ///
    /// # Errors
    /// [`SendEnd`] if nothing will be taken any more.
    pub fn sendable(&self) -> Result<usize, SendEnd> {
        self.send_state()?;
        Ok(self.sender.sendable() as usize)
    }

    /// The next data message, of up to `at_most` bytes. Post it before any other message is asked
    /// for. `None`: nothing can be sent now; what changes that is an arrival, a completion, or
    /// [`Stream::sendable`] tells that nothing will.
    pub fn next_write(&mut self, at_most: usize) -> Option<WriteMessage> {
        self.send_state().ok()?;
        let piece = self.sender.next_piece(at_most)?;
        self.traffic.data_sent += 1;
        Some(WriteMessage {
            remote_offset: u64::from(piece.remote_index),
            local_offset: piece.local_index,
            length: piece.length,
            word: self.words.data_word(piece.length),
            may_join_word: self.short_data && piece.length <= SHORT_DATA_MOST,
            ticket: piece.ticket,
        })
    }

    /// The request with this id is complete, and with it all posted before. An id that is not
    /// outstanding changes nothing.
    pub fn on_sent(&mut self, id: u64) {
        self.sender.on_sent(id);
    }

    /// The next control message: window updates, end of stream, close. Ask until `None` after
    /// every call that changed something; what cannot be sent now is answered later.
    pub fn next_control(&mut self) -> Option<ControlMessage> {
        let (end, close) = (self.end == Notice::Owed, self.close == Notice::Owed);
        let due = end || close || self.receiver.update_due(!self.peer_ended);
        if !due || self.is_silent() {
            return None;
        }
        let control = Control { end, close, ..self.receiver.returnable() };
        let ticket = self.sender.next_control(control.receives > 0 || close)?;
        self.receiver.returned(control);
        self.traffic.updates_sent += 1;
        for notice in [&mut self.end, &mut self.close] {
            if *notice == Notice::Owed {
                *notice = Notice::Sent;
            }
        }
        Some(ControlMessage { word: control.encode(), ticket })
    }

    /// A message arrived and took a receive; post the receive again at once.
    ///
    /// # Errors
    /// [`Violation`] if the peer broke the protocol. Nothing of the message was taken over, and
    /// the stream is broken from then on; end the connection. Later arrivals are ignored.
    pub fn on_arrival(&mut self, arrival: Arrival) -> Result<(), Violation> {
        if self.violated {
            return Ok(());
        }
        let outcome = self.take(arrival);
        if outcome.is_err() {
            self.violated = true;
            self.transport = Transport::Broken;
        }
        outcome
    }

    /// Where in the local ring the next data message begins, counted from its start.
    #[must_use]
    pub fn landing(&self) -> u32 {
        self.receiver.landing()
    }

    /// Bytes that can be read now.
    #[must_use]
    pub fn readable(&self) -> usize {
        self.receiver.readable() as usize
    }

    /// The contiguous piece of the local ring that begins `skip` bytes after the read position, of
    /// at most `at_most` bytes; of length 0 if nothing is readable there.
    #[must_use]
    pub fn span(&self, skip: usize, at_most: usize) -> Span {
        self.receiver.span(skip, at_most)
    }

    /// The first `n` readable bytes were taken. More than are readable count as all of them.
    pub fn consume(&mut self, n: usize) {
        self.receiver.consume(n);
    }

    /// What a receive answers when nothing is readable.
    #[must_use]
    pub fn receive_end(&self) -> RecvState {
        if !self.receiver.is_open() || self.peer_ended {
            return RecvState::Ended;
        }
        match self.transport {
            Transport::Up => RecvState::Open,
            // A process that is killed also ends its TCP connections in an orderly way; a peer
            // that can say that it ends does so.
            Transport::Ended if self.endings => RecvState::Reset,
            Transport::Ended => RecvState::Ended,
            Transport::Broken => RecvState::Reset,
        }
    }

    /// Shuts the sending side: what [`Stream::next_write`] handed out is the last of it. A side whose
    /// receiving side is shut as well is closed.
    pub fn shut_send(&mut self) {
        if self.send_shut {
            return;
        }
        self.send_shut = true;
        if self.endings {
            self.end = Notice::Owed;
        }
        if !self.receiver.is_open() {
            self.close();
        }
    }

    /// Shuts the receiving side: what is there and what comes is dropped, and its room given back. A
    /// side whose sending side is shut as well is closed.
    pub fn shut_recv(&mut self) {
        self.receiver.discard();
        if self.send_shut {
            self.close();
        }
    }

    /// Closes both directions: nothing more is written, what arrived stays readable, what comes
    /// later is dropped.
    pub fn close(&mut self) {
        self.send_shut = true;
        self.receiver.keep();
        if self.endings && self.close == Notice::None {
            self.close = Notice::Owed;
        }
    }

    /// The peer ended the connection in an orderly way.
    pub fn on_disconnected(&mut self) {
        if self.transport == Transport::Up {
            self.transport = Transport::Ended;
        }
    }

    /// The connection broke. After an orderly end it changes nothing.
    pub fn on_broken(&mut self) {
        if self.transport == Transport::Up {
            self.transport = Transport::Broken;
        }
    }

    /// Whether the connection is over in both directions, or broken. Once
    /// [`Stream::outgoing_done`] as well, the connection can be ended; bytes that arrived stay
    /// readable.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let received = || self.peer_ended || !self.receiver.is_open();
        self.transport != Transport::Up || self.peer_closed || (self.send_shut && received())
    }

    /// Whether every control message that says how we end was handed out, or nobody waits for it.
    #[must_use]
    pub fn outgoing_done(&self) -> bool {
        self.is_silent() || (self.end != Notice::Owed && self.close != Notice::Owed)
    }

    /// The messages so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Bytes of all data messages so far that [`Stream::next_write`] handed out.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.sender.sent_bytes()
    }

    /// Of these, bytes whose room in the peer's ring was not returned.
    #[must_use]
    pub fn outstanding_bytes(&self) -> u32 {
        self.sender.outstanding_bytes()
    }

    /// Bytes of all data messages that arrived.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.receiver.received_bytes()
    }

    /// Whether this side still takes what the peer sends.
    #[must_use]
    pub fn takes_input(&self) -> bool {
        self.receiver.is_open()
    }

    /// Whether anything can be sent, now or later.
    ///
    /// # Errors
    /// [`SendEnd`] if nothing will be taken any more.
    #[inline]
    pub fn send_state(&self) -> Result<(), SendEnd> {
        if self.send_shut || self.peer_closed {
            return Err(SendEnd::Shut);
        }
        match self.transport {
            Transport::Up => Ok(()),
            Transport::Ended if self.endings => Err(SendEnd::Reset),
            Transport::Ended => Err(SendEnd::Shut),
            Transport::Broken => Err(SendEnd::Reset),
        }
    }

    /// Whether nothing that we could say matters to the peer any more.
    fn is_silent(&self) -> bool {
        let closed = if self.endings { self.close == Notice::Sent } else { self.is_over() };
        let both_ended = self.end == Notice::Sent && self.peer_ended;
        self.transport != Transport::Up || self.peer_closed || closed || both_ended
    }

    /// Takes a message over, or refuses it as a whole.
    fn take(&mut self, arrival: Arrival) -> Result<(), Violation> {
        self.receiver.check_arrival()?;
        match (self.words, arrival) {
            (WordFormat::Immediate, Arrival::Write { immediate: DATA_IMMEDIATE, length }) => {
                self.take_data(length)?;
            }
            (WordFormat::Immediate, Arrival::Write { immediate: word, .. }) => {
                return Err(Violation::UnknownBits { word, unknown: word });
            }
            (WordFormat::Immediate, Arrival::Control { immediate }) => {
                self.take_control(Control::decode(immediate, self.endings)?)?;
            }
            (WordFormat::Iwarp, Arrival::Word(word)) => match Word::decode(word, self.endings)? {
                Word::Data { length } => self.take_data(length)?,
                Word::Control(control) => self.take_control(control)?,
            },
            (WordFormat::Iwarp, Arrival::WordWithData { word, length }) if self.short_data => {
                match Word::decode(word, self.endings)? {
                    Word::Data { length: said } if said == length => self.take_data(length)?,
                    _ => return Err(Violation::NotItsData { word, length }),
                }
            }
            (_, Arrival::WordWithData { word, .. })
            | (WordFormat::Immediate, Arrival::Word(word))
            | (
                WordFormat::Iwarp,
                Arrival::Write { immediate: word, .. } | Arrival::Control { immediate: word },
            ) => return Err(Violation::WrongForm { word }),
        }
        self.receiver.on_message();
        Ok(())
    }

    fn take_data(&mut self, length: u32) -> Result<(), Violation> {
        if self.peer_ended {
            return Err(Violation::DataAfterEnd { length });
        }
        self.receiver.on_data(length)?;
        self.traffic.data_received += 1;
        Ok(())
    }

    fn take_control(&mut self, control: Control) -> Result<(), Violation> {
        if (control.end && self.peer_ended) || (control.close && self.peer_closed) {
            return Err(Violation::EndedTwice { word: control.encode() });
        }
        self.sender.on_control(control)?;
        self.peer_ended |= control.end || control.close;
        self.peer_closed |= control.close;
        self.traffic.updates_received += 1;
        Ok(())
    }
}
