//! The completion queues of a domain, and which of them calls have changed. When a call ends, only the signals of
//! these are updated.

use std::ops::{Index, IndexMut};

use slab::Slab;

use super::completion_queue::Queue;

/// The queues, by their indexes. Whoever takes one mutably has it listed as changed.
#[derive(Default)]
pub(super) struct Queues {
    all: Slab<Place>,
    /// Indexes of the queues that may have changed since their signals were updated.
    changed: Vec<usize>,
}

struct Place {
    queue: Queue,
    /// Whether its index is among the changed ones.
    is_listed: bool,
}

impl Queues {
    /// Adds a queue. Returns its index.
    pub(super) fn insert(&mut self, queue: Queue) -> usize {
        self.all.insert(Place { queue, is_listed: false })
    }

    pub(super) fn remove(&mut self, at: usize) -> Option<Queue> {
        let Place { queue, is_listed } = self.all.try_remove(at)?;
        if is_listed {
            self.changed.retain(|&changed| changed != at);
        }
        Some(queue)
    }

    pub(super) fn get(&self, at: usize) -> Option<&Queue> {
        self.all.get(at).map(|place| &place.queue)
    }

    /// The queues with their indexes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Queue)> {
        self.all.iter().map(|(at, place)| (at, &place.queue))
    }

    /// Updates the signals of the queues that have changed since the last call.
    pub(super) fn notify(&mut self) {
        while let Some(at) = self.changed.pop() {
            if let Some(place) = self.all.get_mut(at) {
                place.is_listed = false;
                place.queue.notify();
            }
        }
    }
}

impl Index<usize> for Queues {
    type Output = Queue;

    #[inline]
    fn index(&self, at: usize) -> &Queue {
        &self.all[at].queue
    }
}

impl IndexMut<usize> for Queues {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut Queue {
        let place = &mut self.all[at];
        if !place.is_listed {
            place.is_listed = true;
            self.changed.push(at);
        }
        &mut place.queue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_queues_are_not_listed() {
        let mut queues = Queues::default();
        let first = queues.insert(Queue::default());
        for _ in 0..3 {
            let at = queues.insert(Queue::default());
            queues[at].users = 1;
            queues[first].users = 1;
            assert!(queues.remove(at).is_some());
            assert!(queues.remove(at).is_none());
        }
        assert_eq!(queues.changed, [first]);
        queues.notify();
        assert!(queues.changed.is_empty());
    }
}
