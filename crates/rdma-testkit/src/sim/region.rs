//! Protection domains and memory regions: keys, bounds and rights.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Fabric;
use rdma_verbs::{self as verbs, Access, Cause, Error, Memory, RegionName, RemoteAddress, Result, Segment};

/// A drawn key is the region's number times [`KEY_STEP`] plus one of these, so that a local key is never a
/// remote one and neither is ever 0. A key that the consumer chooses is both.
const LOCAL_KEY: u32 = 1;
const REMOTE_KEY: u32 = 2;
const KEY_STEP: u32 = 4;

/// A protection domain of the simulated device.
#[derive(Debug)]
pub struct ProtectionDomain {
    fabric: Fabric,
    regions: Arc<Regions>,
}

/// Registered memory of the simulated device.
#[derive(Debug)]
pub struct MemoryRegion {
    local_key: u32,
    remote_key: u32,
    region: Arc<Region>,
    regions: Arc<Regions>,
}

/// The regions of one protection domain. Its queue pairs share them.
#[derive(Debug, Default)]
pub(super) struct Regions {
    keys: Mutex<Keys>,
}

/// The regions by their keys. A peer may have invalidated the remote key of a region.
#[derive(Debug, Default)]
struct Keys {
    local: BTreeMap<u32, Arc<Region>>,
    remote: BTreeMap<u32, Arc<Region>>,
}

#[derive(Debug)]
struct Region {
    memory: Arc<Memory>,
    address: u64,
    access: Access,
    /// Whether the consumer has named it, so that no peer can invalidate it.
    is_named: bool,
    /// Number of RDMA Writes of peers.
    writes: AtomicU64,
}

/// A range of a region's memory whose bounds and rights were checked.
#[derive(Debug)]
pub(super) struct Range {
    region: Arc<Region>,
    offset: u64,
}

impl ProtectionDomain {
    pub(super) fn new(fabric: Fabric) -> Self {
        Self { fabric, regions: Arc::default() }
    }

    pub(super) fn regions(&self) -> Arc<Regions> {
        Arc::clone(&self.regions)
    }

    /// A local and a remote key that are not in use, and an address, for a region of this length.
    fn draw(&self, keys: &Keys, length: usize) -> Result<(u32, u32, u64)> {
        loop {
            let (number, address) = self
                .fabric
                .assign_region(length as u64)
                .filter(|&(number, _)| number < u32::MAX / KEY_STEP)
                .ok_or_else(|| Error::io("register memory")(rustix::io::Errno::NOMEM))?;
            let (local, remote) = (number * KEY_STEP + LOCAL_KEY, number * KEY_STEP + REMOTE_KEY);
            if !keys.has(local) && !keys.has(remote) {
                return Ok((local, remote, address));
            }
        }
    }

    fn add(
        &self,
        keys: &mut Keys,
        (local_key, remote_key, address): (u32, u32, u64),
        memory: Arc<Memory>,
        access: Access,
        is_named: bool,
    ) -> MemoryRegion {
        let region = Arc::new(Region { memory, address, access, is_named, writes: AtomicU64::new(0) });
        keys.local.insert(local_key, Arc::clone(&region));
        keys.remote.insert(remote_key, Arc::clone(&region));
        MemoryRegion { local_key, remote_key, region, regions: Arc::clone(&self.regions) }
    }
}

impl verbs::ProtectionDomain for ProtectionDomain {
    type Mr = MemoryRegion;

    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<MemoryRegion> {
        let mut keys = self.regions.keys.lock();
        let name = self.draw(&keys, memory.len())?;
        Ok(self.add(&mut keys, name, memory, access, false))
    }

    fn register_as(&self, memory: Arc<Memory>, access: Access, name: RegionName) -> Result<MemoryRegion> {
        let mut keys = self.regions.keys.lock();
        let (local, remote) = match name.key.map(NonZeroU32::get) {
            None => self.draw(&keys, memory.len()).map(|(local, remote, _)| (local, remote))?,
            Some(key) if keys.has(key) => return Err(Error::KeyTaken(key)),
            Some(key) => (key, key),
        };
        Ok(self.add(&mut keys, (local, remote, name.address), memory, access, true))
    }
}

impl Keys {
    fn has(&self, key: u32) -> bool {
        self.local.contains_key(&key) || self.remote.contains_key(&key)
    }
}

impl verbs::MemoryRegion for MemoryRegion {
    fn local_key(&self) -> u32 {
        self.local_key
    }

    fn remote_key(&self) -> u32 {
        self.remote_key
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
        let mut keys = self.regions.keys.lock();
        keys.local.remove(&self.local_key);
        keys.remote.remove(&self.remote_key);
    }
}

impl Regions {
    /// The memory of a local segment, if its region has the rights `needed`.
    pub(super) fn local(&self, segment: &Segment, needed: Access) -> Result<Range> {
        let Segment { key, address, length } = *segment;
        let found = range(&self.keys.lock().local, key, address, u64::from(length), needed);
        found.map_err(|why| Error::BadSegment { key, address, length, why })
    }

    /// The memory that a peer names, if its region has the rights `needed`.
    pub(super) fn remote(
        &self,
        remote: RemoteAddress,
        length: usize,
        needed: Access,
    ) -> std::result::Result<Range, Cause> {
        let RemoteAddress { key, address } = remote;
        let found = range(&self.keys.lock().remote, key, address, length as u64, needed);
        found.map_err(|_| Cause::Access { key, address, length })
    }

    /// Invalidates a remote key for a peer.
    pub(super) fn invalidate(&self, key: u32) -> std::result::Result<(), Cause> {
        let mut keys = self.keys.lock();
        if keys.remote.get(&key).is_none_or(|region| region.is_named) {
            return Err(Cause::Invalidate(key));
        }
        keys.remote.remove(&key);
        Ok(())
    }
}

fn range(
    regions: &BTreeMap<u32, Arc<Region>>,
    key: u32,
    address: u64,
    length: u64,
    needed: Access,
) -> std::result::Result<Range, &'static str> {
    let region = regions.get(&key).ok_or("no such key in this protection domain")?;
    if !region.access.contains(needed) {
        return Err("the region does not have that right");
    }
    let offset = address.checked_sub(region.address).ok_or("outside the region")?;
    let end = offset.checked_add(length).ok_or("outside the region")?;
    if end > region.memory.len() as u64 {
        return Err("outside the region");
    }
    Ok(Range { region: Arc::clone(region), offset })
}

impl Range {
    /// Copies `bytes` in, at most as many as were checked.
    pub(super) fn write(&self, bytes: &[u8]) {
        let copied = self.region.memory.write(self.offset, bytes);
        debug_assert!(copied.is_ok(), "{copied:?}");
    }

    /// [`Range::write`] for a peer, which the region counts.
    pub(super) fn write_for_peer(&self, bytes: &[u8]) {
        self.write(bytes);
        self.region.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Copies bytes out, at most as many as were checked.
    pub(super) fn read(&self, bytes: &mut [u8]) {
        let copied = self.region.memory.read(self.offset, bytes);
        debug_assert!(copied.is_ok(), "{copied:?}");
    }
}
