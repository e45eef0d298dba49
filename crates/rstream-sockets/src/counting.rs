//! What a connection tells the [statistics](crate::statistics).

use std::sync::atomic::Ordering;

use rstream_ring::Notifier;

use crate::kernel::Kernel;
use crate::meeting::{Meeting, NOBODY};
use crate::statistics::{Counter, Looks, Path};
use crate::stream::Stream;

impl Stream {
    /// Begins to count. It is shown from now on.
    pub fn begin_statistics(&self, kernel: &impl Kernel) {
        if let Ok(meeting) = self.meeting.try_lock() {
            self.attach(kernel, &meeting);
        }
    }

    /// It stays on TCP, and goes on without this library by this descriptor: what was counted is shown until
    /// [`close_left`](crate::statistics::close_left).
    pub fn leave_statistics(&self, descriptor: i32) {
        self.statistics.leave(descriptor);
    }

    /// How its bytes travel, and why.
    #[must_use]
    pub fn path(&self) -> Path<'static> {
        match self.meeting.try_lock() {
            _ if self.is_back() => BACK,
            Ok(meeting) => path_of(&meeting),
            // A thread is at it.
            Err(_) => Path::Undecided(""),
        }
    }

    /// Where looks before a sleep are counted.
    #[must_use]
    pub fn looks(&self) -> &impl Looks {
        self.statistics.record()
    }

    /// A call that sends or receives is about to sleep.
    pub fn count_sleep(&self) {
        self.statistics.record().add(Counter::Sleeps);
    }

    pub(crate) fn count_bell(&self) {
        self.statistics.record().add(Counter::BellsRung);
    }

    pub(crate) fn attach(&self, kernel: &impl Kernel, meeting: &Meeting) {
        let path = if self.is_back() { BACK } else { path_of(meeting) };
        self.statistics.attach(path, || kernel.ends());
    }

    /// What became of the meeting.
    pub(crate) fn note_meeting(&self, meeting: &Meeting) {
        self.statistics.set_path(path_of(meeting));
    }

    /// It has gone back from its rings.
    pub(crate) fn note_back(&self) {
        self.statistics.set_path(BACK);
    }

    pub(crate) fn note_peer(&self, notifier: &Notifier) {
        self.statistics.set_peer(notifier.peer_process());
    }

    /// A call of the kernel has sent so much of the stream.
    pub(crate) fn note_sent(&self, kernel: &impl Kernel, length: usize) {
        if length > 0 {
            self.attach_late(kernel);
            self.statistics.record().sent_by_tcp(length);
        }
    }

    /// A call of the kernel has received so much of the stream.
    pub(crate) fn note_received(&self, kernel: &impl Kernel, length: usize) {
        if length > 0 {
            self.attach_late(kernel);
            self.statistics.record().received_by_tcp(length);
        }
    }

    /// If it was not connected yet when it was new, or came from a process that was forked.
    fn attach_late(&self, kernel: &impl Kernel) {
        if !self.statistics.is_complete() {
            self.begin_statistics(kernel);
        }
    }

    /// In a process that was forked: the next call begins to count anew.
    pub(crate) fn leave_statistics_to_parent(&self) {
        self.statistics.detach();
        if self.has_rings() {
            // The next call goes to the meeting once more, which is over.
            self.due.store(0, Ordering::Relaxed);
        }
    }
}

const BACK: Path<'static> = Path::Tcp("back on TCP");

fn path_of(meeting: &Meeting) -> Path<'static> {
    match meeting {
        Meeting::Due(why) => Path::Undecided(why),
        Meeting::Listening(_, looks) if *looks > 0 => Path::Undecided(NOBODY),
        Meeting::Listening(..) | Meeting::Offered(_) => Path::Undecided(""),
        Meeting::Joined => Path::SharedMemory,
        Meeting::Over(why) => Path::Tcp(why),
    }
}
