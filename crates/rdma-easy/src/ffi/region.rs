//! Regions, and their names for peers.

use std::ffi::{c_int, c_void};
use std::ptr;

use rdma_verbs::Access;
use rdma_verbs::typed::Remote;

use super::arguments::Out;
use super::domain::rdma_easy_domain;
use crate::domain::Domain;
use crate::error::{Error, Result, call};
use crate::handle;
use crate::region::{self, Region};

/// Registered memory of this side. Sends, receives, writes and reads use pieces of it.
///
/// While a receive or a read is under way in a piece, the program must not use the piece; while a send or a
/// write is, it must not change it. A peer with a right may use it at any time: then what the program reads
/// there means something when a message of the peer says so.
pub struct rdma_easy_region;

/// Right: receives and reads of this side may write the region.
pub const RDMA_EASY_LOCAL_WRITE: u32 = 1;
/// Right: the peers may write it.
pub const RDMA_EASY_REMOTE_WRITE: u32 = 2;
/// Right: the peers may read it.
pub const RDMA_EASY_REMOTE_READ: u32 = 4;
/// Right: this side may read into it what peers have. On iWARP adapters this gives the peers the right to
/// write it; elsewhere it is RDMA_EASY_LOCAL_WRITE.
pub const RDMA_EASY_READ_TARGET: u32 = 8;

/// Memory of a peer, as rdma_easy_await_advert tells it, or as the program carries it by other means.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rdma_easy_remote {
    /// Address of the first byte, as the peer's device counts.
    pub address: u64,
    /// The peer's key.
    pub key: u32,
    /// Length in bytes.
    pub length: u32,
}

impl From<Remote> for rdma_easy_remote {
    fn from(Remote { key, address, length }: Remote) -> Self {
        Self { address, key, length }
    }
}

impl From<rdma_easy_remote> for Remote {
    fn from(rdma_easy_remote { address, key, length }: rdma_easy_remote) -> Self {
        Self { key, address, length }
    }
}

/// The rights that C asks for.
fn access(domain: &Domain, rights: u32) -> Result<Access> {
    let (mut access, mut unknown) = (Access::empty(), rights);
    for (right, granted) in [
        (RDMA_EASY_LOCAL_WRITE, Access::LOCAL_WRITE),
        (RDMA_EASY_REMOTE_WRITE, Access::REMOTE_WRITE),
        (RDMA_EASY_REMOTE_READ, Access::REMOTE_READ),
        (RDMA_EASY_READ_TARGET, domain.read_target),
    ] {
        if rights & right != 0 {
            access |= granted;
            unknown &= !right;
        }
    }
    match unknown {
        0 => Ok(access),
        _ => Err(Error::new(libc::EINVAL, format!("{rights:#x} has unknown rights"))),
    }
}

/// Allocates memory of `length` zeros and registers it with these rights. It does not block.
///
/// `length`: bytes, 1 to 4294967295.
/// `rights`: a sum of RDMA_EASY_LOCAL_WRITE and the like; 0 suffices for sends and writes from it.
/// `region`: gets the region, which rdma_easy_region_free frees with its memory.
/// Returns 0; -EINVAL for a wrong length or right; -ENOMEM; the device's error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_region_create(
    domain: *mut rdma_easy_domain,
    length: usize,
    rights: u32,
    region: *mut *mut rdma_easy_region,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let out = unsafe { Out::new(region) }?;
        let domain = handle::find::<Domain>(domain)?;
        let access = access(&domain, rights)?;
        let memory = domain.shard.region(length, access)?;
        out.set(handle::insert(Region::new(domain, memory, access)));
        Ok(0)
    })
}

/// Registers memory that the program has, with these rights. It does not block.
///
/// `base`: the first of `length` bytes. Until rdma_easy_region_free has returned 0 they must stay mapped, be
/// readable, and be writable if a right is one to write. This is the one promise that no call can check.
/// The rest is as for rdma_easy_region_create.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_region_register(
    domain: *mut rdma_easy_domain,
    base: *mut c_void,
    length: usize,
    rights: u32,
    region: *mut *mut rdma_easy_region,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let out = unsafe { Out::new(region) }?;
        let domain = handle::find::<Domain>(domain)?;
        let access = access(&domain, rights)?;
        // SAFETY: the header asks the caller to keep the memory until the region is freed, which deregisters
        // it, and to use it only as if another process changed it.
        let memory = unsafe { domain.shard.lend(base.cast(), length, access) }?;
        out.set(handle::insert(Region::new(domain, memory, access)));
        Ok(0)
    })
}

/// The first byte of a region. It is valid until the region is freed.
///
/// Returns NULL if it is no region.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_region_base(region: *mut rdma_easy_region) -> *mut c_void {
    let mut base = ptr::null_mut();
    call(|| {
        base = handle::find::<Region>(region)?.memory()?.base().as_ptr().cast();
        Ok(0)
    });
    base
}

/// The length of a region in bytes.
///
/// Returns 0 if it is no region.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_region_length(region: *mut rdma_easy_region) -> usize {
    let mut length = 0;
    call(|| {
        length = handle::find::<Region>(region)?.memory()?.len();
        Ok(0)
    });
    length
}

/// The name by which a peer can write and read bytes of a region, to be told to it, for example in private
/// data. rdma_easy_advertise tells it by a message. It does not block.
///
/// `offset`, `length`: in bytes.
/// `remote`: gets the name.
/// Returns 0; -ERANGE if the bytes are not within the region; -EBADF if it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_easy_region_remote(
    region: *mut rdma_easy_region,
    offset: usize,
    length: usize,
    remote: *mut rdma_easy_remote,
) -> c_int {
    call(|| {
        // SAFETY: the header asks the caller for this.
        let out = unsafe { Out::new(remote) }?;
        out.set(handle::find::<Region>(region)?.remote(offset, length)?.into());
        Ok(0)
    })
}

/// Deregisters a region and frees it: peers cannot use it any more, and memory that was registered is the
/// program's again. It does not block.
///
/// Returns 0; -EBUSY while requests use it whose completions were not taken, or that were posted without
/// signal and are not done, on connections that are not freed: then it stays; -EBADF if it is no region.
#[unsafe(no_mangle)]
pub extern "C" fn rdma_easy_region_free(region: *mut rdma_easy_region) -> c_int {
    call(|| region::free(region).map(|()| 0))
}
