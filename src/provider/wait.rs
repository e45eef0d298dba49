//! `fi_control` on wait objects. Every object of this provider waits by a file descriptor.

use std::os::fd::RawFd;

use crate::abi::{Control, Errno, Result, constants};

/// Answers `FI_GETWAIT` with the result of `descriptor`, and `FI_GETWAITOBJ`.
pub(super) fn answer(command: Control<'_>, descriptor: impl FnOnce() -> Result<RawFd>) -> Result<i32> {
    match command {
        Control::GetWait(out) => *out = descriptor()?,
        Control::GetWaitObj(out) => *out = constants::FI_WAIT_FD,
        _ => return Err(Errno::ENOSYS),
    }
    Ok(0)
}
