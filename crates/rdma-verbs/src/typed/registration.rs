//! Registered memory and the pieces of it that move into operations.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Access, Memory, MemoryRegion, ProtectionDomain, Result, Segment};

/// Registered memory of a shard. It stays registered as long as a [`Span`] or its owner refers to it.
pub(super) struct Registration {
    /// The shard in whose protection domain it is. Keys mean nothing in another one.
    pub(super) shard: u64,
    pub(super) access: Access,
    /// Number of bytes that [`Span::start`] counts as one: a pool's chunk, or a byte of a region.
    pub(super) unit: u32,
    /// The chunks of a pool that no span holds. `None`: it is a region's memory, which has none.
    free: Option<Mutex<Vec<u32>>>,
    local_key: u32,
    /// The address of its first byte, as the device counts.
    pub(super) address: u64,
    /// The memory that was registered, whatever the region says.
    memory: Arc<Memory>,
    region: Box<dyn MemoryRegion>,
}

impl Registration {
    /// Registers memory, which has chunks of so many bytes if it is a pool's.
    pub(super) fn new<P>(
        shard: u64,
        pd: &P,
        memory: Arc<Memory>,
        access: Access,
        chunk: Option<u32>,
    ) -> Result<Arc<Self>>
    where
        P: ProtectionDomain<Mr: 'static>,
    {
        let region = Box::new(pd.register(Arc::clone(&memory), access)?);
        let unit = chunk.unwrap_or(1);
        let units = u32::try_from(memory.len().checked_div(unit as usize).unwrap_or(0)).unwrap_or(u32::MAX);
        let free = chunk.map(|_| Mutex::new((0..units).rev().collect()));
        let (local_key, address) = (region.local_key(), region.address());
        Ok(Arc::new(Self { shard, access, unit, free, local_key, address, memory, region }))
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
        let start = self.free.as_ref()?.lock().pop()?;
        Some(Span { registration: Arc::clone(self), start, length: self.unit })
    }

    /// These bytes of a region. The caller has checked that they are within it.
    pub(super) fn piece(self: &Arc<Self>, offset: u32, length: u32) -> Span {
        debug_assert!(self.free.is_none(), "the bytes of a pool have owners");
        Span { registration: Arc::clone(self), start: offset, length }
    }

    /// Number of chunks that no span holds.
    pub(super) fn free(&self) -> usize {
        self.free.as_ref().map_or(0, |free| free.lock().len())
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("access", &self.access).finish_non_exhaustive()
    }
}

/// Bytes of registered memory. Those of a pool are the beginning of one chunk, and the span owns the chunk.
/// While a request uses them, the shard has the span, so no one else does.
#[derive(Debug)]
pub struct Span {
    pub(super) registration: Arc<Registration>,
    /// The number of the chunk, or the offset in the region.
    start: u32,
    pub(super) length: u32,
}

impl Span {
    /// The offset of its first byte in the memory.
    pub(super) fn offset(&self) -> usize {
        self.start as usize * self.registration.unit as usize
    }

    /// Whether it owns a chunk of a pool.
    pub(super) fn is_chunk(&self) -> bool {
        self.registration.free.is_some()
    }

    pub(super) fn segment(&self) -> Segment {
        let registration = &*self.registration;
        let address = registration.address + self.offset() as u64;
        Segment { key: registration.local_key, address, length: self.length }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(free) = &self.registration.free {
            free.lock().push(self.start);
        }
    }
}

/// The memory of one operation: most have one span.
#[derive(Debug)]
pub struct Spans {
    pub(super) first: Span,
    /// What follows it.
    pub(super) next: Option<Box<Spans>>,
}

impl Spans {
    /// Its spans in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Span> {
        std::iter::successors(Some(self), |spans| spans.next.as_deref()).map(|spans| &spans.first)
    }
}

impl From<Span> for Spans {
    fn from(first: Span) -> Self {
        Self { first, next: None }
    }
}
