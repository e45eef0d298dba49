//! Back from the rings to the kernel, for what only the kernel's socket can do.
//!
//! ```text
//! the side that wishes it                         its peer
//! freezes, says so, rings ──────────────────────▶ grants it: leaves its ring, and sends again by TCP what
//!                                                 the other has not read of it
//! takes the last bells, leaves its ring ────────▶ reads what is left in that ring, takes the last bells
//! ```
//!
//! Each side says after how many bells the bytes of its stream go on. If both wish it, one takes its wish
//! back and grants the other's. A peer that makes no call does not answer, and the wish is withdrawn.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rstream_ring::{Notify, Reader, Writer};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::Stream;
use crate::bell::{Bell, take_last_bells};
use crate::kernel::Kernel;
use crate::meeting::report;
use crate::shared::{Held, INPUT_LEFT, Input, LEAVING, Leaving, OUTPUT_LEFT, Output};

/// Bytes that are sent again at most: what TCP takes at once even if nobody reads.
const RESENT: u64 = 64 << 10;
/// A peer that has been granted its wish leaves its ring at once. One that does not for so long breaks the
/// protocol.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the peer has to answer that a connection is to go back to TCP, and the pauses in which this side
/// looks and rings: the first, and the longest.
const ANSWER: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// The way of one side back to TCP.
pub struct WayBack {
    begun: Instant,
    pause: Duration,
}

/// How far it is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The kernel has the rest of the stream in both directions.
    Back,
    /// The next step is due after this pause.
    Pause(Duration),
    /// The peer has not answered in time. The rings are used on.
    Refused,
}

impl Default for WayBack {
    fn default() -> Self {
        Self { begun: Instant::now(), pause: PAUSE }
    }
}

impl WayBack {
    /// The next step.
    ///
    /// # Errors
    /// As [`Stream::receive`].
    pub fn step(&mut self, stream: &Stream, kernel: &impl Kernel) -> Result<Step, Errno> {
        let is_late = self.begun.elapsed() > ANSWER;
        if stream.leave(kernel)? {
            return Ok(Step::Back);
        }
        // A peer that has agreed is waited for twice as long.
        if is_late && stream.remain() || self.begun.elapsed() > 2 * ANSWER {
            return Ok(Step::Refused);
        }
        let pause = self.pause;
        self.pause = (2 * pause).min(LONGEST_PAUSE);
        Ok(Step::Pause(pause))
    }
}

impl Stream {
    /// Goes on with leaving the rings, and begins to if it has not yet. Returns whether the kernel has the
    /// rest of the stream in both directions. Until then no other call of this side does anything; call it
    /// again soon, or [`Stream::remain`].
    ///
    /// # Errors
    /// As [`Stream::receive`].
    pub(crate) fn leave(&self, kernel: &impl Kernel) -> Result<bool, Errno> {
        self.look_for_peer_output();
        self.begin(kernel)?;
        if kernel.has_ended() {
            self.settle(kernel)?;
        }
        let (mut held_input, mut held_output) = (self.lock_input()?, self.lock_output()?);
        let (input, Some(reader)) = held_input.parts() else { return Ok(self.is_back()) };
        let (output, Some(writer)) = held_output.parts() else { return Ok(self.is_back()) };
        if self.is_back() {
            return Ok(true);
        }
        reader.resume(input.ring);
        writer.resume(output.ring);
        let bell = Bell::new(kernel, self);
        // The peer has offered the rings and then stayed on TCP, so that nothing went through them; or it is gone,
        // and everything that it wrote was read.
        let is_vain = !output.begun && reader.begins_at().is_none() && reader.left_after().is_some();
        if is_vain || self.is_peer_gone() && input.error == 0 && reader.readable() == Ok(0) {
            input.leaving = Leaving::Left;
            self.note_left(kernel, INPUT_LEFT);
            self.note_output_left(kernel, output);
            return Ok(true);
        }
        if input.leaving == Leaving::No
            && output.leaving == Leaving::No
            && self.may_leave(input, reader, output)
        {
            reader.give_back(&bell);
            writer.wish();
            (input.leaving, output.leaving) = (Leaving::Wished, Leaving::Wished);
            self.words().back.fetch_or(LEAVING, Ordering::AcqRel);
        }
        if input.leaving != Leaving::No {
            self.grant(kernel, input, reader, output, writer)?;
            self.send_again(kernel, output, writer);
            self.look_whether_left(kernel, input, reader)?;
            if input.leaving == Leaving::Left && output.leaving == Leaving::Wished {
                writer.leave(self.words().rung.load(Ordering::Relaxed));
                self.note_output_left(kernel, output);
            }
            // A peer that sleeps has to look. Once this side has left its ring, it rings no more.
            bell.notify();
        }
        (input.ring, output.ring) = (reader.state(), writer.state());
        Ok(self.is_back())
    }

    /// Takes the wish to leave back. Returns whether the rings are used on: not if the peer has granted it.
    pub(crate) fn remain(&self) -> bool {
        let (Ok(mut held_input), Ok(mut held_output)) = (self.lock_input(), self.lock_output()) else {
            return false;
        };
        let (input, Some(_)) = held_input.parts() else { return false };
        let (output, Some(writer)) = held_output.parts() else { return false };
        if (input.leaving, output.leaving) != (Leaving::Wished, Leaving::Wished) || !writer.withdraw() {
            return input.leaving == Leaving::No;
        }
        (input.leaving, output.leaving) = (Leaving::No, Leaving::No);
        self.words().back.store(0, Ordering::Release);
        self.wake_followers();
        true
    }

    /// Whether this side is where it can leave: everything goes through the rings, and nobody is in a call of
    /// the kernel.
    fn may_leave(&self, input: &Input, reader: &Reader, output: &Output) -> bool {
        let has_begun = output.begun && reader.begins_at().is_some_and(|begins| input.taken >= begins);
        has_begun && input.inside == 0 && output.inside == 0 && !self.is_peer_gone()
    }

    /// Looks whether the peer wishes to leave the rings, or has left, and does this side's part. Returns how
    /// far the input is.
    pub(super) fn follow_peer(
        &self,
        kernel: &impl Kernel,
        input: &mut Input,
        reader: &mut Reader,
    ) -> Result<Leaving, Errno> {
        if input.leaving == Leaving::No && reader.has_wish() {
            let mut held = self.lock_output()?;
            if let (output, Some(writer)) = held.parts() {
                writer.resume(output.ring);
                self.grant(kernel, input, reader, output, writer)?;
                output.ring = writer.state();
            }
        }
        if input.leaving == Leaving::Granted {
            self.has_to_resend(kernel);
            self.look_whether_left(kernel, input, reader)?;
        }
        Ok(input.leaving)
    }

    /// [`Stream::follow_peer`] for a call that receives nothing: bells stay for whoever sleeps.
    pub(super) fn grant_wish(&self, kernel: &impl Kernel) -> Result<(), Errno> {
        let mut held = self.lock_input()?;
        if let (input, Some(reader)) = held.parts() {
            reader.resume(input.ring);
            self.follow_peer(kernel, input, reader)?;
            input.ring = reader.state();
        }
        Ok(())
    }

    /// Grants the peer's wish, if there is one, and it can be.
    fn grant(
        &self,
        kernel: &impl Kernel,
        input: &mut Input,
        reader: &mut Reader,
        output: &mut Output,
        writer: &mut Writer,
    ) -> Result<(), Errno> {
        let is_free = matches!(output.leaving, Leaving::No | Leaving::Wished);
        if !reader.has_wish() || !is_free || !self.may_leave(input, reader, output) {
            return Ok(());
        }
        let (read, written) = writer.unread().map_err(|error| self.violated(error))?;
        // Of two wishes one is granted.
        if written - read > RESENT || output.leaving == Leaving::Wished && !writer.withdraw() {
            return Ok(());
        }
        (input.leaving, output.leaving) = (Leaving::No, Leaving::No);
        if !reader.grant() {
            self.words().back.store(0, Ordering::Release);
            return Ok(());
        }
        // The peer may have taken its wish back, read, and wished again in between. Now it is frozen.
        let (read, _) = writer.unread().map_err(|error| self.violated(error))?;
        // No bell follows: those are rung under the locks that are held here.
        let words = self.words();
        words.begun.store(0, Ordering::Relaxed);
        writer.leave(words.rung.load(Ordering::Relaxed));
        (output.begun, output.leaving, output.resent) = (false, Leaving::Granted, read);
        (input.leaving, input.since) = (Leaving::Granted, seconds());
        words.back.fetch_or(LEAVING, Ordering::AcqRel);
        self.send_again(kernel, output, writer);
        self.wake_followers();
        Ok(())
    }

    /// Looks whether the peer has left its ring. A side that wished it has nothing more to read from there.
    fn look_whether_left(
        &self,
        kernel: &impl Kernel,
        input: &mut Input,
        reader: &mut Reader,
    ) -> Result<(), Errno> {
        let is_read = |reader: &mut Reader| input.leaving == Leaving::Wished || reader.readable() == Ok(0);
        if !matches!(input.leaving, Leaving::Wished | Leaving::Granted) || !is_read(reader) {
            return Ok(());
        }
        let Some(last) = reader.left_after() else {
            if input.leaving == Leaving::Granted && kernel.has_ended() && reader.left_after().is_none() {
                // A peer that died on the way sends nothing but bells.
                input.leaving = Leaving::No;
            } else if input.leaving == Leaving::Granted
                && seconds().saturating_sub(input.since) > PATIENCE.as_secs()
            {
                return Err(self.fail(Errno::CONNRESET));
            }
            return Ok(());
        };
        // Also what it wrote just before.
        if !is_read(reader) {
            return Ok(());
        }
        match take_last_bells(kernel, &self.words().taken_bells, last) {
            Ok(true) => {
                input.leaving = Leaving::Left;
                self.note_left(kernel, INPUT_LEFT);
                Ok(())
            }
            Ok(false) => Ok(()),
            Err(Errno::PROTO) => Err(self.fail(Errno::PROTO)),
            Err(error) => Err(error),
        }
    }

    /// Sends again what is still to be. Returns how far the output is.
    pub(super) fn resend(&self, kernel: &impl Kernel, held: &mut Held<'_, Output, Writer>) -> Leaving {
        let (output, writer) = held.parts();
        if output.leaving == Leaving::Granted
            && let Some(writer) = writer
        {
            writer.resume(output.ring);
            self.send_again(kernel, output, writer);
        }
        output.leaving
    }

    /// Sends again what is still to be. Returns whether something is left.
    pub(super) fn has_to_resend(&self, kernel: &impl Kernel) -> bool {
        !self.is_back()
            && self.lock_output().is_ok_and(|mut held| self.resend(kernel, &mut held) == Leaving::Granted)
    }

    fn send_again(&self, kernel: &impl Kernel, output: &mut Output, writer: &mut Writer) {
        let mut piece = [0; 4096];
        while output.leaving == Leaving::Granted {
            let length = writer.copy_written(output.resent, &mut piece);
            match kernel.send(&piece[..length]) {
                _ if length == 0 => self.note_output_left(kernel, output),
                Ok(sent) => output.resent += sent as u64,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The connection is gone, as the kernel will say.
                Err(_) => self.note_output_left(kernel, output),
            }
        }
    }

    fn note_output_left(&self, kernel: &impl Kernel, output: &mut Output) {
        (output.begun, output.leaving) = (false, Leaving::Left);
        self.words().begun.store(0, Ordering::Relaxed);
        if output.ended {
            kernel.end_output();
        }
        self.note_left(kernel, OUTPUT_LEFT);
    }

    fn note_left(&self, kernel: &impl Kernel, direction: u32) {
        self.words().back.fetch_or(LEAVING | direction, Ordering::AcqRel);
        self.wake_followers();
        if self.is_back() {
            self.note_back();
            if let Some(asked) = self.known_delays() {
                // It is not the worse for it if that fails.
                let _ = kernel.delay(asked);
            }
            report(kernel, "back on TCP");
        }
    }
}

/// Seconds of a clock that goes on.
pub(super) fn seconds() -> u64 {
    clock_gettime(ClockId::Monotonic).tv_sec.unsigned_abs()
}
