//! Memory that an application lends to operations.

use std::ptr::NonNull;

use libc::iovec;

/// Memory of a fixed length, of which pieces are taken one after the other.
pub(super) struct Arena {
    base: NonNull<u8>,
    length: usize,
    used: usize,
}

/// A part of an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    offset: usize,
    pub(super) length: usize,
}

impl Piece {
    /// `length` bytes at `offset` of it.
    pub(super) fn part(self, offset: usize, length: usize) -> Self {
        assert!(offset + length <= self.length);
        Self { offset: self.offset + offset, length }
    }
}

impl Arena {
    pub(super) fn new(length: usize) -> Self {
        let bytes = Box::leak(vec![0_u8; length].into_boxed_slice());
        Self { base: NonNull::from(bytes).cast(), length, used: 0 }
    }

    /// Takes all pieces back.
    pub(super) fn clear(&mut self) {
        self.used = 0;
    }

    /// Number of bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.length - self.used
    }

    /// The next `length` bytes.
    pub(super) fn take(&mut self, length: usize) -> Piece {
        assert!(length <= self.left());
        self.used += length;
        Piece { offset: self.used - length, length }
    }

    /// Gives the piece back that was taken last.
    pub(super) fn give_back(&mut self, piece: Piece) {
        assert_eq!(piece.offset + piece.length, self.used);
        self.used = piece.offset;
    }

    /// The address of a piece.
    pub(super) fn address(&self, piece: Piece) -> *mut u8 {
        // SAFETY: a piece is within the arena (`take`, `part`).
        unsafe { self.base.as_ptr().add(piece.offset) }
    }

    /// The vector of a piece.
    pub(super) fn vector(&self, piece: Piece) -> iovec {
        iovec { iov_base: self.address(piece).cast(), iov_len: piece.length }
    }

    /// Copies a piece out.
    pub(super) fn read(&self, piece: Piece) -> Vec<u8> {
        // SAFETY: a piece is within the arena. The tests have one thread, and what else accesses the arena
        // does so within calls.
        unsafe { std::slice::from_raw_parts(self.address(piece), piece.length) }.to_vec()
    }

    /// Copies bytes to the beginning of a piece.
    pub(super) fn write(&mut self, piece: Piece, bytes: &[u8]) {
        assert!(bytes.len() <= piece.length);
        // SAFETY: as in `read`; `bytes` is no part of the arena, because nothing refers to that.
        unsafe { self.address(piece).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Fills a piece with one byte.
    pub(super) fn fill(&mut self, piece: Piece, byte: u8) {
        // SAFETY: as in `read`.
        unsafe { self.address(piece).write_bytes(byte, piece.length) };
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let bytes = std::ptr::slice_from_raw_parts_mut(self.base.as_ptr(), self.length);
        // SAFETY: leaked from a box in `new` and freed only here. Everything that it was lent to is closed.
        drop(unsafe { Box::from_raw(bytes) });
    }
}
