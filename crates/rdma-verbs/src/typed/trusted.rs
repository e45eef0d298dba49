//! The devices that the typed layer trusts with memory that it gives out as slices.

use crate::{AnyDevice, Device, iwarp};

/// A device that uses registered memory only as its requests say. The typed layer gives memory out as slices
/// while no request uses it, so its unsafe code relies on that. It cannot rely on every [`Device`], which is
/// a safe trait.
///
/// # Safety
/// The device, and all that is made of it, reads and writes the memory of a region only
/// - for a request that was posted to a queue pair, or to a shared receive queue, of the region's protection
///   domain, with the region's local key and with a place within the region, before the request has completed
///   and before that queue pair or queue is destroyed; or
/// - for a peer, if the region has rights for peers.
///
/// A request completes once, with the id that it was posted with, and the completion of another request never
/// has that id while the first is outstanding.
pub unsafe trait TrustedDevice: Device {}

// SAFETY: a posted request is checked against the regions of its queue pair's domain, and the machine holds
// it until it is completed or flushed. Destroying the queue pair drops the machine. A shared receive queue
// admits queue pairs of its domain only, and is destroyed after them. Peers' segments are placed only into
// regions with the right that they need.
unsafe impl TrustedDevice for iwarp::Device {}

#[cfg(feature = "ibv")]
// SAFETY: the adapter, or the kernel's software for one, checks keys, domains and rights, and reports the id
// of each request. A queue pair whose destruction has to wait is in the error state, in which it executes no
// request.
unsafe impl TrustedDevice for crate::ibv::Device {}

// SAFETY: it is one of the above. No object of one of them is used with the other one.
unsafe impl TrustedDevice for AnyDevice {}
