//! Completions and connection events from the device to the protocol, and control words back.

use std::time::Instant;

use rdma_verbs::{
    self as verbs, BreakReason, Completion, CompletionKind, CompletionQueue, CompletionStatus,
    ConnectionEvent, Connections, Device,
};
use rstream_protocol::{Arrival, RecvState, Stream, Violation};

use super::super::queue_pair::{REPOST_CHAIN, StreamQueuePair};
use super::Connection;

impl<D: Device> Connection<D> {
    /// Handles all completions and connection events, and posts the control words that are due.
    pub fn progress(&mut self) {
        self.held = false;
        loop {
            while self.poll() {}
            if !self.poll_events() {
                break;
            }
        }
        self.drive_rings();
        self.flush_control();
    }

    /// Posts the control words that are due (window updates, end of stream), and disconnects when both
    /// directions are over.
    pub(super) fn flush_control(&mut self) {
        while !self.ended
            && let Some(message) = self.stream.next_control()
        {
            self.held = false;
            self.post_used_receives();
            if let Err(error) = self.queue_pair.post_control(self.format, &message) {
                self.fail(&error);
            }
        }
        if self.stream.is_over() && self.stream.outgoing_done() {
            self.disconnect();
        }
    }

    /// Handles completions while `continues` holds. Connection events are polled only for a reason, because
    /// that drives the device once more.
    pub(super) fn drive_while(&mut self, continues: impl Fn(&Stream) -> bool) {
        while continues(&self.stream) {
            let more = self.poll() || (self.expects_event() && self.poll_events());
            if !more {
                break;
            }
        }
    }

    /// Whether to poll connection events after an empty poll. One reason is the queue pair's deadline: a
    /// caller that only polls must learn that the peer's host vanished. Only one empty poll in 256 reads the
    /// clock.
    fn expects_event(&mut self) -> bool {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        std::mem::take(&mut self.event_expected) || self.empty_polls == 0 && self.event_is_due()
    }

    /// Whether the queue pair's deadline has passed.
    pub(super) fn event_is_due(&self) -> bool {
        self.queue_pair.cq.deadline(self.queue_pair.qp).is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Handles one batch of completions. Returns whether there was one.
    fn poll(&mut self) -> bool {
        let count = self.queue_pair.cq.poll(&mut *self.batch);
        if count == 0 {
            return false;
        }
        for at in 0..count.min(REPOST_CHAIN) {
            let completion = self.batch[at];
            if let Err(breach) = self.take(&completion) {
                self.end_for_breach(&breach);
                return false;
            }
            if is_arrival(&completion) {
                self.used.push(completion.id);
            }
        }
        if self.receives_from_ring() && self.stream.readable() > 0 {
            self.end_for_ring(&Breach::AfterMove);
            return false;
        }
        if self.stream.receive_end() != RecvState::Open || self.stream.send_state().is_err() {
            self.withdraw();
        }
        if self.used.len() >= REPOST_CHAIN {
            self.post_used_receives();
        }
        true
    }

    /// Posts again the receives that messages consumed. If the device refuses, the connection ends, because
    /// the peer may count on each receive.
    fn post_used_receives(&mut self) {
        if !self.ended {
            let queue_pair = &mut self.queue_pair;
            let posted = self
                .used
                .chunks(REPOST_CHAIN)
                .try_for_each(|slots| queue_pair.post_receives(&mut slots.iter().copied()));
            match posted {
                // The connection is ending already. Its event gives the reason.
                Ok(()) | Err(verbs::Error::BadState { .. }) => {}
                Err(error) => self.fail(&error),
            }
        }
        self.used.clear();
    }

    /// Feeds one completion to the protocol.
    fn take(&mut self, completion: &Completion) -> Result<(), Breach> {
        match (completion.status, completion.kind) {
            (CompletionStatus::Success, CompletionKind::Send | CompletionKind::Write) => {
                self.stream.on_sent(completion.id);
                Ok(())
            }
            (CompletionStatus::Success, CompletionKind::Recv | CompletionKind::RecvWrite) => {
                let (arrival, landing) = (self.arrival(completion)?, self.stream.landing());
                self.stream.on_arrival(arrival)?;
                match arrival {
                    Arrival::WordWithData { length, .. }
                        if !self.queue_pair.place(completion.id, landing, length) =>
                    {
                        Err(Breach::BeyondRing { length, offset: landing })
                    }
                    _ => Ok(()),
                }
            }
            (CompletionStatus::Success, CompletionKind::Read) => Ok(()),
            (
                status @ (CompletionStatus::Truncated
                | CompletionStatus::LocalAccess
                | CompletionStatus::LocalOperation
                | CompletionStatus::RemoteAccess
                | CompletionStatus::RemoteOperation),
                kind,
            ) => Err(Breach::Failed { kind, status }),
            // The connection event gives the reason.
            _ => {
                self.event_expected = true;
                Ok(())
            }
        }
    }

    /// The protocol's view of a message.
    fn arrival(&self, completion: &Completion) -> Result<Arrival, Breach> {
        match (completion.kind, completion.immediate, completion.length) {
            // Words have 32 bits, even if the device has longer immediate data.
            (CompletionKind::RecvWrite, Some(immediate), length) => {
                Ok(Arrival::Write { immediate: immediate as u32, length })
            }
            (CompletionKind::Recv, Some(immediate), 0) => {
                Ok(Arrival::Control { immediate: immediate as u32 })
            }
            (CompletionKind::Recv, None, length @ 4..) => {
                let word =
                    self.queue_pair.word(completion.id).ok_or(Breach::NoReceive { id: completion.id })?;
                Ok(match length - 4 {
                    0 => Arrival::Word(word),
                    length => Arrival::WordWithData { word, length },
                })
            }
            (kind, immediate, length) => Err(Breach::NotAMessage { kind, immediate, length }),
        }
    }

    /// Handles connection events. Returns whether there were any. A device may report the end before
    /// completions that precede it, so the caller polls completions again.
    fn poll_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.queue_pair.cq.poll_event(self.queue_pair.qp) {
            any = true;
            self.withdraw();
            match event {
                ConnectionEvent::Disconnected => {
                    self.ended = true;
                    self.stream.on_disconnected();
                }
                ConnectionEvent::Broken(reason) => {
                    self.ended = true;
                    self.refused += u64::from(matches!(reason, BreakReason::Protocol(_)));
                    if !matches!(reason, BreakReason::Reset | BreakReason::Aborted) {
                        log::warn!("connection broke: {reason}");
                    }
                    self.stream.on_broken();
                }
                // The handshake has handled these.
                ConnectionEvent::Established { .. }
                | ConnectionEvent::Rejected { .. }
                | ConnectionEvent::Failed(_) => {}
            }
        }
        any
    }

    /// Ends the connection because the peer violated the protocol.
    pub(super) fn end_for_breach(&mut self, breach: &Breach) {
        log::warn!("connection ended, the peer violated the protocol: {breach}");
        self.refused += 1;
        self.abort();
    }

    /// Ends the connection because the device refused a request.
    pub(super) fn fail(&mut self, error: &verbs::Error) {
        // Posting to a closing connection fails. Then the connection event gives the reason.
        self.poll_events();
        if !self.ended {
            log::warn!("connection ended, the device refused a request: {error}");
            self.abort();
        }
    }

    /// Breaks the connection at once.
    pub(crate) fn abort(&mut self) {
        self.ended = true;
        self.withdraw();
        let StreamQueuePair { cq, qp, .. } = &mut self.queue_pair;
        cq.abort(*qp);
        self.stream.on_broken();
    }
}

fn is_arrival(completion: &Completion) -> bool {
    completion.status == CompletionStatus::Success
        && matches!(completion.kind, CompletionKind::Recv | CompletionKind::RecvWrite)
}

/// A violation of the protocol by the peer, or by the device that reports for it.
#[derive(Debug, thiserror::Error)]
pub(super) enum Breach {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("{length} bytes at {offset} are beyond the ring or their receive")]
    BeyondRing { length: u32, offset: u32 },
    #[error("no receive has the id {id}")]
    NoReceive { id: u64 },
    #[error("{kind:?} of {length} bytes with immediate {immediate:?} is no message of a stream")]
    NotAMessage { kind: CompletionKind, immediate: Option<u64>, length: u32 },
    #[error(transparent)]
    Ring(#[from] rstream_ring::Error),
    #[error("{moved} bytes moved by the queue pair, where the ring begins after {base}")]
    RingBegins { base: u64, moved: u64 },
    #[error("data by the queue pair after it moved to shared memory")]
    AfterMove,
    #[error("{kind:?}: {status}")]
    Failed { kind: CompletionKind, status: CompletionStatus },
}
