//! A queue pair's use of memory that it shares with a peer on the same host.

use std::net::SocketAddr;

use super::super::machine::Sink;
use super::super::membership::PollSets;
use super::{Phase, QueuePair};
use crate::shm::{Channel, Invitation, Meeting, Next, Target};
use crate::{EventTarget, Interest, SendRequest, WaitSet};

/// Looks at shared memory alone that find nothing, until the stream is looked at too: it may carry
/// something, or have ended.
const MAX_IDLE_POLLS: u8 = 200;

/// The channel, and when to look elsewhere.
pub(super) struct Shared {
    pub(super) channel: Channel,
    /// Looks that found nothing since the last one at the stream.
    idle_polls: u8,
    /// Whether the caller was about to sleep: what wakes it may be the stream.
    slept: bool,
    /// Whether the notifier stands in the attached set.
    watched: bool,
}

impl Shared {
    fn new(channel: Channel) -> Box<Self> {
        Box::new(Self { channel, idle_polls: 0, slept: false, watched: false })
    }

    /// Whether to look at the stream as well; `found`: something came by shared memory.
    pub(super) fn must_read_stream(&mut self, next: Next, found: bool) -> bool {
        if matches!(next, Next::Stream(_)) {
            return true;
        }
        if found {
            return false;
        }
        self.idle_polls += 1;
        // A peer that has not joined uses the stream.
        if !self.slept && self.idle_polls < MAX_IDLE_POLLS && self.channel.is_joined() {
            return false;
        }
        (self.idle_polls, self.slept) = (0, false);
        true
    }
}

impl QueuePair {
    /// Makes a place where a peer that is asked to connect can be met.
    pub(in super::super) fn invite(&mut self, target: Target, remote: SocketAddr) -> Option<Invitation> {
        if !matches!(self.phase, Phase::Idle) || self.machine.is_for_messages() {
            return None;
        }
        let (meeting, invitation) = Meeting::open(target, remote)?;
        self.meeting = Some(Box::new(meeting));
        Some(invitation)
    }

    /// Follows the invitation of a peer whose connection is accepted next. `ends`: this side's address,
    /// and the peer's. Answers whether there is shared memory now.
    pub(in super::super) fn visit(
        &mut self,
        invitation: &Invitation,
        target: &Target,
        ends: (SocketAddr, SocketAddr),
        sets: PollSets<'_>,
    ) -> bool {
        if !matches!(self.phase, Phase::Idle) || self.shared.is_some() || self.machine.is_for_messages() {
            return false;
        }
        self.share(Channel::visit(invitation, target, ends), sets);
        self.shared.is_some()
    }

    /// The connection that was asked for stands; `visited`: the peer has followed the invitation.
    pub(in super::super) fn meet(&mut self, visited: bool, sets: PollSets<'_>) {
        let Some(meeting) = self.meeting.take() else { return };
        let ends = self.local.zip(self.peer);
        if let (true, Phase::Open, Some(ends)) = (visited, &self.phase, ends) {
            self.share(meeting.attend(ends, self.machine.consumed() > 0), sets);
        }
    }

    fn share(&mut self, channel: Option<Channel>, sets: PollSets<'_>) {
        self.shared = channel.map(Shared::new);
        if let Some(attached) = sets.attached {
            self.watch_notifier(attached);
        }
    }

    /// Posts sends through shared memory, all or none; none if they have to take the stream.
    #[inline]
    pub(super) fn post_shared(&mut self, requests: &[SendRequest<'_>], sink: &mut impl Sink) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        // What waits for the socket completes first.
        if !self.machine.is_sent() {
            return false;
        }
        let (inline, position) = (self.capabilities.inline, self.machine.produced());
        let posted = shared.channel.post(requests, inline, position);
        if posted {
            self.machine.complete(requests, sink);
        }
        posted
    }

    /// Asks for the next wake-up by the peer. Answers whether something is there already.
    pub(in super::super) fn arm(&mut self, attached: Option<&EventTarget>) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        shared.slept = true;
        let found = shared.channel.arm();
        if let (true, Some(attached)) = (shared.channel.is_alone(), attached) {
            // The connection tells of the peer's end.
            self.unwatch_notifier(&attached.wait);
        }
        found
    }

    /// Whether memory is shared with the peer: then it has to be looked at without being found ready.
    pub(in super::super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Has the peer's notifications make the set of `target` readable, from the next message on.
    pub(in super::super) fn watch_notifier(&mut self, target: &EventTarget) {
        let Some(shared) = &mut self.shared else { return };
        match target.wait.add(shared.channel.notifier(), target.token, Interest::Read) {
            Ok(()) => {
                shared.watched = true;
                self.arm(Some(target));
            }
            Err(error) => log::warn!("iwarp: cannot watch queue pair {}: {error}", self.number.0),
        }
    }

    /// Takes the notifier out of `set`.
    pub(super) fn unwatch_notifier(&mut self, set: &WaitSet) {
        if let Some(shared) = &mut self.shared
            && std::mem::take(&mut shared.watched)
        {
            // It is there: `watched` said so.
            let _ = set.remove(shared.channel.notifier());
        }
    }
}
