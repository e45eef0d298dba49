//! In which wait sets a queue pair's socket stands, and with what interest: the sets that tell
//! when the completion queue has to be polled, and the one that announces connection events.

use std::os::fd::{AsFd, BorrowedFd};

use crate::{EventTarget, Interest, QpId, Result, Token, WaitSet};

/// The wait sets that tell when a completion queue has to be polled.
#[derive(Clone, Copy)]
pub(super) struct DataSets<'s> {
    /// The set that the user attached.
    pub(super) attached: Option<&'s EventTarget>,
    /// The set that finds the ready ones among many.
    pub(super) finder: Option<&'s WaitSet>,
}

impl<'s> DataSets<'s> {
    /// The sets with the tokens by which they know a queue pair.
    fn each(self, number: QpId) -> impl Iterator<Item = (&'s WaitSet, Token)> {
        let attached = self.attached.map(|target| (&*target.wait, target.token));
        let finder = self.finder.map(|set| (set, Token(u64::from(number.0))));
        attached.into_iter().chain(finder)
    }
}

/// How one socket is watched. Every call is given that socket.
pub(super) struct Watch {
    number: QpId,
    /// With what interest the socket stands in the data sets; `None`: it does not.
    interest: Option<Interest>,
    /// Where connection events are announced, and by what, while there is one to come.
    target: Option<(EventTarget, Interest)>,
}

impl Watch {
    pub(super) fn new(number: QpId) -> Self {
        Self { number, interest: None, target: None }
    }

    /// From now on connection events are announced on `target`, at first by what `interest` says.
    pub(super) fn announce_on(
        &mut self,
        socket: BorrowedFd<'_>,
        interest: Interest,
        target: EventTarget,
    ) -> Result<()> {
        target.wait.add(socket, target.token, interest)?;
        self.target = Some((target, interest));
        Ok(())
    }

    /// Changes what makes the event target report the queue pair; `None`: nothing any more.
    pub(super) fn announce(&mut self, socket: BorrowedFd<'_>, interest: Option<Interest>) {
        let Some((target, before)) = &mut self.target else { return };
        let outcome = match interest {
            // What is told once is told again only when it is asked for again.
            Some(same) if same == *before && same != Interest::HangUp => Ok(()),
            Some(interest) => target.wait.modify(socket, target.token, interest),
            None => target.wait.remove(socket),
        };
        *before = interest.unwrap_or(*before);
        if let Err(error) = outcome {
            log::warn!("iwarp: cannot announce events of queue pair {}: {error}", self.number.0);
        }
        if interest.is_none() {
            self.target = None;
        }
    }

    /// Brings the interest of the data sets in line with `wanted`. Answers whether it was another one.
    #[inline]
    pub(super) fn watch(&mut self, socket: BorrowedFd<'_>, wanted: Interest, sets: DataSets<'_>) -> bool {
        let changes = self.interest != Some(wanted);
        if changes {
            self.change(socket, wanted, sets);
        }
        changes
    }

    #[cold]
    fn change(&mut self, socket: BorrowedFd<'_>, wanted: Interest, sets: DataSets<'_>) {
        for (set, token) in sets.each(self.number) {
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

    /// Takes the socket out of the data sets.
    pub(super) fn leave(&mut self, socket: BorrowedFd<'_>, sets: DataSets<'_>) {
        if self.interest.take().is_some() {
            for (set, _) in sets.each(self.number) {
                // It is there: `interest` said so.
                let _ = set.remove(socket);
            }
        }
    }

    /// Adds the socket to a data set that was not there before.
    pub(super) fn join(&self, socket: &impl AsFd, set: &WaitSet, token: Token) -> Result<()> {
        match self.interest {
            Some(interest) => set.add(socket.as_fd(), token, interest),
            None => Ok(()),
        }
    }

    /// Takes the socket out of a data set that is one no more.
    pub(super) fn part(&self, socket: &impl AsFd, set: &WaitSet) {
        if self.interest.is_some() {
            // As above.
            let _ = set.remove(socket.as_fd());
        }
    }
}
