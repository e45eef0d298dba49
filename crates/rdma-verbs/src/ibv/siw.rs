//! A workaround for soft iWARP: its user library takes one valid offset for an error, so that offset is kept
//! occupied.
//!
//! The kernel assigns each new queue the first free offset in the device's context, at which the library maps
//! it. Kernel and library agree that offset [`INVALID`] means "no queue to map", but the kernel assigns that
//! offset as well. The library then refuses the queue, and each later queue at that offset, until an earlier
//! queue is destroyed. A completion queue that covers the offset, created before any other queue, prevents
//! this.

use std::ptr::NonNull;

use rdma_sys as sys;

use super::device::check_pointer;
use super::library::Library;
use crate::Result;

/// `vendor_id` of soft iWARP (`SIW_VENDOR_ID`).
const VENDOR: u32 = 0x62_6d74;

/// The offset that stands for a queue that cannot be mapped (`SIW_INVAL_UOBJ_KEY`).
const INVALID: usize = 0x9_0000;

/// Bytes of a page, of which offsets are multiples.
const PAGE: usize = 0x1000;

/// Bytes of an entry of a completion queue (`struct siw_cqe`).
const ENTRY: usize = 32;

/// Occupies the invalid offset if the device is a soft iWARP. The caller destroys the queue before it closes
/// the context.
///
/// # Safety
///
/// The context is open, and no queue was created from it.
pub(super) unsafe fn occupy_invalid_offset(
    library: &Library,
    context: NonNull<sys::ibv_context>,
    device: &sys::ibv_device_attr,
) -> Result<Option<NonNull<sys::ibv_cq>>> {
    if device.vendor_id != VENDOR {
        return Ok(None);
    }
    let entries = ((INVALID + PAGE) / ENTRY) as i32;
    let (user, channel) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the context is open; the user's value and the channel may be null.
    let queue = unsafe { (library.ibv_create_cq)(context.as_ptr(), entries, user, channel, 0) };
    check_pointer("ibv_create_cq", queue).map(Some)
}
