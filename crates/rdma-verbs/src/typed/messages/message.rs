//! Messages that arrive, and the memory that they are read into.

use std::fmt;
use std::ops::Deref;

use super::wire::Header;
use crate::typed::registration::{Registration, Spans};
use crate::typed::work::Lend;
use crate::typed::work::sealed::{self, KEY, Lend as _};
use crate::typed::{Buf, Piece, Received, Result, Shard, TrustedDevice};
use crate::{Access, AnyDevice, Segment};

/// A message of a peer: a slice of bytes. Dropping it lets the peer send another one. If a program holds as
/// many as [`Options::window`](super::Options::window), the peer has to wait.
pub struct Message<D: TrustedDevice = AnyDevice> {
    /// What arrived: the message after its header, or its offer.
    received: Received<D>,
    /// The bytes of an offered message.
    read: Option<Bytes>,
}

/// The bytes of an offered message.
pub(super) enum Bytes {
    Buf(Buf),
    /// Memory that has rights for peers is never given out as a slice.
    Copy(Vec<u8>),
}

impl<D: TrustedDevice> Message<D> {
    pub(super) fn new(received: Received<D>, read: Option<Bytes>) -> Self {
        Self { received, read }
    }
}

impl<D: TrustedDevice> Deref for Message<D> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.read {
            None => self.received.get(Header::LENGTH..).unwrap_or_default(),
            Some(Bytes::Buf(buf)) => buf,
            Some(Bytes::Copy(bytes)) => bytes,
        }
    }
}

impl<D: TrustedDevice> fmt::Debug for Message<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("length", &self.len()).finish_non_exhaustive()
    }
}

/// The memory that an offered message is read into. iWARP adapters need a region for that.
pub(super) enum Target {
    Buf(Buf),
    Piece(Piece),
}

impl Target {
    pub(super) fn new<D: TrustedDevice>(shard: &Shard<D>, length: u32) -> Result<Self> {
        if shard.inner.with(|core| core.attributes.private_read_sinks) {
            return Ok(Self::Buf(shard.pool(1, length)?.take()?));
        }
        let region = shard.region(length as usize, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(Self::Piece(region.piece(0..length as usize)?))
    }

    /// The bytes, after the read is done.
    pub(super) fn into_bytes(self) -> Result<Bytes> {
        match self {
            Self::Buf(buf) => Ok(Bytes::Buf(buf)),
            Self::Piece(mut piece) => {
                let span = piece.lend(KEY).into_first();
                let mut bytes = vec![0; span.segment.length as usize];
                span.read(&mut bytes)?;
                Ok(Bytes::Copy(bytes))
            }
        }
    }
}

impl sealed::Lend for Target {
    fn segments(&self, key: sealed::Key) -> &[Segment] {
        match self {
            Self::Buf(buf) => buf.segments(key),
            Self::Piece(piece) => piece.segments(key),
        }
    }

    fn try_for_each<E>(
        &self,
        each: impl Fn(&Registration) -> std::result::Result<(), E>,
        key: sealed::Key,
    ) -> std::result::Result<(), E> {
        match self {
            Self::Buf(buf) => buf.try_for_each(each, key),
            Self::Piece(piece) => piece.try_for_each(each, key),
        }
    }

    fn lend(&mut self, key: sealed::Key) -> Spans {
        match self {
            Self::Buf(buf) => buf.lend(key),
            Self::Piece(piece) => piece.lend(key),
        }
    }

    fn restore(spans: Spans, key: sealed::Key) -> Self {
        if spans.first.chunk() > 0 {
            Self::Buf(Buf::restore(spans, key))
        } else {
            Self::Piece(Piece::restore(spans, key))
        }
    }
}

impl Lend for Target {}
