//! One end of the connection: a queue pair with its regions, and calls that wait.

use std::collections::VecDeque;
use std::error::Error;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rstream_fi::verbs::{
    Access, Completion, CompletionKind, CompletionQueue, CompletionStatus, ConnectOptions, ConnectionEvent,
    Device, EventTarget, Interest, Listener, Memory, MemoryRegion, Operation, Payload, ProtectionDomain,
    QpCapabilities, QpNumber, RecvRequest, RemoteAddress, Segment, SendRequest, Token, WaitSet,
};

use super::options::Options;
use super::word::{self, Word};

/// How long the peer may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const CONNECT: ConnectOptions = ConnectOptions { timeout: PATIENCE, keepalive: PATIENCE };

const CAPABILITIES: QpCapabilities = QpCapabilities {
    send_depth: 16,
    recv_depth: 2,
    inline: word::LENGTH,
    initiator_depth: 1,
    responder_resources: 1,
};

pub(crate) struct End<D: Device> {
    device: D,
    pd: D::Pd,
    pub(crate) cq: D::Cq,
    pub(crate) qp: QpNumber,
    /// Where words arrive.
    inbox: D::Mr,
    wait: Arc<WaitSet>,
    events: Arc<WaitSet>,
    completions: VecDeque<Completion>,
}

impl<D: Device> End<D> {
    pub(crate) fn new(device: D) -> Result<Self, Box<dyn Error>> {
        let pd = device.alloc_pd()?;
        let mut cq = device.create_cq(32)?;
        let (qp, _) = cq.create_qp(&pd, CAPABILITIES)?;
        let (wait, events) = (Arc::new(WaitSet::new()?), Arc::new(WaitSet::new()?));
        cq.attach(Arc::clone(&wait))?;
        wait.add(events.as_fd(), Token(0), Interest::Read)?;
        let inbox = pd.register(Memory::zeroed(word::LENGTH)?, Access::LOCAL_WRITE)?;
        let mut end = Self { device, pd, cq, qp, inbox, wait, events, completions: VecDeque::new() };
        end.post_receive()?;
        Ok(end)
    }

    pub(crate) fn region(&self, size: u32, access: Access) -> Result<D::Mr, Box<dyn Error>> {
        Ok(self.pd.register(Memory::zeroed(size as usize)?, access)?)
    }

    pub(crate) fn target(&self) -> EventTarget {
        EventTarget { wait: Arc::clone(&self.events), token: Token(1) }
    }

    /// Listens until one peer asks for a connection.
    pub(crate) fn wait_for_request(&mut self, options: &Options) -> Result<D::Request, Box<dyn Error>> {
        let mut listener = self.device.listen(options.address, 1, &CONNECT, self.target())?;
        loop {
            if let Some(request) = listener.poll() {
                return Ok(request);
            }
            let left = listener.deadline().map(|deadline| deadline.saturating_duration_since(Instant::now()));
            self.events.wait(left, &mut Vec::new())?;
        }
    }

    /// Waits for the connection to stand.
    pub(crate) fn wait_for_connection(&mut self) -> Result<(), Box<dyn Error>> {
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

    /// Says a word and waits until it is out.
    pub(crate) fn say(&mut self, word: Word) -> Result<(), Box<dyn Error>> {
        let operation = Operation::Send { immediate: None, invalidate: None, solicited: false };
        let bytes = word.emit();
        let payload = [IoSlice::new(&bytes)];
        self.post(operation, Payload::Inline(&payload))?;
        self.completed(CompletionKind::Send).map(drop)
    }

    /// Hears the peer's next word.
    pub(crate) fn hear(&mut self) -> Result<Word, Box<dyn Error>> {
        let received = self.completed(CompletionKind::Recv)?;
        if received.length as usize != word::LENGTH {
            return Err(format!("a message of {} bytes, not of {}", received.length, word::LENGTH).into());
        }
        let mut bytes = [0; word::LENGTH];
        self.inbox.memory().read(0, &mut bytes)?;
        self.post_receive()?;
        Ok(Word::parse(bytes))
    }

    /// Fills a region of this side from the peer's memory.
    pub(crate) fn read(&mut self, remote: RemoteAddress, local: Segment) -> Result<(), Box<dyn Error>> {
        self.post(Operation::Read { remote }, Payload::Segments(&[local]))?;
        self.completed(CompletionKind::Read).map(drop)
    }

    /// Places a region of this side in the peer's memory.
    pub(crate) fn write(&mut self, remote: RemoteAddress, local: Segment) -> Result<(), Box<dyn Error>> {
        self.post(Operation::Write { remote, immediate: None }, Payload::Segments(&[local]))?;
        self.completed(CompletionKind::Write).map(drop)
    }

    fn post(&mut self, operation: Operation, payload: Payload<'_>) -> Result<(), Box<dyn Error>> {
        let request = SendRequest { id: 0, signaled: true, operation, payload };
        Ok(self.cq.post_send(self.qp, &[request], false)?)
    }

    fn post_receive(&mut self) -> Result<(), Box<dyn Error>> {
        let buffer = Some(segment(&self.inbox, word::LENGTH as u32));
        Ok(self.cq.post_recv(self.qp, &[RecvRequest { id: 0, buffer }])?)
    }

    /// Waits for the next completion of a kind; those of other kinds wait for their turn.
    fn completed(&mut self, kind: CompletionKind) -> Result<Completion, Box<dyn Error>> {
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
    fn until<T>(
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
    fn poll(&mut self) -> bool {
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
