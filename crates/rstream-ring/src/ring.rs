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

mod leaving;
mod reader;
mod writer;

pub use reader::{Reader, ReaderState};
pub use writer::{Writer, WriterState};

#[cfg(not(loom))]
use crate::memory::Ring;
#[cfg(loom)]
use crate::models::Ring;

/// Bytes that are published, and looked for, in one part of a large call.
const PART: usize = if cfg!(loom) { 2 } else { 16 << 10 };

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

/// Bits of a window's size in its word.
const WINDOW_BITS: u32 = 29;
const WINDOW: u64 = (1 << WINDOW_BITS) - 1;

/// What the writer says of its window: its size, and the number of the byte at its beginning. The reader
/// learns from it where the next byte lies.
fn window_word(window: usize, first: u64) -> u64 {
    window as u64 | first << WINDOW_BITS
}

#[cfg(all(test, not(loom)))]
mod tests;
