//! What an inbox does with the other parts of its endpoint: it posts receives, and reports.

use super::Receive;
use crate::abi::{Completion, UserContext, constants};
use crate::provider::message::endpoint::Link;
use crate::provider::message::engine::id_of;
use crate::provider::message::operation::{Entry, Operation};
use crate::provider::message::queues::Queues;
use rdma_verbs::{Buffer, CompletionQueue, CompletionStatus, Error, RecvRequest};
use rstream_protocol::tag::Header;

/// See the module.
pub(in super::super) struct Parts<'a, C> {
    /// Its index in the engine.
    pub(super) at: usize,
    pub(super) link: &'a mut Link,
    pub(super) cq: &'a mut C,
    pub(super) queues: &'a mut Queues,
}

impl<C: CompletionQueue> Parts<'_, C> {
    /// Posts a receive. `false` if the connection has ended, or ends because there is no memory.
    pub(super) fn post(&mut self, place: usize, buffer: Buffer<'_>) -> bool {
        let qp = self.link.qp;
        let posted = self.cq.post_recv(qp, &[RecvRequest { id: id_of(self.at, place), buffer }]);
        if !matches!(posted, Ok(()) | Err(Error::BadState { .. })) {
            self.cq.abort(qp);
        }
        posted.is_ok()
    }

    /// Reports a receive whose message is there, or failed.
    pub(super) fn finish(&mut self, operation: usize, header: &Header, failure: Option<CompletionStatus>) {
        let Some(mut done) = self.link.operations.try_remove(operation) else { return };
        let length = header.length as usize;
        let is_cut = length > done.room as usize;
        done.failure = failure.or(is_cut.then_some(CompletionStatus::Truncated));
        done.tag = header.tag.unwrap_or(0);
        self.link.statistics.received(&done, length);
        self.ended(&done);
        match done.failure {
            None if self.link.rx.is_selective && !done.asks => {}
            None => self.report(Entry::Success(done.completion(length, header.data))),
            Some(status) => self.report(done.failure(status, length, header.data)),
        }
    }

    /// Copies a message to its receive, and reports it.
    pub(super) fn deliver(&mut self, receive: &Receive, header: &Header, mut bytes: &[u8]) {
        for place in &receive.places {
            bytes = &bytes[place.fill(bytes)..];
        }
        self.finish(receive.operation, header, None);
    }

    /// Reports that a receive is cancelled.
    pub(super) fn cancel(&mut self, operation: usize) {
        let Some(mut done) = self.link.operations.try_remove(operation) else { return };
        done.failure = Some(CompletionStatus::Flushed);
        self.ended(&done);
        self.report(done.cancelled());
    }

    fn ended(&mut self, done: &Operation) {
        self.link.ended(done.kind);
        self.link.counters.count(done.kind, done.failure.is_none());
    }

    /// Reports a message to a call that asked for it.
    pub(super) fn report_message(&mut self, header: &Header, context: UserContext) {
        let data_flag = if header.data.is_some() { constants::FI_REMOTE_CQ_DATA } else { 0 };
        let flags = constants::FI_TAGGED | constants::FI_RECV | data_flag;
        let length = header.length as usize;
        let (data, tag) = (header.data.unwrap_or(0), header.tag.unwrap_or(0));
        self.report(Entry::Success(Completion { context, flags, length, data, tag }));
    }

    pub(super) fn report(&mut self, entry: Entry) {
        self.queues[self.link.rx.at].push(entry);
    }
}
