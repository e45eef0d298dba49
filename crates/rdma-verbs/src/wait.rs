//! One file descriptor for many reasons to wake up.
//!
//! A [`WaitSet`] is an epoll instance: sources are added with a token, and its own descriptor can
//! stand in another set, in `poll`, `select` or `epoll`. A set can also be made readable by hand
//! ([`WaitSet::signal`]): an eventfd that is always readable stands in it from the start, and is
//! listened to while the set is signalled. Nothing is opened for a signal, so that it cannot fail
//! where descriptors have run out, and a few sets of a thread share one such eventfd. (Not all: the kernel
//! lets a file stand in at most 1000 sets, and in fewer when these stand in others.)
//!
//! A child of the process that made a set shares it with its parent, so nothing changes a set there.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::process::Maker;
use super::{Error, Result};

/// What a source of a [`WaitSet`] is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// Which states of a source count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Readable.
    Read,
    /// Readable or writable.
    ReadWrite,
    /// Writable, whether or not the input has ended.
    Write,
    /// The other side hung up or an error came, told once each time it happens.
    HangUp,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Self::Write => epoll::EventFlags::OUT,
            Self::HangUp => epoll::EventFlags::RDHUP | epoll::EventFlags::ET,
        }
    }
}

/// Who makes a set readable by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The owner of the set.
    Owner = 1,
    /// The completion queue that the set is attached to.
    Queue = 2,
}

/// Token of the signal; sources may not use it.
const SIGNAL: u64 = u64::MAX;
/// Sets that share an eventfd. The kernel counts the ways from a file through sets that stand in sets: at
/// most 500 over two of them, 100 over three, 50 over four. So an application may have each of these in
/// dozens of its own.
const SHARED_BY: usize = 8;

/// A set of sources behind one descriptor.
#[derive(Debug)]
pub struct WaitSet {
    epoll: OwnedFd,
    maker: Maker,
    /// Who signals, as bits; changed with the lock below.
    signals: AtomicU8,
    /// The eventfd behind the signal. Locked while the interest in it changes.
    bell: Mutex<Arc<OwnedFd>>,
}

impl WaitSet {
    /// An empty set.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::io("epoll_create"))?;
        let bell = shared_bell()?;
        let silent = epoll::EventFlags::empty();
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(SIGNAL), silent)
            .map_err(Error::io("epoll_ctl add"))?;
        let maker = Maker::this_process();
        Ok(Self { epoll, maker, signals: AtomicU8::new(0), bell: Mutex::new(bell) })
    }

    /// Whether it is the set of a parent of this process.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        !self.maker.is_this_process()
    }

    /// Adds a source. It leaves the set by itself when its descriptor is closed.
    pub fn add(&self, source: BorrowedFd<'_>, token: Token, interest: Interest) -> Result<()> {
        debug_assert_ne!(token.0, SIGNAL, "reserved token");
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
        epoll::modify(&self.epoll, source, epoll::EventData::new_u64(token.0), interest.flags())
            .map_err(Error::io("epoll_ctl mod"))
    }

    /// Takes a source out.
    pub fn remove(&self, source: BorrowedFd<'_>) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        epoll::delete(&self.epoll, source).map_err(Error::io("epoll_ctl del"))
    }

    /// Makes the set readable by hand (`true`) until `false` takes it back. It stays readable while
    /// anyone signals.
    pub fn signal(&self, who: Signal, on: bool) -> Result<()> {
        let bit = who as u8;
        let with = |signals: u8| if on { signals | bit } else { signals & !bit };
        let before = self.signals.load(Ordering::Acquire);
        if with(before) == before || self.is_inherited() {
            return Ok(());
        }
        let bell = self.bell.lock();
        let before = self.signals.load(Ordering::Relaxed);
        let after = with(before);
        if (before == 0) != (after == 0) {
            self.listen(&bell, after != 0)?;
        }
        self.signals.store(after, Ordering::Release);
        Ok(())
    }

    /// Makes the set readable by hand as [`WaitSet::signal`] does, and wakes also who waits for it
    /// edge-triggered and has seen it readable before. The sources of the set must be level-triggered.
    pub fn signal_again(&self, who: Signal) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        let bell = self.bell.lock();
        // The kernel tells of a source when it comes to its list of ready ones. What is in there without
        // being ready leaves it when the set is looked at.
        self.listen(&bell, false)?;
        self.wait(Some(Duration::ZERO), &mut Vec::new())?;
        self.listen(&bell, true)?;
        self.signals.fetch_or(who as u8, Ordering::Release);
        Ok(())
    }

    /// Takes an interest in the eventfd behind the signal, or none.
    fn listen(&self, bell: &OwnedFd, on: bool) -> Result<()> {
        let heard = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&self.epoll, bell, epoll::EventData::new_u64(SIGNAL), heard)
            .map_err(Error::io("epoll_ctl mod"))
    }

    /// Waits until a source or the signal is there, at most `timeout` (`None`: for ever), and
    /// adds the tokens of ready sources to `ready`; the signal has none. Answers whether anything
    /// was there. A signal handler that interrupts the wait ends it early.
    pub fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<Token>) -> Result<bool> {
        let timeout = timeout.map(|left| rustix::event::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 64];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                let any = !events.is_empty();
                let tokens = events.iter().map(|event| event.data.u64());
                ready.extend(tokens.filter(|&token| token != SIGNAL).map(Token));
                Ok(any)
            }
            Err(Errno::INTR) => Ok(false),
            Err(errno) => Err(Error::io("epoll_wait")(errno)),
        }
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// An eventfd that is readable for ever, for one more set.
fn shared_bell() -> Result<Arc<OwnedFd>> {
    thread_local! {
        /// The one handed out last, and to how many sets. A lock around one for all threads could be taken
        /// by another thread when the process forks, and then nobody gives it back in the child.
        static LAST: Cell<(Weak<OwnedFd>, usize)> = const { Cell::new((Weak::new(), 0)) };
    }
    // A thread that ends has none any more: then the set gets one of its own.
    let (last, sets) = LAST.try_with(Cell::take).unwrap_or_default();
    let (bell, sets) = match last.upgrade() {
        Some(bell) if sets < SHARED_BY => (bell, sets + 1),
        _ => {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            (Arc::new(eventfd(1, flags).map_err(Error::io("eventfd"))?), 1)
        }
    };
    let _ = LAST.try_with(|last| last.set((Arc::downgrade(&bell), sets)));
    Ok(bell)
}
