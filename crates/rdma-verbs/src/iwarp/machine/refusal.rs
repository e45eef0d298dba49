//! Which of this side's requests the peer refuses in its Terminate message.

use iwarp_wire::ddp::Header;
use iwarp_wire::rdmap;

use super::{Fault, Machine};

/// The request that the peer refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// A requested read. `before` is the number of requested reads that precede it and are not reported.
    Read { before: usize },
    /// The write that is being sent.
    Write,
}

impl Machine {
    /// The request that a Terminate refuses, by the header that it repeats [RFC 5040 4.8-8].
    ///
    /// The header of a read has its sequence number. The header of a write has a key and an offset: they show
    /// whether it is the write that is being sent. A write that is sent already has no entry here. If its delivery
    /// is to be confirmed, a read of no bytes follows it, which fails in its place.
    ///
    /// Not every peer repeats a usable header: soft iWARP's names no outstanding read. Then the oldest request is
    /// meant, if that is a read.
    pub(super) fn refused(&self, fault: Option<&Fault>) -> Option<Refused> {
        let Some(Fault::Terminated(terminate)) = fault else { return None };
        if !terminate.is_protection() {
            return None;
        }
        let named = match self.receiver.terminated_header() {
            Some(Header::Tagged(header)) if self.transmitter.is_writing_to(header.stag, header.offset) => {
                return Some(Refused::Write);
            }
            Some(Header::Tagged(_)) if terminate.may_be_of_write() => {
                return self.reads.empty_position().map(|before| Refused::Read { before });
            }
            Some(Header::Untagged(header)) if header.queue == rdmap::READ_QUEUE => {
                self.reads.position(header.sequence)
            }
            _ => None,
        };
        let oldest = || self.transmitter.awaits_read().then_some(0);
        named.or_else(oldest).map(|before| Refused::Read { before })
    }
}
