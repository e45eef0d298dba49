//! How the two ends of a connection find each other, outside the connection.
//!
//! The side that connected listens at a name made of the connection's addresses, once the connection has been
//! used a while. The other side looks there after so many turns, after twice as many, and so on. A peer that
//! does not use this library never notices: nothing is asked of it, and no byte of the connection is used.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, TryLockError};

use rstream_ring::{Connected, Error, Listener, Rendezvous, RingSizes, ask};
use rustix::io::Errno;

use crate::bell::Bell;
use crate::kernel::Kernel;
use crate::lock::thread;
use crate::stream::{RING, Role, Stream, TURN, turns};

/// Where the meeting stands.
pub(crate) enum Meeting {
    /// It is to come. So far nothing was done, or it was in vain for this reason.
    Due(&'static str),
    /// This side waits for the other, and has looked so often.
    Listening(Listener, u32),
    /// This side has handed over a segment, which the other has not mapped.
    Offered(Connected),
    /// It took place.
    Joined,
    /// It does not take place.
    Over(&'static str),
}

const SIZES: RingSizes = RingSizes { output: RING, input: RING };
/// The first looks of the side that listens come with each turn, or with every fourth call the same way.
const OFTEN: u32 = 32;
const FOUR_CALLS: u32 = TURN / 8;
/// The others come after so many turns each.
const STEP: u32 = turns(16);
/// There are at most so many in all.
const LAST: u32 = 4096;
/// When the next look is due once a segment was offered: in each call.
const OFFERED: u32 = 0;
/// The last time that the other side looks.
const LATEST: u32 = turns(1 << 24);
/// Why there is no meeting if nobody comes.
pub(crate) const NOBODY: &str = "the peer does not use rstream";

/// Why there is none yet if a descriptor would be one too many.
const FEW_DESCRIPTORS: &str = "the process has few descriptors left";

impl Stream {
    /// Has the sides meet after `after` turns, unless this side has begun to.
    pub fn meet_after(&self, after: u32) {
        if let Ok(meeting) = self.meeting.try_lock()
            && matches!(*meeting, Meeting::Due(_))
        {
            self.due.store(self.role.due(after), Ordering::Relaxed);
        }
    }

    /// Why it stays on TCP, once that is certain.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        match *self.meeting.try_lock().ok()? {
            Meeting::Over(why) => Some(why),
            _ => None,
        }
    }

    /// Goes on with the meeting if that is due.
    #[inline]
    pub(crate) fn meet(&self, kernel: &impl Kernel) {
        if self.served.load(Ordering::Relaxed) >= self.due.load(Ordering::Relaxed) {
            self.meet_now(kernel);
        }
    }

    /// To be called when the kernel has given something, before that is taken for bytes of the stream. The
    /// peer may have begun meanwhile, which this side does not know yet: the last may be its bells.
    pub(crate) fn meet_before_counting(&self, kernel: &impl Kernel) {
        while !self.has_rings() {
            match self.meeter.load(Ordering::Acquire) {
                0 if self.due.load(Ordering::Acquire) != OFFERED || self.meet_now(kernel) => return,
                // A signal handler has interrupted it.
                meeter if meeter == thread() => return,
                _ => std::thread::yield_now(),
            }
        }
    }

    /// Returns whether no other thread keeps this one from it.
    #[cold]
    fn meet_now(&self, kernel: &impl Kernel) -> bool {
        let mut meeting = match self.meeting.try_lock() {
            Ok(meeting) => meeting,
            // Another thread is at it, or was when this process was forked.
            Err(TryLockError::WouldBlock) => return false,
            Err(TryLockError::Poisoned(_)) => return true,
        };
        let _meeter = Meeter::new(&self.meeter);
        self.attach(kernel, &meeting);
        let served = self.served.load(Ordering::Relaxed);
        let was_open = !matches!(*meeting, Meeting::Over(_));
        let (next, due) = match std::mem::replace(&mut *meeting, Meeting::Over("")) {
            Meeting::Due(_) => self.start(kernel, served),
            Meeting::Listening(listener, looks) => self.look_for_peer(kernel, listener, looks, served),
            Meeting::Offered(connected) => self.look_for_answer(kernel, connected),
            last @ (Meeting::Joined | Meeting::Over(_)) => (last, u32::MAX),
        };
        match next {
            Meeting::Joined => report(kernel, "shared memory"),
            Meeting::Over(why) if was_open => report(kernel, why),
            _ => {}
        }
        self.note_meeting(&next);
        *meeting = next;
        self.due.store(due, Ordering::Release);
        true
    }

    fn start(&self, kernel: &impl Kernel, served: u32) -> (Meeting, u32) {
        if let Some(why) = kernel.obstacle() {
            return over(why);
        }
        let Some((own, peers)) = kernel.ends() else { return over("the connection has ended") };
        let (active, passive) = if self.role == Role::Active { (own, peers) } else { (peers, own) };
        let Some(rendezvous) = Rendezvous::of_connection(active, passive) else {
            return over("the peer is on another host");
        };
        let later = |why| later(served, why);
        if self.is_shared() {
            return later("another process has it too");
        }
        if !self.is_counted(kernel) {
            return later("it was used unseen");
        }
        if self.role == Role::Active {
            return match rendezvous.listen() {
                Ok(listener) => (Meeting::Listening(listener, 0), served + 1),
                Err(Error::Io { source: Errno::MFILE, .. }) => later(FEW_DESCRIPTORS),
                Err(_) => over("the system has no socket for the meeting"),
            };
        }
        match rendezvous.connect((own, peers), SIZES) {
            Ok(Some(mut connected)) => {
                // The peer may begin as soon as it has mapped the segment, before this side notices.
                ask(&Bell::new(kernel, self), Some(&mut connected.input), None);
                // Nor can the peer's threads that sleep in the kernel ask before the first bytes come.
                connected.output.assume_asleep();
                (Meeting::Offered(connected), OFFERED)
            }
            Ok(None) => later(NOBODY),
            Err(error) => over(why_not(error)),
        }
    }

    fn look_for_peer(
        &self,
        kernel: &impl Kernel,
        mut listener: Listener,
        looks: u32,
        served: u32,
    ) -> (Meeting, u32) {
        let again = served.saturating_add(if looks < OFTEN { FOUR_CALLS } else { STEP });
        if self.is_shared() {
            return over("another process has it too");
        }
        // Most looks find nobody. They cost one call of the kernel, and what follows costs six.
        let callers = listener.has_callers();
        if let Ok(true) = callers
            && !self.is_counted(kernel)
        {
            return match looks < LAST {
                true => (Meeting::Listening(listener, looks + 1), again),
                false => over("it was used unseen"),
            };
        }
        let met = match callers {
            Ok(true) => {
                let Some(ends) = kernel.ends() else { return over("the connection has ended") };
                listener.accept(ends, SIZES)
            }
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        };
        match met {
            Ok(Some(connected)) => {
                self.note_peer(&connected.notifier);
                self.join(kernel, connected);
                (Meeting::Joined, u32::MAX)
            }
            Ok(None) if looks < LAST => (Meeting::Listening(listener, looks + 1), again),
            Ok(None) => over(NOBODY),
            Err(Error::Io { source: Errno::MFILE, .. }) => later(served, FEW_DESCRIPTORS),
            Err(error) => over(why_not(error)),
        }
    }

    fn look_for_answer(&self, kernel: &impl Kernel, connected: Connected) -> (Meeting, u32) {
        // In this order: a peer that accepts maps the segment and then closes its socket.
        rstream_ring::Notify::take(&connected.notifier);
        let has_left = connected.notifier.has_ended();
        if connected.output.is_mapped_by_peer() {
            self.note_peer(&connected.notifier);
            self.join(kernel, connected);
            (Meeting::Joined, u32::MAX)
        } else if has_left {
            over("the peer did not accept the segment")
        } else {
            (Meeting::Offered(connected), OFFERED)
        }
    }

    /// To be called in a process that was forked, for each of its connections.
    pub(crate) fn leave_meeting(&self) {
        self.hold_too();
        self.leave_statistics_to_parent();
        // Of the parent's threads this process has one, which is not at it.
        self.meeter.store(0, Ordering::Relaxed);
        match self.meeting.try_lock() {
            Ok(mut meeting) if matches!(*meeting, Meeting::Listening(..)) => {
                *meeting = Meeting::Over("the process that was forked met the peer");
            }
            Ok(_) => {}
            Err(_) => self.due.store(u32::MAX, Ordering::Relaxed),
        }
    }
}

/// The thread that goes on with a meeting, while it does.
struct Meeter<'a>(&'a AtomicU32);

impl<'a> Meeter<'a> {
    fn new(place: &'a AtomicU32) -> Self {
        place.store(thread(), Ordering::Release);
        Self(place)
    }
}

impl Drop for Meeter<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

fn over(why: &'static str) -> (Meeting, u32) {
    (Meeting::Over(why), u32::MAX)
}

/// It is due again after twice as many turns.
fn later(served: u32, why: &'static str) -> (Meeting, u32) {
    let again = served.max(TURN).saturating_mul(2);
    if again < LATEST { (Meeting::Due(why), again) } else { over(why) }
}

fn why_not(error: Error) -> &'static str {
    match error {
        Error::NoPeer(_) => "whoever was met is not the peer",
        Error::NoSegment(_) => "the peer handed over something else than a segment",
        Error::UncertainMemory => "the system promises more memory than it has",
        Error::Io { source: Errno::MFILE, .. } => FEW_DESCRIPTORS,
        _ => "the system refused shared memory",
    }
}

/// What became of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Report<'a> {
    /// The addresses, this side's first, if they are known.
    pub ends: Option<(SocketAddr, SocketAddr)>,
    /// The path, or why it stays on TCP.
    pub path: &'a str,
}

static REPORTER: OnceLock<fn(Report<'_>)> = OnceLock::new();

/// Whom to tell what becomes of connections. The first call counts.
pub fn set_reporter(reporter: fn(Report<'_>)) {
    let _ = REPORTER.set(reporter);
}

pub(crate) fn report(kernel: &impl Kernel, path: &str) {
    if let Some(reporter) = REPORTER.get() {
        reporter(Report { ends: kernel.ends(), path });
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((own, peers)) = self.ends {
            write!(f, "{own} to {peers}: ")?;
        }
        f.write_str(self.path)
    }
}

#[cfg(test)]
mod tests;
