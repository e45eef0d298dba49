//! Detects that a peer's host has vanished.
//!
//! A verbs connection without traffic shows nothing about its peer. If nothing completes for half the
//! keep-alive time, a probe is posted: a request that completes only when the peer's host has acknowledged
//! it. If the probe does not complete within the keep-alive time, the host is lost.

use std::time::{Duration, Instant};

use crate::timer::next_tick;

/// Longest time between two checks. The caller checks the device at the same times, so this bounds how late a
/// fault of the device is noticed.
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

/// What is known about the peer of one connection.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// Present while the connection is established.
    schedule: Option<Schedule>,
    /// When the outstanding probe was posted.
    probing_since: Option<Instant>,
    /// Whether anything completed since the last check.
    heard: bool,
}

#[derive(Debug)]
struct Schedule {
    keepalive: Duration,
    next: Instant,
    last_heard: Instant,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// There is nothing to do.
    Fine,
    /// A probe is due.
    Probe,
    /// The peer's host is lost.
    Lost,
}

impl Liveness {
    /// Starts the checks: the connection is established.
    pub(super) fn start(&mut self, keepalive: Duration) {
        let now = Instant::now();
        self.schedule = Some(Schedule { keepalive, next: next_tick(interval(keepalive)), last_heard: now });
    }

    /// Stops the checks.
    pub(super) fn stop(&mut self) {
        self.schedule = None;
    }

    /// When the next check is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.schedule.as_ref().map(|schedule| schedule.next)
    }

    /// Notes a completion, which is that of the probe if `probe` is set.
    #[inline]
    pub(super) fn heard(&mut self, probe: bool) {
        self.heard = true;
        if probe {
            self.probing_since = None;
        }
    }

    /// Whether a probe is outstanding.
    pub(super) fn probing(&self) -> bool {
        self.probing_since.is_some()
    }

    /// Notes that a probe was posted.
    pub(super) fn probe_posted(&mut self, now: Instant) {
        self.probing_since = Some(now);
    }

    /// Checks the peer, if a check is due.
    pub(super) fn check(&mut self, now: Instant) -> Option<Verdict> {
        let schedule = self.schedule.as_mut().filter(|schedule| schedule.next <= now)?;
        schedule.next = next_tick(interval(schedule.keepalive));
        if std::mem::take(&mut self.heard) {
            schedule.last_heard = now;
        }
        let silent = now.saturating_duration_since(schedule.last_heard);
        Some(match self.probing_since {
            Some(since) => {
                let unanswered = silent.min(now.saturating_duration_since(since));
                if unanswered >= schedule.keepalive { Verdict::Lost } else { Verdict::Fine }
            }
            None if silent >= schedule.keepalive / 2 => Verdict::Probe,
            None => Verdict::Fine,
        })
    }
}

/// The time between two checks.
fn interval(keepalive: Duration) -> Duration {
    (keepalive / 8).min(LONGEST_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPALIVE: Duration = Duration::from_secs(4);

    fn started() -> (Liveness, Instant) {
        let mut liveness = Liveness::default();
        liveness.start(KEEPALIVE);
        (liveness, Instant::now())
    }

    #[test]
    fn a_silent_peer_is_probed_and_then_lost() {
        let (mut liveness, start) = started();
        assert_eq!(liveness.check(start + KEEPALIVE), Some(Verdict::Probe));
        liveness.probe_posted(start + KEEPALIVE);
        assert_eq!(liveness.check(start + KEEPALIVE + Duration::from_secs(3)), Some(Verdict::Fine));
        assert_eq!(liveness.check(start + 3 * KEEPALIVE), Some(Verdict::Lost));
    }

    #[test]
    fn completions_postpone_the_probe() {
        let (mut liveness, start) = started();
        liveness.heard(false);
        assert_eq!(liveness.check(start + KEEPALIVE), Some(Verdict::Fine));
        liveness.probe_posted(start + KEEPALIVE);
        liveness.heard(true);
        assert!(!liveness.probing());
        assert_eq!(liveness.check(start + 3 * KEEPALIVE), Some(Verdict::Fine));
    }

    #[test]
    fn a_stopped_check_is_never_due() {
        let (mut liveness, start) = started();
        liveness.stop();
        assert_eq!((liveness.next(), liveness.check(start + 9 * KEEPALIVE)), (None, None));
    }
}
