//! Parts of an FPDU that have to be whole before they mean something.

use crate::iwarp::{ddp, mpa};

/// Bytes of the longest header with its length field.
pub(super) const HEAD: usize = mpa::FPDU_LENGTH_FIELD + ddp::UNTAGGED;

/// Bytes that are collected until they are whole.
#[derive(Debug)]
pub(super) struct Partial<const N: usize> {
    bytes: [u8; N],
    filled: usize,
}

impl<const N: usize> Partial<N> {
    /// None yet.
    pub(super) fn new() -> Self {
        Self { bytes: [0; N], filled: 0 }
    }

    /// What is there.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }

    /// Begins anew.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    /// Takes all bytes at once, of which the first `count` matter.
    #[inline]
    pub(super) fn set(&mut self, bytes: [u8; N], count: usize) {
        self.bytes = bytes;
        self.filled = count.min(N);
    }

    /// Adds bytes; what does not fit is of no interest.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(N - self.filled);
        self.bytes[self.filled..self.filled + count].copy_from_slice(&bytes[..count]);
        self.filled += count;
    }
}

/// Bytes of length field and header that are needed, as far as `head` tells: the length field,
/// then the byte that tells the kind of header, then the header, or what the FPDU has of it.
pub(super) fn wanted_head(head: &[u8]) -> usize {
    let Some((field, header)) = head.split_first_chunk() else { return mpa::FPDU_LENGTH_FIELD };
    let ulpdu = usize::from(u16::from_be_bytes(*field));
    let header = header.first().map_or(1, |&control| ddp::header_length(control));
    mpa::FPDU_LENGTH_FIELD + header.min(ulpdu)
}

/// Length of the ULPDU, and the header as far as it is there.
pub(super) fn split_head(head: &[u8]) -> (usize, &[u8]) {
    match head.split_first_chunk() {
        Some((field, header)) => (usize::from(u16::from_be_bytes(*field)), header),
        None => (0, &[]),
    }
}
