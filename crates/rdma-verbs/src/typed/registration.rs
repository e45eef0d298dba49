//! Registered memory and the pieces of it that move into operations.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::memory::OutOfBounds;
use crate::{Access, Memory, MemoryRegion, ProtectionDomain, Result, Segment};

/// Registered memory of a shard. It stays registered as long as a [`Span`] or its owner refers to it.
pub struct Registration {
    /// The shard in whose protection domain it is. Keys mean nothing in another one.
    pub(super) shard: u64,
    pub(super) access: Access,
    /// Size of the chunks of a pool. A region has none: 0.
    pub(super) chunk: u32,
    /// The offsets of the chunks that no span holds.
    free: Mutex<Vec<u64>>,
    local_key: u32,
    /// The address of its first byte, as the device counts.
    pub(super) address: u64,
    /// The memory that was registered, whatever the region says.
    memory: Arc<Memory>,
    region: Box<dyn MemoryRegion>,
}

impl Registration {
    /// Registers memory: a pool's, with chunks of `chunk` bytes, or a region's, for which that is 0.
    pub(super) fn new<P>(
        shard: u64,
        pd: &P,
        memory: Arc<Memory>,
        access: Access,
        chunk: u32,
    ) -> Result<Arc<Self>>
    where
        P: ProtectionDomain<Mr: 'static>,
    {
        let region = Box::new(pd.register(Arc::clone(&memory), access)?);
        let (size, length) = (u64::from(chunk), memory.len() as u64);
        let chunks = length.checked_div(size).unwrap_or(0);
        let free = Mutex::new((0..chunks).rev().map(|number| number * size).collect());
        let (local_key, address) = (region.local_key(), region.address());
        Ok(Arc::new(Self { shard, access, chunk, free, local_key, address, memory, region }))
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The key for peers.
    pub(super) fn remote_key(&self) -> u32 {
        self.region.remote_key()
    }

    /// Takes a chunk that no span holds.
    pub(super) fn take(self: &Arc<Self>) -> Option<Span> {
        let offset = self.free.lock().pop()?;
        Some(self.span(offset, self.chunk))
    }

    /// These bytes of a region. The caller has checked that they are within it.
    pub(super) fn piece(self: &Arc<Self>, offset: usize, length: u32) -> Span {
        debug_assert_eq!(self.chunk, 0, "the bytes of a pool have owners");
        self.span(offset as u64, length)
    }

    fn span(self: &Arc<Self>, offset: u64, length: u32) -> Span {
        let segment = Segment { key: self.local_key, address: self.address.wrapping_add(offset), length };
        Span { registration: Some(Arc::clone(self)), segment }
    }

    /// Takes back the chunk that begins with a segment, if it is a pool's.
    #[cold]
    fn give_back(&self, segment: &Segment) {
        if self.chunk > 0 {
            self.free.lock().push(self.offset(segment) as u64);
        }
    }

    /// The offset of a segment in the memory.
    #[inline]
    fn offset(&self, segment: &Segment) -> usize {
        // The offset was that of memory, so it is no longer than a `usize`.
        segment.address.wrapping_sub(self.address) as usize
    }

    /// Number of chunks that no span holds.
    pub(super) fn free(&self) -> usize {
        self.free.lock().len()
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("access", &self.access).finish_non_exhaustive()
    }
}

/// Bytes of registered memory. Those of a pool are the beginning of one chunk, and the span owns the chunk.
/// While a request uses them, the shard has the span, so no one else does.
///
/// The default is no memory: it stays where a span was taken from.
#[derive(Debug)]
pub struct Span {
    pub(super) registration: Option<Arc<Registration>>,
    /// What the device calls them.
    pub(super) segment: Segment,
}

impl Span {
    /// Their first byte. `None` without memory.
    #[inline]
    pub(super) fn base(&self) -> Option<*mut u8> {
        let registration = self.registration.as_deref()?;
        let bytes = registration.memory().address().as_ptr();
        Some(bytes.wrapping_add(registration.offset(&self.segment)))
    }

    /// Size of its chunk, if it owns one of a pool. Otherwise 0.
    #[inline]
    pub(super) fn chunk(&self) -> u32 {
        self.registration.as_ref().map_or(0, |registration| registration.chunk)
    }

    /// Copies the bytes, as many as `target` has.
    pub(super) fn read(&self, target: &mut [u8]) -> std::result::Result<(), OutOfBounds> {
        let Some(registration) = &self.registration else { return Ok(()) };
        registration.memory.read(registration.offset(&self.segment) as u64, target)
    }
}

impl Default for Span {
    fn default() -> Self {
        Self { registration: None, segment: Segment { key: 0, address: 0, length: 0 } }
    }
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        // Most spans that are dropped were taken from.
        if let Some(registration) = &self.registration {
            registration.give_back(&self.segment);
        }
    }
}

/// The memory of one operation. Nearly always it is one span.
#[derive(Debug, Default)]
pub struct Spans {
    pub(super) first: Span,
    /// If there are several.
    several: Option<Box<Several>>,
}

#[derive(Debug)]
struct Several {
    /// Those that follow the first one.
    others: Vec<Span>,
    /// The segments of all that are not empty.
    segments: Vec<Segment>,
}

impl Spans {
    /// These spans. `None` if there are none.
    pub(super) fn new(mut spans: impl Iterator<Item = Span>) -> Option<Self> {
        let (first, others) = (spans.next()?, Vec::from_iter(spans));
        if others.is_empty() {
            return Some(first.into());
        }
        let segments = [&first].into_iter().chain(&others).map(|span| span.segment);
        let segments = segments.filter(|segment| segment.length > 0).collect();
        Some(Self { first, several: Some(Box::new(Several { others, segments })) })
    }

    /// The first one. That is all, unless the memory is [`Pieces`](super::Pieces).
    #[inline]
    pub(super) fn into_first(self) -> Span {
        let Self { first, several } = self;
        // Tested here, because it is usual that there is nothing to drop.
        several.into_iter().for_each(drop);
        first
    }

    /// Their segments. Only the first one may be empty, if it is the only one.
    #[inline]
    pub(super) fn segments(&self) -> &[Segment] {
        match &self.several {
            None => std::slice::from_ref(&self.first.segment),
            Some(several) => &several.segments,
        }
    }

    /// Calls `each` with the registrations of all, until it fails.
    pub(super) fn try_for_each<E>(
        &self,
        each: impl Fn(&Registration) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.first.registration.as_deref().map_or(Ok(()), &each)?;
        match &self.several {
            None => Ok(()),
            Some(several) => {
                several.others.iter().filter_map(|span| span.registration.as_deref()).try_for_each(each)
            }
        }
    }
}

impl From<Span> for Spans {
    fn from(first: Span) -> Self {
        Self { first, several: None }
    }
}
