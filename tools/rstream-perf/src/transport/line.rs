//! A yardstick for ping-pong: one cache line that two processors take from each other. No answer between
//! two processes comes sooner.

use std::sync::atomic::Ordering::{Acquire, Release};

use anyhow::{Result, bail};

use super::mapping::Mapping;
use super::{Connector, Interest, Listener, Stream};

const SIZE: usize = 4096;
/// Instead of a turn: there will be no more.
const ENDED: u64 = u64::MAX;

/// One end of it. A message of any length is the next number in the line, without content.
pub(crate) struct Line {
    memory: Mapping,
    /// The number that the next message has, whoever sends it.
    turn: u64,
}

impl Stream for Line {
    #[inline]
    fn send(&mut self, data: &[u8]) -> Result<Option<usize>> {
        self.memory.word(0).store(self.turn, Release);
        self.turn += 1;
        Ok(Some(data.len()))
    }

    #[inline]
    fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        match self.memory.word(0).load(Acquire) {
            ENDED => Ok(Some(0)),
            turn if turn == self.turn => {
                self.turn += 1;
                Ok(Some(buffer.len()))
            }
            _ => Ok(None),
        }
    }

    fn finish(&mut self) -> Result<()> {
        self.memory.word(0).store(ENDED, Release);
        Ok(())
    }

    fn sleep(_: &[Self], _: Interest) -> Result<()> {
        bail!("a cache line is nothing to sleep on")
    }
}

/// The side that makes the memory: it has one connection.
pub(crate) struct LineDoor(Option<Mapping>);

impl LineDoor {
    pub(crate) fn open() -> Result<Self> {
        Ok(Self(Some(Mapping::create(SIZE)?)))
    }
}

impl Listener for LineDoor {
    type Stream = Line;

    fn target(&self) -> Result<String> {
        Ok(self.0.as_ref().map(Mapping::name).unwrap_or_default())
    }

    fn accept(&mut self) -> Result<Line> {
        match self.0.take() {
            Some(memory) => Ok(Line { memory, turn: 1 }),
            None => bail!("a cache line has one connection"),
        }
    }
}

/// The name of the memory.
pub(crate) struct LineWay(pub(crate) String);

impl Connector for LineWay {
    type Stream = Line;

    fn connect(&mut self) -> Result<Line> {
        Ok(Line { memory: Mapping::open(&self.0)?, turn: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_alternate_and_end() {
        let mut door = LineDoor::open().unwrap();
        let mut near = LineWay(door.target().unwrap()).connect().unwrap();
        let mut far = door.accept().unwrap();
        for _ in 0..3 {
            assert_eq!(far.receive(&mut [0; 64]).unwrap(), None);
            near.send(&[0; 64]).unwrap();
            assert_eq!(near.receive(&mut [0; 64]).unwrap(), None);
            assert_eq!(far.receive(&mut [0; 64]).unwrap(), Some(64));
            far.send(&[0; 64]).unwrap();
            assert_eq!(near.receive(&mut [0; 64]).unwrap(), Some(64));
        }
        near.finish().unwrap();
        assert_eq!(far.receive(&mut [0; 64]).unwrap(), Some(0));
    }
}
