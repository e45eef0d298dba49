//! Posting: all requests are checked before any is queued.

use super::local::LocalMemory;
use super::outgoing::{LocalPayload, Request};
use super::receives::Receive;
use super::{Phase, QueuePair, ReadyList, Rules};
use crate::sim::Config;
use crate::sim::region::Regions;
use rdma_verbs::{Access, Buffer, Error, Operation, Payload, Place, RecvRequest, Result, SendRequest};

impl QueuePair {
    /// Posts receives, all or none.
    pub(in crate::sim) fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<()> {
        if self.closing || self.phase == Phase::Ended {
            return Err(Error::BadState { state: self.state(), what: "receiving" });
        }
        if self.shared.is_some() {
            return Err(Error::Unsupported("receives beside those of a shared queue"));
        }
        let Self { receives, rules, config, regions, .. } = self;
        receives.post(requests, |request| valid_receive(*rules, config, regions, request))
    }

    /// Cancels a receive of its own queue.
    pub(in crate::sim) fn cancel_recv(&mut self, id: u64) -> bool {
        self.receives.cancel(id)
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
                is_fenced: matches!(request.payload, Payload::Fenced(_)),
                operation: request.operation,
                payload: local_payload(request.payload),
            });
        }
        if !more {
            self.transmit(ready);
        }
        Ok(())
    }

    fn check(&self, request: &SendRequest<'_>) -> Result<()> {
        request.payload.check_fence(request.operation)?;
        self.check_payload(request.payload)?;
        match request.operation {
            Operation::Send { immediate, .. } | Operation::Write { immediate, .. } => {
                immediate.map_or(Ok(()), |word| self.check_immediate_data(word))?;
                self.check_segments(request.payload, Access::empty())
            }
            Operation::Read { .. } if !self.sends.can_read() => {
                Err(Error::Unsupported("RDMA reads on this connection"))
            }
            Operation::Read { .. } => match request.payload {
                Payload::Segments([_]) => self.check_segments(request.payload, Access::LOCAL_WRITE),
                Payload::Places(_) => Ok(()),
                _ => Err(Error::Unsupported("RDMA reads into anything but one segment or places")),
            },
        }
    }

    fn check_immediate_data(&self, word: u64) -> Result<()> {
        match self.config.immediate {
            0 => Err(Error::Unsupported("immediate data")),
            bits if word.checked_shr(bits.into()).unwrap_or(0) > 0 => {
                let most = (1 << bits) - 1;
                Err(Error::OutOfRange { what: "immediate data", value: word, least: 0, most })
            }
            _ => Ok(()),
        }
    }

    fn check_payload(&self, payload: Payload<'_>) -> Result<()> {
        let length = payload.len();
        let limit = self.capabilities.inline;
        match (payload, self.rules) {
            (Payload::Inline(_), _) if length > limit => return Err(Error::InlineTooLong { length, limit }),
            (Payload::Places(_), Rules::Verbs) => return Err(NO_PLACES),
            (Payload::Places(places), Rules::Messages) => check_places(&self.config, places)?,
            (Payload::Segments(_), Rules::Messages) if length > 0 => return Err(NO_SEGMENTS),
            (Payload::Fenced(_), Rules::Messages) => return Err(NO_SEGMENTS),
            _ => {}
        }
        let most = u64::from(self.config.max_message);
        if length as u64 > most {
            return Err(Error::OutOfRange { what: "message length", value: length as u64, least: 0, most });
        }
        Ok(())
    }

    fn check_segments(&self, payload: Payload<'_>, needed: Access) -> Result<()> {
        let (Payload::Segments(segments) | Payload::Fenced(segments)) = payload else { return Ok(()) };
        segments.iter().try_for_each(|segment| self.regions.local(segment, needed).map(drop))
    }
}

const NO_PLACES: Error = Error::Unsupported("memory that is not registered");
const NO_SEGMENTS: Error = Error::Unsupported("messages in registered memory");

/// The receive of a request, if it is valid by these rules.
pub(super) fn valid_receive(
    rules: Rules,
    config: &Config,
    regions: &Regions,
    request: &RecvRequest<'_>,
) -> Result<Receive> {
    match rules {
        Rules::Verbs => verbs_receive(regions, request),
        Rules::Messages => message_receive(config, request),
    }
}

/// The receive of a request, if its buffer is valid.
fn verbs_receive(regions: &Regions, request: &RecvRequest<'_>) -> Result<Receive> {
    let segments = match request.buffer {
        Buffer::Empty => Vec::new(),
        Buffer::Segment(segment) => vec![segment],
        Buffer::Places(_) => return Err(NO_PLACES),
    };
    segments.iter().try_for_each(|segment| regions.local(segment, Access::LOCAL_WRITE).map(drop))?;
    Ok(Receive { id: request.id, buffer: LocalMemory::Segments(segments) })
}

/// The receive of a request, by the rules for messages.
fn message_receive(config: &Config, request: &RecvRequest<'_>) -> Result<Receive> {
    let places = match request.buffer {
        Buffer::Empty => Vec::new(),
        Buffer::Places(places) => places.to_vec(),
        Buffer::Segment(_) => return Err(NO_SEGMENTS),
    };
    check_places(config, &places)?;
    Ok(Receive { id: request.id, buffer: LocalMemory::Places(places) })
}

fn check_places(config: &Config, places: &[Place]) -> Result<()> {
    let (value, most) = (places.len() as u64, config.max_places as u64);
    if value <= most { Ok(()) } else { Err(Error::OutOfRange { what: "places", value, least: 0, most }) }
}

/// The number of requests, if that many fit.
pub(super) fn check_room(asked: usize, depth: u32, room: u32) -> Result<u32> {
    u32::try_from(asked).ok().filter(|&count| count <= room).ok_or(Error::QueueFull { depth, room, asked })
}

fn local_payload(payload: Payload<'_>) -> LocalPayload {
    match payload {
        Payload::Inline(slices) => {
            let mut bytes = Vec::with_capacity(payload.len());
            slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
            LocalPayload::Bytes(bytes)
        }
        Payload::Segments(segments) | Payload::Fenced(segments) => {
            LocalPayload::Memory(LocalMemory::Segments(segments.to_vec()))
        }
        Payload::Places(places) => LocalPayload::Memory(LocalMemory::Places(places.to_vec())),
    }
}
