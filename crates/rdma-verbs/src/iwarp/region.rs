//! Protection domains and memory regions: what a key (STag) refers to, and how long it is valid.
//!
//! A key is random, so a peer cannot guess one that it was not told. It is invalid from the moment its
//! [`MemoryRegion`] is dropped or a peer invalidates it. It stands for no other region as long as that exists,
//! because requests of the owner may still name it, and is not drawn again soon afterwards. Queue pairs keep
//! the regions that they used last in a [`RegionCache`], and check with [`Region::is_valid`] that an entry is
//! still valid.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::{self as verbs, Access, Error, Memory, RegionName, Result};

/// Number of recently invalidated keys that are not drawn again.
const QUARANTINE: usize = 1024;
/// Number of keys for which the system is asked at a time: the system call costs more than the rest of a
/// registration.
const DRAWN: usize = 16;
/// Number of regions in the cache of a queue pair: its ring, its receive buffers, and the memory that it
/// sends from.
const CACHED: usize = 3;

/// A protection domain of the embedded device. Its clones are the same domain [RFC 5040 8.1.1-1]
/// [RFC 5041 8.2-1, 8.2-4, 8.3.1-1].
#[derive(Debug, Clone, Default)]
pub struct ProtectionDomain {
    table: Arc<RwLock<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    keys: HashMap<u32, Key>,
    /// Drawn keys whose regions were dropped recently, the oldest first.
    retired: VecDeque<u32>,
    /// Random numbers that are the next keys.
    random: Vec<u32>,
    /// Number of queue pairs of the domain.
    queue_pairs: usize,
}

/// What a key stands for that cannot be drawn now.
#[derive(Debug)]
enum Key {
    /// A region, whose key is valid.
    Valid(Arc<Region>),
    /// None any more. A peer has invalidated it, and its owner has not dropped it.
    GivenUp,
    /// None: it is in `retired`.
    Retired,
}

/// Registered memory, as queue pairs use it.
#[derive(Debug)]
pub struct Region {
    stag: u32,
    access: Access,
    /// Address of its first byte.
    address: u64,
    memory: Arc<Memory>,
    /// Whether the consumer has named it, so that no peer can invalidate it.
    is_named: bool,
    valid: AtomicBool,
    /// Number of RDMA Writes that were placed in it.
    writes: AtomicU64,
}

/// The owner's handle of a region. Dropping it invalidates the key [RFC 5040 8.1.1-4, 8.1.1-5]
/// [RFC 5041 8.3-1, 8.3-2, 8.3.1-4, 8.3.1-5].
#[derive(Debug)]
pub struct MemoryRegion {
    region: Arc<Region>,
    domain: ProtectionDomain,
    /// Whether its key is random.
    is_drawn: bool,
}

/// Why a region cannot serve a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionFault {
    /// The region does not grant the access.
    #[error("no right")]
    Access,
    /// The sum of offset and length exceeds 64 bits.
    #[error("the end exceeds 64 bits")]
    Wrap,
    /// The range is not within the region, which has this many bytes.
    #[error("the region has {size}")]
    Bounds {
        /// Bytes of the region.
        size: u64,
    },
}

impl ProtectionDomain {
    /// The valid region with this key.
    #[must_use]
    pub fn find(&self, stag: u32) -> Option<Arc<Region>> {
        self.table.read().find(stag).cloned()
    }

    /// Invalidates a key for a peer. Returns whether it was a valid key that this peer, and no other, could
    /// use: all queue pairs of a domain share its keys [RFC 5040 5.3-8, 7.2-5, 8.1.1-7]. The consumer keeps a region
    /// that it has named ([`verbs::ProtectionDomain::register_as`]).
    #[must_use]
    pub fn invalidate(&self, stag: u32) -> bool {
        let mut table = self.table.write();
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let alone = table.queue_pairs <= 1;
        let may_go = |region: &&Arc<Region>| alone && !region.is_named && region.access.intersects(remote);
        let Some(region) = table.find(stag).filter(may_go) else { return false };
        region.invalidate();
        table.keys.insert(stag, Key::GivenUp);
        true
    }

    /// Registers memory, which keeps its key if it `is_named` by the consumer.
    fn insert(
        &self,
        memory: Arc<Memory>,
        access: Access,
        name: RegionName,
        is_named: bool,
    ) -> Result<MemoryRegion> {
        let RegionName { key, address } = name;
        let mut table = self.table.write();
        let stag = match key.map(NonZeroU32::get) {
            None => table.draw()?,
            Some(key) if table.has_owner(key) => return Err(Error::KeyTaken(key)),
            Some(key) => key,
        };
        let region = Arc::new(Region {
            stag,
            access,
            address,
            memory,
            is_named,
            valid: AtomicBool::new(true),
            writes: AtomicU64::new(0),
        });
        table.keys.insert(stag, Key::Valid(Arc::clone(&region)));
        Ok(MemoryRegion { region, domain: self.clone(), is_drawn: key.is_none() })
    }
}

impl verbs::ProtectionDomain for ProtectionDomain {
    type Mr = MemoryRegion;

    /// Registers memory with these rights [RFC 5040 8.1.1-4, 8.1.1-5]
    /// [RFC 5041 8.3-1, 8.3-2, 8.3.1-4, 8.3.1-5].
    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<MemoryRegion> {
        self.insert(memory, access, RegionName::default(), false)
    }

    fn register_as(&self, memory: Arc<Memory>, access: Access, name: RegionName) -> Result<MemoryRegion> {
        self.insert(memory, access, name, true)
    }
}

impl Table {
    /// The valid region with this key.
    fn find(&self, stag: u32) -> Option<&Arc<Region>> {
        match self.keys.get(&stag)? {
            Key::Valid(region) => Some(region),
            Key::GivenUp | Key::Retired => None,
        }
    }

    /// Whether the owner of a region has this key.
    fn has_owner(&self, stag: u32) -> bool {
        matches!(self.keys.get(&stag), Some(Key::Valid(_) | Key::GivenUp))
    }

    /// A random key that is not 0, has no owner, and had none recently [RFC 5040 8.1.1-8, 8.1.1-9].
    fn draw(&mut self) -> Result<u32> {
        loop {
            let Some(stag) = self.random.pop() else {
                self.fill_random()?;
                continue;
            };
            if stag != 0 && !self.keys.contains_key(&stag) {
                return Ok(stag);
            }
        }
    }

    fn fill_random(&mut self) -> Result<()> {
        let mut bytes = [[0; size_of::<u32>()]; DRAWN];
        getrandom::fill(bytes.as_flattened_mut()).map_err(|error| Error::Io {
            what: "draw a key",
            source: std::io::Error::other(error.to_string()),
        })?;
        self.random.extend(bytes.map(u32::from_ne_bytes));
        Ok(())
    }

    /// Takes a key back from its owner. If it `is_drawn`, it is not drawn again soon.
    fn take_back(&mut self, stag: u32, is_drawn: bool) {
        if !is_drawn {
            self.keys.remove(&stag);
            return;
        }
        self.keys.insert(stag, Key::Retired);
        self.retired.push_back(stag);
        if self.retired.len() > QUARANTINE
            && let Some(oldest) = self.retired.pop_front()
            && !self.has_owner(oldest)
        {
            self.keys.remove(&oldest);
        }
    }
}

impl verbs::MemoryRegion for MemoryRegion {
    fn local_key(&self) -> u32 {
        self.region.stag
    }

    fn remote_key(&self) -> u32 {
        self.region.stag
    }

    fn address(&self) -> u64 {
        self.region.address
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.region.memory
    }

    fn writes(&self) -> u64 {
        self.region.writes.load(Ordering::Relaxed)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let mut table = self.domain.table.write();
        self.region.invalidate();
        table.take_back(self.region.stag, self.is_drawn);
    }
}

impl Region {
    /// Its key, which is never 0.
    #[must_use]
    #[inline]
    pub fn stag(&self) -> u32 {
        self.stag
    }

    /// Counts an RDMA Write that is complete.
    pub fn count_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Its memory.
    #[must_use]
    #[inline]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn invalidate(&self) {
        self.valid.store(false, Ordering::Release);
    }

    /// Whether its key is still valid.
    #[must_use]
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.valid.load(Ordering::Acquire)
    }

    /// Checks the access to `length` bytes at `address` against its rights and bounds. Returns their offset
    /// in its memory [RFC 5040 7.2-9, 7.2-10, 7.2-11, 8.1.1-3]
    /// [RFC 5041 7.1-9, 7.1-10, 7.1-11, 7.1-12, 8.3.1-3].
    ///
    /// # Errors
    /// The first [`RegionFault`] that applies.
    #[inline]
    pub fn check(&self, needed: Access, address: u64, length: u64) -> std::result::Result<u64, RegionFault> {
        if !self.access.contains(needed) {
            return Err(RegionFault::Access);
        }
        let size = self.memory.len() as u64;
        if address.checked_add(length).is_none() {
            return Err(RegionFault::Wrap);
        }
        // For an address below the region, the offset wraps around and exceeds the size of any region.
        let offset = self.offset(address);
        match offset.checked_add(length) {
            Some(end) if end <= size => Ok(offset),
            _ => Err(RegionFault::Bounds { size }),
        }
    }

    /// The offset in its memory of an address that was checked.
    #[inline]
    pub fn offset(&self, address: u64) -> u64 {
        address.wrapping_sub(self.address)
    }
}

/// The regions that a queue pair or a shared receive queue used last, so that the usual look-up takes no
/// lock. The domain counts the caches of its queue pairs.
#[derive(Debug)]
pub struct RegionCache {
    domain: ProtectionDomain,
    recent: [Option<Arc<Region>>; CACHED],
    is_counted: bool,
}

impl RegionCache {
    /// An empty cache of `domain`, for a queue pair.
    #[must_use]
    pub fn new(domain: ProtectionDomain) -> Self {
        domain.table.write().queue_pairs += 1;
        let mut cache = Self::of_receives(domain);
        cache.is_counted = true;
        cache
    }

    /// An empty cache of `domain`, for a shared receive queue.
    #[must_use]
    pub fn of_receives(domain: ProtectionDomain) -> Self {
        Self { domain, recent: [const { None }; CACHED], is_counted: false }
    }

    /// Whether its regions are those of `domain`.
    #[must_use]
    pub fn is_of(&self, domain: &ProtectionDomain) -> bool {
        Arc::ptr_eq(&self.domain.table, &domain.table)
    }

    /// The valid region with this key.
    #[inline]
    pub fn find(&mut self, stag: u32) -> Option<&Arc<Region>> {
        let known = |slot: &Option<Arc<Region>>| slot.as_ref().is_some_and(|region| region.stag == stag);
        let at = self.recent.iter().position(known);
        match at {
            Some(at) if self.recent[at].as_ref().is_some_and(|region| region.is_valid()) => {
                self.recent[at].as_ref()
            }
            // An invalid region's key may have been given to another region.
            _ => self.fetch(stag),
        }
    }

    /// Invalidates a key for a peer; see [`ProtectionDomain::invalidate`].
    #[must_use]
    pub fn invalidate(&self, stag: u32) -> bool {
        self.domain.invalidate(stag)
    }

    /// Looks the region up and caches it in place of an invalid region or the oldest one.
    #[cold]
    fn fetch(&mut self, stag: u32) -> Option<&Arc<Region>> {
        let found = self.domain.find(stag)?;
        let invalid = |slot: &Option<Arc<Region>>| slot.as_ref().is_none_or(|region| !region.is_valid());
        let at = self.recent.iter().position(invalid).unwrap_or_else(|| {
            self.recent.rotate_left(1);
            CACHED - 1
        });
        Some(self.recent[at].insert(found))
    }
}

impl Drop for RegionCache {
    fn drop(&mut self) {
        if self.is_counted {
            self.domain.table.write().queue_pairs -= 1;
        }
    }
}

#[cfg(test)]
mod tests;
