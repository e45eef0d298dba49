//! Posting: all requests are checked before any is queued.

use super::outgoing::{LocalPayload, Request};
use super::{Phase, QueuePair, ReadyList, Receive};
use rdma_verbs::{Access, Buffer, Error, Operation, Payload, RecvRequest, Result, SendRequest};

impl QueuePair {
    /// Posts receives, all or none.
    pub(in crate::sim) fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        if self.closing || self.phase == Phase::Ended {
            return Err(Error::BadState { state: self.state(), what: "receiving" });
        }
        let depth = self.capabilities.recv_depth;
        let count = check_room(requests.len(), depth, depth - self.receives_occupied)?;
        let receives: Vec<_> =
            requests.iter().map(|request| self.check_receive(request)).collect::<Result<_>>()?;
        self.receives.extend(receives);
        self.receives_occupied += count;
        Ok(())
    }

    /// The receive of a request, if its buffer is valid.
    fn check_receive(&self, request: &RecvRequest<'_>) -> Result<Receive> {
        let buffer = match request.buffer {
            Buffer::Empty => None,
            Buffer::Segment(segment) => Some(segment),
            Buffer::Places(_) => return Err(NO_PLACES),
        };
        if let Some(segment) = &buffer {
            self.regions.local(segment, Access::LOCAL_WRITE)?;
        }
        Ok(Receive { id: request.id, buffer })
    }

    /// Posts sends, all or none. Transmits them unless `more` follow.
    pub(in crate::sim) fn post_send(
        &mut self,
        requests: &[SendRequest<'_>],
        more: bool,
        ready: &mut ReadyList,
    ) -> Result<()> {
        if self.closing || self.phase != Phase::Established {
            return Err(Error::BadState { state: self.state(), what: "sending" });
        }
        check_room(requests.len(), self.capabilities.send_depth, self.sends.room())?;
        requests.iter().try_for_each(|request| self.check(request))?;
        for request in requests {
            self.sends.push(Request {
                id: request.id,
                signaled: request.signaled,
                operation: request.operation,
                payload: local_payload(request.payload),
            });
        }
        if !more {
            self.transmit(ready);
        }
        Ok(())
    }

    /// Whether a message waits for a receive.
    pub(in crate::sim) fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    fn check(&self, request: &SendRequest<'_>) -> Result<()> {
        self.check_payload(request.payload)?;
        match request.operation {
            Operation::Send { immediate: Some(_), .. } | Operation::Write { immediate: Some(_), .. }
                if !self.config.immediate =>
            {
                Err(Error::Unsupported("immediate data"))
            }
            Operation::Send { .. } | Operation::Write { .. } => {
                self.check_segments(request.payload, Access::empty())
            }
            Operation::Read { .. } if !self.sends.can_read() => {
                Err(Error::Unsupported("RDMA reads on this connection"))
            }
            Operation::Read { .. } => match request.payload {
                Payload::Segments([_]) => self.check_segments(request.payload, Access::LOCAL_WRITE),
                _ => Err(Error::Unsupported("RDMA reads into anything but one segment")),
            },
        }
    }

    fn check_payload(&self, payload: Payload<'_>) -> Result<()> {
        if matches!(payload, Payload::Places(_)) {
            return Err(NO_PLACES);
        }
        let length = payload.len();
        let limit = self.capabilities.inline;
        if matches!(payload, Payload::Inline(_)) && length > limit {
            return Err(Error::InlineTooLong { length, limit });
        }
        let most = u64::from(self.config.max_message);
        if length as u64 > most {
            return Err(Error::OutOfRange { what: "message length", value: length as u64, least: 0, most });
        }
        Ok(())
    }

    fn check_segments(&self, payload: Payload<'_>, needed: Access) -> Result<()> {
        let Payload::Segments(segments) = payload else { return Ok(()) };
        segments.iter().try_for_each(|segment| self.regions.local(segment, needed).map(drop))
    }
}

const NO_PLACES: Error = Error::Unsupported("memory that is not registered");

/// The number of requests, if that many fit.
fn check_room(asked: usize, depth: u32, room: u32) -> Result<u32> {
    u32::try_from(asked).ok().filter(|&count| count <= room).ok_or(Error::QueueFull { depth, room, asked })
}

fn local_payload(payload: Payload<'_>) -> LocalPayload {
    match payload {
        Payload::Inline(slices) => {
            let mut bytes = Vec::with_capacity(payload.len());
            slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
            LocalPayload::Bytes(bytes)
        }
        Payload::Segments(segments) => LocalPayload::Segments(segments.to_vec()),
        // `check_payload` refuses these.
        Payload::Places(_) => LocalPayload::Bytes(Vec::new()),
    }
}
