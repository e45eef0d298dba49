//! The requests that a device has, and the memory that they use.

use std::mem;
use std::task::Waker;

use super::registration::Spans;
use super::waiters::replace;
use crate::{Completion, Segment};

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

/// Who takes the memory when the request has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// A future.
    Future,
    /// Nobody, because the future was dropped: it goes back to its pool.
    Nobody,
    /// Who takes the message out of the inbox of its queue pair.
    Inbox,
}

/// A request and its memory.
#[derive(Debug)]
pub(super) struct Slot {
    serial: u32,
    /// The slot that was freed before this one, if this one is free.
    next: usize,
    pub(super) queue: Queue,
    pub(super) owner: Owner,
    is_used: bool,
    memory: Spans,
    is_done: bool,
    /// Of a request that is done.
    completion: Completion,
    /// The task that waits for the completion.
    pub(super) waker: Option<Waker>,
}

impl Slot {
    /// Keeps the completion of its request for the owner.
    #[inline]
    pub(super) fn finish(&mut self, completion: &Completion) {
        (self.is_done, self.completion) = (true, *completion);
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
    pub(super) fn insert(&mut self, queue: Queue, memory: Spans, owner: Owner) -> SlotId {
        let index = self.free;
        if index == self.slots.len() {
            self.grow();
        }
        let slot = &mut self.slots[index];
        self.free = slot.next;
        (slot.queue, slot.owner, slot.memory) = (queue, owner, memory);
        (slot.is_used, slot.is_done) = (true, false);
        SlotId::new(index, slot.serial)
    }

    /// Adds a free slot.
    #[cold]
    fn grow(&mut self) {
        self.slots.push(Slot {
            serial: 0,
            next: self.slots.len() + 1,
            queue: Queue::Send(0),
            owner: Owner::Nobody,
            is_used: false,
            memory: Spans::default(),
            is_done: false,
            completion: Completion::EMPTY,
            waker: None,
        });
    }

    /// The slot of a request, if it is still there.
    #[inline]
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(id.index()).filter(|slot| slot.serial == id.serial())
    }

    /// The segments of the memory of a slot that is still there.
    #[inline]
    pub(super) fn segments(&self, id: SlotId) -> &[Segment] {
        self.slots[id.index()].memory.segments()
    }

    /// Whether a request is done, and its slot still there.
    #[inline]
    pub(super) fn is_done(&self, id: SlotId) -> bool {
        self.slots.get(id.index()).is_some_and(|slot| slot.serial == id.serial() && slot.is_done)
    }

    /// Frees a slot. Returns the memory, and the completion if the request is done. Nothing, if the slot is not
    /// there any more.
    #[inline]
    pub(super) fn take(&mut self, id: SlotId) -> (Spans, Completion) {
        let free = self.free;
        let Some(slot) = self.get_mut(id) else { return (Spans::default(), Completion::EMPTY) };
        // Never that of `NO_SLOT`.
        slot.serial = slot.serial.wrapping_add(1) & (u32::MAX >> 1);
        slot.next = free;
        slot.is_used = false;
        let taken = (mem::take(&mut slot.memory), slot.completion);
        self.free = id.index();
        taken
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
        slot.owner = Owner::Nobody;
        woken.extend(slot.waker.take());
        if slot.is_done {
            self.take(id);
        }
    }

    /// Ends the requests of queues that are destroyed. Their memory goes back to its pools. What futures own
    /// they get as flushed.
    pub(super) fn end(&mut self, is_destroyed: impl Fn(Queue) -> bool, woken: &mut Vec<Waker>) {
        for index in 0..self.slots.len() {
            let slot = &mut self.slots[index];
            if !slot.is_used || !is_destroyed(slot.queue) {
                continue;
            }
            if slot.owner == Owner::Future {
                if !slot.is_done {
                    // Its status is that it was flushed.
                    slot.finish(&Completion::EMPTY);
                }
                woken.extend(slot.waker.take());
            } else {
                let id = SlotId::new(index, slot.serial);
                self.take(id);
            }
        }
    }
}
