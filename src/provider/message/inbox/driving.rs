//! How the engine drives the inboxes of its endpoints.

use std::collections::BTreeSet;

use super::{HEADER, Inbox, PAYLOAD, Parts, Violation};
use crate::provider::message::endpoint::Phase;
use crate::provider::message::engine::State;
use rdma_verbs::{CompletionStatus, Connections as _, Device, MessageQueues as _};

/// What the inboxes of a domain's endpoints have left to do after a call on one of them.
#[derive(Default)]
pub(in super::super) struct InboxTasks {
    /// Whether receives were posted, for which there may be messages already.
    has_new_receives: bool,
    /// Indexes of the endpoints that may [wait for the end](Inbox::awaits_end) of their connections.
    ending: BTreeSet<usize>,
    /// Indexes of the endpoints whose peers do not follow the protocol, and what these have sent.
    strangers: Vec<(usize, &'static str)>,
    /// Whether a call looks at these two.
    is_looking: bool,
}

impl InboxTasks {
    /// Whether the device is to be polled once more.
    #[inline]
    pub(in super::super) fn take_new_receives(&mut self) -> bool {
        std::mem::take(&mut self.has_new_receives)
    }

    /// Whether [`State::look_at_inboxes`] has something to look at.
    #[inline]
    pub(in super::super) fn has_any(&self) -> bool {
        !self.ending.is_empty() || !self.strangers.is_empty()
    }

    /// Whether it has connections to end.
    #[inline]
    pub(in super::super) fn has_strangers(&self) -> bool {
        !self.strangers.is_empty() && !self.is_looking
    }
}

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
            self.tasks.ending.insert(at);
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
            self.tasks.strangers.push((at, what));
        }
        self.tasks.has_new_receives = true;
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
        if std::mem::replace(&mut self.tasks.is_looking, true) {
            return;
        }
        let mut ending = std::mem::take(&mut self.tasks.ending);
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
        self.tasks.ending.append(&mut ending);
        while let Some((at, what)) = self.tasks.strangers.pop() {
            self.refuse(at, what);
        }
        self.tasks.is_looking = false;
    }
}
