//! One end of a connection for the examples: a queue pair with its regions, and calls that wait.

use std::collections::VecDeque;
use std::error::Error;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_verbs::{
    Access, Completion, CompletionKind, CompletionQueue, CompletionStatus, ConnectOptions, ConnectionEvent,
    Device, EventTarget, Interest, Listener, Memory, MemoryRegion, Operation, Payload, ProtectionDomain,
    QpCapabilities, QpNumber, RecvRequest, Segment, SendRequest, Token, WaitSet,
};

/// How long the peer may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

const CONNECT: ConnectOptions = ConnectOptions { timeout: PATIENCE, keepalive: PATIENCE };

/// What an end is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Requests that may be outstanding in either direction.
    pub(crate) depth: u32,
    /// RDMA reads at a time, of either side.
    pub(crate) reads: u8,
    /// Longest message that it hears; 0: it hears none, and posts its receives itself.
    pub(crate) message: usize,
}

/// A plain send.
pub(crate) const SEND: Operation = Operation::Send { immediate: None, invalidate: None, solicited: false };

pub(crate) struct End<D: Device> {
    device: D,
    pd: D::Pd,
    pub(crate) cq: D::Cq,
    pub(crate) qp: QpNumber,
    /// Where messages arrive.
    inbox: D::Mr,
    message: usize,
    /// Where it sleeps.
    pub(crate) wait: Arc<WaitSet>,
    events: Arc<WaitSet>,
    pub(crate) completions: VecDeque<Completion>,
}

impl<D: Device> End<D> {
    pub(crate) fn new(device: D, shape: Shape) -> Result<Self, Box<dyn Error>> {
        let pd = device.alloc_pd()?;
        let mut cq = device.create_cq(2 * shape.depth)?;
        let capabilities = QpCapabilities {
            send_depth: shape.depth,
            recv_depth: shape.depth,
            inline: shape.message,
            initiator_depth: shape.reads,
            responder_resources: shape.reads,
        };
        let (qp, _) = cq.create_qp(&pd, capabilities)?;
        let (wait, events) = (Arc::new(WaitSet::new()?), Arc::new(WaitSet::new()?));
        cq.attach(Arc::clone(&wait))?;
        wait.add(events.as_fd(), Token(0), Interest::Read)?;
        let message = shape.message;
        let inbox = pd.register(Memory::zeroed(message.max(1))?, Access::LOCAL_WRITE)?;
        let mut end = Self { device, pd, cq, qp, inbox, message, wait, events, completions: VecDeque::new() };
        if message > 0 {
            end.listen_for_message()?;
        }
        Ok(end)
    }

    pub(crate) fn region(&self, size: u32, access: Access) -> Result<D::Mr, Box<dyn Error>> {
        Ok(self.pd.register(Memory::zeroed(size as usize)?, access)?)
    }

    fn target(&self) -> EventTarget {
        EventTarget { wait: Arc::clone(&self.events), token: Token(1) }
    }

    /// Listens for one peer.
    pub(crate) fn listen(&self, address: SocketAddr) -> Result<D::Listener, Box<dyn Error>> {
        Ok(self.device.listen(address, 1, &CONNECT, self.target())?)
    }

    /// Accepts the next peer that asks for a connection, and waits for it to stand.
    pub(crate) fn accept(&mut self, mut listener: D::Listener) -> Result<(), Box<dyn Error>> {
        let request = loop {
            if let Some(request) = listener.poll() {
                break request;
            }
            let left = listener.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
            self.events.wait(left, &mut Vec::new())?;
        };
        let events = self.target();
        self.cq.accept(self.qp, request, &[], &CONNECT, events)?;
        self.wait_for_connection()
    }

    /// Connects, and waits for the connection to stand.
    pub(crate) fn connect(&mut self, address: SocketAddr) -> Result<(), Box<dyn Error>> {
        let events = self.target();
        self.cq.connect(self.qp, address, None, &[], &CONNECT, events)?;
        self.wait_for_connection()
    }

    /// Waits for the connection to stand.
    fn wait_for_connection(&mut self) -> Result<(), Box<dyn Error>> {
        match self.until("the connection", |end| end.cq.poll_event(end.qp))? {
            ConnectionEvent::Established { .. } => Ok(()),
            other => Err(format!("not connected: {other:?}").into()),
        }
    }

    /// Waits for its end in an orderly way.
    pub(crate) fn wait_for_end(&mut self) -> Result<(), Box<dyn Error>> {
        match self.until("the end", |end| end.cq.poll_event(end.qp))? {
            ConnectionEvent::Disconnected => Ok(()),
            other => Err(format!("the connection broke: {other:?}").into()),
        }
    }

    /// Says something short and waits until it is out.
    pub(crate) fn say(&mut self, message: &[u8]) -> Result<(), Box<dyn Error>> {
        let payload = [IoSlice::new(message)];
        self.post(SEND, Payload::Inline(&payload))?;
        self.completed(CompletionKind::Send).map(drop)
    }

    /// Hears the peer's next message.
    pub(crate) fn hear(&mut self) -> Result<Vec<u8>, Box<dyn Error>> {
        let received = self.completed(CompletionKind::Recv)?;
        let mut message = vec![0; received.length as usize];
        self.inbox.memory().read(0, &mut message)?;
        self.listen_for_message()?;
        Ok(message)
    }

    /// Reads into a region of this side, or writes out of it, and waits until that is done.
    pub(crate) fn carry_out(&mut self, operation: Operation, local: Segment) -> Result<(), Box<dyn Error>> {
        let kind = match operation {
            Operation::Send { .. } => CompletionKind::Send,
            Operation::Write { .. } => CompletionKind::Write,
            Operation::Read { .. } => CompletionKind::Read,
        };
        self.post(operation, Payload::Segments(&[local]))?;
        self.completed(kind).map(drop)
    }

    pub(crate) fn post(&mut self, operation: Operation, payload: Payload<'_>) -> Result<(), Box<dyn Error>> {
        let request = SendRequest { id: 0, signaled: true, operation, payload };
        Ok(self.cq.post_send(self.qp, &[request], false)?)
    }

    pub(crate) fn post_receive(&mut self, buffer: Segment) -> Result<(), Box<dyn Error>> {
        Ok(self.cq.post_recv(self.qp, &[RecvRequest { id: 0, buffer: Some(buffer) }])?)
    }

    fn listen_for_message(&mut self) -> Result<(), Box<dyn Error>> {
        self.post_receive(segment(&self.inbox, self.message as u32))
    }

    /// Waits for the next completion of a kind; those of other kinds wait for their turn.
    pub(crate) fn completed(&mut self, kind: CompletionKind) -> Result<Completion, Box<dyn Error>> {
        let completion = self.until("a completion", |end| {
            let at = end.completions.iter().position(|found| found.kind == kind)?;
            end.completions.remove(at)
        })?;
        match completion.status {
            CompletionStatus::Success => Ok(completion),
            status => {
                let event = self.cq.poll_event(self.qp);
                Err(format!("{kind:?} ended with {status:?}, connection: {event:?}").into())
            }
        }
    }

    /// Drives the end until `done` answers.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Box<dyn Error>> {
        let patience = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = done(self) {
                return Ok(answer);
            }
            if self.poll() || self.cq.arm()? {
                continue;
            }
            let now = Instant::now();
            if now >= patience {
                return Err(format!("waited {PATIENCE:?} in vain for {what}").into());
            }
            let until = self.cq.deadline(self.qp).map_or(patience, |deadline| deadline.min(patience));
            self.wait.wait(Some(until.saturating_duration_since(now)), &mut Vec::new())?;
        }
    }

    /// Collects what has completed. Whether anything has.
    pub(crate) fn poll(&mut self) -> bool {
        let mut found = [Completion::EMPTY; 4];
        let count = self.cq.poll(&mut found);
        self.completions.extend(&found[..count]);
        count > 0
    }
}

/// The first bytes of a region.
pub(crate) fn segment(region: &impl MemoryRegion, length: u32) -> Segment {
    Segment { key: region.local_key(), address: region.address(), length }
}
