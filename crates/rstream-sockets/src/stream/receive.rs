//! Receiving: from the kernel up to where the ring begins, then from the ring.

use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

use rstream_ring::{Error, Notify, Reader, ask};
use rustix::io::Errno;

use super::news::last_of;
use super::spinning::spins;
use super::{Answer, Stream, Then, Way};
use crate::bell::{Bell, are_bells};
use crate::kernel::Kernel;
use crate::lock::{is_alive, thread};
use crate::shared::{Held, Input, Leaving};

impl Stream {
    /// Receives to `buffers` without waiting, or looks at what is there without taking it.
    ///
    /// # Errors
    /// What `recv` would say.
    pub fn receive(
        &self,
        kernel: &impl Kernel,
        buffers: &mut [IoSliceMut<'_>],
        peek: bool,
        then: Then,
    ) -> Result<Answer, Errno> {
        self.meet(kernel);
        if self.is_leaving() {
            self.has_to_resend(kernel);
        }
        let mut held = self.lock_input()?;
        if held.parts().0.leaving == Leaving::Left {
            return self.receive_after(kernel, buffers, peek);
        }
        let (state, Some(_)) = held.parts() else {
            let (state, _) = held.parts();
            state.inside += 1;
            state.inside_thread = thread();
            return Ok(Answer::Kernel);
        };
        if state.joined && buffers.iter().all(|buffer| buffer.is_empty()) {
            return Ok(Answer::Done(0));
        }
        self.receive_held(kernel, &mut held, buffers, peek, then)
    }

    /// What a call of the kernel has received, for which [`Stream::receive`] asked: `length` bytes in
    /// `buffers`, or an error. Returns how many of the bytes are the stream's; the others are bells. `None`:
    /// nothing was, call [`Stream::receive`] again.
    ///
    /// # Errors
    /// As [`Stream::receive`].
    pub fn received(
        &self,
        kernel: &impl Kernel,
        buffers: &[IoSliceMut<'_>],
        outcome: Result<usize, Errno>,
        peek: bool,
    ) -> Result<Option<usize>, Errno> {
        self.count(Way::In, outcome.unwrap_or(0));
        self.meet_before_counting(kernel);
        let mut held = self.lock_input()?;
        let (state, mut reader) = held.parts();
        if state.leaving == Leaving::Left {
            self.note_received(kernel, outcome.ok().filter(|_| !peek).unwrap_or(0));
            return outcome.map(Some);
        }
        state.inside = state.inside.saturating_sub(1);
        self.hand_lead_on(state);
        let is_asked = buffers.iter().any(|buffer| !buffer.is_empty());
        if is_asked {
            self.note_last(state, outcome);
        }
        let length = outcome?;
        let own = reader.as_ref().map_or(length, |reader| own_part(reader, state.taken, length));
        if !are_bells_behind(buffers, own, length) {
            // A thread may still receive after another one has closed. A peer that goes on by TCP then sends what
            // nobody reads.
            let is_closed = state.joined && state.ring.is_closed();
            return Err(self.fail(if is_closed { Errno::CONNRESET } else { Errno::PROTO }));
        }
        if !peek {
            self.take_note(state, own, length);
            self.note_received(kernel, own);
            if let Some(reader) = reader.as_mut() {
                reader.resume(state.ring);
                self.note_turn(kernel, state, reader);
                state.ring = reader.state();
            }
        }
        let is_end = length == 0 && is_asked;
        Ok((own > 0 || length == 0 && !(is_end && reader.is_some())).then_some(own))
    }

    /// [`Stream::receive`] when the kernel has the rest of the input. A caller that sleeps there sends
    /// nothing again.
    fn receive_after(
        &self,
        kernel: &impl Kernel,
        buffers: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> Result<Answer, Errno> {
        if !self.has_to_resend(kernel) {
            return Ok(Answer::Kernel);
        }
        match kernel.receive(buffers, peek) {
            Ok(length) => {
                self.note_received(kernel, if peek { 0 } else { length });
                Ok(Answer::Done(length))
            }
            Err(Errno::AGAIN) => Ok(Answer::Wait),
            Err(error) => Err(error),
        }
    }

    pub(super) fn receive_held(
        &self,
        kernel: &impl Kernel,
        held: &mut Held<'_, Input, Reader>,
        buffers: &mut [IoSliceMut<'_>],
        peek: bool,
        then: Then,
    ) -> Result<Answer, Errno> {
        if let (_, Some(reader)) = held.parts()
            && reader.begins_at().is_some()
        {
            self.words().peer_begun.store(1, Ordering::Release);
        }
        self.begin(kernel)?;
        let (state, Some(reader)) = held.parts() else { return Ok(Answer::Kernel) };
        if state.leaving == Leaving::Wished {
            return Ok(Answer::Wait);
        }
        reader.resume(state.ring);
        let bell = Bell::new(kernel, self);
        let answer = self.receive_from(kernel, &bell, state, reader, buffers, (peek, then));
        state.ring = reader.state();
        answer
    }

    pub(super) fn receive_from<K: Kernel>(
        &self,
        kernel: &K,
        bell: &Bell<'_, K>,
        state: &mut Input,
        reader: &mut Reader,
        buffers: &mut [IoSliceMut<'_>],
        (peek, then): (bool, Then),
    ) -> Result<Answer, Errno> {
        loop {
            let begins = reader.begins_at();
            if begins.is_none_or(|begins| state.taken < begins) {
                match self.receive_before(kernel, state, reader, begins, buffers, peek) {
                    Ok(Some(length)) => {
                        self.note_turn(kernel, state, reader);
                        let more = self.receive_behind(bell, state, reader, buffers, length, peek)?;
                        return Ok(Answer::Done(length + more));
                    }
                    Ok(None) => continue,
                    Err(Errno::AGAIN) if reader.begins_at() != begins => continue,
                    // The rest of them comes by the kernel, which wakes whoever sleeps.
                    Err(Errno::AGAIN) if begins.is_some() => return Ok(Answer::Wait),
                    Err(Errno::AGAIN) => {}
                    Err(error) => return Err(error),
                }
            } else {
                let read = read_ring(bell, reader, buffers, peek);
                if let Some(length) = read.map_err(|error| self.violated(error))? {
                    if length == 0 && reader.has_ended() {
                        self.words().peer_ended.store(1, Ordering::Release);
                    }
                    state.empty = 0;
                    if !peek {
                        self.statistics.record().received_by_ring(length);
                    }
                    self.take_bell_of_bytes(kernel, state, reader);
                    return Ok(Answer::Done(length));
                }
                match self.follow_peer(kernel, state, reader)? {
                    Leaving::No => {}
                    Leaving::Left if !self.has_to_resend(kernel) => return Ok(Answer::Kernel),
                    _ => return Ok(Answer::Wait),
                }
                if state.error != 0 {
                    state.finished = true;
                    return Err(Errno::from_raw_os_error(std::mem::take(&mut state.error)));
                }
                if state.finished {
                    return Ok(Answer::Done(0));
                }
                let may_spin = then == Then::Return && !self.is_led();
                if then == Then::Look || may_spin && spins(state) {
                    return Ok(Answer::Wait);
                }
                let bells = self.words().taken_bells.load(Ordering::Relaxed);
                // What the kernel says counts once everything that the peer wrote before was read.
                if self.take_news(kernel, state, reader) {
                    continue;
                }
                if may_spin {
                    self.note_nothing(
                        state,
                        reader,
                        self.words().taken_bells.load(Ordering::Relaxed) != bells,
                    );
                }
            }
            if then == Then::Sleep {
                (state.empty, state.spins) = (0, false);
            }
            if state.spins && !self.is_led() {
                return Ok(Answer::Wait);
            }
            state.armed = true;
            if !ask(bell, Some(reader), None) {
                return Ok(Answer::Wait);
            }
            // A peer begins before it writes to its ring.
            let is_written = reader.readable() != Ok(0) || reader.has_ended();
            if is_written && reader.begins_at().is_none() {
                return Err(self.fail(Errno::CONNRESET));
            }
        }
    }

    /// Receives bytes that come before those of the ring. `None`: none are left, look again.
    pub(super) fn receive_before(
        &self,
        kernel: &impl Kernel,
        state: &mut Input,
        reader: &Reader,
        begins: Option<u64>,
        buffers: &mut [IoSliceMut<'_>],
        peek: bool,
    ) -> Result<Option<usize>, Errno> {
        if state.finished {
            return last_of(state);
        }
        // What that call receives comes first.
        if state.inside > 0 {
            if is_alive(state.inside_thread) {
                return Err(Errno::AGAIN);
            }
            state.inside = 0;
        }
        let most = begins.map_or(u64::MAX, |begins| begins.saturating_sub(state.taken));
        let mut places = first_bytes(buffers, most);
        let received = kernel.receive(&mut places, peek);
        self.note_last(state, received);
        let length = received?;
        if length == 0 {
            return last_of(state);
        }
        let own = own_part(reader, state.taken, length);
        if !are_bells_behind(&places, own, length) {
            return Err(self.fail(Errno::PROTO));
        }
        if !peek {
            self.take_note(state, own, length);
            self.note_received(kernel, own);
        }
        Ok((own > 0).then_some(own))
    }

    /// Receives what fits behind the last bytes that the kernel had, of which the call got `length`: a call
    /// that gives less than it could would say that nothing is left.
    fn receive_behind<K: Kernel>(
        &self,
        bell: &Bell<'_, K>,
        state: &Input,
        reader: &mut Reader,
        buffers: &mut [IoSliceMut<'_>],
        length: usize,
        peek: bool,
    ) -> Result<usize, Errno> {
        let received = state.taken + if peek { length as u64 } else { 0 };
        if length == 0 || reader.begins_at() != Some(received) {
            return Ok(0);
        }
        let read = read_ring(bell, reader, &mut bytes_behind(buffers, length), peek);
        let more = read.map_err(|error| self.violated(error))?.unwrap_or(0);
        if !peek {
            self.statistics.record().received_by_ring(more);
        }
        Ok(more)
    }

    /// Takes note of bytes that the kernel gave: `own` of the stream, and bells behind them.
    fn take_note(&self, state: &mut Input, own: usize, length: usize) {
        state.taken += own as u64;
        self.words().taken_bells.fetch_add((length - own) as u64, Ordering::Relaxed);
    }

    /// Bytes that a call which receives would give, if the kernel does not know.
    #[must_use]
    pub fn unread(&self, kernel: &impl Kernel) -> Option<usize> {
        let _ = self.look(kernel, false, false);
        let mut held = self.lock_input().ok()?;
        let (state, reader) = held.parts();
        if state.leaving == Leaving::Left {
            return None;
        }
        let reader = reader?;
        let before = reader.begins_at()?.saturating_sub(state.taken);
        reader.resume(state.ring);
        let bytes = reader.readable();
        state.ring = reader.state();
        Some(bytes.ok()?.saturating_add(usize::try_from(before).ok()?))
    }
}

/// Reads from the ring, or looks at what is there.
fn read_ring(
    bell: &impl Notify,
    reader: &mut Reader,
    buffers: &mut [IoSliceMut<'_>],
    peek: bool,
) -> Result<Option<usize>, Error> {
    if peek {
        return reader.peek(buffers);
    }
    let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
    // The ring gives what it knows of. The kernel gives all that was written before the call.
    if (1..wanted).contains(&reader.known()) {
        let _ = reader.readable();
    }
    reader.read(buffers, bell)
}

/// How many of `length` bytes that the kernel gave, after `taken`, come before those of the ring.
fn own_part(reader: &Reader, taken: u64, length: usize) -> usize {
    let before = reader.begins_at().map_or(u64::MAX, |begins| begins.saturating_sub(taken));
    usize::try_from(before).map_or(length, |before| before.min(length))
}

/// So many of the first bytes of the buffers.
fn first_bytes<'a>(buffers: &'a mut [IoSliceMut<'_>], most: u64) -> Vec<IoSliceMut<'a>> {
    let mut left = usize::try_from(most).unwrap_or(usize::MAX);
    let cut = |buffer: &'a mut IoSliceMut<'_>| {
        let length = buffer.len().min(left);
        left -= length;
        IoSliceMut::new(&mut buffer[..length])
    };
    buffers.iter_mut().map(cut).filter(|part| !part.is_empty()).collect()
}

/// The buffers without so many of their first bytes.
fn bytes_behind<'a>(buffers: &'a mut [IoSliceMut<'_>], count: usize) -> Vec<IoSliceMut<'a>> {
    let mut skip = count;
    let cut = |buffer: &'a mut IoSliceMut<'_>| {
        let skipped = buffer.len().min(skip);
        skip -= skipped;
        IoSliceMut::new(&mut buffer[skipped..])
    };
    buffers.iter_mut().map(cut).filter(|part| !part.is_empty()).collect()
}

/// Whether all bytes from `own` to `length` are bells.
fn are_bells_behind(buffers: &[IoSliceMut<'_>], own: usize, length: usize) -> bool {
    let (mut skip, mut left) = (own, length - own);
    buffers.iter().all(|buffer| {
        let rest = &buffer[skip.min(buffer.len())..];
        skip -= skip.min(buffer.len());
        let part = &rest[..left.min(rest.len())];
        left -= part.len();
        are_bells(part)
    })
}
