//! Error numbers as libfabric's calls return them (`fi_errno(3)`): the system's below 256,
//! libfabric's own from 256 on. The crates below the provider use error enums instead.

use std::io;

use super::sys;

/// Outcome of an operation that C code called.
pub type Result<T> = std::result::Result<T, Errno>;

/// A positive error number. C callers receive it negated.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! numbers {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        impl Errno {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The constant's name, for messages.
            fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    /// Not permitted.
    EPERM = libc::EPERM;
    /// No such object.
    ENOENT = libc::ENOENT;
    /// Interrupted by a signal.
    EINTR = libc::EINTR;
    /// Input or output failed. Also the result of a call on a poisoned object.
    EIO = libc::EIO;
    /// Not possible now: try again.
    EAGAIN = libc::EAGAIN;
    /// No memory.
    ENOMEM = libc::ENOMEM;
    /// Access denied.
    EACCES = libc::EACCES;
    /// An address that is not mapped.
    EFAULT = libc::EFAULT;
    /// Still in use.
    EBUSY = libc::EBUSY;
    /// No such device.
    ENODEV = libc::ENODEV;
    /// Invalid argument.
    EINVAL = libc::EINVAL;
    /// No descriptors left.
    EMFILE = libc::EMFILE;
    /// No room.
    ENOSPC = libc::ENOSPC;
    /// The sending side is shut down. Missing from libfabric's headers (see `rstream.h`).
    EPIPE = super::header::FI_EPIPE;
    /// Not implemented.
    ENOSYS = libc::ENOSYS;
    /// Nothing matches.
    ENODATA = libc::ENODATA;
    /// The peer violated the protocol.
    EPROTO = libc::EPROTO;
    /// No such message.
    ENOMSG = libc::ENOMSG;
    /// Too long for one message.
    EMSGSIZE = libc::EMSGSIZE;
    /// No such option, or the option is read only.
    ENOPROTOOPT = libc::ENOPROTOOPT;
    /// Not supported.
    EOPNOTSUPP = libc::EOPNOTSUPP;
    /// Address in use.
    EADDRINUSE = libc::EADDRINUSE;
    /// Address not on this host.
    EADDRNOTAVAIL = libc::EADDRNOTAVAIL;
    /// The network is down.
    ENETDOWN = libc::ENETDOWN;
    /// No route to the network.
    ENETUNREACH = libc::ENETUNREACH;
    /// The connection ended while it was being established.
    ECONNABORTED = libc::ECONNABORTED;
    /// The connection broke.
    ECONNRESET = libc::ECONNRESET;
    /// No buffers.
    ENOBUFS = libc::ENOBUFS;
    /// Already connected.
    EISCONN = libc::EISCONN;
    /// Not connected.
    ENOTCONN = libc::ENOTCONN;
    /// Shut down.
    ESHUTDOWN = libc::ESHUTDOWN;
    /// No response in time.
    ETIMEDOUT = libc::ETIMEDOUT;
    /// No listener, or rejected by the peer.
    ECONNREFUSED = libc::ECONNREFUSED;
    /// The host is down.
    EHOSTDOWN = libc::EHOSTDOWN;
    /// No route to the host.
    EHOSTUNREACH = libc::EHOSTUNREACH;
    /// Already in progress.
    EALREADY = libc::EALREADY;
    /// Cancelled.
    ECANCELED = libc::ECANCELED;
    /// The key of a memory region is invalid.
    EKEYREJECTED = libc::EKEYREJECTED;
    /// Some other error.
    EOTHER = sys::FI_EOTHER as i32;
    /// The caller's buffer is too small.
    ETOOSMALL = sys::FI_ETOOSMALL as i32;
    /// Not allowed in this state.
    EOPBADSTATE = sys::FI_EOPBADSTATE as i32;
    /// An error is queued.
    EAVAIL = sys::FI_EAVAIL as i32;
    /// Unknown flags.
    EBADFLAGS = sys::FI_EBADFLAGS as i32;
    /// No event queue is bound.
    ENOEQ = sys::FI_ENOEQ as i32;
    /// No completion queue is bound.
    ENOCQ = sys::FI_ENOCQ as i32;
    /// A message was longer than its receive.
    ETRUNC = sys::FI_ETRUNC as i32;
    /// The key of a memory region is in use. The system's `ENOKEY` is another number.
    ENOKEY = sys::FI_ENOKEY as i32;
    /// The object belongs to another domain.
    EDOMAIN = sys::FI_EDOMAIN as i32;
}

impl Errno {
    /// The error with this number. A number that is not positive becomes [`Errno::EOTHER`], so
    /// that an error never looks like a success.
    #[must_use]
    pub const fn new(number: i32) -> Self {
        if number > 0 { Self(number) } else { Self::EOTHER }
    }

    /// The positive number.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // SAFETY: `fi_strerror` takes any number and returns a NUL-terminated text. The text of an
        // unknown number may change later, and is not used after this call.
        let text = unsafe { std::ffi::CStr::from_ptr(sys::fi_strerror(self.0)) };
        f.write_str(&text.to_string_lossy())
    }
}

impl std::error::Error for Errno {}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        if let Some(number) = error.raw_os_error() {
            return Self::new(number);
        }
        match error.kind() {
            io::ErrorKind::WouldBlock => Self::EAGAIN,
            io::ErrorKind::TimedOut => Self::ETIMEDOUT,
            io::ErrorKind::Interrupted => Self::EINTR,
            io::ErrorKind::InvalidInput => Self::EINVAL,
            io::ErrorKind::OutOfMemory => Self::ENOMEM,
            io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => Self::ECONNRESET,
            io::ErrorKind::ConnectionRefused => Self::ECONNREFUSED,
            io::ErrorKind::ConnectionAborted => Self::ECONNABORTED,
            io::ErrorKind::NotConnected => Self::ENOTCONN,
            io::ErrorKind::BrokenPipe => Self::EPIPE,
            io::ErrorKind::AddrInUse => Self::EADDRINUSE,
            io::ErrorKind::AddrNotAvailable => Self::EADDRNOTAVAIL,
            _ => Self::EIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_a_success() {
        assert_eq!(Errno::new(0), Errno::EOTHER);
        assert_eq!(Errno::new(-libc::EAGAIN), Errno::EOTHER);
        assert_eq!(Errno::new(libc::EAGAIN), Errno::EAGAIN);
    }

    #[test]
    fn io_errors_keep_their_number() {
        assert_eq!(Errno::from(io::Error::from_raw_os_error(libc::EXDEV)).number(), libc::EXDEV);
        assert_eq!(Errno::from(io::Error::from(io::ErrorKind::BrokenPipe)), Errno::EPIPE);
        assert_eq!(Errno::from(io::Error::other("odd")), Errno::EIO);
    }

    #[test]
    fn texts_are_libfabrics() {
        assert_eq!(Errno::ETOOSMALL.to_string(), "Provided buffer is too small");
        assert_eq!(format!("{:?}", Errno::ETOOSMALL), "ETOOSMALL");
        assert_eq!(format!("{:?}", Errno::new(libc::EXDEV)), format!("Errno({})", libc::EXDEV));
    }
}
