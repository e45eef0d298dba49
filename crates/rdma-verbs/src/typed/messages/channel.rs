//! One established connection of a hub: its messages in both directions.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::task::{Context, Poll};

use super::flow::{Arrival, Flow};
use super::message::{Bytes, Message, Target};
use super::wire::{Header, Hello, Kind, encode_place};
use super::{Options, Reason, Ticket, Violation};
use crate::typed::endpoint::Handle;
use crate::typed::work::InFlight;
use crate::typed::{
    Buf, Connection, Error, Pool, Received, Region, Remote, Result, TrustedDevice, Work, out_of_range,
    receive,
};
use crate::{Access, Connections as _};

/// What a connection has to report.
pub(super) enum Output<D: TrustedDevice> {
    Sent(Ticket),
    Message(Message<D>),
    /// Nothing follows.
    Ended(Reason),
}

/// An established connection.
pub(super) struct Channel<D: TrustedDevice> {
    handle: Handle<D>,
    pool: Pool,
    flow: Flow,
    options: Options,
    /// The tickets of its waker: with those that wait for messages, and with those that wait for the state.
    receiving: Option<u64>,
    watching: Option<u64>,
    /// What the program has not taken, in the order of arrival.
    incoming: VecDeque<Incoming<D>>,
    /// Number of offers that this side has read without saying so.
    read: u8,
    /// What the program sends and the device has not got yet.
    queue: VecDeque<Outgoing>,
    /// Sends that the device has, in their order. One with a ticket is then sent; an offer is not.
    posted: VecDeque<(InFlight<Buf, 1>, Option<Ticket>)>,
    /// Messages that the peer may read, in the order of their offers.
    offered: VecDeque<(Ticket, Region)>,
    /// Messages of which the program has not been told that they are sent.
    sent: VecDeque<Ticket>,
    /// How far the program's wish for an orderly end has got.
    closing: Closing,
    end: Option<Reason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    No,
    /// When the peer has all that was sent.
    Wanted,
    Begun,
}

/// A message of the peer.
struct Incoming<D: TrustedDevice> {
    received: Received<D>,
    body: Body,
}

/// Where the bytes of a message are.
enum Body {
    /// In the receive.
    Here,
    /// In the peer's memory.
    Offered(Remote),
    /// Under way.
    Reading(InFlight<Target, 1>),
    Read(Bytes),
}

/// What is to be sent.
struct Outgoing {
    kind: Kind,
    /// Length of the program's message.
    length: u32,
    /// The header is not written yet.
    buf: Buf,
    /// The program's message, and the memory of one that is offered.
    message: Option<(Ticket, Option<Region>)>,
}

/// Why nothing more is posted now.
enum Stop {
    /// The device refuses requests until some have completed.
    Full,
    /// The connection has ended or is ending, and reports why when all messages are taken.
    Ending,
}

impl Stop {
    /// Tells from other errors what stops posting.
    fn of(error: Error) -> std::result::Result<Self, Error> {
        match error {
            Error::Verbs(crate::Error::QueueFull { .. }) => Ok(Self::Full),
            Error::Ended(_) | Error::Verbs(crate::Error::BadState { .. }) => Ok(Self::Ending),
            error => Err(error),
        }
    }
}

impl<D: TrustedDevice> Channel<D> {
    pub(super) fn new(
        connection: Connection<D>,
        pool: Pool,
        options: Options,
        peer: &Hello,
        connects: bool,
    ) -> Self {
        Self {
            handle: connection.into_handle(),
            pool,
            flow: Flow::new(&options, peer, connects),
            options,
            receiving: None,
            watching: None,
            incoming: VecDeque::new(),
            read: 0,
            queue: VecDeque::new(),
            posted: VecDeque::new(),
            offered: VecDeque::new(),
            sent: VecDeque::new(),
            closing: Closing::No,
            end: None,
        }
    }

    pub(super) fn peer_address(&self) -> Option<SocketAddr> {
        self.handle.with(|core| core.cq.peer_address(self.handle.qp))
    }

    /// Sends a message, of which the bytes are copied.
    pub(super) fn send(&mut self, ticket: Ticket, bytes: &[u8]) -> Result<()> {
        let length = self.check(bytes.len())?;
        if self.flow.is_eager(length) {
            let mut buf = self.buffer(bytes.len())?;
            buf[Header::LENGTH..].copy_from_slice(bytes);
            self.queue(Outgoing { kind: Kind::Eager, length, buf, message: Some((ticket, None)) });
            return Ok(());
        }
        let region = self.handle.shard.region(bytes.len(), Access::REMOTE_READ)?;
        region.write(0, bytes)?;
        let memory = region.remote();
        self.offer(ticket, region, memory)
    }

    /// Sends a piece of a region. The peer reads it there, unless it fits in a buffer.
    pub(super) fn send_region(&mut self, ticket: Ticket, region: &Region, range: Range<usize>) -> Result<()> {
        self.handle.shard.owns(region.registration())?;
        let (start, memory) = (range.start, region.remote_piece(range)?);
        let length = self.check(memory.length as usize)?;
        if self.flow.is_eager(length) {
            let mut buf = self.buffer(length as usize)?;
            region.read(start, &mut buf[Header::LENGTH..])?;
            self.queue(Outgoing { kind: Kind::Eager, length, buf, message: Some((ticket, None)) });
            return Ok(());
        }
        let (needed, granted) = (Access::REMOTE_READ, region.registration().access);
        if !granted.contains(needed) {
            return Err(Error::MissingRights { needed, granted });
        }
        self.offer(ticket, region.clone(), memory)
    }

    fn offer(&mut self, ticket: Ticket, region: Region, memory: Remote) -> Result<()> {
        let place = encode_place(memory);
        let mut buf = self.buffer(place.len())?;
        buf[Header::LENGTH..].copy_from_slice(&place);
        let message = Some((ticket, Some(region)));
        self.queue(Outgoing { kind: Kind::Offer, length: memory.length, buf, message });
        Ok(())
    }

    /// A buffer with room for a header and so many bytes.
    fn buffer(&self, length: usize) -> Result<Buf> {
        let mut buf = self.pool.take()?;
        buf.resize(Header::LENGTH + length)?;
        Ok(buf)
    }

    fn queue(&mut self, outgoing: Outgoing) {
        self.queue.push_back(outgoing);
        // What the device refuses now is posted at the next poll.
        let _ = self.transmit();
    }

    /// Checks whether a message of this length can be sent now.
    fn check(&self, length: usize) -> Result<u32> {
        if self.closing != Closing::No || self.end.is_some() {
            return Err(crate::Error::BadState { state: "ending", what: "sending a message" }.into());
        }
        let most = self.flow.peer_longest();
        let fits = u32::try_from(length).ok().filter(|&length| length <= most);
        let length = fits.ok_or_else(|| out_of_range("message length", length as u64, 0, most as usize))?;
        let tickets = self.posted.iter().filter(|(_, ticket)| ticket.is_some()).count();
        let (depth, held) = (self.options.queue, self.queue.len() + self.offered.len() + tickets);
        if held < depth as usize {
            Ok(length)
        } else {
            Err(crate::Error::QueueFull { depth, room: 0, asked: 1 }.into())
        }
    }

    /// Begins the orderly end, when the peer has all that was sent.
    pub(super) fn disconnect(&mut self) {
        if self.closing == Closing::No {
            self.closing = Closing::Wanted;
        }
    }

    /// Breaks the connection.
    pub(super) fn abort(&self) {
        self.handle.with(|core| {
            core.cq.abort(self.handle.qp);
            core.poll_events(self.handle.index);
        });
    }

    /// Breaks the connection for a reason of this side.
    fn fail(&mut self, reason: Reason) {
        self.abort();
        self.end.get_or_insert(reason);
    }

    /// Stops posting. An error that is neither expected nor that of the connection breaks it.
    fn stop(&mut self, error: Error) -> std::result::Result<(), Stop> {
        Err(Stop::of(error).unwrap_or_else(|error| {
            self.fail(error.into());
            Stop::Ending
        }))
    }

    /// Does what there is to do. Returns what it has to report first, if there is something.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Option<Output<D>> {
        // First of all: from now on it is told of receives that are posted again.
        let Self { handle, watching, .. } = self;
        handle.with(|core| {
            let pair = &mut core.pairs[handle.index];
            pair.watchers.register(watching, context.waker(), &mut core.woken);
        });
        self.receive(context);
        let reads = self.start_reads();
        self.finish_reads(context);
        self.finish_sends(context);
        let sends = self.transmit();
        let is_full = [reads, sends].iter().any(|outcome| matches!(outcome, Err(Stop::Full)));
        // From now on it is told when what it has posted is done. If that is now, there are buffers for more.
        if self.finish_sends(context) || is_full {
            context.waker().wake_by_ref();
        }
        self.close();
        self.output()
    }

    /// Takes what has arrived.
    fn receive(&mut self, context: &mut Context<'_>) {
        while self.end.is_none() {
            let Self { handle, receiving, .. } = self;
            match handle.with(|core| receive::next(handle, core, receiving, context)) {
                Poll::Pending => return,
                Poll::Ready(Ok(received)) => {
                    if let Err(violation) = self.take(received) {
                        self.fail(violation.into());
                    }
                }
                Poll::Ready(Err(error)) => self.end = Some(error.into()),
            }
        }
    }

    fn take(&mut self, received: Received<D>) -> std::result::Result<(), Violation> {
        if !received.is_plain() {
            return Err(Violation::NoMessage);
        }
        let body = match self.flow.arrived(&received)? {
            Arrival::Message => Body::Here,
            Arrival::Offer(memory) => Body::Offered(memory),
            Arrival::Done => {
                // The peer's device may have read it before this side's has completed the send.
                self.sent.extend(self.offered.pop_front().map(|(ticket, _)| ticket));
                return Ok(());
            }
            Arrival::Credit => return Ok(()),
        };
        self.incoming.push_back(Incoming { received, body });
        Ok(())
    }

    /// Begins to read offers, as many at a time as this side allows. Those that are read and that the program
    /// has not taken count, too: so the memory is bounded.
    fn start_reads(&mut self) -> std::result::Result<(), Stop> {
        if self.end.is_some() || self.closing == Closing::Begun {
            return Ok(());
        }
        let handle = &self.handle;
        let offers = self.incoming.iter_mut().filter(|message| !matches!(message.body, Body::Here));
        for message in offers.take(self.options.offers.into()) {
            let Body::Offered(memory) = message.body else { continue };
            let posted = Target::new(&handle.shard, memory.length).and_then(|target| {
                let mut work = [Work::read(target, memory)];
                handle.with(|core| InFlight::post(handle, core, &mut work))
            });
            match posted {
                Ok(posted) => message.body = Body::Reading(posted),
                Err(error) => return self.stop(error),
            }
        }
        Ok(())
    }

    /// Takes the reads that are done, in the order of the offers.
    fn finish_reads(&mut self, context: &mut Context<'_>) {
        let handle = &self.handle;
        for message in &mut self.incoming {
            let Body::Reading(posted) = &message.body else { continue };
            let mut failure = None;
            let memory = handle.with(|core| posted.poll(handle, core, context, &mut failure));
            let Poll::Ready([target]) = memory else { return };
            match failure.map_or_else(|| target.into_bytes(), Err) {
                Ok(bytes) => {
                    message.body = Body::Read(bytes);
                    self.read = self.read.saturating_add(1);
                }
                Err(error) => {
                    self.fail(error.into());
                    return;
                }
            }
        }
    }

    /// Takes the sends that are done. Returns whether there were any.
    fn finish_sends(&mut self, context: &mut Context<'_>) -> bool {
        let (handle, before) = (&self.handle, self.posted.len());
        while let Some((posted, ticket)) = self.posted.front() {
            let mut failure = None;
            if handle.with(|core| posted.poll(handle, core, context, &mut failure)).is_pending() {
                break;
            }
            // A failed request ends the connection, which has the reason.
            self.sent.extend(ticket.filter(|_| failure.is_none()));
            self.posted.pop_front();
        }
        self.posted.len() < before
    }

    /// Posts what may be sent: first what lets the peer go on.
    fn transmit(&mut self) -> std::result::Result<(), Stop> {
        while self.end.is_none() && self.closing != Closing::Begun {
            let receives = self.handle.with(|core| self.handle.pair(core).receives);
            let credits = self.flow.returnable(receives);
            let next = self.queue.front().map(|outgoing| outgoing.kind);
            let outgoing = match next.filter(|&kind| self.flow.may_send(kind)) {
                _ if self.read > 0 => self.control(Kind::Done),
                Some(_) => self.queue.pop_front(),
                None if self.flow.is_due(credits) => self.control(Kind::Credit),
                None => return Ok(()),
            };
            // Without a buffer it waits until a send is done.
            let Some(outgoing) = outgoing else { return Ok(()) };
            self.post(outgoing, credits)?;
        }
        Ok(())
    }

    /// A message that has nothing of the program's.
    fn control(&self, kind: Kind) -> Option<Outgoing> {
        let buf = self.buffer(0).ok()?;
        Some(Outgoing { kind, length: 0, buf, message: None })
    }

    fn post(&mut self, outgoing: Outgoing, credits: u16) -> std::result::Result<(), Stop> {
        let Outgoing { kind, length, mut buf, message } = outgoing;
        let header = Header { kind, credits, length };
        buf[..Header::LENGTH].copy_from_slice(&header.encode());
        let handle = &self.handle;
        let mut work = [Work::send(buf)];
        let error = match handle.with(|core| InFlight::post(handle, core, &mut work)) {
            Ok(posted) => {
                self.flow.sent(&header);
                self.read -= u8::from(kind == Kind::Done);
                let ticket = match message {
                    Some((ticket, Some(region))) => {
                        self.offered.push_back((ticket, region));
                        None
                    }
                    Some((ticket, None)) => Some(ticket),
                    None => None,
                };
                self.posted.push_back((posted, ticket));
                return Ok(());
            }
            Err(error) => error,
        };
        if message.is_some() {
            let [buf] = work.map(Work::into_memory);
            self.queue.push_front(Outgoing { kind, length, buf, message });
        }
        self.stop(error)
    }

    /// Begins the orderly end, if the program wants it and nothing is under way.
    fn close(&mut self) {
        let is_reading = |message: &Incoming<D>| matches!(message.body, Body::Reading(_));
        let is_idle = self.queue.is_empty() && self.posted.is_empty() && self.offered.is_empty();
        if self.closing == Closing::Wanted
            && is_idle
            && self.read == 0
            && !self.incoming.iter().any(is_reading)
        {
            self.closing = Closing::Begun;
            self.handle.with(|core| core.close(self.handle.index));
        }
    }

    fn output(&mut self) -> Option<Output<D>> {
        if let Some(ticket) = self.sent.pop_front() {
            return Some(Output::Sent(ticket));
        }
        // What is behind a message that is not here waits for it.
        let first = self.incoming.front().filter(|first| matches!(first.body, Body::Here | Body::Read(_)));
        if first.is_none() {
            return self.end.take().map(Output::Ended);
        }
        let Incoming { received, body } = self.incoming.pop_front()?;
        let read = if let Body::Read(bytes) = body { Some(bytes) } else { None };
        Some(Output::Message(Message::new(received, read)))
    }
}

impl<D: TrustedDevice> Drop for Channel<D> {
    /// What is under way keeps its memory until it is done.
    fn drop(&mut self) {
        self.handle.with(|core| {
            for (posted, _) in &self.posted {
                posted.detach(core);
            }
            for message in &self.incoming {
                if let Body::Reading(posted) = &message.body {
                    posted.detach(core);
                }
            }
        });
    }
}
