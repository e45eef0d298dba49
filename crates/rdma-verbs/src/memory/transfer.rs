//! Transfers between memory and a socket. The system copies: a byte that is written meanwhile is copied as it was
//! before or after.
//!
//! The C library's `recvmsg` and `sendmsg` are the same calls and cancellation points besides, from which Rust
//! cannot be unwound.

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use super::{Memory, copy};

/// Receives from `socket` without waiting: up to `length` bytes to `base`, and further bytes into `rest`.
///
/// # Safety
/// The `length` bytes at `base` are writable, and no reference to them is alive.
pub(super) unsafe fn receive(
    socket: BorrowedFd<'_>,
    base: NonNull<u8>,
    length: usize,
    rest: &mut [u8],
) -> io::Result<usize> {
    let mut pieces = [
        libc::iovec { iov_base: base.as_ptr().cast(), iov_len: length },
        libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
    ];
    let mut message = message(pieces.as_mut_ptr(), pieces.len());
    // SAFETY: the descriptor is open for the call (`BorrowedFd`). `message` names two pieces that live
    // through the call: the first is writable by the requirement of this function, the second is an
    // exclusive borrow. The kernel writes nowhere else.
    let received =
        unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// Bytes to send: a slice's, or registered memory's, which may change at any time.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Source<'m>(libc::iovec, PhantomData<&'m Memory>);

impl<'m> Source<'m> {
    /// The `length` bytes at `base`.
    ///
    /// # Safety
    /// For `'m` they are readable.
    pub(super) const unsafe fn new(base: *const u8, length: usize) -> Self {
        Self(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length }, PhantomData)
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a copy of these of its bytes to `target`. A range beyond the end counts as the end.
    pub fn append_to(&self, range: Range<usize>, target: &mut Vec<u8>) {
        let start = range.start.min(self.len());
        let length = range.end.min(self.len()).saturating_sub(start);
        target.reserve(length);
        // SAFETY: `length` bytes from `start` on are readable (`new`), and there is room for as many after
        // those that `target` has. The copies initialize them. `target` is an exclusive borrow.
        unsafe {
            let base = self.0.iov_base.cast::<u8>().add(start);
            copy::copy(base, target.as_mut_ptr().add(target.len()), length);
            target.set_len(target.len() + length);
        }
    }
}

/// No bytes.
impl Default for Source<'_> {
    fn default() -> Self {
        Self::from(&[][..])
    }
}

impl<'m> From<&'m [u8]> for Source<'m> {
    fn from(bytes: &'m [u8]) -> Self {
        // SAFETY: the bytes of a slice are readable while it is borrowed.
        unsafe { Self::new(bytes.as_ptr(), bytes.len()) }
    }
}

/// Sends to `socket` without waiting. Returns how many bytes of `sources`, in order, the system took.
///
/// # Errors
/// The error of the system: [`io::ErrorKind::WouldBlock`] if it takes none now.
pub fn send(socket: BorrowedFd<'_>, sources: &[Source<'_>]) -> io::Result<usize> {
    let message = message(sources.as_ptr().cast_mut().cast(), sources.len());
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the descriptor is open for the call (`BorrowedFd`). `message` names vectors that live through
    // the call (a `Source` has the layout of one) and whose bytes are readable. The kernel only reads these and
    // the vectors.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// A message of `count` vectors, without a name and without control data.
fn message(vectors: *mut libc::iovec, count: usize) -> libc::msghdr {
    // SAFETY: an all-zero `msghdr` is valid: no name, no control data, no vectors.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors;
    message.msg_iovlen = count as _;
    message
}
