//! How the engine drives the inboxes of its endpoints.

use super::{HEADER, Inbox, PAYLOAD, Parts, Violation};
use crate::provider::message::endpoint::Phase;
use crate::provider::message::engine::State;
use rdma_verbs::{CompletionStatus, Connections as _, Device, MessageQueues as _};

impl<D: Device> State<D> {
    /// Runs a call on the inbox of the endpoint at this index, if it has one.
    pub(in super::super) fn with_inbox<R>(
        &mut self,
        at: usize,
        call: impl FnOnce(&mut Inbox, &mut Parts<'_, D::Cq>) -> R,
    ) -> Option<R> {
        let link = self.links.get_mut(at)?;
        let mut inbox = link.inbox.take()?;
        let mut parts = Parts { at, link, cq: &mut self.cq, queues: &mut self.queues };
        let outcome = call(&mut inbox, &mut parts);
        if inbox.awaits_end() && parts.link.phase != Phase::Over {
            self.ending.insert(at);
        }
        parts.link.inbox = Some(inbox);
        Some(outcome)
    }

    /// Takes the completion of a receive that an inbox has posted.
    #[cold]
    pub(in super::super) fn take_in(
        &mut self,
        at: usize,
        place: usize,
        status: CompletionStatus,
        (length, immediate): (usize, Option<u64>),
    ) {
        // Others are requests of an operation that has more.
        if !matches!(place, HEADER | PAYLOAD) {
            return;
        }
        let taken = self.with_inbox(at, |inbox, parts| {
            let taken = match place {
                HEADER => inbox.take_header(parts, status, length),
                _ => inbox.take_payload(parts, status, length),
            };
            taken.and(immediate.map_or(Ok(()), |_| Err(Violation("immediate data"))))
        });
        if let Some(Err(Violation(what))) = taken {
            self.strangers.push((at, what));
        }
        self.has_new_receives = true;
    }

    /// Ends the connection of a peer that does not follow the protocol.
    fn refuse(&mut self, at: usize, what: &str) {
        // It may have connected only now.
        self.advance(at);
        let Some(link) = self.links.get_mut(at) else { return };
        link.statistics.refused = true;
        let qp = link.qp;
        if let Some(peer) = self.cq.peer_address(qp) {
            log::warn!(target: "ep_ctrl", "{peer} has sent {what}");
        }
        self.cq.abort(qp);
        self.shut(at);
    }

    /// Looks whether the device has noticed the end of connections that [`Inbox::awaits_end`], and ends those of
    /// strangers. What ends them may drive others, and find more.
    #[cold]
    pub(in super::super) fn look_at_inboxes(&mut self) {
        if std::mem::replace(&mut self.is_looking, true) {
            return;
        }
        let mut ending = std::mem::take(&mut self.ending);
        ending.retain(|&at| {
            let Some(link) = self.links.get(at) else { return false };
            if self.cq.has_ended(link.qp) {
                self.advance(at);
            }
            self.links.get(at).is_some_and(|link| {
                let awaits_end = link.inbox.as_ref().is_some_and(|inbox| inbox.awaits_end());
                awaits_end && link.phase != Phase::Over
            })
        });
        // `advance` may have added others.
        self.ending.append(&mut ending);
        while let Some((at, what)) = self.strangers.pop() {
            self.refuse(at, what);
        }
        self.is_looking = false;
    }
}
