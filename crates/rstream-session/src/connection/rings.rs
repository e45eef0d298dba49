//! The calls of a stream's user over rings in shared memory.
//!
//! The ends of the stream go through the queue pair. A side writes to its ring before it ends its output, so
//! a reader that learns of the end has to look at the ring once more.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;

use rdma_verbs::{self as verbs, Device, Interest, WaitSet};
use rstream_protocol::RecvState;
use rstream_ring::{Connected, Notify, OwnedGuard, Reader, Writer, ask};

use super::drive::Breach;
use super::{Connection, Sharing};
use crate::direct::{Direct, Locked, Look};
use crate::error::{Error, Result};
use crate::gather::Gather;

/// The rings of a connection, and how far it uses them.
pub(super) struct Rings {
    pub(super) direct: Direct,
    /// Whether output goes to the ring.
    pub(super) sends: bool,
    /// Whether the device may still have output that went through the queue pair. Calls that move bytes
    /// drive it meanwhile.
    pub(super) drains: bool,
    /// Whether input comes from the ring.
    pub(super) receives: bool,
    pub(super) wanted: Wanted,
    look: Look,
    /// Whether the peer broke the protocol in a ring.
    pub(super) broken: bool,
    /// The wait set that has the notifier.
    watched: Option<Arc<WaitSet>>,
}

/// Which bytes of the input ring the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    /// The next so many, which had arrived when this side took no more.
    Next(usize),
}

impl Rings {
    pub(super) fn new(connected: Connected, longest_inject: usize, wanted: Wanted) -> Self {
        let Connected { output, input, notifier } = connected;
        Self {
            direct: Direct::new(output, input, notifier, longest_inject),
            sends: false,
            drains: true,
            receives: false,
            wanted,
            look: Look::now(),
            broken: false,
            watched: None,
        }
    }

    pub(super) fn output(&self) -> OwnedGuard<'_, Locked<Writer>> {
        self.direct.output.lock()
    }

    pub(super) fn input(&self) -> OwnedGuard<'_, Locked<Reader>> {
        self.direct.input.lock()
    }

    /// Makes all calls that move bytes calls on the connection.
    fn withdraw(&self) {
        self.output().granted = false;
        self.input().granted = false;
    }

    /// Wanted bytes, as far as is known without a look.
    fn known(&self) -> usize {
        let known = self.input().ring.known();
        match self.wanted {
            Wanted::All => known,
            Wanted::Next(kept) => known.min(kept),
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

    fn read(&self, target: &mut [IoSliceMut<'_>], consume: bool) -> rstream_ring::Result<usize> {
        let ring = &mut self.input().ring;
        let given = if consume { ring.read(target, &*self.direct.notifier) } else { ring.peek(target) };
        given.map(Option::unwrap_or_default)
    }

    fn unwatch(&mut self) {
        if let Some(wait) = self.watched.take() {
            // It cannot fail: the notifier is there.
            let _ = wait.remove(self.direct.notifier.as_fd());
        }
    }

    /// Reports to the peer all that was read.
    fn give_back(&self) {
        self.input().ring.give_back(&*self.direct.notifier);
    }

    /// Drops the input that is not wanted, so that the peer has room.
    fn drop_unwanted(&mut self) {
        if self.wanted == Wanted::Next(0) {
            // A peer that breaks the protocol is found by the calls that read.
            let _ = self.input().ring.skip(usize::MAX, &*self.direct.notifier);
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        self.withdraw();
        // Others may have the notifier open, so its close does not remove it.
        self.unwatch();
    }
}

impl<D: Device> Connection<D> {
    /// The calls that need no more than the rings, once memory is shared.
    #[inline]
    #[must_use]
    pub fn direct(&self) -> Option<&Direct> {
        match &self.sharing {
            Sharing::Rings(rings) => Some(&rings.direct),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn sends_to_ring(&self) -> bool {
        matches!(&self.sharing, Sharing::Rings(rings) if rings.sends)
    }

    #[inline]
    pub(super) fn receives_from_ring(&self) -> bool {
        matches!(&self.sharing, Sharing::Rings(rings) if rings.receives)
    }

    /// Whether the peer broke the protocol in a ring.
    pub(super) fn is_ring_broken(&self) -> bool {
        matches!(&self.sharing, Sharing::Rings(rings) if rings.broken)
    }

    /// Grants direct sends, if sends only move bytes.
    fn grant_sends(&self) {
        if let Sharing::Rings(rings) = &self.sharing
            && !rings.drains
            && self.stream.send_state().is_ok()
        {
            let mut output = rings.output();
            output.granted = output.ring.is_read();
        }
    }

    /// Grants direct receives, if receives only move bytes.
    fn grant_receives(&self) {
        if let Sharing::Rings(rings) = &self.sharing
            && !rings.drains
            && rings.wanted == Wanted::All
            && self.stream.receive_end() == RecvState::Open
        {
            rings.input().granted = true;
        }
    }

    /// Makes all calls that move bytes calls on the connection.
    pub(super) fn withdraw(&self) {
        if let Sharing::Rings(rings) = &self.sharing {
            rings.withdraw();
        }
    }

    /// Ends the connection if the stream ended although bytes are missing that come before those of the ring.
    pub(super) fn check_end(&mut self) {
        let has_ended = self.stream.receive_end() == RecvState::Ended && self.stream.takes_input();
        let Sharing::Rings(rings) = &self.sharing else { return };
        if has_ended && !rings.receives && rings.known() > 0 {
            let (base, moved) = (rings.input().ring.base(), self.stream.received_bytes());
            self.end_for_ring(&Breach::RingBegins { base, moved });
        }
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
    pub(super) fn send_to_ring(&mut self, data: &[IoSlice<'_>], total: usize) -> Result<usize> {
        self.write_to_ring(data, total, total.min(1))
    }

    /// [`Connection::inject`].
    pub(super) fn inject_to_ring(&mut self, data: &[u8]) -> Result<usize> {
        self.write_to_ring(&[IoSlice::new(data)], data.len(), data.len())
    }

    /// Sends what there is room for of `data`, at least `least` of its `total` bytes.
    fn write_to_ring(&mut self, data: &[IoSlice<'_>], total: usize, least: usize) -> Result<usize> {
        self.check_send()?;
        match self.try_write(data, total, least) {
            Ok(taken @ 1..) => {
                self.room_awaited = 0;
                self.drain_if_due();
                self.look_at_queue_pair();
                self.grant_sends();
                Ok(taken)
            }
            Ok(_) if total == 0 => Ok(0),
            outcome => self.no_room(outcome, least),
        }
    }

    /// Writes under one hold of the lock, because direct calls of other threads take room, too.
    fn try_write(&mut self, data: &[IoSlice<'_>], total: usize, least: usize) -> rstream_ring::Result<usize> {
        if self.room_of_queue_pair() > 0 {
            self.progress();
        }
        let taken = self.room_of_queue_pair();
        let Sharing::Rings(rings) = &mut self.sharing else { return Ok(0) };
        let (ring, notifier) = (&mut rings.output().ring, &*rings.direct.notifier);
        if taken == 0 && least <= 1 {
            return ring.write(data, notifier);
        }
        match ring.room()?.saturating_sub(taken).min(total) {
            room if room < least => Ok(0),
            room if room == total => ring.write(data, notifier),
            room => ring.write(Gather::cut(data, 0, room).slices(), notifier),
        }
    }

    /// Room for output.
    fn ring_room(&mut self) -> rstream_ring::Result<usize> {
        let Sharing::Rings(rings) = &mut self.sharing else { return Ok(0) };
        let (room, is_read) = {
            let ring = &mut rings.output().ring;
            (ring.room()?, ring.is_read())
        };
        if !is_read {
            self.progress();
        }
        Ok(room.saturating_sub(self.room_of_queue_pair()))
    }

    /// Room of the ring that output of the queue pair takes: until the peer has read from its ring, it may
    /// have such output, and it never has more bytes than one ring.
    fn room_of_queue_pair(&self) -> usize {
        match &self.sharing {
            Sharing::Rings(rings) if rings.output().ring.is_read() => 0,
            _ => self.stream.outstanding_bytes() as usize,
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
        if let Sharing::Rings(rings) = &self.sharing {
            rings.output().granted = false;
        }
        self.block_send(wanted)
    }

    /// [`Connection::receive`].
    pub(super) fn receive_from_ring(
        &mut self,
        target: &mut [IoSliceMut<'_>],
        total: usize,
        consume: bool,
    ) -> Result<usize> {
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
                Ok(given) if given > 0 => {
                    self.drain_if_due();
                    self.grant_receives();
                    return Ok(given);
                }
                Ok(_) if total == 0 && rings.known() > 0 => return Ok(0),
                Ok(_) => rings.give_back(),
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
            let readable = rings.input().ring.readable();
            match readable {
                _ if rings.broken => return Err(Error::Reset),
                Ok(0) => rings.give_back(),
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
    fn look_at_queue_pair(&mut self) -> bool {
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        if !rings.look.is_due() {
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
                let room = rings.output().ring.known_room();
                Ok(room.saturating_sub(self.room_of_queue_pair()))
            }
            _ => Ok(self.stream.sendable()?),
        }
    }

    /// Adds the notifier to the attached wait set.
    pub(super) fn watch_rings(&mut self) -> verbs::Result<()> {
        if let (Sharing::Rings(rings), Some(wait)) = (&mut self.sharing, &self.queue_pair.wait) {
            wait.add(rings.direct.notifier.as_fd(), wait.token(), Interest::Read)?;
            rings.watched = Some(Arc::clone(wait));
            rings.input().watched = true;
            self.arm_rings();
        }
        Ok(())
    }

    /// Asks the peer for a notification. Returns whether something has come already.
    pub(super) fn arm_rings(&mut self) -> bool {
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        // If the set is readable, and not for a notification, the queue pair may have something.
        let must_look =
            rings.watched.as_ref().is_none_or(|wait| wait.is_readable()) && !rings.direct.notifier.take();
        let was_ready = self.is_ready();
        if must_look {
            self.progress();
        }
        let is_news = !was_ready && self.is_ready();
        let wanted = self.room_awaited + self.room_of_queue_pair();
        let Sharing::Rings(rings) = &mut self.sharing else { return false };
        rings.drop_unwanted();
        let found = {
            let (mut input, mut output) = (rings.input(), rings.output());
            input.armed = true;
            // Known input needs no notification.
            let input = (input.ring.known() == 0).then_some(&mut input.ring);
            let output = (rings.sends && self.room_awaited > 0).then_some((&mut output.ring, wanted));
            ask(&*rings.direct.notifier, input, output)
        };
        if rings.direct.notifier.has_ended() {
            // It is readable for ever. The queue pair shows the peer's end.
            rings.unwatch();
        }
        self.move_input();
        found || is_news
    }

    /// Whether the peer notifies of what comes next, and nothing was received by a direct call since
    /// [`Connection::arm`].
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.direct().is_none_or(|direct| direct.input.lock().armed)
    }

    /// What a call that drives the connection does for the rings.
    pub(super) fn drive_rings(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.drop_unwanted();
            self.move_input();
        }
    }

    /// Calls that move bytes drive the device again, because the end of the output goes through the queue
    /// pair.
    pub(super) fn drain_end(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.drains = true;
            rings.withdraw();
        }
    }

    /// Keeps what has arrived and drops what comes later.
    pub(super) fn keep_ring_input(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing
            && rings.wanted == Wanted::All
        {
            let (arrived, base) = {
                let mut input = rings.input();
                input.granted = false;
                (input.ring.readable().unwrap_or(0), input.ring.base())
            };
            // Bytes of the ring come after all those of the queue pair.
            let follows = rings.receives || base == self.stream.received_bytes();
            rings.wanted = Wanted::Next(if follows { arrived } else { 0 });
        }
    }

    /// Drops what has arrived and what comes later.
    pub(super) fn drop_ring_input(&mut self) {
        if let Sharing::Rings(rings) = &mut self.sharing {
            rings.input().granted = false;
            rings.wanted = Wanted::Next(0);
            rings.drop_unwanted();
        }
    }
}
