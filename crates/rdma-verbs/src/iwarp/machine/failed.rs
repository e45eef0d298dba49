//! Which request a fault concerns. It fails for that reason; all others are flushed.

use iwarp_wire::ddp::{Header, Tagged};
use iwarp_wire::rdmap::{self, Terminate};

use super::{Fault, Machine, Violation};
use crate::CompletionStatus;

/// The request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// The receive that a message has consumed.
    Receive(CompletionStatus),
    /// A read. `before` is the number of reads that precede it and are not reported.
    Read { before: usize, status: CompletionStatus },
    /// The write that is being sent, which the peer refused.
    Write,
}

impl Machine {
    /// The request that fails because of `fault`. A request whose own memory cannot be read is not meant: the
    /// transmitter knows it.
    pub(super) fn failed(&self, fault: &Fault) -> Option<Failed> {
        match fault {
            Fault::Terminated(terminate) => self.refused(terminate),
            Fault::Violation(Violation::TooLong { .. }) => Some(Failed::Receive(CompletionStatus::Truncated)),
            Fault::Violation(Violation::LocalKey(_)) if self.transmitter.fault().is_none() => {
                Some(Failed::Receive(CompletionStatus::LocalAccess))
            }
            Fault::Violation(Violation::LocalTarget) if self.receiver.is_in_send() => {
                Some(Failed::Receive(CompletionStatus::LocalAccess))
            }
            Fault::Violation(Violation::LocalTarget) if self.receiver.is_in_response() => {
                let status = CompletionStatus::LocalAccess;
                self.reads.oldest_position().map(|before| Failed::Read { before, status })
            }
            Fault::Violation(_) => None,
        }
    }

    /// The request that a Terminate refuses, by the header that it repeats [RFC 5040 4.8-8].
    ///
    /// The header of a read has its sequence number. The header of a write has a key and an offset: they show
    /// whether it is the write that is being sent. A write that is sent already has no entry here. If its delivery
    /// is to be confirmed, a read of no bytes follows it, which fails in its place.
    ///
    /// Not every peer repeats a usable header: soft iWARP's names no outstanding read. Then the oldest request is
    /// meant, if that is a read.
    fn refused(&self, terminate: &Terminate) -> Option<Failed> {
        if !terminate.is_protection() {
            return None;
        }
        let read = |before| Failed::Read { before, status: CompletionStatus::RemoteAccess };
        let named = match self.receiver.terminated_header() {
            Some(Header::Tagged(Tagged { stag, offset, .. })) => {
                match self.reads.confirming_position(stag, offset) {
                    // What is requested precedes what is being sent.
                    Some((before, true)) => Some(before),
                    _ if self.transmitter.is_writing_to(stag, offset) => return Some(Failed::Write),
                    None if terminate.may_be_of_write() => return None,
                    waiting => waiting.map(|(before, _)| before),
                }
            }
            Some(Header::Untagged(header)) if header.queue == rdmap::READ_QUEUE => {
                self.reads.position(header.sequence)
            }
            _ => None,
        };
        let oldest = || self.transmitter.awaits_read().then_some(0);
        named.or_else(oldest).map(read)
    }
}
