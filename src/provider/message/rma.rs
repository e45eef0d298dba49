//! Reads and writes of the peer's memory.

use std::io::IoSlice;

use super::endpoint::Endpoint;
use super::operation::{Kind, Operation};
use super::posting::{FLUSH, copied, request};
use super::region::stag_of;
use crate::abi::{
    Errno, MESSAGE_IOV_LIMIT, Place, RemotePiece, Result, RmaCall, RmaOps, UserContext, constants,
};
use rdma_verbs::{Device, Operation as Request, Payload, RemoteAddress};

impl<D: Device> RmaOps for Endpoint<D> {
    fn read(&self, call: RmaCall<'_>) -> Result<()> {
        let read = |piece: &RemotePiece, _| Request::Read { remote: remote(piece) };
        self.access(&call, Kind::Read, read)
    }

    fn write(&self, call: RmaCall<'_>) -> Result<()> {
        let write = |piece: &RemotePiece, is_last| Request::Write {
            remote: remote(piece),
            immediate: call.data.filter(|_| is_last),
        };
        self.access(&call, Kind::Write, write)
    }

    fn inject_write(&self, source: &[u8], target: RemotePiece, data: Option<u64>) -> Result<()> {
        if source.len() > self.engine.limits.inject {
            return Err(Errno::EMSGSIZE);
        }
        self.check_keys(&[target])?;
        let at = self.link()?;
        let slices = [IoSlice::new(source)];
        let operation = Operation { is_injected: true, ..Operation::new(Kind::Write, UserContext::NONE, 0) };
        self.engine.with(|state| {
            let write = Request::Write { remote: remote(&target), immediate: data };
            self.post(state, at, operation, &mut [request(write, Payload::Inline(&slices))], false)
        })
    }
}

impl<D: Device> Endpoint<D> {
    /// Refuses keys that are longer than those of the device.
    fn check_keys(&self, remote: &[RemotePiece]) -> Result<()> {
        let is_short = |piece: &RemotePiece| u32::try_from(piece.key).is_ok();
        if !self.engine.limits.is_direct || remote.iter().all(is_short) { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Posts a read or write: one request for each remote piece, which `describe` makes; its second argument
    /// says whether it is the last.
    fn access(
        &self,
        call: &RmaCall<'_>,
        kind: Kind,
        describe: impl Fn(&RemotePiece, bool) -> Request,
    ) -> Result<()> {
        let at = self.link()?;
        let (Some(first), count) = (call.remote.first(), call.remote.len()) else {
            return Err(Errno::EINVAL);
        };
        self.check_keys(call.remote)?;
        self.engine.with(|state| {
            let flags = self.send_flags(call.flags, state.link(at)?)?;
            let flags = flags | if kind == Kind::Write { self.sizes.write_flags } else { 0 };
            let mut operation = Operation::new(kind, call.context, flags);
            let is_inject = kind == Kind::Write && flags & constants::FI_INJECT != 0;
            if count == 1 && !is_inject {
                let request = request(describe(first, true), Payload::Places(call.local));
                // A read says by itself when it is done.
                let flags = match kind {
                    Kind::Read => flags & !constants::FI_DELIVERY_COMPLETE,
                    _ => flags,
                };
                return self.post_one(state, at, flags, operation, request);
            }
            let bytes = if is_inject { copied(call.local, self.engine.limits.inject)? } else { Vec::new() };
            let pieces = split(call, &bytes, is_inject);
            let slices: Vec<_> = pieces.bytes.iter().map(|bytes| [IoSlice::new(bytes)]).collect();
            let mut requests = Vec::with_capacity(count + 1);
            for (index, piece) in call.remote.iter().enumerate() {
                let payload = match is_inject {
                    true => Payload::Inline(&slices[index]),
                    false => Payload::Places(&pieces.places[index]),
                };
                requests.push(request(describe(piece, index + 1 == count), payload));
            }
            if kind == Kind::Write && self.needs_flush(flags) {
                requests.push(request(FLUSH, Payload::Places(&[])));
            }
            // At most five.
            operation.left = requests.len() as u8;
            self.post(state, at, operation, &mut requests, flags & constants::FI_MORE != 0)
        })
    }
}

fn remote(piece: &RemotePiece) -> RemoteAddress {
    RemoteAddress { key: stag_of(piece.key).get(), address: piece.address }
}

/// The local bytes of an access, as they go with its remote pieces.
struct Pieces<'a> {
    places: Vec<Vec<Place>>,
    bytes: Vec<&'a [u8]>,
}

/// Splits the local places, or the bytes copied from them, along the remote pieces.
fn split<'a>(call: &RmaCall<'_>, bytes: &'a [u8], is_inject: bool) -> Pieces<'a> {
    let mut pieces = Pieces { places: Vec::new(), bytes: Vec::new() };
    let (mut local, mut rest) = (call.local.iter().copied().peekable(), bytes);
    let mut current: Option<Place> = None;
    for piece in call.remote {
        // The sum of both sides is the same, and a `usize`.
        let mut left = piece.length as usize;
        if is_inject {
            let (now, later) = rest.split_at(left.min(rest.len()));
            pieces.bytes.push(now);
            rest = later;
            continue;
        }
        let mut places = Vec::with_capacity(MESSAGE_IOV_LIMIT);
        while left > 0
            && let Some(place) = current.take().or_else(|| local.next())
        {
            let part = place.part(0, left);
            left -= part.len();
            places.push(part);
            current = Some(place.part(part.len(), usize::MAX)).filter(|rest| !rest.is_empty());
        }
        pieces.places.push(places);
    }
    pieces
}
