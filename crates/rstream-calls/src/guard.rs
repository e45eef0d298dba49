//! A fault of this library ends a connection, not the program.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::io::Errno;

/// Does `act`. If it panics, the connection that it served is as good as reset. Nothing in `act` may wait: a
/// cancellation that unwound through here would be taken for a panic.
pub(crate) fn guard<T>(act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(Errno::CONNRESET))
}
