//! Posting receives and sends.

use std::collections::VecDeque;

use super::super::machine::{Port, Sink, Violation};
use super::super::membership::PollSets;
use super::super::scratch::Scratch;
use super::entries::{Entries, Queue};
use super::{Phase, QueuePair};
use crate::{Completion, Error, RecvRequest, Result, SendRequest};

impl QueuePair {
    /// Posts receives. `ready` has the completions that wait to be polled.
    pub(in super::super) fn post_recv(
        &mut self,
        requests: &[RecvRequest<'_>],
        ready: &mut VecDeque<Completion>,
        sets: PollSets<'_>,
    ) -> Result<()> {
        match self.phase {
            Phase::Idle | Phase::Connecting(_) | Phase::Open | Phase::Failed(_) => {
                let entries = Entries {
                    qp: self.number,
                    queue: if self.machine.is_for_messages() { Queue::MessageRecv } else { Queue::Recv },
                    depth: self.capabilities.recv_depth,
                    free: self.machine.recv_room(),
                };
                entries.check(requests.len(), ready)?;
                self.machine.post_recv(requests)?;
                self.resume(ready, sets);
                Ok(())
            }
            Phase::Closing { .. } | Phase::Draining | Phase::Terminating(_) | Phase::Over => {
                Err(Error::BadState { state: self.state(), what: "receive" })
            }
        }
    }

    /// See [`Machine::add_receive`](super::super::machine::Machine::add_receive). `ready` completions wait to be polled.
    pub(in super::super) fn add_receive(&mut self, request: &RecvRequest<'_>, ready: usize) -> bool {
        let takes_receives = matches!(self.phase, Phase::Idle | Phase::Connecting(_) | Phase::Open);
        takes_receives && ready < self.machine.recv_room() && self.machine.add_receive(request)
    }

    /// Cancels a receive; see [`crate::MessageQueues::cancel_recv`].
    pub(in super::super) fn cancel_recv(&mut self, id: u64) -> bool {
        self.machine.cancel_recv(id)
    }

    fn send_entries(&self) -> Entries {
        Entries {
            qp: self.number,
            queue: Queue::Send,
            depth: self.capabilities.send_depth,
            free: self.machine.send_room(),
        }
    }

    /// How many more sends fit. `ready` has the completions that wait to be polled.
    pub(in super::super) fn send_room(&self, ready: &VecDeque<Completion>) -> usize {
        self.send_entries().room(ready)
    }

    /// Posts sends. `ready` has the completions that wait to be polled; others are added [RFC 5041 6.2.1-2].
    pub(in super::super) fn post_send(
        &mut self,
        requests: &[SendRequest<'_>],
        more: bool,
        ready: &mut VecDeque<Completion>,
        sets: PollSets<'_>,
    ) -> Result<()> {
        let entries = self.send_entries();
        let (Phase::Open, Some(wire)) = (&self.phase, &mut self.socket) else {
            return Err(Error::BadState { state: self.state(), what: "send" });
        };
        entries.check(requests.len(), ready)?;
        let posted = {
            let mut port = Port { wire, sink: ready, scratch: &mut Scratch::take() };
            self.machine.post_send(requests, more, &mut port)
        };
        // A caller with `more` continues at once, so there is no need to wait for room in the socket
        // meanwhile, unless the completion queue finds its ready sockets by its own set.
        if (!more || sets.own.is_some()) && self.update_interest(sets) && self.send_output(ready, sets) {
            self.notify_end();
        }
        posted.or_else(|error| self.post_failed(error, ready, sets))
    }

    /// Posts sends as [`QueuePair::post_send`] does. The socket keeps what it takes of them, as far as that does not fill a
    /// segment, up to the next output or [`QueuePair::push_output`]. But it keeps nothing if other output precedes them.
    pub(in super::super) fn post_kept_send(
        &mut self,
        requests: &[SendRequest<'_>],
        ready: &mut VecDeque<Completion>,
        sets: PollSets<'_>,
    ) -> Result<()> {
        self.keep_output(self.machine.is_drained());
        let posted = self.post_send(requests, false, ready, sets);
        self.keep_output(false);
        posted
    }

    fn keep_output(&mut self, keep: bool) {
        if let Some(socket) = &mut self.socket {
            socket.keep(keep);
        }
    }

    /// Sends what the socket keeps.
    pub(in super::super) fn push_output(&mut self) {
        if let Some(socket) = &mut self.socket {
            socket.push();
        }
    }

    /// See [`Machine::send_at_once`](super::super::machine::Machine::send_at_once).
    pub(in super::super) fn send_at_once(
        &mut self,
        request: &SendRequest<'_>,
        sink: &mut impl Sink,
        sets: PollSets<'_>,
    ) -> bool {
        let (Phase::Open, Some(wire)) = (&self.phase, &mut self.socket) else { return false };
        let is_sent = {
            let mut port = Port { wire, sink, scratch: &mut Scratch::take() };
            self.machine.send_at_once(request, &mut port)
        };
        if is_sent && self.update_interest(sets) && self.send_output(sink, sets) {
            self.notify_end();
        }
        is_sent
    }

    /// Ends the connection if a fault made the post fail. If the fault is a place that cannot be read, the
    /// completion of the request reports it, and the post succeeds.
    #[cold]
    fn post_failed(
        &mut self,
        error: Error,
        ready: &mut VecDeque<Completion>,
        sets: PollSets<'_>,
    ) -> Result<()> {
        let fault = self.machine.fault();
        if fault.is_some() && self.send_output(ready, sets) {
            self.notify_end();
        }
        if let Some(Violation::LocalPlace) = fault { Ok(()) } else { Err(error) }
    }
}
