//! FPDUs that are sent by one system call, the payload of each straight from where it is.

use super::MAX_PLACES;
use super::stream::Output;
use crate::memory::Source;

/// Maximum number of FPDUs with payload in a train: those of a message of 1 MiB.
const FPDUS: usize = 17;
/// Maximum number of pieces of memory in a train. Usually each FPDU has two, its header with what precedes it, and
/// its payload.
const PIECES: usize = 2 * FPDUS + MAX_PLACES;

/// See the module.
pub(super) struct Train<'m> {
    pieces: [Source<'m>; PIECES],
    count: usize,
    /// Number of bytes up to the end of each FPDU.
    ends: [usize; FPDUS],
    fpdus: usize,
    /// Number of bytes in all.
    length: usize,
    /// Where headers and trailers are gathered. The first `run` bytes are in no piece yet.
    room: &'m mut [u8],
    run: usize,
}

impl<'m> Train<'m> {
    /// A train that gathers headers and trailers in `room`, a scratch buffer.
    pub(super) fn new(room: &'m mut [u8]) -> Self {
        let pieces = [Source::default(); PIECES];
        Self { pieces, count: 0, ends: [0; FPDUS], fpdus: 0, length: 0, room, run: 0 }
    }

    /// Whether it has room for another FPDU, whose payload is in at most [`MAX_PLACES`] pieces. One with immediate
    /// data behind it counts as one.
    pub(super) fn has_room(&self) -> bool {
        // Each payload is preceded by a header, and a trailer follows the last one.
        self.fpdus < FPDUS && self.count + MAX_PLACES + 2 <= PIECES
    }

    /// Adds payload.
    pub(super) fn payload(&mut self, payload: Source<'m>) {
        self.end_run();
        self.add(payload);
        self.length += payload.len();
    }

    /// Ends an FPDU.
    pub(super) fn end_fpdu(&mut self) {
        self.ends[self.fpdus] = self.length;
        self.fpdus += 1;
    }

    /// Number of FPDUs.
    pub(super) fn len(&self) -> usize {
        self.fpdus
    }

    /// Everything that was added, in order, and the number of bytes up to the end of each FPDU.
    pub(super) fn finish(&mut self) -> (&[Source<'m>], &[usize]) {
        self.end_run();
        (&self.pieces[..self.count], &self.ends[..self.fpdus])
    }

    fn add(&mut self, piece: Source<'m>) {
        self.pieces[self.count] = piece;
        self.count += 1;
    }

    /// Makes a piece of the gathered bytes that are in none.
    fn end_run(&mut self) {
        if self.run > 0 {
            let (run, rest) = std::mem::take(&mut self.room).split_at_mut(self.run);
            self.add(Source::from(&*run));
            (self.room, self.run) = (rest, 0);
        }
    }
}

impl<'m> Output<'m> for Train<'m> {
    fn copied(&mut self, bytes: &[u8]) {
        let end = self.run + bytes.len();
        self.room[self.run..end].copy_from_slice(bytes);
        self.run = end;
        self.length += bytes.len();
    }

    fn borrowed(&mut self, bytes: &'m [u8]) {
        self.payload(Source::from(bytes));
    }
}
