//! Notices a peer's host that has vanished.
//!
//! A verbs connection without traffic says nothing of its peer. When nothing was heard for half the
//! keep-alive time a probe is posted: a request that completes only when the peer's host has
//! answered. One that is not answered within the keep-alive time says that the host is gone.

use std::time::{Duration, Instant};

use crate::timer::next_tick;

/// Longest time between two looks: after that what befell the device is noticed too.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What is known of one connection's peer.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// From when the connection stands.
    watch: Option<Watch>,
    /// Since when a probe is under way.
    probing_since: Option<Instant>,
    /// Whether anything completed since the last look.
    heard: bool,
}

#[derive(Debug)]
struct Watch {
    keepalive: Duration,
    next: Instant,
    last_heard: Instant,
}

/// What a look at the peer calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    Probe,
    Lost,
}

impl Liveness {
    /// Begins to watch a connection that stands since now.
    pub(super) fn watch(&mut self, keepalive: Duration) {
        let now = Instant::now();
        self.watch = Some(Watch { keepalive, next: next_tick(pause(keepalive)), last_heard: now });
    }

    /// Stops watching.
    pub(super) fn stop(&mut self) {
        self.watch = None;
    }

    /// When to look next.
    pub(super) fn next(&self) -> Option<Instant> {
        self.watch.as_ref().map(|watch| watch.next)
    }

    /// Something completed; `probe` says whether it was the probe.
    #[inline]
    pub(super) fn heard(&mut self, probe: bool) {
        self.heard = true;
        if probe {
            self.probing_since = None;
        }
    }

    /// Whether a probe is under way.
    pub(super) fn probing(&self) -> bool {
        self.probing_since.is_some()
    }

    /// A probe was posted.
    pub(super) fn probe_posted(&mut self, now: Instant) {
        self.probing_since = Some(now);
    }

    /// Looks, if it is time to.
    pub(super) fn look(&mut self, now: Instant) -> Option<Verdict> {
        let watch = self.watch.as_mut().filter(|watch| watch.next <= now)?;
        watch.next = next_tick(pause(watch.keepalive));
        if std::mem::take(&mut self.heard) {
            watch.last_heard = now;
        }
        let silent = now.saturating_duration_since(watch.last_heard);
        Some(match self.probing_since {
            Some(since) => {
                let unanswered = silent.min(now.saturating_duration_since(since));
                if unanswered >= watch.keepalive { Verdict::Lost } else { Verdict::Fine }
            }
            None if silent >= watch.keepalive / 2 => Verdict::Probe,
            None => Verdict::Fine,
        })
    }
}

fn pause(keepalive: Duration) -> Duration {
    (keepalive / 8).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPALIVE: Duration = Duration::from_secs(4);

    fn watched() -> (Liveness, Instant) {
        let mut liveness = Liveness::default();
        liveness.watch(KEEPALIVE);
        (liveness, Instant::now())
    }

    #[test]
    fn silence_is_probed_and_ends() {
        let (mut liveness, start) = watched();
        assert_eq!(liveness.look(start + KEEPALIVE), Some(Verdict::Probe));
        liveness.probe_posted(start + KEEPALIVE);
        assert_eq!(liveness.look(start + KEEPALIVE + Duration::from_secs(3)), Some(Verdict::Fine));
        assert_eq!(liveness.look(start + 3 * KEEPALIVE), Some(Verdict::Lost));
    }

    #[test]
    fn what_is_heard_counts() {
        let (mut liveness, start) = watched();
        liveness.heard(false);
        assert_eq!(liveness.look(start + KEEPALIVE), Some(Verdict::Fine));
        liveness.probe_posted(start + KEEPALIVE);
        liveness.heard(true);
        assert!(!liveness.probing());
        assert_eq!(liveness.look(start + 3 * KEEPALIVE), Some(Verdict::Fine));
    }

    #[test]
    fn nothing_is_watched_before_and_after_the_connection() {
        let (mut liveness, start) = watched();
        liveness.stop();
        assert_eq!((liveness.next(), liveness.look(start + 9 * KEEPALIVE)), (None, None));
    }
}
