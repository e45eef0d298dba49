//! What joins two queue pairs: two queues of frames, one for each side, behind one lock.
//!
//! Each side holds a [`Port`]. Frames arrive in order; the side that they are for takes them out
//! when it is driven. A port that is dropped before it said how the connection ends says that it is
//! reset, so a side cannot vanish unnoticed, whatever path it takes.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::notifier::Notifier;
use rdma_verbs::Signal;
use rdma_verbs::{BreakReason, CompletionStatus, QpId, RemoteAddress};

/// What travels on a link.
#[derive(Debug)]
pub(super) enum Frame {
    /// The passive side accepts.
    Accept { private_data: Vec<u8>, terms: Terms },
    /// The passive side refuses; ends the link.
    Reject { private_data: Vec<u8> },
    /// The active side knows that the connection stands.
    Ready,
    /// A message for the oldest receive.
    Send { bytes: Vec<u8>, immediate: Option<u64>, invalidate: Option<u32> },
    /// Bytes for the receiver's memory.
    Write { bytes: Vec<u8>, remote: RemoteAddress, immediate: Option<u64> },
    /// Asks for bytes of the receiver's memory.
    ReadRequest { remote: RemoteAddress, length: u32 },
    /// The bytes of the oldest read request that is not answered.
    ReadResponse { bytes: Vec<u8> },
    /// So many more requests were carried out.
    Acknowledge { requests: usize },
    /// The oldest request that is not done was refused, and ends so.
    Refuse(CompletionStatus),
    /// The sender sends no more requests; ends the link once both sides said it.
    Close,
    /// The connection is broken; ends the link. The reason is the one for its receiver.
    Break(BreakReason),
}

/// What the sides of a connection tell each other about themselves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Reads that the side serves at a time.
    pub(super) responder_resources: u8,
    /// Its requests complete only when they are acknowledged.
    pub(super) acknowledge: bool,
}

/// One side's hold on a link.
#[derive(Debug)]
pub(super) struct Port {
    sides: Arc<Mutex<[Side; 2]>>,
    /// Index of this side.
    own: usize,
}

#[derive(Debug, Default)]
struct Side {
    inbox: VecDeque<Frame>,
    /// Requests in the inbox: what the wire's capacity counts.
    requests: usize,
    /// Whom to wake when the inbox gets something.
    wakes: Option<Wakes>,
    /// Waits for room in the other side's inbox.
    starved: bool,
    /// Said how the connection ends.
    farewell: bool,
    /// The port was dropped.
    gone: bool,
}

/// Whom a frame wakes.
#[derive(Debug)]
pub(super) struct Wakes {
    /// The completion queue's notifier.
    pub(super) notifier: Arc<Notifier>,
    /// The queue pair to drive.
    pub(super) qp: QpId,
    /// For frames that become connection events.
    pub(super) announcer: Arc<Signal>,
}

impl Port {
    /// The two ends of a new link: active, passive.
    pub(super) fn pair() -> (Self, Self) {
        let sides = Arc::new(Mutex::<[Side; 2]>::default());
        (Self { sides: Arc::clone(&sides), own: 0 }, Self { sides, own: 1 })
    }

    /// From now on frames for this side wake its owner.
    pub(super) fn wake(&self, wakes: Wakes) {
        self.with(|own, _| own.wakes = Some(wakes));
    }

    /// Sends a frame to the other side; lost if that one is gone.
    pub(super) fn push(&self, frame: Frame) {
        self.with(|own, other| deliver(own, other, frame));
    }

    /// Sends a frame that overtakes and discards everything on its way.
    pub(super) fn push_instead(&self, frame: Frame) {
        self.with(|own, other| {
            other.inbox.clear();
            other.requests = 0;
            deliver(own, other, frame);
        });
    }

    /// Takes the next frame for this side.
    pub(super) fn pop(&self) -> Option<Frame> {
        self.with(|own, other| {
            let frame = own.inbox.pop_front()?;
            if frame.is_request() {
                own.requests -= 1;
                if std::mem::take(&mut other.starved) {
                    other.ring();
                }
            }
            Some(frame)
        })
    }

    /// Whether the wire, of so many requests, takes another one from this side. If not, this side
    /// is woken when it does.
    pub(super) fn has_room(&self, capacity: usize) -> bool {
        self.with(|own, other| {
            let room = other.gone || other.requests < capacity.max(1);
            own.starved = !room;
            room
        })
    }

    /// Whether nobody is at the other end any more.
    pub(super) fn peer_gone(&self) -> bool {
        self.with(|_, other| other.gone)
    }

    /// Runs `body` on this side and the other one.
    fn with<R>(&self, body: impl FnOnce(&mut Side, &mut Side) -> R) -> R {
        let [active, passive] = &mut *self.sides.lock();
        if self.own == 0 { body(active, passive) } else { body(passive, active) }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let leftovers = self.with(|own, other| {
            if !own.farewell {
                deliver(own, other, Frame::Break(BreakReason::Reset));
            }
            own.gone = true;
            own.requests = 0;
            // It may wait for room here, or for an answer that will not come.
            other.ring();
            (std::mem::take(&mut own.inbox), own.wakes.take())
        });
        drop(leftovers);
    }
}

impl Side {
    fn ring(&self) {
        if let Some(wakes) = &self.wakes {
            wakes.notifier.notify(wakes.qp);
        }
    }
}

fn deliver(own: &mut Side, other: &mut Side, frame: Frame) {
    own.farewell |= frame.is_farewell();
    if other.gone {
        return;
    }
    if let Some(wakes) = &other.wakes {
        if frame.is_event() {
            wakes.announcer.set(true);
        }
        if !frame.is_handshake() {
            wakes.notifier.notify(wakes.qp);
        }
    }
    other.requests += usize::from(frame.is_request());
    other.inbox.push_back(frame);
}

impl Frame {
    /// Counts against the capacity of the wire.
    fn is_request(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { .. } | Self::ReadRequest { .. })
    }

    /// Brings about no completion, only an event.
    fn is_handshake(&self) -> bool {
        matches!(self, Self::Accept { .. } | Self::Reject { .. } | Self::Ready)
    }

    /// The last that its sender says.
    fn is_farewell(&self) -> bool {
        matches!(self, Self::Reject { .. } | Self::Close | Self::Break(_))
    }

    /// Brings about a connection event.
    fn is_event(&self) -> bool {
        self.is_handshake() || self.is_farewell()
    }
}
