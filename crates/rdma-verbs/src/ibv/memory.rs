//! Protection domains and memory regions.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as sys;

use super::device::{Context, check_pointer};
use crate::{self as verbs, Access, Error, Memory, RegionName, Result, Transport};

/// A protection domain and, on iWARP, a region for the probes of its queue pairs.
#[derive(Clone)]
pub struct Pd {
    handle: Arc<PdHandle>,
    probe: Option<Arc<Region>>,
}

/// The device's protection domain. Everything that is made in it holds one, so that the domain is destroyed
/// last.
pub(super) struct PdHandle {
    pub(super) context: Arc<Context>,
    raw: NonNull<sys::ibv_pd>,
}

// SAFETY: libibverbs allows any thread to call on a protection domain.
unsafe impl Send for PdHandle {}
// SAFETY: as above.
unsafe impl Sync for PdHandle {}

/// Registered memory: the device may read it, and write it if its access rights allow that.
pub struct Region {
    raw: NonNull<sys::ibv_mr>,
    keys: (u32, u32),
    address: u64,
    /// The device does not access it after `raw` is deregistered.
    memory: Arc<Memory>,
    domain: Arc<PdHandle>,
}

// SAFETY: libibverbs allows any thread to deregister a region; the other fields are `Send`.
unsafe impl Send for Region {}
// SAFETY: as above; no function of libibverbs is called through a shared reference.
unsafe impl Sync for Region {}

impl Pd {
    pub(super) fn alloc(context: &Arc<Context>) -> Result<Self> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw()) };
        let handle =
            Arc::new(PdHandle { context: Arc::clone(context), raw: check_pointer("ibv_alloc_pd", raw)? });
        let probe = if context.attributes.transport == Transport::Iwarp {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            Some(Arc::new(Region::register(&handle, Memory::zeroed(1)?, access)?))
        } else {
            None
        };
        Ok(Self { handle, probe })
    }

    pub(super) fn handle(&self) -> &Arc<PdHandle> {
        &self.handle
    }

    /// On iWARP: the region that requests without payload point to, because they must name memory. Its remote
    /// key is never given to a peer. It has remote write access because the target of an iWARP read needs it.
    pub(super) fn probe(&self) -> Option<&Arc<Region>> {
        self.probe.as_ref()
    }
}

impl PdHandle {
    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for PdHandle {
    fn drop(&mut self) {
        if !self.context.maker.is_this_process() {
            return;
        }
        // SAFETY: the domain is deallocated once, and everything made in it is destroyed, because it holds
        // `self`.
        unsafe { (self.context.library.ibv_dealloc_pd)(self.raw()) };
    }
}

impl Region {
    fn register(domain: &Arc<PdHandle>, memory: Arc<Memory>, access: Access) -> Result<Self> {
        let mut rights = sys::ibv_access_flags(0);
        // The verbs require local write access for remote write access.
        if access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE) {
            rights |= sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        }
        if access.contains(Access::REMOTE_WRITE) {
            rights |= sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        }
        if access.contains(Access::REMOTE_READ) {
            rights |= sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        }
        let place = memory.address();
        // SAFETY: the domain is valid; the range is the memory's whole allocation, which `Region` holds until
        // it is deregistered. `Memory` reads what the device writes there only by copies.
        let raw = unsafe {
            (domain.context.library.ibv_reg_mr)(
                domain.raw(),
                place.as_ptr().cast(),
                memory.len(),
                rights.0 as i32,
            )
        };
        let raw = check_pointer("ibv_reg_mr", raw)?;
        // SAFETY: the region is registered, so it is valid, and its keys do not change.
        let keys = unsafe { ((*raw.as_ptr()).lkey, (*raw.as_ptr()).rkey) };
        let address = place.as_ptr() as u64;
        Ok(Self { raw, keys, address, memory, domain: Arc::clone(domain) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.domain.context.maker.is_this_process() {
            return;
        }
        // SAFETY: the region is deregistered once. Requests that still name it fail at the device.
        let error = unsafe { (self.domain.context.library.ibv_dereg_mr)(self.raw.as_ptr()) };
        if error != 0 {
            // The device may still write to the memory, so it must not be freed.
            log::error!(
                "a memory region cannot be deregistered (error {error}): the device may still access its memory"
            );
            std::mem::forget(Arc::clone(&self.memory));
        }
    }
}

impl verbs::ProtectionDomain for Pd {
    type Mr = Region;

    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<Region> {
        Region::register(&self.handle, memory, access)
    }

    /// The device draws the keys, and the address is that of the memory.
    fn register_as(&self, memory: Arc<Memory>, access: Access, name: RegionName) -> Result<Region> {
        if name.key.is_some() || name.address != memory.address().as_ptr().addr() as u64 {
            return Err(Error::Unsupported("keys and addresses that the consumer chooses"));
        }
        self.register(memory, access)
    }
}

impl verbs::MemoryRegion for Region {
    fn local_key(&self) -> u32 {
        self.keys.0
    }

    fn remote_key(&self) -> u32 {
        self.keys.1
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}
