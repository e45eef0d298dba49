//! The tasks that wait for one connection.
//!
//! A bell says only that there is something to look for, and whoever takes it takes it from all. So the
//! reactor wakes every task that waits, and a task that takes a bell before the reactor has seen it wakes the
//! others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// For what a task waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// The one task that reads.
    Reader,
    /// The one task that writes.
    Writer,
    /// Any of those that peek, or wait until the stream is ready: that of this [`Place`].
    Other(u64),
}

#[derive(Debug, Default)]
pub(crate) struct Wakers {
    list: Mutex<List>,
    /// The number of the next place.
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct List {
    reader: Option<Waker>,
    writer: Option<Waker>,
    others: Vec<(u64, Waker)>,
}

/// The place of a future among those of which there may be any number. One that is dropped leaves nothing
/// behind.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    wakers: &'a Wakers,
    number: u64,
}

impl Place<'_> {
    pub(crate) fn who(&self) -> Who {
        Who::Other(self.number)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut list = self.wakers.lock();
        let at = list.others.iter().position(|(number, _)| *number == self.number);
        let waker = at.map(|at| list.others.swap_remove(at));
        drop(list);
        // Without the lock: a waker may run anything.
        drop(waker);
    }
}

impl Wakers {
    pub(crate) fn place(&self) -> Place<'_> {
        Place { wakers: self, number: self.next.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether a task waits for input, or may.
    pub(crate) fn wait_for_input(&self) -> bool {
        let list = self.lock();
        list.reader.is_some() || !list.others.is_empty()
    }

    /// To be called before the task looks for the last time.
    pub(crate) fn register(&self, who: Who, waker: &Waker) {
        let mut list = self.lock();
        let place = match who {
            Who::Reader => &mut list.reader,
            Who::Writer => &mut list.writer,
            Who::Other(number) => {
                match list.others.iter_mut().find(|(known, _)| *known == number) {
                    Some((_, known)) => known.clone_from(waker),
                    None => list.others.push((number, waker.clone())),
                }
                return;
            }
        };
        match place {
            Some(known) => known.clone_from(waker),
            None => *place = Some(waker.clone()),
        }
    }

    /// Wakes all but the one that calls, if it is the only one of its kind.
    pub(crate) fn wake_others(&self, caller: Option<Who>) {
        let (reader, writer, others) = {
            let mut list = self.lock();
            let reader = if caller == Some(Who::Reader) { None } else { list.reader.take() };
            let writer = if caller == Some(Who::Writer) { None } else { list.writer.take() };
            (reader, writer, std::mem::take(&mut list.others))
        };
        // Without the lock: a waker may run anything.
        let others = others.into_iter().map(|(_, waker)| waker);
        reader.into_iter().chain(writer).chain(others).for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the reactor wakes.
impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_others(None);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_others(None);
    }
}
