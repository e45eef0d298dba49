//! The memory that a queue pair shares with a peer on the same host.

use std::net::SocketAddr;

use super::super::machine::Sink;
use super::super::membership::PollSets;
use super::{Phase, QueuePair};
use crate::shm::{Channel, Invitation, Meeting, Next, Target};
use crate::{EventTarget, Interest, SendRequest, WaitSet};

/// Number of polls that find nothing in shared memory before the stream is read as well: it may have data, or
/// have ended.
const MAX_IDLE_POLLS: u8 = 200;

/// The channel, and when to read the stream.
pub(super) struct Shared {
    pub(super) channel: Channel,
    /// Number of polls that found nothing since the stream was last read.
    idle_polls: u8,
    /// Whether the caller was about to sleep. The stream may have woken it.
    slept: bool,
    /// Whether the notifier is in the attached set.
    watched: bool,
}

impl Shared {
    fn new(channel: Channel) -> Box<Self> {
        Box::new(Self { channel, idle_polls: 0, slept: false, watched: false })
    }

    /// Whether to read the stream as well. `found`: something arrived in shared memory.
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
    /// Offers a rendezvous to a peer, before connecting to it.
    pub(in super::super) fn invite(&mut self, target: Target, remote: SocketAddr) -> Option<Invitation> {
        if !matches!(self.phase, Phase::Idle) || self.machine.is_for_messages() {
            return None;
        }
        let (meeting, invitation) = Meeting::open(target, remote)?;
        self.meeting = Some(Box::new(meeting));
        Some(invitation)
    }

    /// Connects to the rendezvous of a peer whose connection is accepted next. `ends`: the addresses of this
    /// side and of the peer. Returns whether memory is shared.
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

    /// Finishes the rendezvous after the connection is established. `visited`: the peer has connected to the
    /// rendezvous.
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

    /// Posts sends through shared memory: all of them or, if they have to use the stream, none.
    #[inline]
    pub(super) fn post_shared(&mut self, requests: &[SendRequest<'_>], sink: &mut impl Sink) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        // Requests that wait for the socket complete first.
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

    /// Requests a wake-up by the peer. Returns whether something has arrived already.
    pub(in super::super) fn arm(&mut self, attached: Option<&EventTarget>) -> bool {
        let Some(shared) = &mut self.shared else { return false };
        shared.slept = true;
        let found = shared.channel.arm();
        if let (true, Some(attached)) = (shared.channel.is_alone(), attached) {
            // The connection shows the peer's end.
            self.unwatch_notifier(&attached.wait);
        }
        found
    }

    /// Whether memory is shared with the peer. Then no set reports that there is something to poll.
    pub(in super::super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Adds the notifier to the set of `target`, which is readable from the next message on.
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

    /// Removes the notifier from `set`.
    pub(super) fn unwatch_notifier(&mut self, set: &WaitSet) {
        if let Some(shared) = &mut self.shared
            && std::mem::take(&mut shared.watched)
        {
            // It cannot fail: `watched` says that the notifier is there.
            let _ = set.remove(shared.channel.notifier());
        }
    }
}
