//! Validation of requests before they are posted.

use std::io::IoSlice;

use super::{MAX_MESSAGE, MAX_PLACES, Rules};
use crate::iwarp::region::{RegionCache, RegionFault};
use crate::{Access, Error, Operation, Payload, Place, Result, Segment, SendRequest};
use iwarp_wire::rdmap;

/// Validates a request. `limit` is the inline limit of the queue pair, `rules` are its rules, and
/// `initiator_depth` is its ORD.
pub(super) fn validate_request(
    request: &SendRequest<'_>,
    (limit, rules): (usize, Rules),
    initiator_depth: u8,
    regions: &mut RegionCache,
) -> Result<()> {
    let length = request.payload.len();
    check_length(length as u64)?;
    request.payload.check_fence(request.operation)?;
    match request.operation {
        Operation::Send { immediate: Some(_), invalidate, .. } => {
            if length > 0 && rules == Rules::Verbs {
                return Err(Error::Unsupported("send of payload with immediate data"));
            }
            // The immediate data precedes the payload in the message.
            check_length(length as u64 + rdmap::IMMEDIATE as u64)?;
            if invalidate.is_some() {
                return Err(Error::Unsupported("send with both immediate data and a key to invalidate"));
            }
        }
        Operation::Read { .. } => return check_read(request, initiator_depth, regions),
        Operation::Send { .. } | Operation::Write { .. } => {}
    }
    match request.payload {
        Payload::Inline(_) if length > limit => Err(Error::InlineTooLong { length, limit }),
        Payload::Inline(_) => Ok(()),
        Payload::Segments(_) if length > 0 && rules == Rules::Messages => {
            Err(Error::Unsupported("messages of registered memory"))
        }
        Payload::Fenced(_) if rules == Rules::Messages => Err(Error::Unsupported("fenced messages")),
        Payload::Segments(segments) | Payload::Fenced(segments) => {
            segments.iter().try_for_each(|segment| validate_segment(segment, Access::empty(), regions))
        }
        Payload::Places(places) => validate_places(places),
    }
}

#[inline]
fn check_length(value: u64) -> Result<()> {
    if value > MAX_MESSAGE {
        return Err(Error::OutOfRange { what: "message length", value, least: 0, most: MAX_MESSAGE });
    }
    Ok(())
}

fn check_read(request: &SendRequest<'_>, initiator_depth: u8, regions: &mut RegionCache) -> Result<()> {
    match request.payload {
        _ if initiator_depth == 0 => Err(Error::Unsupported("RDMA Read on a connection whose ORD is 0")),
        Payload::Segments([segment]) => validate_segment(segment, Access::LOCAL_WRITE, regions),
        Payload::Places(places) => validate_places(places),
        Payload::Segments(_) | Payload::Fenced(_) | Payload::Inline(_) => {
            Err(Error::Unsupported("RDMA Read into anything but one segment or places"))
        }
    }
}

/// The inline payload of a request; `None` if the payload is streamed from registered memory or places.
/// Immediate data alone has no payload to stream.
pub(super) fn inline<'a>(request: &SendRequest<'a>) -> Option<&'a [IoSlice<'a>]> {
    match (request.payload, request.operation) {
        (Payload::Inline(slices), _) => Some(slices),
        (_, Operation::Send { immediate: Some(_), .. }) if request.payload.is_empty() => Some(&[]),
        (Payload::Segments(_) | Payload::Fenced(_) | Payload::Places(_), _) => None,
    }
}

/// Validates the number of places and their total length.
pub(super) fn validate_places(places: &[Place]) -> Result<()> {
    let length = places.iter().map(|place| place.len() as u64).sum();
    let number = places.len() as u64;
    for (what, value, most) in
        [("places", number, MAX_PLACES as u64), ("length of places", length, MAX_MESSAGE)]
    {
        if value > most {
            return Err(Error::OutOfRange { what, value, least: 0, most });
        }
    }
    Ok(())
}

/// Validates a local segment against its region.
pub(super) fn validate_segment(segment: &Segment, needed: Access, regions: &mut RegionCache) -> Result<()> {
    let &Segment { key, address, length } = segment;
    let bad = |why| Error::BadSegment { key, address, length, why };
    let region = regions.find(key).ok_or_else(|| bad("no such key"))?;
    region.check(needed, address, u64::from(length)).map(|_| ()).map_err(|fault| {
        bad(match fault {
            RegionFault::Access => "the region may not be written locally",
            RegionFault::Wrap | RegionFault::Bounds { .. } => "it is not within the region",
        })
    })
}
