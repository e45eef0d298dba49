//! The local memory of requests: registered memory, or places.

use crate::sim::region::Regions;
use rdma_verbs::{Access, Place, Result, Segment};

/// The pieces of memory of a request, in order.
#[derive(Debug)]
pub(in crate::sim) enum LocalMemory {
    Segments(Vec<Segment>),
    Places(Vec<Place>),
}

impl LocalMemory {
    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Segments(segments) => segments.iter().map(|segment| segment.length as usize).sum(),
            Self::Places(places) => places.iter().map(Place::len).sum(),
        }
    }

    /// Copies the first of `bytes` in, as many as fit.
    ///
    /// # Errors
    /// A region was dropped after the request was posted.
    pub(super) fn write(&self, regions: &Regions, mut bytes: &[u8]) -> Result<()> {
        match self {
            Self::Segments(segments) => {
                for segment in segments {
                    let (now, later) = bytes.split_at(bytes.len().min(segment.length as usize));
                    if !now.is_empty() {
                        regions.local(segment, Access::LOCAL_WRITE)?.write(now);
                    }
                    bytes = later;
                }
            }
            Self::Places(places) => places.iter().for_each(|place| bytes = &bytes[place.fill(bytes)..]),
        }
        Ok(())
    }

    /// Copies the bytes out.
    ///
    /// # Errors
    /// A region was dropped after the request was posted.
    pub(super) fn read(&self, regions: &Regions) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.len());
        match self {
            Self::Segments(segments) => {
                for segment in segments {
                    let range = regions.local(segment, Access::empty())?;
                    let start = bytes.len();
                    bytes.resize(start + segment.length as usize, 0);
                    range.read(&mut bytes[start..]);
                }
            }
            Self::Places(places) => places.iter().for_each(|place| place.append_to(&mut bytes)),
        }
        Ok(bytes)
    }
}
