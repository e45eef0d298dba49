//! Descriptors that are closed by a system call of their own: the C library's `close` is a cancellation point
//! (`pthreads(7)`), and a thread that is cancelled there unwinds through this crate, for which Rust aborts the process.

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
