//! Wait objects. Every object of this provider waits by a file descriptor.

use std::os::fd::RawFd;
use std::time::Instant;

use super::error::errno_of;
use crate::abi::{Control, Errno, Result, constants};
use rdma_verbs::{Token, WaitSet};

/// Implements `FI_GETWAIT`, which returns `descriptor`, and `FI_GETWAITOBJ`.
pub(super) fn control(command: Control<'_>, descriptor: impl FnOnce() -> Result<RawFd>) -> Result<i32> {
    match command {
        Control::GetWait(out) => *out = descriptor()?,
        Control::GetWaitObj(out) => *out = constants::FI_WAIT_FD,
        _ => return Err(Errno::ENOSYS),
    }
    Ok(0)
}

/// Sleeps until a source of `set` is ready or a signal of it is on, and adds their tokens to `ready`, or until the time
/// is over.
///
/// # Errors
/// `-FI_EINTR` after a handler of a POSIX signal has run: it may have told the program to stop waiting.
pub(super) fn sleep(set: &WaitSet, give_up: Option<Instant>, ready: &mut Vec<Token>) -> Result<()> {
    let left = give_up.map(|at| at.saturating_duration_since(Instant::now()));
    let any = set.wait(left, ready).map_err(errno_of)?;
    if any || is_over(give_up) { Ok(()) } else { Err(Errno::EINTR) }
}

/// Whether it is time to give up.
pub(super) fn is_over(give_up: Option<Instant>) -> bool {
    give_up.is_some_and(|at| Instant::now() >= at)
}
