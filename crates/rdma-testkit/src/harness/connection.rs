//! One queue pair, for examples: its calls wait, and return their errors.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::Instant;

use rdma_verbs::{
    Access, Buffer, Completion, CompletionKind, CompletionStatus, ConnectionEvent, Connections, Device,
    Memory, MemoryRegion, Operation, Payload, ProtectionDomain, QpCapabilities, QpId, QueuePairs,
    RecvRequest, RemoteAddress, Segment, SendRequest,
};

use super::{End, Error, LIMIT, Result, SEND, segment, step};

/// A queue pair with its own end.
pub struct Connection<D: Device> {
    /// The device, the completion queue and the wait sets.
    pub end: End<D>,
    /// The queue pair.
    pub qp: QpId,
    receive_buffer: D::Mr,
    max_message: usize,
    /// Whether a receive is posted for the next message.
    is_posted: bool,
}

impl<D: Device> Connection<D> {
    /// A queue pair that can connect. [`Connection::receive`] takes messages of up to `max_message` bytes, of
    /// which the peer may have one outstanding. If it is 0, the caller posts all receives itself.
    ///
    /// # Errors
    /// The device's, or the system's.
    pub fn new(device: D, wanted: QpCapabilities, max_message: usize) -> Result<Self> {
        let mut end = End::try_new(device)?;
        let (qp, _) = end.cq.create_qp(&end.pd, wanted)?;
        end.connection_events.insert(qp, VecDeque::new());
        let receive_buffer = end.pd.register(Memory::zeroed(max_message.max(1))?, Access::LOCAL_WRITE)?;
        let mut connection = Self { end, qp, receive_buffer, max_message, is_posted: max_message > 0 };
        if connection.is_posted {
            connection.post_buffer()?;
        }
        Ok(connection)
    }

    fn post_buffer(&mut self) -> Result<()> {
        self.post_receive(segment(&self.receive_buffer, 0, self.max_message))
    }

    /// Registered memory of `length` zeros.
    ///
    /// # Errors
    /// The device's, or the system's.
    pub fn region(&self, length: usize, access: Access) -> Result<D::Mr> {
        Ok(self.end.pd.register(Memory::zeroed(length)?, access)?)
    }

    /// Listens for one peer.
    ///
    /// # Errors
    /// The device's.
    pub fn listen(&mut self, address: SocketAddr) -> Result<()> {
        let end = &mut self.end;
        end.listener = Some(end.device.listen(address, 1, &end.options, end.target())?);
        Ok(())
    }

    /// Waits for a peer's request, without a time limit, accepts it, and waits until the connection is
    /// established.
    ///
    /// # Errors
    /// [`Error::Event`] if the attempt fails.
    pub fn accept(&mut self) -> Result<()> {
        let request = loop {
            if let Some(request) = self.end.requests.pop_front() {
                break request;
            }
            match step(&mut [&mut self.end], Instant::now() + LIMIT, "a peer") {
                Ok(()) | Err(Error::TimedOut(_)) => {}
                Err(error) => return Err(error),
            }
        };
        self.end.listener = None;
        let target = self.end.target();
        self.end.cq.accept(self.qp, request, &[], &self.end.options, target)?;
        self.established()
    }

    /// Connects, and waits until the connection is established.
    ///
    /// # Errors
    /// [`Error::Event`] if the attempt fails.
    pub fn connect(&mut self, address: SocketAddr) -> Result<()> {
        let target = self.end.target();
        self.end.cq.connect(self.qp, address, None, &[], &self.end.options, target)?;
        self.established()
    }

    fn established(&mut self) -> Result<()> {
        self.expect("the connection", |event| matches!(event, ConnectionEvent::Established { .. }))
    }

    /// Waits until the peer ends the connection in an orderly way.
    ///
    /// # Errors
    /// [`Error::Event`] if it breaks.
    pub fn wait_for_end(&mut self) -> Result<()> {
        self.expect("an orderly end", |event| *event == ConnectionEvent::Disconnected)
    }

    /// Ends the connection in an orderly way, and waits until the peer does so.
    ///
    /// # Errors
    /// [`Error::Event`] if it breaks.
    pub fn disconnect(&mut self) -> Result<()> {
        self.end.cq.disconnect(self.qp);
        self.wait_for_end()
    }

    fn expect(&mut self, wanted: &'static str, is_it: impl Fn(&ConnectionEvent) -> bool) -> Result<()> {
        match self.end.until(wanted, |end| end.connection_events.get_mut(&self.qp)?.pop_front())? {
            event if is_it(&event) => Ok(()),
            event => Err(Error::Event { wanted, event }),
        }
    }

    /// Sends a short message, and waits for its completion.
    ///
    /// # Errors
    /// [`Error::Request`] if it fails.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.post(SEND, Payload::Inline(&[IoSlice::new(message)]))?;
        self.completed(CompletionKind::Send).map(drop)
    }

    /// Waits for the peer's next message.
    ///
    /// # Errors
    /// [`Error::Request`] if the receive fails.
    pub fn receive(&mut self) -> Result<Vec<u8>> {
        if !self.is_posted {
            self.post_buffer()?;
        }
        let received = self.completed(CompletionKind::Recv)?;
        let mut message = vec![0; received.length as usize];
        self.receive_buffer.memory().read(0, &mut message)?;
        // The post fails if the peer ended the connection after this message. Then the next call reports it.
        self.is_posted = self.post_buffer().is_ok();
        Ok(message)
    }

    /// Writes from this side's memory to the peer's, and waits for the completion.
    ///
    /// # Errors
    /// [`Error::Request`] if it fails.
    pub fn write(&mut self, from: Segment, remote: RemoteAddress) -> Result<()> {
        self.post(Operation::Write { remote, immediate: None }, Payload::Segments(&[from]))?;
        self.completed(CompletionKind::Write).map(drop)
    }

    /// Reads from the peer's memory to this side's, and waits for the completion.
    ///
    /// # Errors
    /// [`Error::Request`] if it fails.
    pub fn read(&mut self, remote: RemoteAddress, into: Segment) -> Result<()> {
        self.post(Operation::Read { remote }, Payload::Segments(&[into]))?;
        self.completed(CompletionKind::Read).map(drop)
    }

    /// Posts one request whose completion [`Connection::completed`] waits for.
    ///
    /// # Errors
    /// The device's.
    pub fn post(&mut self, operation: Operation, payload: Payload<'_>) -> Result<()> {
        let request = SendRequest { id: 0, signaled: true, operation, payload };
        Ok(self.end.cq.post_send(self.qp, &[request], false)?)
    }

    /// Posts one receive.
    ///
    /// # Errors
    /// The device's.
    pub fn post_receive(&mut self, buffer: Segment) -> Result<()> {
        Ok(self.end.cq.post_recv(self.qp, &[RecvRequest { id: 0, buffer: Buffer::Segment(buffer) }])?)
    }

    /// Waits for the next completion of a kind. Completions of other kinds stay queued.
    ///
    /// # Errors
    /// [`Error::Request`] if the request failed.
    pub fn completed(&mut self, kind: CompletionKind) -> Result<Completion> {
        let completion = self.end.until("a completion", |end| {
            let at = end.completions.iter().position(|found| found.kind == kind)?;
            end.completions.remove(at)
        })?;
        if completion.status == CompletionStatus::Success {
            return Ok(completion);
        }
        self.end.poll();
        let event = self.end.connection_events.get_mut(&self.qp).and_then(VecDeque::pop_front);
        Err(Error::Request { kind, status: completion.status, event })
    }
}
