//! One file descriptor for many reasons to wake up.
//!
//! A [`WaitSet`] is an epoll instance: sources are added with a token, and its own descriptor can
//! stand in another set, in `poll`, `select` or `epoll`. A set can also be made readable by hand
//! ([`WaitSet::signal`]); only a set that ever was has a second descriptor, an eventfd. (One eventfd
//! that all sets share would save that, but the kernel lets a file stand in at most 1000 sets.)

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

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

/// Token of the signal; sources may not use it.
const SIGNAL: u64 = u64::MAX;

/// A set of sources behind one descriptor.
#[derive(Debug)]
pub struct WaitSet {
    epoll: OwnedFd,
    /// Whether the set is signalled: a copy of the eventfd's state that is read without the lock.
    signaled: AtomicBool,
    /// The eventfd behind the signal, from the first one on. Locked while its state changes.
    bell: Mutex<Option<OwnedFd>>,
}

impl WaitSet {
    /// An empty set.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::io("epoll_create"))?;
        Ok(Self { epoll, signaled: AtomicBool::new(false), bell: Mutex::new(None) })
    }

    /// Adds a source. It leaves the set by itself when its descriptor is closed.
    pub fn add(&self, source: BorrowedFd<'_>, token: Token, interest: Interest) -> Result<()> {
        debug_assert_ne!(token.0, SIGNAL, "reserved token");
        epoll::add(&self.epoll, source, epoll::EventData::new_u64(token.0), interest.flags())
            .map_err(Error::io("epoll_ctl add"))
    }

    /// Changes the interest in a source of the set.
    pub fn modify(&self, source: BorrowedFd<'_>, token: Token, interest: Interest) -> Result<()> {
        epoll::modify(&self.epoll, source, epoll::EventData::new_u64(token.0), interest.flags())
            .map_err(Error::io("epoll_ctl mod"))
    }

    /// Takes a source out.
    pub fn remove(&self, source: BorrowedFd<'_>) -> Result<()> {
        epoll::delete(&self.epoll, source).map_err(Error::io("epoll_ctl del"))
    }

    /// Makes the set readable by hand (`true`) until `false` takes it back.
    pub fn signal(&self, on: bool) -> Result<()> {
        if self.signaled.load(Ordering::Acquire) == on {
            return Ok(());
        }
        let mut bell = self.bell.lock();
        if self.signaled.load(Ordering::Relaxed) == on {
            return Ok(());
        }
        let bell = match &mut *bell {
            Some(bell) => bell,
            none => none.insert(self.new_bell()?),
        };
        let rung = if on {
            rustix::io::write(&*bell, &1u64.to_ne_bytes())
        } else {
            rustix::io::read(&*bell, &mut [0; size_of::<u64>()])
        };
        rung.map_err(Error::io("eventfd"))?;
        self.signaled.store(on, Ordering::Release);
        Ok(())
    }

    fn new_bell(&self) -> Result<OwnedFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = eventfd(0, flags).map_err(Error::io("eventfd"))?;
        epoll::add(&self.epoll, &bell, epoll::EventData::new_u64(SIGNAL), epoll::EventFlags::IN)
            .map_err(Error::io("epoll_ctl add"))?;
        Ok(bell)
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
