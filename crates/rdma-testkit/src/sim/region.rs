//! Protection domains and memory regions: keys, bounds and rights.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Fabric;
use rdma_verbs::{self as verbs, Access, Cause, Error, Memory, RemoteAddress, Result, Segment};

/// A region's keys are its number times [`KEY_STEP`] plus one of these, so that a local key is never a remote
/// one and neither is ever 0.
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
    number: u32,
    address: u64,
    memory: Arc<Memory>,
    regions: Arc<Regions>,
}

/// The regions of one protection domain. Its queue pairs share them.
#[derive(Debug, Default)]
pub(super) struct Regions {
    table: Mutex<BTreeMap<u32, Region>>,
}

#[derive(Debug)]
struct Region {
    memory: Arc<Memory>,
    address: u64,
    access: Access,
    /// Whether the remote key is valid. A peer may have invalidated it.
    remote_key_valid: bool,
}

/// A range of a region's memory whose bounds and rights were checked.
#[derive(Debug)]
pub(super) struct Place {
    memory: Arc<Memory>,
    offset: u64,
}

impl ProtectionDomain {
    pub(super) fn new(fabric: Fabric) -> Self {
        Self { fabric, regions: Arc::default() }
    }

    pub(super) fn regions(&self) -> Arc<Regions> {
        Arc::clone(&self.regions)
    }
}

impl verbs::ProtectionDomain for ProtectionDomain {
    type Mr = MemoryRegion;

    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<MemoryRegion> {
        let (number, address) = self
            .fabric
            .assign_region(memory.len() as u64)
            .filter(|&(number, _)| number < u32::MAX / KEY_STEP)
            .ok_or_else(|| Error::io("register memory")(rustix::io::Errno::NOMEM))?;
        let region = Region { memory: Arc::clone(&memory), address, access, remote_key_valid: true };
        self.regions.table.lock().insert(number, region);
        Ok(MemoryRegion { number, address, memory, regions: Arc::clone(&self.regions) })
    }
}

impl verbs::MemoryRegion for MemoryRegion {
    fn local_key(&self) -> u32 {
        self.number * KEY_STEP + LOCAL_KEY
    }

    fn remote_key(&self) -> u32 {
        self.number * KEY_STEP + REMOTE_KEY
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        self.regions.table.lock().remove(&self.number);
    }
}

impl Regions {
    /// The memory of a local segment, if its region has the rights `needed`.
    pub(super) fn local(&self, segment: &Segment, needed: Access) -> Result<Place> {
        self.find(segment.key, LOCAL_KEY, segment.address, u64::from(segment.length), needed).map_err(|why| {
            let Segment { key, address, length } = *segment;
            Error::BadSegment { key, address, length, why }
        })
    }

    /// The memory that a peer names, if its region has the rights `needed`.
    pub(super) fn remote(
        &self,
        remote: RemoteAddress,
        length: usize,
        needed: Access,
    ) -> std::result::Result<Place, Cause> {
        let RemoteAddress { key, address } = remote;
        self.find(key, REMOTE_KEY, address, length as u64, needed).map_err(|_| Cause::Access {
            key,
            address,
            length,
        })
    }

    /// Invalidates a remote key for a peer.
    pub(super) fn invalidate(&self, key: u32) -> std::result::Result<(), Cause> {
        let mut table = self.table.lock();
        match table.get_mut(&(key / KEY_STEP)) {
            Some(region) if key % KEY_STEP == REMOTE_KEY && region.remote_key_valid => {
                region.remote_key_valid = false;
                Ok(())
            }
            _ => Err(Cause::Invalidate(key)),
        }
    }

    fn find(
        &self,
        key: u32,
        kind: u32,
        address: u64,
        length: u64,
        needed: Access,
    ) -> std::result::Result<Place, &'static str> {
        let table = self.table.lock();
        let region = table
            .get(&(key / KEY_STEP))
            .filter(|region| key % KEY_STEP == kind && (kind == LOCAL_KEY || region.remote_key_valid))
            .ok_or("no such key in this protection domain")?;
        if !region.access.contains(needed) {
            return Err("the region does not have that right");
        }
        let offset = address.checked_sub(region.address).ok_or("outside the region")?;
        let end = offset.checked_add(length).ok_or("outside the region")?;
        if end > region.memory.len() as u64 {
            return Err("outside the region");
        }
        Ok(Place { memory: Arc::clone(&region.memory), offset })
    }
}

impl Place {
    /// Copies `bytes` in, at most as many as were checked.
    pub(super) fn write(&self, bytes: &[u8]) {
        let copied = self.memory.write(self.offset, bytes);
        debug_assert!(copied.is_ok(), "{copied:?}");
    }

    /// Copies bytes out, at most as many as were checked.
    pub(super) fn read(&self, bytes: &mut [u8]) {
        let copied = self.memory.read(self.offset, bytes);
        debug_assert!(copied.is_ok(), "{copied:?}");
    }
}
