//! The protocol of an established connection, as a state machine without input or output.
//!
//! The caller passes received bytes to [`Machine::feed`], in pieces of any size. For the bulk of a payload,
//! [`Machine::target`] returns the place where it belongs, so that the caller can receive it straight into
//! that place, and then call [`Machine::placed`]; [`Machine::spaced_target`] does so for several segments of a
//! message. The machine passes bytes for the peer to a [`Wire`] and
//! completions to a [`Sink`]. After a [`Fault`] the machine takes nothing more. The caller sends
//! [`Machine::terminate`] if the fault was a violation, and calls [`Machine::flush`] to complete what is
//! outstanding, and [`Machine::send_staged`] until the wire has taken the rest.

mod encode;
mod failed;
mod placement;
mod reads;
mod receive;
mod receives;
mod spaced;
mod stream;
#[cfg(test)]
mod tests;
mod train;
mod transmit;
mod validate;
mod violation;
mod work;

use std::sync::Arc;

use parking_lot::Mutex;

pub use encode::SCRATCH;
pub use placement::{Placement, Target};
pub use spaced::Spaced;
pub use stream::{Taken, Wire, copies};
pub use violation::{Fault, Purpose, Violation};

use failed::Failed;
use reads::Reads;
use receive::Receiver;
use receives::ReceiveSource;
pub use receives::SharedReceives;
use transmit::Transmitter;

use super::region::{ProtectionDomain, RegionCache};
use crate::{
    Completion, CompletionStatus, Error, PeerAccesses, QpCapabilities, QpId, RecvRequest, Result, SendRequest,
};
use iwarp_wire::rdmap::{About, Terminate};

/// Longest message, in bytes: the offset in a Send has 32 bits [RFC 5041 5.2-2].
pub const MAX_MESSAGE: u64 = u32::MAX as u64;

/// Maximum number of places of one request.
pub const MAX_PLACES: usize = 4;

/// The rules of a queue pair for messages and receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// Those of the specifications.
    Verbs,
    /// Those of [`MessageQueues`](crate::MessageQueues).
    Messages,
}

/// Takes completions.
pub trait Sink {
    /// Takes a completion. Calls are in the order of completion.
    fn push(&mut self, completion: Completion);
}

impl Sink for Vec<Completion> {
    fn push(&mut self, completion: Completion) {
        Self::push(self, completion);
    }
}

/// What the machine uses during one call.
#[derive(Debug)]
pub struct Port<'p, W: Wire, S: Sink> {
    /// Takes bytes for the peer.
    pub wire: &'p mut W,
    /// Takes completions.
    pub sink: &'p mut S,
    /// A buffer of [`SCRATCH`] bytes to build FPDUs in, used only during the call. It may be empty if nothing
    /// but staged output is to be sent.
    pub scratch: &'p mut [u8],
}

/// The outcome of the handshake.
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
    /// Whether the peer promised a first FPDU (RTR, RFC 6581 4.3). Then this side waits for it before it
    /// reports the connection as established.
    pub rtr: bool,
}

/// The two sides of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// It requested the connection, and sends the first FPDU.
    Active,
    /// It sends no FPDU until the first one arrives (RFC 5044 7.1.2).
    Passive,
}

/// A queue pair's protocol state.
#[derive(Debug)]
pub struct Machine {
    regions: RegionCache,
    reads: Reads,
    receiver: Receiver,
    transmitter: Transmitter,
    established: bool,
    /// Whether a segment of the peer caused the fault.
    failed_segment: bool,
}

impl Machine {
    /// A machine without a connection. Receives can be posted. `max_payload` bounds the payload of the
    /// segments that it sends.
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

    /// A machine that takes its receives from `shared`, which has admitted it.
    #[must_use]
    pub fn of_shared(
        qp: QpId,
        domain: &ProtectionDomain,
        capabilities: QpCapabilities,
        max_payload: usize,
        shared: Arc<Mutex<SharedReceives>>,
    ) -> Self {
        let receives = ReceiveSource::new(capabilities.recv_depth, Some(shared));
        Self::with(qp, domain, (capabilities, Rules::Verbs), max_payload, receives)
    }

    /// A machine for messages. It takes its receives from `shared`, if given.
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
        }
    }

    /// Begins the connection. On the active side this stages the opening message: call [`Machine::pump`]
    /// [RFC 5040 6.1-1] [RFC 5044 7.1-2, 7.1.2-7] [RFC 6581 5-1].
    pub fn establish(&mut self, agreement: &Agreement) {
        self.receiver.set_crc(agreement.crc);
        self.transmitter.set_crc(agreement.crc);
        self.reads.initiator_depth = agreement.initiator_depth;
        self.reads.responder_resources = agreement.responder_resources;
        self.established = true;
        if agreement.side == Side::Active {
            self.transmitter.stage_ready_to_receive();
            self.transmitter.open();
        } else {
            self.receiver.expect_opening();
        }
    }

    /// Number of free entries of the send queue.
    #[must_use]
    pub fn send_room(&self) -> usize {
        self.transmitter.room()
    }

    /// Number of free entries of the receive queue.
    #[must_use]
    pub fn recv_room(&self) -> usize {
        self.receiver.room()
    }

    /// Posts receives in order: all of them or none.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::BadSegment`].
    pub fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        self.receiver.post(requests, &mut self.regions)
    }

    /// Posts a receive of one segment, by the rules of the specifications, if it needs no memory and there is
    /// room. The caller has checked that the segment is within its region, which may be written locally. Returns
    /// whether it did. If not, nothing has changed.
    #[must_use]
    pub fn add_receive(&mut self, request: &RecvRequest<'_>) -> bool {
        self.receiver.add(request, &mut self.regions)
    }

    /// Posts sends in order, all of them or none, and sends what the wire takes. With `more` they wait for
    /// the next call.
    ///
    /// # Errors
    /// [`Error::QueueFull`] (also if staging has no room for inline payload), [`Error::BadSegment`],
    /// [`Error::InlineTooLong`], [`Error::OutOfRange`], [`Error::Unsupported`]: nothing is posted.
    /// [`Error::BadState`] before [`Machine::establish`]. [`Error::Io`] if there is no memory for output that
    /// the wire does not take, or a place cannot be read: the requests are posted, and the connection has
    /// failed ([`Machine::fault`]).
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

    /// Posts a short send or write of one segment, if it can be sent without being queued, because nothing
    /// precedes it. Returns whether it did. If not, nothing has changed, and [`Machine::post_send`] tells why it
    /// cannot be posted, if that is so.
    #[must_use]
    pub fn send_at_once<W: Wire, S: Sink>(
        &mut self,
        request: &SendRequest<'_>,
        port: &mut Port<'_, W, S>,
    ) -> bool {
        self.transmitter.send_at_once(request, &self.reads, &mut self.regions, port)
    }

    /// Where the next bytes of the input belong, if they are payload that can be received straight into
    /// memory. Call it again after every [`Machine::feed`] and [`Machine::placed`].
    #[must_use]
    #[inline]
    pub fn target(&self) -> Option<Placement<'_>> {
        self.receiver.target(&self.reads)
    }

    /// Whether CRCs are checked. Then every byte has to be fed, and there is no target.
    #[must_use]
    pub fn checks_crc(&self) -> bool {
        self.receiver.checks_crc()
    }

    /// Reports that the first `count` bytes of [`Machine::target`] are in their place.
    pub fn placed(&mut self, count: usize) {
        self.receiver.placed(count);
    }

    /// Whether a message waits, for a receive or because it is held. Then feed nothing more until
    /// [`Machine::resume`] has succeeded in resuming it.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.receiver.is_stalled()
    }

    /// Holds writes with immediate data, see [`crate::MessageQueues::hold_writes`]. [`Machine::resume`] resumes
    /// one that is let pass.
    pub fn hold_writes(&mut self, hold: bool) {
        self.receiver.hold_writes(hold);
    }

    /// See [`crate::MessageQueues::count_accesses`].
    pub fn count_accesses(&mut self) -> Arc<PeerAccesses> {
        self.reads.count_accesses()
    }

    /// How many messages had to wait.
    #[must_use]
    pub fn stalls(&self) -> u64 {
        self.receiver.stalls()
    }

    /// How many receives of the shared receive queue that it uses, if it does, went to messages that waited, of whatever
    /// queue pair.
    #[must_use]
    pub fn served(&self) -> u64 {
        self.receiver.served()
    }

    /// Resumes a message that waited, if it need not wait any longer, and then takes what was fed after it.
    ///
    /// # Errors
    /// [`Fault`]: the connection has failed.
    pub fn resume(&mut self, sink: &mut impl Sink) -> std::result::Result<(), Fault> {
        let resumed = self.receiver.resume(&mut self.reads, &mut self.regions, sink);
        self.failed_segment = resumed.is_err();
        if self.receiver.is_opened() {
            self.transmitter.open();
        }
        resumed
    }

    /// Begins the end of the connection on this side. By the rules for messages, this flushes the receives,
    /// drops what is fed from now on except a Terminate, and requests no further reads. A message that waited can be
    /// resumed: it is dropped, too.
    pub fn close(&mut self, sink: &mut impl Sink) {
        if self.is_for_messages() {
            self.receiver.close(sink);
            self.transmitter.give_up_reads();
        }
    }

    /// Whether it follows the rules for messages.
    #[must_use]
    pub fn is_for_messages(&self) -> bool {
        self.receiver.is_for_messages()
    }

    /// Returns a receive to the shared queue that it was taken from, because the queue pair is destroyed.
    pub fn release(&mut self) {
        self.receiver.release();
    }

    /// Cancels a receive; see [`crate::MessageQueues::cancel_recv`].
    pub fn cancel_recv(&mut self, id: u64) -> bool {
        self.receiver.cancel(id)
    }

    /// Takes received bytes [RFC 5040 7.1-5] [RFC 5041 6.2-1, 7.1-13, 7.1-14] [RFC 5044 8-5].
    ///
    /// # Errors
    /// [`Fault`]: the connection has failed.
    #[inline(always)]
    pub fn feed(&mut self, input: &[u8], sink: &mut impl Sink) -> std::result::Result<(), Fault> {
        let fed = self.receiver.feed(input, &mut self.reads, &mut self.regions, sink);
        self.failed_segment = fed.is_err();
        fed?;
        if self.receiver.is_opened() {
            self.transmitter.open();
        }
        Ok(())
    }

    /// Sends waiting output, as far as the wire takes it, but only a few mebibytes. Call it after
    /// [`Machine::feed`], and when the wire takes bytes again while [`Machine::wants_wire`].
    ///
    /// # Errors
    /// [`Violation`] if the memory of a message is no longer registered, or there is no memory for staging.
    pub fn pump<W: Wire, S: Sink>(
        &mut self,
        port: &mut Port<'_, W, S>,
    ) -> std::result::Result<(), Violation> {
        self.transmitter.pump(&mut self.reads, &mut self.regions, port);
        self.transmitter.fault().map_or(Ok(()), Err)
    }

    /// Whether this side may send: the active side from the start, the passive side from the first FPDU on
    /// [RFC 5044 7.1.2-12].
    #[must_use]
    pub fn may_send(&self) -> bool {
        self.transmitter.is_open()
    }

    /// Whether [`Machine::pump`] has something to do. This call is cheap.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.transmitter.has_output(&self.reads)
    }

    /// Why the connection cannot continue, if it cannot. [`Machine::pump`] returns the same.
    #[must_use]
    pub fn fault(&self) -> Option<Violation> {
        self.transmitter.fault()
    }

    /// Whether output waits for the wire to take bytes again.
    #[must_use]
    pub fn wants_wire(&self) -> bool {
        self.transmitter.wants_socket(&self.reads)
    }

    /// Whether [`Machine::pump`] has stopped although the wire took more.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.transmitter.is_paused(&self.reads)
    }

    /// Whether the wire has taken all that was posted, or never will.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.transmitter.is_drained(&self.reads)
    }

    /// Number of the last bytes taken by the wire that belong to no posted request but to an opening message
    /// or to responses to the peer's reads. If nothing was posted, all bytes count, including those of the
    /// handshake.
    #[must_use]
    pub fn sent_after_posted(&self) -> u64 {
        self.transmitter.sent_after_posted()
    }

    /// Whether the input may end here without cutting a message.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        self.receiver.is_between_messages()
    }

    /// Frees memory that only a burst needed. Call it when there is nothing to do.
    pub fn shrink(&mut self) {
        self.transmitter.shrink();
        self.receiver.shrink();
    }

    /// Sends a Terminate message with the reason as the last message, if the peer is ready to receive it
    /// [RFC 5040 7.1-2, 7.1-3, 7.1-4] [RFC 5044 7.1.2-12] [RFC 7306 8.1-1, 8.1-2]. What the wire does not take
    /// remains staged, see [`Machine::send_staged`].
    pub fn terminate(&mut self, terminate: Terminate, wire: &mut impl Wire) {
        if !self.failed_segment && !self.may_send() {
            // The peer's first FPDU must arrive before this side sends any (RFC 5044 7.1.2).
            return self.discard_staged();
        }
        let about = if self.failed_segment { self.receiver.about(&terminate) } else { About::default() };
        self.transmitter.terminate(terminate, &about, wire);
    }

    /// Sends what is staged, as far as the wire takes it, and nothing else. Returns whether nothing is left.
    pub fn send_staged(&mut self, wire: &mut impl Wire) -> bool {
        self.transmitter.send_staged(wire)
    }

    /// Drops what is staged, because nothing more is sent.
    pub fn discard_staged(&mut self) {
        self.transmitter.discard_staged();
    }

    /// Gives up what is outstanding, after [`Machine::close`] or [`Machine::end_input`]: see
    /// [`crate::MessageQueues::give_up`].
    pub fn give_up(&mut self) {
        self.transmitter.give_up(&self.reads);
        self.reads.clear();
    }

    /// Completes all that is outstanding except the receives: what has arrived may still take those.
    pub fn end_output(&mut self, sink: &mut impl Sink) {
        self.transmitter.complete(&mut self.reads, sink);
        self.transmitter.flush(None, sink);
        self.discard_staged();
        self.reads.give_up();
        self.receiver.drop_response();
    }

    /// Ends the input and flushes the receives. Waiting output is still sent.
    pub fn end_input(&mut self, sink: &mut impl Sink) {
        self.receiver.flush(CompletionStatus::Flushed, sink);
    }

    /// Completes all that is outstanding, because the connection ended by `fault` or in order
    /// [RFC 5040 6.2.1-2] [RFC 5041 6.2.2-2]. What is staged can still be sent.
    pub fn flush(&mut self, fault: Option<&Fault>, sink: &mut impl Sink) {
        // A response may have arrived together with what broke the connection.
        self.transmitter.complete(&mut self.reads, sink);
        let failed = fault.and_then(|fault| self.failed(fault));
        let first = match failed {
            Some(Failed::Receive(status)) => status,
            _ => CompletionStatus::Flushed,
        };
        self.transmitter.flush(failed, sink);
        self.receiver.flush(first, sink);
        self.reads.clear();
    }
}

/// Sends a Terminate on a connection that was not established, as far as the wire takes it.
pub fn send_terminate(terminate: Terminate, wire: &mut impl Wire) {
    Transmitter::for_terminate().terminate(terminate, &About::default(), wire);
}
