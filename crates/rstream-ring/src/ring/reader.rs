//! The end that reads.

use std::io::IoSliceMut;

use super::{PART, Place, Ring, WINDOW, WINDOW_BITS};
use crate::control::DONE;
use crate::notifier::Notify;
use crate::sync::Ordering;
use crate::{Error, Result};

/// The reader gives room back by this fraction of the ring.
const GIVEN_BACK: u64 = 4;
/// Looks that find something, without a sleep in between, after which the reader counts as polling. The heavy
/// fence before its next sleep costs as much as about so many full fences of the writer.
pub(super) const POLLS: u32 = if cfg!(loom) { 1 } else { 256 };

/// The end that reads a ring.
pub struct Reader {
    pub(super) ring: Ring,
    pub(super) at: ReaderState,
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
    /// What the writer said of its window, see [`window_word`].
    window: u64,
    /// Whether the writer ends its output after `written`.
    ended: bool,
    /// Whether the writer was told that this side polls.
    pub(super) polling: bool,
    /// Looks that found something since the last sleep.
    pub(super) finds: u32,
}

impl ReaderState {
    /// Whether this side reads no more ([`Reader::close`]).
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.done == DONE
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
            window: 0,
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

    /// Bytes that were written since the beginning, as far as is known without a look.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.at.written
    }

    /// Bytes of the stream that went another way before the first byte of this ring, see
    /// [`Writer::set_base`](super::Writer::set_base). It is valid once there was a byte to read.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.ring.direction().writer.0.base.load(Ordering::Relaxed)
    }

    /// [`Reader::base`], once the writer has called [`Writer::begin`](super::Writer::begin).
    #[must_use]
    pub fn begins_at(&self) -> Option<u64> {
        let begun = self.ring.direction().writer.0.begun.load(Ordering::Acquire);
        (begun != 0).then(|| self.base())
    }

    /// Whether the writer has ended its output, as far as is known without a look. There may be bytes to
    /// read.
    #[must_use]
    pub fn knows_end(&self) -> bool {
        self.at.ended
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

    /// Takes back what [`arm`](crate::arm) asked for: this side looks by itself again.
    pub fn disarm(&mut self) {
        if !self.at.polling {
            self.ring.direction().reader_waits.0.stop();
        }
    }

    /// Whether the peer still has to notify for what [`arm`](crate::arm) asked for.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.ring.direction().reader_waits.0.is_asking()
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
        let window = writer.window.load(Ordering::Relaxed);
        let mut place = at.place;
        if window != at.window {
            let bytes = window & WINDOW;
            let most = self.ring.size() as u64;
            if !(1..=most).contains(&bytes) {
                return Err(Error::Position { what: "bytes of window", said: bytes, least: 1, most });
            }
            let offset = (at.read.wrapping_sub(window >> WINDOW_BITS) & (u64::MAX >> WINDOW_BITS)) % bytes;
            place = Place { offset: offset as usize, window: bytes as usize };
        }
        let most = at.read + place.window as u64;
        if !(least..=most).contains(&said) {
            return Err(Error::Position { what: "bytes written", said, least, most });
        }
        // Only now: bytes that are known still lie where they were if this is refused.
        (at.window, at.place) = (window, place);
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
        self.ring.direction().reader.0.taken.store(self.at.read, Ordering::Release);
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
