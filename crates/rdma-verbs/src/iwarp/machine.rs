//! The protocol of an established connection as a machine that does no input or output.
//!
//! Received bytes go in through [`Machine::feed`], in pieces of any size. For the bulk of a
//! payload [`Machine::target`] tells where it belongs, so that it can be received straight to its
//! place; [`Machine::placed`] says that it was. Bytes for the peer go out through a [`Wire`], and
//! completions into a [`Sink`]. After a [`Fault`] the machine takes nothing more; the caller sends
//! [`Machine::terminate`] if it was a violation, and [`Machine::flush`] ends what is outstanding.

mod encode;
mod marks;
mod reads;
mod receive;
mod receives;
mod stream;
#[cfg(test)]
mod tests;
mod transmit;
mod validate;
mod violation;
mod work;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::Mutex;

pub use encode::SCRATCH;
pub use stream::{Taken, Wire};
pub use violation::{Fault, Purpose, Violation};

use reads::Reads;
use receive::Receiver;
use receives::ReceiveSource;
pub use receives::SharedReceives;
use transmit::Transmitter;

use super::region::{ProtectionDomain, RegionCache};
use crate::shm::Message;
use crate::{
    Completion, CompletionStatus, Error, Memory, Place, QpCapabilities, QpId, RecvRequest, Result,
    SendRequest,
};
use iwarp_wire::rdmap::{About, Terminate};

/// Longest message, in bytes: a send's offset has 32 bits [RFC 5041 5.2-2].
pub const MAX_MESSAGE: u64 = u32::MAX as u64;

/// Most places of one request.
pub const MAX_PLACES: usize = 4;

/// What a queue pair asks of messages and receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// Those of the specifications.
    Verbs,
    /// Those of [`MessageQueues`](crate::MessageQueues).
    Messages,
}

/// Takes completions.
pub trait Sink {
    /// Takes one, after those before it.
    fn push(&mut self, completion: Completion);
}

impl Sink for Vec<Completion> {
    fn push(&mut self, completion: Completion) {
        Self::push(self, completion);
    }
}

/// What the machine works with during one call.
#[derive(Debug)]
pub struct Port<'p, W: Wire, S: Sink> {
    /// Takes bytes for the peer.
    pub wire: &'p mut W,
    /// Takes completions.
    pub sink: &'p mut S,
    /// Room to build FPDUs in, [`SCRATCH`] bytes, used only during the call. A call that has
    /// nothing to send but what is staged needs none.
    pub scratch: &'p mut [u8],
}

/// What the handshake settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// Whether CRCs are sent and checked.
    pub crc: bool,
    /// RDMA Reads that this side may have outstanding (ORD).
    pub initiator_depth: u8,
    /// RDMA Reads that this side serves at a time (IRD).
    pub responder_resources: u8,
    /// Which side this is.
    pub side: Side,
    /// Whether the peer promised a first frame (RTR, RFC 6581 4.3), for which this side waits
    /// before it calls the connection established.
    pub rtr: bool,
}

/// The two sides of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It asked for the connection, and its first FPDU opens it.
    Active,
    /// It holds its FPDUs back until the first one arrives (RFC 5044 7.1.2).
    Passive,
}

/// Where the payload that comes next belongs.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'m> {
    /// Where it goes.
    pub target: Target<'m>,
    /// How many bytes, more than 0.
    pub length: usize,
}

/// Where payload goes.
#[derive(Debug, Clone, Copy)]
pub enum Target<'m> {
    /// To this offset of a region's memory.
    Memory(&'m Memory, u64),
    /// To the beginning of a place.
    Place(Place),
}

impl Placement<'_> {
    /// Copies the first of `bytes` there, as many as belong there. Answers how many.
    pub fn fill(&self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.length);
        match self.target {
            // Within the region: it was checked.
            Target::Memory(memory, offset) => memory.write(offset, &bytes[..count]).map_or(0, |()| count),
            Target::Place(place) => place.fill(&bytes[..count]),
        }
    }

    /// Receives from `socket` without waiting: payload to its place, and what comes beyond it into `rest`.
    ///
    /// # Errors
    /// As for [`Memory::receive`].
    pub fn receive(&self, socket: BorrowedFd<'_>, rest: &mut [u8]) -> io::Result<usize> {
        match self.target {
            Target::Memory(memory, offset) => memory.receive(socket, offset, self.length, rest),
            Target::Place(place) => place.receive(socket, self.length, rest),
        }
    }
}

/// The bytes of `places`, seen as one stretch, that are at `offset` and in one piece; `None` behind the last.
fn place_at<'p>(places: impl IntoIterator<Item = &'p Place>, mut offset: u64) -> Option<Place> {
    for place in places {
        match offset.checked_sub(place.len() as u64) {
            Some(beyond) => offset = beyond,
            // Less than the place's length, which is a `usize`.
            None => return Some(place.from(offset as usize)),
        }
    }
    None
}

/// A queue pair's protocol state.
#[derive(Debug)]
pub struct Machine {
    regions: RegionCache,
    reads: Reads,
    receiver: Receiver,
    transmitter: Transmitter,
    established: bool,
    /// Whether the machine stopped at a segment of the peer's.
    failed_segment: bool,
    /// Bytes taken of the peer's stream.
    consumed: u64,
}

impl Machine {
    /// A machine whose connection is not there yet; receives can be posted. `max_payload` bounds
    /// the payload of the segments that it sends.
    #[must_use]
    pub fn new(
        qp: QpId,
        domain: &ProtectionDomain,
        capabilities: QpCapabilities,
        max_payload: usize,
    ) -> Self {
        let receives = ReceiveSource::new(capabilities.recv_depth, None);
        Self::with(qp, domain, (capabilities, Rules::Verbs), max_payload, receives)
    }

    /// A machine for messages, which takes its receives from `shared`, if given.
    #[must_use]
    pub fn for_messages(
        qp: QpId,
        domain: &ProtectionDomain,
        capabilities: QpCapabilities,
        max_payload: usize,
        shared: Option<Arc<Mutex<SharedReceives>>>,
    ) -> Self {
        let receives = ReceiveSource::new(capabilities.recv_depth, shared);
        Self::with(qp, domain, (capabilities, Rules::Messages), max_payload, receives)
    }

    fn with(
        qp: QpId,
        domain: &ProtectionDomain,
        (capabilities, rules): (QpCapabilities, Rules),
        max_payload: usize,
        receives: ReceiveSource,
    ) -> Self {
        Self {
            regions: RegionCache::new(domain.clone()),
            reads: Reads::default(),
            receiver: Receiver::new(qp, rules, receives),
            transmitter: Transmitter::new(qp, (capabilities, rules), max_payload),
            established: false,
            failed_segment: false,
            consumed: 0,
        }
    }

    /// The handshake is done. The active side has its opening message staged: call
    /// [`Machine::pump`] [RFC 5040 6.1-1] [RFC 5044 7.1-2, 7.1.2-7] [RFC 6581 5-1].
    pub fn establish(&mut self, agreement: &Agreement) {
        self.receiver.set_crc(agreement.crc);
        self.transmitter.set_crc(agreement.crc);
        self.reads.initiator_depth = agreement.initiator_depth;
        self.reads.responder_resources = agreement.responder_resources;
        self.established = true;
        if agreement.side == Side::Active {
            self.transmitter.stage_ready_to_receive();
            self.transmitter.open();
        }
    }

    /// Entries of the send queue that no outstanding request holds.
    #[must_use]
    pub fn send_room(&self) -> usize {
        self.transmitter.room()
    }

    /// Entries of the receive queue that no posted receive holds.
    #[must_use]
    pub fn recv_room(&self) -> usize {
        self.receiver.room()
    }

    /// Posts receives, in order, all or none.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::BadSegment`].
    pub fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        self.receiver.post(requests, &mut self.regions)
    }

    /// Posts sends, in order, all or none, and sends what goes out at once; with `more` they wait
    /// for the next call.
    ///
    /// # Errors
    /// [`Error::QueueFull`] (also if inline payload does not fit staging), [`Error::BadSegment`],
    /// [`Error::InlineTooLong`], [`Error::OutOfRange`], [`Error::Unsupported`]; nothing is posted then.
    /// [`Error::BadState`] before [`Machine::establish`]. [`Error::Io`] when there is no memory for what the
    /// wire does not take, or a place cannot be read: the requests are posted, and the connection is over
    /// ([`Machine::fault`]).
    pub fn post_send<W: Wire, S: Sink>(
        &mut self,
        requests: &[SendRequest<'_>],
        more: bool,
        port: &mut Port<'_, W, S>,
    ) -> Result<()> {
        if !self.established {
            return Err(Error::BadState { state: "not connected", what: "send" });
        }
        self.transmitter.post(requests, more, &mut self.reads, &mut self.regions, port)
    }

    /// Where the next bytes of the input belong, if they are payload that can be received straight
    /// into a region. Ask again after every [`Machine::feed`] and [`Machine::placed`].
    #[must_use]
    #[inline]
    pub fn target(&self) -> Option<Placement<'_>> {
        self.receiver.target(&self.reads)
    }

    /// Whether CRCs are checked: then every byte has to be fed, and there is no target.
    #[must_use]
    pub fn checks_crc(&self) -> bool {
        self.receiver.checks_crc()
    }

    /// Says that the first `count` bytes of [`Machine::target`] are in their place.
    pub fn placed(&mut self, count: usize) {
        self.receiver.placed(count);
        self.consumed += count as u64;
    }

    /// Whether a message waits for a receive: then nothing more is to be fed until [`Machine::resume`] has
    /// been called and it does not any more.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.receiver.is_stalled()
    }

    /// Goes on with a message that waited for a receive, if there is one now, and with what was fed behind
    /// it.
    ///
    /// # Errors
    /// [`Fault`]: the connection is over.
    pub fn resume(&mut self, sink: &mut impl Sink) -> std::result::Result<(), Fault> {
        let resumed = self.receiver.resume(&mut self.reads, &mut self.regions, sink);
        self.failed_segment = resumed.is_err();
        if self.receiver.is_opened() {
            self.transmitter.open();
        }
        resumed
    }

    /// This side ends the connection. By the rules for messages it takes nothing more: completes the
    /// receives, and drops what is fed from now on.
    pub fn close(&mut self, sink: &mut impl Sink) {
        self.receiver.close(sink);
    }

    /// Whether its rules are those for messages.
    #[must_use]
    pub fn is_for_messages(&self) -> bool {
        self.receiver.is_for_messages()
    }

    /// Gives a receive back to the shared queue that it was taken from, because the queue pair is destroyed.
    pub fn release(&mut self) {
        self.receiver.release();
    }

    /// Takes back a receive; see [`crate::MessageQueues::cancel_recv`].
    pub fn cancel_recv(&mut self, id: u64) -> bool {
        self.receiver.cancel(id)
    }

    /// Takes received bytes [RFC 5040 7.1-5] [RFC 5041 6.2-1, 7.1-13, 7.1-14] [RFC 5044 8-5].
    ///
    /// # Errors
    /// [`Fault`]: the connection is over.
    pub fn feed(&mut self, input: &[u8], sink: &mut impl Sink) -> std::result::Result<(), Fault> {
        let fed = self.receiver.feed(input, &mut self.reads, &mut self.regions, sink);
        self.failed_segment = fed.is_err();
        fed?;
        self.consumed += input.len() as u64;
        if self.receiver.is_opened() {
            self.transmitter.open();
        }
        Ok(())
    }

    /// Takes a message that came by shared memory; what it wrote is in the region that `key` names.
    ///
    /// # Errors
    /// [`Fault`]: the connection is over.
    pub fn receive_message(
        &mut self,
        message: Message,
        key: u32,
        sink: &mut impl Sink,
    ) -> std::result::Result<(), Fault> {
        self.receiver.receive_message(message, key, &mut self.regions, sink)?;
        self.transmitter.open();
        Ok(())
    }

    /// Bytes of the peer's stream that were taken: its position.
    #[must_use]
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Bytes of the stream to the peer that were given out, sent or staged: its position.
    #[must_use]
    pub fn produced(&self) -> u64 {
        self.transmitter.produced()
    }

    /// Whether what is posted next may go to the peer by another way than the stream: this side may
    /// send, and nothing that was posted before is outstanding.
    #[must_use]
    pub fn is_sent(&self) -> bool {
        self.transmitter.is_sent()
    }

    /// Whether only the stream can bring what this side waits for: the rest of a message, or the
    /// answer to a read.
    #[must_use]
    pub fn awaits_stream(&self) -> bool {
        self.transmitter.awaits_read() || !self.receiver.is_between_messages()
    }

    /// Completes requests that went to the peer by another way.
    pub fn complete(&self, requests: &[SendRequest<'_>], sink: &mut impl Sink) {
        self.transmitter.complete_requests(requests, sink);
    }

    /// Sends what waits, as far as the wire takes it. Call it after [`Machine::feed`], and when
    /// the wire takes bytes again while [`Machine::wants_wire`].
    ///
    /// # Errors
    /// [`Violation`], if the memory under a message has died or there is none for staging.
    pub fn pump<W: Wire, S: Sink>(
        &mut self,
        port: &mut Port<'_, W, S>,
    ) -> std::result::Result<(), Violation> {
        self.transmitter.pump(&mut self.reads, &mut self.regions, port);
        self.transmitter.fault().map_or(Ok(()), Err)
    }

    /// Whether this side may send: the active one from the start, the other from the first FPDU on
    /// [RFC 5044 7.1.2-12].
    #[must_use]
    pub fn may_send(&self) -> bool {
        self.transmitter.is_open()
    }

    /// Whether [`Machine::pump`] has something to do; cheap.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.transmitter.has_output(&self.reads)
    }

    /// Why the connection cannot go on, if it cannot: [`Machine::pump`] says the same.
    #[must_use]
    pub fn fault(&self) -> Option<Violation> {
        self.transmitter.fault()
    }

    /// Whether output waits for the wire to take bytes again.
    #[must_use]
    pub fn wants_wire(&self) -> bool {
        self.transmitter.wants_socket(&self.reads)
    }

    /// Whether all that was posted is with the wire, or never will be.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.transmitter.is_drained(&self.reads)
    }

    /// How many of the last bytes that the wire took belong to nothing that was posted: openings,
    /// responses to the peer's reads. All of them if nothing was posted, the handshake's included.
    #[must_use]
    pub fn sent_after_posted(&self) -> u64 {
        self.transmitter.sent_after_posted()
    }

    /// Whether the input may end here without anything being cut.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        self.receiver.is_between_messages()
    }

    /// Gives memory back that only a burst needed. Call it when there is nothing to do.
    pub fn shrink(&mut self) {
        self.transmitter.shrink();
        self.receiver.shrink();
    }

    /// Tells the peer why the connection ends, as the last message, as far as the wire takes it, and if it
    /// has sent something [RFC 5040 7.1-2, 7.1-3, 7.1-4] [RFC 5044 7.1.2-12] [RFC 7306 8.1-1, 8.1-2].
    pub fn terminate(&mut self, terminate: Terminate, wire: &mut impl Wire) {
        if !self.failed_segment && !self.may_send() {
            // The peer's first FPDU has to come before any of this side's (RFC 5044 7.1.2).
            return;
        }
        let about = if self.failed_segment { self.receiver.about(&terminate) } else { About::default() };
        self.transmitter.terminate(terminate, &about, wire);
    }

    /// No more input comes: completes the receives. What waits for the wire still goes out.
    pub fn end_input(&mut self, sink: &mut impl Sink) {
        self.receiver.flush(CompletionStatus::Flushed, sink);
    }

    /// The connection is over because of `fault`, or in order: completes all that is outstanding
    /// [RFC 5040 6.2.1-2] [RFC 5041 6.2.2-2].
    pub fn flush(&mut self, fault: Option<&Fault>, sink: &mut impl Sink) {
        let refused = matches!(fault, Some(Fault::Terminated(terminate)) if terminate.is_protection());
        let first = match fault {
            Some(Fault::Violation(Violation::TooLong { .. })) => CompletionStatus::Truncated,
            Some(Fault::Violation(Violation::LocalKey(_))) if self.transmitter.fault().is_none() => {
                CompletionStatus::LocalAccess
            }
            _ => CompletionStatus::Flushed,
        };
        self.transmitter.flush(refused && self.transmitter.awaits_read(), sink);
        self.receiver.flush(first, sink);
        self.reads.clear();
    }
}

/// Sends a Terminate on a connection that did not come to stand; best effort.
pub fn send_terminate(terminate: Terminate, wire: &mut impl Wire) {
    Transmitter::for_terminate().terminate(terminate, &About::default(), wire);
}
