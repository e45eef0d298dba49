//! Soft iWARP's user library takes a valid place of a queue for an error, so that place is kept occupied.
//!
//! The kernel answers where each new queue can be mapped: the first offset that is free in the device's
//! context. Kernel and library agree that offset [`INVALID`] means "no queue to be mapped", but the kernel
//! gives that offset out as well. The library then refuses the queue, and each later one that would begin
//! there, until an earlier one is destroyed. A completion queue that covers the offset, made before any other
//! queue, prevents that.

use std::ptr::NonNull;

use rdma_sys as sys;

use super::device::check_pointer;
use super::library::Library;
use crate::Result;

/// `vendor_id` of soft iWARP (`SIW_VENDOR_ID`).
const VENDOR: u32 = 0x62_6d74;

/// What soft iWARP answers for a queue without an offset (`SIW_INVAL_UOBJ_KEY`).
const INVALID: usize = 0x9_0000;

/// Bytes of a page: offsets are given out in these.
const PAGE: usize = 0x1000;

/// Bytes of an entry of its completion queues (`struct siw_cqe`).
const ENTRY: usize = 32;

/// Occupies the offset that would be refused, where the device is a soft iWARP. The queue is to be destroyed
/// before the context is closed.
///
/// # Safety
///
/// The context is open, and no queue was made from it.
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
    // SAFETY: the context is open; neither the user's value nor the channel has to be there.
    let queue = unsafe { (library.ibv_create_cq)(context.as_ptr(), entries, user, channel, 0) };
    check_pointer("ibv_create_cq", queue).map(Some)
}
