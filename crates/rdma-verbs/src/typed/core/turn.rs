//! The turn: everything there is to do, up to a bound.

use std::time::{Duration, Instant};

use super::{Core, Source};
use crate::typed::TrustedDevice;
use crate::{CompletionQueue, Connections, Listener, Result};

/// Polls of one turn.
const POLLS: usize = 16;

/// Whether a turn found something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::typed) enum Turn {
    /// There may be more to do now.
    Busy,
    /// Until the shard's descriptor is readable there is nothing to do.
    Idle,
}

impl<D: TrustedDevice> Core<D> {
    /// Does what there is to do, up to a bound. After [`Turn::Idle`] the next event makes the shard's
    /// descriptor readable, and it was not readable before: so it is an edge too.
    pub(in crate::typed) fn turn(&mut self) -> Result<Turn> {
        self.kick.set(false);
        let mut is_busy = (0..POLLS).take_while(|_| self.reap()).count() > 0;
        // What completed before is found by a poll after arming.
        is_busy |= self.cq.arm()? && self.reap();
        is_busy |= self.poll_due();
        self.release_all();
        self.set_timer()?;
        self.tokens.clear();
        // A look into the set also forgets what was ready and is not any more. Otherwise such a source would
        // be no edge when it becomes ready again.
        is_busy |= self.wait.wait(Some(Duration::ZERO), &mut self.tokens)?;
        if self.draining > 0 {
            self.finish_draining(!is_busy);
        }
        if self.tokens.contains(&self.events_token) {
            self.poll_sources()?;
        }
        Ok(if is_busy { Turn::Busy } else { Turn::Idle })
    }

    /// Polls the queue pairs and listeners whose tokens are reported.
    fn poll_sources(&mut self) -> Result<()> {
        self.tokens.clear();
        self.events.wait(Some(Duration::ZERO), &mut self.tokens)?;
        let tokens = std::mem::take(&mut self.tokens);
        for token in &tokens {
            self.poll_source(self.sources.get(token).copied());
        }
        self.tokens = tokens;
        Ok(())
    }

    fn poll_source(&mut self, source: Option<Source>) {
        match source {
            Some(Source::QueuePair(index)) => self.poll_events(index),
            Some(Source::Listener(index)) => self.poll_listener(index),
            Some(Source::Device(index)) => self.poll_device(index),
            // It was dropped.
            None => {}
        }
    }

    fn deadline(&self, source: Source) -> Option<Instant> {
        match source {
            Source::QueuePair(index) => {
                let pair = self.pairs.get(index)?;
                self.cq.deadline(pair.qp).into_iter().chain(pair.abandoned).chain(pair.ask_again).min()
            }
            Source::Listener(index) => self.listeners.get(index)?.listener.as_ref()?.deadline(),
            Source::Device(_) => None,
        }
    }

    /// Polls the sources whose deadlines have come. Returns whether there were any.
    fn poll_due(&mut self) -> bool {
        if self.expires.is_none_or(|expires| Instant::now() < expires) {
            return false;
        }
        let sources: Vec<_> = self.sources.values().copied().collect();
        for source in sources {
            // A device whose event is ready returns the time of the call.
            if self.deadline(source).is_some_and(|deadline| deadline <= Instant::now()) {
                self.poll_source(Some(source));
            }
        }
        true
    }

    fn release_all(&mut self) {
        if self.abandoned > 0 {
            (0..self.pairs.capacity()).for_each(|index| self.release(index));
        }
        (0..self.shared.capacity()).for_each(|index| self.release_shared(index));
    }

    /// Has the timer expire at the earliest deadline. Setting it also takes back that it has expired, or that it
    /// will: the kernel may report that later than the clock shows it.
    fn set_timer(&mut self) -> Result<()> {
        let expires = self.sources.values().filter_map(|&source| self.deadline(source)).min();
        if expires != self.expires {
            self.timer.set(expires)?;
            self.expires = expires;
        }
        Ok(())
    }
}
