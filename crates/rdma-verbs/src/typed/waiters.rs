//! The tasks that wait for one thing.

use std::task::Waker;

/// Wakers of futures that wait, each with the future's ticket. A waker is never dropped under the lock of the
/// shard, because that may run the drop of a task, which may take the lock: it is woken instead.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    entries: Vec<(u64, Waker)>,
    next: u64,
}

impl Waiters {
    /// Notes that the future with this ticket waits. A future without a ticket gets one.
    pub(super) fn register(&mut self, ticket: &mut Option<u64>, waker: &Waker, woken: &mut Vec<Waker>) {
        let number = *ticket.get_or_insert_with(|| {
            self.next += 1;
            self.next
        });
        match self.entries.iter_mut().find(|(entry, _)| *entry == number) {
            Some((_, known)) => replace(known, waker, woken),
            None => self.entries.push((number, waker.clone())),
        }
    }

    /// Notes that the future with this ticket waits no longer.
    pub(super) fn remove(&mut self, ticket: Option<u64>, woken: &mut Vec<Waker>) {
        if let Some(at) = self.entries.iter().position(|(entry, _)| Some(*entry) == ticket) {
            woken.push(self.entries.swap_remove(at).1);
        }
    }

    /// Wakes all.
    #[inline]
    pub(super) fn wake(&mut self, woken: &mut Vec<Waker>) {
        if !self.entries.is_empty() {
            woken.extend(self.entries.drain(..).map(|(_, waker)| waker));
        }
    }
}

/// Replaces a waker, if the new one wakes another task.
pub(super) fn replace(known: &mut Waker, waker: &Waker, woken: &mut Vec<Waker>) {
    if !known.will_wake(waker) {
        woken.push(std::mem::replace(known, waker.clone()));
    }
}
