//! Pools of buffers, and the buffers. Only this file of the typed layer makes references to registered bytes.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::Arc;

use super::registration::{Registration, Span, Spans};
use super::work::{Lend, sealed};
use super::{Error, Result, out_of_range};
use crate::{Access, Memory, ProtectionDomain, Segment};

/// Buffers of one size in memory that is registered without rights for peers. A clone is the same pool.
#[derive(Debug, Clone)]
pub struct Pool {
    registration: Arc<Registration>,
    buffers: u32,
}

impl Pool {
    pub(super) fn new<P>(shard: u64, pd: &P, buffers: u32, size: u32) -> Result<Self>
    where
        P: ProtectionDomain<Mr: 'static>,
    {
        let bytes = u64::from(buffers) * u64::from(size);
        let bytes = usize::try_from(bytes).map_err(|_| out_of_range("pool size", bytes, 1, usize::MAX))?;
        let registration = Registration::new(shard, pd, Memory::zeroed(bytes)?, Access::LOCAL_WRITE, size)?;
        Ok(Self { registration, buffers })
    }

    /// Takes a buffer. Its bytes are those that its last user left.
    ///
    /// # Errors
    /// [`Error::PoolEmpty`]
    pub fn take(&self) -> Result<Buf> {
        let (buffers, size) = (self.buffers, self.registration.chunk);
        self.registration.take().map(Buf).ok_or(Error::PoolEmpty { buffers, size })
    }

    /// Takes a buffer and copies `bytes` to it, which it is as long as then.
    ///
    /// # Errors
    /// [`Error::PoolEmpty`]; [`crate::Error::OutOfRange`] if the bytes are more than fit.
    pub fn copy_of(&self, bytes: &[u8]) -> Result<Buf> {
        let mut buf = self.take()?;
        buf.resize(bytes.len())?;
        buf.copy_from_slice(bytes);
        Ok(buf)
    }

    pub(super) fn registration(&self) -> &Registration {
        &self.registration
    }

    /// Number of buffers that nothing holds.
    #[must_use]
    pub fn available(&self) -> usize {
        self.registration.free()
    }

    /// Size of a buffer in bytes.
    #[must_use]
    pub fn buffer_size(&self) -> usize {
        self.registration.chunk as usize
    }
}

/// A buffer of a [`Pool`]. It moves into an operation and comes back when the operation is done. Dropping it
/// returns it to the pool.
pub struct Buf(Span);

impl Buf {
    /// The buffer that a span of a pool is.
    #[inline]
    pub(super) fn new(span: Span) -> Self {
        Self(span)
    }

    /// Its span.
    #[inline]
    pub(super) fn into_span(self) -> Span {
        self.0
    }

    /// Its span, to be taken from it.
    #[inline]
    pub(super) fn span_mut(&mut self) -> &mut Span {
        &mut self.0
    }

    /// Changes its length. Bytes that this adds are those that its last user left.
    ///
    /// # Errors
    /// [`crate::Error::OutOfRange`] if it is more than the pool's buffers have; nothing changes then.
    pub fn resize(&mut self, length: usize) -> Result<()> {
        let size = self.0.chunk();
        let fits = u32::try_from(length).ok().filter(|&length| length <= size);
        self.0.segment.length =
            fits.ok_or_else(|| out_of_range("buffer length", length as u64, 0, size as usize))?;
        Ok(())
    }

    /// The length that it can have.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.chunk() as usize
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let Some(base) = self.0.base() else { return &[] };
        // SAFETY: the bytes are in the memory of the registration, which lives as long as the span:
        // `Registration::new` makes chunks that are within the memory, the span begins where one of them
        // does, and its length is no more than a chunk's. They are initialized: memory begins as zeros.
        // Nothing writes them while the result lives:
        // - The span is the only one of its chunk: `Registration::take` gives each offset out once until the
        //   span's drop gives it back, and a span is never cloned.
        // - The span of a request is in the shard's slots until the request has completed, or its queue pair
        //   or shared receive queue is destroyed. From then on a `TrustedDevice` does not use the memory.
        //   The exception is `Work::begin`, which posts a request and polls while the buffer is in its `Work`.
        //   It makes no reference to the bytes. If it returns before the request has completed, or if it
        //   unwinds (`Lent`), the span has moved to a slot.
        // - No other request names the bytes: the pool's keys and memory are not given out, the keys are
        //   valid only in the protection domain of the shard, which is not given out either, and the
        //   region has no rights for peers.
        unsafe { slice::from_raw_parts(base, self.0.segment.length as usize) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let Some(base) = self.0.base() else { return &mut [] };
        // SAFETY: as in `deref`. Nothing else reads or writes the bytes while the result lives, for the
        // reasons given there and because `self` is borrowed exclusively. They do not come from a shared
        // reference to bytes: `Memory` has a pointer.
        unsafe { slice::from_raw_parts_mut(base, self.0.segment.length as usize) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf").field("length", &self.len()).field("size", &self.capacity()).finish()
    }
}

impl sealed::Lend for Buf {
    #[inline]
    fn segments(&self, _: sealed::Key) -> &[Segment] {
        slice::from_ref(&self.0.segment)
    }

    #[inline]
    fn try_for_each<E>(
        &self,
        each: impl Fn(&Registration) -> std::result::Result<(), E>,
        _: sealed::Key,
    ) -> std::result::Result<(), E> {
        self.0.registration.as_deref().map_or(Ok(()), each)
    }

    #[inline]
    fn lend(&mut self, _: sealed::Key) -> Spans {
        mem::take(&mut self.0).into()
    }

    #[inline]
    fn restore(spans: Spans, _: sealed::Key) -> Self {
        Self(spans.into_first())
    }
}

impl Lend for Buf {}
