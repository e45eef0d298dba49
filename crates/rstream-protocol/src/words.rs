//! The 32-bit words that peers send each other: what each bit says, in both formats
//! (`docs/protocol.md`, section "Words").

use super::Violation;

/// How words and data travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WordFormat {
    /// Immediate data: a data message is one RDMA write with immediate 0, a control message one
    /// send with immediate and no payload. Devices put immediates on the wire in network order.
    Immediate,
    /// Words in four-byte sends, for devices without immediate data: a data message is an RDMA
    /// write and then a send of its word. Bytes of a word go least significant first.
    Iwarp,
}

impl WordFormat {
    /// Longest data message that the format can express, in bytes.
    pub(super) const fn longest_data(self) -> u32 {
        match self {
            Self::Immediate => u32::MAX,
            Self::Iwarp => LENGTH_MASK,
        }
    }

    /// Send-queue entries that one data message takes. A control message takes one.
    pub const fn data_entries(self) -> u32 {
        match self {
            Self::Immediate => 1,
            Self::Iwarp => 2,
        }
    }

    /// The word of a data message of `length` bytes, at most [`WordFormat::longest_data`].
    pub(super) const fn data_word(self, length: u32) -> u32 {
        match self {
            Self::Immediate => DATA_IMMEDIATE,
            Self::Iwarp => DATA_BIT | length,
        }
    }
}

/// Immediate of a data message; its length is in the completion.
pub(super) const DATA_IMMEDIATE: u32 = 0;
/// Set in the four-byte word of a data message.
pub(super) const DATA_BIT: u32 = 1 << 31;
/// Length in the four-byte word of a data message.
pub(super) const LENGTH_MASK: u32 = (1 << 20) - 1;
/// Longest data that may come in the send of its word, behind it, where both sides named
/// [`super::Features::SHORT_DATA`].
pub const SHORT_DATA_MOST: u32 = 124;
/// Ring bytes freed, in a control word.
pub(super) const BYTES_MASK: u32 = (1 << 20) - 1;
/// Lowest bit of the receives freed, in a control word.
pub(super) const RECEIVES_SHIFT: u32 = 20;
/// Most receives that one control word can return.
pub(super) const RECEIVES_MAX: u16 = (1 << 9) - 1;
/// The sender will write no more.
pub(super) const END_BIT: u32 = 1 << 29;
/// The sender has closed both directions.
pub(super) const CLOSE_BIT: u32 = 1 << 30;

/// A control word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Control {
    /// Bytes of the sender's ring that are free again, 20 bits.
    pub bytes: u32,
    /// Receives that the sender has posted again, 9 bits.
    pub receives: u16,
    /// The sender will write no more.
    pub end: bool,
    /// The sender has closed both directions.
    pub close: bool,
}

impl Control {
    /// The word; never 0, provided that the value says anything at all.
    pub(super) fn encode(self) -> u32 {
        debug_assert!(self.bytes <= BYTES_MASK && self.receives <= RECEIVES_MAX);
        let mut word = self.bytes | u32::from(self.receives) << RECEIVES_SHIFT;
        if self.end {
            word |= END_BIT;
        }
        if self.close {
            word |= CLOSE_BIT;
        }
        word
    }

    /// Reads a control word. `endings` tells whether both sides named the end-of-stream feature;
    /// without it bits 29 and 30 are as unknown as bit 31.
    ///
    /// # Errors
    /// [`Violation`] for bits without a meaning, and for a word that says nothing.
    pub fn decode(word: u32, endings: bool) -> Result<Self, Violation> {
        let receives = word >> RECEIVES_SHIFT & u32::from(RECEIVES_MAX);
        let known = BYTES_MASK
            | u32::from(RECEIVES_MAX) << RECEIVES_SHIFT
            | if endings { END_BIT | CLOSE_BIT } else { 0 };
        if word & !known != 0 {
            return Err(Violation::UnknownBits { word, unknown: word & !known });
        }
        if word == 0 {
            return Err(Violation::EmptyControl);
        }
        Ok(Self {
            bytes: word & BYTES_MASK,
            receives: receives as u16,
            end: word & END_BIT != 0,
            close: word & CLOSE_BIT != 0,
        })
    }
}

/// What a four-byte word announces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The write before it placed this many bytes.
    Data {
        /// Length in bytes.
        length: u32,
    },
    /// A control word.
    Control(Control),
}

impl Word {
    /// Reads a four-byte word; see [`Control::decode`] for `endings`.
    ///
    /// # Errors
    /// [`Violation`] for bits without a meaning, and for a word that says nothing.
    pub fn decode(word: u32, endings: bool) -> Result<Self, Violation> {
        if word & DATA_BIT == 0 {
            return Control::decode(word, endings).map(Self::Control);
        }
        let unknown = word & !(DATA_BIT | LENGTH_MASK);
        if unknown != 0 {
            return Err(Violation::UnknownBits { word, unknown });
        }
        Ok(Self::Data { length: word & LENGTH_MASK })
    }
}
