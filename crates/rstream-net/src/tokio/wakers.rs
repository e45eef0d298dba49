//! The tasks that wait for one connection.
//!
//! A bell says only that there is something to look for, and whoever takes it takes it from all. So the
//! reactor wakes every task that waits, and a task that takes a bell before the reactor has seen it wakes the
//! others.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// For what a task waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// The one task that reads.
    Reader,
    /// The one task that writes.
    Writer,
    /// Any of those that wait until the stream is ready.
    Other,
}

#[derive(Debug, Default)]
pub(crate) struct Wakers(Mutex<List>);

#[derive(Debug, Default)]
struct List {
    reader: Option<Waker>,
    writer: Option<Waker>,
    others: Vec<Waker>,
}

impl Wakers {
    /// To be called before the task looks for the last time.
    pub(crate) fn register(&self, who: Who, waker: &Waker) {
        let mut list = self.lock();
        let place = match who {
            Who::Reader => &mut list.reader,
            Who::Writer => &mut list.writer,
            Who::Other => {
                if !list.others.iter().any(|known| known.will_wake(waker)) {
                    list.others.push(waker.clone());
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
        reader.into_iter().chain(writer).chain(others).for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
