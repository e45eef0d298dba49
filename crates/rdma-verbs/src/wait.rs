//! One file descriptor for many event sources.
//!
//! A [`WaitSet`] is an epoll instance. Each source has a token that the set assigned. The set's own
//! descriptor can be a member of another set, or be passed to `poll`, `select` or `epoll`.
//!
//! A [`Signal`] makes a set readable without a source. Each set contains an eventfd that is always readable,
//! and polls it only while a signal is on. A signal opens no descriptor, so it works even if the process has
//! none left. A few sets of one thread share one eventfd. The kernel limits how many sets may contain one
//! file to 1000, and to fewer if these sets are nested, so not all sets share one.
//!
//! A child of `fork` shares a set with its parent, so the child changes nothing in it.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;

use super::descriptor::Descriptor;
use super::process::Maker;
use super::timer::timespec;
use super::{Error, Result};

/// Identifies sources and signals of a [`WaitSet`]. Several of them may share a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);

/// The states of a source that make its set readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Readable.
    Read,
    /// Readable or writable.
    ReadWrite,
    /// Writable, whether or not the input has ended.
    Write,
    /// The peer hung up, or an error occurred. Reported once for each occurrence.
    HangUp,
    /// An error occurred, or both directions have ended.
    Failure,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Self::Write => epoll::EventFlags::OUT,
            Self::HangUp => epoll::EventFlags::RDHUP | epoll::EventFlags::ET,
            // Reported without being asked for.
            Self::Failure => epoll::EventFlags::empty(),
        }
    }
}

/// The token of the eventfd. [`WaitSet::token`] never reaches it.
const SIGNAL: u64 = u64::MAX;
/// Most sources that one wait reports.
pub(crate) const REPORTED: usize = 64;
/// Most sets that share an eventfd. The kernel limits the number of paths from one file through nested sets:
/// 500 paths through two sets, 100 through three, 50 through four. With this bound an application can add
/// each set to dozens of its own.
const SHARED_BY: usize = 8;

/// A set of sources behind one descriptor.
#[derive(Debug)]
pub struct WaitSet {
    epoll: Descriptor,
    maker: Maker,
    /// The number of the next token.
    next: AtomicU64,
    /// Whether the interest in a member has changed since the last [`WaitSet::settle`].
    is_unsettled: AtomicBool,
    /// The lock is held while the interest in the eventfd changes.
    signals: Mutex<Signals>,
}

#[derive(Debug)]
struct Signals {
    /// The eventfd, which is always readable.
    eventfd: Arc<Descriptor>,
    /// The tokens of the signals that are on.
    on: Vec<Token>,
}

/// While a signal is on, its set is readable and reports its token. Dropping the signal switches it off.
#[derive(Debug)]
pub struct Signal {
    set: Arc<WaitSet>,
    token: Token,
    /// Changes only under the lock of the set's signals.
    on: AtomicBool,
}

impl WaitSet {
    /// An empty set.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::io("epoll_create"))?.into();
        let eventfd = shared_eventfd()?;
        let no_interest = epoll::EventFlags::empty();
        epoll::add(&epoll, &eventfd, epoll::EventData::new_u64(SIGNAL), no_interest)
            .map_err(Error::io("epoll_ctl add"))?;
        let signals = Mutex::new(Signals { eventfd, on: Vec::new() });
        let (next, is_unsettled) = (AtomicU64::new(0), AtomicBool::new(false));
        Ok(Self { epoll, maker: Maker::this_process(), next, is_unsettled, signals })
    }

    /// A new token, greater than all earlier ones of this set.
    #[must_use]
    pub fn token(&self) -> Token {
        Token(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A signal of this set. It is off.
    #[must_use]
    pub fn signal(self: &Arc<Self>, token: Token) -> Signal {
        Signal { set: Arc::clone(self), token, on: AtomicBool::new(false) }
    }

    /// Whether a parent of this process created the set.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        !self.maker.is_this_process()
    }

    /// Adds a source. Closing its descriptor removes it.
    pub fn add(&self, source: BorrowedFd<'_>, token: Token, interest: Interest) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        epoll::add(&self.epoll, source, epoll::EventData::new_u64(token.0), interest.flags())
            .map_err(Error::io("epoll_ctl add"))
    }

    /// Changes the interest in a source of the set.
    pub fn modify(&self, source: BorrowedFd<'_>, token: Token, interest: Interest) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        let changed =
            epoll::modify(&self.epoll, source, epoll::EventData::new_u64(token.0), interest.flags());
        self.is_unsettled.store(true, Ordering::Release);
        changed.map_err(Error::io("epoll_ctl mod"))
    }

    /// Removes a source.
    pub fn remove(&self, source: BorrowedFd<'_>) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        epoll::delete(&self.epoll, source).map_err(Error::io("epoll_ctl del"))
    }

    /// Switches the interest in the eventfd on or off.
    fn poll_eventfd(&self, eventfd: &Descriptor, on: bool) -> Result<()> {
        let interest = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let changed = epoll::modify(&self.epoll, eventfd, epoll::EventData::new_u64(SIGNAL), interest);
        if !on {
            self.is_unsettled.store(true, Ordering::Release);
        }
        changed.map_err(Error::io("epoll_ctl mod"))
    }

    /// Prepares the set for a thread that will wait for it edge-triggered. After that the next signal is an edge, and so
    /// is a change of the interest in a source that is ready. Returns whether the set may be readable already; then the
    /// thread must not wait.
    ///
    /// The kernel reports an edge when it adds a member to the set's list of ready members. A member that is no longer
    /// ready stays in the list until a poll of the set removes it. An edge-triggered wait does not poll the set.
    #[must_use]
    pub fn settle(&self) -> bool {
        self.is_unsettled.swap(false, Ordering::AcqRel) && self.is_readable()
    }

    /// Waits until a source is ready or a signal is on, at most `timeout` (`None`: without limit), and adds
    /// their tokens to `ready`. Returns whether there were any. A handler of a POSIX signal that interrupts
    /// the wait ends it early.
    pub fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<Token>) -> Result<bool> {
        let timeout = timeout.map(timespec);
        let mut events = [const { std::mem::MaybeUninit::uninit() }; REPORTED];
        let events = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(false),
            Err(errno) => return Err(Error::io("epoll_wait")(errno)),
        };
        for event in events.iter() {
            match event.data.u64() {
                SIGNAL => ready.extend(&self.signals.lock().on),
                source => ready.push(Token(source)),
            }
        }
        Ok(!events.is_empty())
    }

    /// Whether a source is ready or a signal is on. Unlike [`WaitSet::wait`] it takes nothing that is
    /// reported once.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let mut polled = [PollFd::new(&self.epoll, PollFlags::IN)];
        // What fails is left to the caller's look at the sources.
        poll(&mut polled, Some(&Timespec::default())) != Ok(0)
    }
}

impl Signal {
    /// The set that it makes readable.
    #[must_use]
    pub fn wait_set(&self) -> &Arc<WaitSet> {
        &self.set
    }

    /// Switches it on or off.
    pub fn set(&self, on: bool) {
        if self.on.load(Ordering::Acquire) == on || self.set.is_inherited() {
            return;
        }
        let mut signals = self.set.signals.lock();
        if self.on.swap(on, Ordering::Release) == on {
            return;
        }
        if on {
            signals.on.push(self.token);
        } else if let Some(at) = signals.on.iter().position(|&token| token == self.token) {
            signals.on.swap_remove(at);
        }
        if signals.on.len() == usize::from(on) {
            log_failure(self.set.poll_eventfd(&signals.eventfd, on));
        }
    }

    /// Switches it on. Even if the set was readable before, this wakes a thread that waits for the set
    /// edge-triggered. The sources of the set must be level-triggered.
    pub fn set_again(&self) {
        self.set(true);
        if self.set.is_inherited() {
            return;
        }
        // The kernel reports an edge when it adds a source to the set's ready list. `epoll_wait` removes the
        // eventfd from that list, because there is no interest in it; the second call adds it again.
        let signals = self.set.signals.lock();
        let mut events = [const { std::mem::MaybeUninit::uninit() }; REPORTED];
        log_failure(self.set.poll_eventfd(&signals.eventfd, false));
        let waited = epoll::wait(&self.set.epoll, &mut events, Some(&Timespec::default()));
        log_failure(waited.map(drop).map_err(Error::io("epoll_wait")));
        log_failure(self.set.poll_eventfd(&signals.eventfd, true));
    }
}

/// Logs a failed system call. None is expected to fail, because the set and its eventfd exist.
fn log_failure(outcome: Result<()>) {
    if let Err(error) = outcome {
        log::error!("a wake-up is lost: {error}");
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// An always readable eventfd for one more set.
fn shared_eventfd() -> Result<Arc<Descriptor>> {
    thread_local! {
        /// This thread's latest eventfd, and the number of its sets. Threads do not share one: another thread
        /// could hold its lock while the process forks, and then the child could never take the lock.
        static LAST: Cell<(Weak<Descriptor>, usize)> = const { Cell::new((Weak::new(), 0)) };
    }
    // If the thread is ending, its `LAST` is gone, and the set gets a new eventfd.
    let (last, sets) = LAST.try_with(Cell::take).unwrap_or_default();
    let (shared, sets) = match last.upgrade() {
        Some(shared) if sets < SHARED_BY => (shared, sets + 1),
        _ => {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            (Arc::new(eventfd(1, flags).map_err(Error::io("eventfd"))?.into()), 1)
        }
    };
    let _ = LAST.try_with(|last| last.set((Arc::downgrade(&shared), sets)));
    Ok(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(set: &WaitSet) -> Vec<Token> {
        let mut ready = Vec::new();
        let any = set.wait(Some(Duration::ZERO), &mut ready).unwrap();
        assert_eq!(any, !ready.is_empty());
        ready.sort_unstable();
        ready
    }

    #[test]
    fn signals_of_one_set_are_independent() {
        let set = Arc::new(WaitSet::new().unwrap());
        let [first, second] = [(); 2].map(|()| set.signal(set.token()));
        first.set(true);
        second.set(true);
        second.set(true);
        assert_eq!(ready(&set), [first.token, second.token]);
        second.set(false);
        assert_eq!(ready(&set), [first.token]);
        second.set(true);
        drop(first);
        assert_eq!(ready(&set), [second.token]);
        drop(second);
        assert_eq!(ready(&set), []);
    }

    /// A signal, and a set in which that of the signal is edge-triggered, as token 7.
    fn edge_triggered() -> (Signal, WaitSet) {
        let (set, outer) = (Arc::new(WaitSet::new().unwrap()), WaitSet::new().unwrap());
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&outer.epoll, &set.epoll, epoll::EventData::new_u64(7), edge).unwrap();
        (set.signal(set.token()), outer)
    }

    #[test]
    fn each_signal_in_a_settled_set_is_an_edge() {
        let (signal, outer) = edge_triggered();
        for _ in 0..3 {
            signal.set(true);
            assert_eq!(ready(&outer), [Token(7)]);
            signal.set(false);
            assert!(!signal.set.settle(), "it is off");
        }
        signal.set(true);
        signal.set(false);
        signal.set(true);
        assert!(signal.set.settle(), "it is on");
    }

    #[test]
    fn a_signal_that_is_set_again_is_an_edge() {
        let (signal, outer) = edge_triggered();
        signal.set(true);
        assert_eq!(ready(&outer), [Token(7)]);
        signal.set(true);
        assert_eq!(ready(&outer), [], "it was on");
        signal.set_again();
        assert_eq!(ready(&outer), [Token(7)]);
        assert_eq!(ready(&signal.set), [signal.token]);
    }
}
