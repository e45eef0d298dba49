//! One side of connections, for tests. A call that must succeed panics if the device refuses it.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rdma_verbs::{
    Access, Buffer, Completion, CompletionKind, CompletionQueue, CompletionStatus, ConnectOptions,
    ConnectionEvent, Connections, Device, EventTarget, Listener, Memory, MemoryRegion, MessageQueues,
    Operation, Payload, Place, ProtectionDomain, QpCapabilities, QpId, QueuePairs, RecvRequest, Segment,
    SendRequest, SrqId, Token, WaitSet,
};

use super::{LIMIT, Lent, OPTIONS, Result, step};

/// Depth of the completion queue.
const DEPTH: u32 = 2048;

/// One side: a device with one protection domain and one completion queue, and what they reported.
pub struct End<D: Device> {
    /// The device.
    pub device: D,
    /// The protection domain of all regions and queue pairs of this side.
    pub pd: D::Pd,
    /// The completion queue, which owns the queue pairs.
    pub cq: D::Cq,
    /// The options for connecting, accepting and listening.
    pub options: ConnectOptions,
    /// Set by [`End::listen`].
    pub listener: Option<D::Listener>,
    /// The token of the listener, set by [`End::listen`].
    pub listening: Option<Token>,
    /// Readable when the completion queue has something to report.
    pub data: Arc<WaitSet>,
    /// Readable when a connection or the listener has something to report.
    pub events: Arc<WaitSet>,
    /// The regions of lent memory.
    lent: Vec<D::Mr>,
    /// Completions that were polled and not consumed, oldest first.
    pub completions: VecDeque<Completion>,
    /// Connection events that were polled and not consumed, by queue pair, oldest first.
    pub connection_events: BTreeMap<QpId, VecDeque<ConnectionEvent>>,
    /// Connection requests that were polled and not consumed, oldest first.
    pub requests: VecDeque<D::Request>,
}

impl<D: Device> End<D> {
    /// A side without queue pairs.
    pub fn new(device: D) -> Self {
        Self::try_new(device).unwrap()
    }

    /// Like [`End::new`], for a device that may refuse.
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
            lent: Vec::new(),
            completions: VecDeque::new(),
            connection_events: BTreeMap::new(),
            requests: VecDeque::new(),
        })
    }

    /// A target for the events of one more queue pair or listener.
    pub fn target(&self) -> EventTarget {
        EventTarget::new(&self.events)
    }

    /// Listens, and returns the address with the actual port.
    pub fn listen(&mut self, address: SocketAddr) -> SocketAddr {
        let target = self.target();
        self.listening = Some(target.token);
        let listener = self.device.listen(address, 16, &self.options, target).unwrap();
        let address = listener.local_address();
        self.listener = Some(listener);
        address
    }

    /// Creates a queue pair, whose events are polled from now on.
    pub fn queue_pair(&mut self, wanted: QpCapabilities) -> (QpId, QpCapabilities) {
        let (qp, granted) = self.cq.create_qp(&self.pd, wanted).unwrap();
        self.connection_events.insert(qp, VecDeque::new());
        (qp, granted)
    }

    /// Creates a queue pair for messages, whose events are polled from now on.
    pub fn message_queue_pair(&mut self, wanted: QpCapabilities, shared: Option<SrqId>) -> QpId {
        let (qp, _) = self.cq.create_message_qp(&self.pd, wanted, shared).unwrap();
        self.connection_events.insert(qp, VecDeque::new());
        qp
    }

    /// Creates a queue pair with shared receives, whose events are polled from now on.
    pub fn shared_queue_pair(&mut self, wanted: QpCapabilities, srq: SrqId) -> QpId {
        let (qp, _) = self.cq.create_shared_qp(&self.pd, wanted, srq).unwrap();
        self.connection_events.insert(qp, VecDeque::new());
        qp
    }

    /// Memory for requests of this side with this content.
    pub fn lend(&mut self, bytes: Vec<u8>) -> Lent {
        self.registered(Lent::new(bytes))
    }

    /// The same with `length` blank bytes.
    pub fn lend_blank(&mut self, length: usize) -> Lent {
        self.registered(Lent::blank(length))
    }

    /// Registers lent memory, if the device needs that and there are bytes.
    fn registered(&mut self, lent: Lent) -> Lent {
        let memory = lent.memory();
        if !D::LOCAL_KEYS || memory.len() == 0 {
            return lent;
        }
        let region = self.pd.register(memory, Access::LOCAL_WRITE).unwrap();
        let key = region.local_key();
        self.lent.push(region);
        lent.within(key)
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

    /// Destroys a queue pair, and drops its events.
    pub fn destroy(&mut self, qp: QpId) {
        self.cq.destroy_qp(qp);
        self.connection_events.remove(&qp);
    }

    /// Registered memory of `length` zeros.
    pub fn region(&self, length: usize, access: Access) -> D::Mr {
        self.pd.register(Memory::zeroed(length).unwrap(), access).unwrap()
    }

    /// Posts `count` receives without a buffer, with ids from 0.
    pub fn post_empty_receives(&mut self, qp: QpId, count: u64) {
        let requests: Vec<_> = (0..count).map(|id| RecvRequest { id, buffer: Buffer::Empty }).collect();
        self.cq.post_recv(qp, &requests).unwrap();
    }

    /// Posts one receive.
    pub fn receive_into(&mut self, qp: QpId, id: u64, buffer: Segment) {
        self.cq.post_recv(qp, &[RecvRequest { id, buffer: Buffer::Segment(buffer) }]).unwrap();
    }

    /// Posts one receive in places.
    pub fn receive_in(&mut self, qp: QpId, id: u64, places: &[Place]) {
        self.cq.post_recv(qp, &[RecvRequest { id, buffer: Buffer::Places(places) }]).unwrap();
    }

    /// Posts one receive in places to a shared queue.
    pub fn receive_shared(&mut self, srq: SrqId, id: u64, places: &[Place]) {
        self.cq.post_srq_recv(srq, &[RecvRequest { id, buffer: Buffer::Places(places) }]).unwrap();
    }

    /// Posts one signaled request with payload in places.
    pub fn post_places(&mut self, qp: QpId, id: u64, operation: Operation, places: &[Place]) {
        let payload = Payload::Places(places);
        self.cq.post_send(qp, &[SendRequest { id, signaled: true, operation, payload }], false).unwrap();
    }

    /// Posts one signaled request with registered payload.
    pub fn post(&mut self, qp: QpId, id: u64, operation: Operation, segments: &[Segment]) {
        let payload = Payload::Segments(segments);
        self.cq.post_send(qp, &[SendRequest { id, signaled: true, operation, payload }], false).unwrap();
    }

    /// Posts one signaled request with inline payload.
    ///
    /// # Errors
    /// The device's: the payload may be too long, or the operation unsupported.
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

    /// Collects completions. Returns whether there were any.
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

    /// Collects completions, connection events and requests. Returns whether there were any.
    pub fn poll(&mut self) -> bool {
        let mut any = self.poll_completions();
        for (&qp, events) in &mut self.connection_events {
            while let Some(event) = self.cq.poll_event(qp) {
                events.push_back(event);
                any = true;
            }
        }
        while let Some(request) = self.listener.as_mut().and_then(Listener::poll) {
            self.requests.push_back(request);
            any = true;
        }
        any
    }

    /// The earliest deadline of the device.
    pub fn deadline(&self) -> Option<Instant> {
        let connections = self.connection_events.keys().filter_map(|&qp| self.cq.deadline(qp));
        connections.chain(self.listener.as_ref().and_then(Listener::deadline)).min()
    }

    /// Drives this end until `done` returns something.
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
            if let Some(value) = done(self) {
                return Ok(value);
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
        self.until("an event", |end| end.connection_events.get_mut(&qp)?.pop_front()).unwrap()
    }
}

/// The completion of a successful request, without details.
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
