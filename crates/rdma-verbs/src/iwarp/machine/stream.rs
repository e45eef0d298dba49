//! The byte stream towards the peer: what goes straight to the socket, and what is staged until the socket
//! takes it.

use std::io::IoSlice;
use std::ops::Range;

use super::train::Train;
use super::violation::Violation;
use crate::memory::{Source, append_range};

/// Takes bytes for the peer: a socket, or the queue of a test.
pub trait Wire {
    /// Takes as many bytes of `pieces`, in order, as can be sent now. `more`: more output follows at once.
    fn transmit(&mut self, pieces: &[IoSlice<'_>], more: bool) -> Taken;

    /// The same for memory. A wire that needs slices gets copies.
    fn transmit_from_memory(&mut self, pieces: &[Source<'_>]) -> Taken {
        match copies(pieces) {
            Some(bytes) => self.transmit(&[IoSlice::new(&bytes)], false),
            None => Taken::Unreadable,
        }
    }
}

/// Copies of these bytes, in order, if they can be read.
pub fn copies(pieces: &[Source<'_>]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    append_range(pieces, 0..usize::MAX, &mut bytes).then_some(bytes)
}

/// What a [`Wire`] took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// This number of bytes. If it is less than the whole, the wire takes no more now.
    Bytes(usize),
    /// Nothing, now or ever.
    Dead,
    /// Nothing: some bytes are in memory that cannot be read.
    Unreadable,
}

/// Capacity in bytes up to which an empty buffer is kept; a larger one is freed.
pub(super) const KEPT: usize = 4096;
/// Longest payload that a [`Batch`] copies next to its header, rather than referring to it.
const SMALL: usize = 256;
/// Maximum number of pieces in one call to [`Wire::transmit`].
const PIECES: usize = 8;

/// The position of the stream, and the bytes that the socket has not taken yet.
///
/// `taken <= produced`. The difference is what is staged, plus what a [`Batch`] holds.
#[derive(Debug, Default)]
pub(super) struct Stream {
    staged: Vec<u8>,
    start: usize,
    produced: u64,
    taken: u64,
    closed: bool,
    /// Why bytes are missing: there was no memory for staging, or they could not be read.
    fault: Option<Violation>,
}

impl Stream {
    /// Number of bytes added to the stream so far, sent or staged.
    pub(super) fn produced(&self) -> u64 {
        self.produced
    }

    /// Number of bytes that the socket took so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Number of staged bytes.
    pub(super) fn staged(&self) -> usize {
        self.staged.len() - self.start
    }

    /// Whether the stream is closed: nothing is sent any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Why bytes are missing, if some are.
    #[inline]
    pub(super) fn fault(&self) -> Option<&Violation> {
        self.fault.as_ref()
    }

    /// Sends what is staged. Returns whether nothing is left.
    pub(super) fn flush<W: Wire>(&mut self, wire: &mut W) -> bool {
        while self.staged() > 0 {
            let taken = wire.transmit(&[IoSlice::new(&self.staged[self.start..])], false);
            let Taken::Bytes(count) = taken else {
                self.close();
                return true;
            };
            let count = count.min(self.staged());
            self.start += count;
            self.taken += count as u64;
            if self.staged() > 0 {
                return false;
            }
            self.staged.clear();
            self.start = 0;
        }
        true
    }

    /// Sends `bytes`, and stages what the socket does not take. `more`: more output follows at once.
    pub(super) fn send<W: Wire>(&mut self, bytes: &[u8], more: bool, wire: &mut W) {
        self.produced += bytes.len() as u64;
        if let Some(taken) = self.attempt(&[IoSlice::new(bytes)], bytes.len(), more, wire)
            && self.make_room(bytes.len() - taken)
        {
            self.staged.extend_from_slice(&bytes[taken..]);
        }
    }

    /// Sends as much of `train` as the socket takes, and stages the rest of the FPDU that it takes in part. The
    /// caller has flushed what was staged. Returns how many FPDUs are sent or staged; `None`: memory cannot be read, and
    /// nothing is sent any more but a Terminate, if it can follow.
    pub(super) fn send_train<W: Wire>(&mut self, train: &mut Train<'_>, wire: &mut W) -> Option<usize> {
        let (pieces, ends) = train.finish();
        let taken = match wire.transmit_from_memory(pieces) {
            Taken::Bytes(0) => return Some(0),
            Taken::Bytes(count) => count,
            Taken::Dead => {
                self.close();
                return Some(0);
            }
            Taken::Unreadable => return None,
        };
        let begun = ends.len().min(ends.partition_point(|&end| end < taken) + 1);
        let end = ends[..begun].last().map_or(0, |&end| end);
        self.produced += end as u64;
        self.taken += taken.min(end) as u64;
        if taken < end && !self.stage_range(pieces, taken..end) {
            // A Terminate would lie within the FPDU that cannot be finished.
            self.close();
            return None;
        }
        Some(begun)
    }

    /// Records why bytes that come next are missing.
    pub(super) fn fail(&mut self, fault: Violation) {
        self.fault = Some(fault);
    }

    /// Frees the staging buffer, if it is empty and large.
    pub(super) fn shrink(&mut self) {
        if self.staged() == 0 && self.staged.capacity() > KEPT {
            self.staged = Vec::new();
        }
    }

    /// Drops what is staged behind the position `end`.
    pub(super) fn cut(&mut self, end: u64) {
        let kept = end.saturating_sub(self.taken).min(self.staged() as u64);
        // `kept` is at most a length.
        self.staged.truncate(self.start + kept as usize);
        self.produced = self.taken + kept;
        if kept == 0 {
            self.discard();
        }
    }

    /// Drops what is staged.
    pub(super) fn discard(&mut self) {
        self.staged = Vec::new();
        self.start = 0;
    }

    fn close(&mut self) {
        self.closed = true;
        self.discard();
    }

    /// Sends `pieces` of `length` bytes in all, and stages the rest.
    fn transmit<W: Wire>(&mut self, pieces: &[IoSlice<'_>], length: usize, more: bool, wire: &mut W) {
        self.produced += length as u64;
        if let Some(taken) = self.attempt(pieces, length, more, wire) {
            self.stage_rest(pieces, taken, length);
        }
    }

    /// Sends `pieces` of `length` bytes in all, which `produced` already counts. Returns how many bytes the socket took, if
    /// the rest is to be staged.
    #[inline]
    fn attempt<W: Wire>(
        &mut self,
        pieces: &[IoSlice<'_>],
        length: usize,
        more: bool,
        wire: &mut W,
    ) -> Option<usize> {
        // What follows bytes that could not be read is not sent, because the peer would take it for them.
        if self.closed || self.fault.is_some() {
            return None;
        }
        let mut taken = 0;
        if self.staged() == 0 {
            match wire.transmit(pieces, more) {
                Taken::Bytes(count) => taken = count.min(length),
                Taken::Dead => {
                    self.close();
                    return None;
                }
                Taken::Unreadable => {
                    self.fault = Some(Violation::LocalPlace);
                    return None;
                }
            }
            self.taken += taken as u64;
        }
        (taken < length).then_some(taken)
    }

    /// Stages `pieces` of `length` bytes in all except those that are `taken`.
    #[cold]
    fn stage_rest(&mut self, pieces: &[IoSlice<'_>], taken: usize, length: usize) {
        let sources: Vec<_> = pieces.iter().map(|piece| Source::from(&**piece)).collect();
        if !self.stage_range(&sources, taken..length) {
            self.fault = Some(Violation::LocalPlace);
            if taken > 0 {
                // A Terminate may lie within an FPDU that cannot be finished.
                self.close();
            }
        }
    }

    /// Stages these bytes of `sources`, if there is memory. Returns whether they could be read.
    fn stage_range(&mut self, sources: &[Source<'_>], range: Range<usize>) -> bool {
        !self.make_room(range.len()) || append_range(sources, range, &mut self.staged)
    }

    /// Reserves exactly `more` bytes, moving what is staged to the front. The user chooses how much is
    /// staged, so a lack of memory ends the stream and not the process.
    fn make_room(&mut self, more: usize) -> bool {
        if self.start > 0 {
            self.staged.drain(..self.start);
            self.start = 0;
        }
        let is_room = self.staged.try_reserve(more).is_ok();
        if !is_room {
            self.fault = Some(Violation::NoMemory);
            self.close();
        }
        is_room
    }
}

/// The target of encoded messages. `'a` is the lifetime of the caller's payload.
pub(super) trait Output<'a> {
    /// Adds bytes that are valid only during the call.
    fn copied(&mut self, bytes: &[u8]);
    /// Adds bytes that remain valid until the output is finished.
    fn borrowed(&mut self, bytes: &'a [u8]);
}

/// Stages the output for a later flush.
impl Output<'_> for Stream {
    fn copied(&mut self, bytes: &[u8]) {
        self.produced += bytes.len() as u64;
        if !self.closed && self.make_room(bytes.len()) {
            self.staged.extend_from_slice(bytes);
        }
    }

    fn borrowed(&mut self, bytes: &[u8]) {
        self.copied(bytes);
    }
}

/// Output that is sent in as few calls as possible: headers and small payloads are gathered, large payloads
/// are referenced.
pub(super) struct Batch<'a, 's, W: Wire> {
    stream: &'s mut Stream,
    wire: &'s mut W,
    gathered: &'s mut [u8],
    used: usize,
    /// Offset of the gathered bytes that are in no piece yet.
    run: usize,
    pieces: [Piece<'a>; PIECES],
    count: usize,
    length: usize,
    /// Whether a part is sent already, which may end within an FPDU.
    begun: bool,
}

#[derive(Clone, Copy)]
enum Piece<'a> {
    /// This range of the gathered bytes.
    Gathered(usize, usize),
    Borrowed(&'a [u8]),
}

impl<'a, 's, W: Wire> Batch<'a, 's, W> {
    /// A batch that gathers bytes in `gathered`, which has room for any header and any small payload.
    pub(super) fn new(stream: &'s mut Stream, wire: &'s mut W, gathered: &'s mut [u8]) -> Self {
        let pieces = [Piece::Gathered(0, 0); PIECES];
        Self { stream, wire, gathered, used: 0, run: 0, pieces, count: 0, length: 0, begun: false }
    }

    /// The position of the stream after everything that was added.
    pub(super) fn position(&self) -> u64 {
        self.stream.produced + self.length as u64
    }

    /// Sends the rest.
    pub(super) fn finish(mut self) {
        self.send(false);
    }

    fn send(&mut self, more: bool) {
        if self.count == 0 {
            self.stream.send(&self.gathered[..self.used], more, self.wire);
        } else {
            self.end_run();
            let mut slices = [IoSlice::new(&[]); PIECES];
            for (slice, piece) in slices.iter_mut().zip(&self.pieces[..self.count]) {
                *slice = IoSlice::new(match *piece {
                    Piece::Gathered(from, to) => &self.gathered[from..to],
                    Piece::Borrowed(bytes) => bytes,
                });
            }
            self.stream.transmit(&slices[..self.count], self.length, more, self.wire);
        }
        (self.used, self.run, self.count, self.length) = (0, 0, 0, 0);
        if self.begun && self.stream.fault.is_some() {
            // A Terminate would lie within the FPDU that cannot be finished.
            self.stream.close();
        }
        self.begun = self.stream.fault.is_none();
    }

    /// Makes a piece of the gathered bytes that are in none. There is always room for one piece.
    fn end_run(&mut self) {
        if self.used > self.run {
            self.pieces[self.count] = Piece::Gathered(self.run, self.used);
            self.count += 1;
            self.run = self.used;
        }
    }
}

impl<'a, W: Wire> Output<'a> for Batch<'a, '_, W> {
    #[inline]
    fn copied(&mut self, bytes: &[u8]) {
        if bytes.len() > self.gathered.len() - self.used {
            self.send(true);
        }
        let end = self.used + bytes.len();
        self.gathered[self.used..end].copy_from_slice(bytes);
        self.used = end;
        self.length += bytes.len();
    }

    #[inline(always)]
    fn borrowed(&mut self, bytes: &'a [u8]) {
        if bytes.len() <= SMALL {
            return self.copied(bytes);
        }
        // Three pieces are needed: the bytes gathered before it, it, and the bytes gathered after it.
        if self.count + 3 > PIECES {
            self.send(true);
        }
        self.end_run();
        self.pieces[self.count] = Piece::Borrowed(bytes);
        self.count += 1;
        self.length += bytes.len();
    }
}
