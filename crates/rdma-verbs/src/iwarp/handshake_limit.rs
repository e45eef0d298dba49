//! The limit of a listener's unfinished handshakes, and the grace period of each.
//!
//! A peer that connects takes a descriptor of this process before it has sent anything. Together, all
//! listeners leave most of the descriptors that the process may open to the application.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

/// The largest limit of a listener.
const MAX_HANDSHAKES: usize = 1024;
/// The smallest limit of a listener, however few descriptors the process may open.
const MIN_HANDSHAKES: usize = 4;
/// All handshakes together may take one in so many of the descriptors that the process may open.
const DESCRIPTORS_PER_HANDSHAKE: u64 = 8;
/// The grace period at the largest limit. A smaller limit has a shorter grace period, so that a crowd of
/// silent peers passes at the same rate.
const MAX_GRACE: Duration = Duration::from_secs(1);
/// The shortest grace period.
const MIN_GRACE: Duration = Duration::from_millis(50);

/// The number of listeners in the process.
static LISTENERS: AtomicUsize = AtomicUsize::new(0);

/// The limit of one listener. It lives as long as the listener.
pub(super) struct HandshakeLimit(());

impl HandshakeLimit {
    /// The limit of one more listener.
    pub(super) fn new() -> Self {
        LISTENERS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// The number of handshakes that the listener may have now.
    #[expect(clippy::unused_self, reason = "the value counts its listener, on which the result depends")]
    pub(super) fn current(&self) -> usize {
        limit(getrlimit(Resource::Nofile).current, LISTENERS.load(Ordering::Relaxed))
    }
}

impl Drop for HandshakeLimit {
    fn drop(&mut self) {
        LISTENERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The limit of each of `listeners` in a process that may open so many descriptors (`None`: any number).
fn limit(descriptors: Option<u64>, listeners: usize) -> usize {
    let all = descriptors.map_or(usize::MAX, |descriptors| {
        usize::try_from(descriptors / DESCRIPTORS_PER_HANDSHAKE).unwrap_or(usize::MAX)
    });
    (all / listeners.max(1)).clamp(MIN_HANDSHAKES, MAX_HANDSHAKES)
}

/// The time during which a handshake is not dropped in favour of another peer, at this limit.
pub(super) fn grace(limit: usize) -> Duration {
    MAX_GRACE.mul_f64(limit as f64 / MAX_HANDSHAKES as f64).max(MIN_GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_share_an_eighth_of_the_descriptors() {
        assert_eq!(limit(None, 1), 1024);
        assert_eq!(limit(Some(20_000), 1), 1024);
        assert_eq!(limit(Some(20_000), 4), 625);
        assert_eq!(limit(Some(1024), 1), 128);
        assert_eq!(limit(Some(256), 1), 32);
        assert_eq!(limit(Some(256), 3), 10);
        assert_eq!(limit(Some(256), 1000), 4);
        assert_eq!(limit(Some(0), 0), 4);
    }

    #[test]
    fn a_smaller_limit_has_a_shorter_grace_period() {
        assert_eq!(grace(1024), Duration::from_secs(1));
        assert_eq!(grace(128), Duration::from_millis(125));
        assert_eq!(grace(4), Duration::from_millis(50));
    }
}
