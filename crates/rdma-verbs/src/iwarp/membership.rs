//! The wait sets that contain a queue pair's socket, and the interest in it: the sets that report when to
//! poll the completion queue, and the one that reports connection events.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use crate::{EventTarget, Interest, QpId, Result, Signal, Timer, Token, WaitSet};

/// The wait sets that report when to poll a completion queue, for all its queue pairs.
#[derive(Clone, Copy)]
pub(super) struct PollSets<'s> {
    /// The set that the user attached.
    pub(super) attached: Option<&'s EventTarget>,
    /// The queue's own set, by which it finds the ready sockets among many.
    pub(super) own: Option<&'s WaitSet>,
}

impl<'s> PollSets<'s> {
    /// The sets, each with the token that stands for a queue pair there.
    fn each(self, number: QpId) -> impl Iterator<Item = (&'s WaitSet, Token)> {
        let attached = self.attached.map(|target| (&*target.wait, target.token));
        let own = self.own.map(|set| (set, Token(u64::from(number.0))));
        attached.into_iter().chain(own)
    }
}

/// The memberships of one queue pair's socket. The caller passes the same socket to every call.
pub(super) struct Membership {
    number: QpId,
    /// Further poll sets, of this queue pair alone. They seldom change, and most queue pairs have none.
    watching: Box<[EventTarget]>,
    /// The interest in the poll sets; `None`: the socket is in none of them.
    interest: Option<Interest>,
    /// In the poll sets until the socket is removed from them. Boxed, because few connections end by a fault.
    timer: Option<Box<Timer>>,
    /// Reports connection events, as long as one may come.
    events: Option<Events>,
}

/// The event target of a queue pair.
struct Events {
    target: EventTarget,
    /// The interest in the socket there.
    interest: Interest,
    /// Set if an event waits that the socket may not show. Boxed, because few connections have ended.
    signal: Option<Box<Signal>>,
}

impl Membership {
    pub(super) fn new(number: QpId) -> Self {
        Self { number, watching: Box::default(), interest: None, timer: None, events: None }
    }

    /// From now on `target` reports connection events, at first when the socket has the state `interest`.
    pub(super) fn set_event_target(
        &mut self,
        socket: BorrowedFd<'_>,
        interest: Interest,
        target: EventTarget,
    ) -> Result<()> {
        target.wait.add(socket, target.token, interest)?;
        self.events = Some(Events { target, interest, signal: None });
        Ok(())
    }

    /// Changes the interest at the event target; `None`: removes the socket there.
    pub(super) fn set_event_interest(&mut self, socket: BorrowedFd<'_>, interest: Option<Interest>) {
        let Some(Events { target, interest: before, .. }) = &mut self.events else { return };
        let outcome = match interest {
            // The set reports a hang-up once, and again only after a change.
            Some(same) if same == *before && same != Interest::HangUp => Ok(()),
            Some(interest) => target.wait.modify(socket, target.token, interest),
            None => target.wait.remove(socket),
        };
        *before = interest.unwrap_or(*before);
        if let Err(error) = outcome {
            log::warn!("iwarp: cannot announce events of queue pair {}: {error}", self.number.0);
        }
        if interest.is_none() {
            self.events = None;
        }
    }

    /// Makes the event target report the queue pair, whatever state the socket has.
    pub(super) fn signal_event(&mut self) {
        if let Some(Events { target, signal, .. }) = &mut self.events {
            signal.get_or_insert_with(|| Box::new(target.wait.signal(target.token))).set(true);
        }
    }

    /// Changes the interest in the poll sets, and adds the socket to them if necessary. Returns whether the
    /// interest is new.
    #[inline]
    pub(super) fn set_interest(
        &mut self,
        socket: BorrowedFd<'_>,
        wanted: Interest,
        sets: PollSets<'_>,
    ) -> bool {
        let changes = self.interest != Some(wanted);
        if changes {
            self.change(socket, wanted, sets);
        }
        changes
    }

    /// The poll sets, each with the token that stands for this queue pair there.
    fn poll_sets<'s>(&'s self, sets: PollSets<'s>) -> impl Iterator<Item = (&'s WaitSet, Token)> {
        let watching = self.watching.iter().map(|target| (&*target.wait, target.token));
        sets.each(self.number).chain(watching)
    }

    #[cold]
    fn change(&mut self, socket: BorrowedFd<'_>, wanted: Interest, sets: PollSets<'_>) {
        for (set, token) in self.poll_sets(sets) {
            let outcome = match self.interest {
                None => set.add(socket, token, wanted),
                Some(_) => set.modify(socket, token, wanted),
            };
            if let Err(error) = outcome {
                log::warn!("iwarp: cannot watch queue pair {}: {error}", self.number.0);
            }
        }
        self.interest = Some(wanted);
    }

    /// Makes the poll sets report the queue pair at the time `at`, and from then on until it is removed, whatever
    /// state the socket has, and whether it is in the sets or not.
    pub(super) fn report_at(&mut self, at: Instant, sets: PollSets<'_>) {
        let unwatched = |error| log::warn!("iwarp: no timer wakes for queue pair {}: {error}", self.number.0);
        if let Some(timer) = &self.timer {
            return timer.set(Some(at)).unwrap_or_else(unwatched);
        }
        let timer = Timer::new().and_then(|timer| timer.set(Some(at)).map(|()| timer));
        let Ok(timer) = timer.map_err(unwatched) else { return };
        for (set, token) in self.poll_sets(sets) {
            set.add(timer.as_fd(), token, Interest::Read).unwrap_or_else(unwatched);
        }
        self.timer = Some(Box::new(timer));
    }

    /// Removes the socket from the poll sets.
    pub(super) fn remove(&mut self, socket: BorrowedFd<'_>, sets: PollSets<'_>) {
        for (set, _) in self.poll_sets(sets) {
            self.remove_from(&socket, set);
        }
        (self.interest, self.timer) = (None, None);
    }

    /// Adds the socket, if there is one, to a poll set of this queue pair alone.
    pub(super) fn watch(&mut self, socket: Option<&impl AsFd>, wait: &Arc<WaitSet>) -> Result<()> {
        if self.is_watched(wait) {
            return Ok(());
        }
        let target = EventTarget::new(wait);
        socket.map_or(Ok(()), |socket| self.add_to(socket, wait, target.token))?;
        let watching = std::mem::take(&mut self.watching).into_iter();
        self.watching = watching.chain([target]).collect();
        Ok(())
    }

    /// Ends [`Membership::watch`]. Returns whether the set was one of these.
    pub(super) fn unwatch(&mut self, socket: Option<&impl AsFd>, wait: &Arc<WaitSet>) -> bool {
        let was_watched = self.is_watched(wait);
        if was_watched {
            let watching = std::mem::take(&mut self.watching).into_iter();
            self.watching = watching.filter(|target| !Arc::ptr_eq(&target.wait, wait)).collect();
            if let Some(socket) = socket {
                self.remove_from(socket, wait);
            }
        }
        was_watched
    }

    fn is_watched(&self, wait: &Arc<WaitSet>) -> bool {
        self.watching.iter().any(|target| Arc::ptr_eq(&target.wait, wait))
    }

    /// Adds the socket to `set`, which becomes one of the poll sets. If it fails, `set` is what it was.
    pub(super) fn add_to(&self, socket: &impl AsFd, set: &WaitSet, token: Token) -> Result<()> {
        if let Some(interest) = self.interest {
            set.add(socket.as_fd(), token, interest)?;
        }
        let Some(timer) = &self.timer else { return Ok(()) };
        set.add(timer.as_fd(), token, Interest::Read).inspect_err(|_| self.remove_from(socket, set))
    }

    /// Removes the socket from `set`, which is no longer one of the poll sets.
    pub(super) fn remove_from(&self, socket: &impl AsFd, set: &WaitSet) {
        if self.interest.is_some() {
            // It cannot fail: `interest` says that the socket is there.
            let _ = set.remove(socket.as_fd());
        }
        if let Some(timer) = &self.timer {
            // It fails where the timer could not be added.
            let _ = set.remove(timer.as_fd());
        }
    }
}
