//! The control page: what the two sides tell each other of both rings, apart from the bytes.
//!
//! All zeros are a control page that nobody has used. The peer can write any word at any time.
//!
//! | offset in a direction | size | field | written by |
//! |---|---|---|---|
//! | 0 | 8 | bytes written since the beginning; bit 63: no more will be | writer |
//! | 8 | 4 | not 0: the writer's process is registered, see [`prepare`](crate::prepare) | writer |
//! | 16 | 8 | the base: bytes of the stream that went another way before the first byte here | writer |
//! | 24 | 4 | not 0: the base is valid, also before the first byte | writer |
//! | 32 | 8 | the window: bytes of the ring that are in use (29 bits), and the number of the byte at its beginning (35 bits); 0: the whole ring | writer |
//! | 40 | 4 | the wish to leave the rings: 1: the writer has it, and reads no more; 2: the reader has granted it | both |
//! | 44 | 4 | not 0: the writer has left this ring, and the count of notifications is valid | writer |
//! | 48 | 8 | notifications that the writer has sent before it left | writer |
//! | 128 | 8 | bytes read since the beginning whose room is given back; bit 63: no more will be read | reader |
//! | 136 | 4 | not 0: the reader has mapped the segment | reader |
//! | 144 | 8 | bytes read since the beginning | reader |
//! | 256 | 4 | wait word of the reader | both |
//! | 384 | 4 | wait word of the writer | both |
//!
//! The direction in which the creator writes is at 0, the other at 512.

use crate::sync::{AtomicU32, AtomicU64};
use crate::wait::WaitWord;

/// In a position: this side is done with the direction. What was written or read before counts.
pub(crate) const DONE: u64 = 1 << 63;

/// The control of one ring. Fields that different sides write, or that change at different times, are on
/// lines of their own.
#[repr(C)]
pub(crate) struct Direction {
    pub(crate) writer: Line<Writer>,
    pub(crate) reader: Line<Reader>,
    pub(crate) reader_waits: Line<WaitWord>,
    pub(crate) writer_waits: Line<WaitWord>,
}

/// Two cache lines, because some processors fetch pairs.
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub(crate) T);

#[repr(C)]
pub(crate) struct Writer {
    pub(crate) written: AtomicU64,
    pub(crate) prepared: AtomicU32,
    pub(crate) base: AtomicU64,
    pub(crate) begun: AtomicU32,
    pub(crate) window: AtomicU64,
    pub(crate) wish: AtomicU32,
    pub(crate) left: AtomicU32,
    pub(crate) notifications: AtomicU64,
}

#[repr(C)]
pub(crate) struct Reader {
    pub(crate) read: AtomicU64,
    pub(crate) mapped: AtomicU32,
    pub(crate) taken: AtomicU64,
}

#[cfg(loom)]
impl Default for Direction {
    fn default() -> Self {
        Self {
            writer: Line(Writer {
                written: AtomicU64::new(0),
                prepared: AtomicU32::new(0),
                base: AtomicU64::new(0),
                begun: AtomicU32::new(0),
                window: AtomicU64::new(0),
                wish: AtomicU32::new(0),
                left: AtomicU32::new(0),
                notifications: AtomicU64::new(0),
            }),
            reader: Line(Reader {
                read: AtomicU64::new(0),
                mapped: AtomicU32::new(0),
                taken: AtomicU64::new(0),
            }),
            reader_waits: Line(WaitWord::default()),
            writer_waits: Line(WaitWord::default()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_layout_is_as_published() {
        let offsets = [
            offset_of!(Direction, writer.0.written),
            offset_of!(Direction, writer.0.prepared),
            offset_of!(Direction, writer.0.base),
            offset_of!(Direction, writer.0.begun),
            offset_of!(Direction, writer.0.window),
            offset_of!(Direction, writer.0.wish),
            offset_of!(Direction, writer.0.left),
            offset_of!(Direction, writer.0.notifications),
            offset_of!(Direction, reader.0.read),
            offset_of!(Direction, reader.0.mapped),
            offset_of!(Direction, reader.0.taken),
            offset_of!(Direction, reader_waits),
            offset_of!(Direction, writer_waits),
            size_of::<Direction>(),
        ];
        assert_eq!(offsets, [0, 8, 16, 24, 32, 40, 44, 48, 128, 136, 144, 256, 384, 512]);
    }
}
