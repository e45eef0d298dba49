//! Protection domains and memory regions.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as sys;

use super::device::{Context, check_pointer};
use crate::{self as verbs, Access, Memory, Result, Transport};

/// A protection domain and, on iWARP, a region for the probes of its queue pairs.
#[derive(Clone)]
pub struct Pd {
    handle: Arc<Handle>,
    probe: Option<Arc<Region>>,
}

/// What keeps the domain: everything made in it has one.
pub(super) struct Handle {
    pub(super) context: Arc<Context>,
    raw: NonNull<sys::ibv_pd>,
}

// SAFETY: libibverbs allows any thread to call on a protection domain.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Memory that the device may read, and write as far as its rights go.
pub struct Region {
    raw: NonNull<sys::ibv_mr>,
    keys: (u32, u32),
    address: u64,
    /// After `raw` was given up the device does not touch it any more.
    memory: Arc<Memory>,
    domain: Arc<Handle>,
}

// SAFETY: libibverbs allows any thread to give a region up; the rest are plain values.
unsafe impl Send for Region {}
// SAFETY: as above; nothing is called on a shared region.
unsafe impl Sync for Region {}

impl Pd {
    pub(super) fn alloc(context: &Arc<Context>) -> Result<Self> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.library.ibv_alloc_pd)(context.raw()) };
        let handle =
            Arc::new(Handle { context: Arc::clone(context), raw: check_pointer("ibv_alloc_pd", raw)? });
        let probe = if context.attributes.transport == Transport::Iwarp {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            Some(Arc::new(Region::register(&handle, Memory::zeroed(1)?, access)?))
        } else {
            None
        };
        Ok(Self { handle, probe })
    }

    pub(super) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Where requests without payload point to on iWARP, where they must name memory. Nobody is told
    /// its remote key; the right to write it remotely is asked for in the target of a read.
    pub(super) fn probe(&self) -> Option<&Arc<Region>> {
        self.probe.as_ref()
    }
}

impl Handle {
    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.context.maker.is_this_process() {
            return;
        }
        // SAFETY: the domain is given up once, and everything made in it held `self`.
        unsafe { (self.context.library.ibv_dealloc_pd)(self.raw()) };
    }
}

impl Region {
    fn register(domain: &Arc<Handle>, memory: Arc<Memory>, access: Access) -> Result<Self> {
        let mut rights = sys::ibv_access_flags(0);
        // The verbs grant remote writing only along with local writing.
        if access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE) {
            rights |= sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
        }
        if access.contains(Access::REMOTE_WRITE) {
            rights |= sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        }
        if access.contains(Access::REMOTE_READ) {
            rights |= sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        }
        let place = memory.pin();
        // SAFETY: the domain is valid; the range is the memory's whole allocation, which `Region` keeps
        // until the device has given it up. What the device writes there is only read by copies.
        let raw = unsafe {
            (domain.context.library.ibv_reg_mr)(
                domain.raw(),
                place.as_ptr().cast(),
                memory.len(),
                rights.0 as i32,
            )
        };
        let raw = check_pointer("ibv_reg_mr", raw)?;
        // SAFETY: a registered region is valid and its keys do not change.
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
        // SAFETY: the region is given up once. Requests that still name it fail at the device.
        let answer = unsafe { (self.domain.context.library.ibv_dereg_mr)(self.raw.as_ptr()) };
        if answer != 0 {
            // The device may go on writing there, so the memory must stay.
            log::error!("a memory region cannot be given up (error {answer}); its memory stays");
            std::mem::forget(Arc::clone(&self.memory));
        }
    }
}

impl verbs::ProtectionDomain for Pd {
    type Mr = Region;

    fn register(&self, memory: Arc<Memory>, access: Access) -> Result<Region> {
        Region::register(&self.handle, memory, access)
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
