//! `fi_control` on wait objects. Every object of this provider waits by a file descriptor.

use std::os::fd::RawFd;

use crate::abi::{Control, Errno, Result, constants};

/// Implements `FI_GETWAIT`, which returns `descriptor`, and `FI_GETWAITOBJ`.
pub(super) fn control(command: Control<'_>, descriptor: impl FnOnce() -> Result<RawFd>) -> Result<i32> {
    match command {
        Control::GetWait(out) => *out = descriptor()?,
        Control::GetWaitObj(out) => *out = constants::FI_WAIT_FD,
        _ => return Err(Errno::ENOSYS),
    }
    Ok(0)
}
