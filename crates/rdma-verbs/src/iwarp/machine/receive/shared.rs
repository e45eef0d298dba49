//! Messages that came by shared memory: they do what those of the stream do when they are complete.

use super::Receiver;
use super::begin::named;
use crate::Access;
use crate::iwarp::machine::Sink;
use crate::iwarp::machine::violation::{Purpose, Violation};
use crate::iwarp::region::RegionCache;
use crate::shm::Message;

impl Receiver {
    /// Takes a message; writes went to the region that `key` names.
    pub(in super::super) fn arrive(
        &mut self,
        message: Message,
        key: u32,
        regions: &mut RegionCache,
        sink: &mut impl Sink,
    ) -> Result<(), Violation> {
        self.opened = true;
        match message {
            Message::Write { offset, length, immediate } => {
                let length = u64::from(length);
                named(Purpose::Write, key, Access::REMOTE_WRITE, offset, length, regions)?;
                self.written = Some(self.written.unwrap_or(0).saturating_add(length));
                immediate.map_or(Ok(()), |word| self.deliver_immediate(word.into(), sink))
            }
            Message::Send { immediate } => self.deliver_immediate(immediate.into(), sink),
            Message::Stream(_) => Ok(()),
        }
    }
}
