//! One side, for tests: calls that the device must not refuse panic where it does.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rdma_verbs::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, CompletionStatus, ConnectOptions,
    ConnectionEvent, Connections, Device, EventTarget, Listener, Memory, Operation, Payload,
    ProtectionDomain, QpCapabilities, QpId, QueuePairs, RecvRequest, Segment, SendRequest, Token, WaitSet,
};

use super::{LIMIT, OPTIONS, Result, step};

/// Completions that an end has room for, of all its queue pairs.
const DEPTH: u32 = 2048;

/// One side: a device with one protection domain and one completion queue, and what came out of it.
pub struct End<D: Device> {
    /// The device itself.
    pub device: D,
    /// Of every region and queue pair of this side.
    pub pd: D::Pd,
    /// Owns this side's queue pairs.
    pub cq: D::Cq,
    /// How it connects, accepts and listens.
    pub options: ConnectOptions,
    /// Set by [`End::listen`].
    pub listener: Option<D::Listener>,
    /// The token of a listener that [`End::listen`] made.
    pub listening: Option<Token>,
    /// Readable when the completion queue has something.
    pub data: Arc<WaitSet>,
    /// Readable when a connection or the listener has something.
    pub events: Arc<WaitSet>,
    /// Completions that nobody has taken yet, oldest first.
    pub completions: VecDeque<Completion>,
    /// Connection events that nobody has taken yet, by queue pair, oldest first.
    pub happened: BTreeMap<QpId, VecDeque<ConnectionEvent>>,
    /// Connection requests that nobody has answered yet, oldest first.
    pub requests: VecDeque<D::Request>,
}

impl<D: Device> End<D> {
    /// A side with nothing posted and no queue pair.
    pub fn new(device: D) -> Self {
        Self::try_new(device).unwrap()
    }

    /// The same where the device may refuse.
    ///
    /// # Errors
    /// The device's, or the system's.
    pub fn try_new(device: D) -> Result<Self> {
        let pd = device.alloc_pd()?;
        let mut cq = device.create_cq(DEPTH)?;
        let data = Arc::new(WaitSet::new()?);
        cq.attach(Arc::clone(&data))?;
        Ok(Self {
            device,
            pd,
            cq,
            options: OPTIONS,
            listener: None,
            listening: None,
            data,
            events: Arc::new(WaitSet::new()?),
            completions: VecDeque::new(),
            happened: BTreeMap::new(),
            requests: VecDeque::new(),
        })
    }

    /// Where the events of another queue pair or listener are announced.
    pub fn target(&self) -> EventTarget {
        EventTarget::new(&self.events)
    }

    /// Listens, and answers the address with its real port.
    pub fn listen(&mut self, address: SocketAddr) -> SocketAddr {
        let target = self.target();
        self.listening = Some(target.token);
        let listener = self.device.listen(address, 16, &self.options, target).unwrap();
        let address = listener.local_address();
        self.listener = Some(listener);
        address
    }

    /// A queue pair whose events are polled from now on.
    pub fn queue_pair(&mut self, wanted: QpCapabilities) -> (QpId, QpCapabilities) {
        let (qp, granted) = self.cq.create_qp(&self.pd, wanted).unwrap();
        self.happened.insert(qp, VecDeque::new());
        (qp, granted)
    }

    /// Starts to connect.
    pub fn connect(&mut self, qp: QpId, address: SocketAddr, private_data: &[u8]) {
        let target = self.target();
        self.cq.connect(qp, address, None, private_data, &self.options, target).unwrap();
    }

    /// Accepts the oldest request.
    pub fn accept(&mut self, qp: QpId, private_data: &[u8]) {
        let request = self.requests.pop_front().expect("a request to accept");
        let target = self.target();
        self.cq.accept(qp, request, private_data, &self.options, target).unwrap();
    }

    /// Destroys a queue pair, and forgets its events.
    pub fn destroy(&mut self, qp: QpId) {
        self.cq.destroy_qp(qp);
        self.happened.remove(&qp);
    }

    /// Registered memory of `length` zeros.
    pub fn region(&self, length: usize, access: Access) -> D::Mr {
        self.pd.register(Memory::zeroed(length).unwrap(), access).unwrap()
    }

    /// Posts `count` receives without buffer, with ids from 0.
    pub fn post_empty_receives(&mut self, qp: QpId, count: u64) {
        let requests: Vec<_> = (0..count).map(|id| RecvRequest { id, buffer: Buffer::Empty }).collect();
        self.cq.post_recv(qp, &requests).unwrap();
    }

    /// Posts one receive.
    pub fn receive_into(&mut self, qp: QpId, id: u64, buffer: Segment) {
        self.cq.post_recv(qp, &[RecvRequest { id, buffer: Buffer::Segment(buffer) }]).unwrap();
    }

    /// Posts one signaled request with registered payload.
    pub fn post(&mut self, qp: QpId, id: u64, operation: Operation, segments: &[Segment]) {
        let payload = Payload::Segments(segments);
        self.cq.post_send(qp, &[SendRequest { id, signaled: true, operation, payload }], false).unwrap();
    }

    /// Posts one signaled request with inline payload.
    ///
    /// # Errors
    /// The device's: it may refuse inline payload, or have none of this kind.
    pub fn post_inline(
        &mut self,
        qp: QpId,
        id: u64,
        operation: Operation,
        bytes: &[u8],
    ) -> rdma_verbs::Result<()> {
        let pieces = [IoSlice::new(bytes)];
        let payload = Payload::Inline(&pieces);
        self.cq.post_send(qp, &[SendRequest { id, signaled: true, operation, payload }], false)
    }

    /// Collects completions. Whether there were any.
    pub fn poll_completions(&mut self) -> bool {
        let before = self.completions.len();
        let mut array = [Completion::EMPTY; 8];
        loop {
            match self.cq.poll(&mut array) {
                0 => return self.completions.len() > before,
                count => self.completions.extend(&array[..count]),
            }
        }
    }

    /// Collects everything there is. Whether there was anything.
    pub fn poll(&mut self) -> bool {
        let mut any = self.poll_completions();
        for (&qp, happened) in &mut self.happened {
            while let Some(event) = self.cq.poll_event(qp) {
                happened.push_back(event);
                any = true;
            }
        }
        while let Some(request) = self.listener.as_mut().and_then(Listener::poll) {
            self.requests.push_back(request);
            any = true;
        }
        any
    }

    /// When the device wants to be called at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let connections = self.happened.keys().filter_map(|&qp| self.cq.deadline(qp));
        connections.chain(self.listener.as_ref().and_then(Listener::deadline)).min()
    }

    /// Drives this end until `done` answers.
    ///
    /// # Errors
    /// Those of [`step`], with a deadline after [`LIMIT`].
    pub fn until<T>(
        &mut self,
        what: &'static str,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(answer) = done(self) {
                return Ok(answer);
            }
            step(&mut [self], deadline, what)?;
        }
    }

    /// The next completion.
    pub fn next_completion(&mut self) -> Completion {
        self.until("a completion", |end| end.completions.pop_front()).unwrap()
    }

    /// The next event of this queue pair.
    pub fn next_event(&mut self, qp: QpId) -> ConnectionEvent {
        self.until("an event", |end| end.happened.get_mut(&qp)?.pop_front()).unwrap()
    }
}

/// The completion of a request without details.
pub fn success(qp: QpId, id: u64, kind: CompletionKind) -> Completion {
    Completion {
        qp,
        id,
        kind,
        status: CompletionStatus::Success,
        length: 0,
        immediate: None,
        invalidated: None,
    }
}
