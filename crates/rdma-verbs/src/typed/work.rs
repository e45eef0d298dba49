//! Operations: what they do, and the memory that moves into them and comes back. `work/operation` and `work/batch`
//! are the futures of their ends.

mod batch;
mod in_flight;
mod operation;

pub use self::batch::Batch;
pub(super) use self::in_flight::InFlight;
pub use self::operation::Operation;
use self::sealed::KEY;
use super::core::Core;
use super::endpoint::Handle;
use super::slots::SlotId;
use super::{Error, Failed, Remote, TrustedDevice};
use crate::memory::OutOfBounds;
use crate::{Access, Operation as Verb, Payload, Segment, SendRequest};

/// Memory that an operation can use: a [`Buf`](super::Buf), a [`Piece`](super::Piece) of a region, or several
/// [`Pieces`](super::Pieces).
pub trait Lend: sealed::Lend {}

pub(super) mod sealed {
    use crate::Segment;
    use crate::typed::registration::{Registration, Spans};

    /// Memory as spans. A user who is generic over [`Lend`](super::Lend) could call this, but has no [`Key`].
    pub trait Lend: Sized + Unpin {
        /// Its segments. Only the first one may be empty, if it is the only one.
        fn segments(&self, key: Key) -> &[Segment];
        /// Calls `each` with the registrations of all its spans, until it fails.
        fn try_for_each<E>(&self, each: impl Fn(&Registration) -> Result<(), E>, key: Key) -> Result<(), E>;
        /// Takes its spans. It has none then.
        fn lend(&mut self, key: Key) -> Spans;
        fn restore(spans: Spans, key: Key) -> Self;
    }

    /// Only the typed layer makes one.
    #[derive(Clone, Copy)]
    pub struct Key(pub(in crate::typed) ());

    /// The only one.
    pub(in crate::typed) const KEY: Key = Key(());
}

/// An operation to post.
#[derive(Debug)]
#[must_use = "it is done when it is posted"]
pub struct Work<M> {
    /// Without spans while a slot has them.
    memory: M,
    verb: Verb,
    /// Length of the peer's memory, if the operation names some.
    room: Option<u32>,
    is_fenced: bool,
}

impl<M: Lend> Work<M> {
    fn new(memory: M, verb: Verb, room: Option<u32>) -> Self {
        Self { memory, verb, room, is_fenced: false }
    }

    /// Sends the memory as a message: it arrives in the peer's oldest receive.
    pub fn send(memory: M) -> Self {
        Self::new(memory, Verb::Send { immediate: None, invalidate: None, solicited: false }, None)
    }

    /// Like [`Work::send`], and invalidates a key of the peer.
    pub fn send_invalidate(memory: M, key: u32) -> Self {
        Self::new(memory, Verb::Send { immediate: None, invalidate: Some(key), solicited: false }, None)
    }

    /// Writes the memory to the beginning of the peer's.
    pub fn write(memory: M, remote: Remote) -> Self {
        let verb = Verb::Write { remote: remote.start(), immediate: None };
        Self::new(memory, verb, Some(remote.length))
    }

    /// Like [`Work::write`], and tells the peer, in its oldest receive, with this number.
    pub fn write_immediate(memory: M, remote: Remote, immediate: u64) -> Self {
        let verb = Verb::Write { remote: remote.start(), immediate: Some(immediate) };
        Self::new(memory, verb, Some(remote.length))
    }

    /// Reads the beginning of the peer's memory into this memory, as much as there is room for here.
    pub fn read(memory: M, remote: Remote) -> Self {
        Self::new(memory, Verb::Read { remote: remote.start() }, Some(remote.length))
    }

    /// Has a send or write begin when all reads posted before it are done, so that it can have what they
    /// fetch, as in a [`Batch`] with them. It has no number
    /// ([`Work::write_immediate`]).
    pub fn fenced(self) -> Self {
        Self { is_fenced: true, ..self }
    }

    /// The memory of an operation that is not posted.
    pub(super) fn into_memory(self) -> M {
        self.memory
    }

    /// Takes the memory. What stays has no spans.
    #[inline]
    fn take_memory(&mut self) -> M {
        M::restore(self.memory.lend(KEY), KEY)
    }

    /// Whether [`Work::check`] has nothing to find: it needs nothing but memory of this shard, and has that.
    #[inline]
    fn is_fine<D: TrustedDevice>(&self, handle: &Handle<D>) -> bool {
        self.room.is_none() && handle.owns(&self.memory)
    }

    /// Checks what a device may report only by breaking the connection.
    #[inline(never)]
    fn check<D: TrustedDevice>(&self, handle: &Handle<D>, core: &Core<D>) -> Result<(), Error> {
        let length: u64 = self.memory.segments(KEY).iter().map(|segment| u64::from(segment.length)).sum();
        if let Some(room) = self.room.filter(|&room| length > room.into()) {
            let (length, size) = (usize::try_from(length).unwrap_or(usize::MAX), room as usize);
            return Err(OutOfBounds { offset: 0, length, size }.into());
        }
        let needed = match self.verb {
            Verb::Read { .. } if core.attributes.private_read_sinks => Access::LOCAL_WRITE,
            Verb::Read { .. } => Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            Verb::Send { .. } | Verb::Write { .. } => Access::empty(),
        };
        handle.check(&self.memory, needed)
    }

    /// The segments of an operation without bytes. Some adapters take a length of 0 for 2 GiB, and a read needs
    /// a segment.
    #[cold]
    fn without_bytes<'s>(&self, segment: &'s [Segment]) -> &'s [Segment] {
        if matches!(self.verb, Verb::Read { .. }) { segment } else { &[] }
    }

    /// The request with this id and these segments.
    #[inline]
    fn request<'s>(&self, id: SlotId, segments: &'s [Segment]) -> SendRequest<'s> {
        let segments = match segments {
            [Segment { length: 0, .. }] => self.without_bytes(segments),
            segments => segments,
        };
        let payload = if self.is_fenced { Payload::Fenced(segments) } else { Payload::Segments(segments) };
        SendRequest { id: id.0, signaled: true, operation: self.verb, payload }
    }
}

/// The output of a future.
#[inline]
fn output<M>(memory: M, failure: Option<Error>) -> Result<M, Failed<M>> {
    match failure {
        None => Ok(memory),
        Some(error) => Err(Failed { memory, error }),
    }
}
