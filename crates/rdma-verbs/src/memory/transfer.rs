//! Transfers between memory and a socket. The system copies: a byte that is written meanwhile is copied as it was
//! before or after.
//!
//! The C library's `recvmsg` and `sendmsg` are the same calls and cancellation points besides, from which Rust
//! cannot be unwound.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType};

use super::{Memory, copy};
use crate::descriptor::Descriptor;

/// Receives from `socket` without waiting, into `pieces` in their order.
///
/// # Safety
/// The bytes of `pieces` are writable, and no reference to them is alive but exclusive ones that `pieces` come from.
pub(super) unsafe fn receive(socket: BorrowedFd<'_>, pieces: &mut [libc::iovec]) -> io::Result<usize> {
    let mut message = message(pieces.as_mut_ptr(), pieces.len());
    // SAFETY: the descriptor is open for the call (`BorrowedFd`). `message` names pieces that live through the call
    // and are writable by the requirement of this function. The kernel writes nowhere else.
    let received =
        unsafe { libc::syscall(libc::SYS_recvmsg, socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

/// The `length` bytes at `base`, to receive into them.
pub(super) const fn target(base: NonNull<u8>, length: usize) -> libc::iovec {
    libc::iovec { iov_base: base.as_ptr().cast(), iov_len: length }
}

/// The bytes of `slice`, to receive into them.
pub(super) fn target_of(slice: &mut [u8]) -> libc::iovec {
    libc::iovec { iov_base: slice.as_mut_ptr().cast(), iov_len: slice.len() }
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

    /// These of its bytes. A range beyond the end counts as the end.
    fn part(&self, range: Range<usize>) -> Self {
        let start = range.start.min(self.len());
        let length = range.end.min(self.len()).saturating_sub(start);
        // SAFETY: the result is within the bytes that are readable for `'m` (`new`), or at their end.
        unsafe { Self::new(self.0.iov_base.cast::<u8>().add(start), length) }
    }
}

/// What each of `sources` has of this range of their bytes.
pub fn parts<'m>(sources: &[Source<'m>], range: Range<usize>) -> impl Iterator<Item = Source<'m>> {
    sources.iter().scan(0, move |position, source| {
        let [start, end] = [range.start, range.end].map(|at| at.saturating_sub(*position));
        *position += source.len();
        Some(source.part(start..end))
    })
}

/// Appends a copy of this range of the bytes of `sources` to `target`. Returns whether all of them could be read; if
/// not, `target` is what it was.
///
/// The system makes the copy, because it finds out whether memory can be read. Where a process may not ask it for
/// that, the copy is made here, and memory that cannot be read ends the process.
pub fn append_range(sources: &[Source<'_>], range: Range<usize>, target: &mut Vec<u8>) -> bool {
    let parts: Vec<_> = parts(sources, range).collect();
    let length = parts.iter().map(Source::len).sum();
    target.reserve(length);
    let room = &mut target.spare_capacity_mut()[..length];
    let is_read = match read_by_system(&parts, room) {
        Ok(count) if count == length => true,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            parts.iter().for_each(|part| append(part, target));
            return true;
        }
        _ => read_by_socket(&parts, room).is_ok(),
    };
    if is_read {
        // SAFETY: there is room for `length` more bytes (`reserve`), and the system has written as many.
        unsafe { target.set_len(target.len() + length) };
    }
    is_read
}

/// Whether the system can read all bytes of `sources`.
pub fn can_be_read(sources: &[Source<'_>]) -> bool {
    let length = sources.iter().map(Source::len).sum();
    let mut copy: Vec<u8> = Vec::with_capacity(length);
    let room = &mut copy.spare_capacity_mut()[..length];
    matches!(read_by_system(sources, room), Ok(count) if count == length)
        || read_by_socket(sources, room).is_ok()
}

/// Has the system copy `sources` to `target`, which has their length. Returns how many bytes it could read before
/// others that it could not, if any.
fn read_by_system(sources: &[Source<'_>], target: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    if cfg!(miri) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    let local = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let (remote, count) = (sources.as_ptr().cast(), sources.len() as libc::c_ulong);
    // The number of this thread names the process: that of the process names its first thread, which has no memory any
    // more if it has ended.
    // SAFETY: both lists of vectors live through the call (a `Source` has the layout of one). The kernel writes
    // `target` only, which is an exclusive borrow, and checks the addresses that it reads. `gettid` requires nothing.
    let read = unsafe { libc::process_vm_readv(libc::gettid(), &raw const local, 1, remote, count, 0) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// The same by a pair of sockets, and all of `sources` or an error. A socket takes memory that the system does not read
/// otherwise: a device's, and that of `memfd_secret`.
#[cold]
fn read_by_socket(sources: &[Source<'_>], target: &mut [MaybeUninit<u8>]) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (from, to) = net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let (from, to) = (Descriptor::from(from), Descriptor::from(to));
    let mut done = 0;
    while done < target.len() {
        let rest: Vec<_> = parts(sources, done..target.len()).collect();
        let taken = done + send(from.as_fd(), &rest, false)?;
        while done < taken {
            let ((filled, _), _) = net::recv(&to, &mut target[done..taken], RecvFlags::DONTWAIT)?;
            done += filled.len();
        }
    }
    Ok(())
}

/// Appends a copy of the bytes to `target`.
fn append(source: &Source<'_>, target: &mut Vec<u8>) {
    target.reserve(source.len());
    // SAFETY: the bytes are readable (`Source::new`), and there is room for as many after those that `target` has.
    // The copies initialize them. `target` is an exclusive borrow.
    unsafe {
        let base = source.0.iov_base.cast::<u8>();
        copy::copy(base, target.as_mut_ptr().add(target.len()), source.len());
        target.set_len(target.len() + source.len());
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

/// Sends to `socket` without waiting. Returns how many bytes of `sources`, in order, the system took. `more`: it may keep
/// what does not fill a segment until more is sent.
///
/// # Errors
/// The error of the system: [`io::ErrorKind::WouldBlock`] if it takes none now.
pub fn send(socket: BorrowedFd<'_>, sources: &[Source<'_>], more: bool) -> io::Result<usize> {
    let message = message(sources.as_ptr().cast_mut().cast(), sources.len());
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
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
