//! Responses to the peer's reads. One that takes a single segment is copied beside what else is sent. A longer one is
//! sent straight from the memory that is read.

use super::super::encode::{self, Chunk, Encoder, Head};
use super::super::reads::{Reads, Served};
use super::super::stream::{Output as _, Wire};
use super::super::train::Train;
use super::super::violation::{Purpose, Violation};
use super::super::{Port, Sink};
use super::Transmitter;
use crate::Memory;
use iwarp_wire::rdmap::Opcode;

/// A segment of a response.
struct Segment {
    head: Head,
    /// Offset of its payload in the region that is read.
    offset: u64,
    length: usize,
}

impl Segment {
    /// The segment of at most `room` bytes after `done` bytes of what is left of the response
    /// [RFC 5040 4.4-2, 5.2-1, 5.2.1-9, 5.2.1-12, 5.2.2-1, 5.2.2-5].
    fn of(served: &Served, done: u64, encoder: &Encoder, room: usize) -> Self {
        let left = u64::from(served.left) - done;
        let length = encoder.portion(left).min(room);
        let sink = served.sink_offset.wrapping_add(done);
        let is_last = length as u64 == left;
        let head = encode::tagged(Opcode::ReadResponse, served.sink_stag, sink, length, is_last);
        Self { head, offset: served.source_offset + done, length }
    }
}

impl Served {
    /// The memory that is read, if it still may be.
    fn memory(&self) -> Option<&Memory> {
        self.source.as_deref().filter(|region| region.is_valid()).map(|region| region.memory())
    }

    /// What the connection fails with if the memory cannot be read.
    fn unreadable(&self) -> Violation {
        let stag = self.source.as_ref().map_or(0, |region| region.stag());
        Violation::Stag { purpose: Purpose::Read, stag }
    }
}

impl Transmitter {
    /// Whether the response that is next is sent straight from memory: what is left of it takes more than one
    /// segment. With a CRC it is copied, because the memory may change after the CRC is computed.
    pub(super) fn responds_direct(&self, reads: &Reads) -> bool {
        let Some(served) = reads.next_served() else { return false };
        let left = u64::from(served.left);
        !self.encoder.crc && self.encoder.portion(left) as u64 != left
    }

    /// Adds a segment of a response.
    pub(super) fn respond(&self, chunk: &mut Chunk<'_>, reads: &mut Reads) -> Result<(), Violation> {
        let Some(served) = reads.next_served() else { return Ok(()) };
        let Segment { head, mut offset, length } = Segment::of(served, 0, &self.encoder, chunk.room());
        let memory = served.memory();
        let is_copied = chunk.segment(&self.encoder, &head, length, |place| {
            let count = memory.map_or(0, |memory| encode::copy(memory, offset, place));
            offset += count as u64;
            count
        });
        if !is_copied {
            return Err(served.unreadable());
        }
        reads.responded(length);
        Ok(())
    }

    /// Sends segments of a response straight from the memory that is read. Returns whether the socket may take
    /// more.
    pub(super) fn respond_direct<W: Wire, S: Sink>(
        &mut self,
        reads: &mut Reads,
        port: &mut Port<'_, W, S>,
    ) -> Result<bool, Violation> {
        let Some(served) = reads.next_served() else { return Ok(false) };
        let mut train = Train::new(port.scratch);
        let mut done = 0;
        while train.has_room() && done < u64::from(served.left) {
            let Segment { head, offset, length } = Segment::of(served, done, &self.encoder, usize::MAX);
            let source = served.memory().and_then(|memory| memory.source(offset, length).ok());
            let payload = source.ok_or_else(|| served.unreadable())?;
            let (trailer, trailing) = self.encoder.trailer(&head, 0);
            train.copied(head.bytes());
            train.payload(payload);
            train.copied(&trailer[..trailing]);
            train.end_fpdu();
            done += length as u64;
        }
        let loaded = train.len();
        let begun = self.stream.send_train(&mut train, port.wire).ok_or_else(|| served.unreadable())?;
        let responded = (0..begun)
            .fold(0, |done, _| done + Segment::of(served, done, &self.encoder, usize::MAX).length as u64);
        reads.responded(responded as usize);
        Ok(begun == loaded)
    }
}
