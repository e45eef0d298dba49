//! Which of this side's requests a fault concerns: the peer refuses it in its Terminate message, or its memory
//! cannot be written.

use iwarp_wire::ddp::Header;
use iwarp_wire::rdmap;

use super::{Fault, Machine, Violation};
use crate::CompletionStatus;

/// The request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// A requested read. `before` is the number of requested reads that precede it and are not reported.
    Read { before: usize, status: CompletionStatus },
    /// The write that is being sent, which the peer refused.
    Write,
}

impl Machine {
    /// The request that fails by this fault, if it is none of those that the fault's own parts know: of a
    /// response that cannot be written its read, of a Terminate that refuses a request the one whose header it
    /// repeats [RFC 5040 4.8-8].
    ///
    /// The header of a read has its sequence number. The header of a write has a key and an offset: they show
    /// whether it is the write that is being sent. A write that is sent already has no entry here. If its delivery
    /// is to be confirmed, a read of no bytes follows it, which fails in its place.
    ///
    /// Not every peer repeats a usable header: soft iWARP's names no outstanding read. Then the oldest request is
    /// meant, if that is a read.
    pub(super) fn failed(&self, fault: Option<&Fault>) -> Option<Failed> {
        let terminate = match fault? {
            Fault::Terminated(terminate) => terminate,
            Fault::Violation(Violation::LocalTarget) if self.receiver.is_in_response() => {
                let before = self.reads.oldest_position()?;
                return Some(Failed::Read { before, status: CompletionStatus::LocalAccess });
            }
            Fault::Violation(_) => return None,
        };
        let refused = |before| Failed::Read { before, status: CompletionStatus::RemoteAccess };
        if !terminate.is_protection() {
            return None;
        }
        let named = match self.receiver.terminated_header() {
            Some(Header::Tagged(header)) if self.transmitter.is_writing_to(header.stag, header.offset) => {
                return Some(Failed::Write);
            }
            Some(Header::Tagged(_)) if terminate.may_be_of_write() => {
                return self.reads.empty_position().map(refused);
            }
            Some(Header::Untagged(header)) if header.queue == rdmap::READ_QUEUE => {
                self.reads.position(header.sequence)
            }
            _ => None,
        };
        let oldest = || self.transmitter.awaits_read().then_some(0);
        named.or_else(oldest).map(refused)
    }
}
