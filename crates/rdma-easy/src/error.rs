//! Errors as C programs get them: a negative errno, and a text that the thread can ask for.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rdma_verbs::typed::{self, End, Failed};
use rdma_verbs::{BreakReason, CompletionStatus, ConnectError};

/// Outcome of a call.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Why a call failed.
#[derive(Debug, Clone)]
pub(crate) struct Error {
    /// Positive.
    pub(crate) errno: c_int,
    text: String,
}

thread_local! {
    /// The text of the last call of this thread that failed.
    static LAST: RefCell<CString> = RefCell::default();
}

impl Error {
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    /// Keeps the text for the thread. Returns the negative number.
    pub(crate) fn keep(self) -> c_int {
        let text = CString::new(self.text.replace('\0', " ")).unwrap_or_default();
        // Fails only in a thread that is ending.
        let _ = LAST.try_with(|last| last.replace(text));
        -self.errno
    }
}

/// The text of the last call of this thread that failed. Valid until the next one, or the thread's end.
pub(crate) fn last_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs a call of C: no panic reaches the caller, and an error is kept for the thread.
pub(crate) fn call(body: impl FnOnce() -> Result<c_int>) -> c_int {
    // After a panic, what `body` changed may be inconsistent, but it is memory-safe: there is no unsafe code
    // behind the boundary.
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(panicked(payload)));
    outcome.unwrap_or_else(Error::keep)
}

#[cold]
fn panicked(payload: Box<dyn Any + Send>) -> Error {
    let text = match payload.downcast::<&str>() {
        Ok(text) => (*text).to_owned(),
        Err(payload) => payload.downcast::<String>().map_or_else(
            |payload| {
                // Dropping a payload of another type could panic again.
                std::mem::forget(payload);
                "no message".to_owned()
            },
            |text| *text,
        ),
    };
    log::error!("panic inside the library: {text}");
    Error::new(libc::EIO, format!("panic inside the library (a bug, please report it): {text}"))
}

impl From<typed::Error> for Error {
    fn from(error: typed::Error) -> Self {
        let errno = match &error {
            typed::Error::Verbs(error) => of_device(error),
            typed::Error::OutOfBounds(_) => libc::ERANGE,
            typed::Error::PoolEmpty { .. } => libc::EAGAIN,
            typed::Error::ForeignMemory { .. } => libc::EXDEV,
            typed::Error::MissingRights { .. } => libc::EACCES,
            typed::Error::Operation { status, .. } => of_status(*status),
            typed::Error::Ended(end) => of_end(end),
            typed::Error::NoAdvert { .. } => libc::EBADMSG,
            _ => libc::EIO,
        };
        Self::new(errno, error.to_string())
    }
}

impl From<rdma_verbs::Error> for Error {
    fn from(error: rdma_verbs::Error) -> Self {
        Self::new(of_device(&error), error.to_string())
    }
}

impl<M> From<Failed<M>> for Error {
    fn from(failed: Failed<M>) -> Self {
        failed.error.into()
    }
}

impl From<End> for Error {
    fn from(end: End) -> Self {
        Self::new(of_end(&end), end.to_string())
    }
}

fn of_device(error: &rdma_verbs::Error) -> c_int {
    use rdma_verbs::Error;
    match error {
        Error::QueueFull { .. } => libc::EAGAIN,
        Error::CompletionQueueFull { .. } => libc::ENOSPC,
        Error::InlineTooLong { .. } => libc::EMSGSIZE,
        Error::OutOfRange { .. } => libc::EINVAL,
        Error::BadSegment { .. } => libc::EFAULT,
        Error::KeyTaken(_) => libc::EEXIST,
        Error::BadState { .. } => libc::ENOTCONN,
        Error::Unsupported(_) => libc::EOPNOTSUPP,
        Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        _ => libc::EIO,
    }
}

fn of_end(end: &End) -> c_int {
    match end {
        End::Disconnected => libc::ENOTCONN,
        End::ListenerStopped => libc::EBADF,
        End::Rejected { .. } => libc::ECONNREFUSED,
        End::Failed(error) => match error {
            ConnectError::Refused => libc::ECONNREFUSED,
            ConnectError::System(errno) => *errno,
            ConnectError::TimedOut(_) => libc::ETIMEDOUT,
            ConnectError::Closed => libc::ECONNRESET,
            _ => libc::EPROTO,
        },
        End::Broken(reason) => match reason {
            BreakReason::Reset => libc::ECONNRESET,
            BreakReason::Vanished => libc::ETIMEDOUT,
            BreakReason::Protocol(_) => libc::EPROTO,
            BreakReason::Terminated(_) => libc::EREMOTEIO,
            BreakReason::DeviceGone => libc::ENODEV,
            BreakReason::PortDown => libc::ENETDOWN,
            BreakReason::Aborted => libc::ECONNABORTED,
            _ => libc::EIO,
        },
        _ => libc::EIO,
    }
}

fn of_status(status: CompletionStatus) -> c_int {
    match status {
        CompletionStatus::Flushed => libc::ECANCELED,
        CompletionStatus::Truncated => libc::EMSGSIZE,
        CompletionStatus::LocalAccess => libc::EFAULT,
        CompletionStatus::RemoteAccess => libc::EACCES,
        CompletionStatus::RemoteOperation => libc::EREMOTEIO,
        CompletionStatus::ReceiverNotReady => libc::ENOBUFS,
        CompletionStatus::Unanswered => libc::ETIMEDOUT,
        CompletionStatus::DeviceFailed => libc::ENODEV,
        _ => libc::EIO,
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn text() -> String {
        // SAFETY: the text belongs to this thread, and is copied before its next failure.
        unsafe { CStr::from_ptr(last_text()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn no_panic_reaches_the_caller() {
        assert_eq!(call(|| panic!("on purpose: {}", 7)), -libc::EIO);
        assert!(text().contains("on purpose: 7"), "{}", text());
        assert_eq!(call(|| std::panic::panic_any(())), -libc::EIO);
        assert!(text().contains("no message"), "{}", text());
        assert_eq!(call(|| Ok(3)), 3);
        assert!(text().contains("no message"), "a success leaves it: {}", text());
    }

    #[test]
    fn texts_belong_to_their_threads() {
        assert_eq!(call(|| Err(Error::new(libc::EINVAL, "mine\0, too"))), -libc::EINVAL);
        std::thread::spawn(|| assert_eq!(text(), "")).join().unwrap();
        assert_eq!(text(), "mine , too");
    }
}
