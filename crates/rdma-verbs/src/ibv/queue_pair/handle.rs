//! The device's queue pair.

use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as sys;

use crate::ibv::completion_queue::Queue;
use crate::ibv::device::{PROBE_ENTRIES, check, check_pointer};
use crate::ibv::memory::{Pd, PdHandle};
use crate::ibv::shared_queue::SharedQueue;
use crate::{QpCapabilities, Result};

/// Destroys the device's queue pair when it is dropped. Then the device accesses no memory for it any more.
pub(in crate::ibv) struct Handle {
    raw: NonNull<sys::ibv_qp>,
    /// Destroyed after it.
    domain: Arc<PdHandle>,
    _queue: Arc<Queue>,
}

// SAFETY: libibverbs ties a queue pair to no thread; `Handle` is the only handle to it.
unsafe impl Send for Handle {}

impl Handle {
    /// Creates a queue pair whose sends have up to `segments` pieces, and its receives up to `places`. The caller holds
    /// the shared queue until the queue pair is destroyed. Returns what the device granted as well.
    pub(in crate::ibv) fn create(
        pd: &Pd,
        queue: &Arc<Queue>,
        wanted: QpCapabilities,
        shared: Option<&SharedQueue>,
        (segments, places): (u32, usize),
    ) -> Result<(Self, sys::ibv_qp_cap)> {
        let domain = pd.handle();
        // SAFETY: the structure consists of integers and pointers, for which all zeros are valid.
        let mut request: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        request.send_cq = queue.raw();
        request.recv_cq = queue.raw();
        request.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        request.cap.max_send_wr = wanted.send_depth.max(1) + PROBE_ENTRIES;
        match shared {
            Some(shared) => request.srq = shared.raw(),
            None => request.cap.max_recv_wr = wanted.recv_depth.max(1),
        }
        request.cap.max_send_sge = segments;
        request.cap.max_recv_sge = places.max(1) as u32;
        request.cap.max_inline_data = wanted.inline as u32;
        // SAFETY: domain and queue are valid, and the handle will hold both; the shared queue is valid; the request is
        // live. The call fails if they are of different devices.
        let raw = unsafe { (domain.context.library.ibv_create_qp)(domain.raw(), &raw mut request) };
        let raw = check_pointer("ibv_create_qp", raw)?;
        Ok((Self { raw, domain: Arc::clone(domain), _queue: Arc::clone(queue) }, request.cap))
    }

    pub(in crate::ibv) fn raw(&self) -> *mut sys::ibv_qp {
        self.raw.as_ptr()
    }

    /// The number by which the peer's device addresses the queue pair.
    pub(super) fn wire_number(&self) -> u32 {
        // SAFETY: the queue pair is valid.
        unsafe { (*self.raw()).qp_num }
    }

    pub(super) fn modify(&self, attributes: &mut sys::ibv_qp_attr, mask: i32) -> Result<()> {
        // SAFETY: the queue pair is valid; the attributes are live and only read.
        let result = unsafe { (self.domain.context.library.ibv_modify_qp)(self.raw(), attributes, mask) };
        check("ibv_modify_qp", result)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.domain.context.maker.is_this_process() {
            return;
        }
        // SAFETY: the queue pair is valid and destroyed once.
        let result = unsafe { (self.domain.context.library.ibv_destroy_qp)(self.raw()) };
        if let Err(error) = check("ibv_destroy_qp", result) {
            // The kernel has destroyed what is of a device that is gone.
            let level = if self.domain.context.is_gone() { log::Level::Debug } else { log::Level::Warn };
            log::log!(level, "{error}");
        }
    }
}
