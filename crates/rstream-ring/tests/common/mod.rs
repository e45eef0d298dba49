//! Ends of rings, and processes to use them in.

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rstream_ring::{Notifier, Reader, RingSizes, Segment, Writer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

/// A side before it maps its segment.
pub(crate) struct Unmapped {
    segment: Segment,
    notifier: Notifier,
}

/// A side.
pub(crate) struct End {
    pub(crate) output: Writer,
    pub(crate) input: Reader,
    pub(crate) notifier: Notifier,
}

/// Both sides; `sizes` are those of the first.
pub(crate) fn pair(sizes: RingSizes) -> (Unmapped, Unmapped) {
    let segment = Segment::create(sizes).unwrap();
    let swapped = RingSizes { output: sizes.input, input: sizes.output };
    let peers = Segment::from_peer(segment.as_fd().try_clone_to_owned().unwrap(), swapped).unwrap();
    let (one, other) = Notifier::pair().unwrap();
    (Unmapped { segment, notifier: one }, Unmapped { segment: peers, notifier: other })
}

impl Unmapped {
    pub(crate) fn map(self) -> End {
        let (output, input) = self.segment.map().unwrap();
        End { output, input, notifier: self.notifier }
    }
}

/// Sleeps, but not for ever: a notification that is lost fails the test.
pub(crate) fn sleep_until_notified(notifier: &Notifier) {
    let mut polled = [PollFd::from_borrowed_fd(notifier.as_fd(), PollFlags::IN)];
    let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
    assert_eq!(poll(&mut polled, Some(&limit)), Ok(1), "nobody notified");
}

/// A child of this process.
pub(crate) struct Child(Pid);

/// Runs `work` in a child.
pub(crate) fn fork(work: impl FnOnce()) -> Child {
    // SAFETY: the child is a copy of this process with this thread alone. It takes no lock that another
    // thread could have held but those of the C library, which are in order in a child, and leaves without
    // running anything else.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let worked = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(worked.is_err())) }
    }
    Child(Pid::from_raw(pid).expect("fork"))
}

impl Child {
    /// How it ended.
    pub(crate) fn wait(self) -> WaitStatus {
        waitpid(Some(self.0), WaitOptions::empty()).unwrap().unwrap().1
    }

    /// Waits until it has ended well.
    pub(crate) fn join(self) {
        assert_eq!(self.wait().exit_status(), Some(0));
    }
}
