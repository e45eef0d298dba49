//! A connection: what this process knows of it, and how its calls find where their bytes go.
//!
//! ```text
//!            the kernel                                the ring
//! input   ── bytes up to where the ring begins ──▶ ── bytes, while TCP carries bells ──▶ end
//! output  ── bytes ──▶ begin: says where ──▶        ── bytes, while TCP carries bells ──▶ end
//! ```
//!
//! Both sides begin in the kernel. Each goes over to the ring of its output by itself, in the middle of its
//! stream, once both have mapped the segment ([`meeting`](crate::meeting)). Its peer takes from the kernel
//! what comes before, and everything after that from the ring.

mod end;
mod leave;
mod news;
mod receive;
mod send;
mod spinning;
mod wait;

pub use leave::{Step, WayBack};

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rstream_ring::{Error, Reader, Writer};
use rustix::io::Errno;

use crate::delays::Delays;
use crate::lock::Busy;
use crate::meeting::Meeting;
use crate::shared::{Half, Held, INPUT_LEFT, Input, OUTPUT_LEFT, Output, Slot, Words};
use crate::statistics::Statistics;

/// Bytes of each ring.
pub(crate) const RING: usize = 512 << 10;
/// What the largest part of a ring that is in use may be.
pub(crate) const WINDOWS: std::ops::RangeInclusive<usize> = send::WINDOW..=RING;
/// A sender that waits goes on when there is room for so much: what its peer gives back at once of a whole
/// ring.
const ROOM: usize = RING / 4;

/// Which end of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It called `connect`.
    Active,
    /// It was accepted.
    Passive,
}

impl Role {
    /// When the meeting is due for this side, in parts of a [`TURN`], if the sides are to meet after so many turns.
    /// The side that connected makes itself known in the turn before the one in which the other looks.
    pub(crate) fn due(self, after: u32) -> u32 {
        turns(after.saturating_add(u32::from(self == Self::Passive && after > 0)))
    }
}

/// What a call has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Call the kernel, and report what it says: [`Stream::received`], [`Stream::sent`].
    Kernel,
    /// It is done, with so many bytes.
    Done(usize),
    /// Nothing can be done now. The peer rings a bell when it can, see [`Stream::wait`].
    Wait,
}

/// What a caller does if there is nothing to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It looks again by [`Stream::look`], or calls again with [`Then::Sleep`].
    Look,
    /// It returns, and may sleep in a way that is not seen here. Callers that call again and again are
    /// recognized, and need no bell.
    Return,
    /// It sleeps: the peer rings a bell.
    Sleep,
}

/// How to sleep until something changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// In the kernel, on the socket, until there is something to receive. Then [`Stream::woken`].
    Kernel,
    /// With [`Stream::follow`]: another thread sleeps in the kernel.
    Behind(u32),
    /// For a moment: the peer cannot ring.
    Nap,
    /// Not at all: something may have changed.
    Again,
}

/// What can be done without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// A call that receives would not wait. `None`: the kernel knows.
    pub input: Option<bool>,
    /// A call that sends would not wait. `None`: the kernel knows.
    pub output: Option<bool>,
    /// The peer has ended its output, as far as is known without the kernel.
    pub ended: bool,
    /// So have both sides.
    pub hung_up: bool,
    /// A call would report an error, which the kernel does not know any more.
    pub failed: bool,
    /// Grows with bytes that arrive in the ring, and when it is the ring's turn: what is greater is news.
    pub arrived: u64,
}

/// A TCP connection of this process, or one that it shares with processes that were forked from it.
pub struct Stream {
    pub(crate) role: Role,
    pub(crate) slot: Arc<Slot>,
    input: Half<Input, Reader>,
    output: Half<Output, Writer>,
    pub(crate) meeting: Mutex<Meeting>,
    /// The thread that has it now, or 0.
    pub(crate) meeter: AtomicU32,
    /// How much the kernel has served, and from how much on the meeting is due, in parts of a [`TURN`].
    pub(crate) served: AtomicU32,
    pub(crate) due: AtomicU32,
    /// Which way the last call went: 0 none yet, else a [`Way`].
    last_way: AtomicU8,
    /// Calls that send, since the upgrade.
    sends: AtomicU32,
    pub(crate) statistics: Statistics,
    /// The most bytes of the ring of output that are in use.
    window: usize,
}

impl Stream {
    /// A connection that has carried no bytes yet. The sides meet after `after` turns: calls whose bytes go the other
    /// way than those of the call before, or 32 calls that go the same way, or a MiB.
    ///
    /// # Errors
    /// What the system says if it has no memory.
    pub fn new(role: Role, after: u32) -> Result<Self, Errno> {
        let slot = Slot::new()?;
        let (input, output) = (slot.input(), slot.output());
        let meeting = Mutex::new(Meeting::Due(""));
        Ok(Self {
            role,
            slot,
            input,
            output,
            meeting,
            meeter: AtomicU32::new(0),
            served: AtomicU32::new(0),
            due: AtomicU32::new(role.due(after)),
            last_way: AtomicU8::new(0),
            sends: AtomicU32::new(0),
            statistics: Statistics::new(role),
            window: RING,
        })
    }

    /// With at most so many bytes of the ring of output in use: a power of two from 16 KiB to the whole ring.
    #[must_use]
    pub fn with_window(self, window: Option<usize>) -> Self {
        let window = window.filter(|window| WINDOWS.contains(window) && window.is_power_of_two());
        Self { window: window.unwrap_or(RING), ..self }
    }

    /// A sender that waits goes on when there is room for so much, which is what [`Stream::look`] finds.
    #[must_use]
    pub fn room(&self) -> usize {
        self.window / (RING / ROOM)
    }

    /// Whether this process has the rings of the connection, and needs them.
    #[inline]
    #[must_use]
    pub fn has_rings(&self) -> bool {
        self.input.has_end() && !self.is_back()
    }

    /// Whether it has gone back from its rings to the kernel.
    #[inline]
    #[must_use]
    pub fn is_back(&self) -> bool {
        let both = OUTPUT_LEFT | INPUT_LEFT;
        self.words().back.load(Ordering::Acquire) & both == both
    }

    /// Whether it is about to.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        !matches!(self.words().back.load(Ordering::Acquire), 0) && !self.is_back()
    }

    /// How the application wants the kernel to delay what it sends, if that goes to the ring. Otherwise the kernel
    /// knows.
    #[must_use]
    pub fn delays(&self) -> Option<Delays> {
        let is_ours = self.has_rings() && self.words().begun.load(Ordering::Relaxed) != 0;
        if is_ours { self.known_delays() } else { None }
    }

    /// The same, from when output first went to the ring, also after it has gone back.
    pub(crate) fn known_delays(&self) -> Option<Delays> {
        Delays::from_bits(self.words().delays.load(Ordering::Relaxed))
    }

    /// What [`Stream::delays`] is from now on. It has an effect if the connection goes back to the kernel.
    pub fn set_delays(&self, delays: Delays) {
        self.words().delays.store(delays.bits(), Ordering::Relaxed);
    }

    /// Whether it stays on TCP for good.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.due.load(Ordering::Relaxed) == u32::MAX && !self.has_rings()
    }

    pub(crate) fn words(&self) -> &Words {
        self.slot.words()
    }

    pub(crate) fn lock_input(&self) -> Result<Held<'_, Input, Reader>, Errno> {
        self.check()?;
        self.input.lock().map_err(|busy| self.refused(busy))
    }

    fn lock_output(&self) -> Result<Held<'_, Output, Writer>, Errno> {
        self.check()?;
        self.output.lock().map_err(|busy| self.refused(busy))
    }

    fn check(&self) -> Result<(), Errno> {
        match self.words().broken.load(Ordering::Relaxed) {
            0 => Ok(()),
            error => Err(Errno::from_raw_os_error(error.cast_signed())),
        }
    }

    fn refused(&self, busy: Busy) -> Errno {
        match busy {
            Busy::Interrupted => Errno::AGAIN,
            Busy::Lost => self.fail(Errno::CONNRESET),
        }
    }

    fn violated(&self, _: Error) -> Errno {
        self.fail(Errno::CONNRESET)
    }

    /// From now on every call fails: bytes were lost, or the peer broke the protocol.
    fn fail(&self, error: Errno) -> Errno {
        self.words().broken.store(error.raw_os_error().cast_unsigned(), Ordering::Relaxed);
        error
    }

    /// Counts a call of the kernel that has moved so many bytes.
    fn count(&self, way: Way, length: usize) {
        /// A part of a turn.
        const BYTES: usize = (1 << 20) / TURN as usize;
        let is_turn = self.last_way.load(Ordering::Relaxed) != way as u8;
        if is_turn {
            self.last_way.store(way as u8, Ordering::Relaxed);
        }
        let parts = if is_turn { TURN } else { TURN / 32 };
        let bytes = u32::try_from(length / BYTES).unwrap_or(TURN << 8);
        self.served.fetch_add(parts + bytes, Ordering::Relaxed);
    }
}

/// Turns after which the sides meet, if nothing else is said: by then TCP has cost as much as the meeting does.
pub const TURNS: u32 = 8;

/// A call whose bytes go the other way than those of the call before. The calls that follow it the same way are a
/// thirty-second of a turn each, and each MiB is one more: what goes in one direction and ends the connection, as a
/// file, is over before a meeting would have paid.
pub(crate) const TURN: u32 = 64;

/// So many turns, in their parts. Too many to count are never.
pub(crate) const fn turns(count: u32) -> u32 {
    if count < u32::MAX / TURN { count * TURN } else { u32::MAX }
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Way {
    In = 1,
    Out = 2,
}

#[cfg(test)]
mod tests;
