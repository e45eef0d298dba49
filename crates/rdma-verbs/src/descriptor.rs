//! Descriptors that are closed without the C library, whose `close` is a cancellation point (`pthreads(7)`). A thread
//! that is cancelled there unwinds through this crate, and Rust aborts the process then.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

/// A descriptor. Dropping it closes it.
#[derive(Debug)]
pub(crate) struct Descriptor(ManuallyDrop<OwnedFd>);

impl From<OwnedFd> for Descriptor {
    fn from(descriptor: OwnedFd) -> Self {
        Self(ManuallyDrop::new(descriptor))
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: `self` owns the descriptor, borrows of it have ended, and nothing else closes it.
        unsafe { rustix::io::close(self.0.as_raw_fd()) };
    }
}
