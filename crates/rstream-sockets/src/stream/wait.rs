//! Looking and sleeping.
//!
//! Of the threads that sleep for one connection, in all processes that have it, one leads
//! ([`Sleepers`](rstream_ring::Sleepers)): it sleeps in the kernel, and takes the bells. The others sleep
//! behind it. Threads that were in a call of the kernel when the connection was upgraded sleep there already,
//! so that they lead until they come out.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rstream_ring::{Notify, Sleep, Threads, Writer, ask};
use rustix::io::Errno;
use rustix::thread::futex;

use super::{Ready, Stream, Wait};
use crate::bell::Bell;
use crate::kernel::Kernel;
use crate::lock::{is_alive, thread};
use crate::shared::{Input, Leaving};

/// The threads of the system, which sleep on futexes.
pub(super) struct System;

impl Threads for System {
    #[inline]
    fn current(&self) -> u32 {
        thread()
    }

    fn is_alive(&self, thread: u32) -> bool {
        is_alive(thread)
    }

    fn wake(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
    }
}

impl Stream {
    /// What can be done now. Before a sleep, with `arm`: the peer rings a bell as soon as input, or room for
    /// output, comes.
    ///
    /// # Errors
    /// As [`Stream::receive`]: calls would report it at once.
    pub fn look(&self, kernel: &impl Kernel, arm: bool, output: bool) -> Result<Ready, Errno> {
        self.meet(kernel);
        let mut ready =
            Ready { input: None, output: None, ended: false, hung_up: false, failed: false, arrived: 0 };
        self.look_for_peer_output();
        self.begin(kernel)?;
        let bell = Bell::new(kernel, self);
        let may_be_gone;
        {
            let mut held = self.lock_input()?;
            let (state, Some(reader)) = held.parts() else { return Ok(ready) };
            reader.resume(state.ring);
            if self.follow_peer(kernel, state, reader)? == Leaving::Left {
                drop(held);
                return self.look_behind(kernel, ready);
            }
            let is_there = state.leaving != Leaving::Wished
                && if arm {
                    (state.empty, state.spins, state.armed) = (0, false, true);
                    ask(&bell, Some(reader), None)
                } else {
                    reader.readable().is_ok_and(|bytes| bytes > 0) || reader.has_ended()
                };
            ready.ended = state.finished || reader.knows_end();
            ready.failed = state.error != 0;
            may_be_gone = state.finished || reader.begins_at().is_none_or(|begins| state.taken < begins);
            ready.arrived = reader.arrived();
            ready.input = match reader.begins_at() {
                Some(begins) if state.taken >= begins => {
                    // Whoever has received all that the kernel had is told of what is in the ring already.
                    ready.arrived += 1;
                    Some(is_there || state.finished || state.error != 0)
                }
                // No bell comes before bytes of the stream that the kernel has.
                _ => Some(state.finished || kernel.has_input()),
            };
            state.ring = reader.state();
        }
        if output || ready.ended {
            let mut held = self.lock_output()?;
            let leaving = self.resend(kernel, &mut held);
            let (state, writer) = held.parts();
            ready.hung_up = ready.ended && state.ended;
            if matches!(leaving, Leaving::Wished | Leaving::Granted) {
                ready.output = Some(false);
            }
            if let Some(writer) = writer.filter(|_| state.begun) {
                writer.resume(state.ring);
                if ready.ended {
                    self.probe(&bell, writer);
                }
                if output {
                    let has_room = writer.most_room(self.window).map_or(true, |room| room >= self.room());
                    let is_there = has_room || arm && ask(&bell, None, Some((writer, self.room())));
                    ready.output = Some(is_there || state.ended || self.is_peer_gone());
                }
                state.ring = writer.state();
            }
        }
        if may_be_gone && ready.output == Some(false) && self.learn_of_death(kernel)? {
            ready.output = Some(true);
        }
        Ok(ready)
    }

    /// The peer has ended its output. If it has closed and left bytes unread, or they came after that, its
    /// kernel has to say so, as it does for bytes of its own: by a reset.
    fn probe(&self, bell: &impl Notify, writer: &mut Writer) {
        const PROBED: u32 = 2;
        let peer_ended = &self.words().peer_ended;
        peer_ended.fetch_max(1, Ordering::AcqRel);
        let is_lost =
            writer.is_closed() == Ok(true) && writer.unread().is_ok_and(|(read, written)| read < written);
        if is_lost && peer_ended.swap(PROBED, Ordering::AcqRel) != PROBED {
            bell.notify();
        }
    }

    /// The rest of [`Stream::look`] when the kernel has the rest of the input.
    fn look_behind(&self, kernel: &impl Kernel, mut ready: Ready) -> Result<Ready, Errno> {
        let mut held = self.lock_output()?;
        if self.resend(kernel, &mut held) != Leaving::Left {
            ready.output = Some(false);
        }
        Ok(ready)
    }

    /// Takes back what [`Stream::look`] armed: this side looks by itself again, and the peer need not ring
    /// when it writes, unless another thread sleeps.
    pub fn disarm(&self) {
        if let Ok(mut held) = self.lock_input()
            && let (state, Some(reader)) = held.parts()
        {
            reader.resume(state.ring);
            self.words().sleepers.silence(&System, reader);
        }
    }

    /// Takes what woke a sleeper in the kernel, if it was a bell. Returns whether the kernel has input that
    /// is none: bytes of the stream, its end, or an error.
    ///
    /// # Errors
    /// As [`Stream::receive`].
    pub fn settle(&self, kernel: &impl Kernel) -> Result<bool, Errno> {
        let mut held = self.lock_input()?;
        let (state, Some(reader)) = held.parts() else { return Ok(true) };
        reader.resume(state.ring);
        match self.follow_peer(kernel, state, reader)? {
            Leaving::No => {}
            leaving => return Ok(leaving == Leaving::Left),
        }
        if reader.begins_at().is_none_or(|begins| state.taken < begins) || state.finished {
            return Ok(true);
        }
        Ok(self.take_news(kernel, state, reader))
    }

    /// To be asked before a call that may have to sleep, for [`Stream::wait`].
    #[must_use]
    pub fn turn(&self) -> u32 {
        self.words().sleepers.turn()
    }

    /// How a thread sleeps for which [`Stream::receive`] or [`Stream::send`] had nothing since `turn`.
    /// `output`: it was the latter.
    ///
    /// # Errors
    /// As [`Stream::receive`].
    pub fn wait(&self, turn: u32, output: bool) -> Result<Wait, Errno> {
        if self.is_leaving() || output && !self.can_be_rung() {
            return Ok(Wait::Nap);
        }
        let sleep = self.words().sleepers.begin(&System, turn, || self.is_bell_due(output))?;
        Ok(match sleep {
            Sleep::Leading => Wait::Kernel,
            Sleep::Following => Wait::Behind(turn),
            Sleep::Not => Wait::Again,
        })
    }

    /// Whether the peer still has to ring for what was asked for, if no bell was taken since.
    fn is_bell_due(&self, output: bool) -> Result<bool, Errno> {
        let mut held = self.lock_input()?;
        Ok(output || held.parts().1.is_none_or(|reader| reader.is_armed()))
    }

    /// Whether the peer's bells reach this side's sleepers: everything else that the kernel had was taken,
    /// and the peer's output has not ended.
    #[must_use]
    pub fn can_be_rung(&self) -> bool {
        let Ok(mut held) = self.lock_input() else { return false };
        let (state, Some(reader)) = held.parts() else { return false };
        state.leaving == Leaving::No
            && !state.finished
            && reader.begins_at().is_some_and(|begins| state.taken >= begins)
    }

    /// [`Stream::woken`], if this thread leads.
    pub fn stop_leading(&self) {
        self.words().sleepers.stop_leading(&System);
    }

    /// The end of a sleep in the kernel.
    pub fn woken(&self) {
        self.words().sleepers.woken(&System);
    }

    pub(super) fn wake_followers(&self) {
        self.words().sleepers.wake_followers(&System);
    }

    /// Sleeps behind the thread that sleeps in the kernel, at most so long. Returns whether it was a signal
    /// that ended it.
    pub fn follow(&self, turn: u32, most: Option<Duration>) -> bool {
        let sleep = |word: &AtomicU32, most: Duration| {
            let most = futex::Timespec::try_from(most).ok();
            futex::wait(word, futex::Flags::empty(), turn, most.as_ref())
        };
        self.follow_by(most, sleep) == Err(Errno::INTR)
    }

    /// [`Stream::follow`] by a sleep of the caller's: on a futex, as long as the word has the value of the
    /// thread's turn, and at most so long.
    pub fn follow_by<T>(&self, most: Option<Duration>, sleep: impl FnOnce(&AtomicU32, Duration) -> T) -> T {
        // Another process's thread may die without a word, and so may one that is cancelled in a call of the
        // kernel.
        let patience = Duration::from_millis(if self.is_shared() { 100 } else { 1000 });
        let most = most.map_or(patience, |most| most.min(patience));
        self.words().sleepers.follow(|word| sleep(word, most))
    }

    /// Makes the calling thread the one whose sleep bells end, if no other is. Then nobody else takes them,
    /// until [`Stream::woken`].
    #[must_use]
    pub fn lead(&self) -> bool {
        self.words().sleepers.lead(&System)
    }

    /// Whether another thread leads.
    #[inline]
    pub(super) fn is_led(&self) -> bool {
        self.words().sleepers.is_led(&System)
    }

    /// At the upgrade, and when a thread comes out of a call of the kernel: those that are in one lead.
    pub(super) fn hand_lead_on(&self, input: &Input) {
        if input.joined {
            self.words().sleepers.hand_on(&System, input.inside, input.inside_thread);
        }
    }
}
