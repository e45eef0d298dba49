//! One file descriptor for many reasons to wake up.
//!
//! A [`WaitSet`] is an epoll instance: sources are added with a token that the set gives out, and its own
//! descriptor can stand in another set, in `poll`, `select` or `epoll`. A [`Signal`] makes a set readable
//! without a source: an eventfd that is always readable stands in the set from the start, and is
//! listened to while a signal is on. Nothing is opened for a signal, so that it cannot fail
//! where descriptors have run out, and a few sets of a thread share one such eventfd. (Not all: the kernel
//! lets a file stand in at most 1000 sets, and in fewer when these stand in others.)
//!
//! A child of the process that made a set shares it with its parent, so nothing changes a set there.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use super::process::Maker;
use super::timer::timespec;
use super::{Error, Result};

/// What sources and signals of a [`WaitSet`] are known by. Those of one object may share a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub(crate) u64);

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

/// What the eventfd behind the signals is known by: [`WaitSet::token`] does not get there.
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
    /// The number of the next token.
    next: AtomicU64,
    /// Locked while the interest in the eventfd changes.
    signals: Mutex<Signals>,
}

#[derive(Debug)]
struct Signals {
    bell: Arc<OwnedFd>,
    /// The tokens of the signals that are on.
    on: Vec<Token>,
}

/// Makes a set readable, and reports its token, while it is on. It is off when it is dropped.
#[derive(Debug)]
pub struct Signal {
    set: Arc<WaitSet>,
    token: Token,
    /// Changed with the set's lock.
    on: AtomicBool,
}

impl WaitSet {
    /// An empty set.
    pub fn new() -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(Error::io("epoll_create"))?;
        let bell = shared_bell()?;
        let silent = epoll::EventFlags::empty();
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(SIGNAL), silent)
            .map_err(Error::io("epoll_ctl add"))?;
        let signals = Mutex::new(Signals { bell, on: Vec::new() });
        Ok(Self { epoll, maker: Maker::this_process(), next: AtomicU64::new(0), signals })
    }

    /// A token that this set has not given out before; later ones are greater.
    #[must_use]
    pub fn token(&self) -> Token {
        Token(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A signal of this set, off at first.
    #[must_use]
    pub fn signal(self: &Arc<Self>, token: Token) -> Signal {
        Signal { set: Arc::clone(self), token, on: AtomicBool::new(false) }
    }

    /// Whether it is the set of a parent of this process.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        !self.maker.is_this_process()
    }

    /// Adds a source. It leaves the set by itself when its descriptor is closed.
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

    /// Takes an interest in the eventfd behind the signals, or none.
    fn listen(&self, bell: &OwnedFd, on: bool) -> Result<()> {
        let heard = if on { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        epoll::modify(&self.epoll, bell, epoll::EventData::new_u64(SIGNAL), heard)
            .map_err(Error::io("epoll_ctl mod"))
    }

    /// Waits until a source is ready or a signal on, at most `timeout` (`None`: for ever), and adds their
    /// tokens to `ready`. Answers whether there were any. A signal handler that interrupts the wait ends it
    /// early.
    pub fn wait(&self, timeout: Option<Duration>, ready: &mut Vec<Token>) -> Result<bool> {
        let timeout = timeout.map(timespec);
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 64];
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
            self.report(self.set.listen(&signals.bell, on));
        }
    }

    /// Switches it on, and wakes also who waits for the set edge-triggered and has seen it readable before.
    /// The sources of the set must be level-triggered.
    pub fn set_again(&self) {
        self.set(true);
        if self.set.is_inherited() {
            return;
        }
        // The kernel tells of a source when it comes to its list of ready ones. What is in there without
        // being ready leaves it when the set is looked at.
        let signals = self.set.signals.lock();
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 64];
        self.report(self.set.listen(&signals.bell, false));
        let looked = epoll::wait(&self.set.epoll, &mut events, Some(&Timespec::default()));
        self.report(looked.map(drop).map_err(Error::io("epoll_wait")));
        self.report(self.set.listen(&signals.bell, true));
    }

    /// The system refuses only what is not there.
    fn report(&self, outcome: Result<()>) {
        if let Err(error) = outcome {
            log::error!("a wake-up is lost: {error}");
        }
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
    fn signals_of_one_set_are_apart() {
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

    #[test]
    fn a_signal_that_is_repeated_is_an_edge() {
        let (set, outer) = (Arc::new(WaitSet::new().unwrap()), WaitSet::new().unwrap());
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&outer.epoll, &set.epoll, epoll::EventData::new_u64(7), edge).unwrap();
        let signal = set.signal(set.token());
        signal.set(true);
        assert_eq!(ready(&outer), [Token(7)]);
        signal.set(true);
        assert_eq!(ready(&outer), [], "it was on");
        signal.set_again();
        assert_eq!(ready(&outer), [Token(7)]);
        assert_eq!(ready(&set), [signal.token]);
    }
}
