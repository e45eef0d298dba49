//! What the kernel says beside the bytes of the stream: bells, the end, and errors.

use std::sync::atomic::Ordering;

use rstream_ring::Reader;
use rustix::io::Errno;

use super::Stream;
use super::wait::System;
use crate::bell::take_bells;
use crate::kernel::Kernel;
use crate::shared::{Input, Leaving};
use crate::statistics::Counter;

impl Stream {
    /// To be called when the kernel has given bytes. After the last of them, an end that the kernel told before,
    /// once, counts.
    pub(super) fn note_turn(&self, kernel: &impl Kernel, state: &mut Input, reader: &mut Reader) {
        if reader.begins_at() == Some(state.taken) && kernel.has_ended() {
            self.take_news(kernel, state, reader);
        }
    }

    /// Takes note of what a call of the kernel said that asked for bytes, if that was the end or a break.
    pub(super) fn note_last(&self, state: &mut Input, outcome: Result<usize, Errno>) {
        match outcome {
            Ok(0) => self.words().peer_ended.store(1, Ordering::Release),
            Err(error) if is_break(error) => self.note_told(error),
            _ => return,
        }
        state.finished = true;
    }

    /// The kernel has told the application this error by itself, and says it once.
    pub fn note_told(&self, error: Errno) {
        if is_break(error) {
            self.words().peer_gone.store(1, Ordering::Release);
        }
    }

    /// A call has found this error after it had moved a part of its bytes, of which alone it tells. The next call
    /// reports the error.
    pub fn keep_error(&self, error: Errno) {
        // The kernel says the others again.
        if matches!(error, Errno::CONNRESET | Errno::TIMEDOUT)
            && let Ok(mut held) = self.lock_input()
        {
            held.parts().0.error = error.raw_os_error();
            self.note_told(error);
        }
    }

    /// Takes the bell that came with bytes which were found without it, if one was asked for. A process that
    /// died with it unread would reset the connection.
    pub(super) fn take_bell_of_bytes(&self, kernel: &impl Kernel, state: &mut Input, reader: &mut Reader) {
        if state.armed {
            self.take_news(kernel, state, reader);
        }
    }

    /// Takes the bells that are there, and notes an end or an error. Returns whether there is one.
    pub(super) fn take_news(&self, kernel: &impl Kernel, state: &mut Input, reader: &mut Reader) -> bool {
        if state.leaving != Leaving::No {
            return false;
        }
        state.armed = false;
        let told = self.take_bells(kernel);
        // After an end of this side's own making the kernel says nothing of the peer.
        if told == Ok(false) || state.finished {
            return false;
        }
        self.note_end(kernel, state, reader, told.map(|_| ()));
        true
    }

    /// Takes the bells that are there. Returns whether the stream has ended.
    pub(super) fn take_bells(&self, kernel: &impl Kernel) -> Result<bool, Errno> {
        let words = self.words();
        match words.sleepers.take(&System, || take_bells(kernel, &words.taken_bells)) {
            Ok(None) => Ok(false),
            Ok(Some(bells)) => {
                self.statistics.record().add(Counter::BellsTaken);
                Ok(!bells)
            }
            Err(Errno::PROTO) => Err(self.fail(Errno::PROTO)),
            Err(error) => Err(error),
        }
    }

    /// The kernel has told this error to a thread that slept. A call reports it when everything that came
    /// before was received.
    pub fn note_error(&self, kernel: &impl Kernel, error: Errno) {
        if let Ok(mut held) = self.lock_input()
            && let (state, Some(reader)) = held.parts()
            && state.leaving == Leaving::No
        {
            reader.resume(state.ring);
            self.note_end(kernel, state, reader, Err(error));
            state.ring = reader.state();
        }
    }

    /// The kernel says that the connection has ended, orderly or by an error: nobody has the peer's end any
    /// more. While rings are used, a side that only ends its output says so in its ring.
    ///
    /// Of a peer that died the kernel knows only whether it had taken its bells. Bytes that it had not read
    /// make the difference between an end and a reset.
    fn note_end(
        &self,
        kernel: &impl Kernel,
        state: &mut Input,
        reader: &mut Reader,
        told: Result<(), Errno>,
    ) {
        let _ = reader.readable();
        let outcome = match (told, self.died_with_unread()) {
            (Ok(()) | Err(Errno::CONNRESET), Some(true)) => Err(Errno::CONNRESET),
            (Err(Errno::CONNRESET), Some(false)) => Ok(()),
            _ => told,
        };
        if told.is_ok() && outcome.is_err() {
            kernel.end_output();
        }
        match outcome {
            Ok(()) => state.finished = true,
            Err(error) => state.error = error.raw_os_error(),
        }
        self.words().peer_gone.store(1, Ordering::Release);
    }

    /// Whether the peer, which is gone, had not read all that this side had written. `None`: it has closed
    /// its end of the rings, and what the kernel says holds.
    fn died_with_unread(&self) -> Option<bool> {
        let mut held = self.lock_output().ok()?;
        let (state, writer) = held.parts();
        let writer = writer.filter(|_| state.begun)?;
        writer.resume(state.ring);
        // Nor is it known what it has read of the bytes that came before those of the ring, if there are none here.
        let is_used = writer.unread().is_ok_and(|(_, written)| written > 0);
        (is_used && writer.is_closed() == Ok(false)).then(|| writer.is_unread())
    }
}

/// The end, or an error that was told to another call and is reported instead, once.
pub(super) fn last_of(state: &mut Input) -> Result<Option<usize>, Errno> {
    match std::mem::take(&mut state.error) {
        0 => Ok(Some(0)),
        error => Err(Errno::from_raw_os_error(error)),
    }
}

/// Whether a connection that has this error is over.
pub(super) fn is_break(error: Errno) -> bool {
    matches!(error, Errno::CONNRESET | Errno::PIPE | Errno::TIMEDOUT)
}
