//! The calls of messages, and what all data calls do: each posts work requests, and remembers the operation until they
//! are complete.

use std::io::IoSlice;
use std::time::{Duration, Instant};

use super::endpoint::{Endpoint, Link, Phase};
use super::engine::{NO_OPERATION, State, id_of};
use super::limits::{OP_FLAGS, OWN_FLAGS};
use super::operation::{Kind, Operation};
use super::rxm::ReceivePlaces;
use crate::abi::{Errno, MessageOps, MessageReceive, MessageSend, Place, Result, UserContext, constants};
use crate::provider::error::errno_of;
use rdma_verbs::{
    Buffer, Device, Error, Operation as Request, Payload, QueuePairs as _, RecvRequest, RemoteAddress,
    SendRequest,
};
use rstream_protocol::tag::Header;

/// Flags of calls that send.
const SEND_FLAGS: u64 = OP_FLAGS
    | constants::FI_MORE
    | constants::FI_REMOTE_CQ_DATA
    | constants::FI_FENCE
    | constants::FI_PRIORITY
    | OWN_FLAGS;
/// Flags of calls that receive.
pub(super) const RECV_FLAGS: u64 = constants::FI_COMPLETION | constants::FI_MORE | OWN_FLAGS;

/// For how long calls on an ended connection return `-FI_EAGAIN` while its event is unread.
const UNREAD: Duration = Duration::from_secs(1);

/// A read of no bytes, whose answer says that the peer has taken what was sent before it.
pub(super) const FLUSH: Request = Request::Read { remote: RemoteAddress { key: 0, address: 0 } };

/// The buffer of a receive in these places.
pub(super) fn buffer_of(places: &[Place]) -> Buffer<'_> {
    if places.is_empty() { Buffer::Empty } else { Buffer::Places(places) }
}

/// The error of a request that the device refuses.
pub(super) fn errno_of_post(error: Error) -> Errno {
    match error {
        Error::QueueFull { .. } => Errno::EAGAIN,
        Error::OutOfRange { .. } => Errno::EMSGSIZE,
        other => errno_of(other),
    }
}

/// Refuses flags that a receive does not have.
pub(super) fn check_receive_flags(flags: u64) -> Result<()> {
    if flags & !RECV_FLAGS == 0 { Ok(()) } else { Err(Errno::EBADFLAGS) }
}

impl<D: Device> Endpoint<D> {
    /// The flags of a call that sends, or those of the endpoint for a call without, if it may be made now.
    pub(super) fn send_flags(&self, flags: Option<u64>, link: &Link) -> Result<u64> {
        let flags = flags.unwrap_or(self.sizes.tx_flags);
        if flags & !SEND_FLAGS != 0 {
            return Err(Errno::EBADFLAGS);
        }
        if flags & constants::FI_FENCE != 0 && link.reads > 0 {
            // Nothing but a read can be overtaken.
            return Err(Errno::EAGAIN);
        }
        Ok(flags)
    }

    /// Posts the requests of one operation, or counts a call that has to come again.
    pub(super) fn post(
        &self,
        state: &mut State<D>,
        at: usize,
        operation: Operation,
        requests: &mut [SendRequest<'_>],
        more: bool,
    ) -> Result<()> {
        let posted = self.try_post(state, at, operation, requests, more);
        if posted == Err(Errno::EAGAIN)
            && let Ok(link) = state.link(at)
        {
            link.statistics.waits += 1;
        }
        posted
    }

    /// Posts the requests of one operation, whose ids this function sets.
    fn try_post(
        &self,
        state: &mut State<D>,
        at: usize,
        operation: Operation,
        requests: &mut [SendRequest<'_>],
        more: bool,
    ) -> Result<()> {
        let mut link = state.link(at)?;
        if link.phase != Phase::Connected {
            // Whoever reads no events is connected as well.
            if link.phase == Phase::Connecting {
                state.advance(at);
                link = state.link(at)?;
            }
            link.may_post()?;
        }
        if link.sends >= self.sizes.tx {
            return Err(Errno::EAGAIN);
        }
        let (qp, kind) = (link.qp, operation.kind);
        let is_silent = operation.is_injected && !link.counters.is_of_sends();
        let place = (!is_silent).then(|| {
            link.sends += 1;
            link.reads += usize::from(kind == Kind::Read);
            link.operations.insert(operation)
        });
        mark(requests, place.map_or(NO_OPERATION, |place| id_of(at, place)), !is_silent);
        link.statistics.posted(kind, requests);
        let Err(error) = state.post_send(qp, requests, more) else { return Ok(()) };
        if let Ok(link) = state.link(at) {
            link.statistics.not_posted(kind, requests);
            if let Some(place) = place {
                link.operations.remove(place);
                link.ended(kind);
            }
        }
        Err(self.refused(state, at, error))
    }

    /// Whether a read has to follow a send or a write, so that its completion says that the peer has taken
    /// the data. On a device that accesses memory by itself, the completion of every request says so.
    pub(super) fn needs_flush(&self, flags: u64) -> bool {
        flags & constants::FI_DELIVERY_COMPLETE != 0 && !self.engine.limits.is_direct
    }

    /// Maximum number of requests of an operation on one remote piece, without flags of its own.
    pub(super) fn requests_per_operation(&self) -> usize {
        let flushes = self.needs_flush(self.sizes.tx_flags | self.sizes.write_flags);
        1 + usize::from(flushes) + usize::from(self.tags)
    }

    /// The errno of a request that the device refuses.
    #[cold]
    fn refused(&self, state: &mut State<D>, at: usize, error: Error) -> Errno {
        match error {
            Error::BadState { .. } => self.ended(state, at),
            other => errno_of_post(other),
        }
    }

    /// The errno of a call for which the connection is over.
    #[cold]
    pub(super) fn ended(&self, state: &mut State<D>, at: usize) -> Errno {
        // Queues the event of the end, unless completions have to be read first.
        state.advance(at);
        state.link(at).and_then(Link::may_post).err().unwrap_or(Errno::EAGAIN)
    }

    /// Posts a send or a write of one piece, with the read behind it that `FI_DELIVERY_COMPLETE` needs.
    #[inline(always)]
    pub(super) fn post_one(
        &self,
        state: &mut State<D>,
        at: usize,
        flags: u64,
        mut operation: Operation,
        request: SendRequest<'_>,
    ) -> Result<()> {
        let more = flags & constants::FI_MORE != 0;
        if !self.needs_flush(flags) {
            return self.post(state, at, operation, &mut [request], more);
        }
        operation.left = 2;
        let flush = SendRequest { operation: FLUSH, payload: Payload::Places(&[]), ..request };
        self.post(state, at, operation, &mut [request, flush], more)
    }
}

/// Sets how the requests of one operation are reported.
#[inline]
fn mark(requests: &mut [SendRequest<'_>], id: u64, signaled: bool) {
    match requests {
        // The usual operation costs no loop.
        [one] => (one.id, one.signaled) = (id, signaled),
        several => several.iter_mut().for_each(|one| (one.id, one.signaled) = (id, signaled)),
    }
}

/// A request of an operation, which is marked when it is posted.
pub(super) fn request<'a>(operation: Request, payload: Payload<'a>) -> SendRequest<'a> {
    SendRequest { id: 0, signaled: true, operation, payload }
}

pub(super) fn send(data: Option<u64>) -> Request {
    Request::Send { immediate: data, invalidate: None, solicited: false }
}

impl Link {
    /// Whether the connection takes something now.
    pub(super) fn may_post(&mut self) -> Result<()> {
        match self.phase {
            Phase::Connected => Ok(()),
            Phase::Connecting => Err(Errno::EAGAIN),
            Phase::Idle => Err(Errno::ENOTCONN),
            Phase::Over => Err(self.over()),
        }
    }

    /// The errno of a call after the end of the connection. The application has to read the event first, if
    /// it reads events at all.
    fn over(&mut self) -> Errno {
        if self.binding.unread() == 0 {
            return Errno::ENOTCONN;
        }
        let since = *self.refused.get_or_insert_with(Instant::now);
        if since.elapsed() < UNREAD { Errno::EAGAIN } else { Errno::ENOTCONN }
    }
}

/// The bytes of places, at most `most`, that are to be taken before the call returns.
pub(super) fn copied(places: &[Place], most: usize) -> Result<Vec<u8>> {
    let length: usize = places.iter().map(Place::len).sum();
    if length > most {
        return Err(Errno::EMSGSIZE);
    }
    let mut bytes = Vec::with_capacity(length);
    places.iter().for_each(|place| place.append_to(&mut bytes));
    Ok(bytes)
}

impl<D: Device> MessageOps for Endpoint<D> {
    fn post_recv(&self, receive: MessageReceive<'_>) -> Result<()> {
        let flags = receive.flags.unwrap_or(self.sizes.rx_flags);
        check_receive_flags(flags)?;
        let at = self.link()?;
        self.engine.with(|state| {
            let link = state.link(at)?;
            if link.shared.is_some() {
                return Err(Errno::EINVAL);
            }
            if link.inbox.is_some() {
                return self.post_to_inbox(state, at, None, &receive, flags);
            }
            if link.phase == Phase::Over {
                return Err(link.over());
            }
            if link.receives >= self.sizes.rx {
                return Err(Errno::EAGAIN);
            }
            let with_payload =
                self.payload_places.and_then(|places| ReceivePlaces::with_payload(places, &receive));
            let mut operation = Operation::new(Kind::Recv, receive.context, flags);
            let buffer = buffer_of(with_payload.as_ref().map_or(receive.buffers, ReceivePlaces::as_slice));
            // At most 2^32 - 1, or the device refuses it.
            operation.room = buffer.len() as u32;
            let place = link.operations.insert(operation);
            link.receives += 1;
            let qp = link.qp;
            let posted = state.cq.post_recv(qp, &[RecvRequest { id: id_of(at, place), buffer }]);
            let Err(error) = posted else { return Ok(()) };
            if let Ok(link) = state.link(at) {
                link.operations.remove(place);
                link.ended(Kind::Recv);
            }
            Err(self.refused(state, at, error))
        })
    }

    fn post_send(&self, call: MessageSend<'_>) -> Result<()> {
        let at = self.link()?;
        self.engine.with(|state| self.post_message(state, at, None, &call))
    }

    #[inline(always)]
    fn inject(&self, message: &[u8], data: Option<u64>) -> Result<()> {
        let at = self.link()?;
        self.engine.with(|state| self.inject_message(state, at, None, message, data))
    }
}

impl<D: Device> Endpoint<D> {
    /// Sends a message with this tag, or without one.
    #[inline(always)]
    pub(super) fn post_message(
        &self,
        state: &mut State<D>,
        at: usize,
        tag: Option<u64>,
        call: &MessageSend<'_>,
    ) -> Result<()> {
        let flags = self.send_flags(call.flags, state.link(at)?)?;
        let operation = Operation::new(kind_of(tag), call.context, flags);
        let header = (tag, call.data);
        if flags & constants::FI_INJECT == 0 {
            let payload = Payload::Places(call.buffers);
            return self.post_payload(state, at, flags, operation, header, payload);
        }
        let bytes = copied(call.buffers, self.engine.limits.inject)?;
        let slices = [IoSlice::new(&bytes)];
        self.post_payload(state, at, flags, operation, header, Payload::Inline(&slices))
    }

    /// Sends a message: its tag, its data and its payload.
    #[inline(always)]
    fn post_payload(
        &self,
        state: &mut State<D>,
        at: usize,
        flags: u64,
        operation: Operation,
        header: (Option<u64>, Option<u64>),
        payload: Payload<'_>,
    ) -> Result<()> {
        if self.tags {
            return self.post_with_header(state, at, flags, operation, header, payload);
        }
        self.post_one(state, at, flags, operation, request(send(header.1), payload))
    }

    /// Sends a copy of a message with this tag, or without one, which is not reported.
    #[inline(always)]
    pub(super) fn inject_message(
        &self,
        state: &mut State<D>,
        at: usize,
        tag: Option<u64>,
        message: &[u8],
        data: Option<u64>,
    ) -> Result<()> {
        if message.len() > self.engine.limits.inject {
            return Err(Errno::EMSGSIZE);
        }
        let slices = [IoSlice::new(message)];
        if self.tags {
            let operation =
                Operation { is_injected: true, ..Operation::new(kind_of(tag), UserContext::NONE, 0) };
            let payload = Payload::Inline(&slices);
            return self.post_with_header(state, at, 0, operation, (tag, data), payload);
        }
        self.inject_pieces(state, at, data, &slices)
    }

    /// Sends a copy of a message in pieces, which is not reported.
    #[inline(always)]
    pub(super) fn inject_pieces(
        &self,
        state: &mut State<D>,
        at: usize,
        data: Option<u64>,
        pieces: &[IoSlice<'_>],
    ) -> Result<()> {
        let operation = Operation { is_injected: true, ..Operation::new(Kind::Send, UserContext::NONE, 0) };
        self.post(state, at, operation, &mut [request(send(data), Payload::Inline(pieces))], false)
    }

    /// Sends a message on an endpoint with tags: a header with the tag and the data of the message, and its payload,
    /// unless it has none.
    #[inline(never)]
    fn post_with_header(
        &self,
        state: &mut State<D>,
        at: usize,
        flags: u64,
        mut operation: Operation,
        (tag, data): (Option<u64>, Option<u64>),
        payload: Payload<'_>,
    ) -> Result<()> {
        let length = u32::try_from(payload.len()).map_err(|_| Errno::EMSGSIZE)?;
        let header = Header { tag, data, length }.encode();
        let header = [IoSlice::new(&header)];
        let flush = request(FLUSH, Payload::Places(&[]));
        let mut requests =
            [request(send(None), Payload::Inline(&header)), request(send(None), payload), flush];
        if length == 0 {
            requests.swap(1, 2);
        }
        let count = 1 + usize::from(length > 0) + usize::from(self.needs_flush(flags));
        // At most three.
        operation.left = count as u8;
        self.post(state, at, operation, &mut requests[..count], flags & constants::FI_MORE != 0)
    }
}

fn kind_of(tag: Option<u64>) -> Kind {
    if tag.is_some() { Kind::TaggedSend } else { Kind::Send }
}
