//! The link between two queue pairs: two queues of frames, one for each receiver, under one lock.
//!
//! Each side holds a [`Port`]. Frames arrive in order, and their receiver takes them when it is driven. If a
//! port is dropped before it sent a last frame, it sends a reset, so that the peer always learns of the end.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::notifier::Notifier;
use rdma_verbs::Signal;
use rdma_verbs::{BreakReason, CompletionStatus, QpId, RemoteAddress};

/// A message of a link.
#[derive(Debug)]
pub(super) enum Frame {
    /// The passive side accepts.
    Accept { private_data: Vec<u8>, parameters: Parameters },
    /// The passive side rejects the request, which ends the link.
    Reject { private_data: Vec<u8> },
    /// The active side has received the `Accept`.
    Ready,
    /// A message for the oldest receive.
    Send { bytes: Vec<u8>, immediate: Option<u64>, invalidate: Option<u32> },
    /// Bytes for the receiver's memory.
    Write { bytes: Vec<u8>, remote: RemoteAddress, immediate: Option<u64> },
    /// A request for bytes of the receiver's memory.
    ReadRequest { remote: RemoteAddress, length: usize },
    /// The response to the oldest outstanding read request.
    ReadResponse { bytes: Vec<u8> },
    /// The receiver executed this many more requests.
    Acknowledge { requests: usize },
    /// The oldest outstanding request was refused, and completes with this status.
    Refuse(CompletionStatus),
    /// The sender sends no more requests. The link ends when both sides have sent this.
    Close,
    /// The connection is broken, which ends the link. The reason is the one that the frame's receiver
    /// reports.
    Break(BreakReason),
}

/// What each side of a connection announces about itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameters {
    /// Reads that the side serves at a time.
    pub(super) responder_resources: u8,
    /// Whether its requests complete only when they are acknowledged.
    pub(super) acknowledge: bool,
}

/// One side of a link.
#[derive(Debug)]
pub(super) struct Port {
    sides: Arc<Mutex<[Side; 2]>>,
    /// Index of this side.
    own: usize,
}

#[derive(Debug, Default)]
struct Side {
    /// Frames for this side.
    frames: VecDeque<Frame>,
    /// The requests among the frames, which the wire's capacity limits.
    requests: usize,
    /// Woken when a frame arrives.
    wake_target: Option<WakeTarget>,
    /// Waits for room for a request.
    waits_for_room: bool,
    /// Has sent its last frame.
    last_sent: bool,
    /// The port was dropped.
    gone: bool,
}

/// What an arriving frame wakes.
#[derive(Debug)]
pub(super) struct WakeTarget {
    /// The completion queue's notifier.
    pub(super) notifier: Arc<Notifier>,
    /// The queue pair to drive.
    pub(super) qp: QpId,
    /// The signal for connection events.
    pub(super) event_signal: Arc<Signal>,
}

impl Port {
    /// The two ends of a new link: active, passive.
    pub(super) fn pair() -> (Self, Self) {
        let sides = Arc::new(Mutex::<[Side; 2]>::default());
        (Self { sides: Arc::clone(&sides), own: 0 }, Self { sides, own: 1 })
    }

    /// Sets the target that frames for this side wake.
    pub(super) fn wake(&self, wake_target: WakeTarget) {
        self.with(|own, _| own.wake_target = Some(wake_target));
    }

    /// Sends a frame to the other side, which is dropped if that side is gone.
    pub(super) fn push(&self, frame: Frame) {
        self.with(|own, other| deliver(own, other, frame));
    }

    /// Sends a frame in place of all frames that the other side has not taken yet.
    pub(super) fn push_instead(&self, frame: Frame) {
        self.with(|own, other| {
            other.frames.clear();
            other.requests = 0;
            deliver(own, other, frame);
        });
    }

    /// Takes the next frame for this side.
    pub(super) fn pop(&self) -> Option<Frame> {
        self.with(|own, other| {
            let frame = own.frames.pop_front()?;
            if frame.is_request() {
                own.requests -= 1;
                if std::mem::take(&mut other.waits_for_room) {
                    other.notify();
                }
            }
            Some(frame)
        })
    }

    /// Whether a wire of this capacity has room for another request of this side. If not, this side is woken
    /// when there is room.
    pub(super) fn has_room(&self, capacity: usize) -> bool {
        self.with(|own, other| {
            let room = other.gone || other.requests < capacity.max(1);
            own.waits_for_room = !room;
            room
        })
    }

    /// Whether the other side is gone.
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
        let dropped = self.with(|own, other| {
            if !own.last_sent {
                deliver(own, other, Frame::Break(BreakReason::Reset));
            }
            own.gone = true;
            own.requests = 0;
            // The other side may wait for room, or for a response that will not come.
            other.notify();
            (std::mem::take(&mut own.frames), own.wake_target.take())
        });
        // Dropped after the lock is released.
        drop(dropped);
    }
}

impl Side {
    fn notify(&self) {
        if let Some(wake_target) = &self.wake_target {
            wake_target.notifier.notify(wake_target.qp);
        }
    }
}

fn deliver(own: &mut Side, other: &mut Side, frame: Frame) {
    own.last_sent |= frame.is_last();
    if other.gone {
        return;
    }
    if let Some(wake_target) = &other.wake_target {
        if frame.is_event() {
            wake_target.event_signal.set(true);
        }
        if !frame.is_handshake() {
            wake_target.notifier.notify(wake_target.qp);
        }
    }
    other.requests += usize::from(frame.is_request());
    other.frames.push_back(frame);
}

impl Frame {
    /// Whether it counts against the capacity of the wire.
    pub(super) fn is_request(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Write { .. } | Self::ReadRequest { .. })
    }

    /// Whether it causes a connection event and no completion.
    fn is_handshake(&self) -> bool {
        matches!(self, Self::Accept { .. } | Self::Reject { .. } | Self::Ready)
    }

    /// Whether it is the last frame of its sender.
    fn is_last(&self) -> bool {
        matches!(self, Self::Reject { .. } | Self::Close | Self::Break(_))
    }

    /// Whether it causes a connection event.
    fn is_event(&self) -> bool {
        self.is_handshake() || self.is_last()
    }
}
