//! A yardstick: a ring of bytes in shared memory for each direction, one copy in and one copy out, no
//! protocol at all. Nothing that copies twice is faster.

use std::sync::atomic::Ordering::{Acquire, Release};

use anyhow::{Result, bail};

use super::mapping::Mapping;
use super::{Connector, Interest, Listener, Stream};

/// How far the two counters of a ring are apart: two cache lines, because some processors fetch pairs.
const APART: usize = 128;
/// In the counter of written bytes: no more will be.
const ENDED: u64 = 1 << 63;

/// One end of both rings.
pub(crate) struct Ring {
    memory: Mapping,
    /// Bytes of a ring, a power of two.
    size: usize,
    /// Where the rings are that this end writes and reads: two counters (written, read), then bytes.
    out: usize,
    into: usize,
    /// What this end has written and read, and what it last saw of the other end's counters.
    written: u64,
    written_read: u64,
    read: u64,
    read_written: u64,
}

impl Ring {
    fn new(memory: Mapping, passive: bool) -> Self {
        let second = memory.length() / 2;
        let (out, into) = if passive { (0, second) } else { (second, 0) };
        let size = second - 2 * APART;
        Self { memory, size, out, into, written: 0, written_read: 0, read: 0, read_written: 0 }
    }

    /// The place of the byte with this number in the ring at `ring`, and how many follow it in one piece.
    #[inline]
    fn place(&self, ring: usize, number: u64) -> (usize, usize) {
        let offset = number as usize & (self.size - 1);
        (ring + 2 * APART + offset, self.size - offset)
    }
}

impl Stream for Ring {
    #[inline]
    fn send(&mut self, data: &[u8]) -> Result<Option<usize>> {
        let room = |read: u64| self.size - (self.written - read) as usize;
        if room(self.written_read) < data.len() {
            self.written_read = self.memory.word(self.out + APART).load(Acquire);
        }
        let length = data.len().min(self.size - (self.written - self.written_read) as usize);
        if length == 0 {
            return Ok(None);
        }
        let (at, straight) = self.place(self.out, self.written);
        let (first, rest) = data[..length].split_at(length.min(straight));
        self.memory.copy_in(at, first);
        self.memory.copy_in(self.out + 2 * APART, rest);
        self.written += length as u64;
        self.memory.word(self.out).store(self.written, Release);
        Ok(Some(length))
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        if ((self.read_written & !ENDED) - self.read) < buffer.len() as u64 {
            self.read_written = self.memory.word(self.into).load(Acquire);
        }
        let there = ((self.read_written & !ENDED) - self.read) as usize;
        let length = buffer.len().min(there);
        if length == 0 {
            return Ok((self.read_written & ENDED != 0).then_some(0));
        }
        let (at, straight) = self.place(self.into, self.read);
        let (first, rest) = buffer[..length].split_at_mut(length.min(straight));
        self.memory.copy_out(at, first);
        self.memory.copy_out(self.into + 2 * APART, rest);
        self.read += length as u64;
        self.memory.word(self.into + APART).store(self.read, Release);
        Ok(Some(length))
    }

    fn finish(&mut self) -> Result<()> {
        self.memory.word(self.out).fetch_or(ENDED, Release);
        Ok(())
    }

    fn sleep(_: &[Self], _: Interest) -> Result<()> {
        bail!("a bare ring has nothing to sleep on")
    }
}

/// The side that makes the memory: it has one connection.
pub(crate) struct RingDoor(Option<Mapping>);

impl RingDoor {
    pub(crate) fn open(size: usize) -> Result<Self> {
        Ok(Self(Some(Mapping::create(2 * (2 * APART + size.next_power_of_two()))?)))
    }
}

impl Listener for RingDoor {
    type Stream = Ring;

    fn target(&self) -> Result<String> {
        Ok(self.0.as_ref().map(Mapping::name).unwrap_or_default())
    }

    fn accept(&mut self) -> Result<Ring> {
        match self.0.take() {
            Some(memory) => Ok(Ring::new(memory, true)),
            None => bail!("a bare ring has one connection"),
        }
    }
}

/// The name of the memory.
pub(crate) struct RingWay(pub(crate) String);

impl Connector for RingWay {
    type Stream = Ring;

    fn connect(&mut self) -> Result<Ring> {
        Ok(Ring::new(Mapping::open(&self.0)?, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_in_order_around_the_end_of_the_ring() {
        let mut door = RingDoor::open(256).unwrap();
        let mut near = RingWay(door.target().unwrap()).connect().unwrap();
        let mut far = door.accept().unwrap();
        let (mut sent, mut received) = (0_u8, 0_u8);
        for _ in 0..100 {
            let data: Vec<u8> = (0..100).map(|at| sent.wrapping_add(at)).collect();
            let taken = near.send(&data).unwrap().unwrap();
            sent = sent.wrapping_add(taken as u8);
            let mut buffer = [0; 90];
            let given = far.receive(&mut buffer).unwrap().unwrap();
            for &byte in &buffer[..given] {
                assert_eq!(byte, received);
                received = received.wrapping_add(1);
            }
        }
        assert_eq!(near.send(&[0; 256]).unwrap(), Some(256 - usize::from(sent.wrapping_sub(received))));
        assert_eq!(near.send(&[0]).unwrap(), None, "a full ring takes nothing");
    }

    #[test]
    fn the_end_comes_after_the_last_byte() {
        let mut door = RingDoor::open(256).unwrap();
        let mut near = RingWay(door.target().unwrap()).connect().unwrap();
        let mut far = door.accept().unwrap();
        assert_eq!(far.receive(&mut [0; 8]).unwrap(), None);
        near.send(b"last").unwrap();
        near.finish().unwrap();
        assert_eq!(far.receive(&mut [0; 8]).unwrap(), Some(4));
        assert_eq!(far.receive(&mut [0; 8]).unwrap(), Some(0));
    }
}
