//! The calls of a stream's user over rings in shared memory.
//!
//! A direction moves to its ring once both sides have mapped it. The ring says how many bytes went through
//! the queue pair, so the reader takes these first.
//!
//! The ends of the stream go through the queue pair. A side writes to its ring before it ends its output, so
//! a reader that learns of the end has to look at the ring once more.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;

use rdma_verbs::{Connections, Device, Interest, WaitSet};
use rstream_ring::{Connected, Notifier, Reader, Writer, arm};

use super::drive::Breach;
use super::{Connection, Sharing};
use crate::error::{Error, Result};
use crate::gather::Gather;

/// Calls that find nothing to do in a ring before one looks at the queue pair: the connection may have ended.
const IDLE_CALLS: u8 = 200;

/// The rings of a connection, and how far it uses them.
pub(super) struct Rings {
    output: Writer,
    input: Reader,
    notifier: Notifier,
    /// Whether output goes to the ring.
    pub(super) sends: bool,
    /// Whether the device may still have output that went through the queue pair. Calls drive it meanwhile.
    drains: bool,
    /// Whether the peer's ring has no bytes any more that went through the queue pair.
    settled: bool,
    /// Whether input comes from the ring.
    receives: bool,
    wanted: Wanted,
    /// Calls since the queue pair was looked at: those that found nothing in a ring, and sends.
    idle: u8,
    sent: u8,
    /// Whether the caller was about to sleep. The queue pair may have woken it.
    slept: bool,
    /// The wait set that has the notifier.
    watched: Option<Arc<WaitSet>>,
}

/// Which bytes of the input ring the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    /// The next so many: those that had arrived when this side closed.
    Next(usize),
}

impl Rings {
    fn new(Connected { output, input, notifier }: Connected) -> Self {
        Self {
            output,
            input,
            notifier,
            sends: false,
            drains: false,
            settled: false,
            receives: false,
            wanted: Wanted::All,
            idle: 0,
            sent: 0,
            slept: false,
            watched: None,
        }
    }

    /// Whether a call that found nothing has to look at the queue pair.
    fn must_look(&mut self) -> bool {
        self.idle += 1;
        let due = std::mem::take(&mut self.slept) || self.idle >= IDLE_CALLS;
        if due {
            self.idle = 0;
        }
        due
    }

    /// Copies wanted bytes, at most as many as there were when this side closed.
    #[cold]
    fn read_kept(
        &mut self,
        target: &mut [IoSliceMut<'_>],
        consume: bool,
        kept: usize,
    ) -> rstream_ring::Result<usize> {
        let mut left = kept;
        let mut cut: Vec<_> = target
            .iter_mut()
            .map(|piece| {
                let length = piece.len().min(left);
                left -= length;
                IoSliceMut::new(&mut piece[..length])
            })
            .collect();
        let given = self.read(&mut cut, consume)?;
        if consume {
            self.wanted = Wanted::Next(kept - given);
        }
        Ok(given)
    }

    #[inline]
    fn read(&mut self, target: &mut [IoSliceMut<'_>], consume: bool) -> rstream_ring::Result<usize> {
        let given = if consume { self.input.read(target, &self.notifier) } else { self.input.peek(target) };
        given.map(Option::unwrap_or_default)
    }

    fn unwatch(&mut self) {
        if let Some(wait) = self.watched.take() {
            // It cannot fail: the notifier is there.
            let _ = wait.remove(self.notifier.as_fd());
        }
    }

    /// Drops the input that is not wanted, so that the peer has room.
    fn drop_unwanted(&mut self) {
        if self.wanted == Wanted::Next(0) {
            // A peer that breaks the protocol is found by the calls that read.
            let _ = self.input.skip(usize::MAX, &self.notifier);
        }
    }
}

impl Drop for Rings {
    /// A child of `fork` may have the notifier open, so its close does not remove it.
    fn drop(&mut self) {
        self.unwatch();
    }
}

impl<D: Device> Connection<D> {
    #[inline]
    pub(super) fn sends_to_ring(&self) -> bool {
        matches!(&self.sharing, Sharing::Rings(rings) if rings.sends)
    }

    #[inline]
    pub(super) fn receives_from_ring(&self) -> bool {
        matches!(&self.sharing, Sharing::Rings(rings) if rings.receives)
    }

    /// After a call on the queue pair: takes the next step towards shared memory, if one is due.
    #[inline]
    pub(super) fn after_queue_pair_call(&mut self, outcome: &Result<usize>) {
        match &mut self.sharing {
            Sharing::Attempt(attempt) => {
                if let Ok(bytes) = outcome
                    && attempt.is_due_after(*bytes)
                {
                    (self.at_cancellation_point)(&mut || self.attempt());
                }
            }
            Sharing::Rings(rings) if !rings.sends => self.move_output(),
            Sharing::Never | Sharing::Rings(_) => {}
        }
    }

    #[cold]
    fn attempt(&mut self) {
        let ends = self.queue_pair.local_address().zip(self.queue_pair.peer_address());
        let (Sharing::Attempt(attempt), Some(ends)) = (&mut self.sharing, ends) else { return };
        match attempt.step(ends) {
            Ok(None) => {}
            Ok(Some(connected)) => {
                log::debug!("memory is shared between {} and {}", ends.0, ends.1);
                self.sharing = Sharing::Rings(Box::new(Rings::new(connected)));
                self.watch_rings();
                self.move_output();
            }
            Err(error) => {
                log::info!("no memory is shared between {} and {}: {error}", ends.0, ends.1);
                self.sharing = Sharing::Never;
            }
        }
    }

    /// Sends to the ring from now on, if the peer can read it.
    fn move_output(&mut self) {
        let Sharing::Rings(rings) = &mut self.sharing else { return };
        if rings.output.is_mapped_by_peer() && self.stream.send_state().is_ok() {
            rings.output.set_base(self.stream.sent_bytes());
            (rings.sends, rings.drains) = (true, true);
            self.release_held();
        }
    }

    /// Drives the device until it has sent what went through the queue pair.
    #[cold]
    fn drain(&mut self) {
        self.progress();
        let flushed = self.queue_pair.cq.flushed(self.queue_pair.qp);
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.drains = !flushed;
        }
    }

    /// Whether the next bytes come from the ring, after all bytes of the queue pair were read.
    pub(super) fn move_input(&mut self) -> bool {
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        match rings.input.readable() {
            Ok(0) => false,
            Ok(_) => {
                let (base, moved) = (rings.input.base(), self.stream.received_bytes());
                rings.receives = base == moved;
                let receives = rings.receives;
                if base < moved {
                    self.end_for_breach(&Breach::RingBegins { base, moved });
                }
                receives
            }
            Err(error) => {
                self.end_for_breach(&error.into());
                false
            }
        }
    }

    /// [`Connection::send`].
    #[inline]
    pub(super) fn send_to_ring(&mut self, data: &[IoSlice<'_>], total: usize) -> Result<usize> {
        self.stream.send_state()?;
        let Sharing::Rings(rings) = &mut self.sharing else { return Err(Error::Reset) };
        let taken = if rings.settled {
            rings.output.write(data, &rings.notifier)
        } else {
            self.send_unsettled(data, total)
        };
        let Sharing::Rings(rings) = &mut self.sharing else { return Err(Error::Reset) };
        match taken {
            Ok(taken) if taken > 0 || total == 0 => {
                self.room_awaited = 0;
                rings.sent = rings.sent.wrapping_add(1);
                if rings.drains {
                    self.drain();
                } else if rings.sent == 0 {
                    self.progress();
                }
                Ok(taken)
            }
            outcome => self.no_room(outcome, 1),
        }
    }

    /// While the peer has not read from its ring, it may have bytes that went through the queue pair. They
    /// take room, so that it never has more bytes than one ring.
    #[cold]
    fn send_unsettled(&mut self, data: &[IoSlice<'_>], total: usize) -> rstream_ring::Result<usize> {
        let room = self.ring_room()?.min(total);
        let Sharing::Rings(rings) = &mut self.sharing else { return Ok(0) };
        if room == total {
            return rings.output.write(data, &rings.notifier);
        }
        rings.output.write(Gather::cut(data, 0, room).slices(), &rings.notifier)
    }

    /// Room for output.
    fn ring_room(&mut self) -> rstream_ring::Result<usize> {
        let Sharing::Rings(rings) = &mut self.sharing else { return Ok(0) };
        let mut room = rings.output.room()?;
        if !rings.settled {
            rings.settled = rings.output.is_read();
            if !rings.settled {
                self.progress();
                room = room.saturating_sub(self.stream.outstanding_bytes() as usize);
            }
        }
        Ok(room)
    }

    /// [`Connection::inject`].
    pub(super) fn inject_to_ring(&mut self, data: &[u8]) -> Result<usize> {
        self.stream.send_state()?;
        match self.ring_room() {
            Ok(room) if room >= data.len() => self.send_to_ring(&[IoSlice::new(data)], data.len()),
            outcome => self.no_room(outcome, data.len()),
        }
    }

    /// [`Connection::peek_send`].
    pub(super) fn peek_send_to_ring(&mut self) -> Result<usize> {
        self.stream.send_state()?;
        match self.ring_room() {
            Ok(room) if room > 0 => Ok(room),
            outcome => self.no_room(outcome, 1),
        }
    }

    /// The outcome of a send that lacks room for `wanted` bytes, or that found a breach.
    fn no_room(&mut self, outcome: rstream_ring::Result<usize>, wanted: usize) -> Result<usize> {
        if let Err(error) = outcome {
            self.end_for_breach(&error.into());
            return Err(Error::Reset);
        }
        self.look_at_queue_pair();
        self.stream.send_state()?;
        self.block_send(wanted)
    }

    /// [`Connection::receive`].
    #[inline]
    pub(super) fn receive_from_ring(
        &mut self,
        target: &mut [IoSliceMut<'_>],
        total: usize,
        consume: bool,
    ) -> Result<usize> {
        loop {
            let Sharing::Rings(rings) = &mut self.sharing else { return Err(Error::Reset) };
            let given = match rings.wanted {
                Wanted::All => rings.read(target, consume),
                Wanted::Next(kept) => rings.read_kept(target, consume, kept),
            };
            match given {
                Ok(given) if given > 0 => return Ok(given),
                Ok(_) if total == 0 && self.known_in_ring() > 0 => return Ok(0),
                Ok(_) => {}
                Err(error) => {
                    self.end_for_breach(&error.into());
                    return Err(Error::Reset);
                }
            }
            // What was written before an end that is known only now has to be looked for again.
            if !self.look_at_queue_pair() {
                return self.nothing(total);
            }
        }
    }

    /// [`Connection::peek_receive`].
    pub(super) fn peek_ring(&mut self) -> Result<usize> {
        loop {
            let Sharing::Rings(rings) = &mut self.sharing else { return Err(Error::Reset) };
            if let Err(error) = rings.input.readable() {
                self.end_for_breach(&error.into());
                return Err(Error::Reset);
            }
            match self.known_in_ring() {
                0 if self.look_at_queue_pair() => {}
                0 => return self.nothing(1),
                known => return Ok(known),
            }
        }
    }

    /// Looks at the queue pair, if it is time for that. Returns whether the stream has ended since the last
    /// look.
    fn look_at_queue_pair(&mut self) -> bool {
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        if !rings.must_look() {
            return false;
        }
        let before = self.stream.receive_end();
        self.progress();
        before != self.stream.receive_end()
    }

    /// Bytes that a receive would take from the ring, as far as is known without a look.
    pub(super) fn known_in_ring(&self) -> usize {
        match &self.sharing {
            Sharing::Rings(rings) if rings.receives => match rings.wanted {
                Wanted::All => rings.input.known(),
                Wanted::Next(kept) => rings.input.known().min(kept),
            },
            _ => 0,
        }
    }

    /// Room for a send, as far as is known without a look.
    pub(super) fn known_room(&self) -> Result<usize> {
        match &self.sharing {
            Sharing::Rings(rings) if rings.sends => {
                self.stream.send_state()?;
                let taken = if rings.settled { 0 } else { self.stream.outstanding_bytes() as usize };
                Ok(rings.output.known_room().saturating_sub(taken))
            }
            _ => self.sendable(),
        }
    }

    /// Adds the notifier to the attached wait set.
    pub(super) fn watch_rings(&mut self) {
        let (Sharing::Rings(rings), Some(wait)) = (&mut self.sharing, &self.queue_pair.wait) else { return };
        match wait.add(rings.notifier.as_fd(), wait.token(), Interest::Read) {
            Ok(()) => rings.watched = Some(Arc::clone(wait)),
            Err(error) => log::warn!("cannot watch shared memory: {error}"),
        }
        self.arm_rings();
    }

    /// Asks the peer for a notification. Returns whether something has come already.
    pub(super) fn arm_rings(&mut self) -> bool {
        let taken = self.stream.outstanding_bytes() as usize;
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        rings.slept = true;
        rings.drop_unwanted();
        // Known input needs no notification.
        let input = (rings.input.known() == 0).then_some(&mut rings.input);
        let wanted = self.room_awaited + if rings.settled { 0 } else { taken };
        let output = (rings.sends && self.room_awaited > 0).then_some((&mut rings.output, wanted));
        let found = arm(&rings.notifier, input, output);
        if rings.notifier.has_ended() {
            // It is readable for ever. The queue pair shows the peer's end.
            rings.unwatch();
        }
        found
    }

    /// What a call that drives the connection does for the rings.
    pub(super) fn drive_rings(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.drop_unwanted();
        }
    }

    /// Keeps what has arrived and drops what comes later.
    pub(super) fn keep_ring_input(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing
            && rings.wanted == Wanted::All
        {
            rings.wanted = Wanted::Next(rings.input.readable().unwrap_or(0));
        }
    }

    /// Drops what has arrived and what comes later.
    pub(super) fn drop_ring_input(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.wanted = Wanted::Next(0);
            rings.drop_unwanted();
        }
    }
}
