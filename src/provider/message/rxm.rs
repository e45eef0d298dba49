//! Endpoints of `ofi_rxm` of libfabric 1.15 to 1.19, which has given the domain a function that tells where payload goes
//! ([`PayloadPlaces`]).
//!
//! `ofi_rxm` then posts receives for its header only, `struct rxm_pkt` of its `rxm.h`. The function is asked when they
//! are posted, about a header whose kind `ofi_rxm` never matches with a receive of the application. So it names the memory
//! behind the header, which the receive gets as a second place, and `ofi_rxm` matches the message when it is complete.
//!
//! Messages with tags come without a header, by the tagged calls, and get one here. That is what `ofi_rxm` sends over
//! other providers, so other releases understand it.

use std::collections::BTreeMap;
use std::io::IoSlice;

use super::endpoint::{Endpoint, Link};
use super::engine::State;
use super::operation::{Kind, Operation};
use super::posting::{FLUSH, copied, request, send};
use crate::abi::{
    Errno, MESSAGE_IOV_LIMIT, MessageReceive, MessageSend, PayloadPlaces, Place, ReceiveBuffer, Result,
    constants,
};
use rdma_verbs::{Device, Payload};

/// Length of the header, in bytes.
const HEADER: usize = 64;
/// Versions in the header: `RXM_CTRL_VERSION` and `OFI_OP_VERSION`.
const VERSIONS: (u8, u8) = (4, 2);
/// Versions in connection data: `RXM_CM_DATA_VERSION`, `RXM_CTRL_VERSION` and `RXM_OP_VERSION`.
const CONNECTION_VERSIONS: [u8; 3] = [1, 4, 3];
/// The kinds `rxm_ctrl_eager`, a whole message, and `rxm_ctrl_credit`, which is never matched.
const WHOLE: u8 = 0;
const UNMATCHED: u8 = 6;
/// The operation `ofi_op_tagged`.
const TAGGED: u8 = 1;

/// What such an endpoint has and other message endpoints do not.
#[derive(Default)]
pub(super) struct Headers {
    /// By which number the peer knows this side; `None`: it has not told that, or is not `ofi_rxm`.
    pub(super) number: Option<i32>,
    /// Headers of messages on the way, by the ids of their requests.
    sent: BTreeMap<u64, ReceiveBuffer>,
}

impl Headers {
    pub(super) fn new(number: Option<i32>) -> Self {
        Self { number, ..Self::default() }
    }

    /// The operation with this id has ended.
    #[inline(never)]
    pub(super) fn ended(&mut self, id: u64) {
        self.sent.remove(&id);
    }
}

/// Whether every message fits into the memory behind a header. With this parameter `ofi_rxm` may send longer ones.
pub(in super::super) fn bounds_messages() -> bool {
    std::env::var_os("FI_OFI_RXM_EAGER_LIMIT").is_none()
}

/// The places of a receive.
pub(super) struct ReceivePlaces {
    all: [Place; MESSAGE_IOV_LIMIT],
    count: usize,
}

impl ReceivePlaces {
    /// Those of a receive for a header, with those of the payload; `None`: it is another receive.
    pub(super) fn with_payload(places: PayloadPlaces, receive: &MessageReceive<'_>) -> Option<Self> {
        let &[header] = receive.buffers else { return None };
        if header.len() != HEADER {
            return None;
        }
        // It is not posted yet.
        header.fill(&packet(UNMATCHED));
        let mut of_receive = Self { all: [header; MESSAGE_IOV_LIMIT], count: 1 };
        for (place, payload) in of_receive.all[1..].iter_mut().zip(places.of(receive.context)) {
            *place = payload;
            of_receive.count += 1;
        }
        Some(of_receive)
    }

    pub(super) fn as_slice(&self) -> &[Place] {
        &self.all[..self.count]
    }
}

/// A header of this kind, which is otherwise empty: version, kind, and version of the operation.
fn packet(kind: u8) -> [u8; HEADER] {
    let mut packet = [0; HEADER];
    (packet[0], packet[1], packet[32]) = (VERSIONS.0, kind, VERSIONS.1);
    packet
}

/// The header of a message with a tag, for the connection that the peer knows by this number: that number, the operation,
/// flags, length in bytes, data, and tag.
fn header(number: i32, tag: u64, data: Option<u64>, length: usize) -> [u8; HEADER] {
    let flags = if data.is_some() { constants::FI_REMOTE_CQ_DATA as u32 } else { 0 };
    let mut header = packet(WHOLE);
    header[8..16].copy_from_slice(&i64::from(number).to_ne_bytes());
    header[34] = TAGGED;
    header[36..40].copy_from_slice(&flags.to_ne_bytes());
    header[40..48].copy_from_slice(&(length as u64).to_ne_bytes());
    header[48..56].copy_from_slice(&data.unwrap_or(0).to_ne_bytes());
    header[56..].copy_from_slice(&tag.to_ne_bytes());
    header
}

/// By which number the peer knows this side, from the peer's connection request.
pub(in super::super) fn number_in_request(user_data: &[u8]) -> Option<i32> {
    let versions = [*user_data.first()?, *user_data.get(2)?, *user_data.get(3)?];
    number_at(user_data, 16).filter(|_| versions == CONNECTION_VERSIONS)
}

/// The same from the reply to this side's request.
pub(super) fn number_in_reply(user_data: &[u8]) -> Option<i32> {
    number_at(user_data, 0)
}

/// The lower half of a connection's id. The upper one is a process id.
fn number_at(user_data: &[u8], at: usize) -> Option<i32> {
    let id = user_data.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*id) as i32)
}

impl<D: Device> Endpoint<D> {
    /// Sends a message with this tag.
    pub(super) fn post_for_rxm(
        &self,
        state: &mut State<D>,
        at: usize,
        tag: u64,
        call: &MessageSend<'_>,
    ) -> Result<()> {
        let link = state.link(at)?;
        let flags = self.send_flags(call.flags, link)?;
        let length: usize = call.buffers.iter().map(Place::len).sum();
        let header = link.header(tag, call.data, length)?;
        let operation = Operation::new(Kind::Send, call.context, flags);
        let most = self.engine.limits.inject.saturating_sub(HEADER);
        if flags & constants::FI_INJECT != 0 || length <= most {
            let bytes = copied(call.buffers, most)?;
            let slices = [IoSlice::new(&header), IoSlice::new(&bytes)];
            return self.post_one(state, at, flags, operation, request(send(None), Payload::Inline(&slices)));
        }
        // The header needs a place. If none is left, it shares that of the first buffer, which is copied.
        let copies_first = call.buffers.len() == self.engine.limits.iovs;
        let (first, others) = call.buffers.split_at(usize::from(copies_first));
        let mut beginning = header.to_vec();
        first.iter().for_each(|place| place.append_to(&mut beginning));
        let beginning_length = u32::try_from(beginning.len()).map_err(|_| Errno::EMSGSIZE)?;
        let memory = ReceiveBuffer::new(beginning_length).ok_or(Errno::EAGAIN)?;
        let place = memory.place().ok_or(Errno::EMSGSIZE)?;
        place.fill(&beginning);
        let mut places = Vec::with_capacity(MESSAGE_IOV_LIMIT);
        places.push(place);
        places.extend(others);
        let mut requests =
            [request(send(None), Payload::Places(&places)), request(FLUSH, Payload::Places(&[]))];
        let count = 1 + usize::from(self.needs_flush(flags));
        // At most two.
        let operation = Operation { left: count as u8, ..operation };
        let more = flags & constants::FI_MORE != 0;
        self.post(state, at, operation, &mut requests[..count], more)?;
        if let Some(headers) = &mut state.link(at)?.headers {
            headers.sent.insert(requests[0].id, memory);
        }
        Ok(())
    }

    /// Sends a copy of a message with this tag, which is not reported.
    pub(super) fn inject_for_rxm(
        &self,
        state: &mut State<D>,
        at: usize,
        tag: u64,
        message: &[u8],
        data: Option<u64>,
    ) -> Result<()> {
        let header = state.link(at)?.header(tag, data, message.len())?;
        self.inject_pieces(state, at, None, &[IoSlice::new(&header), IoSlice::new(message)])
    }
}

impl Link {
    /// The header of a message. `ofi_rxm` posts none before it has read that the connection is there, which tells the number.
    fn header(&mut self, tag: u64, data: Option<u64>, length: usize) -> Result<[u8; HEADER]> {
        self.may_post()?;
        let number = self.headers.as_ref().and_then(|headers| headers.number).ok_or(Errno::ENOSYS)?;
        Ok(header(number, tag, data, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_connection_data() {
        let mut request = [0; 24];
        (request[0], request[2], request[3]) = (1, 4, 3);
        request[16..].copy_from_slice(&0x7777_0000_0009_u64.to_ne_bytes());
        assert_eq!(number_in_request(&request), Some(9));
        assert_eq!(number_in_reply(&request[16..]), Some(9));
        assert_eq!((number_in_request(&request[..23]), number_in_reply(&request[..7])), (None, None));
        request[3] = 4;
        assert_eq!(number_in_request(&request), None);
    }
}
