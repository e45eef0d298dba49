//! Joining a peer, sharing with other processes, and the ends.

use std::io::IoSliceMut;
use std::net::Shutdown;
use std::sync::atomic::{AtomicU32, Ordering};

use rstream_ring::{Connected, Reader, ask};
use rustix::io::Errno;

use super::Stream;
use super::wait::System;
use crate::bell::Bell;
use crate::kernel::Kernel;
use crate::lock::is_alive;
use crate::meeting::Meeting;
use crate::shared::{Input, Leaving};

impl Stream {
    /// Whether what was counted is what the kernel has counted, so that the connection can be upgraded.
    pub(crate) fn is_counted(&self, kernel: &impl Kernel) -> bool {
        let (Ok(mut input), Ok(mut output)) = (self.lock_input(), self.lock_output()) else { return false };
        let ((input, _), (output, _)) = (input.parts(), output.parts());
        // A thread that sleeps in a call is no obstacle.
        let counts = kernel.counts();
        output.inside == 0
            && input.inside <= 1
            && counts.is_some_and(|counts| (counts.sent, counts.taken) == (output.sent, input.taken))
    }

    /// Goes on with the rings.
    pub(crate) fn join(&self, kernel: &impl Kernel, connected: Connected) {
        let Connected { output: writer, input: mut reader, .. } = connected;
        let (Ok(mut input), Ok(mut output)) = (self.lock_input(), self.lock_output()) else { return };
        let (state, _) = input.parts();
        if !state.joined {
            // Threads that sleep in a call of the kernel need a bell for the first bytes.
            ask(&Bell::new(kernel, self), Some(&mut reader), None);
            (state.joined, state.ring) = (true, reader.state());
            self.hand_lead_on(state);
        }
        self.input.set_end(reader);
        let (state, _) = output.parts();
        if !state.joined {
            (state.joined, state.ring) = (true, writer.state());
        }
        self.output.set_end(writer);
        self.begin_held(kernel, &mut output);
    }

    /// Another process is about to have it too.
    pub(crate) fn share(&self) {
        self.words().unknown.fetch_add(1, Ordering::AcqRel);
        self.hold();
    }

    /// This process, which was forked, has it too.
    pub(crate) fn hold_too(&self) {
        if self.hold() {
            self.words().unknown.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Notes this process. Returns whether there was a place.
    fn hold(&self) -> bool {
        let (own, words) = (process(), self.words());
        let takes = |holder: &AtomicU32| {
            let known = holder.load(Ordering::Acquire);
            known == own
                || (known == 0 || !is_alive(known))
                    && holder.compare_exchange(known, own, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        let is_there = words.holders.iter().any(|holder| holder.load(Ordering::Acquire) == own);
        is_there || words.holders.iter().any(takes)
    }

    /// Whether another process may have it.
    pub(crate) fn is_shared(&self) -> bool {
        let words = self.words();
        let is_others = |holder: &AtomicU32| {
            let known = holder.load(Ordering::Acquire);
            known != 0 && known != process() && is_alive(known)
        };
        words.unknown.load(Ordering::Acquire) > 0 || words.holders.iter().any(is_others)
    }

    /// Joins if another process that has the connection did, by rings that were offered before the fork.
    fn catch_up(&self, kernel: &impl Kernel) {
        if self.words().begun.load(Ordering::Relaxed) != 0 {
            self.meet(kernel);
        }
    }

    /// Ends the output. Returns whether the peer learns it by the ring: then the kernel's `shutdown` is left
    /// out, so that bells can be rung on. The kernel ends the connection when it is closed.
    ///
    /// # Errors
    /// As [`Stream::send`].
    pub fn end_output(&self, kernel: &impl Kernel) -> Result<bool, Errno> {
        self.catch_up(kernel);
        let mut held = self.lock_output()?;
        let (state, writer) = held.parts();
        if let Some(writer) = writer.filter(|_| state.begun && !state.ended) {
            writer.resume(state.ring);
            writer.end(&Bell::new(kernel, self));
            state.ring = writer.state();
        }
        state.ended = true;
        // What is still to be sent again comes before the end. A peer that has ended its output, or is gone,
        // needs no bells, and the kernel says what is wrong.
        let by_ring = state.leaving == Leaving::Granted || state.begun && !kernel.has_ended();
        drop(held);
        // Those among them that wait for room are told so.
        self.wake_followers();
        Ok(by_ring)
    }

    /// `shutdown`, as far as rings carry the stream. Returns whether the kernel's has to be called as well. If only
    /// the output ends, the peer learns that by the ring, and bells can be rung on.
    ///
    /// # Errors
    /// [`Errno::NOTCONN`] if both sides have ended their output.
    pub fn shut(&self, kernel: &impl Kernel, how: Shutdown) -> Result<bool, Errno> {
        if self.has_no_output_left() == Ok(true) {
            return Err(Errno::NOTCONN);
        }
        if how != Shutdown::Write {
            self.end_input(kernel, how == Shutdown::Both);
        }
        let by_ring = how != Shutdown::Read && self.end_output(kernel) == Ok(true);
        Ok(!by_ring || how != Shutdown::Write)
    }

    /// Whether both sides have ended their output by the rings. TCP has no connection any more then.
    ///
    /// # Errors
    /// As [`Stream::receive`].
    fn has_no_output_left(&self) -> Result<bool, Errno> {
        let has_ended = {
            let mut held = self.lock_output()?;
            let (state, _) = held.parts();
            state.begun && state.ended
        };
        if !has_ended {
            return Ok(false);
        }
        let mut held = self.lock_input()?;
        let (state, Some(reader)) = held.parts() else { return Ok(false) };
        reader.resume(state.ring);
        let _ = reader.readable();
        state.ring = reader.state();
        Ok(reader.knows_end())
    }

    /// To be called before the kernel's `shutdown` of the input. `all`: the output ends too, and what the
    /// peer sends then is refused.
    pub fn end_input(&self, kernel: &impl Kernel, all: bool) {
        self.catch_up(kernel);
        let Ok(_) = self.begin(kernel) else { return };
        let Ok(mut held) = self.lock_input() else { return };
        let (state, Some(reader)) = held.parts() else { return };
        if state.leaving == Leaving::Left {
            return;
        }
        // The kernel will say that the stream has ended: that is not the peer.
        state.finished = true;
        if all {
            reader.resume(state.ring);
            self.close_reader(kernel, reader);
            state.ring = reader.state();
        }
    }

    /// Reads no more. A bell would be answered by a reset from now on, as every byte, unless a thread sleeps in a
    /// call: for that the kernel keeps the socket.
    fn close_reader(&self, kernel: &impl Kernel, reader: &mut Reader) {
        reader.close(&Bell::new(kernel, self));
        self.words().sleepers.silence(&System, reader);
    }

    /// To be called before the last `close` of this process. `reset` says whether the application asks for a reset.
    /// Returns whether the connection has to be reset: for that, or because bytes were left unread, as the
    /// kernel does it for bytes of its own.
    pub fn close(&self, kernel: &impl Kernel, reset: impl FnOnce() -> bool) -> bool {
        self.catch_up(kernel);
        for holder in &self.words().holders {
            // Connections of programs that do not fork have none.
            if holder.load(Ordering::Acquire) != 0 {
                let _ = holder.compare_exchange(process(), 0, Ordering::AcqRel, Ordering::Acquire);
            }
        }
        let Ok(_) = self.begin(kernel) else { return false };
        if !self.has_rings() {
            return self.is_back() && reset();
        }
        let reset = reset();
        let is_last = !self.is_shared();
        let reset = {
            let Ok(mut held) = self.lock_input() else { return false };
            let (state, Some(reader)) = held.parts() else { return false };
            reader.resume(state.ring);
            // The last bells of a peer that has gone back to TCP may be here still. Then the kernel has all the rest.
            if is_last {
                let _ = self.follow_peer(kernel, state, reader);
            }
            if self.is_back() {
                return reset;
            }
            // A look takes an error of the kernel, which is another process's if that goes on.
            let has_unread = is_last
                && state.leaving != Leaving::Left
                && (reader.readable().is_ok_and(|bytes| bytes > 0)
                    || leaves_in_kernel(kernel, state, reader));
            state.ring = reader.state();
            is_last && (reset || has_unread || self.has_to_resend(kernel))
        };
        if is_last
            && !self.is_led()
            && let Ok(mut held) = self.lock_output()
            && let (_, Some(writer)) = held.parts()
        {
            writer.disarm();
        }
        // A reset is told by the kernel: an end that was told by the ring would look like an orderly one. The
        // kernel's end comes before a reset for a bell that is still under way.
        if is_last && !reset && self.end_output(kernel) == Ok(false) {
            kernel.end_output();
        }
        let Ok(mut held) = self.lock_input() else { return reset };
        let (state, Some(reader)) = held.parts() else { return reset };
        reader.resume(state.ring);
        // Bells that nobody took would look like unread bytes. As long as another process has the connection, what
        // the kernel has is that one's.
        if is_last
            && state.leaving == Leaving::No
            && reader.begins_at().is_some_and(|begins| state.taken >= begins)
        {
            let _ = self.take_bells(kernel);
        }
        if is_last {
            self.close_reader(kernel, reader);
        }
        state.ring = reader.state();
        reset
    }

    /// It stays on TCP, for this reason. Returns whether it does: not if it is upgraded already.
    pub fn stay(&self, kernel: &impl Kernel, why: &'static str) -> bool {
        self.catch_up(kernel);
        if self.has_rings() {
            return false;
        }
        if let Ok(mut meeting) = self.meeting.try_lock() {
            // A peer that has mapped a segment which was offered does not begin before this side does, and
            // learns here that it never does.
            if let Meeting::Offered(connected) = &mut *meeting {
                connected.output.leave(0);
            }
            *meeting = Meeting::Over(why);
            self.note_meeting(&meeting);
            self.due.store(u32::MAX, Ordering::Relaxed);
        }
        !self.has_rings()
    }
}

/// Whether there are bytes of the stream that come before those of the ring, and were not received.
fn leaves_in_kernel(kernel: &impl Kernel, state: &Input, reader: &Reader) -> bool {
    match reader.begins_at() {
        Some(begins) => state.taken < begins,
        None => kernel.receive(&mut [IoSliceMut::new(&mut [0])], true).is_ok_and(|bytes| bytes > 0),
    }
}

fn process() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}
