//! The end that writes.

use std::io::IoSlice;

use super::{PART, Place, Ring, window_word};
use crate::control::DONE;
use crate::notifier::Notify;
use crate::sync::{Ordering, is_prepared};
use crate::{Error, Result};

/// The end that writes a ring.
pub struct Writer {
    pub(super) ring: Ring,
    pub(super) at: WriterState,
}

/// Where a writer stands: plain data. Processes that share a [`Writer`] by `fork` hand it on, see
/// [`Writer::resume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct WriterState {
    /// Bytes written.
    pub(super) written: u64,
    /// [`DONE`] once this side has ended its output, else 0.
    done: u64,
    /// Bytes read, as far as was looked.
    pub(super) read: u64,
    pub(super) place: Place,
}

impl WriterState {
    /// Bytes of room, as far as was looked.
    #[inline]
    fn room(&self) -> usize {
        self.place.window - (self.written - self.read) as usize
    }
}

impl Writer {
    pub(crate) fn new(ring: Ring) -> Self {
        ring.direction().writer.0.prepared.store(is_prepared().into(), Ordering::Relaxed);
        let place = Place { offset: 0, window: ring.size() };
        Self { ring, at: WriterState { written: 0, done: 0, read: 0, place } }
    }

    /// Copies from `slices`, in turn, as much as there is room for, and returns how many bytes that is.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Position`].
    #[inline]
    pub fn write(&mut self, slices: &[IoSlice<'_>], notifier: &impl Notify) -> Result<usize> {
        if let [only] = slices
            && (1..=PART).contains(&only.len())
            && self.room_for(only.len())? >= only.len()
        {
            self.copy_in(only);
            self.publish(notifier);
            return Ok(only.len());
        }
        self.write_parts(slices, notifier)
    }

    /// [`Writer::write`] of several slices, of more than a part, or of more than there is room for.
    #[inline(never)]
    fn write_parts(&mut self, slices: &[IoSlice<'_>], notifier: &impl Notify) -> Result<usize> {
        let before = self.at.written;
        let mut published = before;
        'all: for slice in slices {
            let mut rest: &[u8] = slice;
            while !rest.is_empty() {
                let wanted = rest.len().min(PART);
                let room = match self.room_for(wanted) {
                    Err(error) if self.at.written == before => return Err(error),
                    // What was written before counts; the next call says why it was not more.
                    Err(_) | Ok(0) => break 'all,
                    Ok(room) => room,
                };
                let (part, later) = rest.split_at(wanted.min(room));
                self.copy_in(part);
                rest = later;
                if self.at.written - published >= PART as u64 {
                    self.publish(notifier);
                    published = self.at.written;
                }
            }
        }
        if self.at.written > published {
            self.publish(notifier);
        }
        Ok((self.at.written - before) as usize)
    }

    /// Bytes that a call would take now.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Position`].
    pub fn room(&mut self) -> Result<usize> {
        self.room_for(usize::MAX)
    }

    /// Whether `length` bytes fit now, for calls that take all or nothing. The reader may keep back room
    /// until it has read a quarter of the window, or finds the ring empty.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Position`].
    #[inline]
    pub fn has_room(&mut self, length: usize) -> Result<bool> {
        Ok(self.room_for(length)? >= length)
    }

    /// Ends the output: the reader finds the end after what was written.
    pub fn end(&mut self, notifier: &impl Notify) {
        self.at.done = DONE;
        self.publish(notifier);
    }

    /// Uses the first `window` bytes of the ring from now on: memory behind them is not touched, and a small
    /// window stays in the caches. Any window can be had while the ring is empty, also if the reader has not
    /// given all of it back, a larger one also while the unread bytes lie in one piece. Answers whether it
    /// was possible.
    ///
    /// # Errors
    /// [`Error::RingSize`] for a window that is empty or larger than the ring, [`Error::Closed`],
    /// [`Error::Position`].
    pub fn set_window(&mut self, window: usize) -> Result<bool> {
        let most = self.ring.size();
        if !(1..=most).contains(&window) {
            return Err(Error::RingSize { size: window, most });
        }
        let mut unread = self.at.place.window - self.room()?;
        if unread > 0 && !self.is_unread() {
            (self.at.read, unread) = (self.at.written, 0);
        }
        let Place { offset, window: now } = self.at.place;
        let place = match unread {
            0 => Place { offset: 0, window },
            _ if window > now && offset >= unread => Place { offset, window },
            _ => return Ok(window == now),
        };
        if place != self.at.place {
            self.at.place = place;
            // It is published with the next bytes. Whatever the reader has not read then lies as it says.
            let word = window_word(window, self.at.written - place.offset as u64);
            self.ring.direction().writer.0.window.store(word, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Bytes of the ring that are in use.
    #[must_use]
    pub fn window(&self) -> usize {
        self.at.place.window
    }

    /// Bytes that a call would take now, if the window grew first as far as that is possible, up to `window`.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::Position`].
    pub fn most_room(&mut self, window: usize) -> Result<usize> {
        let room = self.room()?;
        let unread = self.at.place.window - room;
        let grows = unread == 0 || self.at.place.offset >= unread;
        let most = window.max(self.at.place.window).min(self.ring.size());
        Ok(if grows { most - unread } else { room })
    }

    /// Whether `length` bytes fit before the end of the window, as far as is known without a look: then the
    /// window can grow afterwards too.
    #[inline]
    #[must_use]
    pub fn fits(&self, length: usize) -> bool {
        length < self.at.place.window - self.at.place.offset && length <= self.at.room()
    }

    /// Says that the stream does not begin in this ring: `base` bytes of it went another way before. Call it
    /// before the first byte is written, with which it is published.
    pub fn set_base(&mut self, base: u64) {
        self.ring.direction().writer.0.base.store(base, Ordering::Relaxed);
    }

    /// Says at once that the rest of the stream comes through this ring, and where it begins. A reader that
    /// cannot wait for the first byte finds it with [`Reader::begins_at`](super::Reader::begins_at).
    pub fn begin(&mut self, base: u64) {
        self.set_base(base);
        self.ring.direction().writer.0.begun.store(1, Ordering::Release);
    }

    /// Bytes that a call would take, as far as is known without a look.
    #[must_use]
    pub fn known_room(&self) -> usize {
        if self.at.done == 0 { self.at.room() } else { 0 }
    }

    /// Whether the reader has given back room, as far as is known without a look: it has read bytes.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.at.read > 0
    }

    /// Whether the reader reads no more.
    ///
    /// # Errors
    /// [`Error::Position`].
    pub fn is_closed(&mut self) -> Result<bool> {
        match self.look() {
            Ok(()) => Ok(false),
            Err(Error::Closed) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Whether the peer has mapped the segment. It may have died since.
    #[must_use]
    pub fn is_mapped_by_peer(&self) -> bool {
        self.ring.direction().reader.0.mapped.load(Ordering::Acquire) != 0
    }

    /// Whether the reader has not read all that was written. It need not have given back what it has read.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.ring.direction().reader.0.taken.load(Ordering::Acquire) < self.at.written
    }

    /// Has the next bytes notify the reader, as if it had asked for that: one of its threads may sleep since
    /// before it had this ring.
    pub fn assume_asleep(&mut self) {
        self.ring.direction().reader_waits.0.ask(false);
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> WriterState {
        self.at
    }

    /// Goes on where a copy of this `Writer` in another process stands. Only one of them may be in a call at
    /// a time.
    pub fn resume(&mut self, state: WriterState) {
        self.at = state;
    }

    /// Asks for a notification when there is room for `length` bytes, or an error. Returns whether there is
    /// already.
    pub(crate) fn arm(&mut self, length: usize) -> bool {
        self.ring.direction().writer_waits.0.ask(false);
        let least = length.clamp(1, self.at.place.window);
        !matches!(self.has_room(least), Ok(false))
    }

    /// Takes back what [`arm`](crate::arm) asked for: the reader need not notify any more.
    pub fn disarm(&mut self) {
        self.ring.direction().writer_waits.0.stop();
    }

    /// At least `wanted` bytes of room, or all there are.
    #[inline]
    fn room_for(&mut self, wanted: usize) -> Result<usize> {
        if self.at.done != 0 {
            return Err(Error::Closed);
        }
        if self.at.room() < wanted {
            self.look()?;
        }
        Ok(self.at.room())
    }

    /// Looks at what the reader has given back: less than is known, if it was found to have read all.
    pub(super) fn look(&mut self) -> Result<()> {
        let word = self.ring.direction().reader.0.read.load(Ordering::Acquire);
        let (said, most) = (word & !DONE, self.at.written);
        if said > most {
            return Err(Error::Position { what: "bytes read", said, least: 0, most });
        }
        self.at.read = self.at.read.max(said);
        if word & DONE == 0 { Ok(()) } else { Err(Error::Closed) }
    }

    /// Copies bytes for which there is room.
    #[inline]
    fn copy_in(&mut self, bytes: &[u8]) {
        let place = &mut self.at.place;
        let straight = place.straight(bytes.len());
        self.ring.copy_in(place.offset, &bytes[..straight]);
        if straight < bytes.len() {
            self.ring.copy_in(0, &bytes[straight..]);
        }
        place.advance(bytes.len());
        self.at.written += bytes.len() as u64;
    }

    #[inline]
    fn publish(&self, notifier: &impl Notify) {
        let direction = self.ring.direction();
        direction.writer.0.written.store(self.at.written | self.at.done, Ordering::Release);
        direction.reader_waits.0.wake(notifier);
    }
}
