//! One queue pair, for examples: calls that wait, and errors as values.

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

/// A queue pair at an end of its own.
pub struct Connection<D: Device> {
    /// What it stands on, and what it drives.
    pub end: End<D>,
    /// The queue pair.
    pub qp: QpId,
    /// Where messages arrive.
    inbox: D::Mr,
    longest: usize,
    /// Whether the next message finds a receive.
    is_open: bool,
}

impl<D: Device> Connection<D> {
    /// A queue pair that can connect. [`Connection::receive`] takes messages up to `longest` bytes, which the
    /// peer sends one at a time; with 0 the caller posts all receives itself.
    ///
    /// # Errors
    /// The device's, or the system's.
    pub fn new(device: D, wanted: QpCapabilities, longest: usize) -> Result<Self> {
        let mut end = End::try_new(device)?;
        let (qp, _) = end.cq.create_qp(&end.pd, wanted)?;
        end.happened.insert(qp, VecDeque::new());
        let inbox = end.pd.register(Memory::zeroed(longest.max(1))?, Access::LOCAL_WRITE)?;
        let mut connection = Self { end, qp, inbox, longest, is_open: longest > 0 };
        if connection.is_open {
            connection.open_inbox()?;
        }
        Ok(connection)
    }

    fn open_inbox(&mut self) -> Result<()> {
        self.post_receive(segment(&self.inbox, 0, self.longest))
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

    /// Accepts the next peer that asks for a connection, however long it takes, and waits for the connection
    /// to stand.
    ///
    /// # Errors
    /// [`Error::Event`] if the connection does not come about.
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

    /// Connects, and waits for the connection to stand.
    ///
    /// # Errors
    /// [`Error::Event`] if the connection does not come about.
    pub fn connect(&mut self, address: SocketAddr) -> Result<()> {
        let target = self.end.target();
        self.end.cq.connect(self.qp, address, None, &[], &self.end.options, target)?;
        self.established()
    }

    fn established(&mut self) -> Result<()> {
        self.expect("the connection", |event| matches!(event, ConnectionEvent::Established { .. }))
    }

    /// Waits for the peer to end the connection in an orderly way.
    ///
    /// # Errors
    /// [`Error::Event`] if it breaks.
    pub fn wait_for_end(&mut self) -> Result<()> {
        self.expect("an orderly end", |event| *event == ConnectionEvent::Disconnected)
    }

    /// Ends the connection in an orderly way, and waits for the peer to do so.
    ///
    /// # Errors
    /// [`Error::Event`] if it breaks.
    pub fn disconnect(&mut self) -> Result<()> {
        self.end.cq.disconnect(self.qp);
        self.wait_for_end()
    }

    fn expect(&mut self, wanted: &'static str, is_it: impl Fn(&ConnectionEvent) -> bool) -> Result<()> {
        match self.end.until(wanted, |end| end.happened.get_mut(&self.qp)?.pop_front())? {
            event if is_it(&event) => Ok(()),
            event => Err(Error::Event { wanted, event }),
        }
    }

    /// Sends a short message, and waits until it is out.
    ///
    /// # Errors
    /// [`Error::Request`] if it is not sent.
    pub fn send(&mut self, message: &[u8]) -> Result<()> {
        self.post(SEND, Payload::Inline(&[IoSlice::new(message)]))?;
        self.completed(CompletionKind::Send).map(drop)
    }

    /// Waits for the peer's next message.
    ///
    /// # Errors
    /// [`Error::Request`] if none comes.
    pub fn receive(&mut self) -> Result<Vec<u8>> {
        if !self.is_open {
            self.open_inbox()?;
        }
        let received = self.completed(CompletionKind::Recv)?;
        let mut message = vec![0; received.length as usize];
        self.inbox.memory().read(0, &mut message)?;
        // A peer that ended the connection behind this message sends no other one: the next call says so.
        self.is_open = self.open_inbox().is_ok();
        Ok(message)
    }

    /// Writes a piece of this side's memory into the peer's, and waits until it can be used again.
    ///
    /// # Errors
    /// [`Error::Request`] if it is not written.
    pub fn write(&mut self, from: Segment, remote: RemoteAddress) -> Result<()> {
        self.post(Operation::Write { remote, immediate: None }, Payload::Segments(&[from]))?;
        self.completed(CompletionKind::Write).map(drop)
    }

    /// Reads a piece of the peer's memory into this side's, and waits until it is there.
    ///
    /// # Errors
    /// [`Error::Request`] if it is not read.
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

    /// Waits for the next completion of a kind; those of other kinds wait for their turn.
    ///
    /// # Errors
    /// [`Error::Request`] if it is not a success.
    pub fn completed(&mut self, kind: CompletionKind) -> Result<Completion> {
        let completion = self.end.until("a completion", |end| {
            let at = end.completions.iter().position(|found| found.kind == kind)?;
            end.completions.remove(at)
        })?;
        if completion.status == CompletionStatus::Success {
            return Ok(completion);
        }
        self.end.poll();
        let event = self.end.happened.get_mut(&self.qp).and_then(VecDeque::pop_front);
        Err(Error::Request { kind, status: completion.status, event })
    }
}
