//! The requests that a device has, and the memory that they use.

use std::mem;
use std::task::Waker;

use super::registration::{Span, Spans};
use super::waiters::replace;
use crate::{Completion, CompletionKind, CompletionStatus, Segment};

/// The id of requests that have no slot, because they use no memory of the shard.
pub(super) const NO_SLOT: u64 = u64::MAX;

/// The name of a slot: the id of its request. Its lower half is the index, its upper half a serial number
/// that distinguishes it from earlier slots of the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotId(pub(super) u64);

impl SlotId {
    fn new(index: usize, serial: u32) -> Self {
        Self(u64::from(serial) << u32::BITS | index as u64)
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    fn serial(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }
}

/// The queue that has a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// The send queue of the queue pair with this index.
    Send(usize),
    /// The receive queue of that queue pair.
    Recv(usize),
    /// The shared receive queue with this index: the completion has the queue pair.
    Shared(usize),
}

/// What a slot is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Nothing. It has no memory.
    Free,
    /// A request of a future.
    Future,
    /// A request of a future, which has completed: the future takes the memory.
    Done,
    /// A request whose future was dropped: its memory goes back to its pool when it completes.
    Abandoned,
    /// A receive, and then its message, which is in the inbox of its queue pair.
    Inbox,
    /// A message that the program has, and its memory with it. Its receive is posted again in this slot.
    Message,
    /// The same, after the queue of the receive was destroyed: the slot ends with the message.
    LastMessage,
}

/// A request and its memory.
#[derive(Debug)]
pub(super) struct Slot {
    serial: u32,
    /// The slot that was freed before this one, if this one is free.
    next: usize,
    pub(super) queue: Queue,
    pub(super) state: SlotState,
    memory: Spans,
    /// That of a request that is done, or of a message.
    pub(super) completion: Completion,
    /// The task that waits for the completion.
    waker: Option<Waker>,
}

impl Slot {
    /// Keeps the completion of its request for the future.
    #[inline]
    pub(super) fn finish(&mut self, completion: &Completion, woken: &mut Vec<Waker>) {
        self.state = SlotState::Done;
        self.completion = *completion;
        if self.waker.is_some() {
            woken.extend(self.waker.take());
        }
    }

    /// Gives it memory. It has none, so nothing has to be dropped.
    #[inline]
    fn fill(&mut self, memory: Spans) {
        mem::forget(mem::replace(&mut self.memory, memory));
    }

    /// Takes back the memory of a message, to be posted as a receive with this segment again.
    #[inline]
    pub(super) fn return_message(&mut self, span: &mut Span, segment: Segment) {
        self.state = SlotState::Inbox;
        self.memory.first.segment = segment;
        mem::swap(&mut self.memory.first.registration, &mut span.registration);
    }

    /// The slot has another name from now on, and never that of `NO_SLOT`.
    #[inline]
    fn end_serial(&mut self) {
        self.serial = self.serial.wrapping_add(1) & (u32::MAX >> 1);
    }

    /// Whether the device has its request, unless that is a message in an inbox.
    #[inline]
    pub(super) fn is_outstanding(&self) -> bool {
        matches!(self.state, SlotState::Future | SlotState::Abandoned | SlotState::Inbox)
    }

    /// The segment of a receive.
    #[inline]
    pub(super) fn segment(&self) -> Segment {
        self.memory.first.segment
    }
}

/// The slots of a shard. They are filled and freed in place, because most of them are used for a message only.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    /// The slot that was freed last. If none is free, the number of slots.
    free: usize,
}

impl Slots {
    /// Makes room for this number of slots, so that posting does not allocate.
    pub(super) fn reserve(&mut self, slots: usize) {
        self.slots.reserve(slots.saturating_sub(self.slots.len()));
    }

    #[inline]
    pub(super) fn insert(&mut self, queue: Queue, memory: Spans, state: SlotState) -> SlotId {
        let index = self.free;
        if index >= self.slots.len() {
            self.grow();
        }
        let slot = &mut self.slots[index];
        self.free = slot.next;
        (slot.queue, slot.state) = (queue, state);
        slot.fill(memory);
        SlotId::new(index, slot.serial)
    }

    /// The name of the slot that is filled next.
    #[inline]
    pub(super) fn next_id(&mut self) -> SlotId {
        match self.slots.get(self.free) {
            Some(slot) => SlotId::new(self.free, slot.serial),
            None => {
                self.grow();
                SlotId::new(self.free, 0)
            }
        }
    }

    /// Uses up the name of the slot that is filled next. A request that a device has refused may have that name,
    /// and the end of its connection may complete it.
    #[cold]
    pub(super) fn skip(&mut self) {
        let id = self.next_id();
        self.slots[id.index()].end_serial();
    }

    /// Adds a free slot.
    #[cold]
    fn grow(&mut self) {
        self.slots.push(Slot {
            serial: 0,
            next: self.slots.len() + 1,
            queue: Queue::Send(0),
            state: SlotState::Free,
            memory: Spans::default(),
            completion: Completion::EMPTY,
            waker: None,
        });
    }

    /// The slot of a request, if it is still there.
    #[inline]
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        match self.slots.get_mut(id.index()) {
            Some(slot) if slot.serial == id.serial() => Some(slot),
            _ => None,
        }
    }

    /// The segments of the memory of a slot that is still there.
    #[inline]
    pub(super) fn segments(&self, id: SlotId) -> &[Segment] {
        self.slots[id.index()].memory.segments()
    }

    /// Whether these requests are done.
    #[inline]
    pub(super) fn are_done(&self, requests: &[SlotId]) -> bool {
        requests.iter().all(|&id| self.is_done(id))
    }

    /// Whether a request is done, and its slot still there.
    #[inline]
    pub(super) fn is_done(&self, id: SlotId) -> bool {
        self.slots
            .get(id.index())
            .is_some_and(|slot| slot.serial == id.serial() && slot.state == SlotState::Done)
    }

    /// Frees a slot. Returns the memory, and the status of a request that is done. There is no memory if the
    /// slot is not there any more.
    #[inline]
    pub(super) fn take(&mut self, id: SlotId) -> (Spans, CompletionStatus) {
        let free = self.free;
        let none = (Spans::default(), CompletionStatus::Success);
        let Some(slot) = self.get_mut(id) else { return none };
        slot.end_serial();
        slot.next = free;
        slot.state = SlotState::Free;
        let taken = (mem::take(&mut slot.memory), slot.completion.status);
        self.free = id.index();
        taken
    }

    /// Keeps the completion of a receive, if it is a message of this queue.
    #[inline]
    pub(super) fn finish_message(&mut self, queue: Queue, completion: &Completion) -> bool {
        let Some(slot) = self.get_mut(SlotId(completion.id)) else { return false };
        let is_receive = slot.queue == queue && slot.state == SlotState::Inbox;
        if !is_receive || completion.status != CompletionStatus::Success {
            return false;
        }
        slot.completion = *completion;
        true
    }

    /// The slot of a message that the program has. It is there as long as the message.
    #[inline]
    pub(super) fn of_message(&mut self, id: SlotId) -> &mut Slot {
        &mut self.slots[id.index()]
    }

    /// Takes the bytes of a message out of its slot. The program gets them.
    #[inline]
    pub(super) fn take_message(&mut self, id: SlotId) -> Span {
        let slot = &mut self.slots[id.index()];
        slot.state = SlotState::Message;
        let Completion { kind, length, .. } = slot.completion;
        let mut span = mem::take(&mut slot.memory.first);
        // The bytes of a write are in a region.
        let length = if kind == CompletionKind::RecvWrite { 0 } else { length };
        span.segment.length = length.min(span.segment.length);
        span
    }

    /// The completion of a message, or of a request that is done.
    pub(super) fn completion(&self, id: SlotId) -> Completion {
        let slot = self.slots.get(id.index()).filter(|slot| slot.serial == id.serial());
        slot.map_or(Completion::EMPTY, |slot| slot.completion)
    }

    /// Has the task of a future woken when its request is done.
    pub(super) fn register(&mut self, id: SlotId, waker: &Waker, woken: &mut Vec<Waker>) {
        let Some(slot) = self.get_mut(id) else { return };
        match &mut slot.waker {
            Some(known) => replace(known, waker, woken),
            none => *none = Some(waker.clone()),
        }
    }

    /// Drops the interest of a future in its request: its memory goes back when the request is done.
    pub(super) fn abandon(&mut self, id: SlotId, woken: &mut Vec<Waker>) {
        let Some(slot) = self.get_mut(id) else { return };
        woken.extend(slot.waker.take());
        if slot.state == SlotState::Done {
            self.take(id);
        } else {
            slot.state = SlotState::Abandoned;
        }
    }

    /// Ends the requests of queues that are destroyed. Their memory goes back to its pools. What futures own
    /// they get as flushed.
    pub(super) fn end(&mut self, is_destroyed: impl Fn(Queue) -> bool, woken: &mut Vec<Waker>) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if !is_destroyed(slot.queue) {
                continue;
            }
            match slot.state {
                SlotState::Free | SlotState::Done | SlotState::LastMessage => {}
                SlotState::Message => slot.state = SlotState::LastMessage,
                // Its status is that it was flushed.
                SlotState::Future => slot.finish(&Completion::EMPTY, woken),
                SlotState::Abandoned | SlotState::Inbox => {
                    let id = SlotId::new(index, slot.serial);
                    self.take(id);
                }
            }
        }
    }
}
