//! Calls that move bytes through a ring without the lock of the connection.
//!
//! Each direction of a stream in shared memory has a lock of its own. While a direction is granted, a call
//! that moves bytes needs only that lock, so a thread that sends and a thread that receives share no lock and
//! write no common cache line. A [`Connection`](crate::Connection) grants a direction when its calls have
//! nothing to do but to move bytes, and withdraws it before that changes. Everything else is a call on the
//! connection, which takes the lock of a direction for each use of its ring.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rstream_ring::{Notifier, OwnedGuard, OwnedLock, Reader, Writer};

use super::error::{Error, Result};
use super::statistics::Calls;

/// Time after which a call looks at the queue pair: the connection may have ended.
const LOOK_AFTER: Duration = Duration::from_millis(1);
/// Of the sends that find room, only one in so many reads the clock for that.
const SENDS: u64 = 16;

/// The calls on a stream in shared memory that need no more than its rings.
#[derive(Clone)]
pub struct Direct {
    pub(crate) output: Arc<Half<Writer>>,
    pub(crate) input: Arc<Half<Reader>>,
    pub(crate) notifier: Arc<Notifier>,
    longest_inject: usize,
}

/// The outcome of a direct receive.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// As that of [`Connection::receive`](crate::Connection::receive).
    pub outcome: Result<usize>,
    /// Whether there is more to receive, and a wait set has to show it.
    pub shows_more: bool,
}

/// One direction, on cache lines of its own.
#[repr(align(128))]
pub(crate) struct Half<End>(OwnedLock<Locked<End>>);

/// What the lock of a direction covers.
pub(crate) struct Locked<End> {
    pub(crate) ring: End,
    /// Whether direct calls are granted.
    pub(crate) granted: bool,
    /// Whether a wait set shows what there is to receive.
    pub(crate) watched: bool,
    /// Whether nothing was received since the last time that a notification was asked for.
    pub(crate) armed: bool,
    /// Direct calls.
    pub(crate) calls: Calls,
    look: Look,
}

/// When the queue pair was looked at last.
pub(crate) struct Look(Instant);

impl Look {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }

    /// Whether it is time for the next look, which the caller then takes.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now - self.0 >= LOOK_AFTER;
        if due {
            self.0 = now;
        }
        due
    }
}

impl<End> Half<End> {
    fn new(ring: End) -> Arc<Self> {
        let (calls, look) = (Calls::default(), Look::now());
        let locked = Locked { ring, granted: false, watched: false, armed: false, calls, look };
        Arc::new(Self(OwnedLock::new(locked)))
    }

    #[inline]
    pub(crate) fn lock(&self) -> OwnedGuard<'_, Locked<End>> {
        self.0.lock()
    }
}

impl Direct {
    pub(crate) fn new(output: Writer, input: Reader, notifier: Notifier, longest_inject: usize) -> Self {
        let (output, input) = (Half::new(output), Half::new(input));
        Self { output, input, notifier: Arc::new(notifier), longest_inject }
    }

    /// [`Connection::send`](crate::Connection::send), if that takes a byte and has nothing else to do.
    /// `None`: nothing was done.
    #[inline]
    pub fn send(&self, data: &[IoSlice<'_>]) -> Option<usize> {
        self.output.lock().send(|ring| ring.write(data, &*self.notifier))
    }

    /// [`Connection::inject`](crate::Connection::inject) as [`Direct::send`].
    #[inline]
    pub fn inject(&self, data: &[u8]) -> Option<usize> {
        if data.len() > self.longest_inject {
            return None;
        }
        self.output.lock().send(|ring| match ring.has_room(data.len())? {
            true => ring.write(&[IoSlice::new(data)], &*self.notifier),
            false => Ok(0),
        })
    }

    /// [`Connection::receive`](crate::Connection::receive) that consumes, if it finds bytes or does not look
    /// for anything else. `None`: nothing was done.
    #[inline]
    pub fn receive(&self, target: &mut [IoSliceMut<'_>]) -> Option<Received> {
        let mut input = self.input.lock();
        // A wait set that shows known bytes may have to stop doing so.
        if !input.granted || input.watched && input.ring.known() > 0 {
            return None;
        }
        let outcome = match input.ring.read(target, &*self.notifier) {
            Ok(Some(bytes @ 1..)) => Ok(bytes),
            Ok(None) if !input.watched && !input.look.is_due() => Err(Error::WouldBlock),
            _ => return None,
        };
        input.calls.count(&outcome);
        input.armed = false;
        Some(Received { outcome, shows_more: input.watched && input.ring.known() > 0 })
    }
}

impl Locked<Writer> {
    #[inline]
    fn send(&mut self, write: impl FnOnce(&mut Writer) -> rstream_ring::Result<usize>) -> Option<usize> {
        if !self.granted || self.calls.number.is_multiple_of(SENDS) && self.look.is_due() {
            return None;
        }
        // The connection meets what this call cannot tell.
        let taken = write(&mut self.ring).ok().filter(|&taken| taken > 0)?;
        self.calls.count(&Ok(taken));
        Some(taken)
    }
}
