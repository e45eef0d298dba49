//! Indices of a ring buffer, without its memory.
//!
//! Offsets count the bytes of the stream and only grow; a `u64` lasts for centuries. An index is
//! an offset's place in the ring. The two are kept side by side so that no step has to divide.
//!
//! Invariant of [`Ring`]: `freed <= next.offset <= freed + size`, so whatever is subtracted here
//! fits a `u32`. Used for the peer's ring, the local send ring and the local receive ring.

/// A place in the stream and in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Position {
    /// Bytes of the stream before this place.
    pub(super) offset: u64,
    /// Its index in the ring, below the ring's size.
    pub(super) index: u32,
}

impl Position {
    /// The place `length` bytes further on in a ring of `size`; `length` is at most `size`.
    pub(super) fn after(self, length: u32, size: u32) -> Self {
        debug_assert!(length <= size);
        let left = size - self.index;
        let index = if length < left { self.index + length } else { length - left };
        Self { offset: self.offset + u64::from(length), index }
    }
}

/// One ring as its writer sees it: where the next byte goes and how many may follow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ring {
    size: u32,
    next: Position,
    freed: u64,
}

impl Ring {
    /// An empty ring of `size` bytes (at least 1).
    pub(super) fn new(size: u32) -> Self {
        Self { size, next: Position::default(), freed: 0 }
    }

    /// Its size in bytes.
    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// Where the next byte goes.
    pub(super) fn next(&self) -> Position {
        self.next
    }

    /// The offset up to which bytes were freed.
    pub(super) fn freed(&self) -> u64 {
        self.freed
    }

    /// Bytes written and not freed.
    pub(super) fn in_use(&self) -> u32 {
        (self.next.offset - self.freed) as u32
    }

    /// Bytes that may be written now.
    pub(super) fn room(&self) -> u32 {
        self.size - self.in_use()
    }

    /// Bytes from the next place to the end of the ring; never 0.
    pub(super) fn until_wrap(&self) -> u32 {
        self.size - self.next.index
    }

    /// Takes the next `length` bytes, at most [`Ring::room`]; answers where they begin.
    pub(super) fn take(&mut self, length: u32) -> Position {
        debug_assert!(length <= self.room());
        let start = self.next;
        self.next = start.after(length, self.size);
        start
    }

    /// Frees the oldest `length` bytes, at most [`Ring::in_use`].
    pub(super) fn free(&mut self, length: u32) {
        debug_assert!(length <= self.in_use());
        self.freed += u64::from(length);
    }
}
