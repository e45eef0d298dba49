//! One direction: a byte ring with one writer and one reader.
//!
//! Each side counts the bytes that it wrote or read since the beginning. The writer looks at the reader's
//! count only when the room that it knows of is used up, the reader at the writer's only when the bytes that
//! it knows of are. So a short message moves the line of the writer's count and the lines of its bytes, and
//! no other.
//!
//! The writer publishes a large call in parts, so that the reader copies one out while the next is copied in.
//! The reader gives room back by the quarter of a ring, or when it finds nothing left to read: a writer that
//! sleeps is not woken for every byte.
//!
//! Nothing that the other side wrote is trusted: a count that cannot be is an [`Error::Position`].

use std::io::{IoSlice, IoSliceMut};

use crate::control::DONE;
#[cfg(not(loom))]
use crate::memory::Ring;
#[cfg(loom)]
use crate::models::Ring;
use crate::notifier::Notify;
use crate::sync::{Ordering, is_prepared};
use crate::{Error, Result};

/// Bytes that are published, and looked for, in one part of a large call.
const PART: usize = if cfg!(loom) { 2 } else { 16 << 10 };
/// The reader gives room back by this fraction of the ring.
const GIVEN_BACK: u64 = 4;
/// Looks that find something, without a sleep in between, after which the reader counts as polling. The heavy
/// fence before its next sleep costs as much as about so many full fences of the writer.
const POLLS: u32 = if cfg!(loom) { 1 } else { 256 };

/// The end that writes a ring.
pub struct Writer {
    ring: Ring,
    at: WriterState,
}

/// The end that reads a ring.
pub struct Reader {
    ring: Ring,
    at: ReaderState,
}

/// Where a writer stands: plain data. Processes that share a [`Writer`] by `fork` hand it on, see
/// [`Writer::resume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct WriterState {
    /// Bytes written.
    written: u64,
    /// [`DONE`] once this side has ended its output, else 0.
    done: u64,
    /// Bytes read, as far as was looked.
    read: u64,
    place: Place,
}

/// Where a reader stands: plain data. Processes that share a [`Reader`] by `fork` hand it on, see
/// [`Reader::resume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ReaderState {
    /// Bytes read, and those of them that the writer was told.
    read: u64,
    given_back: u64,
    /// [`DONE`] once this side reads no more, else 0.
    done: u64,
    /// Bytes written, as far as was looked.
    written: u64,
    place: Place,
    /// Whether the writer ends its output after `written`.
    ended: bool,
    /// Whether the writer was told that this side polls.
    polling: bool,
    /// Looks that found something since the last sleep.
    finds: u32,
}

/// Where the next byte lies in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Place {
    offset: usize,
    /// Bytes of the ring that are in use, from its beginning.
    window: usize,
}

impl Place {
    /// How many of `length` bytes lie before the end of the window; the others lie at its beginning.
    #[inline]
    fn straight(self, length: usize) -> usize {
        length.min(self.window - self.offset)
    }

    #[inline]
    fn advance(&mut self, length: usize) {
        self.offset += length;
        if self.offset >= self.window {
            self.offset -= self.window;
        }
    }
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
    /// window stays in the caches. This can be done while the ring is empty; answers whether it is.
    ///
    /// # Errors
    /// [`Error::RingSize`] for a window that is empty or larger than the ring, [`Error::Closed`],
    /// [`Error::Position`].
    pub fn set_window(&mut self, window: usize) -> Result<bool> {
        let most = self.ring.size();
        if !(1..=most).contains(&window) {
            return Err(Error::RingSize { size: window, most });
        }
        let is_empty = self.room()? == self.at.place.window;
        if is_empty && window != self.at.place.window {
            self.at.place = Place { offset: 0, window };
            // It is published with the next bytes. The reader, which has read all others, looks at it then.
            self.ring.direction().writer.0.window.store(window as u32, Ordering::Relaxed);
        }
        Ok(is_empty)
    }

    /// Says that the stream does not begin in this ring: `base` bytes of it went another way before. Call it
    /// before the first byte is written, with which it is published.
    pub fn set_base(&mut self, base: u64) {
        self.ring.direction().writer.0.base.store(base, Ordering::Relaxed);
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

    /// Whether the peer has mapped the segment. It may have died since.
    #[must_use]
    pub fn is_mapped_by_peer(&self) -> bool {
        self.ring.direction().reader.0.mapped.load(Ordering::Acquire) != 0
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

    /// Looks at what the reader has read.
    fn look(&mut self) -> Result<()> {
        let word = self.ring.direction().reader.0.read.load(Ordering::Acquire);
        let (said, least, most) = (word & !DONE, self.at.read, self.at.written);
        if !(least..=most).contains(&said) {
            return Err(Error::Position { what: "bytes read", said, least, most });
        }
        self.at.read = said;
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

impl Reader {
    pub(crate) fn new(ring: Ring) -> Self {
        ring.direction().reader.0.mapped.store(1, Ordering::Release);
        let at = ReaderState {
            read: 0,
            given_back: 0,
            done: 0,
            written: 0,
            place: Place { offset: 0, window: ring.size() },
            ended: false,
            polling: false,
            finds: 0,
        };
        Self { ring, at }
    }

    /// Copies to `buffers`, in turn, and returns how many bytes: `None` if there is nothing now, and
    /// `Some(0)` at the end of the stream, or if there is no room in `buffers`.
    ///
    /// # Errors
    /// [`Error::Position`].
    #[inline]
    pub fn read(&mut self, buffers: &mut [IoSliceMut<'_>], notifier: &impl Notify) -> Result<Option<usize>> {
        if self.known() == 0 {
            self.look()?;
            if self.known() == 0 {
                return Ok(self.nothing(notifier));
            }
        }
        if let [only] = buffers
            && only.len() < PART
        {
            let length = only.len().min(self.known());
            self.copy_out(self.at.place, &mut only[..length]);
            self.advance(length, notifier);
            return Ok(Some(length));
        }
        self.read_parts(buffers, notifier)
    }

    /// [`Reader::read`] of several buffers, or of more than a part.
    #[inline(never)]
    fn read_parts(
        &mut self,
        buffers: &mut [IoSliceMut<'_>],
        notifier: &impl Notify,
    ) -> Result<Option<usize>> {
        let mut total = 0;
        for buffer in buffers {
            let mut rest: &mut [u8] = buffer;
            while !rest.is_empty() {
                // Goes on to look only while much is missing. An error comes after the bytes before it.
                if self.known() == 0 && (rest.len() < PART || self.look().is_err() || self.known() == 0) {
                    return Ok(Some(total));
                }
                let (part, later) = rest.split_at_mut(self.known().min(rest.len()).min(PART));
                self.copy_out(self.at.place, part);
                self.advance(part.len(), notifier);
                total += part.len();
                rest = later;
            }
        }
        Ok(Some(total))
    }

    /// As [`Reader::read`], but the bytes stay the next to be read.
    ///
    /// # Errors
    /// [`Error::Position`].
    pub fn peek(&mut self, buffers: &mut [IoSliceMut<'_>]) -> Result<Option<usize>> {
        let wanted = buffers.iter().map(|buffer| buffer.len()).sum();
        let total = self.look_for(wanted)?;
        let (mut place, mut left) = (self.at.place, total);
        for buffer in buffers {
            let length = buffer.len().min(left);
            self.copy_out(place, &mut buffer[..length]);
            place.advance(length);
            left -= length;
        }
        Ok((total > 0 || wanted == 0 || self.at.ended).then_some(total))
    }

    /// Takes `length` bytes, or as many as there are, without copying them. The result is as that of
    /// [`Reader::read`].
    ///
    /// # Errors
    /// [`Error::Position`].
    pub fn skip(&mut self, length: usize, notifier: &impl Notify) -> Result<Option<usize>> {
        let taken = self.look_for(length)?;
        if taken == 0 && length > 0 {
            return Ok(self.nothing(notifier));
        }
        self.advance(taken, notifier);
        Ok(Some(taken))
    }

    /// Bytes that a call would give now.
    ///
    /// # Errors
    /// [`Error::Position`].
    pub fn readable(&mut self) -> Result<usize> {
        self.look_for(usize::MAX)
    }

    /// Bytes that a call would give, as far as is known without a look.
    #[inline]
    #[must_use]
    pub fn known(&self) -> usize {
        (self.at.written - self.at.read) as usize
    }

    /// Bytes of the stream that went another way before the first byte of this ring, see
    /// [`Writer::set_base`]. It is valid once there was a byte to read.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.ring.direction().writer.0.base.load(Ordering::Relaxed)
    }

    /// Whether everything was read, and the writer has ended its output.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.at.ended && self.known() == 0
    }

    /// Reads no more: the writer's calls return [`Error::Closed`].
    pub fn close(&mut self, notifier: &impl Notify) {
        self.at.done = DONE;
        self.publish(notifier);
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> ReaderState {
        self.at
    }

    /// Goes on where a copy of this `Reader` in another process stands. Only one of them may be in a call at
    /// a time.
    pub fn resume(&mut self, state: ReaderState) {
        self.at = state;
    }

    /// Asks for a notification when there is something to read, the end, or an error. Returns whether there
    /// is already.
    pub(crate) fn arm(&mut self, notifier: &impl Notify) -> bool {
        self.give_back(notifier);
        let asked = self.ring.direction().reader_waits.0.ask(self.at.polling);
        self.at.polling = false;
        // Where the heavy fence is forbidden, nothing may need it again.
        self.at.finds = if asked { 0 } else { u32::MAX };
        let found = self.look();
        !asked || found.is_err() || self.at.ended || self.known() > 0
    }

    /// `wanted` bytes that can be read, or all there are. An error comes after the bytes before it.
    fn look_for(&mut self, wanted: usize) -> Result<usize> {
        let looked = if self.known() < wanted { self.look() } else { Ok(()) };
        match looked {
            Err(error) if self.known() == 0 => Err(error),
            _ => Ok(self.known().min(wanted)),
        }
    }

    /// Looks at what the writer has written.
    #[inline]
    fn look(&mut self) -> Result<()> {
        let word = self.ring.direction().writer.0.written.load(Ordering::Acquire);
        if word == self.at.written || self.at.ended { Ok(()) } else { self.find(word) }
    }

    /// Takes note of what the writer says it has written.
    #[inline]
    fn find(&mut self, word: u64) -> Result<()> {
        let at = &mut self.at;
        let writer = &self.ring.direction().writer.0;
        let (said, least) = (word & !DONE, at.written);
        // The window changes only when everything was read.
        if at.read == at.written {
            let window = match writer.window.load(Ordering::Relaxed) as usize {
                0 => self.ring.size(),
                window => window,
            };
            if window > self.ring.size() {
                let (said, most) = (window as u64, self.ring.size() as u64);
                return Err(Error::Position { what: "bytes of window", said, least: 1, most });
            }
            if window != at.place.window {
                at.place = Place { offset: 0, window };
            }
        }
        let most = at.given_back + at.place.window as u64;
        if !(least..=most).contains(&said) {
            return Err(Error::Position { what: "bytes written", said, least, most });
        }
        at.written = said;
        at.ended = word & DONE != 0;
        at.finds = at.finds.saturating_add(1);
        if at.finds == POLLS && writer.prepared.load(Ordering::Relaxed) != 0 {
            at.polling = true;
            self.ring.direction().reader_waits.0.poll();
        }
        Ok(())
    }

    /// What a call returns when there is nothing to read.
    #[inline]
    fn nothing(&mut self, notifier: &impl Notify) -> Option<usize> {
        self.give_back(notifier);
        self.at.ended.then_some(0)
    }

    /// Copies known bytes from `place` on.
    #[inline]
    fn copy_out(&mut self, place: Place, buffer: &mut [u8]) {
        let straight = place.straight(buffer.len());
        self.ring.copy_out(place.offset, &mut buffer[..straight]);
        if straight < buffer.len() {
            self.ring.copy_out(0, &mut buffer[straight..]);
        }
    }

    #[inline]
    fn advance(&mut self, length: usize, notifier: &impl Notify) {
        self.at.read += length as u64;
        self.at.place.advance(length);
        if (self.at.read - self.at.given_back) * GIVEN_BACK >= self.at.place.window as u64 {
            self.give_back(notifier);
        }
    }

    /// Reports to the writer all that was read. [`Reader::read`] and [`Reader::skip`] do so by themselves, by
    /// the quarter of a ring, or when they find nothing.
    #[inline]
    pub fn give_back(&mut self, notifier: &impl Notify) {
        if self.at.given_back != self.at.read {
            self.publish(notifier);
        }
    }

    fn publish(&mut self, notifier: &impl Notify) {
        self.at.given_back = self.at.read;
        let direction = self.ring.direction();
        direction.reader.0.read.store(self.at.read | self.at.done, Ordering::Release);
        direction.writer_waits.0.wake(notifier);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
