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
use std::time::{Duration, Instant};

use rdma_verbs::{self as verbs, Connections, Device, Interest, WaitSet};
use rstream_protocol::RecvState;
use rstream_ring::{Connected, Notifier, Notify, Reader, Writer, ask};

use super::drive::Breach;
use super::{Connection, Sharing};
use crate::error::{Error, Result};
use crate::gather::Gather;

/// Time after which a call that finds nothing to do in a ring looks at the queue pair: the connection may have
/// ended.
const LOOK_AFTER: Duration = Duration::from_millis(1);
/// Of the sends that find room, only one in so many reads the clock for that.
const SENDS: u8 = 16;

/// The rings of a connection, and how far it uses them.
pub(super) struct Rings {
    output: Writer,
    input: Reader,
    notifier: Notifier,
    /// Whether output goes to the ring.
    pub(super) sends: bool,
    /// Whether the device may still have output that went through the queue pair. Calls that move bytes drive it
    /// meanwhile.
    drains: bool,
    /// Whether input comes from the ring.
    receives: bool,
    wanted: Wanted,
    /// When the queue pair was looked at last, and sends, modulo 256.
    looked: Instant,
    sent: u8,
    /// Whether the peer broke the protocol in a ring.
    broken: bool,
    /// Whether the caller may have slept. If no notification woke it, the queue pair may have.
    slept: bool,
    /// The wait set that has the notifier.
    watched: Option<Arc<WaitSet>>,
}

/// Which bytes of the input ring the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    All,
    /// The next so many, which had arrived when this side took no more.
    Next(usize),
}

impl Rings {
    fn new(Connected { output, input, notifier }: Connected, wanted: Wanted) -> Self {
        Self {
            output,
            input,
            notifier,
            sends: false,
            drains: true,
            receives: false,
            wanted,
            looked: Instant::now(),
            sent: 0,
            broken: false,
            slept: false,
            watched: None,
        }
    }

    /// Whether a call has to look at the queue pair.
    fn must_look(&mut self) -> bool {
        let now = Instant::now();
        let due = now - self.looked >= LOOK_AFTER;
        if due {
            self.looked = now;
        }
        due
    }

    /// Wanted bytes, as far as is known without a look.
    fn known(&self) -> usize {
        match self.wanted {
            Wanted::All => self.input.known(),
            Wanted::Next(kept) => self.input.known().min(kept),
        }
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
            Sharing::Rings(_) => self.move_to_rings(),
            Sharing::Never => {}
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
                let wanted = if self.stream.takes_input() { Wanted::All } else { Wanted::Next(0) };
                self.sharing = Sharing::Rings(Box::new(Rings::new(connected, wanted)));
                match self.watch_rings() {
                    Ok(()) => self.move_to_rings(),
                    Err(error) => {
                        log::warn!("no memory is shared between {} and {}: {error}", ends.0, ends.1);
                        self.sharing = Sharing::Never;
                    }
                }
            }
            Err(error) => {
                log::info!("no memory is shared between {} and {}: {error}", ends.0, ends.1);
                self.sharing = Sharing::Never;
            }
        }
    }

    /// Moves each direction that can be moved.
    fn move_to_rings(&mut self) {
        if !self.sends_to_ring() {
            self.move_output();
        }
        self.move_input();
    }

    /// Sends to the ring from now on, if the peer can read it.
    fn move_output(&mut self) {
        let Sharing::Rings(rings) = &mut self.sharing else { return };
        if rings.output.is_mapped_by_peer() && self.stream.send_state().is_ok() {
            rings.output.set_base(self.stream.sent_bytes());
            rings.sends = true;
            self.release_held();
        }
    }

    /// Drives the device until it has sent what went through the queue pair.
    #[cold]
    fn drain(&mut self) {
        self.progress();
        let flushed = self.queue_pair.cq.flushed(self.queue_pair.qp);
        let has_ended = self.stream.send_state().is_err();
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.drains = !(flushed && (rings.sends || has_ended));
        }
    }

    /// Receives from the ring from now on, if it has bytes and those of the queue pair were read. Returns
    /// whether input comes from the ring.
    pub(super) fn move_input(&mut self) -> bool {
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        if rings.receives || rings.broken || self.stream.readable() > 0 {
            return rings.receives;
        }
        match rings.input.readable() {
            Ok(0) => {}
            Ok(_) => {
                let (base, moved) = (rings.input.base(), self.stream.received_bytes());
                rings.receives = base == moved;
                if base < moved {
                    self.end_for_ring(&Breach::RingBegins { base, moved });
                }
            }
            Err(error) => self.end_for_ring(&error.into()),
        }
        self.receives_from_ring()
    }

    /// Whether the peer broke the protocol in a ring, also by an end before all bytes that the ring follows.
    pub(super) fn is_ring_broken(&mut self) -> bool {
        let has_ended = self.stream.receive_end() == RecvState::Ended && self.stream.takes_input();
        if let Sharing::Rings(rings) = &self.sharing
            && !rings.receives
            && rings.input.known() > 0
            && has_ended
        {
            let (base, moved) = (rings.input.base(), self.stream.received_bytes());
            self.end_for_ring(&Breach::RingBegins { base, moved });
        }
        matches!(&self.sharing, Sharing::Rings(rings) if rings.broken)
    }

    /// Ends the connection because the peer broke the protocol in a ring.
    #[cold]
    pub(super) fn end_for_ring(&mut self, breach: &Breach) {
        if let Sharing::Rings(rings) = &mut self.sharing
            && !std::mem::replace(&mut rings.broken, true)
        {
            self.end_for_breach(breach);
        }
    }

    /// [`Connection::send`].
    #[inline]
    pub(super) fn send_to_ring(&mut self, data: &[IoSlice<'_>], total: usize) -> Result<usize> {
        self.check_send()?;
        let Sharing::Rings(rings) = &mut self.sharing else { return Err(Error::Reset) };
        let taken = if rings.output.is_read() {
            rings.output.write(data, &rings.notifier)
        } else {
            self.send_unsettled(data, total)
        };
        let Sharing::Rings(rings) = &mut self.sharing else { return Err(Error::Reset) };
        match taken {
            Ok(taken @ 1..) => {
                self.room_awaited = 0;
                rings.sent = rings.sent.wrapping_add(1);
                if rings.drains {
                    self.drain();
                } else if rings.sent % SENDS == 0 {
                    self.look_at_queue_pair();
                }
                Ok(taken)
            }
            Ok(_) if total == 0 => Ok(0),
            outcome => self.no_room(outcome, 1),
        }
    }

    /// [`Connection::send_to_ring`] while the peer may not have read all that went through the queue pair.
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
        let room = rings.output.room()?;
        if !rings.output.is_read() {
            self.progress();
        }
        Ok(room.saturating_sub(self.room_of_queue_pair()))
    }

    /// Room of the ring that output of the queue pair takes: until the peer has read from its ring, it may have
    /// such output, and it never has more bytes than one ring.
    fn room_of_queue_pair(&self) -> usize {
        match &self.sharing {
            Sharing::Rings(rings) if rings.output.is_read() => 0,
            _ => self.stream.outstanding_bytes() as usize,
        }
    }

    /// [`Connection::inject`].
    pub(super) fn inject_to_ring(&mut self, data: &[u8]) -> Result<usize> {
        self.check_send()?;
        match self.ring_room() {
            Ok(room) if room >= data.len() => self.send_to_ring(&[IoSlice::new(data)], data.len()),
            outcome => self.no_room(outcome, data.len()),
        }
    }

    /// [`Connection::peek_send`].
    pub(super) fn peek_send_to_ring(&mut self) -> Result<usize> {
        self.check_send()?;
        match self.ring_room() {
            Ok(room) if room > 0 => Ok(room),
            outcome => self.no_room(outcome, 1),
        }
    }

    /// The outcome of a send that lacks room for `wanted` bytes, or that found a breach.
    fn no_room(&mut self, outcome: rstream_ring::Result<usize>, wanted: usize) -> Result<usize> {
        if let Err(error) = outcome {
            self.end_for_ring(&error.into());
            return Err(Error::Reset);
        }
        self.look_at_queue_pair();
        self.check_send()?;
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
        if let Sharing::Rings(rings) = &mut self.sharing
            && consume
            && rings.wanted == Wanted::All
            && let Ok(Some(given @ 1..)) = rings.input.read(target, &rings.notifier)
        {
            if rings.drains {
                self.drain();
            }
            return Ok(given);
        }
        self.look_in_ring(target, total, consume)
    }

    /// [`Connection::receive`] where it finds nothing at once, or does not just take what there is.
    #[inline(never)]
    fn look_in_ring(&mut self, target: &mut [IoSliceMut<'_>], total: usize, consume: bool) -> Result<usize> {
        loop {
            let Sharing::Rings(rings) = &mut self.sharing else { return Err(Error::Reset) };
            if rings.broken {
                return Err(Error::Reset);
            }
            let given = match rings.wanted {
                Wanted::All => rings.read(target, consume),
                Wanted::Next(kept) => rings.read_kept(target, consume, kept),
            };
            match given {
                Ok(given) if given > 0 => return Ok(given),
                Ok(_) if total == 0 && rings.known() > 0 => return Ok(0),
                Ok(_) => rings.input.give_back(&rings.notifier),
                Err(error) => {
                    self.end_for_ring(&error.into());
                    continue;
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
            match rings.input.readable() {
                _ if rings.broken => return Err(Error::Reset),
                Ok(0) => rings.input.give_back(&rings.notifier),
                Ok(_) => {}
                Err(error) => self.end_for_ring(&error.into()),
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
    #[inline(never)]
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
            Sharing::Rings(rings) if !rings.broken => rings.known(),
            _ => 0,
        }
    }

    /// Room for a send, as far as is known without a look.
    pub(super) fn known_room(&self) -> Result<usize> {
        match &self.sharing {
            Sharing::Rings(rings) if rings.sends => {
                self.stream.send_state()?;
                Ok(rings.output.known_room().saturating_sub(self.room_of_queue_pair()))
            }
            _ => Ok(self.stream.sendable()?),
        }
    }

    /// Adds the notifier to the attached wait set.
    pub(super) fn watch_rings(&mut self) -> verbs::Result<()> {
        if let (Sharing::Rings(rings), Some(wait)) = (&mut self.sharing, &self.queue_pair.wait) {
            wait.add(rings.notifier.as_fd(), wait.token(), Interest::Read)?;
            rings.watched = Some(Arc::clone(wait));
            self.arm_rings();
        }
        Ok(())
    }

    /// Asks the peer for a notification. Returns whether something has come already.
    pub(super) fn arm_rings(&mut self) -> bool {
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        let notified = rings.notifier.take();
        let must_look = std::mem::replace(&mut rings.slept, true) && !notified;
        let was_ready = self.is_ready();
        if must_look {
            self.progress();
        }
        let is_news = !was_ready && self.is_ready();
        let wanted = self.room_awaited + self.room_of_queue_pair();
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        rings.drop_unwanted();
        // Known input needs no notification.
        let input = (rings.input.known() == 0).then_some(&mut rings.input);
        let output = (rings.sends && self.room_awaited > 0).then_some((&mut rings.output, wanted));
        let found = ask(&rings.notifier, input, output);
        if rings.notifier.has_ended() {
            // It is readable for ever. The queue pair shows the peer's end.
            rings.unwatch();
        }
        self.move_input();
        found || is_news
    }

    /// What a call that drives the connection does for the rings.
    pub(super) fn drive_rings(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.drop_unwanted();
            self.move_input();
        }
    }

    /// Calls that move bytes drive the device again, because the end of the output goes through the queue pair.
    pub(super) fn drain_end(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.drains = true;
        }
    }

    /// Keeps what has arrived and drops what comes later.
    pub(super) fn keep_ring_input(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing
            && rings.wanted == Wanted::All
        {
            let arrived = rings.input.readable().unwrap_or(0);
            // Bytes of the ring come after all those of the queue pair.
            let follows = rings.receives || rings.input.base() == self.stream.received_bytes();
            rings.wanted = Wanted::Next(if follows { arrived } else { 0 });
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
