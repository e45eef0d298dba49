//! Two ends driven by one thread.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdma_verbs::{Completion, CompletionKind, ConnectionEvent, Device, QpCapabilities, QpId, SrqId};

use super::{CAPABILITIES, End, LIMIT, QUIET, SEND, step, success};
use crate::suite::rig::Rig;

/// Two ends driven by one thread.
pub struct Pair<D: Device> {
    /// The side that connects.
    pub active: End<D>,
    /// The side that listens.
    pub passive: End<D>,
    /// The address of the passive end's listener.
    pub address: SocketAddr,
    /// The capabilities that [`Pair::join`] requests.
    pub capabilities: QpCapabilities,
}

/// The two queue pairs of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Joined {
    /// The queue pair of the side that connected.
    pub active: QpId,
    /// The queue pair of the side that accepted.
    pub passive: QpId,
}

impl<D: Device> Pair<D> {
    /// Two ends for a rig's devices. The passive one listens.
    pub fn new(rig: &impl Rig<Device = D>) -> Self {
        let (active, passive) = rig.devices();
        let (active, mut passive) = (End::new(active), End::new(passive));
        let address = passive.listen(rig.listen_address());
        Self { active, passive, address, capabilities: CAPABILITIES }
    }

    /// Drives both ends until `done` returns something.
    pub fn until<T>(&mut self, what: &'static str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(value) = done(self) {
                return value;
            }
            step(&mut [&mut self.active, &mut self.passive], deadline, what).unwrap();
        }
    }

    /// Drives both ends until they have reported nothing for [`QUIET`].
    pub fn drive_until_idle(&mut self) {
        let mut last = Instant::now();
        while last.elapsed() < QUIET {
            if self.active.poll() | self.passive.poll() {
                last = Instant::now();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Connects two new queue pairs. `prepare` posts their first receives.
    pub fn join(&mut self, prepare: impl FnOnce(&mut Self, Joined)) -> Joined {
        let (joined, events) = self.try_join(prepare);
        require_established(&events);
        joined
    }

    /// Like [`Pair::join`], for an attempt that may fail. Returns also the first event of the active and of
    /// the passive side.
    pub fn try_join(&mut self, prepare: impl FnOnce(&mut Self, Joined)) -> (Joined, [ConnectionEvent; 2]) {
        let joined = Joined {
            active: self.active.queue_pair(self.capabilities).0,
            passive: self.passive.queue_pair(self.capabilities).0,
        };
        prepare(self, joined);
        let events = self.attempt(joined);
        (joined, events)
    }

    /// Connects two new queue pairs for messages. The passive one uses the receives of `shared`, if that is
    /// given.
    pub fn join_messages(&mut self, shared: Option<SrqId>) -> Joined {
        let of_shared = QpCapabilities { recv_depth: 0, ..self.capabilities };
        let wanted = if shared.is_some() { of_shared } else { self.capabilities };
        let joined = Joined {
            active: self.active.message_queue_pair(self.capabilities, None),
            passive: self.passive.message_queue_pair(wanted, shared),
        };
        require_established(&self.attempt(joined));
        joined
    }

    /// Connects two new queue pairs. The passive one uses the receives of `srq`.
    pub fn join_shared(&mut self, wanted: QpCapabilities, srq: SrqId) -> Joined {
        let joined = Joined {
            active: self.active.queue_pair(self.capabilities).0,
            passive: self.passive.shared_queue_pair(wanted, srq),
        };
        require_established(&self.attempt(joined));
        joined
    }

    /// Connects two queue pairs. Returns the first event of the active and of the passive side.
    fn attempt(&mut self, joined: Joined) -> [ConnectionEvent; 2] {
        self.active.connect(joined.active, self.address, b"");
        self.until("a request", |pair| (!pair.passive.requests.is_empty()).then_some(()));
        self.passive.accept(joined.passive, b"");
        [self.event(joined, false), self.event(joined, true)]
    }

    /// Connects two new queue pairs, of which the passive one has a full receive queue without buffers.
    pub fn join_with_receives(&mut self) -> Joined {
        self.join(|pair, joined| {
            pair.passive.post_empty_receives(joined.passive, pair.capabilities.recv_depth.into());
        })
    }

    /// The next event of one side.
    pub fn event(&mut self, joined: Joined, passive: bool) -> ConnectionEvent {
        self.until("an event", |pair| {
            let (end, qp) =
                if passive { (&mut pair.passive, joined.passive) } else { (&mut pair.active, joined.active) };
            end.connection_events.get_mut(&qp)?.pop_front()
        })
    }

    /// The next completion of the active end.
    pub fn at_active(&mut self) -> Completion {
        self.until("a completion at the active side", |pair| pair.active.completions.pop_front())
    }

    /// The next completion of the passive end.
    pub fn at_passive(&mut self) -> Completion {
        self.until("a completion at the passive side", |pair| pair.passive.completions.pop_front())
    }

    /// Asserts that a message from the active to the passive side arrives. The passive side needs a posted
    /// receive.
    pub fn assert_works(&mut self, joined: Joined) {
        self.active.post(joined.active, 4711, SEND, &[]);
        assert_eq!(self.at_active(), success(joined.active, 4711, CompletionKind::Send));
        let received = self.at_passive();
        assert_eq!(received, success(joined.passive, received.id, CompletionKind::Recv));
    }
}

fn require_established(events: &[ConnectionEvent; 2]) {
    let established = |event: &ConnectionEvent| matches!(event, ConnectionEvent::Established { .. });
    assert!(events.iter().all(established), "{events:?}");
}
