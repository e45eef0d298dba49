//! Sending: to the kernel, and from where the ring begins, to the ring.

use std::io::IoSlice;
use std::sync::atomic::Ordering;

use rstream_ring::{Error, Notify as _, Writer, ask};
use rustix::io::Errno;

use super::leave::seconds;
use super::news::is_break;
use super::{Answer, Role, Stream, Way};
use crate::bell::Bell;
use crate::delays::Delays;
use crate::kernel::Kernel;
use crate::shared::{Held, Leaving, Output};

/// Bytes of a ring that are in use at first: what fits into the caches of several connections.
pub(super) const WINDOW: usize = 16 << 10;
/// After so many calls that send, one looks whether the peer's process is gone.
const LOOK: u32 = 64;

impl Stream {
    /// Sends from `slices` without waiting.
    ///
    /// # Errors
    /// What `send` would say.
    pub fn send(&self, kernel: &impl Kernel, slices: &[IoSlice<'_>]) -> Result<Answer, Errno> {
        self.meet(kernel);
        self.look_for_peer_output();
        // A peer that died takes nothing from its ring, and says nothing.
        if self.has_rings()
            && self.sends.fetch_add(1, Ordering::Relaxed) % LOOK == LOOK - 1
            && kernel.has_ended()
        {
            self.settle(kernel)?;
        }
        let mut held = self.lock_output()?;
        if held.parts().1.is_some_and(|writer| writer.has_wish()) {
            drop(held);
            self.grant_wish(kernel)?;
            held = self.lock_output()?;
        }
        match self.resend(kernel, &mut held) {
            Leaving::No => {}
            Leaving::Left if held.parts().0.ended => {
                drop(held);
                return Err(self.refusal(kernel));
            }
            Leaving::Left => return Ok(Answer::Kernel),
            _ => return Ok(Answer::Wait),
        }
        if !self.begin_held(kernel, &mut held) {
            held.parts().0.inside += 1;
            return Ok(Answer::Kernel);
        }
        let (state, Some(writer)) = held.parts() else { return Ok(Answer::Kernel) };
        if state.ended {
            drop(held);
            return Err(self.refusal(kernel));
        }
        if self.is_peer_gone() {
            state.inside += 1;
            drop(held);
            return match self.take_error() {
                None => Ok(Answer::Kernel),
                Some(error) => {
                    self.sent(kernel, 0)?;
                    Err(error)
                }
            };
        }
        writer.resume(state.ring);
        let answer = self.send_to(kernel, state, writer, slices);
        state.ring = writer.state();
        drop(held);
        // A full ring may be that of a peer that is gone.
        if answer == Ok(Answer::Wait) && self.learn_of_death(kernel)? {
            return self.send(kernel, slices);
        }
        answer
    }

    /// What a call says that sends after this side has ended its output: a break that no call has told comes first,
    /// and is told once.
    fn refusal(&self, kernel: &impl Kernel) -> Errno {
        let told = || kernel.has_ended().then(|| kernel.send(&[]).err())?;
        let error = self.take_error().or_else(told).filter(|&error| is_break(error)).unwrap_or(Errno::PIPE);
        if error != Errno::PIPE {
            self.note_told(error);
        }
        error
    }

    /// To be called when there is no room. Returns whether the peer is gone, and takes nothing any more.
    ///
    /// What the kernel tells is the death of a peer that uses its ring. A peer that does not may have ended
    /// its output, and read on; after an end of the input that this side has made, the kernel tells nothing; nor
    /// does it while bytes that came before those of the ring are unread, because the end is behind those for
    /// which there was no room. Then a bell in each second finds out: the kernel of a peer that is gone answers by
    /// a reset.
    pub(super) fn learn_of_death(&self, kernel: &impl Kernel) -> Result<bool, Errno> {
        if kernel.has_ended() {
            self.settle(kernel)?;
        } else if self.can_be_rung() {
            return Ok(false);
        }
        if !self.is_peer_gone() && !self.is_leaving() {
            let words = self.words();
            let now = seconds();
            if words.asked.swap(now, Ordering::Relaxed) != now {
                Bell::new(kernel, self).notify();
            }
            if kernel.has_failed() {
                words.peer_gone.store(1, Ordering::Release);
            }
        }
        Ok(self.is_peer_gone())
    }

    pub(super) fn is_peer_gone(&self) -> bool {
        self.words().peer_gone.load(Ordering::Acquire) != 0
    }

    /// Takes an error that the kernel has reported, and no call of the application yet: `SO_ERROR`. Calls that
    /// receive find the end afterwards.
    pub fn take_error(&self) -> Option<Errno> {
        let mut held = self.lock_input().ok()?;
        let (state, _) = held.parts();
        let error = std::mem::take(&mut state.error);
        if error == 0 {
            return None;
        }
        state.finished = true;
        Some(Errno::from_raw_os_error(error))
    }

    /// That a call of the kernel has sent so much, for which [`Stream::send`] asked.
    ///
    /// # Errors
    /// As [`Stream::send`].
    pub fn sent(&self, kernel: &impl Kernel, length: usize) -> Result<(), Errno> {
        self.count(Way::Out, length);
        {
            let mut held = self.lock_output()?;
            let (state, _) = held.parts();
            self.note_sent(kernel, length);
            if state.leaving == Leaving::Left {
                return Ok(());
            }
            state.inside -= 1;
            state.sent += length as u64;
        }
        self.meet(kernel);
        Ok(())
    }

    pub(super) fn send_to(
        &self,
        kernel: &impl Kernel,
        state: &mut Output,
        writer: &mut Writer,
        slices: &[IoSlice<'_>],
    ) -> Result<Answer, Errno> {
        let bell = Bell::new(kernel, self);
        // A peer that has closed takes nothing any more. What a call says then, the kernel knows best.
        let may_be_closed = self.words().peer_ended.load(Ordering::Acquire) != 0;
        if may_be_closed && writer.is_closed().map_err(|error| self.violated(error))? {
            return Ok(inside(state));
        }
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if !writer.fits(length) {
            fit_window(writer, length, self.window);
            self.statistics.record().set_window(writer.window());
        }
        loop {
            match writer.write(slices, &bell) {
                Ok(0) if length > 0 => {}
                Ok(sent) => {
                    self.statistics.record().sent_by_ring(sent);
                    return Ok(Answer::Done(sent));
                }
                Err(Error::Closed) => return Ok(inside(state)),
                Err(error) => return Err(self.violated(error)),
            }
            let wanted = length.min(self.room());
            if !ask(&bell, None, Some((writer, wanted))) {
                return Ok(Answer::Wait);
            }
        }
    }

    /// Whether output goes to the ring: from now on, if that is possible.
    pub(super) fn begin(&self, kernel: &impl Kernel) -> Result<bool, Errno> {
        if self.words().begun.load(Ordering::Relaxed) != 0 {
            return Ok(true);
        }
        Ok(self.begin_held(kernel, &mut self.lock_output()?))
    }

    pub(super) fn begin_held(&self, kernel: &impl Kernel, held: &mut Held<'_, Output, Writer>) -> bool {
        let (state, Some(writer)) = held.parts() else { return false };
        let is_ready = state.leaving == Leaving::No && self.peer_is_there();
        if state.begun || state.ended || state.inside > 0 || !is_ready {
            return state.begun;
        }
        // Somebody else may have used the socket, unseen.
        if kernel.counts().is_none_or(|counts| counts.sent != state.sent) {
            return false;
        }
        writer.resume(state.ring);
        if writer.set_window(WINDOW) != Ok(true) {
            return false;
        }
        let Ok(asked) = kernel.delay(Delays::NONE) else { return false };
        self.set_delays(asked);
        writer.begin(state.sent);
        self.statistics.record().set_window(WINDOW);
        (state.begun, state.ring) = (true, writer.state());
        self.words().begun.store(1, Ordering::Relaxed);
        true
    }

    /// Whether the peer counts on the rings. The side that was accepted knows that once the other has mapped
    /// the segment; the other once this side has begun: a segment may have been offered by a process that is
    /// gone, while its connection goes on.
    pub(super) fn peer_is_there(&self) -> bool {
        self.role == Role::Passive || self.words().peer_begun.load(Ordering::Acquire) != 0
    }

    /// To be called without a lock, before [`Stream::peer_is_there`].
    pub(super) fn look_for_peer_output(&self) {
        if self.has_rings()
            && !self.peer_is_there()
            && let Ok(mut held) = self.lock_input()
            && let (_, Some(reader)) = held.parts()
            && reader.begins_at().is_some()
        {
            self.words().peer_begun.store(1, Ordering::Release);
        }
    }
}

/// Before a call that would begin anew at the start of the window: that keeps the window small if everything
/// was read, which is what a dialogue does. Else the window grows, so that a sender is held no sooner than on
/// TCP.
fn fit_window(writer: &mut Writer, length: usize, most: usize) {
    let mut window = WINDOW;
    while window < most && (window < length || writer.set_window(window) != Ok(true) || !writer.fits(length))
    {
        window *= 2;
    }
    if window == most {
        let _ = writer.set_window(most);
    }
}

fn inside(state: &mut Output) -> Answer {
    state.inside += 1;
    Answer::Kernel
}
