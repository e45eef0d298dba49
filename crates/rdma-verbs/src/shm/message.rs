//! What one side tells the other in a slot of a lane: two words.
//!
//! ```text
//! head   bit 0 lap │ bits 1–7 kind │ bits 8–63 offset
//! body   bits 0–31 immediate │ bits 32–63 length        (kind "stream": a position, 64 bits)
//! ```
//!
//! The lap is the lane's: it tells a new message from what the slot held before.

/// A message of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The writer has placed bytes in the reader's shared memory.
    Write {
        /// Where, in bytes from its beginning.
        offset: u64,
        /// How many.
        length: u32,
        /// With it the write takes a receive.
        immediate: Option<u32>,
    },
    /// A send without payload.
    Send {
        /// Its immediate data.
        immediate: u32,
    },
    /// What comes next is in the connection's own stream, up to this position.
    Stream(u64),
}

/// Words that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Garbage {
    /// First word.
    pub head: u64,
    /// Second word.
    pub body: u64,
}

/// Bit of the lap in the first word.
pub(super) const LAP: u64 = 1;
const KIND_SHIFT: u32 = 1;
const KIND_MASK: u64 = 0x7f;
const OFFSET_SHIFT: u32 = 8;
/// Greatest offset that a slot can carry.
pub(super) const MAX_OFFSET: u64 = u64::MAX >> OFFSET_SHIFT;

const WRITE: u64 = 1;
const WRITE_IMMEDIATE: u64 = 2;
const SEND: u64 = 3;
const STREAM: u64 = 4;

impl Message {
    /// The two words, head first, without a lap. An offset beyond [`MAX_OFFSET`] is cut.
    pub(super) fn encode(self) -> (u64, u64) {
        let body = |length: u32, immediate: u32| u64::from(length) << 32 | u64::from(immediate);
        let (kind, offset, body) = match self {
            Self::Write { offset, length, immediate: None } => (WRITE, offset, body(length, 0)),
            Self::Write { offset, length, immediate: Some(word) } => {
                (WRITE_IMMEDIATE, offset, body(length, word))
            }
            Self::Send { immediate } => (SEND, 0, body(0, immediate)),
            Self::Stream(position) => (STREAM, 0, position),
        };
        (offset << OFFSET_SHIFT | kind << KIND_SHIFT, body)
    }

    /// What two words say.
    pub(super) fn decode(head: u64, body: u64) -> Result<Self, Garbage> {
        let (offset, length, word) = (head >> OFFSET_SHIFT, (body >> 32) as u32, body as u32);
        match head >> KIND_SHIFT & KIND_MASK {
            WRITE => Ok(Self::Write { offset, length, immediate: None }),
            WRITE_IMMEDIATE => Ok(Self::Write { offset, length, immediate: Some(word) }),
            SEND => Ok(Self::Send { immediate: word }),
            STREAM => Ok(Self::Stream(body)),
            _ => Err(Garbage { head, body }),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let messages = [
            Message::Write { offset: 0, length: 0, immediate: None },
            Message::Write { offset: MAX_OFFSET, length: u32::MAX, immediate: None },
            Message::Write { offset: 7, length: 9, immediate: Some(u32::MAX) },
            Message::Send { immediate: 0x8000_0001 },
            Message::Stream(u64::MAX),
        ];
        for message in messages {
            let (head, body) = message.encode();
            assert_eq!(head & LAP, 0, "the lap is the lane's");
            assert_eq!(Message::decode(head | LAP, body), Ok(message));
        }
    }

    #[test]
    fn unknown_kinds_are_refused() {
        for kind in (0..=KIND_MASK).filter(|kind| !(WRITE..=STREAM).contains(kind)) {
            let head = kind << KIND_SHIFT | LAP;
            assert_eq!(Message::decode(head, 1), Err(Garbage { head, body: 1 }));
        }
    }
}
