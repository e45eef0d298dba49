//! What may be posted: refusals change nothing.

use std::io::IoSlice;

use super::MAX_MESSAGE;
use crate::iwarp::region::{RegionCache, RegionFault};
use crate::{Access, Error, Operation, Payload, Result, Segment, SendRequest};

/// Checks one request of a queue pair whose inline limit is `limit` and whose ORD is
/// `initiator_depth`.
pub(super) fn check_request(
    request: &SendRequest<'_>,
    limit: usize,
    initiator_depth: u8,
    regions: &mut RegionCache,
) -> Result<()> {
    let length = request.payload.len();
    if length as u64 > MAX_MESSAGE {
        return Err(Error::OutOfRange {
            what: "message length",
            value: length as u64,
            least: 0,
            most: MAX_MESSAGE,
        });
    }
    match (request.operation, request.payload) {
        (Operation::Send { immediate: Some(_), .. }, _) if length > 0 => {
            return Err(Error::Unsupported("send of payload with immediate data"));
        }
        (Operation::Send { immediate: Some(_), invalidate: Some(_), .. }, _) => {
            return Err(Error::Unsupported("send with both immediate data and a key to invalidate"));
        }
        (Operation::Read { .. }, _) if initiator_depth == 0 => {
            return Err(Error::Unsupported("RDMA Read on a connection whose ORD is 0"));
        }
        (Operation::Read { .. }, Payload::Segments([segment])) => {
            check_segment(segment, Access::LOCAL_WRITE, regions)?;
        }
        (Operation::Read { .. }, _) => {
            return Err(Error::Unsupported("RDMA Read into anything but one segment"));
        }
        (_, Payload::Segments(segments)) => {
            for segment in segments {
                check_segment(segment, Access::empty(), regions)?;
            }
        }
        (_, Payload::Inline(_)) if length > limit => {
            return Err(Error::InlineTooLong { length, limit });
        }
        (_, Payload::Inline(_)) => {}
    }
    Ok(())
}

/// The payload of a request that is taken when it is posted; `None` for what is streamed from
/// registered memory. Immediate data alone has no payload to stream.
pub(super) fn inline<'a>(request: &SendRequest<'a>) -> Option<&'a [IoSlice<'a>]> {
    match (request.payload, request.operation) {
        (Payload::Inline(slices), _) => Some(slices),
        (Payload::Segments(_), Operation::Send { immediate: Some(_), .. }) => Some(&[]),
        (Payload::Segments(_), _) => None,
    }
}

/// Checks a local segment against its region.
pub(super) fn check_segment(segment: &Segment, needed: Access, regions: &mut RegionCache) -> Result<()> {
    let &Segment { key, address, length } = segment;
    let bad = |why| Error::BadSegment { key, address, length, why };
    let region = regions.find(key).ok_or_else(|| bad("no such key"))?;
    region.check(needed, address, u64::from(length)).map_err(|fault| {
        bad(match fault {
            RegionFault::Access => "the region may not be written locally",
            RegionFault::Wrap | RegionFault::Bounds { .. } => "it is not within the region",
        })
    })
}
