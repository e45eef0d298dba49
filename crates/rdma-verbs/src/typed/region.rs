//! Regions: memory that peers may read and write, and how its place is told to them.

use std::mem;
use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use super::registration::{Registration, Span, Spans};
use super::work::{Lend, sealed};
use super::{Error, Result};
use crate::memory::OutOfBounds;
use crate::{Access, Memory, ProtectionDomain, RemoteAddress, Segment};

/// Registered memory with rights for peers. Its bytes are only copied, because a peer may change them at any
/// time. When the last clone and the last operation on it are gone, its key is invalid.
#[derive(Debug, Clone)]
pub struct Region(Arc<Registration>);

impl Region {
    pub(super) fn new<P>(shard: u64, pd: &P, memory: Arc<Memory>, access: Access) -> Result<Self>
    where
        P: ProtectionDomain<Mr: 'static>,
    {
        Ok(Self(Registration::new(shard, pd, memory, access, 0)?))
    }

    /// Deregisters it, if nothing else refers to it.
    pub(super) fn deregister(self) -> std::result::Result<(), Self> {
        Arc::try_unwrap(self.0).map(drop).map_err(Self)
    }

    /// The address of its first byte in this process, for code that accesses the bytes as [`Memory`] says.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.0.memory().address()
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "no region is empty")]
    pub fn len(&self) -> usize {
        self.0.memory().len()
    }

    /// Copies `target.len()` bytes from `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]
    pub fn read(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        Ok(self.0.memory().read(offset as u64, target)?)
    }

    /// Copies `source` to `offset`.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]
    pub fn write(&self, offset: usize, source: &[u8]) -> Result<()> {
        Ok(self.0.memory().write(offset as u64, source)?)
    }

    /// A piece of it, to be the local memory of an operation.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]
    pub fn piece(&self, range: Range<usize>) -> Result<Piece> {
        let error = OutOfBounds { offset: range.start as u64, length: range.len(), size: self.len() };
        if range.start > range.end || range.end > self.len() {
            return Err(error.into());
        }
        let length = u32::try_from(range.len()).map_err(|_| error)?;
        Ok(Piece(self.0.piece(range.start, length)))
    }

    /// A piece of it, as a peer has to name it.
    pub(super) fn remote_piece(&self, range: Range<usize>) -> Result<Remote> {
        // `remote` is no longer than an offset can tell.
        let offset = u32::try_from(range.start).unwrap_or(u32::MAX);
        let Piece(span) = self.piece(range)?;
        self.remote().piece(offset, span.segment.length)
    }

    pub(super) fn registration(&self) -> &Registration {
        &self.0
    }

    /// The whole region, as a peer has to name it.
    #[must_use]
    pub fn remote(&self) -> Remote {
        // `new` allows no greater length.
        let length = u32::try_from(self.len()).unwrap_or(u32::MAX);
        Remote { key: self.0.remote_key(), address: self.0.address, length }
    }
}

/// A piece of a [`Region`], which moves into an operation and comes back when the operation is done. Pieces
/// may overlap.
#[derive(Debug)]
pub struct Piece(Span);

impl sealed::Lend for Piece {
    fn segments(&self, _: sealed::Key) -> &[Segment] {
        slice::from_ref(&self.0.segment)
    }

    fn try_for_each<E>(
        &self,
        each: impl Fn(&Registration) -> std::result::Result<(), E>,
        _: sealed::Key,
    ) -> std::result::Result<(), E> {
        self.0.registration.as_deref().map_or(Ok(()), each)
    }

    fn lend(&mut self, _: sealed::Key) -> Spans {
        mem::take(&mut self.0).into()
    }

    fn restore(spans: Spans, _: sealed::Key) -> Self {
        Self(spans.into_first())
    }
}

impl Lend for Piece {}

/// Pieces of regions, one after the other: what one send or write has as its payload. The device has a limit
/// for their number; reads take one [`Piece`].
#[derive(Debug)]
pub struct Pieces(Spans);

impl Pieces {
    /// These pieces. `None` if there are none.
    #[must_use]
    pub fn new(pieces: impl IntoIterator<Item = Piece>) -> Option<Self> {
        Spans::new(pieces.into_iter().map(|Piece(span)| span)).map(Self)
    }
}

impl sealed::Lend for Pieces {
    fn segments(&self, _: sealed::Key) -> &[Segment] {
        self.0.segments()
    }

    fn try_for_each<E>(
        &self,
        each: impl Fn(&Registration) -> std::result::Result<(), E>,
        _: sealed::Key,
    ) -> std::result::Result<(), E> {
        self.0.try_for_each(each)
    }

    fn lend(&mut self, _: sealed::Key) -> Spans {
        mem::take(&mut self.0)
    }

    fn restore(spans: Spans, _: sealed::Key) -> Self {
        Self(spans)
    }
}

impl Lend for Pieces {}

/// Memory of a peer. It is a name: the peer's device checks the key, the bounds and the rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// The peer's key.
    pub key: u32,
    /// The address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
}

impl Remote {
    /// Length of an advertisement in bytes.
    pub const ADVERT: usize = 16;

    /// The memory from `offset` on, `length` bytes.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`]
    pub fn piece(&self, offset: u32, length: u32) -> Result<Self> {
        let end = u64::from(offset) + u64::from(length);
        let address = self.address.checked_add(offset.into());
        match address.filter(|_| end <= self.length.into()) {
            Some(address) => Ok(Self { key: self.key, address, length }),
            None => Err(OutOfBounds {
                offset: offset.into(),
                length: length as usize,
                size: self.length as usize,
            }
            .into()),
        }
    }

    /// The advertisement: address, key and length, big-endian, as rdma-core's `rping` sends it.
    #[must_use]
    pub fn to_advert(&self) -> [u8; Self::ADVERT] {
        let mut advert = [0; Self::ADVERT];
        advert[..8].copy_from_slice(&self.address.to_be_bytes());
        advert[8..12].copy_from_slice(&self.key.to_be_bytes());
        advert[12..].copy_from_slice(&self.length.to_be_bytes());
        advert
    }

    /// The memory that an advertisement names.
    ///
    /// # Errors
    /// [`Error::NoAdvert`] if the message has another length.
    pub fn from_advert(message: &[u8]) -> Result<Self> {
        let expected = Self::ADVERT;
        let no_advert = || Error::NoAdvert { length: message.len(), expected };
        let (address, rest) = message.split_first_chunk().ok_or_else(no_advert)?;
        let (key, length) = rest.split_first_chunk().ok_or_else(no_advert)?;
        let length = length.try_into().map_err(|_| no_advert())?;
        Ok(Self {
            key: u32::from_be_bytes(*key),
            address: u64::from_be_bytes(*address),
            length: u32::from_be_bytes(length),
        })
    }

    pub(super) fn start(&self) -> RemoteAddress {
        RemoteAddress { key: self.key, address: self.address }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advert_has_the_layout_of_rping() {
        let memory = Remote { key: 0x0a0b_0c0d, address: 0x0102_0304_0506_0708, length: 0x1112_1314 };
        let advert = memory.to_advert();
        assert_eq!(advert, *b"\x01\x02\x03\x04\x05\x06\x07\x08\x0a\x0b\x0c\x0d\x11\x12\x13\x14");
        assert_eq!(Remote::from_advert(&advert).unwrap(), memory);
        for length in [0, 8, 12, 15, 17] {
            let error = Remote::from_advert(&vec![0; length]).unwrap_err();
            assert_eq!(error.to_string(), format!("an advertisement has 16 bytes, the message has {length}"));
        }
    }

    #[test]
    fn a_piece_of_remote_memory_stays_within_it() {
        let memory = Remote { key: 1, address: u64::MAX - 2, length: 8 };
        assert_eq!(memory.piece(2, 6).unwrap().address, u64::MAX);
        assert!(memory.piece(3, 5).is_err(), "the address wraps around");
        assert!(memory.piece(2, 7).is_err() && memory.piece(u32::MAX, u32::MAX).is_err());
    }
}
