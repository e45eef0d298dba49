//! The devices that the typed layer trusts with memory that it gives out as slices.

use std::slice;

use super::work::sealed::Key;
use crate::any_device::AnyCq;
use crate::{
    AnyDevice, Completion, CompletionQueue as _, Device, QpId, QueuePairs as _, RecvRequest, Result,
    SendRequest, iwarp,
};

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
/// A request that was refused is not posted. If several are posted together, and the device takes some and refuses
/// the rest, `post_batch` tells how many it has taken.
///
/// A request completes once, with the id that it was posted with, and the completion of another request never
/// has that id while the first is outstanding.
pub unsafe trait TrustedDevice: Device {
    /// Posts a request and then polls, for the typed layer: every operation begins with that. A device may have a
    /// shorter way than the two calls.
    #[doc(hidden)]
    #[inline]
    fn post_and_poll(
        cq: &mut Self::Cq,
        qp: QpId,
        request: &SendRequest<'_>,
        out: &mut [Completion],
    ) -> Result<usize> {
        cq.post_send(qp, slice::from_ref(request), false)?;
        Ok(cq.poll(out))
    }

    /// Posts requests together, for the typed layer. Returns how many are posted, which is fewer than all only with
    /// an error.
    #[doc(hidden)]
    fn post_batch(cq: &mut Self::Cq, qp: QpId, requests: &[SendRequest<'_>]) -> (usize, Result<()>) {
        match cq.post_send(qp, requests, false) {
            Ok(()) => (requests.len(), Ok(())),
            Err(error) => (0, Err(error)),
        }
    }

    /// Posts a receive, for the typed layer: it has checked that the memory is within its region, which may be
    /// written locally. A device need not check that again.
    #[doc(hidden)]
    #[inline]
    fn post_checked_recv(cq: &mut Self::Cq, qp: QpId, request: &RecvRequest<'_>, _: Key) -> Result<()> {
        cq.post_recv(qp, slice::from_ref(request))
    }
}

// SAFETY: a posted request is checked against the regions of its queue pair's domain. A receive that the typed
// layer has checked has to name one of them too, and what does not fit in a region is not placed there. The
// machine holds a request until it is completed or flushed. Destroying the queue pair drops the machine. A
// shared receive queue admits queue pairs of its domain only, and is destroyed after them. Peers' segments are
// placed only into regions with the right that they need.
unsafe impl TrustedDevice for iwarp::Device {
    #[inline]
    fn post_and_poll(
        cq: &mut Self::Cq,
        qp: QpId,
        request: &SendRequest<'_>,
        out: &mut [Completion],
    ) -> Result<usize> {
        cq.post_and_poll(qp, request, out)
    }

    #[inline]
    fn post_checked_recv(cq: &mut Self::Cq, qp: QpId, request: &RecvRequest<'_>, _: Key) -> Result<()> {
        cq.post_checked_recv(qp, request)
    }
}

#[cfg(feature = "ibv")]
// SAFETY: the adapter, or the kernel's software for one, checks keys, domains and rights, and reports the id
// of each request. It tells which request of a batch it refused. A queue pair whose destruction has to wait is
// in the error state, in which it executes no request.
unsafe impl TrustedDevice for crate::ibv::Device {
    fn post_batch(cq: &mut Self::Cq, qp: QpId, requests: &[SendRequest<'_>]) -> (usize, Result<()>) {
        cq.post_some(qp, requests)
    }
}

// SAFETY: it is one of the above. No object of one of them is used with the other one.
unsafe impl TrustedDevice for AnyDevice {
    #[inline]
    fn post_and_poll(
        cq: &mut AnyCq,
        qp: QpId,
        request: &SendRequest<'_>,
        out: &mut [Completion],
    ) -> Result<usize> {
        match cq {
            #[cfg(feature = "ibv")]
            AnyCq::Ibv(cq) => crate::ibv::Device::post_and_poll(cq, qp, request, out),
            AnyCq::Embedded(cq) => iwarp::Device::post_and_poll(cq, qp, request, out),
        }
    }

    fn post_batch(cq: &mut AnyCq, qp: QpId, requests: &[SendRequest<'_>]) -> (usize, Result<()>) {
        match cq {
            #[cfg(feature = "ibv")]
            AnyCq::Ibv(cq) => crate::ibv::Device::post_batch(cq, qp, requests),
            AnyCq::Embedded(cq) => iwarp::Device::post_batch(cq, qp, requests),
        }
    }

    #[inline]
    fn post_checked_recv(cq: &mut AnyCq, qp: QpId, request: &RecvRequest<'_>, key: Key) -> Result<()> {
        match cq {
            #[cfg(feature = "ibv")]
            AnyCq::Ibv(cq) => crate::ibv::Device::post_checked_recv(cq, qp, request, key),
            AnyCq::Embedded(cq) => iwarp::Device::post_checked_recv(cq, qp, request, key),
        }
    }
}
