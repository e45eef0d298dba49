//! Results as the C library has them.

use rustix::io::Errno;

/// The error of the function of the C library that has failed just now.
pub(crate) fn errno() -> Errno {
    // SAFETY: the address is that of an integer of this thread.
    let number = unsafe { *libc::__errno_location() };
    if (1..4096).contains(&number) { Errno::from_raw_os_error(number) } else { Errno::IO }
}

/// Leaves an error for the caller of a function that fails.
pub fn set_errno(error: Errno) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error.raw_os_error() }
}

/// Leaves the C library's `errno` as it is, whatever is done meanwhile.
pub fn keep<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: as above.
    let number = unsafe { *libc::__errno_location() };
    let result = act();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number };
    result
}

/// What a function returns that says so many bytes.
pub(crate) fn bytes(outcome: Result<usize, Errno>) -> isize {
    match outcome {
        Ok(length) => length as isize,
        Err(error) => {
            set_errno(error);
            -1
        }
    }
}

/// What a function of the C library has returned.
pub(crate) fn outcome(returned: isize) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| errno())
}
