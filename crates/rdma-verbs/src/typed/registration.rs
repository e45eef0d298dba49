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
    /// The numbers of the chunks that no span holds. Empty for a region.
    free: Mutex<Vec<u32>>,
    local_key: u32,
    /// The address of its first byte, as the device counts.
    pub(super) address: u64,
    /// The memory that was registered, whatever the region says.
    memory: Arc<Memory>,
    region: Box<dyn MemoryRegion>,
}

impl Registration {
    /// Registers memory. A pool's has `chunks` chunks, a region's none.
    pub(super) fn new<P>(
        shard: u64,
        pd: &P,
        memory: Arc<Memory>,
        access: Access,
        chunks: u32,
    ) -> Result<Arc<Self>>
    where
        P: ProtectionDomain<Mr: 'static>,
    {
        let region = Box::new(pd.register(Arc::clone(&memory), access)?);
        let free = Mutex::new((0..chunks).rev().collect());
        let (local_key, address) = (region.local_key(), region.address());
        Ok(Arc::new(Self { shard, access, free, local_key, address, memory, region }))
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The key for peers.
    pub(super) fn remote_key(&self) -> u32 {
        self.region.remote_key()
    }

    /// Takes a chunk that no span holds.
    pub(super) fn take(&self) -> Option<u32> {
        self.free.lock().pop()
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

/// Bytes of registered memory, and the owner of their chunk if they are a pool's. While a request uses them,
/// the shard has the span, so no one else does.
#[derive(Debug)]
pub struct Span {
    pub(super) registration: Arc<Registration>,
    pub(super) offset: usize,
    pub(super) length: u32,
    /// The chunk of a pool that goes back to it when the span is dropped.
    chunk: Option<u32>,
    /// What follows it in the memory of one operation.
    pub(super) next: Option<Box<Span>>,
}

impl Span {
    /// Bytes that other spans may contain too. The caller has checked that they are within the memory.
    pub(super) fn shared(registration: &Arc<Registration>, offset: usize, length: u32) -> Self {
        Self { registration: Arc::clone(registration), offset, length, chunk: None, next: None }
    }

    /// The whole of a chunk that the caller took. Chunks have `size` bytes.
    pub(super) fn chunk(registration: &Arc<Registration>, chunk: u32, size: u32) -> Self {
        let offset = chunk as usize * size as usize;
        Self { registration: Arc::clone(registration), offset, length: size, chunk: Some(chunk), next: None }
    }

    /// It and what follows it.
    pub(super) fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |span| span.next.as_deref())
    }

    /// Number of bytes of all of it.
    pub(super) fn total(&self) -> u64 {
        self.all().map(|span| u64::from(span.length)).sum()
    }

    pub(super) fn segment(&self) -> Segment {
        let registration = &*self.registration;
        let address = registration.address + self.offset as u64;
        Segment { key: registration.local_key, address, length: self.length }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk {
            self.registration.free.lock().push(chunk);
        }
    }
}
