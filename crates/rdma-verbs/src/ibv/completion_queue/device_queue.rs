//! The device's completion queue.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rdma_sys as sys;

use super::BATCH;
use crate::ibv::device::{Context, check, check_pointer, set_nonblocking};
use crate::{Error, Result, WaitSet};

/// The device's queue and its completion channel. The queue pairs share it.
pub(in crate::ibv) struct Queue {
    pub(super) context: Arc<Context>,
    raw: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
}

// SAFETY: libibverbs ties these to no thread; `Queue` is the only handle to them.
unsafe impl Send for Queue {}
// SAFETY: libibverbs allows calls on them from several threads at once.
unsafe impl Sync for Queue {}

impl Queue {
    pub(in crate::ibv) fn create(context: &Arc<Context>, depth: u32) -> Result<Self> {
        let most = context.attributes.max_completions;
        if depth == 0 || depth > most {
            let (what, value) = ("completion queue depth", depth.into());
            return Err(Error::OutOfRange { what, value, least: 1, most: most.into() });
        }
        // Room for the completions of probes as well.
        let depth = int(depth.saturating_add(depth / 8 + 8).min(most));
        let (library, user) = (context.library, std::ptr::null_mut());
        // SAFETY: the context is open.
        let channel = unsafe { (library.ibv_create_comp_channel)(context.raw()) };
        let channel = check_pointer("ibv_create_comp_channel", channel)?;
        // SAFETY: context and channel are valid, and vector 0 is there on every device.
        let raw = unsafe { (library.ibv_create_cq)(context.raw(), depth, user, channel.as_ptr(), 0) };
        let raw = check_pointer("ibv_create_cq", raw).inspect_err(|_| {
            // SAFETY: the channel is valid, destroyed once, and no queue uses it.
            unsafe { (library.ibv_destroy_comp_channel)(channel.as_ptr()) };
        })?;
        let queue = Self { context: Arc::clone(context), raw, channel };
        set_nonblocking(queue.descriptor())?;
        Ok(queue)
    }

    pub(in crate::ibv) fn raw(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open for as long as the channel is, which `self` owns.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// Takes the channel out of a wait set.
    pub(super) fn leave(&self, wait: &WaitSet) {
        if let Err(error) = wait.remove(self.descriptor()) {
            log::debug!("{error}");
        }
    }

    /// Reads the notifications from the channel. Returns whether there were any. The kernel's error tells that the
    /// device is gone.
    pub(super) fn take_notifications(&self) -> bool {
        let (mut queue, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (library, channel) = (self.context.library, self.channel.as_ptr());
        let mut taken = 0;
        // SAFETY: the channel is valid and its descriptor does not block; both results are written to live
        // places.
        while unsafe { (library.ibv_get_cq_event)(channel, &raw mut queue, &raw mut user) } == 0 {
            taken += 1;
        }
        self.context.note_errno(io::Error::last_os_error().raw_os_error());
        if taken > 0 {
            // SAFETY: the queue is valid; it acknowledges as many notifications as were read, all its own.
            unsafe { (library.ibv_ack_cq_events)(self.raw(), taken) };
        }
        taken > 0
    }

    /// Requests a notification, unless the kernel answers that the device is gone.
    pub(super) fn request_notification(&self) -> Result<()> {
        // SAFETY: the queue is valid.
        let requested = check("ibv_req_notify_cq", unsafe { sys::ibv_req_notify_cq(self.raw(), 0) });
        match requested {
            Err(Error::Io { source, .. }) if self.context.note_errno(source.raw_os_error()) => Ok(()),
            requested => requested,
        }
    }

    /// Polls up to `most` completions into the first entries of `batch`.
    pub(super) fn poll<'a>(
        &self,
        batch: &'a mut [MaybeUninit<sys::ibv_wc>; BATCH],
        most: usize,
    ) -> &'a [sys::ibv_wc] {
        let most = most.min(BATCH) as i32;
        // SAFETY: the queue is valid, and the array has room for `most` completions.
        let count = unsafe { sys::ibv_poll_cq(self.raw(), most, batch.as_mut_ptr().cast()) };
        let count = usize::try_from(count).unwrap_or_else(|_| {
            log::warn!("ibv_poll_cq failed");
            0
        });
        // SAFETY: the call initialized the first `count` entries, and only those are borrowed.
        unsafe { std::slice::from_raw_parts(batch.as_ptr().cast(), count) }
    }

    /// Changes the number of completions that it has room for, if the device can. Returns whether it can.
    pub(in crate::ibv) fn try_resize(&self, depth: u32) -> Result<bool> {
        const CANNOT: [i32; 3] = [libc::EOPNOTSUPP, libc::ENOSYS, libc::EINVAL];
        match self.resize(depth) {
            Err(Error::Io { source, .. }) if source.raw_os_error().is_some_and(|e| CANNOT.contains(&e)) => {
                Ok(false)
            }
            resized => resized.map(|()| true),
        }
    }

    /// Changes the number of completions that it has room for.
    pub(super) fn resize(&self, depth: u32) -> Result<()> {
        // SAFETY: the queue is valid.
        check("ibv_resize_cq", unsafe { (self.context.library.ibv_resize_cq)(self.raw(), int(depth)) })
    }
}

fn int(depth: u32) -> i32 {
    i32::try_from(depth).unwrap_or(i32::MAX)
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.context.maker.is_this_process() {
            return;
        }
        let library = self.context.library;
        // SAFETY: no queue pair reports here any more, every notification that was read is acknowledged, and
        // both are destroyed once, the queue before its channel.
        let failed = unsafe {
            (library.ibv_destroy_cq)(self.raw());
            (library.ibv_destroy_comp_channel)(self.channel.as_ptr())
        };
        if failed != 0 && self.context.is_gone() {
            // The library destroys nothing of a device that is gone, and would leave the descriptor open.
            // SAFETY: the descriptor is the channel's, which is used no more.
            drop(unsafe { OwnedFd::from_raw_fd((*self.channel.as_ptr()).fd) });
        }
    }
}
