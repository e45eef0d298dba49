//! The peer's frames: places payload, consumes receives, serves reads, and refuses violations.

use super::receives::{Receive, Receives};
use super::{Entries, Finished, Phase, QueuePair, ReadyList, Rules};
use crate::sim::link::Frame;
use rdma_verbs::{
    Access, BreakReason, Cause, Completion, CompletionKind, CompletionStatus, ConnectionEvent, RemoteAddress,
};

/// The outcome of a request of the peer.
enum Outcome {
    Done,
    /// It waits for a receive.
    Stalled(Frame),
    Refused(Cause),
}

impl QueuePair {
    /// Handles one frame. Returns it if it must wait for a receive.
    pub(super) fn receive(&mut self, frame: Frame, ready: &mut ReadyList) -> Option<Frame> {
        let is_input = frame.is_request() || matches!(frame, Frame::ReadResponse { .. });
        if is_input && self.closing && self.rules == Rules::Messages {
            // By the rules for messages it is dropped.
            if let Frame::ReadResponse { .. } = frame {
                self.sends.lose_response();
            }
            return None;
        }
        match frame {
            Frame::Accept { private_data, parameters } => {
                self.apply_peer_parameters(parameters);
                if let Some(port) = &self.port {
                    port.push(Frame::Ready);
                }
                self.establish(self.config.received_private_data(private_data));
            }
            Frame::Reject { private_data } => {
                let private_data = self.config.received_private_data(private_data);
                self.end(ConnectionEvent::Rejected { private_data }, ready);
            }
            Frame::Ready => self.establish(Vec::new()),
            Frame::Send { .. } | Frame::Write { .. } => match self.take_message(frame, ready) {
                Outcome::Done => self.unacknowledged += 1,
                Outcome::Stalled(frame) => return Some(frame),
                Outcome::Refused(why) => self.refuse(why, self.acknowledge, ready),
            },
            Frame::ReadRequest { remote, length } => match self.serve_read(remote, length) {
                Ok(()) => {
                    if let Some(accesses) = self.accesses.as_ref().filter(|_| length > 0) {
                        accesses.count_read();
                    }
                }
                Err(why) => self.refuse(why, true, ready),
            },
            Frame::ReadResponse { bytes } => self.finish_read(&bytes, ready),
            Frame::Acknowledge { requests } => {
                (0..requests).for_each(|_| self.sends.done());
                self.sends.report_done(self.number, ready);
            }
            Frame::Refuse(status) => self.sends.fail_on_wire(self.number, status, ready),
            Frame::Close => self.peer_closed = true,
            Frame::Break(reason) => self.break_connection(reason, ready),
        }
        None
    }

    /// Acknowledges the requests that were executed since the last acknowledgement.
    pub(super) fn send_acknowledgement(&mut self) {
        let requests = std::mem::take(&mut self.unacknowledged);
        if let Some(port) = &self.port
            && self.acknowledge
            && requests > 0
        {
            port.push(Frame::Acknowledge { requests });
        }
    }

    fn establish(&mut self, private_data: Vec<u8>) {
        self.phase = Phase::Established;
        self.report_event(ConnectionEvent::Established { private_data });
    }

    /// Executes a send or write.
    fn take_message(&mut self, frame: Frame, ready: &mut ReadyList) -> Outcome {
        let needs_receive = match &frame {
            Frame::Write { immediate, .. } => immediate.is_some() && !self.is_as_embedded(),
            _ => true,
        };
        if self.holds_writes && self.may_be_held(&frame) && !self.closing {
            self.stalls += 1;
            return Outcome::Stalled(frame);
        }
        let mut receive = None;
        if needs_receive {
            receive = self.with_receives(Receives::take);
            if receive.is_none() {
                return self.without_receive(frame);
            }
        }
        let result = match frame {
            Frame::Send { bytes, immediate, invalidate } => {
                self.take_send(receive, &bytes, immediate, invalidate, ready)
            }
            Frame::Write { bytes, remote, immediate } => {
                let taken = self.take_write(receive, &bytes, remote, immediate, ready);
                if let Some(accesses) = self.accesses.as_ref().filter(|_| taken.is_ok()) {
                    accesses.count_write();
                }
                taken
            }
            _ => Ok(()),
        };
        match result {
            Ok(()) => Outcome::Done,
            Err(why) => Outcome::Refused(why),
        }
    }

    /// The outcome of a message without a receive. It waits only while a receive may still be posted.
    fn without_receive(&mut self, frame: Frame) -> Outcome {
        let may_wait = self.rules == Rules::Messages || self.config.receiver_not_ready_waits;
        if may_wait && !self.closing {
            self.stalls += 1;
            Outcome::Stalled(frame)
        } else {
            Outcome::Refused(Cause::NoReceive)
        }
    }

    fn take_send(
        &mut self,
        receive: Option<Receive>,
        bytes: &[u8],
        immediate: Option<u64>,
        invalidate: Option<u32>,
        ready: &mut ReadyList,
    ) -> Result<(), Cause> {
        let Some(receive) = receive else { return Ok(()) };
        let placed = self.fill(&receive, bytes);
        let taken = placed.and_then(|()| self.check_immediate(immediate)).and_then(|()| match invalidate {
            Some(key) => self.regions.invalidate(key),
            None => Ok(()),
        });
        let is_cut = bytes.len() > receive.buffer.len();
        let status = match taken {
            Ok(()) if !is_cut => CompletionStatus::Success,
            Ok(()) | Err(Cause::TooLong { .. }) => CompletionStatus::Truncated,
            Err(Cause::Request { status, .. }) => status,
            Err(why) => {
                // The peer caused the error, so this receive ends like the others.
                self.with_receives(|receives| receives.put_back(receive));
                return Err(why);
            }
        };
        let mut finished = self.received(receive.id, CompletionKind::Recv, status);
        if taken.is_ok() {
            finished.completion.length = message_length(bytes);
        }
        if status == CompletionStatus::Success {
            finished.completion.immediate = immediate;
            finished.completion.invalidated = invalidate;
        }
        ready.push_back(Finished { frees: self.entry(receive), ..finished });
        taken
    }

    fn take_write(
        &mut self,
        receive: Option<Receive>,
        bytes: &[u8],
        remote: RemoteAddress,
        immediate: Option<u64>,
        ready: &mut ReadyList,
    ) -> Result<(), Cause> {
        let taken = self.check_immediate(immediate).and_then(|()| self.place(remote, bytes));
        if let Err(why) = taken {
            // The peer caused the error, so this receive ends like the others.
            if let Some(receive) = receive {
                self.with_receives(|receives| receives.put_back(receive));
            }
            return Err(why);
        }
        if immediate.is_some() {
            let (id, frees) = match receive {
                Some(receive) => (receive.id, self.entry(receive)),
                None => (Completion::NO_RECEIVE, Entries::Nothing),
            };
            let mut finished = self.received(id, CompletionKind::RecvWrite, CompletionStatus::Success);
            finished.completion.length = message_length(bytes);
            finished.completion.immediate = immediate;
            ready.push_back(Finished { frees, ..finished });
        }
        Ok(())
    }

    /// The entry that a consumed receive holds.
    fn entry(&self, receive: Receive) -> Entries {
        if self.shared.is_some() { Entries::Shared(receive) } else { Entries::Recv }
    }

    fn check_immediate(&self, immediate: Option<u64>) -> Result<(), Cause> {
        match immediate {
            Some(_) if self.config.immediate == 0 => Err(Cause::Immediate),
            _ => Ok(()),
        }
    }

    /// Copies a message into its receive. Cuts it where the rules allow that.
    fn fill(&self, receive: &Receive, bytes: &[u8]) -> Result<(), Cause> {
        let room = receive.buffer.len();
        if bytes.len() > room && !self.is_as_embedded() {
            return Err(Cause::TooLong { length: bytes.len(), room });
        }
        // The region was dropped after the receive was posted.
        let gone = |_| Cause::Request { status: CompletionStatus::LocalAccess, code: 0 };
        receive.buffer.write(&self.regions, bytes).map_err(gone)
    }

    /// Copies the payload of a write to its target. A write without payload is not checked (RFC 5040,
    /// section 5.1).
    fn place(&self, remote: RemoteAddress, bytes: &[u8]) -> Result<(), Cause> {
        if !bytes.is_empty() {
            self.regions.remote(remote, bytes.len(), Access::REMOTE_WRITE)?.write_for_peer(bytes);
        }
        Ok(())
    }

    /// Responds to a read. A read of no bytes is not checked.
    fn serve_read(&mut self, remote: RemoteAddress, length: usize) -> Result<(), Cause> {
        let mut bytes = vec![0; length];
        if length > 0 {
            self.regions.remote(remote, bytes.len(), Access::REMOTE_READ)?.read(&mut bytes);
        }
        self.send_acknowledgement();
        if let Some(port) = &self.port {
            port.push(Frame::ReadResponse { bytes });
        }
        Ok(())
    }

    /// Places the response to the oldest read.
    fn finish_read(&mut self, bytes: &[u8], ready: &mut ReadyList) {
        let Some(target) = self.sends.read_target() else { return };
        if target.write(&self.regions, bytes).is_ok() {
            self.sends.done();
            self.sends.report_done(self.number, ready);
        } else {
            // The region was dropped after the read was posted.
            self.sends.fail_on_wire(self.number, CompletionStatus::LocalAccess, ready);
            self.break_connection(BreakReason::Aborted, ready);
        }
    }

    /// Breaks the connection because of a request of the peer, and informs the peer. `fail_request`: the peer
    /// has that request outstanding, and it completes with the error.
    fn refuse(&mut self, why: Cause, fail_request: bool, ready: &mut ReadyList) {
        let (status, reason) = match why {
            Cause::Request { .. } => (CompletionStatus::RemoteOperation, BreakReason::Local(why)),
            Cause::NoReceive => (CompletionStatus::ReceiverNotReady, BreakReason::Protocol(why)),
            Cause::Access { .. } => (CompletionStatus::RemoteAccess, BreakReason::Protocol(why)),
            _ => (CompletionStatus::RemoteOperation, BreakReason::Protocol(why)),
        };
        self.send_acknowledgement();
        if let Some(port) = &self.port {
            if fail_request {
                port.push(Frame::Refuse(status));
            }
            port.push(Frame::Break(BreakReason::Terminated(why)));
        }
        self.break_connection(reason, ready);
    }
}

/// The length of a message, which is [`super::Config::max_message`] at most.
fn message_length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
