//! A standing connection: the stream protocol driven over a queue pair.
//!
//! Bytes go out by [`Connection::send`]: the stream says where in the peer's ring the next message
//! belongs, the link posts it. Bytes come in by [`Connection::progress`]: completions are polled,
//! fed to the stream, and their receives posted again; [`Connection::receive`] copies out of the
//! ring. Each public call leaves the connection settled: nothing that could go out is kept back,
//! unless the application asked for it with `FI_MORE`.

use std::io::{IoSlice, IoSliceMut};
use std::time::Instant;

use crate::abi::{self, Errno, Figures, Result};
use rdma_verbs::{
    self as verbs, BreakReason, Completion, CompletionKind, CompletionQueue, CompletionStatus,
    ConnectionEvent, Device, RemoteAddress,
};
use rstream_protocol::{Arrival, RecvState, SendEnd, Stream, WordFormat};

use super::error::errno_of;
use super::figures::{self, Calls};
use super::gather::Gather;
use super::link::{Link, REPOST_CHAIN};
use super::patience::Patience;

/// A stream over a queue pair.
pub(super) struct Connection<D: Device> {
    pub(super) link: Link<D>,
    pub(super) stream: Stream,
    /// What was called, for each direction.
    calls: [Calls; 2],
    /// Whether to look again before a sleep, for each direction.
    patience: [Patience; 2],
    /// Input of the peer that broke a protocol.
    refused: u64,
    format: WordFormat,
    peer_ring: RemoteAddress,
    /// The peer's whole ring and the own send ring: no inject can be longer.
    longest_inject: usize,
    /// Bytes of room that the last send lacked when it answered `-FI_EAGAIN`, and that are worth a
    /// wake-up; 0 if it did not.
    room_awaited: usize,
    /// Output is held back for `FI_MORE`.
    held: bool,
    /// Whether a receive has answered the end of the stream.
    end_answered: bool,
    /// Whether the transport has ended, in an orderly way or not.
    ended: bool,
    /// When this side closed both directions with one call.
    closed: Option<Instant>,
    /// Whether the orderly end was begun from here.
    disconnecting: bool,
    /// There is reason to ask for the connection's events: something says that it has ended.
    event_expected: bool,
    /// Polls that found nothing, modulo 256.
    empty_polls: u8,
    /// Where a poll puts what it finds: clearing this many for each poll would cost more than a poll.
    batch: Box<[Completion; REPOST_CHAIN]>,
    /// Receives that messages used and that are not posted again: the peer may not count on them
    /// before a word has returned them, so they wait for that word or for a whole chain of them.
    used: Vec<u64>,
}

/// What a call is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Direction {
    Send,
    Receive,
}

impl Direction {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Send => Self::Receive,
            Self::Receive => Self::Send,
        }
    }
}

impl<D: Device> Connection<D> {
    /// A connection over `link`, whose peer wrote its ring's place in `peer_ring`.
    pub(super) fn new(
        link: Link<D>,
        stream: Stream,
        format: WordFormat,
        peer_ring: RemoteAddress,
        longest_inject: usize,
    ) -> Self {
        Self {
            link,
            stream,
            calls: [Calls::default(); 2],
            patience: [Patience::default(); 2],
            refused: 0,
            format,
            peer_ring,
            longest_inject,
            room_awaited: 0,
            held: false,
            end_answered: false,
            ended: false,
            closed: None,
            disconnecting: false,
            event_expected: false,
            empty_polls: 0,
            batch: Box::new([Completion::EMPTY; REPOST_CHAIN]),
            // Fewer than a chain, and one batch.
            used: Vec::with_capacity(2 * REPOST_CHAIN),
        }
    }

    /// Takes as many bytes of `data` as there is room for, at least one; `total` is their sum.
    pub(super) fn send(&mut self, data: &[IoSlice<'_>], total: usize, more: bool) -> Result<usize> {
        self.settled(|connection| {
            let mut taken = connection.post(data, 0, total, more)?;
            if taken < total {
                connection.take_in(|stream| stream.sendable().is_ok_and(|room| room < total - taken));
                taken += connection.post(data, taken, total, more)?;
            }
            if taken == 0 && connection.release_held() {
                taken = connection.post(data, 0, total, more)?;
            }
            if taken > 0 {
                connection.room_awaited = 0;
                connection.held = more;
                return Ok(taken);
            }
            connection.sendable()?;
            if total > 0 { connection.block_send(1) } else { Ok(0) }
        })
    }

    /// Takes all of `data` or nothing.
    pub(super) fn inject(&mut self, data: &[u8]) -> Result<usize> {
        let length = data.len();
        if length > self.longest_inject {
            return Err(Errno::EMSGSIZE);
        }
        self.settled(|connection| {
            let mut room = connection.room(length)?;
            if room < length && connection.release_held() {
                room = connection.sendable()?;
            }
            if room < length {
                return connection.block_send(length);
            }
            connection.room_awaited = 0;
            connection.post(&[IoSlice::new(data)], 0, length, false)
        })
    }

    /// How many bytes a send would take now.
    pub(super) fn peek_send(&mut self) -> Result<usize> {
        self.settled(|connection| {
            connection.release_held();
            connection.room(usize::MAX)?;
            // What is owed to the peer goes first, and may take what a message needs.
            connection.settle();
            match connection.sendable()? {
                0 => connection.block_send(1),
                room => Ok(room),
            }
        })
    }

    /// Gives received bytes, at most `total`, the room in `target`.
    pub(super) fn receive(
        &mut self,
        target: &mut [IoSliceMut<'_>],
        total: usize,
        consume: bool,
    ) -> Result<usize> {
        self.settled(|connection| {
            let available = connection.available(total)?;
            if total == 0 || available == 0 {
                return Ok(0);
            }
            let given = connection.copy_out(target);
            if consume {
                connection.stream.consume(given);
            }
            Ok(given)
        })
    }

    /// How many bytes a receive would give now; 0 at the end of the stream.
    pub(super) fn peek_receive(&mut self) -> Result<usize> {
        self.settled(|connection| connection.available(1))
    }

    /// Takes in what arrived and sends what is owed, until nothing is left to do.
    pub(super) fn progress(&mut self) {
        self.held = false;
        loop {
            while self.poll() {}
            if !self.poll_events() {
                break;
            }
        }
        self.settle();
    }

    /// Whether an event loop has a reason to call.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready_for(Direction::Receive) || self.is_ready_for(Direction::Send)
    }

    /// Whether an event loop has a reason to call in this direction: something to receive, or room for a sender
    /// that met none. The end is something to receive until a call has answered it, and again when nothing can be
    /// sent any more: until then a sender may want to sleep.
    pub(super) fn is_ready_for(&self, direction: Direction) -> bool {
        match direction {
            Direction::Receive => {
                self.stream.readable() > 0
                    || (self.stream.receive_end() != RecvState::Open
                        && (!self.end_answered || self.sendable().is_err()))
            }
            Direction::Send => {
                self.room_awaited > 0 && !self.stream.sendable().is_ok_and(|room| room < self.room_awaited)
            }
        }
    }

    /// Asks the device to wake the descriptor for what comes next; answers whether something may
    /// have come in between, so that the caller has to look once more.
    pub(super) fn arm(&mut self) -> Result<bool> {
        let again = self.link.cq.arm().map_err(errno_of)?;
        // An event may wait whose completions were all taken before: then nothing else wakes.
        self.event_expected |= self.event_is_due();
        Ok(again || self.event_expected)
    }

    /// The calls so far that were no peeks.
    pub(super) fn calls(&mut self, direction: Direction) -> &mut Calls {
        &mut self.calls[direction as usize]
    }

    /// Whether to look again before the caller sleeps.
    pub(super) fn patience(&mut self, direction: Direction) -> &mut Patience {
        &mut self.patience[direction as usize]
    }

    /// What was counted so far.
    pub(super) fn figures(&self) -> Figures {
        figures::of(self.calls, self.stream.traffic(), self.refused)
    }

    /// Whether both directions have ended, or the connection broke.
    pub(super) fn is_over(&self) -> bool {
        self.stream.is_over()
    }

    /// Closes both directions. Answers since when they are.
    pub(super) fn close(&mut self) -> Instant {
        self.stream.close();
        *self.closed.get_or_insert_with(Instant::now)
    }

    /// Begins the orderly end of the transport, also if the end of the stream is not said.
    #[cold]
    pub(super) fn disconnect(&mut self) {
        if !self.disconnecting && !self.ended {
            self.disconnecting = true;
            self.link.cq.disconnect(self.link.qp);
        }
    }

    /// Whether nothing of ours is on its way any more: the peer's host has everything.
    pub(super) fn is_flushed(&mut self) -> bool {
        self.ended || (self.stream.outgoing_done() && self.link.cq.flushed(self.link.qp))
    }

    /// Sends what the stream owes (window updates, end of stream) and ends what is over.
    pub(super) fn settle(&mut self) {
        while !self.ended
            && let Some(message) = self.stream.next_control()
        {
            self.held = false;
            self.post_used_receives();
            if let Err(error) = self.link.post_control(self.format, &message) {
                self.fail(&error);
            }
        }
        if self.stream.is_over() && self.stream.outgoing_done() {
            self.disconnect();
        }
    }

    /// Runs a call that leaves the connection to be settled.
    #[inline]
    fn settled<R>(&mut self, call: impl FnOnce(&mut Self) -> R) -> R {
        let answer = call(self);
        self.settle();
        answer
    }

    /// Room for sending.
    fn sendable(&self) -> Result<usize> {
        self.stream.sendable().map_err(errno_of_send)
    }

    /// Room for sending; drives the connection if there is less than `wanted`.
    fn room(&mut self, wanted: usize) -> Result<usize> {
        if self.sendable()? < wanted {
            self.take_in(|stream| stream.sendable().is_ok_and(|room| room < wanted));
        }
        self.sendable()
    }

    /// Answers `-FI_EAGAIN` to a send, and remembers how much room it lacked.
    fn block_send(&mut self, wanted: usize) -> Result<usize> {
        self.room_awaited = wanted;
        Err(Errno::EAGAIN)
    }

    /// Bytes to receive, 0 at the end of the stream; drives the connection if there are none.
    fn available(&mut self, wanted: usize) -> Result<usize> {
        self.release_held();
        if self.stream.readable() == 0 {
            self.take_in(|stream| stream.readable() == 0);
        }
        let readable = self.stream.readable();
        if readable > 0 {
            return Ok(readable);
        }
        match self.stream.receive_end() {
            RecvState::Open if wanted > 0 => Err(Errno::EAGAIN),
            RecvState::Open => Ok(0),
            RecvState::Reset => Err(Errno::ECONNRESET),
            RecvState::Ended => {
                self.end_answered = true;
                Ok(0)
            }
        }
    }

    /// Polls while `wanting`. The connection's events are asked for only when there is reason to: asking
    /// drives the device once more.
    fn take_in(&mut self, wanting: impl Fn(&Stream) -> bool) {
        while wanting(&self.stream) {
            let more = self.poll() || (self.expects_event() && self.poll_events());
            if !more {
                break;
            }
        }
    }

    /// Whether to ask for events after a poll in vain. Also if only the time for it has come, so that a
    /// caller that does nothing but poll hears of a host that has vanished; not every poll pays for a look
    /// at the clock.
    fn expects_event(&mut self) -> bool {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        std::mem::take(&mut self.event_expected) || self.empty_polls == 0 && self.event_is_due()
    }

    /// Whether the device wants to be asked for events by now.
    fn event_is_due(&self) -> bool {
        self.link.cq.deadline(self.link.qp).is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Sends what `FI_MORE` held back: any call on the endpoint does. Answers whether there was something: then
    /// other things may have come in besides.
    fn release_held(&mut self) -> bool {
        let held = self.held;
        if held {
            self.progress();
        }
        held
    }

    /// Posts what there is room for of the `total` bytes of `data`, after the first `skip`; answers how many.
    fn post(&mut self, data: &[IoSlice<'_>], skip: usize, total: usize, more: bool) -> Result<usize> {
        let mut done = skip;
        while done < total {
            let Some(message) = self.stream.next_write(total - done) else { break };
            let size = message.length as usize;
            let cut;
            let pieces = if data.len() == 1 && size == total {
                data
            } else {
                cut = Gather::cut(data, done, size);
                cut.slices()
            };
            if let Err(error) = self.link.post_write(self.format, self.peer_ring, &message, pieces, more) {
                self.fail(&error);
                return Err(Errno::ECONNRESET);
            }
            done += size;
        }
        Ok(done - skip)
    }

    /// Copies received bytes into `target`, as far as both go.
    fn copy_out(&self, target: &mut [IoSliceMut<'_>]) -> usize {
        let mut done = 0;
        for piece in target {
            let mut rest: &mut [u8] = piece;
            while !rest.is_empty() {
                let span = self.stream.span(done, rest.len());
                let (now, later) = rest.split_at_mut(span.length as usize);
                if now.is_empty() || !self.link.read_ring(span.offset, now) {
                    return done;
                }
                done += now.len();
                rest = later;
            }
        }
        done
    }

    /// Takes in one batch of completions; answers whether there was one.
    fn poll(&mut self) -> bool {
        let count = self.link.cq.poll(&mut *self.batch);
        if count == 0 {
            return false;
        }
        for at in 0..count.min(REPOST_CHAIN) {
            let completion = self.batch[at];
            if let Err(violation) = self.take(&completion) {
                self.refuse(&violation);
                return false;
            }
            if is_arrival(&completion) {
                self.used.push(completion.id);
            }
        }
        if self.used.len() >= REPOST_CHAIN {
            self.post_used_receives();
        }
        true
    }

    /// Posts again the receives that messages used. A refusal ends the connection: the peer may count on each.
    fn post_used_receives(&mut self) {
        if !self.ended {
            let link = &mut self.link;
            let posted = self
                .used
                .chunks(REPOST_CHAIN)
                .try_for_each(|slots| link.post_receives(&mut slots.iter().copied()));
            match posted {
                // The connection ends already; its event says why.
                Ok(()) | Err(verbs::Error::BadState { .. }) => {}
                Err(error) => self.fail(&error),
            }
        }
        self.used.clear();
    }

    /// Feeds one completion to the stream.
    fn take(&mut self, completion: &Completion) -> std::result::Result<(), String> {
        match (completion.status, completion.kind) {
            (CompletionStatus::Success, CompletionKind::Send | CompletionKind::Write) => {
                self.stream.on_sent(completion.id);
                Ok(())
            }
            (CompletionStatus::Success, CompletionKind::Recv | CompletionKind::RecvWrite) => {
                let (arrival, landing) = (self.arrival(completion)?, self.stream.landing());
                self.stream.on_arrival(arrival).map_err(|violation| violation.to_string())?;
                match arrival {
                    Arrival::WordWithData { length, .. }
                        if !self.link.place(completion.id, landing, length) =>
                    {
                        Err(format!("{length} bytes at {landing} are beyond the ring or their receive"))
                    }
                    _ => Ok(()),
                }
            }
            (CompletionStatus::Success, CompletionKind::Read) => Ok(()),
            // The connection's event tells what happened.
            (CompletionStatus::Flushed, _) => {
                self.event_expected = true;
                Ok(())
            }
            (status @ (CompletionStatus::LocalError | CompletionStatus::RemoteError), kind) => {
                Err(format!("{kind:?} failed with {status:?}"))
            }
        }
    }

    /// What a message means to the stream.
    fn arrival(&self, completion: &Completion) -> std::result::Result<Arrival, String> {
        match (completion.kind, completion.immediate, completion.length) {
            (CompletionKind::RecvWrite, Some(immediate), length) => Ok(Arrival::Write { immediate, length }),
            (CompletionKind::Recv, Some(immediate), 0) => Ok(Arrival::Control { immediate }),
            (CompletionKind::Recv, None, length @ 4..) => {
                let word = self.link.word(completion.id);
                let word = word.ok_or_else(|| format!("no receive has the id {}", completion.id))?;
                Ok(match length - 4 {
                    0 => Arrival::Word(word),
                    length => Arrival::WordWithData { word, length },
                })
            }
            (kind, immediate, length) => Err(format!(
                "{kind:?} of {length} bytes with immediate {immediate:?} is no message of a stream"
            )),
        }
    }

    /// Takes in what happened to the connection itself; answers whether something did. A device
    /// may tell of the end before completions that belong before it: poll again then.
    fn poll_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.link.cq.poll_event(self.link.qp) {
            any = true;
            match event {
                ConnectionEvent::Disconnected => {
                    self.ended = true;
                    self.stream.on_disconnected();
                }
                ConnectionEvent::Broken(reason) => {
                    self.ended = true;
                    self.refused += u64::from(matches!(reason, BreakReason::Protocol(_)));
                    if !matches!(reason, BreakReason::Reset | BreakReason::Aborted) {
                        log::warn!(target: "ep_data", "connection broke: {reason}");
                    }
                    self.stream.on_broken();
                }
                // The outcome of the attempt was taken before the connection was made.
                ConnectionEvent::Established { .. }
                | ConnectionEvent::Rejected { .. }
                | ConnectionEvent::Failed(_) => {}
            }
        }
        any
    }

    /// Ends the connection because the peer broke the protocol.
    fn refuse(&mut self, violation: &str) {
        log::warn!(target: "ep_data", "connection ended, the peer broke the protocol: {violation}");
        self.refused += 1;
        self.cut();
    }

    /// Ends the connection because the device refused a post.
    fn fail(&mut self, error: &verbs::Error) {
        // A post that meets a connection in its end is no news: the event says more.
        self.poll_events();
        if !self.ended {
            log::warn!(target: "ep_data", "connection ended, the device refused a request: {error}");
            self.cut();
        }
    }

    fn cut(&mut self) {
        self.ended = true;
        abi::put_off(|| self.link.cq.abort(self.link.qp));
        self.stream.on_broken();
    }
}

fn is_arrival(completion: &Completion) -> bool {
    completion.status == CompletionStatus::Success
        && matches!(completion.kind, CompletionKind::Recv | CompletionKind::RecvWrite)
}

fn errno_of_send(end: SendEnd) -> Errno {
    match end {
        SendEnd::Shut => Errno::EPIPE,
        SendEnd::Reset => Errno::ECONNRESET,
    }
}

#[cfg(test)]
mod tests;
