//! Regions and the pieces of them that requests name.

use std::sync::Arc;

use parking_lot::Mutex;
use rdma_verbs::Access;
use rdma_verbs::typed::{self, Piece, Remote};

use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::handle::{self, Object};

/// Registered memory.
pub(crate) struct Region {
    domain: Arc<Domain>,
    access: Access,
    /// `None` when it was freed.
    memory: Mutex<Option<typed::Region>>,
}

impl Object for Region {
    const NAME: &'static str = "region";
    type Handle = crate::ffi::rdma_easy_region;
}

impl Region {
    pub(crate) fn new(domain: Arc<Domain>, memory: typed::Region, access: Access) -> Arc<Self> {
        Arc::new(Self { domain, access, memory: Mutex::new(Some(memory)) })
    }

    pub(crate) fn belongs_to(&self, domain: &Domain) -> Result<()> {
        match std::ptr::eq(&*self.domain, domain) {
            true => Ok(()),
            false => Err(Error::new(libc::EXDEV, "the region belongs to another domain")),
        }
    }

    /// The registered memory, which stays registered as long as the result lives.
    pub(crate) fn memory(&self) -> Result<typed::Region> {
        self.memory.lock().clone().ok_or_else(|| Error::new(libc::EBADF, "the region was freed"))
    }

    /// Bytes of it.
    pub(crate) fn piece(&self, offset: usize, length: usize) -> Result<Piece> {
        piece(&self.memory()?, offset, length)
    }

    /// The registered memory, if these bytes are within it and requests may write them.
    pub(crate) fn writable(&self, offset: usize, length: usize) -> Result<typed::Region> {
        let memory = self.memory()?;
        piece(&memory, offset, length)?;
        match self.access.contains(Access::LOCAL_WRITE) {
            true => Ok(memory),
            false => Err(Error::new(libc::EACCES, "the region has no right RDMA_EASY_LOCAL_WRITE")),
        }
    }

    /// Bytes of it, by their name for peers.
    pub(crate) fn remote(&self, offset: usize, length: usize) -> Result<Remote> {
        let memory = self.memory()?;
        piece(&memory, offset, length)?;
        // No region is so long that these do not fit.
        Ok(memory.remote().piece(offset as u32, length as u32)?)
    }
}

fn piece(memory: &typed::Region, offset: usize, length: usize) -> Result<Piece> {
    let end = offset.checked_add(length);
    // A range that ends beyond all memory is refused as any that ends beyond the region.
    Ok(memory.piece(offset..end.unwrap_or(usize::MAX))?)
}

/// Deregisters a region and takes its handle back, unless a request uses it.
pub(crate) fn free(handle: *mut crate::ffi::rdma_easy_region) -> Result<()> {
    let region = handle::find::<Region>(handle)?;
    let mut memory = region.memory.lock();
    let Some(registered) = memory.take() else {
        return Err(Error::new(libc::EBADF, "the region was freed"));
    };
    if let Err(used) = region.domain.shard.deregister(registered) {
        *memory = Some(used);
        let text =
            "requests use the region whose completions were not taken, on connections that are not freed";
        return Err(Error::new(libc::EBUSY, text));
    }
    drop(memory);
    handle::remove::<Region>(handle).map(drop)
}
