//! The byte stream towards the peer: what goes straight to the socket and what has to wait for it.

use std::io::IoSlice;

use super::violation::Violation;

/// Takes bytes for the peer: a socket, or a test's queue.
pub trait Wire {
    /// Takes as many bytes of `pieces`, in order, as go out now. `more` says that more follows at
    /// once.
    fn transmit(&mut self, pieces: &[IoSlice<'_>], more: bool) -> Taken;
}

/// How much a [`Wire`] took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// So many bytes; fewer than given: no more now.
    Bytes(usize),
    /// None, now or ever.
    Dead,
    /// None: some of them are in memory that cannot be read.
    Unreadable,
}

/// Staging that is kept when it is empty; a larger one is given back.
pub(super) const KEPT: usize = 4096;
/// Longest payload that is copied beside its header rather than pointed to.
const SMALL: usize = 256;
/// Pieces of one call to [`Wire::transmit`].
const PIECES: usize = 8;

/// The stream's position, and the bytes that the socket did not take yet.
///
/// `taken <= produced`; the difference is what is staged, plus what a [`Batch`] holds.
#[derive(Debug, Default)]
pub(super) struct Stream {
    staged: Vec<u8>,
    start: usize,
    produced: u64,
    taken: u64,
    closed: bool,
    /// Why bytes are missing in it: there was no memory for staging, or they could not be read.
    fault: Option<Violation>,
}

impl Stream {
    /// Bytes given out by the machine so far, staged or not.
    pub(super) fn produced(&self) -> u64 {
        self.produced
    }

    /// Bytes that the socket took so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Bytes that wait for the socket.
    pub(super) fn staged(&self) -> usize {
        self.staged.len() - self.start
    }

    /// Whether nothing goes out any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Why bytes are missing in it, if some are.
    #[inline]
    pub(super) fn fault(&self) -> Option<&Violation> {
        self.fault.as_ref()
    }

    /// Sends what is staged. Answers whether nothing is left.
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

    /// Sends `bytes`, of which the socket may leave some to be staged.
    pub(super) fn send<W: Wire>(&mut self, bytes: &[u8], wire: &mut W) {
        self.produced += bytes.len() as u64;
        self.transmit(&[IoSlice::new(bytes)], bytes.len(), false, wire);
    }

    /// Sends `pieces`, of which the socket may leave some to be staged.
    pub(super) fn send_pieces<W: Wire>(&mut self, pieces: &[IoSlice<'_>], wire: &mut W) {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        self.produced += length as u64;
        self.transmit(pieces, length, false, wire);
    }

    /// Gives memory back, if nothing is staged and it is much.
    pub(super) fn shrink(&mut self) {
        if self.staged() == 0 && self.staged.capacity() > KEPT {
            self.staged = Vec::new();
        }
    }

    /// Drops what is staged: it will never go out.
    pub(super) fn discard(&mut self) {
        self.staged = Vec::new();
        self.start = 0;
    }

    fn close(&mut self) {
        self.closed = true;
        self.discard();
    }

    /// Sends `pieces` of `length` bytes in all, already counted as produced, and stages the rest.
    fn transmit<W: Wire>(&mut self, pieces: &[IoSlice<'_>], length: usize, more: bool, wire: &mut W) {
        if self.closed {
            return;
        }
        let mut skip = 0;
        if self.staged() == 0 {
            match wire.transmit(pieces, more) {
                Taken::Bytes(count) => skip = count.min(length),
                Taken::Dead => return self.close(),
                Taken::Unreadable => {
                    self.fault = Some(Violation::LocalPlace);
                    return;
                }
            }
            self.taken += skip as u64;
        }
        if skip == length {
            return;
        }
        if !self.make_room(length - skip) {
            return;
        }
        for piece in pieces {
            let passed = skip.min(piece.len());
            self.staged.extend_from_slice(&piece[passed..]);
            skip -= passed;
        }
    }

    /// Makes room for exactly `more` bytes, moving what is staged to the front. How many there can be
    /// is the user's choice, so that a refusal by the system ends the stream and not the process.
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

/// Where encoded messages go. `'a` is the life of the caller's payload.
pub(super) trait Output<'a> {
    /// Adds bytes that are gone afterwards.
    fn copied(&mut self, bytes: &[u8]);
    /// Adds bytes that stay until the output is finished.
    fn borrowed(&mut self, bytes: &'a [u8]);
}

/// Output that waits for a later flush.
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

/// Output that goes to the socket in as few calls as possible: headers and small payloads are
/// gathered, large payloads are pointed to.
pub(super) struct Batch<'a, 's, W: Wire> {
    stream: &'s mut Stream,
    wire: &'s mut W,
    gathered: &'s mut [u8],
    used: usize,
    /// Where the gathered bytes begin that are in no piece yet.
    run: usize,
    pieces: [Piece<'a>; PIECES],
    count: usize,
    length: usize,
}

#[derive(Clone, Copy)]
enum Piece<'a> {
    /// This range of the gathered bytes.
    Gathered(usize, usize),
    Borrowed(&'a [u8]),
}

impl<'a, 's, W: Wire> Batch<'a, 's, W> {
    /// A batch that gathers in `gathered`, which has room for any header and small payload.
    pub(super) fn new(stream: &'s mut Stream, wire: &'s mut W, gathered: &'s mut [u8]) -> Self {
        let pieces = [Piece::Gathered(0, 0); PIECES];
        Self { stream, wire, gathered, used: 0, run: 0, pieces, count: 0, length: 0 }
    }

    /// The stream's position after what was added.
    pub(super) fn position(&self) -> u64 {
        self.stream.produced + self.length as u64
    }

    /// Sends what is left.
    pub(super) fn finish(mut self) {
        self.send(false);
    }

    fn send(&mut self, more: bool) {
        self.stream.produced += self.length as u64;
        if self.count == 0 {
            let slice = IoSlice::new(&self.gathered[..self.used]);
            self.stream.transmit(&[slice], self.length, more, self.wire);
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
    }

    /// Makes a piece of the gathered bytes that are in none. There is always room for one.
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
        // Three more: what is gathered before it, itself, and what will be gathered behind it.
        if self.count + 3 > PIECES {
            self.send(true);
        }
        self.end_run();
        self.pieces[self.count] = Piece::Borrowed(bytes);
        self.count += 1;
        self.length += bytes.len();
    }
}
