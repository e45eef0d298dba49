//! The requests that a device has, and the memory that they use.

use std::mem;
use std::task::Waker;

use slab::Slab;

use super::registration::Span;
use super::waiters::replace;
use crate::Completion;

/// The id of requests that have no slot, because they use no memory of the shard.
pub(super) const NO_SLOT: u64 = u64::MAX;

/// The name of a slot: the id of its request. Its lower half is the index, its upper half a serial number
/// that distinguishes it from earlier slots of the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotId(pub(super) u64);

impl SlotId {
    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    fn serial(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }
}

/// What happens to the memory when the request has completed.
#[derive(Debug)]
pub(super) enum Owner {
    /// A future takes it. The waker is that of the task that waits for it.
    Future(Option<Waker>),
    /// The future was dropped: it goes back to its pool.
    Nobody,
    /// It is a receive whose message goes to the inbox.
    Inbox,
    /// It is a receive of the shared queue with this index: its completion has the queue pair.
    Shared(usize),
}

/// A request and its memory.
#[derive(Debug)]
pub(super) struct Slot {
    serial: u32,
    /// The index of its queue pair, if it has one.
    pub(super) pair: Option<usize>,
    pub(super) span: Span,
    pub(super) owner: Owner,
    /// Whether it is a receive.
    pub(super) is_receive: bool,
    /// Set when the request of a future has completed.
    pub(super) completion: Option<Completion>,
}

/// The slots of a shard.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Slab<Slot>,
    serial: u32,
}

impl Slots {
    /// Makes room for this number of slots, so that posting does not allocate.
    pub(super) fn reserve(&mut self, slots: usize) {
        self.slots.reserve(slots.saturating_sub(self.slots.len()));
    }

    #[inline]
    pub(super) fn insert(
        &mut self,
        pair: Option<usize>,
        span: Span,
        owner: Owner,
        is_receive: bool,
    ) -> SlotId {
        // Never that of `NO_SLOT`.
        self.serial = self.serial.wrapping_add(1) & (u32::MAX >> 1);
        let slot = Slot { serial: self.serial, pair, span, owner, is_receive, completion: None };
        let index = self.slots.insert(slot);
        SlotId(u64::from(self.serial) << u32::BITS | index as u64)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.get_mut(id.index()).filter(|slot| slot.serial == id.serial())
    }

    /// Removes the slot of a request that has completed, if it is still there.
    #[inline]
    pub(super) fn remove(&mut self, id: SlotId) -> Option<Slot> {
        self.get_mut(id)?;
        self.slots.try_remove(id.index())
    }

    /// Removes a slot that its future alone removes, and returns the memory.
    #[inline]
    pub(super) fn take(&mut self, id: SlotId) -> Span {
        self.slots.remove(id.index()).span
    }

    /// The completion of a future's request, or registers the waker of the future's task.
    #[inline]
    pub(super) fn poll(&mut self, id: SlotId, waker: &Waker, woken: &mut Vec<Waker>) -> Option<Completion> {
        let slot = self.get_mut(id)?;
        if slot.completion.is_none()
            && let Owner::Future(known) = &mut slot.owner
        {
            match known {
                Some(known) => replace(known, waker, woken),
                None => *known = Some(waker.clone()),
            }
        }
        slot.completion
    }

    /// Drops the interest of a future in its request: its memory goes back when the request has completed.
    pub(super) fn abandon(&mut self, id: SlotId, woken: &mut Vec<Waker>) {
        let Some(slot) = self.get_mut(id) else { return };
        if slot.completion.is_some() {
            self.remove(id);
        } else if let Owner::Future(Some(waker)) = mem::replace(&mut slot.owner, Owner::Nobody) {
            woken.push(waker);
        }
    }

    /// Ends the requests of a queue pair that is destroyed. Their memory goes back to its pools. What futures
    /// own they get as flushed.
    pub(super) fn end(&mut self, pair: usize, woken: &mut Vec<Waker>) {
        self.slots.retain(|_, slot| match &mut slot.owner {
            _ if slot.pair != Some(pair) => true,
            Owner::Future(waker) => {
                // Its status is that it was flushed.
                slot.completion.get_or_insert(Completion::EMPTY);
                woken.extend(waker.take());
                true
            }
            Owner::Nobody | Owner::Inbox | Owner::Shared(_) => false,
        });
    }

    /// Ends the receives of a shared queue that is destroyed. Their memory goes back to its pools.
    pub(super) fn end_shared(&mut self, index: usize) {
        self.slots.retain(|_, slot| !matches!(slot.owner, Owner::Shared(of) if of == index));
    }
}
