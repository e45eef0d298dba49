//! The peer's frames: placing payload, taking receives, answering reads, and refusing what breaks a
//! rule.

use super::{Phase, QueuePair, Receive, Sink};
use crate::sim::link::Frame;
use rdma_verbs::{
    Access, BreakReason, Cause, CompletionKind, CompletionStatus, ConnectionEvent, RemoteAddress,
};

/// How a request of the peer ended.
enum Outcome {
    Done,
    /// It waits for a receive.
    Stalled(Frame),
    Refused(Cause),
}

impl QueuePair {
    /// Handles one frame. Gives it back if it has to wait for a receive.
    pub(super) fn receive(&mut self, frame: Frame, sink: &mut Sink) -> Option<Frame> {
        match frame {
            Frame::Accept { private_data, terms } => {
                self.agree(terms);
                if let Some(port) = &self.port {
                    port.push(Frame::Ready);
                }
                self.establish(self.config.arrived(private_data));
            }
            Frame::Reject { private_data } => {
                let private_data = self.config.arrived(private_data);
                self.end(ConnectionEvent::Rejected { private_data }, sink);
            }
            Frame::Ready => self.establish(Vec::new()),
            Frame::Send { .. } | Frame::Write { .. } => match self.take_message(frame, sink) {
                Outcome::Done => self.unacknowledged += 1,
                Outcome::Stalled(frame) => return Some(frame),
                Outcome::Refused(why) => self.refuse(why, self.acknowledge, sink),
            },
            Frame::ReadRequest { remote, length } => match self.serve_read(remote, length) {
                Ok(()) => {}
                Err(why) => self.refuse(why, true, sink),
            },
            Frame::ReadResponse { bytes } => self.finish_read(&bytes, sink),
            Frame::Acknowledge { requests } => {
                (0..requests).for_each(|_| self.sends.done());
                self.sends.settle(self.number, sink);
            }
            Frame::Refuse(status) => self.sends.fail_on_wire(self.number, status, sink),
            Frame::Close => self.peer_closed = true,
            Frame::Break(reason) => self.break_off(reason, sink),
        }
        None
    }

    /// Tells the peer how many of its requests were carried out since the last time.
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
        self.announce(ConnectionEvent::Established { private_data });
    }

    /// Carries out a send or write.
    fn take_message(&mut self, frame: Frame, sink: &mut Sink) -> Outcome {
        let needs_receive = match &frame {
            Frame::Write { immediate, .. } => immediate.is_some(),
            _ => true,
        };
        let mut receive = None;
        if needs_receive {
            receive = self.receives.pop_front();
            if receive.is_none() {
                return self.without_receive(frame);
            }
        }
        let result = match frame {
            Frame::Send { bytes, immediate, invalidate } => {
                self.take_send(receive, &bytes, immediate, invalidate, sink)
            }
            Frame::Write { bytes, remote, immediate } => {
                self.take_write(receive, &bytes, remote, immediate, sink)
            }
            _ => Ok(()),
        };
        match result {
            Ok(()) => Outcome::Done,
            Err(why) => Outcome::Refused(why),
        }
    }

    /// Waiting makes sense only as long as a receive may still be posted.
    fn without_receive(&self, frame: Frame) -> Outcome {
        if self.config.receiver_not_ready_waits && !self.closing {
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
        sink: &mut Sink,
    ) -> Result<(), Cause> {
        let Some(receive) = receive else { return Ok(()) };
        let placed = self.fill(&receive, bytes);
        let taken = placed.and_then(|()| self.check_immediate(immediate)).and_then(|()| match invalidate {
            Some(key) => self.regions.invalidate(key),
            None => Ok(()),
        });
        let status = match taken {
            Ok(()) => CompletionStatus::Success,
            Err(Cause::TooLong { .. }) => CompletionStatus::Truncated,
            Err(Cause::Request { status, .. }) => status,
            // The fault is the peer's: this receive ends like the others.
            Err(_) => CompletionStatus::Flushed,
        };
        let mut finished = self.received(receive.id, CompletionKind::Recv, status);
        if taken.is_ok() {
            finished.completion.length = message_length(bytes);
            finished.completion.immediate = immediate;
            finished.completion.invalidated = invalidate;
        }
        sink.push_back(finished);
        taken
    }

    fn take_write(
        &mut self,
        receive: Option<Receive>,
        bytes: &[u8],
        remote: RemoteAddress,
        immediate: Option<u64>,
        sink: &mut Sink,
    ) -> Result<(), Cause> {
        let taken = self.check_immediate(immediate).and_then(|()| self.place(remote, bytes));
        if let Some(receive) = receive {
            match &taken {
                Ok(()) => {
                    let status = CompletionStatus::Success;
                    let mut finished = self.received(receive.id, CompletionKind::RecvWrite, status);
                    finished.completion.length = message_length(bytes);
                    finished.completion.immediate = immediate;
                    sink.push_back(finished);
                }
                // The fault is the peer's: this receive ends like the others.
                Err(_) => self.receives.push_front(receive),
            }
        }
        taken
    }

    fn check_immediate(&self, immediate: Option<u64>) -> Result<(), Cause> {
        match immediate {
            Some(_) if !self.config.immediate => Err(Cause::Immediate),
            _ => Ok(()),
        }
    }

    /// Copies a message into its receive.
    fn fill(&self, receive: &Receive, bytes: &[u8]) -> Result<(), Cause> {
        let room = receive.buffer.map_or(0, |buffer| buffer.length as usize);
        if bytes.len() > room {
            return Err(Cause::TooLong { length: bytes.len(), room });
        }
        if let Some(buffer) = receive.buffer
            && !bytes.is_empty()
        {
            // The region is gone that was there when the receive was posted.
            let gone = |_| Cause::Request { status: CompletionStatus::LocalAccess, code: 0 };
            self.regions.local(&buffer, Access::LOCAL_WRITE).map_err(gone)?.write(bytes);
        }
        Ok(())
    }

    /// Copies a write to where it goes; without bytes nothing is checked (RFC 5040, section 5.1).
    fn place(&self, remote: RemoteAddress, bytes: &[u8]) -> Result<(), Cause> {
        if !bytes.is_empty() {
            self.regions.remote(remote, bytes.len(), Access::REMOTE_WRITE)?.write(bytes);
        }
        Ok(())
    }

    /// Answers a read; without bytes nothing is checked, as for writes.
    fn serve_read(&mut self, remote: RemoteAddress, length: u32) -> Result<(), Cause> {
        let mut bytes = vec![0; length as usize];
        if length > 0 {
            self.regions.remote(remote, bytes.len(), Access::REMOTE_READ)?.read(&mut bytes);
        }
        self.send_acknowledgement();
        if let Some(port) = &self.port {
            port.push(Frame::ReadResponse { bytes });
        }
        Ok(())
    }

    /// Places the answer to the oldest read.
    fn finish_read(&mut self, bytes: &[u8], sink: &mut Sink) {
        let Some(target) = self.sends.read_target() else { return };
        let place = self.regions.local(&target, Access::LOCAL_WRITE);
        if let Ok(place) = place {
            place.write(bytes);
            self.sends.done();
            self.sends.settle(self.number, sink);
        } else {
            // The region is gone that was there when the read was posted.
            self.sends.fail_on_wire(self.number, CompletionStatus::LocalAccess, sink);
            self.break_off(BreakReason::Aborted, sink);
        }
    }

    /// Ends the connection because of what the peer asked for, and says so. `blame`: the peer has
    /// that request outstanding and learns which it was.
    fn refuse(&mut self, why: Cause, blame: bool, sink: &mut Sink) {
        let (status, reason) = match why {
            Cause::Request { .. } => (CompletionStatus::RemoteOperation, BreakReason::Local(why)),
            Cause::NoReceive => (CompletionStatus::ReceiverNotReady, BreakReason::Protocol(why)),
            Cause::Access { .. } => (CompletionStatus::RemoteAccess, BreakReason::Protocol(why)),
            _ => (CompletionStatus::RemoteOperation, BreakReason::Protocol(why)),
        };
        self.send_acknowledgement();
        if let Some(port) = &self.port {
            if blame {
                port.push(Frame::Refuse(status));
            }
            port.push(Frame::Break(BreakReason::Terminated(why)));
        }
        self.break_off(reason, sink);
    }
}

/// Messages are never longer than [`super::Config::max_message`].
fn message_length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
